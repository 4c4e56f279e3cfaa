/* Reads the clock all the time. Every 50 ms prints the time, how many nanoseconds it has run, and how many of them were gaps between
   two readings, which belong to others such as interrupts. Gaps of 100 us or more come from the scheduler or the host, and do not
   count. */
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
