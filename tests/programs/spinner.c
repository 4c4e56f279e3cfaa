/* Threads that run all the time in the very text that is switched, and check what they get: sums over the text, the vector registers, a
   restartable sequence, signals every 100 microseconds on alternate stacks. The first argument is what the first thread does: "spin", too,
   or "wait", in a call that may not be interrupted; the second, which kind of worker comes first. Ends at the end of its input. */
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/rseq.h>
#include <sys/syscall.h>
#include <time.h>
#include "situation.h"

/* More threads than kinds: those beyond are all of the third kind, for only what others add meanwhile shows a sequence that was not
   begun again. */
enum { KINDS = 4, THREADS = 8, CPUS = 1024 };
static atomic_int stop, begun;
static unsigned long rounds[KINDS], added;
static atomic_ulong signals;
int have_avx2;
unsigned char patterns[16 * 32];
long counters[CPUS];

static void wrong(const char *what)
{
    fprintf(stderr, "wrong: %s\n", what);
    _exit(CORRUPT);
}

static unsigned block(unsigned i, unsigned h)
{
    return ((unsigned (*)(unsigned))(unsigned long)(big_begin + (unsigned long)i * BIG_BLOCK))(h);
}

static unsigned expected(unsigned i, unsigned h)
{
    h = h * 16777619u ^ i;
    return h << 5 | h >> 27;
}

static unsigned some_blocks(unsigned h)
{
    for (int k = 0; k < 16; k++) {
        unsigned i = h % BIG_BLOCKS, got = block(i, h);
        if (got != expected(i, h))
            wrong("a block");
        h = got;
    }
    return h;
}

static void check_text(void)
{
    if (!big_check())
        wrong("the text");
}

/* Holds all vector registers, general registers and, where they are a function's own, the bytes below the stack pointer, while it calls a block a thousand times. */
long hold_vectors(unsigned (*function)(unsigned), long times);
#if defined(__x86_64__)
__asm__(".text\n"
        ".globl hold_vectors\n"
        "hold_vectors:\n"
        "push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15\n"
        "mov %rdi, %rbx; mov %rsi, %rbp\n"
        "movabs $0x33445566778899aa, %r12; movabs $0x445566778899aabb, %r13\n"
        "movabs $0x5566778899aabbcc, %r14; movabs $0x66778899aabbccdd, %r15\n"
        "cmpl $0, have_avx2(%rip); je 1f\n"
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15\n"
        "vmovdqu patterns + 32 * \\n(%rip), %ymm\\n\n"
        ".endr\n"
        "1: mov %rbp, -24(%rsp); mov %r12, -32(%rsp); mov %r13, -128(%rsp)\n"
        "mov $64, %ecx\n"
        "2: dec %ecx; jnz 2b\n"
        "cmp %rbp, -24(%rsp); jne 9f; cmp %r12, -32(%rsp); jne 9f; cmp %r13, -128(%rsp); jne 9f\n"
        "mov %ebp, %edi; call *%rbx\n"
        "dec %rbp; jnz 1b\n"
        "movabs $0x33445566778899aa, %rcx; cmp %rcx, %r12; jne 9f; movabs $0x445566778899aabb, %rcx; cmp %rcx, %r13; jne 9f\n"
        "movabs $0x5566778899aabbcc, %rcx; cmp %rcx, %r14; jne 9f; movabs $0x66778899aabbccdd, %rcx; cmp %rcx, %r15; jne 9f\n"
        "cmpl $0, have_avx2(%rip); je 3f\n"
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15\n"
        "vpcmpeqb patterns + 32 * \\n(%rip), %ymm\\n, %ymm\\n; vpmovmskb %ymm\\n, %ecx; cmp $-1, %ecx; jne 9f\n"
        ".endr\n"
        "vzeroupper\n"
        "3: mov $1, %eax; jmp 4f\n"
        "9: xor %eax, %eax\n"
        "4: pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx\n"
        "ret\n");
