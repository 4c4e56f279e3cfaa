/* Maps, like text, a sparse file of 3 GiB on a tmpfs: reading it through a mapping would take 3 GiB of memory. Exits with 7. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include "../situation.h"

int main(int argc, char **argv)
{
    const unsigned long len = 3UL << 30;
    char *at = (char *)0x200000000000;
    int fd = argc > 1 ? open(argv[1], O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0755) : -1;
    if (fd < 0 || ftruncate(fd, len + 4096))
        return BROKEN;
    unlink(argv[1]);
    if (mmap(at, len + 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd, 0) != at)
        return BROKEN;
    ready_and_wait();
    check_or_die();
    return 7;
}
