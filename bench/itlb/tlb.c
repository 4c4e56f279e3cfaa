/* Simulates the TLBs of Intel's server cores over a record of pages.c on stdin: tlb [START-END]...; these ranges of text, in hexadecimal,
   are on 2 MiB pages.

   The TLBs are those from Skylake to Cascade Lake (Intel, "64 and IA-32 Architectures Optimization Reference Manual"): for text 128
   entries of 4 KiB in 8 ways and 8 of 2 MiB in one set; a second level of 1536 in 12 ways, which text of both sizes shares with data.
   (pages.c has simulated the first level of data.) Each set evicts its least recently used entry. Data lies on 4 KiB pages. The kernel's
   own entries are not simulated.

   The first WARMUP instructions fill the TLBs and do not count.

   On these processors, perf's iTLB-loads are hits of the second level, and its iTLB-load-misses are walks. Their ratio is printed as
   "perf". */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum {
    MOST_RANGES = 256, BASE_SETS = 16, BASE_WAYS = 8, HUGE_WAYS = 8, SECOND_SETS = 128, SECOND_WAYS = 12, WARMUP = 4000000, LEAST_BITS = 16,
    HUGE_BITS = 9
};

static uint64_t base[BASE_SETS][BASE_WAYS], huge[HUGE_WAYS], second[SECOND_SETS][SECOND_WAYS];

/* Moves the key to the front of its set. Returns whether the key was there. */
static int hit(uint64_t *set, int ways, uint64_t key)
{
    int at = 0;
    while (at < ways - 1 && set[at] != key)
        at++;
    int found = set[at] == key;
    memmove(set + 1, set, at * sizeof *set);
    set[0] = key;
    return found;
}

int main(int argc, char **argv)
{
    static struct { uint64_t start, end; } ranges[MOST_RANGES];
    static uint64_t records[1 << 13];
    int count = argc - 1;
    for (int i = 0; i < count; i++)
        if (i == MOST_RANGES || sscanf(argv[1 + i], "%lx-%lx", &ranges[i].start, &ranges[i].end) != 2) {
            fputs("usage: tlb [START-END]...\n", stderr);
            return 2;
        }
    uint64_t instructions = 0, missed = 0, walks = 0, on_huge = 0;
    for (size_t read; (read = fread(records, sizeof *records, sizeof records / sizeof *records, stdin));)
        for (size_t at = 0; at < read; at++) {
            uint64_t page = records[at] >> LEAST_BITS, what = records[at] & ((1 << LEAST_BITS) - 1);
            int is_huge = 0;
            for (int i = 0; i < count && what != 1 && !is_huge; i++)
                is_huge = page >= ranges[i].start >> 12 && page < ranges[i].end >> 12;
            /* The keys of the two page sizes differ, and no key is 0. */
            uint64_t number = is_huge ? page >> HUGE_BITS : page, key = number << 2 | is_huge << 1 | 1;
            uint64_t *set = second[number % SECOND_SETS];
            if (what == 1) {
                hit(set, SECOND_WAYS, key);
                continue;
            }
            if (instructions < WARMUP && instructions + what / 2 >= WARMUP)
                missed = walks = on_huge = 0;
            instructions += what / 2;
            on_huge += is_huge ? what / 2 : 0;
            if (is_huge ? hit(huge, HUGE_WAYS, key) : hit(base[number % BASE_SETS], BASE_WAYS, key))
                continue;
            missed++;
            walks += !hit(set, SECOND_WAYS, key);
        }
    if (instructions <= WARMUP) {
        fputs("tlb: too few instructions\n", stderr);
        return 1;
    }
    instructions -= WARMUP;
    double kilo = instructions / 1000.0, hits = missed - walks;
    printf("%lu instructions, %.1f %% on huge pages; in 1000: %.3f misses, %.3f walks; perf %.1f %%\n", instructions,
           100.0 * on_huge / instructions, missed / kilo, walks / kilo, hits ? 100.0 * walks / hits : 0.0);
    return 0;
}
