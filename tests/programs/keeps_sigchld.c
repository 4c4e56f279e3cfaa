/* Blocks SIGCHLD, starts a child that ends after ARG1 microseconds, and execs the rest of its arguments: that program must
   find the SIGCHLD pending, whenever it came. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 3)
        return 99;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL);
    if (fork() == 0) {
        usleep(atoi(argv[1]));
        _exit(5);
    }
    execvp(argv[2], argv + 2);
    return 98;
}
