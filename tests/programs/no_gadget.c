/* A program with a big text, without libc: no `syscall; ret` (`svc; ret`) and no rt_sigreturn stub of its own. */
#include "bigtext.h"

__asm__(".text\n.globl _start\n_start:\n"
#if defined(__x86_64__)
        "call checked\n"
        "movl %eax, %edi\n"
        "movl $231, %eax\n"
        "syscall\n"
        "ud2\n"
#elif defined(__aarch64__)
        "bl checked\n"
        "mov x8, #94\n"
        "svc #0\n"
        "brk #0\n"
#endif
);

int checked(void)
{
    return big_check() ? 7 : 99;
}
