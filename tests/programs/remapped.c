/* remapped: moves a part of its own text elsewhere with mremap(MREMAP_DONTUNMAP), as V8 does with its builtins, when the test says
   "remap near" or "remap far": beside the other mappings, or far from all of them. Answers "remap ok" or "remap ERRNO". On "patch" it changes
   a byte in the new place. On "check" it compares both places, and answers "check ok". Ends with 7 if its text is right. */
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/mman.h>
#include "situation.h"

enum { LEN = 1 << 20 };
/* Writable, so that it lies elsewhere. */
static unsigned char before[LEN], moved[LEN];

int main(void)
{
    char line[64];
    /* The middle of the second huge page: one mapping, whatever the pages of the text are. */
    unsigned char *from = (unsigned char *)((((uintptr_t)big_begin + (2 << 20)) & -(uintptr_t)(2 << 20)) + (1 << 19));
    unsigned char *to = NULL;
    memcpy(before, from, LEN);
    memcpy(moved, from, LEN);
    check_or_die();
    printf("pid %d\nready\n", getpid());
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (!strncmp(line, "remap", 5)) {
            int flags = MREMAP_MAYMOVE | MREMAP_DONTUNMAP;
            void *far = (void *)0x200000000000;
            void *place = strstr(line, "far") ? mremap(from, LEN, LEN, flags | MREMAP_FIXED, far) : mremap(from, LEN, LEN, flags, NULL);
            if (place == MAP_FAILED) {
                printf("remap %d\n", errno);
            } else {
                to = place;
                puts("remap ok");
            }
        } else if (!strncmp(line, "check", 5)) {
            int right = !memcmp(from, before, LEN) && (!to || !memcmp(to, moved, LEN)) && big_check();
            puts(right ? "check ok" : "check failed");
        } else if (!strncmp(line, "patch", 5)) {
            /* A byte of a filler, which nothing executes there. */
            if (mprotect(to, LEN, PROT_READ | PROT_WRITE | PROT_EXEC))
                return BROKEN;
            to[100] ^= 0xff;
            moved[100] ^= 0xff;
            if (mprotect(to, LEN, PROT_READ | PROT_EXEC))
                return BROKEN;
            puts("patch ok");
        } else {
            break;
        }
        fflush(stdout);
    }
    check_or_die();
    return 7;
}
