/* Says as whom it runs, with text large enough to be worth a look, and waits. */
#include "situation.h"

int main(void)
{
    check_or_die();
    printf("pid %d\nids %d %d\n", getpid(), getuid(), geteuid());
    ready_and_wait();
    check_or_die();
    return 7;
}
