/* ager MIB FILE: holds MIB of memory in pieces of random sizes, up to 256 KiB. For each line on its input, a number of seconds, it ages the
   cgroup or the machine that it is in: it gives a random piece back, maps and touches another one, and reads a random part of FILE after
   every eighth. Then it says how many pages it touched, and how long a piece took, in nanoseconds: the median, the 99th percentile and the
   longest. FILE is larger than the memory that is left, so that the page cache is always full.
   For the line "fragment" it pins one page of each piece where it is, gives the others of every second piece back, and says "fragmented".
   Then the free memory is in pieces, and stays so, because the kernel cannot move what lies between them. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, LARGEST = 64, READ = 512 * 1024, KEPT = 1 << 20, PIPE = 1 << 20 };

struct piece {
    char *at;
    size_t pages;
};

static unsigned long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000UL + t.tv_nsec;
}

static unsigned chance(unsigned below)
{
    static unsigned long state = 88172645463325252UL;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 20) % below;
}

static void map(struct piece *piece, size_t pages)
{
    piece->pages = pages;
    piece->at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (piece->at == MAP_FAILED)
        exit(1);
    for (size_t page = 0; page < pages; page++)
        piece->at[page * PAGE] = 1;
}

/* Puts the page into a pipe. So the kernel can neither move it nor, once it is unmapped, give it to somebody else. */
static void pin(char *page)
{
    static int pipes[2], room;
    struct iovec one = { page, PAGE };
    if (!room) {
        if (pipe(pipes) || fcntl(pipes[1], F_SETPIPE_SZ, PIPE) < 0)
            exit(1);
        room = PIPE / PAGE;
    }
    if (vmsplice(pipes[1], &one, 1, 0) != PAGE)
        exit(1);
    room--;
}

static int compare(const void *a, const void *b)
{
    unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
    static unsigned took[KEPT];
    static char bytes[READ], line[32];
    size_t all = argc > 2 ? strtoul(argv[1], 0, 10) * 256 : 0, held = 0, count = 0;
    struct piece *pieces = calloc(all + 1, sizeof *pieces);
    int file = argc > 2 ? open(argv[2], O_RDONLY) : -1;
    struct stat stat;
    if (!pieces || file < 0 || fstat(file, &stat) || stat.st_size <= READ)
        return 1;
    memset(took, 0, sizeof took);
    while (held < all) {
        map(&pieces[count], 1 + chance(LARGEST));
        held += pieces[count++].pages;
    }
    puts("filled");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "fragment\n")) {
            for (size_t piece = 0; piece < count; piece++) {
                pin(pieces[piece].at);
            }
            for (size_t piece = 0; piece < count; piece += 2)
                munmap(pieces[piece].at, pieces[piece].pages * PAGE);
            puts("fragmented");
            fflush(stdout);
            continue;
        }
        unsigned long until = now() + strtod(line, 0) * 1e9, pages = 0, done = 0;
        for (unsigned long begin; (begin = now()) < until; done++) {
            struct piece *piece = &pieces[chance(count)];
            /* Another size, of the same mean, so that the free pages are in pieces. */
            munmap(piece->at, piece->pages * PAGE);
            held -= piece->pages;
            map(piece, held + LARGEST > all ? 1 + chance(LARGEST / 2) : LARGEST / 2 + chance(LARGEST / 2));
            held += piece->pages;
            pages += piece->pages;
            took[done % KEPT] = now() - begin;
            if (done % 8 == 7 && pread(file, bytes, READ, chance((stat.st_size - READ) / PAGE) * (off_t)PAGE) < 0)
                return 1;
        }
        size_t n = done < KEPT ? done : KEPT;
        if (!n)
            return 1;
        qsort(took, n, sizeof *took, compare);
        printf("%lu %u %u %u\n", pages, took[n / 2], took[n * 99 / 100], took[n - 1]);
        fflush(stdout);
    }
    return 0;
}
