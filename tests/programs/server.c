/* server workers N: forks N workers, says how many it got, and ends with 7 once it is told to, if its text was right to the end.
   server daemon: runs in the background, as a service of Type=forking does: the first process ends once the second one has begun. */
#include <signal.h>
#include <sys/wait.h>
#include "situation.h"

static int daemon_of_two(void)
{
    int begun[2];
    char c;
    if (pipe(begun))
        return BROKEN;
    switch (fork()) {
    case -1:
        return BROKEN;
    case 0:
        setsid();
        check_or_die();
        if (write(begun[1], "b", 1) != 1)
            _exit(BROKEN);
        for (;;)
            pause();
    }
    return read(begun[0], &c, 1) == 1 ? 0 : BROKEN;
}

int main(int argc, char **argv)
{
    int got = 0, wanted;
    check_or_die();
    if (argc > 1 && !strcmp(argv[1], "daemon"))
        return daemon_of_two();
    wanted = argc > 2 ? atoi(argv[2]) : 0;
    int hold[2];
    if (pipe(hold))
        return BROKEN;
    for (int i = 0; i < wanted; i++) {
        char c;
        pid_t pid = fork();
        if (pid == 0) {
            close(hold[1]);
            _exit(read(hold[0], &c, 1) == 0 && big_check() ? 0 : CORRUPT);
        }
        got += pid > 0;
    }
    printf("workers %d\n", got);
    ready_and_wait();
    close(hold[1]);
    while (wait(NULL) > 0)
        ;
    check_or_die();
    return 7;
}
