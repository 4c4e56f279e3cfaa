/* Runs its whole text, says so, waits to be looked at, runs it again, exits with its first argument. */
#include "situation.h"

int main(int argc, char **argv)
{
    check_or_die();
    printf("pid %d\nppid %d\nhuge %lu\n", getpid(), getppid(), huge_text());
    ready_and_wait();
    check_or_die();
    return argc > 1 ? atoi(argv[1]) : 0;
}
