/* masked CALL [MS]: one thread that waits again and again in CALL, under a signal mask of the call's own. The thread's mask lets SIGUSR2
   through and blocks SIGUSR1 and SIGTERM; the call's mask is the other way round. So SIGUSR1 ends a call, and a SIGUSR2 that came before is
   to be handled when that call has ended, not earlier. Says a line for each time that it woke; SIGTERM ends it. With MS, one call with that
   timeout, and how it ended. */
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include "situation.h"

#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif

/* How often SIGUSR1, SIGUSR2 and SIGTERM were handled; SIGUSR2 before the call that it came in had ended; how often a call ended for
   nothing; how often the thread's mask was not its own afterwards. */
static volatile int ones, twos, terms, early, spurious, lost_masks;
static volatile int waiting_since;

static struct timespec begun, *timeout;
static long limit_ms;

static long elapsed(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec - begun.tv_sec) * 1000 + (now.tv_nsec - begun.tv_nsec) / 1000000;
}

static void one(int signal) { (void)signal, ones++; }
static void term(int signal) { (void)signal, terms++; }
static void two(int signal)
{
    (void)signal;
    twos++;
    early += timeout ? elapsed() < limit_ms - 50 : ones == waiting_since && !terms;
}

static sigset_t own, calls;
static struct { const sigset_t *mask; size_t len; } pack = {&calls, 8};
static struct timespec limit;
static int ends[2];
static struct epoll_event event;
static struct pollfd in;
static struct io_event completed;
static fd_set set;

static long must(long value, const char *what)
{
    if (value < 0) {
        perror(what);
        _exit(BROKEN);
    }
    return value;
}

static void say(const char *format, ...)
{
    char line[256];
    va_list list;
    va_start(list, format);
    int len = vsnprintf(line, sizeof line, format, list);
    va_end(list);
    if (write(1, line, len) != len)
        _exit(BROKEN);
}

static long number;
static long arguments[6];

/* 77: this kernel has no such call. */
static void set_up(const char *name)
{
#define IS(n) if (!strcmp(name, n))
#define IN(call, ...) number = call; memcpy(arguments, ((long[6]){__VA_ARGS__}), sizeof arguments); return
#define P(x) (long)(x)
    IS("sigsuspend") { IN(SYS_rt_sigsuspend, P(&calls), 8); }
    IS("ppoll") { IN(SYS_ppoll, P(&in), 1, P(timeout), P(&calls), 8); }
    IS("pselect") { IN(SYS_pselect6, ends[0] + 1, P(&set), 0, 0, P(timeout), P(&pack)); }
    int epoll = must(epoll_create1(0), "epoll_create1");
    must(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &(struct epoll_event){.events = EPOLLIN}), "epoll_ctl");
    IS("epoll_pwait") { IN(SYS_epoll_pwait, epoll, P(&event), 1, -1, P(&calls), 8); }
    IS("epoll_pwait2") { IN(SYS_epoll_pwait2, epoll, P(&event), 1, 0, P(&calls), 8); }
    IS("io_uring_enter") {
        struct io_uring_params p = {0};
        int ring = syscall(SYS_io_uring_setup, 4, &p);
        if (ring < 0)
            _exit(77);
        IN(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, P(&calls), 8);
    }
    fprintf(stderr, "no call %s\n", name);
    _exit(BROKEN);
}

static long make_call(void)
{
    FD_ZERO(&set);
    FD_SET(ends[0], &set);
    long *a = arguments;
    return syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]) < 0 ? -errno : 0;
}

static void check_mask(void)
{
    sigset_t now;
    must(sigprocmask(SIG_SETMASK, NULL, &now), "sigprocmask");
    lost_masks += *(unsigned long *)&now != *(unsigned long *)&own;
}

int main(int argc, char **argv)
{
    check_or_die();
    must(pipe(ends), "pipe");
    in = (struct pollfd){.fd = ends[0], .events = POLLIN};
    struct { int signal; void (*handler)(int); } handlers[] = {{SIGUSR1, one}, {SIGUSR2, two}, {SIGTERM, term}};
    for (int i = 0; i < 3; i++) {
        /* No call here is made again for that. */
        struct sigaction action = {.sa_handler = handlers[i].handler, .sa_flags = SA_RESTART};
        must(sigaction(handlers[i].signal, &action, NULL), "sigaction");
    }
    sigemptyset(&own);
    sigaddset(&own, SIGUSR1);
    sigaddset(&own, SIGTERM);
    sigemptyset(&calls);
    sigaddset(&calls, SIGUSR2);
    must(sigprocmask(SIG_SETMASK, &own, NULL), "sigprocmask");
    if (argc > 2) {
        limit_ms = atoi(argv[2]);
        limit = (struct timespec){limit_ms / 1000, limit_ms % 1000 * 1000000};
        timeout = &limit;
    }
    set_up(argc > 1 ? argv[1] : "");
    say("pid %d\ncall %ld\nready\n", getpid(), number);

    clock_gettime(CLOCK_MONOTONIC, &begun);
    while (!terms) {
        waiting_since = ones;
        long answer = make_call();
        check_mask();
        if (timeout) {
            say("over %ld early %d long %d\n", answer, early, elapsed() >= limit_ms - 50);
            char c;
            while (read(0, &c, 1) > 0)
                ;
            break;
        }
        int woken = ones - waiting_since;
        spurious += answer != -EINTR || woken + terms == 0;
        if (woken)
            say("woke %d\n", ones);
    }
    check_or_die();
    say("end ones %d early %d spurious %d masks %d\n", ones, early, spurious, lost_masks);
    return 7;
}
