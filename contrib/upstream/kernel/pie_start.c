/* Counts the starts of a position-independent program in which the kernel could map its text by huge pages.

   A huge page of the page cache can only be mapped where the address and the offset in the file have the same place in a huge page. The
   program starts itself 64 times, at random addresses:

   cc -fPIE -pie -o pie_start pie_start.c && ./pie_start
   The exit status is 1 if a start cannot have huge pages, and 0 if all can. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HUGE = 2 << 20, STARTS = 64 };

/* Two whole huge pages of text, wherever they begin. */
__asm__(".text\nbig: .skip 3 * 2097152, 0x90\nret\n");

int main(int count, char **words)
{
    extern char __executable_start[];
    int good = 0, status;
    /* The address of the file's first byte. Each segment has the same distance to its offset in the file. */
    if (count == 2)
        return (uintptr_t)__executable_start % HUGE != 0;
    for (int start = 0; start < STARTS; start++) {
        pid_t child = fork();
        if (!child) {
            execl("/proc/self/exe", words[0], "once", NULL);
            return 2;
        }
        waitpid(child, &status, 0);
        if (!WIFEXITED(status) || WEXITSTATUS(status) == 2)
            return 2;
        good += !WEXITSTATUS(status);
    }
    printf("%d of %d starts can have text on huge pages\n", good, STARTS);
    return good < STARTS;
}
