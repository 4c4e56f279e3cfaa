/* Maps a part of an image over its own text, as a launch does: IMAGE ADDRESS OFFSET LENGTH, in hexadecimal, or nothing. Checks its text,
   says how much of it is huge, and spends its time in one function that lies in that part. */
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include "situation.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    if (argc > 4) {
        int fd = open(argv[1], O_RDONLY | O_CLOEXEC);
        void *at = (void *)strtoul(argv[2], NULL, 16);
        size_t len = strtoul(argv[4], NULL, 16);
        if (mmap(at, len, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, fd, strtol(argv[3], NULL, 16)) != at)
            return BROKEN;
        close(fd);
    }
    check_or_die();
    printf("huge %lu\n", huge_text());
    unsigned h = 1;
    for (double until = now() + 0.5; now() < until;)
        for (int i = 0; i < 100000; i++)
            h = big_middle(h);
    printf("hash %u\n", h != 0);
    return 0;
}
