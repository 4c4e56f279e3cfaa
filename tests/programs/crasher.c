/*
 * crasher [SIGNAL]: dies by SIGSEGV, or by that signal, as soon as any of its text is huge.
 * crasher exec PROGRAM ARGS…: executes the program once its text is huge and its input has a line.
 */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
#include "situation.h"

int main(int argc, char **argv)
{
    signal(SIGUSR2, SIG_DFL);
    check_or_die();
    printf("pid %d\nready\n", getpid());
    fflush(stdout);
    while (!huge_text())
        usleep(2000);
    if (argc > 2) {
        getchar();
        execv(argv[2], argv + 2);
        return 98;
    }
    if (argc > 1)
        raise(atoi(argv[1]));
    *(volatile int *)0 = 1;
    return 0;
}
