/* seccomp_exec ACTION CALL[,CALL…] PROGRAM ARGS…: installs a filter that answers the calls with ACTION (errno=NUMBER, kill, trap, trace,
   notify, log), then becomes the program. CALL/INDEX=VALUE means the call only where the low half of that argument is VALUE. */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CALL(name) {#name, SYS_##name}
static const struct { const char *name; int nr; } calls[] = {
    CALL(memfd_create), CALL(ftruncate), CALL(fallocate), CALL(madvise), CALL(mremap), CALL(munmap), CALL(wait4), CALL(waitid),
    CALL(rt_sigreturn), CALL(fcntl), CALL(prctl), CALL(ptrace), CALL(process_vm_readv), CALL(process_vm_writev), CALL(clone),
    CALL(clone3), CALL(mmap), CALL(fork), CALL(vfork), CALL(setsid), CALL(pidfd_open), CALL(pidfd_getfd), CALL(pipe2), CALL(socketpair),
    CALL(sendmsg), CALL(recvmsg), CALL(kill), CALL(tgkill), CALL(eventfd2), CALL(poll), CALL(ppoll), CALL(pread64), CALL(pwrite64),
    CALL(copy_file_range), CALL(sendfile), CALL(splice), CALL(dup3), CALL(close_range), CALL(setrlimit), CALL(prlimit64),
    CALL(rt_sigprocmask), CALL(rt_sigaction), CALL(sigaltstack), CALL(mincore), CALL(process_madvise), CALL(statfs), CALL(fstatfs),
    CALL(close), CALL(mlock), CALL(sched_setscheduler), CALL(restart_syscall), CALL(perf_event_open),
    CALL(socket), CALL(connect),
};

int main(int argc, char **argv)
{
    struct sock_filter filter[128];
    unsigned short n = 0;
    unsigned action;
    if (argc < 4)
        return 98;
    if (!strncmp(argv[1], "errno=", 6))
        action = SECCOMP_RET_ERRNO | (atoi(argv[1] + 6) & SECCOMP_RET_DATA);
    else if (!strcmp(argv[1], "kill"))
        action = SECCOMP_RET_KILL_PROCESS;
    else if (!strcmp(argv[1], "trap"))
        action = SECCOMP_RET_TRAP;
    else if (!strcmp(argv[1], "trace"))
        action = SECCOMP_RET_TRACE;
    else if (!strcmp(argv[1], "notify"))
        action = SECCOMP_RET_USER_NOTIF;
    else if (!strcmp(argv[1], "log"))
        action = SECCOMP_RET_LOG;
    else
        return 98;
    filter[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (char *name = strtok(argv[2], ","); name; name = strtok(NULL, ",")) {
        size_t i = 0;
        char *argument = strchr(name, '/');
        unsigned index = 0, value = 0;
        if (argument) {
            *argument = 0;
            sscanf(argument + 1, "%u=%i", &index, (int *)&value);
        }
        while (i < sizeof calls / sizeof *calls && strcmp(name, calls[i].name))
            i++;
        if (i == sizeof calls / sizeof *calls || n > 115) {
            fprintf(stderr, "seccomp_exec: no number for %s\n", name);
            return 98;
        }
        filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i].nr, 0, argument ? 4 : 1);
        if (argument) {
            unsigned at = offsetof(struct seccomp_data, args) + index * sizeof(__u64);
            filter[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at);
            filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
        }
        filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, action);
        if (argument)
            filter[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    }
    filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog prog = {n, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog)) {
        perror("seccomp_exec");
        return 98;
    }
    execv(argv[3], argv + 3);
    return 98;
}
