/* reexec N PROGRAM ARGS…: execs itself N times, then becomes the program: one PID throughout, as with gosu and entrypoint scripts. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int n = argc > 2 ? atoi(argv[1]) : -1;
    if (n < 0)
        return 98;
    if (n == 0) {
        execvp(argv[2], argv + 2);
        return 98;
    }
    char count[16];
    snprintf(count, sizeof count, "%d", n - 1);
    argv[1] = count;
    execv("/proc/self/exe", argv);
    return 98;
}
