/* Two processes with one address space. The first waits for its end; the second goes on without it, has its whole text run when it is
   sent a line, says "right", and ends when it is sent another. Both stand on the initial stack. */
#define _GNU_SOURCE
#include <alloca.h>
#include <sched.h>
#include <signal.h>
#include "situation.h"

static int twin(void *unused)
{
    char c;
    while (read(0, &c, 1) == 1 && c != '\n')
        ;
    if (!big_check())
        _exit(CORRUPT);
    if (write(1, "right\n", 6) != 6)
        _exit(BROKEN);
    while (read(0, &c, 1) == 1 && c != '\n')
        ;
    _exit(0);
    return unused != 0;
}

/* Has the stack grow further down than it is needed. */
static __attribute__((noinline)) void deeper(unsigned long by)
{
    volatile char *stack = alloca(by);
    for (unsigned long at = by; at >= 4096; at -= 4096)
        stack[at - 1] = 0;
}

int main(void)
{
    const unsigned long room = 1 << 20;
    volatile char *stack = alloca(room);
    check_or_die();
    /* From the top down, as stacks grow. */
    for (unsigned long at = room; at >= 4096; at -= 4096)
        stack[at - 1] = 0;
    deeper(256 << 10);
    int second = clone(twin, (char *)stack + room / 2, CLONE_VM | SIGCHLD, 0);
    if (second < 0)
        return BROKEN;
    printf("pid %d\ntwin %d\nready\n", getpid(), second);
    fflush(stdout);
    for (;;)
        pause();
}
