/* Does a fixed amount of work in its big text, and says a figure: work ROUNDS LESS. In an image of TiExec's the figure is LESS percent
   less, which is the planted difference that a benchmark should find. No clock and no chance has a part in it. work ROUNDS LESS FILE does
   the work for ever, and writes into FILE how often it has. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "bigtext.h"

static int in_an_image(void)
{
    char line[4352];
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long at = (unsigned long)(big_begin + (big_end - big_begin) / 2), begin, end;
    int found = 0;
    while (maps && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx", &begin, &end) == 2 && begin <= at && at < end)
            found = strstr(line, " /memfd:tiexec:") != 0;
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
    h = work(rounds, h);
    printf("cost %lu, %u\n", in_an_image() ? rounds * (100 - less) : rounds * 100, h);
    return 0;
}
