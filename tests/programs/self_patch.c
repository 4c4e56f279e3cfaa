/* Patches its own text, as tracers, JITs and live patches do: makes a page in the middle writable, changes one function, runs it,
   puts it back. The text must be its own: nobody else may see the change. */
#include <sys/mman.h>
#include "situation.h"

int main(void)
{
    unsigned char *fn = (unsigned char *)(unsigned long)big_middle;
    long page = sysconf(_SC_PAGESIZE);
    unsigned char *at = (unsigned char *)((unsigned long)fn & -page);
    static const unsigned char patch[] = {0xb8, 0x2a, 0, 0, 0, 0xc3}; /* mov $42, %eax; ret */
    unsigned char saved[sizeof patch];
    check_or_die();
    printf("huge %lu\n", huge_text());
    if (mprotect(at, page, PROT_READ | PROT_WRITE | PROT_EXEC))
        return 1;
    memcpy(saved, fn, sizeof patch);
    memcpy(fn, patch, sizeof patch);
    if (big_middle(7) != 42)
        return 2;
    puts("patched");
    ready_and_wait();
    memcpy(fn, saved, sizeof patch);
    if (mprotect(at, page, PROT_READ | PROT_EXEC))
        return 3;
    check_or_die();
    return 0;
}
