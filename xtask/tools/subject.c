/* Does what tools look at, in functions between two pads of 3 MiB of code (lib.sh). A line on stdin each: "spin" burns processor time
   in spin_inner until the next line, "call" calls probed, "trace" calls trace() of a library, "abort" dies in fail_inner. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAMED __attribute__((noinline, noclone))

void trace(void) __attribute__((weak));
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
static volatile unsigned sink;

NAMED unsigned probed(unsigned n)
{
    sink += n;
    return sink * 3;
}

NAMED unsigned spin_inner(unsigned n)
{
    for (unsigned i = 0; i < 1000000; i++)
        n = n * 1664525 + (sink ^ i);
    return n;
}

NAMED unsigned spin_outer(void)
{
    struct pollfd input = {0, POLLIN, 0};
    unsigned n = 1;
    while (poll(&input, 1, 0) == 0)
        n = spin_inner(n);
    return n + 1;
}

NAMED unsigned trace_inner(unsigned n)
{
    if (trace)
        trace();
    return sink + n;
}

NAMED unsigned trace_outer(unsigned n)
{
    return trace_inner(n) + 1;
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

NAMED long wait_inner(char *line, size_t len)
{
    size_t n = 0;
    while (n < len - 1 && read(0, line + n, 1) == 1 && line[n] != '\n')
        n++;
    line[n] = 0;
    sink += n;
    return n;
}

NAMED long wait_outer(char *line, size_t len)
{
    return wait_inner(line, len) + 1;
}

int main(void)
{
    char line[32];
    printf("offset %lx\nready\n", (unsigned long)probed - (unsigned long)__ehdr_start);
    fflush(stdout);
    while (wait_outer(line, sizeof line) > 1) {
        if (!strcmp(line, "spin")) {
            puts("spinning");
            fflush(stdout);
            spin_outer();
        } else if (!strcmp(line, "call"))
            probed(1);
        else if (!strcmp(line, "trace"))
            trace_outer(1);
        else if (!strcmp(line, "abort"))
            fail_outer(1);
        puts("done");
        fflush(stdout);
    }
    return 7;
}
