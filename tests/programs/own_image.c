/* Looks after its own image: does what the lines it reads say, and answers each with one line.
   check: every byte of every segment that is not written to is the file's. grow: a heap of 1 GiB more. protect: a page of
   data made writable, written, and made read-only. trap ADDRESS: jumps there. neighbours FROM TO: from now on two threads map,
   write, check and unmap pages between these addresses, wherever nothing is; told: how often they could. crowd GIB: maps a page at each
   multiple of so many GiB, wherever nothing is. place ADDRESS KIND: maps a page there, of a kind that grows down or stays. lock FROM
   TO: locks these addresses in memory. claim FROM TO OFFSET: maps its file there, at that offset, without any permission. end: ends
   with 7. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include "situation.h"

static const char *const fails = "fails";

/* AddressSanitizer would find that objects are compared together with what lies between them. */
#if defined(__SANITIZE_ADDRESS__)
__attribute__((no_sanitize_address)) static int differ(const unsigned char *a, const unsigned char *b, unsigned long len)
{
    while (len && *a++ == *b++)
        len--;
    return len != 0;
}
#else
#define differ memcmp
#endif

static int compare(struct dl_phdr_info *info, size_t size, void *told)
{
    static unsigned char there[1 << 16];
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    unsigned long compared = 0;
    (void)size;
    if (file < 0)
        return -1;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *load = &info->dlpi_phdr[i];
        if (load->p_type != PT_LOAD || load->p_flags & PF_W)
            continue;
        const unsigned char *here = (const unsigned char *)(info->dlpi_addr + load->p_vaddr);
        for (unsigned long at = 0; at < load->p_filesz;) {
            unsigned long len = load->p_filesz - at;
            if (len > sizeof there)
                len = sizeof there;
            if (pread(file, there, len, load->p_offset + at) != (ssize_t)len || differ(here + at, there, len))
                return -1;
            at += len;
        }
        compared += load->p_filesz;
    }
    close(file);
    *(unsigned long *)told = compared;
    return 1; /* the main program comes first */
}

static void check(void)
{
    unsigned long compared = 0;
    check_or_die();
    if (dl_iterate_phdr(compare, &compared) == 1)
        printf("check %lu\n", compared);
    else
        printf("check %s\n", fails);
}

static void grow(void)
{
    const long step = 16L << 20, steps = 64;
    for (long i = 0; i < steps; i++) {
        char *at = sbrk(step);
        if (at == (char *)-1) {
            printf("grow %s after %ld MiB\n", fails, i * 16);
            return;
        }
        at[0] = at[step - 1] = 1;
    }
    puts("grow 1024");
}

#define PAGE 4096
/* Not a constant: gcc 14 puts a volatile one beside the text, and gcc 12 here. */
static volatile unsigned char sheet[4 * PAGE] __attribute__((aligned(PAGE))) = {[PAGE - 1] = 1, [PAGE] = 2, [2 * PAGE] = 3};

static void protect(void)
{
    unsigned char *page = (unsigned char *)(unsigned long)(sheet + PAGE);
    int right = !mprotect(page, PAGE, PROT_READ | PROT_WRITE);
    if (right) {
        *(volatile unsigned char *)page = 77;
        right = sheet[PAGE] == 77 && sheet[PAGE - 1] == 1 && sheet[2 * PAGE] == 3;
        *(volatile unsigned char *)page = 2;
    }
    right = right && !mprotect(page, PAGE, PROT_READ);
    printf("protect %s\n", right ? "ok" : fails);
}

static unsigned long from, to;
static atomic_ulong mapped;

static void *neighbour(void *which)
{
    unsigned long stamp = (unsigned long)which;
    for (unsigned long turn = 0;; turn++) {
        unsigned long pages = (to - from) / PAGE, len = (1 + turn % 3) * PAGE;
        unsigned long at = from + (turn * 7919 + stamp) % (pages - 3) * PAGE;
        unsigned long *page = mmap((void *)at, len, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (page == MAP_FAILED)
            continue;
        *page = stamp + turn;
        for (int i = 0; i < 2000; i++)
            if (*(volatile unsigned long *)page != stamp + turn) {
                fputs("a neighbour's page is another's\n", stderr);
                _exit(CORRUPT);
            }
        if (munmap(page, len))
            _exit(BROKEN);
        atomic_fetch_add(&mapped, 1);
    }
    return 0;
}

static void neighbours(void)
{
    pthread_t thread;
    for (unsigned long i = 1; i <= 2; i++)
        if (pthread_create(&thread, 0, neighbour, (void *)(i << 32)))
            _exit(BROKEN);
    puts("neighbours 2");
}

static void crowd(unsigned long gib)
{
    unsigned long pages = 0;
    for (unsigned long at = gib << 30; at < 1UL << 47; at += gib << 30)
        pages += mmap((void *)at, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != MAP_FAILED;
    printf("crowd %lu\n", pages);
}

static void place(unsigned long at, const char *kind)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | (!strcmp(kind, "grows") ? MAP_GROWSDOWN : 0);
    void *page = mmap((void *)at, PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
    printf("place %s\n", page == (void *)at ? kind : fails);
}

static void claim(unsigned long from, unsigned long to, long offset)
{
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    void *claimed = mmap((void *)from, to - from, PROT_NONE, MAP_PRIVATE | MAP_FIXED_NOREPLACE, file, offset);
    printf("claim %s\n", claimed == (void *)from ? "ok" : fails);
    close(file);
}

int main(void)
{
    char line[128], kind[8];
    unsigned long address, end, gib;
    long offset;
    setvbuf(stdout, 0, _IOLBF, 0);
    setvbuf(stdin, 0, _IONBF, 0);
    printf("pid %d\nready\n", getpid());
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "check\n"))
            check();
        else if (!strcmp(line, "grow\n"))
            grow();
        else if (!strcmp(line, "protect\n"))
            protect();
        else if (sscanf(line, "neighbours %lx %lx", &from, &to) == 2)
            neighbours();
        else if (sscanf(line, "crowd %lu", &gib) == 1)
            crowd(gib);
        else if (sscanf(line, "place %lx %7s", &address, kind) == 2)
            place(address, kind);
        else if (sscanf(line, "lock %lx %lx", &address, &end) == 2)
            printf("lock %s\n", mlock((void *)address, end - address) ? fails : "ok");
        else if (sscanf(line, "claim %lx %lx %lx", &address, &end, &offset) == 3)
            claim(address, end, offset);
        else if (!strcmp(line, "told\n"))
            printf("told %lu\n", atomic_exchange(&mapped, 0));
        else if (sscanf(line, "trap %lx", &address) == 1)
            ((void (*)(void))address)();
        else if (!strcmp(line, "end\n"))
            return 7;
        else
            printf("%s%s", fails, line);
    }
    return 7;
}
