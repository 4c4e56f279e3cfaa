/* Looks for its own file by its maps: takes the line of its text, and reads at the offset that the line gives, once from the file of
   that name and once from /proc/self/exe. Says for each whether the bytes are those of its text. Again for each line on stdin. */
#include <fcntl.h>
#include <sys/stat.h>
#include "situation.h"

static int same(const char *path, unsigned long offset)
{
    unsigned char there[BIG_BLOCK];
    int file = open(path, O_RDONLY | O_CLOEXEC);
    int is = file >= 0 && pread(file, there, sizeof there, (off_t)offset) == (ssize_t)sizeof there &&
             !memcmp(there, (const void *)(unsigned long)big_middle, sizeof there);
    if (file >= 0)
        close(file);
    return is;
}

static void look(void)
{
    char line[4400], path[4200];
    unsigned long at = (unsigned long)big_middle, start, end, offset;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && fgets(line, sizeof line, maps)) {
        path[0] = 0;
        if (sscanf(line, "%lx-%lx %*s %lx %*s %*s %4199[^\n]", &start, &end, &offset, path) < 3 || at < start || end <= at)
            continue;
        offset += at - start;
        printf("name %s exe %s\n", same(path, offset) ? "right" : "wrong", same("/proc/self/exe", offset) ? "right" : "wrong");
    }
    if (maps)
        fclose(maps);
    fflush(stdout);
}

int main(void)
{
    char line[16];
    check_or_die();
    look();
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin))
        look();
    return 7;
}
