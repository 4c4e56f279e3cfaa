/* Wants to be scheduled before others. While a tracer has its first thread stopped, one thread looks how that is scheduled,
   and another puts code of its own where the tracer makes the first thread call the kernel. That code, by the first argument:

     fork   forks, for a child that would keep the first thread's scheduling; the tracer takes the fork's result for its call's
     spin   runs until standard input has a line, then makes the call

   Says at once when its first thread is stopped, when there is a child, and when the first thread is not scheduled normally.
   Ends on a line of standard input, with 7. Says how often its first thread was stopped, how many children there were, and how
   often the thread or a child was not scheduled normally. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "../situation.h"

enum { FORK, SPIN, STDIN = 200 };

struct seen {
    volatile unsigned long stops, children, of_thread, of_children;
};

static struct seen *seen;
static volatile int over;
static pid_t first;
static int woken[2];

/* The memory of the code at the gadget; that code has no stack of its own. */
volatile int evil_mode, evil_spins, evil_may_go;
char evil_stack[65536] __attribute__((aligned(16)));

static void say(const char *line)
{
    puts(line);
    fflush(stdout);
}

static void look(int policy, volatile unsigned long *count)
{
    if (policy != SCHED_OTHER)
        ++*count;
}

void evil_child(void)
{
    look(sched_getscheduler(0), &seen->of_children);
    __atomic_add_fetch(&seen->children, 1, __ATOMIC_RELAXED);
    syscall(SYS_exit_group, 0);
}

#if defined(__x86_64__)
__asm__(".text\n"
        ".globl evil\n"
        "evil:\n"
        "  cmpl $0, evil_mode(%rip)\n"
        "  jne 1f\n"
        "  movl $57, %eax\n"
        "  syscall\n"
        "  testl %eax, %eax\n"
        "  jz 3f\n"
        "  ret\n"
        "1: movl $1, evil_spins(%rip)\n"
        "2: pause\n"
        "  cmpl $0, evil_may_go(%rip)\n"
        "  je 2b\n"
        "  syscall\n"
        "  ret\n"
        "3: leaq evil_stack+65536(%rip), %rsp\n"
        "  call evil_child\n"
        "  hlt\n");
void evil(void);

/* `syscall; ret`, behind which a far jump to that code lies. A short jump over the `ret` takes the place of `syscall` and gives it back, in one
   write each time: a thread that is in the call returns to the `ret`. */
enum { GADGETS = 64, CALL = 2, RET = 1, JUMP = 13 };
static const unsigned short there = 0x050f, jump_over_ret = 0x01eb;
static unsigned char *gadgets[GADGETS];
static int gadget_count;

/* Finds every `syscall; ret` of the dynamic linker, makes it writable, and puts the far jump behind. */
static void find_gadgets(void)
{
    char line[4352], perms[8];
    unsigned long start, end;
    FILE *maps = fopen("/proc/self/maps", "re");
    if (!maps)
        _exit(BROKEN);
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx %7s", &start, &end, perms) != 3 || perms[2] != 'x' || !strstr(line, "/ld-"))
            continue;
        if (mprotect((void *)start, end - start, PROT_READ | PROT_WRITE | PROT_EXEC))
            _exit(BROKEN);
        for (unsigned char *at = (void *)start; at < (unsigned char *)end - 2 * JUMP && gadget_count < GADGETS; at++)
            if (at[0] == 0x0f && at[1] == 0x05 && at[2] == 0xc3)
                gadgets[gadget_count++] = at;
    }
    fclose(maps);
    unsigned char jump[JUMP] = {0x49, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0xff, 0xe3};
    void *to = (void *)evil;
    memcpy(jump + 2, &to, sizeof to);
    for (int i = 0; i < gadget_count; i++)
        memcpy(gadgets[i] + CALL + RET, jump, JUMP);
}

static void set_gadgets(int ours)
{
    for (int i = 0; i < gadget_count; i++)
        *(volatile unsigned short *)gadgets[i] = ours ? jump_over_ret : there;
}
#else
static void find_gadgets(void) {}
static void set_gadgets(int ours) { (void)ours; }
#endif

static char state(void)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", first);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return 0;
    text[n] = 0;
    char *end = strrchr(text, ')');
    return end ? end[2] : 0;
}

static void *watch(void *none)
{
    while (!over) {
        unsigned long before = seen->of_thread;
        look(sched_getscheduler(first), &seen->of_thread);
        if (!before && seen->of_thread)
            say("first 1");
    }
    return none;
}

static void *attack(void *none)
{
    int was_stopped = 0;
    while (!over) {
        int stopped = state() == 't';
        if (stopped && !was_stopped) {
            unsigned long before = seen->children;
            if (!seen->stops++)
                say("stopped 1");
            set_gadgets(1);
            for (int i = 0; i < 200 && seen->children == before && !evil_spins && state() != 'S'; i++)
                ;
            set_gadgets(0);
            if (!before && seen->children)
                say("forked 1");
        }
        was_stopped = stopped;
        if (evil_spins == 1) {
            evil_spins = 2;
            say("spins 1");
        }
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
        struct pollfd in = {.fd = STDIN, .events = POLLIN};
        char c;
        if (poll(&in, 1, 0) > 0 && read(STDIN, &c, 1) >= 0) {
            evil_may_go = over = 1;
            close(woken[1]);
        }
    }
    return none;
}

int main(int argc, char **argv)
{
    pthread_t threads[2];
    char c;
    evil_mode = argc > 1 && !strcmp(argv[1], "spin") ? SPIN : FORK;
    first = getpid();
    /* The tracer closes what it believes to be its own. */
    if (dup2(0, STDIN) < 0 || pipe(woken) || dup2(woken[0], STDIN + 1) < 0)
        return BROKEN;
    seen = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (seen == MAP_FAILED)
        return BROKEN;
    check_or_die();
    find_gadgets();
    if (pthread_create(&threads[0], NULL, watch, NULL) || pthread_create(&threads[1], NULL, attack, NULL))
        return BROKEN;
    printf("pid %d\nready\n", first);
    fflush(stdout);
    while (!over)
        if (read(STDIN + 1, &c, 1) < 0 && errno != EINTR)
            return BROKEN;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    while (waitpid(-1, NULL, 0) > 0)
        ;
    look(sched_getscheduler(0), &seen->of_thread);
    printf("stops %lu\nchildren %lu\nthread %lu\nchild %lu\npolicy %d\n", seen->stops, seen->children, seen->of_thread,
           seen->of_children, sched_getscheduler(0));
    check_or_die();
    return 7;
}
