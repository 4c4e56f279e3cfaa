/* Prints everything a program can see of what it was started with, one fact a line, then waits. Two launches that are equal print
   equal lines, but for "pid" and "huge". An
   absolute file name as the first argument: print there, and do not wait. */
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/auxv.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include "situation.h"

extern char **environ;

static void file_line(FILE *out, const char *name, const char *path)
{
    char buf[256];
    FILE *f = fopen(path, "re");
    if (f && fgets(buf, sizeof buf, f))
        fprintf(out, "%s %s%s", name, buf, strchr(buf, '\n') ? "" : "\n");
    else
        fprintf(out, "%s -\n", name);
    if (f)
        fclose(f);
}

/* fd numbers, what they are (without the inode numbers of pipes), and their flags. `own` is this program's own stream. */
static void fds(FILE *out, int own)
{
    for (int fd = 0; fd < 4096; fd++) {
        char path[64], link[4097];
        int flags = fcntl(fd, F_GETFL), fd_flags = fcntl(fd, F_GETFD);
        ssize_t n;
        if (flags < 0 || fd == own)
            continue;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        n = readlink(path, link, sizeof link - 1);
        link[n < 0 ? 0 : n] = 0;
        if (strchr(link, '['))
            *strchr(link, '[') = 0;
        fprintf(out, "fd %d %s flags %x cloexec %d\n", fd, link, flags, fd_flags);
    }
}

static void status(FILE *out)
{
    static const char *const keys[] = {"Name:", "Umask:", "TracerPid:", "Uid:", "Gid:", "Groups:", "Threads:", "SigPnd:", "ShdPnd:",
        "SigBlk:", "SigIgn:", "SigCgt:", "CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:", "NoNewPrivs:", "Seccomp:",
        "Seccomp_filters:", "Cpus_allowed:", "Mems_allowed:", "THP_enabled:", "VmLck:", "VmPin:", "CoreDumping:", NULL};
    char line[4096];
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof line, f))
        for (int i = 0; keys[i]; i++)
            if (!strncmp(line, keys[i], strlen(keys[i])))
                fprintf(out, "status %s", line);
    if (f)
        fclose(f);
}

int main(int argc, char **argv)
{
    int to_file = argc > 1 && argv[1][0] == '/';
    FILE *out = to_file ? fopen(argv[1], "we") : stdout;
    char cwd[4096];
    struct itimerval timer = {0};
    int own;
    if (!out)
        return BROKEN;
    own = to_file ? fileno(out) : -1;
    check_or_die();

    fprintf(out, "pid %d\nhuge %lu\n", getpid(), huge_text());
    fprintf(out, "ppid %d\nsid_is_own %d\npgid_is_own %d\nforeground %d\n", getppid(), getsid(0) == getpid(), getpgrp() == getpid(),
            tcgetpgrp(0) == getpgrp());
    fprintf(out, "sid_of_parent %d\n", getsid(0) == getsid(getppid()));
    status(out);
    fds(out, own);
    for (int r = 0; r < RLIM_NLIMITS; r++) {
        struct rlimit l;
        getrlimit(r, &l);
        fprintf(out, "rlimit %d %lx %lx\n", r, (unsigned long)l.rlim_cur, (unsigned long)l.rlim_max);
    }
    fprintf(out, "personality %x\n", personality(0xffffffff));
    file_line(out, "oom_score_adj", "/proc/self/oom_score_adj");
    file_line(out, "coredump_filter", "/proc/self/coredump_filter");
    file_line(out, "comm", "/proc/self/comm");
    file_line(out, "timerslack", "/proc/self/timerslack_ns");
    file_line(out, "cgroup", "/proc/self/cgroup");
    file_line(out, "loginuid", "/proc/self/loginuid");
    fprintf(out, "nice %d policy %d ioprio %ld\n", getpriority(PRIO_PROCESS, 0), sched_getscheduler(0), syscall(SYS_ioprio_get, 1, 0));
    {
        int pdeath = -1, subreaper = -1;
        prctl(PR_GET_PDEATHSIG, &pdeath);
        prctl(PR_GET_CHILD_SUBREAPER, &subreaper);
        fprintf(out, "prctl pdeathsig %d subreaper %d dumpable %d thp_disable %d mdwe %d securebits %d keepcaps %d slack %d\n", pdeath,
                subreaper, prctl(PR_GET_DUMPABLE), prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0), prctl(66, 0, 0, 0, 0), prctl(PR_GET_SECUREBITS),
                prctl(PR_GET_KEEPCAPS), prctl(PR_GET_TIMERSLACK));
    }
    getitimer(ITIMER_REAL, &timer);
    fprintf(out, "alarm_set %d\n", timer.it_value.tv_sec || timer.it_value.tv_usec);
    fprintf(out, "cwd %s\n", getcwd(cwd, sizeof cwd) ? cwd : "?");
    fprintf(out, "secure %lu execfn %s phnum %lu auxflags %lx\n", getauxval(AT_SECURE), (const char *)getauxval(AT_EXECFN),
            getauxval(AT_PHNUM), getauxval(AT_FLAGS));
    for (int i = 0; i < argc; i++)
        fprintf(out, "argv %d %s\n", i, argv[i]);
    for (char **e = environ; *e; e++)
        fprintf(out, "env %s\n", *e);
    errno = 0;
    {
        int plain = waitpid(-1, NULL, WNOHANG), plain_errno = plain < 0 ? errno : 0;
        int all = waitpid(-1, NULL, WNOHANG | __WALL), all_errno = all < 0 ? errno : 0;
        fprintf(out, "wait_plain %s\n", plain < 0 ? strerror(plain_errno) : plain ? "a zombie" : "a child");
        fprintf(out, "wait_all %s\n", all < 0 ? strerror(all_errno) : all ? "a zombie" : "a child");
    }
    fflush(out);
    if (to_file)
        return fclose(out) ? BROKEN : 0;
    ready_and_wait();
    return 0;
}
