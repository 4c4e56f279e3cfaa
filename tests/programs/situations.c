/* situations NAME [CALL…]: one process in the odd situation of that name, with its text checked before and after. Says "pid", "ready", and
   waits for a line. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "situation.h"

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#endif

static void finish(void)
{
    ready_and_wait();
    check_or_die();
    _exit(7);
}

static void *rest(void *unused)
{
    /* The leader is gone once its task has no address space. */
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/task/%d/status", getpid(), getpid());
    for (;;) {
        FILE *f = fopen(path, "re");
        size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
        text[n] = 0;
        if (f)
            fclose(f);
        if (strstr(text, "Z (zombie)"))
            break;
        usleep(1000);
    }
    finish();
    return unused;
}

/* Only read, write and exit from now on. */
static void strict(void)
{
    static char all[] = "ready\n";
    char c;
    ssize_t n;
    fflush(stdout);
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
    if (write(1, all, sizeof all - 1) != sizeof all - 1)
        syscall(SYS_exit, BROKEN);
    do
        n = read(0, &c, 1);
    while (n == 1 && c != '\n');
    syscall(SYS_exit, big_check() ? 7 : CORRUPT);
}

static volatile char selector;
static void dispatched(int signal)
{
    selector = 0;
    static const char text[] = "a system call came to the handler\n";
    if (write(2, text, sizeof text - 1) < 0 || signal)
        _exit(BROKEN);
}

static void patched(void)
{
    /* A byte of a filler in the middle that nothing executes, there and back: the page is the process's own since. */
    volatile unsigned char *byte = (volatile unsigned char *)(uintptr_t)big_middle + 40;
    uintptr_t page = (uintptr_t)byte & ~(uintptr_t)(getpagesize() - 1);
    if (mprotect((void *)page, getpagesize(), PROT_READ | PROT_WRITE | PROT_EXEC))
        _exit(BROKEN);
    *byte ^= 1;
    *byte ^= 1;
    if (mprotect((void *)page, getpagesize(), PROT_READ | PROT_EXEC))
        _exit(BROKEN);
}

