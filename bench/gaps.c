/* Looks at the clock all the time, and every 50 ms says when it is, how many nanoseconds it has run, and how many of them somebody
   else had, an interrupt for instance: a gap between two looks. Gaps from 100 us on are the scheduler's or the host's, and are left
   out. */
#include <stdint.h>
#include <stdio.h>
#include <time.h>

enum { LOOK = 500, LONG = 100000, SAY = 50000000 };

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

int main(void)
{
    uint64_t ran = 0, lost = 0, said = now();
    for (uint64_t before = said, at; (at = now()); before = at) {
        uint64_t gap = at - before;
        if (gap < LONG)
            ran += gap;
        if (gap >= LOOK && gap < LONG)
            lost += gap;
        if (at - said < SAY)
            continue;
        printf("%lu %lu %lu\n", at, ran, lost);
        fflush(stdout);
        ran = lost = 0;
        said = at = now();
    }
}
