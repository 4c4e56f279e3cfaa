/* exchange FILE [PIECES]: two threads exchange bytes, there through a pipe and back through a stream socket, in pieces of any size. Each byte
   that comes back is compared with the byte that was sent. FILE has the number of bytes that have come back. After PIECES, or on SIGTERM, no
   more are sent: it ends with 0 if all have come back and the text was right to the end. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <time.h>
#include "situation.h"

enum { LARGEST = 12288 };

static volatile sig_atomic_t is_over;
static int there[2], back[2];

static void end(int signal)
{
    (void)signal;
    is_over = 1;
}

/* SIGTERM restarts calls. EINTR comes only if TiExec is killed while it holds the thread, and the call has done nothing then. */
static void put(int to, const unsigned char *bytes, size_t len)
{
    while (len > 0) {
        ssize_t n = write(to, bytes, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            _exit(BROKEN);
        bytes += n;
        len -= (size_t)n;
    }
}

static size_t get(int from, unsigned char *bytes, size_t most)
{
    ssize_t n;
    do
        n = read(from, bytes, most);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        _exit(BROKEN);
    return (size_t)n;
}

static unsigned next(unsigned *state)
{
    return *state = *state * 1664525u + 1013904223u;
}

static void *echo(void *unused)
{
    static unsigned char bytes[LARGEST];
    unsigned state = 7;
    size_t n;
    while ((n = get(there[0], bytes, 1 + (next(&state) >> 16) % LARGEST)) > 0)
        put(back[1], bytes, n);
    close(back[1]);
    return unused;
}

int main(int argc, char **argv)
{
    static unsigned char sent[LARGEST], got[LARGEST];
    unsigned long bytes = 0, pieces = argc > 2 ? strtoul(argv[2], 0, 10) : 0;
    unsigned state = 1, value = 3;
    const struct timespec pause = {.tv_nsec = 1000 * 1000};
    struct sigaction action = {.sa_handler = end, .sa_flags = SA_RESTART};
    int file = argc > 1 ? open(argv[1], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644) : -1;
    pthread_t other;
    check_or_die();
    if (file < 0 || pipe(there) || socketpair(AF_UNIX, SOCK_STREAM, 0, back) || sigaction(SIGTERM, &action, NULL) ||
        pthread_create(&other, NULL, echo, NULL))
        return BROKEN;
    for (unsigned long piece = 0; !is_over && (!pieces || piece < pieces); piece++) {
        size_t len = 1 + (next(&state) >> 16) % LARGEST;
        for (size_t i = 0; i < len; i++)
            sent[i] = (unsigned char)(next(&value) >> 24);
        put(there[1], sent, len);
        for (size_t n, all = 0; all < len; all += n)
            if ((n = get(back[0], got + all, len - all)) == 0)
                return BROKEN;
        if (memcmp(sent, got, len))
            return CORRUPT;
        bytes += len;
        if (piece % 128 == 0) {
            char text[32];
            snprintf(text, sizeof text, "%020lu\n", bytes);
            check_or_die();
            if (pwrite(file, text, 21, 0) != 21)
                return BROKEN;
        }
        nanosleep(&pause, NULL);
    }
    close(there[1]);
    /* Nothing comes that was not sent. */
    if (get(back[0], got, 1) || pthread_join(other, NULL))
        return BROKEN;
    check_or_die();
    return 0;
}
