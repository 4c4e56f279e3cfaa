/* Does what debuggers and profilers look at, in functions that lie within its first megabytes of text. A line on stdin each: "spin"
   (burns processor time in spin_inner), "call" (calls probed), "abort" (dies in fail_inner); says "done" after each. Ends with 7. */
#include "situation.h"
#include <signal.h>
#include <time.h>

#define NAMED __attribute__((section(".text.hot"), noinline, noclone))
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
static volatile unsigned sink;

NAMED unsigned probed(unsigned n)
{
    sink += n;
    return sink * 3;
}

NAMED unsigned spin_inner(unsigned n)
{
    for (unsigned i = 0; i < 5000000; i++)
        n = n * 1664525 + (sink ^ i);
    return n;
}

NAMED unsigned spin_outer(void)
{
    struct timespec used;
    unsigned n = 1;
    do {
        n = spin_inner(n);
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    } while (used.tv_sec == 0 && used.tv_nsec < 250000000);
    return n + 1;
}

NAMED unsigned fail_inner(unsigned n)
{
    if (n)
        *(volatile int *)8 = 1;
    return sink + n;
}

NAMED unsigned fail_outer(unsigned n)
{
    return fail_inner(n) + 1;
}

NAMED ssize_t wait_inner(char *line, size_t len)
{
    ssize_t n = 0;
    while ((size_t)n < len - 1 && read(0, line + n, 1) == 1 && line[n] != '\n')
        n++;
    line[n] = 0;
    sink += n;
    return n;
}

NAMED ssize_t wait_outer(char *line, size_t len)
{
    return wait_inner(line, len) + 1;
}

int main(void)
{
    char line[32];
    check_or_die();
    printf("pid %d\nprobed %lx\noffset %lx\nready\n", getpid(), (unsigned long)probed,
           (unsigned long)probed - (unsigned long)__ehdr_start);
    fflush(stdout);
    while (wait_outer(line, sizeof line) > 1) {
        if (!strcmp(line, "spin"))
            spin_outer();
        else if (!strcmp(line, "call"))
            probed(1);
        else if (!strcmp(line, "abort"))
            fail_outer(1);
        puts("done");
        fflush(stdout);
    }
    check_or_die();
    return 7;
}
