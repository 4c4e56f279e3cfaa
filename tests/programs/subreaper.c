/* subreaper PROGRAM ARGS…: a child subreaper runs the program and says how it ended, then reaps whatever else comes to it. */
#include <errno.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int status, strays = 0;
    pid_t child;
    if (argc < 2 || prctl(PR_SET_CHILD_SUBREAPER, 1))
        return 98;
    child = fork();
    if (child == 0) {
        execv(argv[1], argv + 1);
        _exit(98);
    }
    if (waitpid(child, &status, 0) != child)
        return 98;
    while (waitpid(-1, NULL, __WALL) > 0)
        strays++;
    printf("%s %d\nstrays %d\n", WIFEXITED(status) ? "exited" : "signaled", WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status),
           strays);
    return 0;
}
