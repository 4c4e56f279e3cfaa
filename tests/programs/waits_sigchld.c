/* Says whether the SIGCHLD that it inherited blocked comes within two seconds. */
#include "bigtext.h"
#include <signal.h>
#include <stdio.h>
#include <time.h>

int main(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    struct timespec patience = {2, 0};
    printf("%s\n", sigtimedwait(&set, NULL, &patience) == SIGCHLD ? "came" : "lost");
    return 7;
}
