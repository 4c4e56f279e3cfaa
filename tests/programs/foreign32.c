/* A 32-bit program without libc, with huge pages' worth of text. */
#include "bigtext.h"

static int call3(int nr, int a, const void *b, int c)
{
    int ret;
    __asm__ volatile("int $0x80" : "=a"(ret) : "a"(nr), "b"(a), "c"(b), "d"(c) : "memory");
    return ret;
}

void _start(void)
{
    int whole = big_check();
    call3(4, 1, "32-bit ran\n", 11);
    call3(1, whole ? 32 : 99, (const void *)0, 0);
    for (;;)
        ;
}
