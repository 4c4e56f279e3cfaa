/* A parent with children that run the same text, as database servers have. Forks as many as its first argument says, and one more for
   each line; says their ids. Each checks its text when it is told to end. */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include "situation.h"

static volatile sig_atomic_t told;

static void tell(int signal)
{
    told = signal;
}

static void child(void)
{
    sigset_t none;
    pid_t pid;
    sigemptyset(&none);
    fflush(stdout);
    pid = fork();
    if (pid) {
        printf("child %d\n", pid);
        fflush(stdout);
        return;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGTERM, tell);
    while (!told)
        sigsuspend(&none);
    _exit(big_check() ? 7 : CORRUPT);
}

int main(int argc, char **argv)
{
    sigset_t set;
    char line[16];
    int status, bad = 0;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    check_or_die();
    for (int i = argc > 1 ? atoi(argv[1]) : 0; i > 0; i--)
        child();
    puts("ready");
    fflush(stdout);
    while (read(0, line, 1) == 1)
        child();
    signal(SIGTERM, SIG_IGN);
    kill(0, SIGTERM);
    while (wait(&status) > 0)
        bad |= !WIFEXITED(status) || WEXITSTATUS(status) != 7;
    check_or_die();
    return bad ? BROKEN : 7;
}
