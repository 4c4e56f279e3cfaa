/* Simulates the TLBs that a program's text goes through, over a trace of `reduce -t` on stdin:
     tlb FIRST,HUGE,SECOND,SHARED INTERVAL [START-END]...
   The ranges of text, in hexadecimal, are on 2 MiB pages. FIRST, HUGE and SECOND are ENTRIES/WAYS:
   - FIRST is the first level for base pages;
   - HUGE is that for huge pages; 0/0 if FIRST holds both;
   - SECOND holds pages of both sizes. SHARED is `data` if translations of data compete for it, otherwise `text`.
   All entries are flushed after each INTERVAL instructions of the trace, whose windows follow each other as if nothing lay between them.
   With 0 nothing is flushed, and each window begins with the entries of the time before it.

   Each set evicts its least recently used entry. (pages.c has simulated a first level of data.) Data lies on 4 KiB pages. The kernel's own
   entries are not simulated.

   Prints four numbers: instructions, instructions on huge pages, misses of the first level, and walks (misses of both). On Intel's
   processors, perf's iTLB-loads are the difference of the last two, and its iTLB-load-misses are the walks. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANGES = 1024, MOST_PAGES = 1 << 20, HUGE_BITS = 9, TICK = 62500, UNIT = 1000, VERSION = 1, KEEP_ALL = 48, KEEP_WAYS = 8, SETS = 16 };

struct level {
    unsigned entries, ways;
    uint64_t *keys;
};

static struct { uint64_t start, end; } ranges[MOST_RANGES];
static int range_count;
static struct level first, huge, second;
static int shares_with_data;
static uint64_t order[MOST_PAGES], pages[MOST_PAGES], instructions, on_huge, missed, walks;
static uint32_t ranks, page_count;

static int is_huge(uint64_t page)
{
    for (int i = 0; i < range_count; i++)
        if (page >= ranges[i].start && page < ranges[i].end)
            return 1;
    return 0;
}

/* Moves the key to the front of its set. Returns whether the key was there. */
static int hit(struct level *level, uint64_t number, uint64_t key)
{
    uint64_t *set = level->keys + number % (level->entries / level->ways) * level->ways;
    unsigned at = 0;
    while (at < level->ways - 1 && set[at] != key)
        at++;
    int found = set[at] == key;
    memmove(set + 1, set, at * sizeof *set);
    set[0] = key;
    return found;
}

static void refer(uint64_t page, int is_data)
{
    int big = !is_data && is_huge(page);
    /* The keys of the two page sizes differ, and no key is 0. */
    uint64_t number = big ? page >> HUGE_BITS : page, key = number << 2 | big << 1 | 1;
    if (is_data) {
        if (shares_with_data)
            hit(&second, number, key);
    } else if (!hit(big && huge.entries ? &huge : &first, number, key)) {
        missed++;
        walks += !hit(&second, number, key);
    }
}

static void flush(struct level *level)
{
    memset(level->keys, 0, level->entries * sizeof *level->keys);
}

static uint64_t get(void)
{
    uint64_t value = 0;
    int byte, shift = 0;
    do {
        byte = getchar_unlocked();
        if (byte == EOF) {
            fputs("tlb: the trace ends early\n", stderr);
            exit(1);
        }
        value |= (uint64_t)(byte & 127) << shift;
        shift += 7;
    } while (byte > 127);
    return value;
}

/* Reads a reference: a page's number << 1 | whether it is data. `rank` is not 0. */
static uint64_t page_of(uint64_t rank)
{
    static uint64_t before;
    uint64_t page;
    if (rank > ranks) {
        uint64_t what = get(), distance = what >> 1;
        before += distance >> 1 ^ -(distance & 1);
        page = before << 1 | (what & 1);
        if (ranks == MOST_PAGES)
            exit(1);
        pages[page_count++] = page;
        ranks++;
    } else {
        page = order[rank - 1];
    }
    memmove(order + 1, order, (rank - 1) * sizeof *order);
    order[0] = page;
    return page;
}

static void window(uint64_t interval)
{
    static uint64_t since;
    uint64_t before = get(), length = get(), misses = missed, walked = walks;
    for (; before; before--) {
        uint64_t page = page_of(get());
        if (!interval)
            refer(page >> 1, page & 1);
    }
    missed = misses, walks = walked;
    for (; length; length--) {
        uint64_t rank = get();
        if (rank) {
            uint64_t page = page_of(rank);
            refer(page >> 1, page & 1);
            continue;
        }
        instructions += TICK;
        since += TICK;
        if (interval && since >= interval) {
            since -= interval;
            flush(&first);
            flush(&second);
            if (huge.entries)
                flush(&huge);
        }
    }
}

static int prepare(struct level *level)
{
    level->keys = calloc(level->entries, sizeof *level->keys);
    return level->ways && level->entries % level->ways == 0 && level->keys;
}

int main(int argc, char **argv)
{
    char shared[5];
    uint64_t interval;
    if (argc < 3 || sscanf(argv[1], "%u/%u,%u/%u,%u/%u,%4s", &first.entries, &first.ways, &huge.entries, &huge.ways, &second.entries,
                           &second.ways, shared) != 7 || sscanf(argv[2], "%lu", &interval) != 1 || !prepare(&first) || !prepare(&second) ||
        (huge.entries && !prepare(&huge)) || argc - 3 > MOST_RANGES) {
        fputs("usage: tlb ENTRIES/WAYS,ENTRIES/WAYS,ENTRIES/WAYS,data|text INTERVAL [START-END]...\n", stderr);
        return 2;
    }
    for (; range_count < argc - 3; range_count++) {
        uint64_t start, end;
        if (sscanf(argv[3 + range_count], "%lx-%lx", &start, &end) != 2)
            return 2;
        ranges[range_count].start = start >> 12, ranges[range_count].end = end >> 12;
    }
    unsigned sets = first.entries / first.ways;
    if ((sets == 1 ? first.ways < KEEP_ALL : first.ways < KEEP_WAYS || sets % SETS) || (huge.entries && huge.ways < KEEP_WAYS)) {
        fputs("tlb: a trace lacks references that such a first level would miss: see reduce.c\n", stderr);
        return 2;
    }
    shares_with_data = !strcmp(shared, "data");
    if (get() != VERSION) {
        fputs("tlb: not a trace, or one of another version\n", stderr);
        return 1;
    }
    for (uint64_t windows = get(); windows; windows--)
        window(interval);
    for (uint32_t i = 0; i < page_count; i++) {
        uint64_t executed = get() * UNIT;
        on_huge += is_huge(pages[i] >> 1) && !(pages[i] & 1) ? executed : 0;
    }
    printf("%lu %lu %lu %lu\n", instructions, on_huge, missed, walks);
    return 0;
}
