/* Executes in a known number of pages, spread over all of its big text, until it has used so much time of a processor: hotset PAGES SECONDS.
   At the end it says in how many of the pages it was. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include "bigtext.h"

static double used(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    unsigned long page = sysconf(_SC_PAGESIZE), pages = argc > 1 ? strtoul(argv[1], 0, 10) : 1;
    double until = argc > 2 ? atof(argv[2]) : 1;
    unsigned long all = (unsigned long)(big_end - big_begin) / page, each = page / BIG_BLOCK;
    unsigned h = 1;
    if (pages == 0 || pages > all)
        return 2;
    puts("spinning");
    fflush(stdout);
    while (used() < until)
        for (unsigned long p = 0; p < pages; p++) {
            const unsigned char *at = big_begin + p * (all / pages) * page;
            for (unsigned long round = 0; round < 100 + 20000 / pages; round++)
                for (unsigned long block = 0; block < each; block++)
                    h = ((unsigned (*)(unsigned))(unsigned long)(at + block * BIG_BLOCK))(h);
        }
    printf("pages %lu of %lu, %u\n", pages, all, h);
    return 0;
}
