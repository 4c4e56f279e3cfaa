/* spinner THREADS: each thread runs through megabytes of text and reads the clock after each 256 KiB of it. A line on stdin ends a
   window. The program then prints the longest time between two readings of any thread in the window, in nanoseconds. */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include "../tests/programs/situation.h"

#define LOOK_EVERY 1024

static atomic_ulong longest;

static unsigned long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ul + t.tv_nsec;
}

static void *spin(void *unused)
{
    unsigned long last = now();
    for (unsigned h = 1, i = 0;; i = (i + 1) % BIG_BLOCKS) {
        h = ((unsigned (*)(unsigned))(unsigned long)(big_begin + (unsigned long)i * BIG_BLOCK))(h);
        if (i % LOOK_EVERY == 0) {
            unsigned long at = now(), gap = at - last, most = atomic_load(&longest);
            while (gap > most && !atomic_compare_exchange_weak(&longest, &most, gap))
                ;
            last = at;
        }
    }
    return unused;
}

int main(int argc, char **argv)
{
    char line[16];
    for (int i = argc > 1 ? atoi(argv[1]) : 64; i > 0; i--) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, spin, NULL))
            return BROKEN;
    }
    puts("0");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        printf("%lu\n", atomic_exchange(&longest, 0));
        fflush(stdout);
    }
    check_or_die();
    return 0;
}
