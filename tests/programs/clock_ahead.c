/* A library to be preloaded: once the file that CLOCK_AHEAD names is there, the monotonic clock is eleven minutes ahead. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *at)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, at);
    const char *file = getenv("CLOCK_AHEAD");
    if (!failed && clock == CLOCK_MONOTONIC && file && !access(file, F_OK))
        at->tv_sec += 660;
    return failed;
}
