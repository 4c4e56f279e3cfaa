/* mapper GIB: fills this much memory, on base pages, and 8 MiB of executable memory. Then it maps and unmaps one page all the time, and
   runs through a little of its text each time. A line on stdin ends a window. It then prints the number of mappings in the window, and
   the longest time of one mmap with its munmap, in nanoseconds. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>
#include "../tests/programs/situation.h"

#define PAUSE_NS 30000
#define BLOCKS_EACH 256

static atomic_ulong longest, pairs;

static unsigned long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ul + t.tv_nsec;
}

static void *maps(void *unused)
{
    const struct sched_param first = {.sched_priority = 1};
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    /* With this priority it waits only for the lock, not for a processor. The kernel refuses the call without the privilege. */
    sched_setscheduler(0, SCHED_FIFO, &first);
    for (unsigned h = 1, i = 0;;) {
        unsigned long begin = now(), took, most;
        void *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED || munmap(page, 4096))
            abort();
        took = now() - begin;
        most = atomic_load(&longest);
        while (took > most && !atomic_compare_exchange_weak(&longest, &most, took))
            ;
        atomic_fetch_add(&pairs, 1);
        for (int block = 0; block < BLOCKS_EACH; block++, i = (i + 1) % BIG_BLOCKS)
            h = ((unsigned (*)(unsigned))(unsigned long)(big_begin + (unsigned long)i * BIG_BLOCK))(h);
        nanosleep(&pause, NULL);
    }
    return unused;
}

static void filled(unsigned long len, int protection)
{
    char *memory = mmap(NULL, len, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        exit(BROKEN);
    madvise(memory, len, MADV_NOHUGEPAGE);
    for (unsigned long at = 0; at < len; at += 4096)
        memory[at] = 1;
}

int main(int argc, char **argv)
{
    char line[16];
    pthread_t thread;
    filled(strtoul(argc > 1 ? argv[1] : "5", NULL, 10) << 30, PROT_READ | PROT_WRITE);
    filled(8 << 20, PROT_READ | PROT_WRITE | PROT_EXEC);
#ifdef LOCKED
    if (mlock(big_begin, big_end - big_begin))
        return BROKEN;
#endif
    if (pthread_create(&thread, NULL, maps, NULL))
        return BROKEN;
    puts("0 0");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        printf("%lu %lu\n", atomic_exchange(&pairs, 0), atomic_exchange(&longest, 0));
        fflush(stdout);
    }
    check_or_die();
    return 0;
}
