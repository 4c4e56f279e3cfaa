/* Big text that it neither runs nor reads. Ends with its first argument. */
#include "situation.h"

int main(int argc, char **argv)
{
    printf("text of %ld bytes\n", (long)(big_end - big_begin));
    return argc > 1 ? atoi(argv[1]) : 0;
}
