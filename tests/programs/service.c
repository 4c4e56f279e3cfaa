/* A service in one of the ways of systemd.service(5), as its first argument says. It runs its whole text, and then waits until it is
   ended.
   run: says nothing. notify: says that it is ready, and feeds the watchdog. forks: its parent ends once it runs; the second argument is
   the file for its PID. once: ends. */
#include <stddef.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include "situation.h"

static void say(const char *what)
{
    const char *to = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (!to || s < 0 || strlen(to) >= sizeof address.sun_path)
        _exit(BROKEN);
    memcpy(address.sun_path, to, strlen(to));
    if (address.sun_path[0] == '@')
        address.sun_path[0] = 0;
    socklen_t size = offsetof(struct sockaddr_un, sun_path) + strlen(to);
    if (sendto(s, what, strlen(what), 0, (struct sockaddr *)&address, size) < 0)
        _exit(BROKEN);
    close(s);
}

static void forks(const char *file)
{
    int ends[2];
    char c;
    if (pipe(ends))
        _exit(BROKEN);
    pid_t child = fork();
    if (child < 0)
        _exit(BROKEN);
    if (child) {
        close(ends[1]);
        /* The child's end of the pipe closes too if the child dies. */
        _exit(read(ends[0], &c, 1) == 1 ? 0 : BROKEN);
    }
    setsid();
    if (file) {
        FILE *f = fopen(file, "we");
        if (!f || fprintf(f, "%d\n", getpid()) < 0 || fclose(f))
            _exit(BROKEN);
    }
    if (write(ends[1], "x", 1) != 1)
        _exit(BROKEN);
    close(ends[0]);
    close(ends[1]);
}

int main(int argc, char **argv)
{
    const char *way = argc > 1 ? argv[1] : "";
    /* Links the signal return, as in hold.c. */
    signal(SIGUSR2, SIG_DFL);
    check_or_die();
    if (!strcmp(way, "once"))
        return 0;
    if (!strcmp(way, "forks"))
        forks(argc > 2 ? argv[2] : NULL);
    int notifies = !strcmp(way, "notify");
    if (notifies)
        say("READY=1");
    int feeds = notifies && getenv("WATCHDOG_USEC");
    for (;;) {
        check_or_die();
        usleep(200000);
        if (feeds)
            say("WATCHDOG=1");
    }
}
