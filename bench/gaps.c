/* gaps FILE PLACE: reads the clock all the time, and keeps two totals at byte PLACE of FILE: the nanoseconds that it has run, and how
   many of them were gaps between two readings, which belong to others such as interrupts. Gaps of 100 us or more come from the scheduler
   or the host, and do not count. */
#include <err.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

/* Text of more than a huge page, without which `tiexecctl scan` passes over the program. */
__asm__(".text\n.skip 4 << 20");

enum { LOOK = 500, LONG = 100000, PAGE = 4096 };

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

int main(int words, char **word)
{
    if (words != 3)
        errx(2, "usage: gaps FILE PLACE");
    off_t place = atol(word[2]);
    int file = open(word[1], O_RDWR);
    if (file < 0)
        err(1, "%s", word[1]);
    char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, place & -PAGE);
    if (page == MAP_FAILED)
        err(1, "%s: mmap", word[1]);
    volatile uint64_t *ran = (void *)(page + place % PAGE), *lost = ran + 1;
    for (uint64_t before = now(), at; (at = now()); before = at) {
        uint64_t gap = at - before;
        if (gap < LONG)
            *ran += gap;
        if (gap >= LOOK && gap < LONG)
            *lost += gap;
    }
}