#else
__asm__(".text\n"
        ".globl hold_vectors\n"
        "hold_vectors:\n"
        "stp x29, x30, [sp, #-160]!\n"
        "stp x19, x20, [sp, #16]; stp x21, x22, [sp, #32]; stp x23, x24, [sp, #48]; stp x25, x26, [sp, #64]; stp x27, x28, [sp, #80]\n"
        "stp d8, d9, [sp, #96]; stp d10, d11, [sp, #112]; stp d12, d13, [sp, #128]; stp d14, d15, [sp, #144]\n"
        "mov x19, x0; mov x20, x1\n"
        "ldr x21, =0x33445566778899aa; ldr x22, =0x445566778899aabb; ldr x23, =0x5566778899aabbcc; ldr x24, =0x66778899aabbccdd\n"
        "mov x25, x21; mov x26, x22; mov x27, x23; mov x28, x24; mov x9, x21; mov x10, x22; mov x11, x23; mov x16, x24\n"
        "adrp x2, patterns; add x2, x2, :lo12:patterns\n"
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31\n"
        "ldr q\\n, [x2, #16 * \\n]\n"
        ".endr\n"
        "1: mov w0, w20; blr x19\n"
        "subs x20, x20, #1; b.ne 1b\n"
        "mov x0, #0\n"
        "cmp x21, x25; b.ne 9f; cmp x22, x26; b.ne 9f; cmp x23, x27; b.ne 9f; cmp x24, x28; b.ne 9f\n"
        "cmp x21, x9; b.ne 9f; cmp x22, x10; b.ne 9f; cmp x23, x11; b.ne 9f; cmp x24, x16; b.ne 9f\n"
        "adrp x3, patterns; add x3, x3, :lo12:patterns; cmp x2, x3; b.ne 9f\n"
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31\n"
        "mov x3, v\\n\\().d[0]; mov x4, v\\n\\().d[1]; ldp x5, x6, [x2, #16 * \\n]; cmp x3, x5; b.ne 9f; cmp x4, x6; b.ne 9f\n"
        ".endr\n"
        "mov x0, #1\n"
        "9: ldp d14, d15, [sp, #144]; ldp d12, d13, [sp, #128]; ldp d10, d11, [sp, #112]; ldp d8, d9, [sp, #96]\n"
        "ldp x27, x28, [sp, #80]; ldp x25, x26, [sp, #64]; ldp x23, x24, [sp, #48]; ldp x21, x22, [sp, #32]; ldp x19, x20, [sp, #16]\n"
        "ldp x29, x30, [sp], #160\n"
        "ret\n"
        ".ltorg\n");
#endif

static void hold(void)
{
    if (!hold_vectors(big_middle, 1000))
        wrong("registers");
}

/* Adds one to the counter of the processor it runs on: load, wait a little, store. A thread that is moved or interrupted in
   between must begin again. Returns 1 if it was. */
static int add_one(struct rseq *area)
{
    unsigned cpu = area->cpu_id_start;
    int begun_again = 0;
#if defined(__x86_64__)
    __asm__ volatile(".pushsection __rseq_cs, \"aw\"\n"
                     ".balign 32\n"
                     "3: .long 0, 0\n"
                     ".quad 1f, 2f - 1f, 4f\n"
                     ".popsection\n"
                     "lea 3b(%%rip), %%rax\n"
                     "mov %%rax, %[cs]\n"
                     "1: cmp %[cpu], %[id]\n"
                     "jne 5f\n"
                     "mov (%[at]), %%rax\n"
                     "mov $200, %%ecx\n"
                     "6: dec %%ecx; jnz 6b\n"
                     "inc %%rax\n"
                     "mov %%rax, (%[at])\n"
                     "2: jmp 7f\n"
                     ".long 0x53053053\n"
                     "4:\n"
                     "5: movl $1, %[again]\n"
                     "7:\n"
                     : [cs] "=m"(area->rseq_cs), [again] "+m"(begun_again)
                     : [cpu] "r"(cpu), [id] "m"(area->cpu_id), [at] "r"(&counters[cpu % CPUS])
                     : "rax", "rcx", "memory", "cc");
#else
    __asm__ volatile(".pushsection __rseq_cs, \"aw\"\n"
                     ".balign 32\n"
                     "3: .long 0, 0\n"
                     ".quad 1f, 2f - 1f, 4f\n"
                     ".popsection\n"
                     "adrp x9, 3b\n"
                     "add x9, x9, :lo12:3b\n"
                     "str x9, %[cs]\n"
                     "1: ldr w9, %[id]\n"
                     "cmp w9, %w[cpu]\n"
                     "b.ne 5f\n"
                     "ldr x9, [%[at]]\n"
                     "mov w10, #200\n"
                     "6: subs w10, w10, #1\n"
                     "b.ne 6b\n"
                     "add x9, x9, #1\n"
                     "str x9, [%[at]]\n"
                     "2: b 7f\n"
                     ".inst 0xd428bc00\n"
                     "4:\n"
                     "5: mov w9, #1\n"
                     "str w9, %[again]\n"
                     "7:\n"
                     : [cs] "=m"(area->rseq_cs), [again] "+m"(begun_again)
                     : [cpu] "r"(cpu), [id] "m"(area->cpu_id), [at] "r"(&counters[cpu % CPUS])
                     : "x9", "x10", "memory", "cc");
#endif
    return begun_again;
}

