/* One thread that sleeps in one system call, named by the argument; a child of its own wakes it once the test says so, or time does. The
   call is made with every register and the bytes below the stack pointer known, and afterwards all must be as they were. What the program
   saw goes into one line. */
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include "situation.h"

int have_avx2;
unsigned char patterns[16 * 32];

long guarded_call(long number, const long arguments[6], long *intact);
#ifdef __aarch64__
/* No red zone here. A call keeps the lower 16 bytes of a vector; x8 is another call's if the kernel goes on with the time that remains. */
__asm__(".text\n"
        ".globl guarded_call\n"
        ".type guarded_call, %function\n"
        "guarded_call:\n"
        "stp x29, x30, [sp, -16]!; stp x19, x20, [sp, -16]!; stp x21, x22, [sp, -16]!; stp x23, x24, [sp, -16]!\n"
        "stp x25, x26, [sp, -16]!; stp x27, x28, [sp, -16]!; stp d8, d9, [sp, -16]!; stp d10, d11, [sp, -16]!\n"
        "stp d12, d13, [sp, -16]!; stp d14, d15, [sp, -16]!; stp x1, x2, [sp, -16]!\n"
        "mov x8, x0; mov x9, x1\n"
        "ldp x0, x1, [x9]; ldp x2, x3, [x9, 16]; ldp x4, x5, [x9, 32]\n"
        "adrp x16, patterns; add x16, x16, :lo12:patterns\n"
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31\n"
        "ldr q\\n, [x16, 16 * \\n]\n"
        ".endr\n"
        ".irp n, 6, 7, 9, 10, 11, 12, 13, 14, 15, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28\n"
        "movz x\\n, 0x5a00 + \\n\n"
        ".endr\n"
        /* The flags: negative, not zero, carry, overflow. */
        "movz x30, 0xb000, lsl 16; msr nzcv, x30\n"
        "svc 0\n"
        "mrs x30, nzcv; lsr x30, x30, 28; cmp x30, 11; cset x30, eq\n"
        ".irp n, 6, 7, 9, 10, 11, 12, 13, 14, 15, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28\n"
        "movz x29, 0x5a00 + \\n; cmp x29, x\\n; csel x30, x30, xzr, eq\n"
        ".endr\n"
        "ldr x29, [sp]\n"
        ".irp n, 1, 2, 3, 4, 5\n"
        "ldr x28, [x29, 8 * \\n]; cmp x28, x\\n; csel x30, x30, xzr, eq\n"
        ".endr\n"
        "adrp x9, patterns; add x9, x9, :lo12:patterns; cmp x9, x16; csel x30, x30, xzr, eq\n"
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31\n"
        "umov x28, v\\n\\().d[0]; ldr x29, [x16, 16 * \\n]; cmp x28, x29; csel x30, x30, xzr, eq\n"
        "umov x28, v\\n\\().d[1]; ldr x29, [x16, 16 * \\n + 8]; cmp x28, x29; csel x30, x30, xzr, eq\n"
        ".endr\n"
        "ldp x1, x2, [sp], 16; str x30, [x2]\n"
        "ldp d14, d15, [sp], 16; ldp d12, d13, [sp], 16; ldp d10, d11, [sp], 16; ldp d8, d9, [sp], 16\n"
        "ldp x27, x28, [sp], 16; ldp x25, x26, [sp], 16; ldp x23, x24, [sp], 16; ldp x21, x22, [sp], 16\n"
        "ldp x19, x20, [sp], 16; ldp x29, x30, [sp], 16\n"
        "ret\n");
