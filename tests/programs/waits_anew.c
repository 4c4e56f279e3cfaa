/* Waits for events for a minute. After each SIGCONT it says so, and waits anew. */
#include <signal.h>
#include <sys/epoll.h>
#include "situation.h"

static void nothing(int signal)
{
    (void)signal;
}

int main(void)
{
    struct epoll_event event;
    int events = epoll_create1(0);
    if (events < 0 || signal(SIGCONT, nothing) == SIG_ERR)
        return BROKEN;
    check_or_die();
    puts("ready");
    fflush(stdout);
    while (epoll_wait(events, &event, 1, 60000) < 0 && errno == EINTR) {
        puts("anew");
        fflush(stdout);
    }
    check_or_die();
    return 7;
}
