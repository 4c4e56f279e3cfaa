/* signals HOW: big text, and a life with the two signals that are ignored by default. handles: has handlers for both. handles_urg: for
   SIGURG. blocks: has both blocked, and one of each pending. flips: another thread has them ignored and handled by default, by turns. At the end it
   says how often each was handled, or is pending. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#include "situation.h"

static const int both[] = { SIGURG, SIGWINCH };
static volatile int count[65];
static atomic_int over;

static void handle(int signal) { count[signal]++; }

static void *flip(void *unused)
{
    (void)unused;
    while (!over) {
        for (int i = 0; i < 2; i++) {
            signal(both[i], SIG_IGN);
            signal(both[i], SIG_DFL);
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    sigset_t set;
    pthread_t flipper;
    int flips = !strcmp(how, "flips"), blocks = !strcmp(how, "blocks");
    sigemptyset(&set);
    for (int i = 0; i < 2; i++) {
        sigaddset(&set, both[i]);
        if (!strcmp(how, "handles") || (i == 0 && !strcmp(how, "handles_urg")))
            signal(both[i], handle);
    }
    if (blocks) {
        sigprocmask(SIG_BLOCK, &set, 0);
        raise(SIGURG);
        kill(getpid(), SIGWINCH);
    }
    if (flips && pthread_create(&flipper, 0, flip, 0))
        return 1;
    check_or_die();
    ready_and_wait();
    check_or_die();
    over = 1;
    if (flips)
        pthread_join(flipper, 0);
    if (blocks) {
        const struct timespec none = { 0, 0 };
        int signal;
        while ((signal = sigtimedwait(&set, 0, &none)) > 0)
            count[signal]++;
    }
    printf("urg %d\nwinch %d\n", count[SIGURG], count[SIGWINCH]);
    return 7;
}
