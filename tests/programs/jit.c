/* jit HOW: makes code in anonymous memory of four huge pages, of which all, six tenths, four tenths and nothing is populated, and runs it until told to
   end. HOW: plain; spin (a thread runs it without end); toggle (a thread makes the first two writable, changes a constant in them and makes them executable again, without end); nohuge
   (MADV_NOHUGEPAGE); nothp (PR_SET_THP_DISABLE). */
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include "situation.h"

static unsigned char *area;
static unsigned long huge, page;
static volatile int over;

/* mov eax, imm32; ret */
static void put(unsigned char *at, uint32_t value)
{
    at[0] = 0xb8;
    memcpy(at + 1, &value, 4);
    at[5] = 0xc3;
}

static int right(unsigned char *at, uint32_t value)
{
    int (*code)(void) = (int (*)(void))(uintptr_t)at;
    return (uint32_t)code() == value;
}

static unsigned long populated(int part)
{
    static const int tenths[] = {10, 6, 4, 0};
    return huge / page * tenths[part] / 10;
}

static int all_right(int from)
{
    for (int part = from; part < 4; part++)
        for (unsigned long i = 0; i < populated(part); i++)
            if (!right(area + part * huge + i * page, part * 1000003 + i))
                return 0;
    return 1;
}

static void *toggle(void *unused)
{
    (void)unused;
    for (uint32_t round = 1; !over; round++) {
        if (mprotect(area, 2 * huge, PROT_READ | PROT_WRITE))
            _exit(BROKEN);
        for (unsigned long i = 0; i < huge / page; i += 16)
            put(area + i * page, round + i);
        if (mprotect(area, 2 * huge, PROT_READ | PROT_EXEC))
            _exit(BROKEN);
        for (unsigned long i = 0; i < huge / page; i += 16)
            if (!right(area + i * page, round + i))
                _exit(CORRUPT);
    }
    return NULL;
}

static void *spin(void *unused)
{
    (void)unused;
    while (!over)
        if (!all_right(0))
            _exit(CORRUPT);
    return NULL;
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "plain";
    char size[32] = "";
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "re");
    int toggles = !strcmp(how, "toggle"), spins = !strcmp(how, "spin");
    pthread_t thread;
    if (!f || !fgets(size, sizeof size, f))
        return BROKEN;
    fclose(f);
    huge = strtoul(size, NULL, 10);
    page = sysconf(_SC_PAGESIZE);
    area = mmap(NULL, 6 * huge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (area == MAP_FAILED)
        return BROKEN;
    area = (unsigned char *)(((uintptr_t)area + huge) & ~(huge - 1));
    if (mprotect(area, 4 * huge, PROT_READ | PROT_WRITE | PROT_EXEC))
        return BROKEN;
    if (!strcmp(how, "nohuge"))
        madvise(area, 4 * huge, MADV_NOHUGEPAGE);
    if (!strcmp(how, "nothp"))
        prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    for (int part = 0; part < 4; part++)
        for (unsigned long i = 0; i < populated(part); i++)
            put(area + part * huge + i * page, part * 1000003 + i);
    if (!all_right(0))
        return CORRUPT;
    if ((toggles || spins) && pthread_create(&thread, NULL, toggles ? toggle : spin, NULL))
        return BROKEN;
    printf("pid %d\narea %lx\n", getpid(), (unsigned long)area);
    ready_and_wait();
    over = 1;
    if (toggles || spins)
        pthread_join(thread, NULL);
    return all_right(toggles ? 2 : 0) ? 7 : CORRUPT;
}
