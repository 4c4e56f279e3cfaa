/* A program with nothing to gain: its text fills no huge page. */
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    puts("small ran");
    return argc > 1 ? atoi(argv[1]) : 0;
}
