/* Does what tools look at, in functions between two pads of 3 MiB of code (lib.sh). A line on stdin each: "spin" burns processor time
   in spin_inner until the next line, "call" calls probed, "trace" calls trace() of a library, "abort" dies in fail_inner. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMED __attribute__((noinline, noclone))
#include "../../tests/programs/traced.h"

void trace(void) __attribute__((weak));

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

int main(void)
{
    char line[32];
    printf("offset %lx\nready\n", probed_offset());
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
