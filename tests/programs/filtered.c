/* filtered SITUATION: filters that a program installs for itself while it runs. Says "pid", "ready", and waits for a line; ends with 7 if all
   was as it should be. */
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include "one_call_filter.h"
#include "situation.h"

/* Death to the thread's process for this call. */
static void forbid(int call)
{
    filter_one_call(SECCOMP_RET_KILL_PROCESS, call);
}

static void *free_thread(void *started)
{
    pthread_mutex_unlock(started);
    for (;;)
        pause();
    return NULL;
}

int main(int argc, char **argv)
{
    static pthread_mutex_t started;
    const char *name = argc > 1 ? argv[1] : "";
    pthread_t thread;
    check_or_die();
    printf("pid %d\n", getpid());
    if (!strcmp(name, "leader")) {
        /* Only the leader is filtered. */
        pthread_mutex_init(&started, NULL);
        pthread_mutex_lock(&started);
        pthread_create(&thread, NULL, free_thread, &started);
        pthread_mutex_lock(&started);
        forbid(SYS_mmap);
        ready_and_wait();
    } else if (!strcmp(name, "poll") || !strcmp(name, "nanosleep")) {
        /* The kernel makes these again as another call, which is forbidden. */
        int polls = !strcmp(name, "poll");
        struct pollfd in = {.fd = 0, .events = POLLIN};
        char c;
        puts("ready");
        fflush(stdout);
        forbid(SYS_restart_syscall);
        if (argc > 2)
            forbid(atoi(argv[2]));
        if (polls) {
            if (poll(&in, 1, 100000) != 1 || read(0, &c, 1) != 1)
                return BROKEN;
        } else {
            struct timespec length = {.tv_sec = 4}, before, after;
            clock_gettime(CLOCK_MONOTONIC, &before);
            if (nanosleep(&length, NULL))
                return BROKEN;
            clock_gettime(CLOCK_MONOTONIC, &after);
            /* Never less than was asked for. */
            if (after.tv_sec * 1000000000 + after.tv_nsec < (before.tv_sec + 4) * 1000000000 + before.tv_nsec)
                return BROKEN;
        }
    } else {
        return BROKEN;
    }
    check_or_die();
    _exit(7);
}
