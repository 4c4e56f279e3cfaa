/* Gives itself names as fast as it can, until the end of its input: each is a record for whoever is told of execs. */
#include <poll.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(void)
{
    struct pollfd input = {.fd = 0, .events = POLLIN};
    puts("ready");
    fflush(stdout);
    while (poll(&input, 1, 0) == 0)
        for (int i = 0; i < 1000; i++)
            prctl(PR_SET_NAME, i % 2 ? "one" : "other", 0, 0, 0);
    return 0;
}
