/* Reads a record of pages.c on stdin, and drops references that no TLB can tell apart from hits:
     reduce FILE        pages of instructions, for the tests of the iTLB model; the format is that of
                        crates/advise/tests/itlb/recorded.rs
     reduce -t FILE COUNT [START-END:TO]...
                        a trace for tlb.c: pages of instructions and of data, in the first COUNT instructions of each window after
                        its WARMUP. Pages of the ranges of addresses, in hexadecimal, get the addresses from TO on

   A reference to a page of instructions is dropped if no LRU of KEEP or more entries behaves differently without it (Kaplan,
   Smaragdakis, Wilson: "Trace reduction for virtual memory simulations", SIGMETRICS 1999, "safely allowed drop"): the middle one of
   three references to a page, if fewer than KEEP other pages are used between the first and the third. The same holds for each set of
   a TLB, and for huge pages. So a trace gives the same misses as the record in each TLB whose first level has, for base pages, KEEP_ALL
   or more entries in one set, or KEEP_WAYS or more ways in a multiple of SETS sets; and, for huge pages, KEEP_WAYS or more ways.

   A trace begins with VERSION and the number of its windows. For each window follow the number of references before it, which bring
   the TLBs into the state that they had at its beginning, the number of those in it, and all of these. A reference is 0 after each TICK
   instructions, otherwise 1 + the rank of its page in the order of last use; for a page that has no rank, 1 + the number of ranks,
   and 2 * the page's distance from the page before that had no rank (zigzag), + 1 for data. At the end follow the instructions in each
   page of the windows, in units of UNIT, in the order in which the pages got their ranks. All numbers are LEB128.

   A window needs WARMUP instructions of the record before it. To bound the error of a simulation that flushes the TLBs, a page of
   instructions that is in use keeps at least one reference in each TICK. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    KEEP = 64, KEEP_ALL = 48, KEEP_WAYS = 8, SETS = 16, PAGE_BITS = 12, HUGE_BITS = 9, MOST_MOVES = 1024, PERIOD = 10007,
    MOST_PAGES = 1 << 20, LEAST_BITS = 16, VERSION = 1, WARMUP = 14000000, TICK = 62500, MOST_BEFORE = 4096, UNIT = 1000
};

struct page {
    uint64_t number, samples, kept_at, used;
    int64_t kept, last;
    int is_data, has_rank;
};

/* Pages in the order of last use, the latest first. */
struct order {
    uint32_t *pages, used;
};

static struct page *pages;
static struct order recent, ranks;
static uint32_t *slots;
static uint32_t count;
static uint32_t *references;
static unsigned char *dropped;
static int64_t length, room;
static uint64_t instructions, uses;
static int is_trace;

static void *need(void *memory)
{
    if (!memory)
        abort();
    return memory;
}

static uint32_t page_of(uint64_t number, int is_data)
{
    uint32_t at = (number << 1 | is_data) * 0x9e3779b97f4a7c15u >> 43;
    while (slots[at] && (pages[slots[at] - 1].number != number || pages[slots[at] - 1].is_data != is_data))
        at = (at + 1) & (2 * MOST_PAGES - 1);
    if (!slots[at]) {
        if (count == MOST_PAGES) {
            fputs("reduce: too many pages\n", stderr);
            exit(1);
        }
        pages[count] = (struct page){ .number = number, .is_data = is_data, .kept = -1, .last = -1 };
        slots[at] = ++count;
    }
    return slots[at] - 1;
}

/* Moves the page to the front. Returns its rank before. */
static uint32_t to_front(struct order *order, uint32_t page)
{
    uint32_t at = 0;
    while (at < order->used && order->pages[at] != page)
        at++;
    if (at == order->used)
        ++order->used;
    memmove(order->pages + 1, order->pages, at * sizeof *order->pages);
    order->pages[0] = page;
    return at;
}

static void append(uint32_t index)
{
    if (length == room) {
        room = room ? 2 * room : 1 << 20;
        references = need(realloc(references, room * sizeof *references));
        dropped = need(realloc(dropped, room));
    }
    references[length] = index;
    dropped[length++] = 0;
}

