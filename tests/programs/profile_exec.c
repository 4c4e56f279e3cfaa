/* profile_exec PROFILE PROGRAM ARGS…: becomes the program under filters as those that real programs run under: "container", an allow-list with
   argument checks as container engines install; "service", several filters as systemd installs for SystemCallFilter=@system-service,
   MemoryDenyWriteExecute=, RestrictRealtime= and RestrictAddressFamilies=, of which the first kills. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DATA(field) offsetof(struct seccomp_data, field)
#define LOW(n) (DATA(args) + 8 * (n))
#define HIGH(n) (LOW(n) + 4)
#define REFUSE (SECCOMP_RET_ERRNO | EPERM)
#define HIGHEST 470

static struct sock_filter filter[4096];
static unsigned short n;

static void add(unsigned code, unsigned k, int yes, int no)
{
    filter[n++] = (struct sock_filter){code, yes, no, k};
}
static void load(unsigned at) { add(BPF_LD | BPF_W | BPF_ABS, at, 0, 0); }
static void answer(unsigned action) { add(BPF_RET | BPF_K, action, 0, 0); }

static void begin(void)
{
    n = 0;
    load(DATA(arch));
    add(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0);
    answer(SECCOMP_RET_KILL_PROCESS);
    load(DATA(nr));
}

static void install(void)
{
    struct sock_fprog prog = {n, filter};
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog)) {
        perror("profile_exec");
        _exit(98);
    }
}

static const short debugging[] = {SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_perf_event_open, SYS_kcmp, SYS_pidfd_getfd};
static const short administration[] = {SYS_mount, SYS_umount2, SYS_pivot_root, SYS_reboot, SYS_swapon, SYS_swapoff, SYS_init_module,
    SYS_finit_module, SYS_delete_module, SYS_kexec_load, SYS_iopl, SYS_ioperm, SYS_settimeofday, SYS_clock_settime, SYS_acct, SYS_bpf,
    SYS_add_key, SYS_keyctl, SYS_request_key, SYS_userfaultfd, SYS_setns, SYS_unshare, SYS_quotactl, SYS_sethostname, SYS_setdomainname,
    SYS_lookup_dcookie, SYS_uselib, SYS_ustat, SYS_sysfs, SYS_vhangup, SYS_open_by_handle_at, SYS_move_pages};
static const short checked[] = {SYS_clone, SYS_clone3, SYS_personality, SYS_socket, SYS_prctl};

static int in(const short *list, size_t len, int nr)
{
    for (size_t i = 0; i < len; i++)
        if (list[i] == nr)
            return 1;
    return 0;
}
#define IN(list, nr) in(list, sizeof list / sizeof *list, nr)

/* All other calls that there are, one by one, as libseccomp lays a list without its optimisation. */
static void allow_the_rest(int debug, int check)
{
    for (int nr = 0; nr <= HIGHEST; nr++) {
        if (IN(administration, nr) || (!debug && IN(debugging, nr)) || (check && IN(checked, nr)))
            continue;
        add(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1);
        answer(SECCOMP_RET_ALLOW);
    }
}

static void container(void)
{
    static const unsigned personalities[] = {0, 8, 0x20000, 0x20008, 0xffffffff};
    begin();
    allow_the_rest(1, 1);
    /* No new namespaces. */
    add(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 4);
    load(LOW(0));
    add(BPF_JMP | BPF_JSET | BPF_K, 0x7e020000, 1, 0);
    answer(SECCOMP_RET_ALLOW);
    answer(REFUSE);
    add(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1);
    answer(SECCOMP_RET_ERRNO | ENOSYS);
    add(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 6);
    load(HIGH(0));
    add(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 3);
    load(LOW(0));
    add(BPF_JMP | BPF_JEQ | BPF_K, AF_VSOCK, 1, 0);
    answer(SECCOMP_RET_ALLOW);
    answer(REFUSE);
    add(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 0, 4);
    load(LOW(0));
    add(BPF_JMP | BPF_JEQ | BPF_K, PR_SET_SECCOMP, 1, 0);
    answer(SECCOMP_RET_ALLOW);
    answer(REFUSE);
    add(BPF_JMP | BPF_JEQ | BPF_K, SYS_personality, 0, 2 * 5 + 1);
    load(LOW(0));
    for (int i = 0; i < 5; i++) {
        add(BPF_JMP | BPF_JEQ | BPF_K, personalities[i], 0, 1);
        answer(SECCOMP_RET_ALLOW);
    }
    answer(REFUSE);
    install();
}

static void service(void)
{
    begin();
    allow_the_rest(0, 0);
    answer(SECCOMP_RET_KILL_PROCESS);
    install();
    begin();
    add(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 4);
    load(LOW(2));
    add(BPF_ALU | BPF_AND | BPF_K, PROT_WRITE | PROT_EXEC, 0, 0);
    add(BPF_JMP | BPF_JEQ | BPF_K, PROT_WRITE | PROT_EXEC, 0, 1);
    answer(REFUSE);
    answer(SECCOMP_RET_ALLOW);
    install();
    begin();
    add(BPF_JMP | BPF_JEQ | BPF_K, SYS_sched_setscheduler, 0, 5);
    load(HIGH(1));
    add(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 2);
    load(LOW(1));
    add(BPF_JMP | BPF_JGT | BPF_K, SCHED_IDLE, 0, 1);
    answer(REFUSE);
    answer(SECCOMP_RET_ALLOW);
    install();
    begin();
    add(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 5);
    load(LOW(0));
    add(BPF_JMP | BPF_JEQ | BPF_K, AF_UNIX, 3, 0);
    add(BPF_JMP | BPF_JEQ | BPF_K, AF_INET, 2, 0);
    add(BPF_JMP | BPF_JEQ | BPF_K, AF_INET6, 1, 0);
    answer(SECCOMP_RET_ERRNO | EAFNOSUPPORT);
    answer(SECCOMP_RET_ALLOW);
    install();
}

int main(int argc, char **argv)
{
    if (argc < 3 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        return 98;
    if (!strcmp(argv[1], "container"))
        container();
    else if (!strcmp(argv[1], "service"))
        service();
    else
        return 98;
    execv(argv[2], argv + 2);
    return 98;
}
