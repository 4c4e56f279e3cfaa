/* scalable VL [za]: for aarch64. Holds a pattern in all vector registers of VL bytes, the predicates and the first-fault register, and,
   if told so, in ZA, and looks again and again whether they still do; a system call would cost them, so it makes none meanwhile. Says "vl"
   and "ready", ends at the end of its input: with 7, or with "wrong" and what was lost. */
#include <poll.h>
#include <stdint.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include "situation.h"

enum { LONGEST = 256, VECTORS = 32, PREDICATES = 16 };
#define ALIGNED __attribute__((aligned(16)))

unsigned char vectors[VECTORS * LONGEST] ALIGNED, predicates[(PREDICATES + 1) * LONGEST / 8] ALIGNED;
unsigned char seen_vectors[sizeof vectors] ALIGNED, seen_predicates[sizeof predicates] ALIGNED;
unsigned char za[LONGEST * LONGEST] ALIGNED, seen_za[sizeof za] ALIGNED;

/* Fills them, runs the text `times` times, and writes down what they hold then. The function called is big_middle, which uses none. */
void hold_all(unsigned (*function)(unsigned), unsigned long times);
__asm__(".arch armv8.2-a+sve\n"
        ".text\n"
        ".globl hold_all\n"
        ".type hold_all, @function\n"
        "hold_all:\n"
        "stp x29, x30, [sp, #-48]!\n"
        "stp x19, x20, [sp, #16]\n"
        "stp d8, d9, [sp, #32]\n"
        "mov x19, x0\n"
        "mov x20, x1\n"
        "adrp x2, predicates\n"
        "add x2, x2, :lo12:predicates\n"
        "ldr p0, [x2, #16, mul vl]\n"
        "wrffr p0.b\n"
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15\n"
        "ldr p\\n, [x2, #\\n, mul vl]\n"
        ".endr\n"
        "adrp x2, vectors\n"
        "add x2, x2, :lo12:vectors\n"
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31\n"
        "ldr z\\n, [x2, #\\n, mul vl]\n"
        ".endr\n"
        "1: mov w0, w20\n"
        "blr x19\n"
        "subs x20, x20, #1\n"
        "b.ne 1b\n"
        "adrp x2, seen_vectors\n"
        "add x2, x2, :lo12:seen_vectors\n"
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31\n"
        "str z\\n, [x2, #\\n, mul vl]\n"
        ".endr\n"
        "adrp x2, seen_predicates\n"
        "add x2, x2, :lo12:seen_predicates\n"
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15\n"
        "str p\\n, [x2, #\\n, mul vl]\n"
        ".endr\n"
        "rdffr p0.b\n"
        "str p0, [x2, #16, mul vl]\n"
        "ldp d8, d9, [sp, #32]\n"
        "ldp x19, x20, [sp, #16]\n"
        "ldp x29, x30, [sp], #48\n"
        "ret\n");

/* ZA, a row of the streaming vector length at a time; it is on from the first to the last. */
void za_on(void);
void za_off(void);
void load_za(const unsigned char *from, unsigned long rows);
void store_za(unsigned char *to, unsigned long rows);
unsigned long streaming_length(void);
__asm__(".arch armv9-a+sme\n"
        "za_on: smstart za\n"
        "ret\n"
        "za_off: smstop za\n"
        "ret\n"
        "load_za: mov w12, #0\n"
        "rdsvl x3, #1\n"
        "1: ldr za[w12, #0], [x0]\n"
        "add x0, x0, x3\n"
        "add w12, w12, #1\n"
        "cmp x12, x1\n"
        "b.lo 1b\n"
        "ret\n"
        "store_za: mov w12, #0\n"
        "rdsvl x3, #1\n"
        "1: str za[w12, #0], [x0]\n"
        "add x0, x0, x3\n"
        "add w12, w12, #1\n"
        "cmp x12, x1\n"
        "b.lo 1b\n"
        "ret\n"
        "streaming_length: rdsvl x0, #1\n"
        "ret\n"
        ".arch armv8-a\n");

static void same(const char *what, const unsigned char *want, const unsigned char *got, unsigned long len)
{
    for (unsigned long i = 0; i < len; i++)
        if (want[i] != got[i]) {
            printf("wrong %s byte %lu of %lu: %02x for %02x\n", what, i, len, got[i], want[i]);
            fflush(stdout);
            _exit(CORRUPT);
        }
}

int main(int argc, char **argv)
{
    unsigned long wanted = argc > 1 ? strtoul(argv[1], NULL, 0) : 16, size = 0;
    int with_za = argc > 2 && !strcmp(argv[2], "za");
    if (!(getauxval(AT_HWCAP) & 1UL << 22)) {
        puts("no SVE\nready");
        return 0;
    }
    if (with_za && !(getauxval(AT_HWCAP2) & 1UL << 23)) {
        puts("no SME\nready");
        return 0;
    }
    /* PR_SVE_SET_VL; the answer is the longest there is up to that. */
    int vl = prctl(50, wanted);
    if (vl < 0)
        return BROKEN;
    vl &= 0xffff;
    for (unsigned i = 0; i < sizeof vectors; i++)
        vectors[i] = (unsigned char)(i * 37 + 11 + (i >> 8));
    for (unsigned i = 0; i < sizeof predicates; i++)
        predicates[i] = (unsigned char)(i * 29 + 3);
    /* The first-fault register takes only a run of ones, then zeros. */
    unsigned char *first_fault = predicates + PREDICATES * (vl / 8);
    memset(first_fault, 0, LONGEST / 8);
    memset(first_fault, 0xff, (unsigned)vl / 16);
    if (with_za) {
        za_on();
        size = streaming_length();
        for (unsigned i = 0; i < sizeof za; i++)
            za[i] = (unsigned char)(i * 41 + 5 + (i >> 9));
        load_za(za, size);
    }
    check_or_die();
    printf("pid %d\nvl %d\nza %lu\nready\n", getpid(), vl, size);
    fflush(stdout);
    struct pollfd in = {.fd = 0, .events = POLLIN};
    unsigned long rounds = 0;
    do {
        hold_all(big_middle, 300000);
        same("vector", vectors, seen_vectors, VECTORS * (unsigned)vl);
        same("predicate", predicates, seen_predicates, (PREDICATES + 1) * (unsigned)vl / 8);
        if (with_za) {
            store_za(seen_za, size);
            same("ZA", za, seen_za, size * size);
        }
        rounds++;
    } while (!poll(&in, 1, 0));
    if (with_za)
        za_off();
    check_or_die();
    printf("rounds %lu\n", rounds);
    return 7;
}