/* Returns whether the last reference to the page could be dropped, if one follows now. */
static int is_surely_hit(uint32_t index)
{
    struct page *page = &pages[index];
    uint64_t chunks[KEEP_WAYS];
    int others = 0, in_set = 0, huge = 0;
    for (uint32_t at = 0; at < recent.used && pages[recent.pages[at]].last > page->kept; at++) {
        struct page *other = &pages[recent.pages[at]];
        if (other == page)
            continue;
        if (++others == (is_trace ? KEEP_ALL : KEEP))
            return 0;
        if (!is_trace)
            continue;
        in_set += other->number % SETS == page->number % SETS;
        uint64_t chunk = other->number >> HUGE_BITS;
        int known = chunk == page->number >> HUGE_BITS;
        for (int i = 0; i < huge && !known; i++)
            known = chunks[i] == chunk;
        if (!known)
            chunks[huge++] = chunk;
        if (in_set == KEEP_WAYS || huge == KEEP_WAYS)
            return 0;
    }
    return 1;
}

static void refer(uint32_t index, uint64_t tick)
{
    struct page *page = &pages[index];
    if (page->last >= 0 && page->kept < page->last && page->kept >= 0 && page->kept_at == tick && is_surely_hit(index)) {
        dropped[page->last] = 1;
    } else if (page->last >= 0) {
        page->kept = page->last;
        page->kept_at = tick;
    }
    to_front(&recent, index);
    page->last = length;
    append(index);
}

static void put(FILE *to, uint64_t value)
{
    for (; value >= 128; value >>= 7)
        putc((value & 127) | 128, to);
    putc(value, to);
}

/* Writes a file for the tests of the model. */
static int model(FILE *to)
{
    static uint64_t records[1 << 13], current = ~0ull, next = PERIOD / 2;
    uint32_t index = 0, before = ~0u, written = 0;
    for (size_t read; (read = fread(records, sizeof *records, sizeof records / sizeof *records, stdin));)
        for (size_t at = 0; at < read; at++) {
            uint64_t number = records[at] >> LEAST_BITS, what = records[at] & ((1 << LEAST_BITS) - 1);
            if (what < 2)
                continue;
            if (number != current) {
                current = number;
                index = page_of(current, 0);
                refer(index, 0);
            }
            for (instructions += what >> 1; instructions > next; next += PERIOD)
                pages[index].samples++;
        }
    put(to, instructions);
    put(to, count);
    for (uint32_t i = 0; i < count; i++)
        put(to, pages[i].samples);
    for (int64_t i = 0; i < length; i++)
        if (!dropped[i] && references[i] != before) {
            before = references[i];
            put(to, to_front(&ranks, before));
            written++;
        }
    fprintf(stderr, "%llu instructions, %u pages, %u of %lld references\n", (unsigned long long)instructions, count, written,
            (long long)length);
    return instructions == 0;
}

static struct { uint64_t start, end, to; } moves[MOST_MOVES];
static int move_count;
static uint64_t counted;
static uint32_t *ranked, ranked_count;

static uint64_t moved(uint64_t number)
{
    for (int i = 0; i < move_count; i++)
        if (number >= moves[i].start && number < moves[i].end)
            return moves[i].to + (number - moves[i].start);
    return number;
}

static void put_reference(FILE *to, uint32_t index)
{
    static uint64_t before;
    struct page *page = &pages[index];
    put(to, 1 + to_front(&ranks, index));
    if (page->has_rank)
        return;
    int64_t distance = page->number - before;
    before = page->number;
    page->has_rank = 1;
    ranked[ranked_count++] = index;
    put(to, ((uint64_t)distance << 1 ^ distance >> 63) << 1 | page->is_data);
}

static int by_use(const void *one, const void *other)
{
    uint64_t a = pages[*(const uint32_t *)one].used, b = pages[*(const uint32_t *)other].used;
    return a < b ? -1 : a > b;
}

/* Collects the pages that were used last before a window, in the order of their use. */
static uint32_t before_window(uint32_t *found)
{
    uint32_t used = 0;
    for (uint32_t i = 0; i < count; i++)
        if (pages[i].used)
            found[used++] = i;
    qsort(found, used, sizeof *found, by_use);
    uint32_t more = used > MOST_BEFORE ? used - MOST_BEFORE : 0;
    memmove(found, found + more, (used - more) * sizeof *found);
    return used - more;
}

