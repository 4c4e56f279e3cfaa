/* Started with signals blocked: takes what is pending once the test has said "go", in the order the kernel gives it. */
#include <signal.h>
#include <time.h>
#include "situation.h"

int main(void)
{
    sigset_t blocked;
    siginfo_t info;
    struct timespec none = {0, 0};
    check_or_die();
    printf("huge %lu\n", huge_text());
    ready_and_wait();
    sigprocmask(SIG_SETMASK, NULL, &blocked);
    while (sigtimedwait(&blocked, &info, &none) > 0)
        printf("took %d code %d value %d\n", info.si_signo, info.si_code, info.si_code == SI_QUEUE ? info.si_int : 0);
    return 0;
}
