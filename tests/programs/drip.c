/* drip FILE: hands its input on, 64 KiB at a time with 10 ms between them, and all of the rest at once when FILE exists. So whoever writes to it
   has a full pipe for as long as a test needs, and few bytes are enough. */
#include "situation.h"
#include <time.h>

int main(int argc, char **argv)
{
    static char bytes[65536];
    const struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
    check_or_die();
    for (int hurries = argc < 2;;) {
        ssize_t got = read(STDIN_FILENO, bytes, sizeof bytes);
        if (got <= 0)
            return got ? BROKEN : 0;
        for (ssize_t done = 0, n; done < got; done += n)
            if ((n = write(STDOUT_FILENO, bytes + done, (size_t)(got - done))) <= 0)
                return BROKEN;
        if (!hurries && !(hurries = !access(argv[1], F_OK)))
            nanosleep(&pause, NULL);
    }
}