/* Makes mappings until only `spare` more may be made. */
static void mappings(long spare)
{
    char line[256];
    long limit = 0, count = 0, page = getpagesize();
    FILE *f = fopen("/proc/sys/vm/max_map_count", "re");
    if (!f || fscanf(f, "%ld", &limit) != 1)
        _exit(BROKEN);
    fclose(f);
    char *area = mmap(NULL, 2 * limit * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (area == MAP_FAILED || !(f = fopen("/proc/self/maps", "re")))
        _exit(BROKEN);
    while (fgets(line, sizeof line, f))
        count++;
    fclose(f);
    /* Each readable page in the middle of it makes two more. */
    for (long at = 1; count + 2 <= limit - spare; at += 2, count += 2)
        if (mprotect(area + at * page, page, PROT_READ))
            break;
}

/* Stacks as glibc 2.42 makes them: several in one mapping, each with a guard of its own that is no mapping. This one's neighbour is
   full of data. */
static pthread_attr_t *guarded_by_regions(void)
{
    static pthread_attr_t attr;
    size_t len = 1 << 20, guard = 4096;
    char *all = mmap(NULL, 2 * len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        _exit(BROKEN);
    memset(all + guard, 0x5a, len - guard);
    for (int i = 0; i < 2; i++)
        if (madvise(all + i * len, guard, 102 /* MADV_GUARD_INSTALL */))
            _exit(BROKEN);
    pthread_attr_init(&attr);
    pthread_attr_setstack(&attr, all + len + guard, len - guard);
    return &attr;
}

static void on_the_local_stack(int signal)
{
    (void)signal;
    ready_and_wait();
}

/* Handles a signal on an alternate stack, while this function's data lie right below that. */
static __attribute__((noinline)) void above_local_data(char *stack, size_t size)
{
    volatile unsigned char data[64 << 10];
    memset((void *)data, 0x5a, sizeof data);
    stack_t local = {.ss_sp = stack, .ss_size = size};
    struct sigaction action = {.sa_handler = on_the_local_stack, .sa_flags = SA_ONSTACK};
    if (sigaltstack(&local, NULL) || sigaction(SIGUSR1, &action, NULL) || raise(SIGUSR1))
        _exit(BROKEN);
    for (size_t i = 0; i < sizeof data; i++)
        if (data[i] != 0x5a)
            _exit(CORRUPT);
}

/* An alternate stack among the local variables of a function. */
static __attribute__((noinline)) void local_stack(void)
{
    char stack[16 << 10] __attribute__((aligned(16)));
    above_local_data(stack, sizeof stack);
    __asm__ volatile("" : : "r"(stack) : "memory");
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    struct rlimit limit;
    pthread_t thread;
    pid_t pid;
    int status;
    signal(SIGUSR2, SIG_DFL);
    /* Text that is run through is mapped by huge pages, where the page cache has such. */
    if (argc < 3 || strcmp(argv[2], "untouched"))
        check_or_die();
    printf("pid %d\n", getpid());
    if (!strcmp(name, "leader")) {
        pthread_create(&thread, NULL, rest, NULL);
        pthread_exit(NULL);
    } else if (!strcmp(name, "guard_regions")) {
        pthread_create(&thread, guarded_by_regions(), rest, NULL);
        pthread_exit(NULL);
    } else if (!strcmp(name, "local_stack")) {
        local_stack();
        check_or_die();
        _exit(7);
    } else if (!strcmp(name, "vfork")) {
        fflush(stdout);
        pid = vfork();
        if (pid == 0) {
            ready_and_wait();
            if (argc > 2 && !strcmp(argv[2], "nothp") && prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
                _exit(BROKEN);
            _exit(3);
        }
        if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 3)
            return BROKEN;
    } else if (!strcmp(name, "zombie")) {
        fflush(stdout);
        pid = fork();
        if (pid == 0)
            _exit(0);
        siginfo_t info;
        waitid(P_PID, pid, &info, WEXITED | WNOWAIT);
        printf("child %d\n", pid);
    } else if (!strcmp(name, "strict")) {
        strict();
    } else if (!strcmp(name, "dispatch")) {
        struct sigaction act = {.sa_handler = dispatched};
        sigaction(SIGSYS, &act, NULL);
        puts("ready");
        fflush(stdout);
        if (prctl(PR_SET_SYSCALL_USER_DISPATCH, 1, 0, 0, &selector))
            _exit(BROKEN);
        /* Nothing but its own text for a while, or until a call of somebody's came. */
        selector = 1;
        for (int i = 0; i < atoi(argv[2]); i++)
            if (!big_check())
                break;
        selector = 0;
        check_or_die();
        _exit(7);
    } else if (!strcmp(name, "undumpable")) {
        prctl(PR_SET_DUMPABLE, 0);
    } else if (!strcmp(name, "locked")) {
        if (mlockall(MCL_CURRENT | MCL_FUTURE))
            return BROKEN;
    } else if (!strcmp(name, "locked_to_the_limit")) {
        /* Root is exempt from the limit, so the rest is another user's. */
        char line[256];
        unsigned long kib = 0;
        if (mlockall(MCL_FUTURE))
            return BROKEN;
        FILE *f = fopen("/proc/self/status", "re");
        while (f && fgets(line, sizeof line, f))
            sscanf(line, "VmLck: %lu", &kib);
        if (!f || fclose(f))
            return BROKEN;
        limit.rlim_cur = limit.rlim_max = (kib + 256) * 1024;
        if (setrlimit(RLIMIT_MEMLOCK, &limit) || setresgid(1717, 1717, 1717) || setresuid(1717, 1717, 1717))
            return BROKEN;
    } else if (!strcmp(name, "executed_in_memory")) {
        int memory = memfd_create("inner", MFD_CLOEXEC), self = open("/proc/self/exe", O_RDONLY);
        while (sendfile(memory, self, NULL, 1 << 20) > 0)
            ;
        fexecve(memory, (char *[]){"inner", "plain", NULL}, (char *[]){NULL});
        return BROKEN;
    } else if (!strcmp(name, "sealed")) {
        /* Whole pages of it. */
        unsigned long page = getpagesize(), at = ((unsigned long)big_begin + page - 1) & -page;
        if (syscall(462, at, ((unsigned long)big_end & -page) - at, 0UL))
            puts("no mseal");
    } else if (!strcmp(name, "patched")) {
        patched();
    } else if (!strcmp(name, "writable")) {
        unsigned long page = getpagesize(), at = (unsigned long)big_begin & -page;
        if (mprotect((void *)at, (unsigned long)big_end - at, PROT_READ | PROT_WRITE | PROT_EXEC))
            return BROKEN;
    } else if (!strcmp(name, "mappings")) {
        mappings(atol(argv[2]));
    } else if (!strcmp(name, "files")) {
        getrlimit(RLIMIT_NOFILE, &limit);
        limit.rlim_cur = 64;
        setrlimit(RLIMIT_NOFILE, &limit);
        while (open("/dev/null", O_RDONLY) >= 0)
            ;
        /* That number of descriptors is left. */
        for (int i = 0; i < atoi(argv[2]); i++)
            close(63 - i);
    } else if (!strcmp(name, "address-space")) {
        char line[256];
        unsigned long pages = 0;
        FILE *f = fopen("/proc/self/statm", "re");
        if (!f || !fgets(line, sizeof line, f))
            return BROKEN;
        fclose(f);
        sscanf(line, "%lu", &pages);
        limit.rlim_cur = limit.rlim_max = (pages + 64) * getpagesize();
        setrlimit(RLIMIT_AS, &limit);
    } else if (strcmp(name, "plain")) {
        return BROKEN;
    }
    finish();
}