/* The older calls are not here; these do the same. */
#define SYS_epoll_wait SYS_epoll_pwait
#define SYS_poll SYS_ppoll
#define SYS_select SYS_pselect6
#define SYS_pause SYS_ppoll
#define POLL_MS(ms) ((left = (struct timespec){0, (ms) * 1000 * 1000}), (ms) < 0 ? 0 : P(&left))
#define SELECT_TIME(timeval) ((left = (struct timespec){(timeval).tv_sec, (timeval).tv_usec * 1000}), P(&left))
#else
#define POLL_MS(ms) (ms)
#define SELECT_TIME(timeval) P(&(timeval))
__asm__(".text\n"
        ".globl guarded_call\n"
        "guarded_call:\n"
        "push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15; push %rdx; push %rsi\n"
        "mov %rdi, %rax; mov %rsi, %r11\n"
        "mov (%r11), %rdi; mov 8(%r11), %rsi; mov 16(%r11), %rdx; mov 24(%r11), %r10; mov 32(%r11), %r8; mov 40(%r11), %r9\n"
        "movabs $0x1122334455667788, %rbx; movabs $0x2233445566778899, %rbp; movabs $0x33445566778899aa, %r12\n"
        "movabs $0x445566778899aabb, %r13; movabs $0x5566778899aabbcc, %r14; movabs $0x66778899aabbccdd, %r15\n"
        ".set i, 1\n"
        ".rept 16\n"
        "movabs $0x5a5a000000000000 + i, %rcx; mov %rcx, -8 * i(%rsp)\n"
        ".set i, i + 1\n"
        ".endr\n"
        "cmpl $0, have_avx2(%rip); je 1f\n"
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15\n"
        "vmovdqu patterns + 32 * \\n(%rip), %ymm\\n\n"
        ".endr\n"
        "1: std\n"
        "syscall\n"
        "pushf; pop %rcx; cld; test $0x400, %ecx; jz 9f\n"
        /* The push has overwritten the first word below. */
        ".set i, 2\n"
        ".rept 15\n"
        "movabs $0x5a5a000000000000 + i, %rcx; cmp %rcx, -8 * i(%rsp); jne 9f\n"
        ".set i, i + 1\n"
        ".endr\n"
        "movabs $0x1122334455667788, %rcx; cmp %rcx, %rbx; jne 9f\n"
        "movabs $0x2233445566778899, %rcx; cmp %rcx, %rbp; jne 9f\n"
        "movabs $0x33445566778899aa, %rcx; cmp %rcx, %r12; jne 9f\n"
        "movabs $0x445566778899aabb, %rcx; cmp %rcx, %r13; jne 9f\n"
        "movabs $0x5566778899aabbcc, %rcx; cmp %rcx, %r14; jne 9f\n"
        "movabs $0x66778899aabbccdd, %rcx; cmp %rcx, %r15; jne 9f\n"
        "mov (%rsp), %rcx\n"
        "cmp (%rcx), %rdi; jne 9f; cmp 8(%rcx), %rsi; jne 9f; cmp 16(%rcx), %rdx; jne 9f\n"
        "cmp 24(%rcx), %r10; jne 9f; cmp 32(%rcx), %r8; jne 9f; cmp 40(%rcx), %r9; jne 9f\n"
        "cmpl $0, have_avx2(%rip); je 2f\n"
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15\n"
        "vpcmpeqb patterns + 32 * \\n(%rip), %ymm\\n, %ymm\\n; vpmovmskb %ymm\\n, %ecx; cmp $-1, %ecx; jne 9f\n"
        ".endr\n"
        "2: mov $1, %ecx; jmp 3f\n"
        "9: xor %ecx, %ecx\n"
        "3: cmpl $0, have_avx2(%rip); je 4f; vzeroupper\n"
        "4: pop %rsi; pop %rdx; mov %rcx, (%rdx)\n"
        "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp\n"
        "ret\n");
#endif

/* Known to both processes. */
static int *word;
static int ends[2], sockets[2], listener, semaphore, queue, locked;
static char big[1 << 20];
static pid_t self;
static volatile sig_atomic_t handled;
static sigset_t none;
static const struct timespec soon = {0, 700 * 1000 * 1000}, late = {3, 0};
static struct timespec left;

static void count(int signal)
{
    (void)signal;
    handled++;
}

static int must(long returned, const char *what)
{
    if (returned < 0) {
        perror(what);
        _exit(BROKEN);
    }
    return (int)returned;
}

