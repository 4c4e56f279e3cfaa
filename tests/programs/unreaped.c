/* Runs the command as a debugger would that looks away: traces each thread of its process, and waits for none of those that end
 * until the process has ended. So the ended threads stay in the process. Ends as the command does. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

/* Whether the process has ended, although its ended threads hide that from wait. */
static int has_ended(int pid)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY);
    ssize_t len = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    close(fd);
    const char *name_ends = len < 0 ? NULL : strrchr(text, ')');
    return !name_ends || name_ends[2] == 'Z';
}

/* The kernel begins to trace the children of the process as well. */
static int is_thread(int pid, int tid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d", pid, tid);
    return !access(path, F_OK);
}

int main(int argc, char **argv)
{
    int go[2], status = 0, seen;
    if (argc < 2 || pipe2(go, O_CLOEXEC))
        return 2;
    int pid = fork();
    if (!pid) {
        char begin;
        if (read(go[0], &begin, 1) == 1)
            execvp(argv[1], argv + 1);
        _exit(127);
    }
    if (ptrace(PTRACE_SEIZE, pid, NULL, (void *)PTRACE_O_TRACECLONE) || write(go[1], "", 1) != 1) {
        perror("unreaped");
        return 2;
    }
    while (!has_ended(pid)) {
        siginfo_t stop = { 0 };
        if (waitid(P_ALL, 0, &stop, WSTOPPED | WNOHANG | __WALL) || !stop.si_pid) {
            usleep(1000);
            continue;
        }
        int is_signal = !(stop.si_status >> 8);
        void *signal = (void *)(long)(is_signal ? stop.si_status : 0);
        ptrace(is_thread(pid, stop.si_pid) ? PTRACE_CONT : PTRACE_DETACH, stop.si_pid, NULL, signal);
    }
    for (int one; (one = waitpid(-1, &seen, __WALL)) > 0;)
        if (one == pid)
            status = seen;
    if (WIFSIGNALED(status))
        return 128 + WTERMSIG(status);
    return WEXITSTATUS(status);
}
