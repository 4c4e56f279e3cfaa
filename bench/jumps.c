/* Times a chain of jumps, each to another base page, with a system call between two runs of it: in memory on base pages, in huge pages
   that base entries map, and in huge pages that huge entries map. Prints, for each number of pages, the nanoseconds of a run with its
   system call, for the three kinds of memory. x86-64 only. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum { PAGE = 4096, HUGE = 2 << 20, LEN = 16 << 20, LINE = 64, ROUNDS = 9, PAGES = 1000000 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void *checked(void *found)
{
    if (found == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return found;
}

static char *map(int fd, int protection, int how)
{
    char *all = checked(mmap(0, LEN + HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    char *at = (char *)(((uintptr_t)all + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
    return checked(mmap(at, LEN, protection, how | MAP_FIXED, fd, 0));
}

static char *code(int fd, int by_huge_entries)
{
    prctl(PR_SET_THP_DISABLE, !by_huge_entries, 0, 0, 0);
    char *text = map(fd, PROT_READ | PROT_EXEC, MAP_PRIVATE);
    if (by_huge_entries)
        madvise(text, LEN, MADV_HUGEPAGE);
    if (madvise(text, LEN, MADV_POPULATE_READ)) {
        perror("MADV_POPULATE_READ");
        exit(1);
    }
    prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
    return text;
}

static int by_time(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

int main(void)
{
    int fd[2];
    char *writable[2];
    for (int huge = 0; huge < 2; huge++) {
        fd[huge] = memfd_create("jumps", 0);
        if (fd[huge] < 0 || ftruncate(fd[huge], LEN)) {
            perror("memfd_create");
            return 1;
        }
        writable[huge] = map(fd[huge], PROT_READ | PROT_WRITE, MAP_SHARED);
        madvise(writable[huge], LEN, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
        memset(writable[huge], 0xcc, LEN);
        if (huge && madvise(writable[huge], LEN, MADV_COLLAPSE)) {
            perror("MADV_COLLAPSE");
            return 1;
        }
    }
    char *text[3] = {code(fd[0], 0), code(fd[1], 0), code(fd[1], 1)};
    for (int count = 24; count <= LEN / PAGE; count = count * 3 / 2) {
        uint32_t at[count];
        srand(1);
        for (int i = 0; i < count; i++)
            at[i] = i;
        for (int i = count - 1; i > 0; i--) {
            int other = rand() % (i + 1);
            uint32_t page = at[i];
            at[i] = at[other];
            at[other] = page;
        }
        for (int i = 0; i < count; i++)
            at[i] = at[i] * PAGE + rand() % (PAGE / LINE) * LINE;
        for (int copy = 0; copy < 2; copy++)
            for (int i = 0; i < count; i++) {
                char *jump = writable[copy] + at[i];
                int32_t distance = i + 1 < count ? (int32_t)(at[i + 1] - (at[i] + 5)) : 0;
                jump[0] = i + 1 < count ? (char)0xe9 : (char)0xc3; /* jmp, and ret at the end */
                if (i + 1 < count)
                    memcpy(jump + 1, &distance, sizeof distance);
            }
        double times[3][ROUNDS];
        int runs = PAGES / count + 1;
        for (int round = 0; round < ROUNDS; round++)
            for (int way = 0; way < 3; way++) {
                void (*chain)(void) = (void (*)(void))(text[way] + at[0]);
                chain();
                double begun = now();
                for (int run = 0; run < runs; run++) {
                    chain();
                    syscall(SYS_getppid);
                }
                times[way][round] = (now() - begun) * 1e9 / runs;
            }
        printf("%d", count);
        for (int way = 0; way < 3; way++) {
            qsort(times[way], ROUNDS, sizeof(double), by_time);
            printf(" %.0f", times[way][ROUNDS / 2]);
        }
        printf("\n");
        fflush(stdout);
        for (int copy = 0; copy < 2; copy++)
            memset(writable[copy], 0xcc, LEN);
    }
}