static void wake_word(void)
{
    *word = 1;
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}
static void wake_pipe(void) { must(write(ends[1], "x", 1), "write"); }
static void wake_socket(void) { must(write(sockets[1], "more", 4), "write"); }
static void wake_signal(void) { must(kill(self, SIGUSR1), "kill"); }
static void wake_event(void)
{
    unsigned long one = 1;
    must(write(ends[0], &one, 8), "write");
}
static void wake_drain(void)
{
    for (size_t got = 0; got < sizeof big;)
        got += (size_t)must(read(ends[0], big, sizeof big), "read");
}
static void wake_connect(void)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    socklen_t len = sizeof at;
    must(getsockname(listener, (struct sockaddr *)&at, &len), "getsockname");
    must(connect(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&at, len), "connect");
}
static void wake_semaphore(void)
{
    struct sembuf up = {0, 1, 0};
    must(semop(semaphore, &up, 1), "semop");
}
static void wake_queue(void)
{
    struct { long type; char text[8]; } message = {1, "message"};
    must(msgsnd(queue, &message, 8, 0), "msgsnd");
}
static void wake_lock(void) { must(flock(locked, LOCK_UN), "flock"); }
static void wake_nobody(void) {}

struct situation {
    const char *name;
    long number;
    long arguments[6];
    void (*wake)(void);
};

static struct epoll_event event;
static struct pollfd one;
static fd_set set;
static struct timeval a_while = {0, 700 * 1000};
static struct timespec at_the_time;
static char buffer[64];
static siginfo_t info;
static struct sembuf down = {0, -1, 0};
static sigset_t user;
static struct { const sigset_t *mask; size_t len; } no_mask = {&none, 8};

/* A ring with one read of the pipe in it, submitted. */
static int ring(void)
{
    static struct iovec into = {buffer, 1};
    struct io_uring_params p = {0};
    int fd = must(syscall(SYS_io_uring_setup, 4, &p), "io_uring_setup");
    int how = PROT_READ | PROT_WRITE;
    char *sq = mmap(NULL, p.sq_off.array + p.sq_entries * 4, how, MAP_SHARED, fd, IORING_OFF_SQ_RING);
    struct io_uring_sqe *entries = mmap(NULL, p.sq_entries * sizeof *entries, how, MAP_SHARED, fd, IORING_OFF_SQES);
    entries[0] = (struct io_uring_sqe){.opcode = IORING_OP_READV, .fd = ends[0], .addr = (unsigned long)&into, .len = 1};
    *(unsigned *)(sq + p.sq_off.array) = 0;
    *(unsigned *)(sq + p.sq_off.tail) = 1;
    must(syscall(SYS_io_uring_enter, fd, 1, 0, 0, NULL, 0), "io_uring_enter");
    return fd;
}

static int epoll(void)
{
    struct epoll_event in = {.events = EPOLLIN};
    int fd = must(epoll_create1(0), "epoll_create1");
    must(epoll_ctl(fd, EPOLL_CTL_ADD, ends[0], &in), "epoll_ctl");
    return fd;
}

static int listening(int timeout)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct timeval three = {3, 0};
    listener = must(socket(AF_UNIX, SOCK_STREAM, 0), "socket");
    must(bind(listener, (struct sockaddr *)&at, sizeof at.sun_family), "bind");
    must(listen(listener, 1), "listen");
    if (timeout)
        setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &three, sizeof three);
    return listener;
}

static int timer(void)
{
    struct itimerspec in = {.it_value = soon};
    int fd = must(timerfd_create(CLOCK_MONOTONIC, 0), "timerfd_create");
    must(timerfd_settime(fd, 0, &in, NULL), "timerfd_settime");
    return fd;
}

static int lock_of_another(void)
{
    char name[] = "/tmp/tiexec-flock-XXXXXX", path[64];
    locked = must(mkstemp(name), "mkstemp");
    snprintf(path, sizeof path, "/proc/self/fd/%d", locked);
    int other = must(open(path, O_RDWR), "open");
    unlink(name);
    must(flock(locked, LOCK_EX), "flock");
    return other;
}

