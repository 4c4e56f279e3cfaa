/* jobshell PROGRAM ARGS…: a shell of one job, on the terminal on fd 0. Puts the job in the foreground, and reports on fd 3 what
   waitpid says: "started PID", "stopped SIG", "continued", "exited N", "signaled N", then what other children it has. Each line
   "fg" on fd 4 continues a stopped job. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int status;
    pid_t job;
    char c;
    if (argc < 2)
        return 98;
    signal(SIGTTOU, SIG_IGN);
    fcntl(3, F_SETFD, FD_CLOEXEC);
    fcntl(4, F_SETFD, FD_CLOEXEC);
    job = fork();
    if (job == 0) {
        setpgid(0, 0);
        tcsetpgrp(0, getpid());
        signal(SIGTTOU, SIG_DFL);
        dprintf(3, "started %d\n", getpid());
        execv(argv[1], argv + 1);
        _exit(98);
    }
    setpgid(job, job);
    for (;;) {
        if (waitpid(job, &status, WUNTRACED | WCONTINUED) < 0) {
            dprintf(3, "lost %s\n", strerror(errno));
            return 98;
        }
        if (WIFSTOPPED(status)) {
            tcsetpgrp(0, getpgrp());
            dprintf(3, "stopped %d\n", WSTOPSIG(status));
            while (read(4, &c, 1) == 1 && c != '\n')
                ;
            tcsetpgrp(0, job);
            kill(-job, SIGCONT);
        } else if (WIFCONTINUED(status)) {
            dprintf(3, "continued\n");
        } else {
            break;
        }
    }
    tcsetpgrp(0, getpgrp());
    if (WIFEXITED(status))
        dprintf(3, "exited %d\n", WEXITSTATUS(status));
    else
        dprintf(3, "signaled %d\n", WTERMSIG(status));
    dprintf(3, "others %s\n", waitpid(-1, NULL, WNOHANG | __WALL) < 0 && errno == ECHILD ? "none" : "some");
    return 0;
}
