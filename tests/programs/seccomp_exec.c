/* seccomp_exec ACTION CALL[,CALL…] PROGRAM ARGS…: installs a filter that answers the calls with ACTION (errno=NUMBER, kill, trap), then
   becomes the program. */
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
    CALL(clone3), CALL(fork), CALL(vfork), CALL(setsid), CALL(pidfd_open), CALL(pidfd_getfd), CALL(pipe2), CALL(socketpair),
    CALL(sendmsg), CALL(recvmsg), CALL(kill), CALL(tgkill), CALL(eventfd2), CALL(poll), CALL(ppoll), CALL(pread64), CALL(pwrite64),
    CALL(copy_file_range), CALL(sendfile), CALL(splice), CALL(dup3), CALL(close_range), CALL(setrlimit), CALL(prlimit64),
    CALL(rt_sigprocmask), CALL(rt_sigaction), CALL(sigaltstack), CALL(mincore), CALL(process_madvise), CALL(statfs), CALL(fstatfs),
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
    else
        return 98;
    filter[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (char *name = strtok(argv[2], ","); name; name = strtok(NULL, ",")) {
        size_t i = 0;
        while (i < sizeof calls / sizeof *calls && strcmp(name, calls[i].name))
            i++;
        if (i == sizeof calls / sizeof *calls || n > 120) {
            fprintf(stderr, "seccomp_exec: no number for %s\n", name);
            return 98;
        }
        filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i].nr, 0, 1);
        filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, action);
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
