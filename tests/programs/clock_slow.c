/* A library to be preloaded: the monotonic clock runs at a tenth of its speed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *at)
{
    static int (*real)(clockid_t, struct timespec *);
    static long long begun;
    long long now;
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, at);
    if (failed || clock != CLOCK_MONOTONIC)
        return failed;
    now = at->tv_sec * 1000000000LL + at->tv_nsec;
    if (!begun)
        begun = now;
    now = begun + (now - begun) / 10;
    at->tv_sec = now / 1000000000LL;
    at->tv_nsec = now % 1000000000LL;
    return 0;
}
