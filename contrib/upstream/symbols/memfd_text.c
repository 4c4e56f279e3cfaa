/* Executes its text from a memfd, as programs do that put their own text on huge pages, and asks the kernel for the build ID there.

   The memfd has all bytes of the program's file, so it has the ELF header, the build ID and the symbols. Only its path cannot be opened.

   cc -g -Wl,--build-id -o memfd_text memfd_text.c && ./memfd_text
   With `wait` it waits in a function, for a debugger (eu-stack -p PID). With `spin` it uses the processor, for a profiler that begins then
   (perf record -p PID). `wait plain` and `spin plain` leave the text where it is, for comparison. With glog, it also has `crash`:

   c++ -DWITH_GLOG -g -Wl,--build-id -x c++ memfd_text.c -o memfd_text -lglog

   The exit status is 1 if the kernel tells the build ID of the memfd, 0 if it does not, and 2 if something fails. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef WITH_GLOG
#include <glog/logging.h>
#endif

/* struct procmap_query of linux/fs.h, from Linux 6.11 on. */
struct query {
    uint64_t size, flags, address, start, end, vma_flags, page_size, offset, inode;
    uint32_t major, minor, name_size, build_id_size;
    uint64_t name, build_id;
};
#define QUERY _IOWR('f', 17, struct query)
enum { OF_ADDRESS = 0 };

static int maps;
static volatile int going = 1;

/* Asks for the mapping at the address. Prints its path and its build ID. Returns the size of the build ID. */
static unsigned show(const char *what, const void *address, struct query *found)
{
    char path[4096] = "";
    unsigned char id[64];
    memset(found, 0, sizeof *found);
    found->size = sizeof *found;
    found->flags = OF_ADDRESS;
    found->address = (uintptr_t)address;
    found->name = (uintptr_t)path;
    found->name_size = sizeof path;
    found->build_id = (uintptr_t)id;
    found->build_id_size = sizeof id;
    if (ioctl(maps, QUERY, found)) {
        perror("PROCMAP_QUERY");
        exit(2);
    }
    char *name = strrchr(path, '/');
    printf("%s: %s, build ID ", what, name ? name + 1 : path);
    for (unsigned at = 0; at < found->build_id_size; at++)
        printf("%02x", id[at]);
    puts(found->build_id_size ? "" : "unknown");
    return found->build_id_size;
}

static void to_memfd(const struct query *text)
{
    static char part[1 << 16];
    int file = open("/proc/self/exe", O_RDONLY), copy = memfd_create("text", MFD_CLOEXEC);
    ssize_t count;
    while ((count = read(file, part, sizeof part)) > 0)
        if (write(copy, part, count) != count)
            count = -1;
    void *at = (void *)(uintptr_t)text->start;
    size_t size = text->end - text->start;
    if (file < 0 || copy < 0 || count < 0 ||
        mmap(at, size, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, copy, text->offset) == MAP_FAILED) {
        perror("memfd");
        exit(2);
    }
    close(file);
    close(copy);
}

__attribute__((noinline)) static void innermost(const char *what)
{
    if (!strcmp(what, "crash"))
        raise(SIGSEGV);
    if (!strcmp(what, "wait"))
        pause();
    while (going)
        ;
}

__attribute__((noinline)) static void outer(const char *what)
{
    innermost(what);
    going = 1;
}

int main(int count, char **words)
{
    struct query text, copy;
    maps = open("/proc/self/maps", O_RDONLY);
    show("program", (void *)main, &text);
    if (count < 3)
        to_memfd(&text);
    unsigned known = show("text", (void *)main, &copy);
    fflush(stdout);
#ifdef WITH_GLOG
    google::InstallFailureSignalHandler();
#endif
    if (count > 1)
        outer(words[1]);
    return known > 0;
}
