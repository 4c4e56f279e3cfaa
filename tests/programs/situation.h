/* Shared by the programs: the figures of smaps about their own text, and the handshake with the test over stdin and stdout. */
#ifndef SITUATION_H
#define SITUATION_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "bigtext.h"

enum { CORRUPT = 99, BROKEN = 98 };

/* Bytes of executable mappings of this process that one PMD entry (or a hugetlb page) maps; 0 where /proc is not to be read. */
static unsigned long huge_text(void)
{
    char line[4352], perms[8] = "", key[64];
    unsigned long start, end, kb, sum = 0;
    FILE *f = fopen("/proc/self/smaps", "re");
    if (!f)
        return 0;
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "%lx-%lx %7s", &start, &end, perms) == 3)
            continue;
        if (perms[2] != 'x' || sscanf(line, "%63[^:]: %lu kB", key, &kb) != 2)
            continue;
        if (!strcmp(key, "ShmemPmdMapped") || !strcmp(key, "FilePmdMapped") || !strcmp(key, "Private_Hugetlb") ||
            !strcmp(key, "Shared_Hugetlb"))
            sum += kb * 1024;
    }
    fclose(f);
    return sum;
}

/* Says "ready" and waits until the test answers with a line or closes stdin. */
static void ready_and_wait(void)
{
    char c;
    ssize_t n;
    puts("ready");
    fflush(stdout);
    do
        n = read(0, &c, 1);
    while ((n < 0 && errno == EINTR) || (n == 1 && c != '\n'));
}

static void check_or_die(void)
{
    if (!big_check()) {
        fputs("text is corrupt\n", stderr);
        _exit(CORRUPT);
    }
}

#endif
