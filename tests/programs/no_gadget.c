/* A program with a big text, without libc: no `syscall; ret` and no rt_sigreturn stub of its own. */
#include "bigtext.h"

__asm__(".text\n.globl _start\n_start:\n"
        "call checked\n"
        "movl %eax, %edi\n"
        "movl $231, %eax\n"
        "syscall\n"
        "ud2\n");

int checked(void)
{
    return big_check() ? 7 : 99;
}
