/* trace() by backtrace(3) and backtrace_symbols_fd(3) of the C library. */
#include <execinfo.h>

void trace(void)
{
    void *frames[32];
    backtrace_symbols_fd(frames, backtrace(frames, 32), 2);
}
