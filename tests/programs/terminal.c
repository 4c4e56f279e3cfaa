/* On a terminal: says what it sees of it, then names each SIGINT, SIGQUIT, SIGWINCH and SIGCONT as it comes. "quit" on the terminal
   ends it with 42. */
#include <signal.h>
#include <sys/ioctl.h>
#include "situation.h"

static void name(int sig)
{
    const char *s = sig == SIGINT ? "got INT\n" : sig == SIGQUIT ? "got QUIT\n" : sig == SIGWINCH ? "got WINCH\n" : "got CONT\n";
    if (write(1, s, strlen(s)) < 0)
        _exit(BROKEN);
}

int main(void)
{
    static const int named[] = {SIGINT, SIGQUIT, SIGWINCH, SIGCONT};
    struct sigaction act = {.sa_handler = name, .sa_flags = SA_RESTART};
    struct winsize size = {0};
    char line[64];
    check_or_die();
    for (int i = 0; i < 4; i++)
        sigaction(named[i], &act, NULL);
    ioctl(0, TIOCGWINSZ, &size);
    printf("tty %d%d%d foreground %d rows %d cols %d huge %lu\nready\n", isatty(0), isatty(1), isatty(2), tcgetpgrp(0) == getpgrp(),
           size.ws_row, size.ws_col, huge_text());
    fflush(stdout);
    for (;;) {
        ssize_t n = read(0, line, sizeof line);
        if (n >= 4 && !memcmp(line, "quit", 4))
            break;
        if (n <= 0 && errno != EINTR)
            return BROKEN;
    }
    check_or_die();
    return 42;
}
