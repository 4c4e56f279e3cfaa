// Becomes the program that its arguments name: the least that any program costs that stands before another one.

#include <unistd.h>

int main(int argc, char **argv)
{
    if (argc > 1)
        execv(argv[1], argv + 1);
    return 127;
}
