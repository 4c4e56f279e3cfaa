/* registers [keys|tiles|key_stack]: for x86-64. Holds a pattern in every vector and mask register that the processor has, in the x87 registers
   and in the control registers of both, and spins until the test's input ends; ends with 7 if all is still there, or with "wrong" and what
   was lost. "keys": also in the register of the protection keys' rights. "key_stack": the stack has such a key, which is not among those
   that a thread begins with. "tiles": also in the tiles. Says "no" if the processor or the kernel has no such thing. */
#include <asm/prctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "situation.h"

#ifndef ARCH_REQ_XCOMP_PERM
#define ARCH_REQ_XCOMP_PERM 0x1023
#endif
enum { PIECE = 64, VECTORS = 32, MASKS = 8 };

int wide, halves;
unsigned char vectors[VECTORS * PIECE], seen_vectors[sizeof vectors];
unsigned long masks[MASKS], seen_masks[MASKS];
unsigned char stacked[8][10], seen_stacked[8][10];
unsigned control, seen_control;
unsigned short word, seen_word;

/* Loads all, runs until *over, stores all. */
void hold(volatile int *over);
__asm__(".globl hold\n"
        "hold:\n"
        "stmxcsr -4(%rsp); fnstcw -8(%rsp)\n"
        "ldmxcsr control(%rip); fninit; fldcw word(%rip)\n"
        ".irp n, 7, 6, 5, 4, 3, 2, 1, 0\n"
        "fldt stacked + 10 * \\n(%rip)\n"
        ".endr\n"
        "cmpl $0, wide(%rip); je 1f\n"
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31\n"
        "vmovdqu64 vectors + 64 * \\n(%rip), %zmm\\n\n"
        ".endr\n"
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7\n"
        "kmovq masks + 8 * \\n(%rip), %k\\n\n"
        ".endr\n"
        "jmp 3f\n"
        "1: cmpl $0, halves(%rip); je 2f\n"
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15\n"
        "vmovdqu vectors + 64 * \\n(%rip), %ymm\\n\n"
        ".endr\n"
        "jmp 3f\n"
        "2:\n"
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15\n"
        "movdqu vectors + 64 * \\n(%rip), %xmm\\n\n"
        ".endr\n"
        "3: cmpl $0, (%rdi); je 3b\n"
        "stmxcsr seen_control(%rip); fnstcw seen_word(%rip)\n"
        "cmpl $0, wide(%rip); je 1f\n"
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31\n"
        "vmovdqu64 %zmm\\n, seen_vectors + 64 * \\n(%rip)\n"
        ".endr\n"
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7\n"
        "kmovq %k\\n, seen_masks + 8 * \\n(%rip)\n"
        ".endr\n"
        "vzeroupper; jmp 3f\n"
        "1: cmpl $0, halves(%rip); je 2f\n"
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15\n"
        "vmovdqu %ymm\\n, seen_vectors + 64 * \\n(%rip)\n"
        ".endr\n"
        "vzeroupper; jmp 3f\n"
        "2:\n"
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15\n"
        "movdqu %xmm\\n, seen_vectors + 64 * \\n(%rip)\n"
        ".endr\n"
        "3:\n"
        ".irp n, 0, 1, 2, 3, 4, 5, 6, 7\n"
        "fstpt seen_stacked + 10 * \\n(%rip)\n"
        ".endr\n"
        "fninit; fldcw -8(%rsp); ldmxcsr -4(%rsp)\n"
        "ret\n");

static unsigned rights(void)
{
    unsigned value, none;
    __asm__ volatile("rdpkru" : "=a"(value), "=d"(none) : "c"(0));
    return value;
}

static void set_rights(unsigned value) { __asm__ volatile("wrpkru" : : "a"(value), "c"(0), "d"(0) : "memory"); }

static int no(const char *what)
{
    printf("no %s\nready\n", what);
    return 7;
}

static void wrong(const char *what)
{
    printf("wrong %s\n", what);
    fflush(stdout);
}

