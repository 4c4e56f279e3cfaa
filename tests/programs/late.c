/* late MODE LIBRARY: loads the library when told to, by a line on stdin (MODE wait), after half a second (MODE later), the same
   while a thread joins and parts mappings all the time (MODE churn), or after it has worked for 0.2 seconds (MODE busy), and has it
   check its text before and after it is told to end. Compiled with LIBRARY, it is the library. */
#define BIG_EXPORT
#ifdef LIBRARY
#include "bigtext.h"

int check(void)
{
    return big_check();
}
#else
#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>
#include "situation.h"

enum { PAGE = 65536, PAIRS = 400 };

/* Who reads /proc/PID/maps piece by piece may find half of a pair, and then the whole. */
static void *churn(void *unused)
{
    char *at = mmap(NULL, 3 * PAGE * PAIRS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        _exit(BROKEN);
    for (long pair = 0; pair < PAIRS; pair++)
        mprotect(at + 3 * PAGE * pair, PAGE, PROT_NONE);
    for (int parted = 1;; parted = !parted)
        for (long pair = 0; pair < PAIRS; pair++)
            mprotect(at + 3 * PAGE * pair + 2 * PAGE, PAGE, parted ? PROT_READ : PROT_READ | PROT_WRITE);
    return unused;
}

int main(int argc, char **argv)
{
    printf("pid %d\n", getpid());
    if (argc < 3)
        return BROKEN;
    if (!strcmp(argv[1], "wait"))
        ready_and_wait();
    else if (!strcmp(argv[1], "busy"))
        while (clock() < CLOCKS_PER_SEC / 5)
            ;
    else {
        pthread_t thread;
        if (!strcmp(argv[1], "churn") && pthread_create(&thread, NULL, churn, NULL))
            return BROKEN;
        usleep(500000);
    }
    void *library = dlopen(argv[2], RTLD_NOW);
    int (*check)(void) = library ? (int (*)(void))dlsym(library, "check") : NULL;
    if (!check) {
        fprintf(stderr, "%s\n", dlerror());
        return BROKEN;
    }
    if (!check())
        return CORRUPT;
    puts("loaded");
    ready_and_wait();
    return check() ? 7 : CORRUPT;
}
#endif
