/* segment32 HOW [thread]: for x86-64. A 64-bit program whose first thread jumps into a 32-bit code segment. HOW says what it does there
   until the test's input ends: "spin", or sleep in a system call of 32-bit programs ("waitpid", "pause"), or "int80": the same waitpid, made
   by 64-bit code. With "thread" another one runs 64-bit code meanwhile. Ends with 7 if all registers are then as they were. */
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include "situation.h"

/* The memory below 4 GiB: code, a stack, where to jump, and the words that both processes see. */
struct low {
    char code[4096];
    char stack[8192];
    struct { unsigned offset; unsigned short segment; } __attribute__((packed)) there, back;
    volatile int over, count;
};

/* By way of the stack segment: the data segments of 64-bit programs are none that 32-bit code can use. */
extern const char code32[], spin32[], call32[], back64[], code32_end[];
__asm__(".section .rodata\n"
        "code32:\n"
        ".code32\n"
        "spin32: incl %ss:(%esi); cmpl $0, %ss:(%edi); je spin32; ljmp *(%ebp)\n"
        "call32: int $0x80; ljmp *(%ebp)\n"
        ".code64\n"
        "back64: mov %r15, %rsp; jmp *%r14\n"
        "code32_end:\n"
        ".text\n");

/* Jumps through `there` and returns when that has come back; 0 if a register was lost. %eax goes in and comes out through `eax`. */
int go32(const void *there, const void *back, const void *stack, volatile int *over, volatile int *count, long *eax);
__asm__(".globl go32\n"
        "go32:\n"
        "push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15; push %r9; push %rbx\n"
        "mov %rsp, %r15; lea 1f(%rip), %r14\n"
        "mov %rdi, %r10; mov %rsi, %rbp; mov %rcx, %rdi; mov %r8, %rsi; mov (%r9), %rax\n"
        "movabs $0x445566778899aabb, %r13; movabs $0x33445566778899aa, %r12; movabs $0x5566778899aabbcc, %r8; mov $-1, %ebx\n"
        "mov %edx, %esp; xor %ecx, %ecx; xor %edx, %edx\n"
        "ljmp *(%r10)\n"
        "1: mov 8(%rsp), %r9; mov %rax, (%r9); xor %eax, %eax\n"
        "movabs $0x445566778899aabb, %rcx; cmp %rcx, %r13; jne 2f\n"
        "movabs $0x33445566778899aa, %rcx; cmp %rcx, %r12; jne 2f\n"
        "movabs $0x5566778899aabbcc, %rcx; cmp %rcx, %r8; jne 2f\n"
        "cmp $-1, %ebx; jne 2f\n"
        "mov $1, %eax\n"
        "2: add $16, %rsp; pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx; ret\n");

static void *spin(void *over)
{
    while (!*(volatile int *)over)
        check_or_die();
    return NULL;
}

static void nothing(int signal) { (void)signal; }

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    int spins = !strcmp(how, "spin"), pauses = !strcmp(how, "pause");
    struct low *low = mmap(NULL, sizeof *low, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    if (low == MAP_FAILED)
        return BROKEN;
    memcpy(low->code, code32, code32_end - code32);
    low->there.offset = (unsigned long)low->code + (spins ? spin32 : call32) - code32;
    low->there.segment = 0x23;
    low->back.offset = (unsigned long)low->code + back64 - code32;
    low->back.segment = 0x33;
    if (mprotect(low->code, sizeof low->code, PROT_READ | PROT_EXEC))
        return BROKEN;
    signal(SIGUSR1, nothing);
    check_or_die();
    pid_t child = fork();
    if (child < 0)
        return BROKEN;
    if (!child) {
        char c;
        while (read(0, &c, 1) > 0)
            ;
        low->over = 1;
        if (pauses)
            kill(getppid(), SIGUSR1);
        _exit(3);
    }
    pthread_t thread;
    int two = argc > 2;
    if (two && pthread_create(&thread, NULL, spin, (void *)&low->over))
        return BROKEN;
    printf("pid %d\nready\n", getpid());
    fflush(stdout);

    /* waitpid(-1, NULL, 0) or pause(), by their numbers for 32-bit programs. */
    long eax = pauses ? 29 : 7;
    int whole = 1;
    if (!strcmp(how, "int80"))
        __asm__ volatile("int $0x80" : "+a"(eax) : "b"(-1), "c"(0), "d"(0) : "memory");
    else
        whole = go32(&low->there, &low->back, low->stack + sizeof low->stack, &low->over, &low->count, &eax);
    if (!whole || !low->over)
        return CORRUPT;
    if (!spins && (int)eax != (pauses ? -EINTR : child))
        return CORRUPT;
    if (two)
        pthread_join(thread, NULL);
    check_or_die();
    return 7;
}
