/* A plugin for QEMU's user mode (7.2 or later) that writes in which pages a program executes and which pages of data it touches:
     qemu-x86_64 -plugin pages.so,out=FILE[,go=FILE][,count=N[,gap=N,windows=N]][,maps=FILE] PROGRAM...
   The recording begins when the file `go` exists, or at once without `go`, and stops after `count` instructions. With `windows`, it
   records so many windows of `count` instructions, and leaves out `gap` instructions before each one. With `maps`, it copies
   /proc/self/maps there after each window, and ends the program after the last one. The addresses are the program's own, unless QEMU
   has to move the program. Children of the program are not recorded.

   Each record is 8 bytes: a page's number << 16, then either the instructions executed there before another page << 1, or 1 for a page
   of data; 0 ends a window. Only data accesses that miss the first level of a data TLB are written (Skylake: 64 entries in 4 ways), because only they
   compete with text for the second level. All threads share one stream, as on one processor: pin QEMU to one (taskset). */
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The used parts of QEMU's qemu-plugin.h, version 1 of its interface (docs/devel/tcg-plugins.rst). */
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef uint64_t qemu_plugin_id_t;
enum { QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW = 3 };
extern void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, struct qemu_plugin_tb *));
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
extern struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
extern uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
extern void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, void (*)(unsigned, void *), int, void *);
extern void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *, void (*)(unsigned, uint32_t, uint64_t, void *), int, int,
                                             void *);
extern void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, void *), void *);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

enum { PAGE_BITS = 12, LEAST_BITS = 16, MOST_RUN = (1 << 15) - 1, DATA_SETS = 16, DATA_WAYS = 4, LOOK_EVERY = 1 << 20 };

static pthread_spinlock_t lock;
static FILE *out;
static const char *go, *maps;
static volatile bool on;
static uint64_t count = UINT64_MAX, gap, windows = 1, left, skip, page, run;
static uint64_t data[DATA_SETS][DATA_WAYS];

static void put(uint64_t number, uint64_t what)
{
    uint64_t record = number << LEAST_BITS | what;
    fwrite_unlocked(&record, sizeof record, 1, out);
}

static void end_run(void)
{
    for (; run; run -= run < MOST_RUN ? run : MOST_RUN)
        put(page, (run < MOST_RUN ? run : MOST_RUN) << 1);
}

static void write_maps(void)
{
    char buffer[1 << 12];
    FILE *from = fopen("/proc/self/maps", "re"), *to = fopen(maps, "we");
    if (!from || !to)
        _exit(1);
    for (size_t read; (read = fread(buffer, 1, sizeof buffer, from));)
        fwrite(buffer, 1, read, to);
    fclose(from);
    if (fclose(to))
        _exit(1);
}

static void end_window(void)
{
    on = false;
    end_run();
    put(0, 0);
    fflush(out);
    left = count;
    skip = gap;
    windows--;
    if (maps) {
        write_maps();
        if (!windows)
            _exit(0);
    }
}

/* Returns whether the recording is on, after so many more instructions. The counts need no lock, because they are accurate enough. */
static bool begins(uint64_t instructions)
{
    static uint32_t looks;
    if (!windows || (go && (++looks % LOOK_EVERY || access(go, F_OK))))
        return false;
    go = 0;
    if (skip > instructions) {
        skip -= instructions;
        return false;
    }
    return on = true;
}

static void executed(unsigned vcpu, void *block)
{
    (void)vcpu;
    /* A block's page and its number of instructions there, in one word, as in a record. */
    uint64_t number = (uintptr_t)block >> LEAST_BITS, more = (uintptr_t)block & MOST_RUN;
    if (!on && !begins(more))
        return;
    pthread_spin_lock(&lock);
    if (number != page) {
        end_run();
        page = number;
    }
    run += more;
    left -= left < more ? left : more;
    if (!left && on)
        end_window();
    pthread_spin_unlock(&lock);
}

static void touched(unsigned vcpu, uint32_t info, uint64_t address, void *none)
{
    (void)vcpu, (void)info, (void)none;
    if (!on)
        return;
    uint64_t number = address >> PAGE_BITS, *set = data[number % DATA_SETS];
    if (set[0] == number)
        return;
    pthread_spin_lock(&lock);
    int at = 0;
    while (at < DATA_WAYS - 1 && set[at] != number)
        at++;
    if (set[at] != number) {
        end_run();
        put(number, 1);
    }
    memmove(set + 1, set, at * sizeof *set);
    set[0] = number;
    pthread_spin_unlock(&lock);
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *block)
{
    (void)id;
    size_t length = qemu_plugin_tb_n_insns(block);
    for (size_t at = 0, first = 0; at < length; at++) {
        struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, at);
        qemu_plugin_register_vcpu_mem_cb(instruction, touched, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW, 0);
        uint64_t number = qemu_plugin_insn_vaddr(instruction) >> PAGE_BITS;
        bool last = at + 1 == length || qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(block, at + 1)) >> PAGE_BITS != number;
        if (!last)
            continue;
        qemu_plugin_register_vcpu_insn_exec_cb(qemu_plugin_tb_get_insn(block, first), executed, QEMU_PLUGIN_CB_NO_REGS,
                                               (void *)(uintptr_t)(number << LEAST_BITS | (at + 1 - first)));
        first = at + 1;
    }
}

static void ended(qemu_plugin_id_t id, void *none)
{
    (void)id, (void)none;
    pthread_spin_lock(&lock);
    if (windows) {
        windows = 1;
        end_window();
    }
    pthread_spin_unlock(&lock);
}

static void in_child(void)
{
    on = false;
    windows = 0;
}

__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv)
{
    (void)info;
    for (int i = 0; i < argc; i++) {
        if (!strncmp(argv[i], "out=", 4))
            out = fopen(argv[i] + 4, "we");
        else if (!strncmp(argv[i], "go=", 3))
            go = strdup(argv[i] + 3);
        else if (!strncmp(argv[i], "maps=", 5))
            maps = strdup(argv[i] + 5);
        else if (!strncmp(argv[i], "count=", 6))
            count = strtoull(argv[i] + 6, 0, 10);
        else if (!strncmp(argv[i], "gap=", 4))
            gap = strtoull(argv[i] + 4, 0, 10);
        else if (!strncmp(argv[i], "windows=", 8))
            windows = strtoull(argv[i] + 8, 0, 10);
        else
            return 1;
    }
    if (!out || !count || !windows)
        return 1;
    left = count;
    skip = gap;
    pthread_atfork(0, 0, in_child);
    pthread_spin_init(&lock, PTHREAD_PROCESS_PRIVATE);
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, ended, 0);
    return 0;
}
