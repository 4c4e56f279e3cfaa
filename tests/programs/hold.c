/* Checks that errno is 0 at its start, runs its whole text, says so, waits to be looked at, runs it again, exits with its first argument. */
#include <signal.h>
#include "situation.h"

int main(int argc, char **argv)
{
    if (errno)
        return BROKEN;
    /* Changes nothing, but links the signal return, which a static program that uses no signals lacks (no_gadget.c). */
    signal(SIGUSR2, SIG_DFL);
    check_or_die();
    printf("pid %d\nppid %d\nhuge %lu\n", getpid(), getppid(), huge_text());
    ready_and_wait();
    check_or_die();
    return argc > 1 ? atoi(argv[1]) : 0;
}
