/* Tries to rob every other process of its user, again and again, until its standard input ends: changes its limits, traces it,
 * reads its memory, takes its descriptors; with "kill" it kills it instead. Says "robbed HOW" for what it could do. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include "../situation.h"

static void says(const char *how, int pid)
{
    printf("robbed %s %d\n", how, pid);
    fflush(stdout);
}

static void robs(int pid)
{
    struct rlimit none = { 0, 0 };
    char path[64];
    int fd;
    if (!prlimit(pid, RLIMIT_FSIZE, &none, NULL))
        says("limit", pid);
    if (!ptrace(PTRACE_SEIZE, pid, 0, 0)) {
        says("trace", pid);
        kill(pid, SIGKILL);
    }
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    if ((fd = open(path, O_RDONLY)) >= 0) {
        says("memory", pid);
        close(fd);
    }
    snprintf(path, sizeof path, "/proc/%d/fd/0", pid);
    if ((fd = open(path, O_RDONLY | O_NONBLOCK)) >= 0) {
        says("descriptor", pid);
        close(fd);
    }
    fd = syscall(SYS_pidfd_open, pid, 0);
    if (fd >= 0) {
        for (int number = 0; number < 16; number++)
            if (syscall(SYS_pidfd_getfd, fd, number, 0) >= 0)
                says("descriptor", pid);
        close(fd);
    }
}

int main(int argc, char **argv)
{
    int kills = argc > 1 && !strcmp(argv[1], "kill"), others = 0, spared = argc > 2 ? atoi(argv[2]) : 0;
    struct pollfd input = { 0, POLLIN, 0 };
    puts("ready");
    fflush(stdout);
    while (!poll(&input, 1, 0)) {
        struct dirent *entry;
        DIR *proc = opendir("/proc");
        while (proc && (entry = readdir(proc))) {
            char path[300];
            FILE *file;
            unsigned uid = 0;
            int pid = atoi(entry->d_name);
            if (pid <= 0 || pid == getpid() || pid == spared)
                continue;
            snprintf(path, sizeof path, "/proc/%d/status", pid);
            if (!(file = fopen(path, "re")))
                continue;
            while (fgets(path, sizeof path, file))
                if (sscanf(path, "Uid: %u", &uid) == 1)
                    break;
            fclose(file);
            if (uid != getuid())
                continue;
            others++;
            if (kills)
                kill(pid, SIGKILL);
            else
                robs(pid);
        }
        if (proc)
            closedir(proc);
    }
    printf("others %d\n", others);
    return 7;
}
