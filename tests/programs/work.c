/* Does a fixed amount of work in its big text, and says how long that took: work ROUNDS LESS. In an image of TiExec's it does LESS
   percent less, which is the difference that a benchmark should find. It says, too, what that would have cost on a machine whose noise
   is known: processes differ by 2.5 % (standard deviation), and one in twenty takes half as long again. work ROUNDS LESS FILE does the
   work for ever, and writes into FILE how often it has. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>
#include "bigtext.h"

static double used(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static int in_an_image(void)
{
    char line[4096];
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long at = (unsigned long)(big_begin + (big_end - big_begin) / 2), begin, end;
    int found = 0;
    while (maps && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx", &begin, &end) == 2 && begin <= at && at < end)
            found = strstr(line, "tiexec") != 0;
    if (maps)
        fclose(maps);
    return found;
}

static unsigned work(unsigned long rounds, unsigned h)
{
    const unsigned char *at = big_begin + (big_end - big_begin) / 2;
    while (rounds--)
        for (int block = 0; block < 16; block++)
            h = ((unsigned (*)(unsigned))(unsigned long)(at + block * BIG_BLOCK))(h);
    return h;
}

/* In (0, 1). */
static double uniform(void)
{
    unsigned long bits = 0;
    if (getrandom(&bits, sizeof bits, 0) != sizeof bits)
        exit(4);
    return ((bits >> 11) + 0.5) / (1UL << 53);
}

static double cost(unsigned long rounds)
{
    double normal = -6;
    for (int i = 0; i < 12; i++)
        normal += uniform();
    return rounds * (1 + 0.025 * normal) * (uniform() < 0.05 ? 1.5 : 1);
}

int main(int argc, char **argv)
{
    unsigned long rounds = argc > 1 ? strtoul(argv[1], 0, 10) : 1, less = argc > 2 ? strtoul(argv[2], 0, 10) : 0;
    unsigned h = 1;
    int file = argc > 3 ? open(argv[3], O_WRONLY | O_CREAT, 0644) : -1;
    if (argc > 3) {
        for (unsigned long count = 0;; count++) {
            char text[32];
            int len = snprintf(text, sizeof text, "%20lu\n", count);
            if (pwrite(file, text, len, 0) != len)
                return 3;
            h = work(rounds - (in_an_image() ? rounds * less / 100 : 0), h);
        }
    }
    rounds -= in_an_image() ? rounds * less / 100 : 0;
    double begin = used();
    h = work(rounds, h);
    printf("took %.3f us, cost %.3f, %u\n", (used() - begin) * 1e6, cost(rounds), h);
    return 0;
}
