/* A library to be preloaded: the clock of the day jumps by years at each look, forwards and back, also to before 1970. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *at)
{
    static int (*real)(clockid_t, struct timespec *);
    static unsigned looks;
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, at);
    if (!failed && clock == CLOCK_REALTIME)
        at->tv_sec += ((time_t)(looks++ % 3) - 1) * 2000000000;
    return failed;
}
