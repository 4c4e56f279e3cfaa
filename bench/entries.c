/* This library is preloaded into a program. It changes the mapping of the program's own text at the command of a bench: a character on
   the FIFO ENTRIES_IN, with an answer on ENTRIES_OUT. F, f: the file. H, h: a copy in huge pages, by huge entries (two copies). B: the
   first copy, by base entries. S: a copy in base pages. The bytes are the same. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static const uintptr_t HUGE = 2 << 20;
static char *start;
static size_t length;
static off_t offset;
static int file, copies[3];

static int copy_of_text(int huge)
{
    int made = memfd_create("entries", 0);
    char *all = mmap(0, length + HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *at = (char *)(((uintptr_t)all + HUGE - 1) & ~(HUGE - 1));
    if (made < 0 || ftruncate(made, length) || all == MAP_FAILED)
        return -1;
    at = mmap(at, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, made, 0);
    madvise(at, length, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    memcpy(at, start, length);
    if (huge && madvise(at, length, MADV_COLLAPSE))
        return -1;
    munmap(all, length + HUGE);
    return made;
}

static int switch_to(char way)
{
    int by_huge_entries = way == 'H' || way == 'h';
    int from = way == 'H' || way == 'B' ? copies[0] : way == 'h' ? copies[1] : way == 'S' ? copies[2] : file;
    prctl(PR_SET_THP_DISABLE, !by_huge_entries, 0, 0, 0);
    void *there = mmap(start, length, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, from, from == file ? offset : 0);
    if (by_huge_entries)
        madvise(start, length, MADV_HUGEPAGE);
    return there == start && !madvise(start, length, MADV_POPULATE_READ);
}

static void *serve(void *unused)
{
    int in = open(getenv("ENTRIES_IN"), O_RDONLY), out = open(getenv("ENTRIES_OUT"), O_WRONLY);
    for (char way; read(in, &way, 1) == 1;)
        if (write(out, switch_to(way) ? "." : "!", 1) != 1)
            break;
    return unused;
}

__attribute__((constructor)) static void begin(void)
{
    char line[4096], path[1024] = "", program[1024] = "";
    FILE *maps = fopen("/proc/self/maps", "r");
    if (!getenv("ENTRIES_IN") || !maps || readlink("/proc/self/exe", program, sizeof program - 1) < 0)
        return;
    while (fgets(line, sizeof line, maps)) {
        unsigned long first, end, from;
        char protection[5] = "";
        int fields = sscanf(line, "%lx-%lx %4s %lx %*s %*s %1023s", &first, &end, protection, &from, path);
        if (fields == 5 && protection[2] == 'x' && !strcmp(path, program)) {
            start = (char *)((first + HUGE - 1) & ~(HUGE - 1));
            length = (end & ~(HUGE - 1)) > (uintptr_t)start ? (end & ~(HUGE - 1)) - (uintptr_t)start : 0;
            offset = from + ((uintptr_t)start - first);
        }
    }
    fclose(maps);
    if (!length)
        return;
    file = open(program, O_RDONLY | O_CLOEXEC);
    prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
    for (int copy = 0; copy < 3; copy++)
        copies[copy] = copy_of_text(copy < 2);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* for the thread: the program's signals are not for it */
    pthread_t thread;
    if (file < 0 || copies[0] < 0 || copies[1] < 0 || copies[2] < 0 || pthread_create(&thread, 0, serve, 0))
        fprintf(stderr, "entries: cannot copy the text\n");
    pthread_sigmask(SIG_SETMASK, &before, 0);
}
