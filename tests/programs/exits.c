/* exits code N | exits signal N: ends so, after its whole text has run. Says "ran" first. */
#include <signal.h>
#include <sys/resource.h>
#include "situation.h"

int main(int argc, char **argv)
{
    struct rlimit none = {0, 0};
    if (argc != 3)
        return BROKEN;
    check_or_die();
    if (write(1, "ran\n", 4) != 4)
        return BROKEN;
    if (!strcmp(argv[1], "code"))
        _exit(atoi(argv[2]));
    setrlimit(RLIMIT_CORE, &none);
    signal(atoi(argv[2]), SIG_DFL);
    if (atoi(argv[2]) == SIGSEGV)
        *(volatile int *)8 = 1;
    raise(atoi(argv[2]));
    return BROKEN;
}
