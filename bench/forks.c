/* forks RATE: forks RATE children a second, each of which ends at once, until it is killed. Says each second how many it made. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    long rate = argc > 1 ? atol(argv[1]) : 1000, made = 0;
    struct timespec begun, now;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    for (;;) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        double elapsed = (now.tv_sec - begun.tv_sec) + (now.tv_nsec - begun.tv_nsec) / 1e9;
        if (made > elapsed * rate) {
            struct timespec pause = { 0, 500000 };
            nanosleep(&pause, NULL);
            continue;
        }
        pid_t pid = vfork();
        if (pid == 0)
            _exit(0);
        if (pid < 0 || waitpid(pid, NULL, 0) != pid)
            return 1;
        if (++made % rate == 0) {
            printf("%.0f\n", made / elapsed);
            fflush(stdout);
        }
    }
}
