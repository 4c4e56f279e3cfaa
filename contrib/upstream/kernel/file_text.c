/* Shows which starts of a program find its text on huge pages in the page cache of a file system with large folios, such as ext4 of
   Linux 6.16 or later.

   The program copies itself, has the copy's text cached in three ways, and executes the copy each time. Run it on a disk, not on a tmpfs:

   cc -no-pie -o file_text file_text.c && ./file_text
   The exit status is 1 if MADV_COLLAPSE does not work on the cached text, 0 if it does, and 2 if no way leads to huge pages. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum { HUGE = 2 << 20, BASE = 4096, KIB = 1024 };

/* Two whole huge pages of text, wherever they begin. */
__asm__(".text\n.globl big, big_end\nbig: .skip 3 * 2097152, 0x90\nbig_end: ret\n");
extern char big[], big_end[];

/* Where huge pages can be: whole ones within the text. At its fixed address the program has the same place in a huge page as in its file. */
static char *first(void) { return (char *)(((uintptr_t)big + HUGE - 1) & -(uintptr_t)HUGE); }
static size_t whole(void) { return (big_end - first()) & -(size_t)HUGE; }

static void need(int good, const char *what)
{
    if (!good) {
        perror(what);
        exit(2);
    }
}

/* The copy: uses its text, and prints how much of it huge pages map. Returns whether they map all. */
static int in_copy(const char *how, int collapse)
{
    int error = 0;
    long kib = 0, sum = 0;
    char line[512];
    for (volatile char *page = first(); page < first() + whole(); page += BASE)
        (void)*page;
    if (collapse && madvise(first(), whole(), MADV_COLLAPSE))
        error = errno;
    FILE *smaps = fopen("/proc/self/smaps", "r");
    need(smaps != NULL, "smaps");
    while (fgets(line, sizeof line, smaps))
        if (sscanf(line, "FilePmdMapped: %ld", &kib) == 1)
            sum += kib;
    printf("%s: %ld of %zu KiB on huge pages%s%s\n", how, sum, whole() / KIB, error ? ", " : "", error ? strerror(error) : "");
    return (size_t)sum < whole() / KIB;
}

static int run(const char *copy, const char *how, const char *collapse)
{
    int status;
    pid_t child = fork();
    need(child >= 0, "fork");
    if (!child) {
        execl(copy, copy, how, collapse, NULL);
        need(0, "exec");
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}

static void evict(int file)
{
    need(!fsync(file) && !posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED), "evict");
}

int main(int count, char **words)
{
    static char part[BASE];
    char copy[4096];
    ssize_t bytes;
    off_t at = 0;
    if (count == 3)
        return in_copy(words[1], !strcmp(words[2], "collapse"));
    snprintf(copy, sizeof copy, "%s.copy", words[0]);
    int from = open("/proc/self/exe", O_RDONLY), to = open(copy, O_RDWR | O_CREAT | O_TRUNC, 0755);
    need(from >= 0 && to >= 0, copy);
    while ((bytes = read(from, part, sizeof part)) > 0)
        need(write(to, part, bytes) == bytes, "write");
    close(to);
    int file = open(copy, O_RDONLY);
    need(file >= 0, copy);

    /* Base pages, as they come from many a read before. */
    evict(file);
    posix_fadvise(file, 0, 0, POSIX_FADV_RANDOM);
    while ((bytes = pread(file, part, sizeof part, at)) > 0)
        at += bytes;
    run(copy, "cached in base pages", "");
    int collapsed = run(copy, "the same, with MADV_COLLAPSE", "collapse");

    /* What a launcher could do before the exec: read the text by a mapping that wants huge pages. */
    evict(file);
    char *room = mmap(NULL, whole() + HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    need(room != MAP_FAILED, "room");
    char *text = (char *)(((uintptr_t)room + HUGE - 1) & -(uintptr_t)HUGE);
    extern char __executable_start[];
    off_t offset = first() - __executable_start;
    need(mmap(text, whole(), PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, file, offset) != MAP_FAILED, "mmap");
    need(!madvise(text, whole(), MADV_HUGEPAGE) && !madvise(text, whole(), MADV_RANDOM), "madvise");
    for (volatile char *page = text; page < text + whole(); page += HUGE)
        (void)*page;
    int prepared = run(copy, "read with MADV_HUGEPAGE before the exec", "");
    unlink(copy);
    return prepared ? 2 : collapsed;
}