/* All of it: a part would be a mapping of another name. */
static int protect_stack(int key)
{
    char line[4352];
    unsigned long start = 0, end = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    if (!maps)
        return 0;
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "[stack]") && sscanf(line, "%lx-%lx", &start, &end) == 2)
            break;
    fclose(maps);
    return end && !syscall(SYS_pkey_mprotect, start, end - start, PROT_READ | PROT_WRITE, key);
}

int main(int argc, char **argv)
{
    const char *more = argc > 1 ? argv[1] : "";
    int keys = !strcmp(more, "keys"), key_stack = !strcmp(more, "key_stack"), tiles = !strcmp(more, "tiles");
    check_or_die();
    __builtin_cpu_init();
    wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
    halves = __builtin_cpu_supports("avx");
    for (unsigned i = 0; i < sizeof vectors; i++)
        vectors[i] = (unsigned char)(i * 37 + 11);
    for (unsigned i = 0; i < MASKS; i++)
        masks[i] = 0x1122334455667788ul * (i + 1);
    for (unsigned i = 0; i < 8; i++) {
        long double value = 1.0L / (i + 3);
        memcpy(stacked[i], &value, 10);
    }
    /* Rounding up and down, and what each masks. */
    control = 0x1f80 | 1 << 14;
    word = 0x37f | 1 << 10;

    volatile int *over = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (over == MAP_FAILED)
        return BROKEN;
    unsigned before = 0;
    if (keys || key_stack) {
        int first = syscall(SYS_pkey_alloc, 0, 0), second = syscall(SYS_pkey_alloc, 0, 0);
        if (first < 0 || second < 0)
            return no("protection keys");
        /* Nothing may be done with the second key's pages; of others, none is known to a thread that begins. */
        before = rights() | 3u << (2 * second);
        before &= ~(3u << (2 * first));
        if (key_stack && !protect_stack(first))
            return no("keys for a stack");
    }
    if (tiles && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, 18))
        return no("tiles");
    pid_t child = fork();
    if (child < 0)
        return BROKEN;
    if (!child) {
        char c;
        while (read(0, &c, 1) > 0)
            ;
        *over = 1;
        _exit(3);
    }
    printf("wide %d\npid %d\nready\n", wide, getpid());
    fflush(stdout);

    unsigned long shape[8] = {1}, tile[128], seen_tile[128] = {0};
    if (tiles) {
        /* Palette 1; tile 0: 16 rows of 64 bytes. */
        ((unsigned char *)shape)[48] = 16;
        ((unsigned short *)shape)[8] = 64;
        for (unsigned i = 0; i < 128; i++)
            tile[i] = masks[1] + i;
        __asm__ volatile(".byte 0xc4, 0xe2, 0x78, 0x49, 0x00" : : "a"(shape) : "memory"); /* ldtilecfg (%rax) */
        /* tileloadd (%rax,%rcx,1), %tmm0 */
        __asm__ volatile(".byte 0xc4, 0xe2, 0x7b, 0x4b, 0x04, 0x08" : : "a"(tile), "c"(64l) : "memory");
    }
    if (before)
        set_rights(before);
    hold(over);
    unsigned after = before ? rights() : 0;
    if (tiles) {
        /* tilestored %tmm0, (%rax,%rcx,1); tilerelease */
        __asm__ volatile(".byte 0xc4, 0xe2, 0x7a, 0x4b, 0x04, 0x08" : : "a"(seen_tile), "c"(64l) : "memory");
        __asm__ volatile(".byte 0xc4, 0xe2, 0x78, 0x49, 0xc0" : : : "memory");
    }
    if (after != before)
        wrong("rights");
    if (tiles && memcmp(tile, seen_tile, sizeof tile))
        wrong("tile");
    int pieces = wide ? 32 : 16, size = wide ? 64 : halves ? 32 : 16;
    for (int i = 0; i < pieces; i++)
        if (memcmp(vectors + PIECE * i, seen_vectors + PIECE * i, size))
            wrong("vector");
    if (wide && memcmp(masks, seen_masks, sizeof masks))
        wrong("mask");
    if (memcmp(stacked, seen_stacked, sizeof stacked))
        wrong("x87 register");
    if ((control ^ seen_control) & ~0x3fu || word != seen_word)
        wrong("control register");
    check_or_die();
    return 7;
}
