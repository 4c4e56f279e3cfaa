/* Takes what a stopped thread of this process is handed for itself: it puts a socket of its own, which leads to another
 * process, in the place of each new one.
 *
 *   redirects SOCKET before|after|never
 *
 * SOCKET is the path of a datagram socket of another process. A second thread looks for new sockets all the time. It connects
 * its own one to SOCKET either before it puts it there, or afterwards, when somebody may have looked at it already, or does nothing.
 * Exits with 7. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include "../situation.h"

enum { MOST = 64 };

static struct sockaddr_un other = { .sun_family = AF_UNIX };
static int before;

/* The next socket that is put there, its other end, and its inode. */
static int own, peer;
static ino_t own_inode;

static int out_of_the_way(int number)
{
    int other = fcntl(number, F_DUPFD_CLOEXEC, MOST);
    close(number);
    return other;
}

static void prepare(void)
{
    struct stat stat;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair))
        _exit(BROKEN);
    own = out_of_the_way(pair[0]);
    peer = out_of_the_way(pair[1]);
    if (before && connect(own, (void *)&other, sizeof other))
        _exit(BROKEN);
    if (fstat(own, &stat))
        _exit(BROKEN);
    own_inode = stat.st_ino;
}

static void *redirects(void *arg)
{
    /* A pair gets the two lowest numbers. The second one is the end that the other side takes. */
    int number = dup(0) + 1;
    ino_t put = 0;
    struct stat stat;
    close(number - 1);
    prepare();
    for (;;) {
        if (fstat(number, &stat) || !S_ISSOCK(stat.st_mode) || stat.st_ino == put)
            continue;
        dup3(own, number, O_CLOEXEC);
        put = own_inode;
        for (int n = 0; !before && n < 1000; n++)
            connect(own, (void *)&other, sizeof other);
        close(own);
        close(peer);
        prepare();
    }
    return arg;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    if (argc != 3 || strlen(argv[1]) >= sizeof other.sun_path)
        return BROKEN;
    strcpy(other.sun_path, argv[1]);
    before = !strcmp(argv[2], "before");
    check_or_die();
    if (strcmp(argv[2], "never") && pthread_create(&thread, NULL, redirects, NULL))
        return BROKEN;
    ready_and_wait();
    check_or_die();
    _exit(7);
}