static void add(void)
{
    struct rseq *area = (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
    unsigned long done = 0;
    for (int k = 0; k < 1000; k++)
        done += !add_one(area);
    __atomic_fetch_add(&added, done, __ATOMIC_RELAXED);
}

static void blocks(void)
{
    static _Thread_local unsigned h = 1;
    for (int k = 0; k < 100; k++)
        h = some_blocks(h);
}

static void (*const work[KINDS])(void) = {check_text, hold, add, blocks};

/* On the alternate stack, through the text. */
static void on_signal(int signal)
{
    (void)signal;
    stack_t now;
    sigaltstack(NULL, &now);
    if (!(now.ss_flags & SS_ONSTACK))
        wrong("the alternate stack");
    some_blocks((unsigned)atomic_fetch_add(&signals, 1));
}

static void have_signals(void)
{
    stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536};
    sigaltstack(&stack, NULL);
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN};
    event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
    timer_t timer;
    struct itimerspec often = {{0, 100 * 1000}, {0, 100 * 1000}};
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) || timer_settime(timer, 0, &often, NULL))
        wrong("a timer");
}

static void *worker(void *argument)
{
    long kind = (long)argument;
    /* Without signals, the sequences would hardly ever be aborted by us alone; with them, the others would not be what they are. */
    if (kind % 2)
        have_signals();
    atomic_fetch_add(&begun, 1);
    while (!atomic_load(&stop)) {
        work[kind]();
        __atomic_fetch_add(&rounds[kind], 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    int spins = argc > 1 && !strcmp(argv[1], "spin");
    long first = argc > 2 ? atol(argv[2]) : 0;
#if defined(__x86_64__)
    have_avx2 = __builtin_cpu_supports("avx2");
#endif
    for (unsigned i = 0; i < sizeof patterns; i++)
        patterns[i] = (unsigned char)(i * 37 + 11);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK | SA_RESTART};
    sigaction(SIGRTMIN, &action, NULL);
    check_or_die();
    pthread_t threads[THREADS];
    for (long k = 0; k < THREADS; k++)
        if (pthread_create(&threads[k], NULL, worker, (void *)(k < KINDS ? (first + k) % KINDS : 2)))
            wrong("a thread");
    struct epoll_event in = {.events = EPOLLIN};
    int fd = epoll_create1(0);
    epoll_ctl(fd, EPOLL_CTL_ADD, 0, &in);
    while (atomic_load(&begun) < THREADS)
        sched_yield();
    printf("ready\n");
    fflush(stdout);
    if (spins) {
        do
            blocks();
        while (!epoll_wait(fd, &in, 1, 0));
    } else if (epoll_wait(fd, &in, 1, 24 * 3600 * 1000) < 0) {
        wrong("the first thread's wait");
    }
    atomic_store(&stop, 1);
    for (int k = 0; k < THREADS; k++)
        pthread_join(threads[k], NULL);
    unsigned long sum = 0;
    for (int k = 0; k < CPUS; k++)
        sum += (unsigned long)counters[k];
    if (sum != added)
        wrong("the count of the sequences");
    for (int k = 0; k < KINDS; k++)
        if (!rounds[k])
            wrong("a thread that never ran");
    check_or_die();
    printf("rounds %lu %lu %lu %lu signals %lu added %lu\n", rounds[0], rounds[1], rounds[2], rounds[3], signals, added);
    return 7;
}
