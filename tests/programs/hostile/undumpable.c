/* As hold.c, of a process that its own user may not look into: a daemon that keeps keys, for one (PR_SET_DUMPABLE, prctl(2)). */
#include <signal.h>
#include <sys/prctl.h>
#include "../situation.h"

int main(void)
{
    signal(SIGUSR2, SIG_DFL);
    check_or_die();
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))
        return BROKEN;
    printf("pid %d\n", getpid());
    ready_and_wait();
    check_or_die();
    return prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) ? BROKEN : 7;
}
