/* Reads a record of pages.c on stdin, and writes its pages of instructions for the tests of the iTLB model: reduce FILE. The
   format is that of crates/advise/tests/itlb/recorded.rs.

   A reference is dropped if no LRU of KEEP or more entries behaves differently without it (Kaplan, Smaragdakis, Wilson: "Trace
   reduction for virtual memory simulations", SIGMETRICS 1999, "safely allowed drop"): the middle one of three references to a page, if
   fewer than KEEP other pages are used between the first and the third. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEEP = 64, PERIOD = 10007, MOST_PAGES = 1 << 20, LEAST_BITS = 16 };

struct page {
    uint64_t number, samples;
    int64_t kept, last;
};

static struct page *pages;
static uint32_t *order, *slots;
static uint32_t count;
static uint32_t *references;
static unsigned char *dropped;
static int64_t length, room;
static uint64_t instructions;

static uint32_t page_of(uint64_t number)
{
    uint32_t at = number * 0x9e3779b97f4a7c15u >> 43;
    while (slots[at] && pages[slots[at] - 1].number != number)
        at = (at + 1) & (2 * MOST_PAGES - 1);
    if (!slots[at]) {
        if (count == MOST_PAGES) {
            fputs("reduce: too many pages\n", stderr);
            exit(1);
        }
        pages[count] = (struct page){ .number = number, .kept = -1, .last = -1 };
        slots[at] = ++count;
    }
    return slots[at] - 1;
}

static void to_front(uint32_t *used, uint32_t page)
{
    uint32_t at = 0;
    while (at < *used && order[at] != page)
        at++;
    if (at == *used)
        ++*used;
    memmove(order + 1, order, at * sizeof *order);
    order[0] = page;
}

static void refer(uint32_t index)
{
    static uint32_t used;
    struct page *page = &pages[index];
    if (length == room) {
        room = room ? 2 * room : 1 << 20;
        references = realloc(references, room * sizeof *references);
        dropped = realloc(dropped, room);
        if (!references || !dropped)
            abort();
    }
    if (page->last >= 0 && page->kept < page->last && page->kept >= 0) {
        int others = 0;
        for (uint32_t at = 0; at < used && others < KEEP && pages[order[at]].last > page->kept; at++)
            others += order[at] != index;
        if (others < KEEP)
            dropped[page->last] = 1;
        else
            page->kept = page->last;
    } else if (page->last >= 0) {
        page->kept = page->last;
    }
    to_front(&used, index);
    references[length] = index;
    dropped[length] = 0;
    page->last = length++;
}

/* Handles a run of instructions in one page. */
static void executed(uint64_t number, uint64_t run)
{
    static uint64_t current = ~0ull, next = PERIOD / 2;
    static uint32_t index;
    if (number != current) {
        current = number;
        index = page_of(current);
        refer(index);
    }
    for (instructions += run; instructions > next; next += PERIOD)
        pages[index].samples++;
}

static void put(FILE *to, uint64_t value)
{
    for (; value >= 128; value >>= 7)
        putc((value & 127) | 128, to);
    putc(value, to);
}

int main(int argc, char **argv)
{
    static uint64_t records[1 << 13];
    pages = calloc(MOST_PAGES, sizeof *pages);
    order = calloc(MOST_PAGES, sizeof *order);
    slots = calloc(2 * MOST_PAGES, sizeof *slots);
    if (argc != 2 || !pages || !order || !slots)
        return 2;
    for (size_t read; (read = fread(records, sizeof *records, sizeof records / sizeof *records, stdin));)
        for (size_t at = 0; at < read; at++) {
            uint64_t what = records[at] & ((1 << LEAST_BITS) - 1);
            if (what != 1)
                executed(records[at] >> LEAST_BITS, what >> 1);
        }
    FILE *to = fopen(argv[1], "w");
    if (!to || !instructions) {
        fputs("reduce: no instructions, or no file to write to\n", stderr);
        return 1;
    }
    put(to, instructions);
    put(to, count);
    for (uint32_t i = 0; i < count; i++)
        put(to, pages[i].samples);
    uint32_t used = 0, before = ~0u, written = 0;
    for (int64_t i = 0; i < length; i++) {
        uint32_t at = 0, page = references[i];
        if (dropped[i] || page == before)
            continue;
        while (at < used && order[at] != page)
            at++;
        put(to, at);
        to_front(&used, page);
        before = page;
        written++;
    }
    fprintf(stderr, "%llu instructions, %u pages, %u of %lld references\n", (unsigned long long)instructions, count, written,
            (long long)length);
    return fclose(to) != 0;
}
