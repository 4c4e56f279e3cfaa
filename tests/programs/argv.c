/* Writes its arguments, two NULs, and its environment, each string with its NUL, byte for byte. */
#include "situation.h"

extern char **environ;

int main(int argc, char **argv)
{
    check_or_die();
    for (int i = 0; i < argc; i++)
        fwrite(argv[i], 1, strlen(argv[i]) + 1, stdout);
    fwrite("\0", 1, 2, stdout);
    for (char **e = environ; *e; e++)
        fwrite(*e, 1, strlen(*e) + 1, stdout);
    return fflush(stdout) ? BROKEN : 0;
}
