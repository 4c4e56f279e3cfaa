/* Does what debuggers and profilers look at, in functions that lie within its first megabytes of text. A line on stdin each: "spin"
   (burns processor time in spin_inner), "call" (calls probed), "abort" (dies in fail_inner); says "done" after each. Ends with 7. */
#include "situation.h"
#include <signal.h>
#include <time.h>

#define NAMED __attribute__((section(".text.hot"), noinline, noclone))
#include "traced.h"

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

int main(void)
{
    char line[32];
    check_or_die();
    printf("pid %d\nprobed %lx\noffset %lx\nready\n", getpid(), (unsigned long)probed, probed_offset());
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