#define P(x) (long)(x)
static struct situation situation(const char *name)
{
    struct timeval three = {3, 0};
#define IS(n) if (!strcmp(name, n))
#define IN(number, wake, ...) return (struct situation){name, number, {__VA_ARGS__}, wake}
    IS("futex") IN(SYS_futex, wake_word, P(word), FUTEX_WAIT, 0, 0);
    IS("futex_timeout") IN(SYS_futex, wake_nobody, P(word), FUTEX_WAIT, 0, P(&soon));
    IS("nanosleep") IN(SYS_nanosleep, wake_nobody, P(&soon), P(&left));
    IS("clock_nanosleep") {
        clock_gettime(CLOCK_MONOTONIC, &at_the_time);
        at_the_time.tv_sec += 1;
        IN(SYS_clock_nanosleep, wake_nobody, CLOCK_MONOTONIC, TIMER_ABSTIME, P(&at_the_time), 0);
    }
    IS("epoll_wait") IN(SYS_epoll_wait, wake_pipe, epoll(), P(&event), 1, -1);
    IS("epoll_wait_timeout") IN(SYS_epoll_wait, wake_nobody, epoll(), P(&event), 1, 3000);
    IS("epoll_wait_catching") IN(SYS_epoll_wait, wake_nobody, epoll(), P(&event), 1, 3000);
    IS("epoll_wait_signal") IN(SYS_epoll_wait, wake_signal, epoll(), P(&event), 1, -1);
    IS("epoll_pwait") IN(SYS_epoll_pwait, wake_pipe, epoll(), P(&event), 1, -1, P(&none), 8);
    IS("epoll_pwait_signal") IN(SYS_epoll_pwait, wake_signal, epoll(), P(&event), 1, -1, P(&none), 8);
    IS("poll") IN(SYS_poll, wake_pipe, P(&one), 1, POLL_MS(-1));
    IS("poll_timeout") IN(SYS_poll, wake_nobody, P(&one), 1, POLL_MS(700));
    IS("ppoll_signal") IN(SYS_ppoll, wake_signal, P(&one), 1, 0, P(&none), 8);
    IS("ppoll_timeout") {
        left = soon;
        IN(SYS_ppoll, wake_nobody, P(&one), 1, P(&left), P(&none), 8);
    }
    IS("select") IN(SYS_select, wake_pipe, ends[0] + 1, P(&set), 0, 0, 0);
    IS("select_timeout") IN(SYS_select, wake_nobody, ends[0] + 1, P(&set), 0, 0, SELECT_TIME(a_while));
    IS("pselect_signal") IN(SYS_pselect6, wake_signal, ends[0] + 1, P(&set), 0, 0, 0, P(&no_mask));
    IS("read") IN(SYS_read, wake_pipe, ends[0], P(buffer), 1);
    IS("read_eventfd") {
        ends[0] = must(eventfd(0, 0), "eventfd");
        IN(SYS_read, wake_event, ends[0], P(buffer), 8);
    }
    IS("read_timerfd") IN(SYS_read, wake_nobody, timer(), P(buffer), 8);
    IS("write") IN(SYS_write, wake_drain, ends[1], P(big), sizeof big);
    IS("recv") IN(SYS_recvfrom, wake_socket, sockets[0], P(buffer), 8, 0, 0, 0);
    IS("recv_all") {
        must(write(sockets[1], "some", 4), "write");
        IN(SYS_recvfrom, wake_socket, sockets[0], P(buffer), 8, MSG_WAITALL, 0, 0);
    }
    IS("recv_at_least") {
        int all = 8;
        setsockopt(sockets[0], SOL_SOCKET, SO_RCVLOWAT, &all, sizeof all);
        must(write(sockets[1], "some", 4), "write");
        IN(SYS_recvfrom, wake_socket, sockets[0], P(buffer), 8, 0, 0, 0);
    }
    IS("recv_timeout") {
        setsockopt(sockets[0], SOL_SOCKET, SO_RCVTIMEO, &three, sizeof three);
        IN(SYS_recvfrom, wake_nobody, sockets[0], P(buffer), 8, 0, 0, 0);
    }
    IS("accept") IN(SYS_accept, wake_connect, listening(0), 0, 0);
    IS("accept_timeout") IN(SYS_accept, wake_nobody, listening(1), 0, 0);
    IS("wait4") IN(SYS_wait4, wake_nobody, -1, P(buffer), 0, 0);
    IS("waitid") IN(SYS_waitid, wake_nobody, P_ALL, 0, P(&info), WEXITED, 0);
    IS("io_uring_enter") IN(SYS_io_uring_enter, wake_pipe, ring(), 0, 1, IORING_ENTER_GETEVENTS, 0, 0);
    IS("semop") IN(SYS_semop, wake_semaphore, semaphore, P(&down), 1);
    IS("semtimedop") IN(SYS_semtimedop, wake_nobody, semaphore, P(&down), 1, P(&late));
    IS("sigsuspend") IN(SYS_rt_sigsuspend, wake_signal, P(&none), 8);
    IS("sigwait") IN(SYS_rt_sigtimedwait, wake_signal, P(&user), P(&info), 0, 8);
    IS("sigtimedwait") IN(SYS_rt_sigtimedwait, wake_nobody, P(&user), P(&info), P(&late), 8);
    IS("pause_itimer") {
        struct itimerval in = {.it_value = a_while};
        signal(SIGALRM, count);
        setitimer(ITIMER_REAL, &in, NULL);
        IN(SYS_pause, wake_nobody);
    }
    IS("msgrcv") IN(SYS_msgrcv, wake_queue, queue, P(buffer), 8, 0, 0);
    IS("flock") IN(SYS_flock, wake_lock, lock_of_another(), LOCK_EX);
    fprintf(stderr, "no situation %s\n", name);
    _exit(BROKEN);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
#ifdef __x86_64__
    have_avx2 = __builtin_cpu_supports("avx2");
#endif
    for (unsigned i = 0; i < sizeof patterns; i++)
        patterns[i] = (unsigned char)(i * 37 + 11);
    word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(pipe(ends), "pipe");
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), "socketpair");
    semaphore = must(semget(IPC_PRIVATE, 1, 0600), "semget");
    queue = must(msgget(IPC_PRIVATE, 0600), "msgget");
    one = (struct pollfd){.fd = ends[0], .events = POLLIN};
    FD_SET(ends[0], &set);
    self = getpid();
    struct sigaction action = {.sa_handler = count};
    sigaction(SIGUSR1, &action, NULL);
    sigemptyset(&none);
    sigemptyset(&user);
    sigaddset(&user, SIGUSR1);
    if (strcmp(name, "epoll_wait_signal") && strcmp(name, "epoll_wait_catching"))
        sigprocmask(SIG_BLOCK, &user, NULL);
    check_or_die();
    struct situation it = situation(name);

    pid_t waker = must(fork(), "fork");
    if (!waker) {
        char c;
        /* At the end of the test's input: woken too, so that nobody stays behind. */
        if (read(0, &c, 1) < 0)
            _exit(BROKEN);
        it.wake();
        _exit(3);
    }
    printf("call %ld\nready\n", it.number);
    fflush(stdout);

    long intact = 0;
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    long saw = guarded_call(it.number, it.arguments, &intact);
    clock_gettime(CLOCK_MONOTONIC, &after);
    long ms = (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000;

    if (it.number == SYS_wait4)
        saw = saw == waker ? 0 : -1;
    sigset_t blocked;
    sigprocmask(SIG_SETMASK, NULL, &blocked);
    sigset_t pending;
    sigpending(&pending);
    /* 650 of 700 ms: clocks of different grain. */
    printf("saw %ld handled %d blocked %lx pending %lx intact %ld long %d event %x\n", saw, (int)handled,
           *(unsigned long *)&blocked, *(unsigned long *)&pending, intact,
           it.wake == wake_nobody && it.number != SYS_wait4 && it.number != SYS_waitid ? ms >= 650 : -1, event.events);
    fflush(stdout);
    semctl(semaphore, 0, IPC_RMID);
    msgctl(queue, IPC_RMID, NULL);
    char c;
    while (read(0, &c, 1) > 0)
        ;
    check_or_die();
    return 7;
}
