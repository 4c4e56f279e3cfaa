/* trace() writes behind an allocation, which AddressSanitizer reports. */
#include <stdlib.h>

__attribute__((noinline, noclone)) void out_of_bounds(volatile char *memory, int at)
{
    memory[at] = 1;
}

void trace(void)
{
    out_of_bounds(malloc(8), 8);
}
