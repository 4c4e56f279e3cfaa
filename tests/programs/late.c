/* late MODE LIBRARY: loads the library when told to, by a line on stdin (MODE wait), after half a second (MODE later), or
   after it has worked for 0.2 seconds (MODE busy), and has it check its text before
   and after it is told to end. Compiled with LIBRARY, it is the library. */
#define BIG_EXPORT
#ifdef LIBRARY
#include "bigtext.h"

int check(void)
{
    return big_check();
}
#else
#include <dlfcn.h>
#include <time.h>
#include "situation.h"

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
    else
        usleep(500000);
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