static void put_window(FILE *to, const uint32_t *before, uint32_t before_count)
{
    uint64_t kept = 0;
    uint32_t last = ~1u;
    for (int64_t i = 0; i < length; i++) {
        /* What stands between two references to a page may have been dropped. */
        dropped[i] |= references[i] == last && last != ~0u;
        if (!dropped[i]) {
            last = references[i];
            kept++;
        }
    }
    put(to, before_count);
    put(to, kept);
    for (uint32_t i = 0; i < before_count; i++)
        put_reference(to, before[i]);
    for (int64_t i = 0; i < length; i++)
        if (!dropped[i] && references[i] == ~0u)
            putc(0, to);
        else if (!dropped[i])
            put_reference(to, references[i]);
    fprintf(stderr, "%llu of %lld references, after %u\n", (unsigned long long)kept, (long long)length, before_count);
}

/* Writes a trace. */
static int trace(FILE *to)
{
    static uint64_t records[1 << 13];
    uint32_t *before = need(calloc(MOST_PAGES, sizeof *before)), before_count = 0, windows = 0;
    char *text;
    size_t size;
    FILE *body = need(open_memstream(&text, &size));
    uint64_t done = 0, current = ~0ull;
    ranked = need(calloc(MOST_PAGES, sizeof *ranked));
    for (size_t read; (read = fread(records, sizeof *records, sizeof records / sizeof *records, stdin));)
        for (size_t at = 0; at < read; at++) {
            uint64_t number = records[at] >> LEAST_BITS, what = records[at] & ((1 << LEAST_BITS) - 1), run = what >> 1;
            if (what == 0) {
                /* The program may have ended early in its last window. */
                if (done > WARMUP + TICK) {
                    put_window(body, before, before_count);
                    windows++;
                }
                for (uint32_t i = 0; i < count; i++)
                    pages[i].kept = pages[i].last = -1, pages[i].used = 0;
                length = recent.used = done = 0;
                current = ~0ull;
                continue;
            }
            number = moved(number);
            uint32_t index = page_of(number, what == 1);
            pages[index].used = ++uses;
            int counts = done >= WARMUP && done < WARMUP + counted;
            if (done < WARMUP && done + run >= WARMUP)
                before_count = before_window(before);
            else if (counts && what == 1)
                append(index);
            else if (counts && number != current)
                refer(index, (done - WARMUP) / TICK);
            if (what != 1)
                current = counts ? number : ~0ull;
            if (counts) {
                pages[index].samples += run;
                for (uint64_t tick = (done - WARMUP) / TICK; tick < (done + run - WARMUP) / TICK; tick++)
                    append(~0u);
            }
            done += run;
        }
    fclose(body);
    put(to, VERSION);
    put(to, windows);
    fwrite(text, 1, size, to);
    for (uint32_t i = 0; i < ranked_count; i++)
        put(to, (pages[ranked[i]].samples + UNIT / 2) / UNIT);
    return windows == 0;
}

int main(int argc, char **argv)
{
    is_trace = argc > 2 && !strcmp(argv[1], "-t");
    counted = argc > 3 ? strtoull(argv[3], 0, 10) : 0;
    for (int i = 4; is_trace && i < argc; i++, move_count++) {
        uint64_t start, end, to;
        if (move_count == MOST_MOVES || sscanf(argv[i], "%lx-%lx:%lx", &start, &end, &to) != 3) {
            fprintf(stderr, "reduce: %s: not START-END:TO, or more than %d of these\n", argv[i], MOST_MOVES);
            return 2;
        }
        moves[move_count].start = start >> PAGE_BITS, moves[move_count].end = end >> PAGE_BITS, moves[move_count].to = to >> PAGE_BITS;
    }
    if (argc < 2 || (is_trace ? counted < TICK : argc > 2))
        return 2;
    pages = need(calloc(MOST_PAGES, sizeof *pages));
    slots = need(calloc(2 * MOST_PAGES, sizeof *slots));
    recent.pages = need(calloc(MOST_PAGES, sizeof *recent.pages));
    ranks.pages = need(calloc(MOST_PAGES, sizeof *ranks.pages));
    FILE *to = fopen(argv[1 + is_trace], "w");
    if (!to || (is_trace ? trace : model)(to)) {
        fputs("reduce: too few instructions, or no file to write to\n", stderr);
        return 1;
    }
    return fclose(to) != 0;
}
