/* with_child PROGRAM ARGS…: has a child already (it exits 5 at once, and is not reaped), then becomes the program. */
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    siginfo_t info;
    pid_t child = fork();
    if (child == 0)
        _exit(5);
    if (argc < 2 || waitid(P_PID, child, &info, WEXITED | WNOWAIT))
        return 98;
    execv(argv[1], argv + 1);
    return 98;
}
