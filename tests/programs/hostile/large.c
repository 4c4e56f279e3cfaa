/* Has what /proc says of it, or what it maps, be very large. The first argument says what:

     names DIRECTORY   maps a file whose path is as long as paths can be, as often as it may
     maps              maps anonymous memory as often as it may
     texts             maps two megabytes of its own program as text as often as it may, never two side by side
     text FILE TIB     maps that much of a file as text; the file has nothing in it

   Then it waits to be looked at, and ends with 7. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include "../situation.h"

enum { MAPPINGS = 65000 };

static int long_path(const char *directory)
{
    char name[251];
    memset(name, 'd', 250);
    name[250] = 0;
    if (chdir(directory))
        return -1;
    for (int i = 0; i < 15; i++)
        if ((mkdir(name, 0755) && errno != EEXIST) || chdir(name))
            return -1;
    return open("file", O_RDWR | O_CREAT, 0755);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    check_or_die();
    if (!strcmp(mode, "text") && argc > 3) {
        int fd = open(argv[2], O_RDWR | O_CREAT, 0755);
        unsigned long length = strtoul(argv[3], 0, 10) << 40;
        while (ftruncate(fd, length) && length > 1UL << 40)
            length /= 2;
        while (mmap(NULL, length, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED)
            length /= 2;
        printf("length %lu\n", length);
    } else if (!strcmp(mode, "texts")) {
        int fd = open("/proc/self/exe", O_RDONLY), count = 0;
        char *at = (char *)(1UL << 40);
        while (count < MAPPINGS && mmap(at, 2 << 20, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd, 0) == at)
            at += 4 << 20, count++;
        printf("mappings %d\n", count);
    } else {
        int fd = strcmp(mode, "names") ? -1 : long_path(argv[2]);
        int flags = MAP_PRIVATE | (fd < 0 ? MAP_ANONYMOUS : 0);
        int count = 0;
        if (fd >= 0 && ftruncate(fd, 4096))
            return BROKEN;
        while (count < MAPPINGS && mmap(NULL, 4096, PROT_READ | (count & 1 ? PROT_EXEC : 0), flags, fd, 0) != MAP_FAILED)
            count++;
        printf("mappings %d\n", count);
    }
    printf("pid %d\n", getpid());
    ready_and_wait();
    check_or_die();
    return 7;
}
