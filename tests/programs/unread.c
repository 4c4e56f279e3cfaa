/* Big text that it neither runs nor reads. Ends with its first argument; with a second one, it waits before. */
#include "situation.h"

int main(int argc, char **argv)
{
    printf("text of %ld bytes\n", (long)(big_end - big_begin));
    if (argc > 2)
        ready_and_wait();
    return argc > 1 ? atoi(argv[1]) : 0;
}
