/* Megabytes of text in real functions: block i of 256 bytes is a function h -> rol5(h * 16777619 ^ i), and the rest of the block is
   filled with a word that is a function of i. big_check() calls every block and reads every byte, so a huge page that was filled
   wrongly, filled twice or put in the wrong place cannot stay unseen. */
#ifndef BIGTEXT_H
#define BIGTEXT_H

#ifndef BIG_MIB
#define BIG_MIB 6
#endif
#define BIG_BLOCK 256
#define BIG_BLOCKS (BIG_MIB * 1024 * 1024 / BIG_BLOCK)
#define BIG_STR_(x) #x
#define BIG_STR(x) BIG_STR_(x)

#define BIG_MIX "xorl $big_i, %eax\nroll $5, %eax\n"
#if defined(__x86_64__)
#define BIG_LOAD "imull $16777619, %edi, %eax\n"
#elif defined(__i386__)
#define BIG_LOAD "imull $16777619, 4(%esp), %eax\n"
#elif defined(__aarch64__)
#define BIG_LOAD "mov w1, #0x193\nmovk w1, #0x100, lsl #16\nmul w0, w0, w1\n"
#undef BIG_MIX
#define BIG_MIX "movz w1, #(big_i & 0xffff)\nmovk w1, #(big_i >> 16), lsl #16\neor w0, w0, w1\nror w0, w0, #27\n"
#else
#error "bigtext.h has no functions for this architecture yet"
#endif

__asm__(".text\n"
        ".balign 4096, 0xcc\n"
        ".globl big_begin\n"
        "big_begin:\n"
        ".set big_i, 0\n"
        ".rept " BIG_STR(BIG_BLOCKS) "\n"
        ".if big_i == " BIG_STR(BIG_BLOCKS) " / 2\n"
        ".globl big_middle\n"
        ".type big_middle, @function\n"
        "big_middle:\n"
        ".endif\n"
        BIG_LOAD
        BIG_MIX
        "ret\n"
        ".balign 32, 0xcc\n"
        ".fill 56, 4, (big_i * 40503 + 12345) & 0x7fffffff\n"
        ".set big_i, big_i + 1\n"
        ".endr\n"
        ".globl big_end\n"
        "big_end:\n"
        ".balign 16, 0xcc\n");

extern const unsigned char big_begin[], big_end[];
unsigned big_middle(unsigned);

/* Returns 1 if every block computes and reads as it was assembled. */
static int big_check(void)
{
    unsigned h = 1, want = 1;
    for (unsigned i = 0; i < BIG_BLOCKS; i++) {
        const unsigned char *block = big_begin + (unsigned long)i * BIG_BLOCK;
        const volatile unsigned *word = (const volatile unsigned *)(block + 32);
        unsigned filler = (i * 40503u + 12345u) & 0x7fffffffu;
        h = ((unsigned (*)(unsigned))(unsigned long)block)(h);
        want = want * 16777619u ^ i;
        want = want << 5 | want >> 27;
        if (h != want)
            return 0;
        for (int k = 0; k < 56; k++)
            if (word[k] != filler)
                return 0;
    }
    return big_begin + (unsigned long)BIG_BLOCKS * BIG_BLOCK == big_end;
}

#endif
