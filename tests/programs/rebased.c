/* Checks all that a program can know of where it lies, and prints it relative to where its image begins: two launches at different
   addresses print equal lines, but for "bias" and "huge". A line "bad …" for each thing that is wrong, and then exit 98.
   The first argument: "hold" (wait when checked), "once", "brief" (print nothing but what is wrong and the bias), or "lives" (as
   "hold", for a launch whose helper was killed: a second image may be left, and /proc may show that one). */
#include "situation.h"
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#ifdef __GLIBC__
#include <execinfo.h>
#include <unwind.h>
#endif

extern char **environ;

struct piece { unsigned long start, end, offset; char perms[8]; };
static struct piece pieces[32];
static int piece_count, bad_count, brief, lives;
static unsigned long bias, image_end, heap_start, heap_end;
static char exe[4096], maps_text[1 << 16];
extern const char __ehdr_start[] __attribute__((visibility("hidden")));

#define CHECK(condition, ...) ((condition) ? (void)0 : (bad_count++, printf("bad %s: ", #condition), printf(__VA_ARGS__), (void)puts("")))
#define SAY(...) (brief ? 0 : printf(__VA_ARGS__))

static void read_maps(void)
{
    char line[4400], path[4200];
    FILE *f = fopen("/proc/self/maps", "re");
    piece_count = 0;
    heap_start = heap_end = 0;
    maps_text[0] = 0;
    while (f && fgets(line, sizeof line, f)) {
        struct piece p;
        path[0] = 0;
        if (strlen(maps_text) + strlen(line) < sizeof maps_text)
            strcat(maps_text, line);
        sscanf(line, "%lx-%lx %7s %lx %*s %*s %4199[^\n]", &p.start, &p.end, p.perms, &p.offset, path);
        if (!strcmp(path, "[heap]"))
            heap_start = p.start, heap_end = p.end;
        /* A copy of the text, where there is one, is a part of the image as well. */
        int ours = !strcmp(path, exe) || !strncmp(path, "/memfd:tiexec:", 14);
        if (ours && piece_count < 32 && p.start >= (unsigned long)__ehdr_start && p.start < image_end)
            pieces[piece_count++] = p;
    }
    if (f)
        fclose(f);
}

static const struct piece *piece_of(unsigned long addr)
{
    for (int i = 0; i < piece_count; i++)
        if (pieces[i].start <= addr && addr < pieces[i].end)
            return &pieces[i];
    return NULL;
}

static int in_text(unsigned long addr)
{
    const struct piece *p = piece_of(addr);
    return p && p->perms[2] == 'x';
}

/* Data that ld.so relocates, data that the kernel zeroes, functions that crt1 runs. */
static int data = 12345, constructed;
static char pattern[10000] = {1, 2, 3, [9999] = 4};
static char zeroes[300001];
static __thread int tls_data = 4711;
static __thread char tls_zeroes[5000];
static int one(void) { return 1; }
static int two(void) { return 2; }
static int (*const volatile functions[])(void) = {one, two};
static const char *const volatile words[] = {"first", "second"};
static void *to_itself = &to_itself;
__attribute__((constructor)) static void construct(void) { constructed = data; }

static void check_data(void)
{
    unsigned long sum = 0;
    CHECK(constructed == 12345, "%d", constructed);
    CHECK(data == 12345 && pattern[0] == 1 && pattern[2] == 3 && pattern[9999] == 4, "%d", data);
    for (size_t i = 0; i < sizeof zeroes; i++)
        sum += (unsigned char)zeroes[i];
    for (size_t i = 3; i < sizeof pattern - 1; i++)
        sum += (unsigned char)pattern[i];
    for (size_t i = 0; i < sizeof tls_zeroes; i++)
        sum += (unsigned char)tls_zeroes[i];
    CHECK(sum == 0, "%lu", sum);
    CHECK(tls_data == 4711, "%d", tls_data);
    CHECK(functions[0]() == 1 && functions[1]() == 2 && functions[1] == two, "%p", (void *)functions[1]);
    CHECK(in_text((unsigned long)functions[0]) || lives, "%p", (void *)functions[0]);
    CHECK(!strcmp(words[0], "first") && !strcmp(words[1], "second") && piece_of((unsigned long)words[1]), "%p", (void *)words[1]);
    CHECK(to_itself == &to_itself && piece_of((unsigned long)to_itself), "%p", to_itself);
    memset(zeroes, 7, sizeof zeroes);
    memset(pattern, 8, sizeof pattern);
    CHECK(zeroes[0] == 7 && zeroes[sizeof zeroes - 1] == 7 && pattern[9999] == 8 && data == 12345, "%d", zeroes[0]);
}

static void check_auxv(void)
{
    char **end = environ, file[4096];
    while (*end)
        end++;
    const ElfW(auxv_t) *vector = (const ElfW(auxv_t) *)(end + 1);
    FILE *f = fopen("/proc/self/auxv", "re");
    size_t len = f ? fread(file, 1, sizeof file, f) : 0;
    if (f)
        fclose(f);
    CHECK(len >= 2 * sizeof *vector, "%zu", len);
    int entries = 0;
    for (; vector[entries].a_type != AT_NULL; entries++) {
        unsigned long key = vector[entries].a_type, value = vector[entries].a_un.a_val;
        /* glibc makes its own words of the processor's. */
        CHECK(getauxval(key) == value || key == AT_HWCAP || key == AT_HWCAP2, "key %lu: %lx is %lx", key, getauxval(key), value);
        if (key == AT_PHDR || key == AT_ENTRY)
            SAY("auxv %lu at +%lx\n", key, value - bias);
    }
    /* The kernel shows the whole of its array, null entries at the end. */
    size_t used = (entries + 1) * sizeof *vector;
    CHECK((used <= len && !memcmp(file, vector, used)) || lives, "%zu of %zu bytes", used, len);
    /* Where the text is a copy of ours it is no piece of the file. */
    CHECK(in_text(getauxval(AT_ENTRY)) || lives, "%lx", getauxval(AT_ENTRY));
    CHECK(piece_of(getauxval(AT_PHDR)) == &pieces[0], "%lx", getauxval(AT_PHDR));
}

static int first_object(struct dl_phdr_info *info, size_t size, void *seen)
{
    (void)size;
    *(struct dl_phdr_info *)seen = *info;
    return 1;
}

static void check_headers(void)
{
    struct dl_phdr_info info = {0};
    dl_iterate_phdr(first_object, &info);
    CHECK((unsigned long)info.dlpi_phdr == getauxval(AT_PHDR), "%p", (void *)info.dlpi_phdr);
    CHECK(info.dlpi_addr == bias, "%lx", (unsigned long)info.dlpi_addr);
    int found = 0;
    for (int i = 0; i < info.dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info.dlpi_phdr[i];
        unsigned long at = info.dlpi_addr + p->p_vaddr;
        if (p->p_type == PT_LOAD && (p->p_flags & PF_X) && (unsigned long)check_headers - at < p->p_memsz)
            found++;
        if (p->p_type == PT_LOAD && p->p_filesz)
            CHECK(piece_of(at) || (lives && (p->p_flags & PF_X)), "segment %d at %lx", i, at);
    }
    CHECK(found == 1, "%d segments hold this function", found);
    /* A static program has no names of its own at run time. */
    if (!getauxval(AT_BASE))
        return;
    Dl_info where;
    CHECK(dladdr((void *)check_headers, &where) && (unsigned long)where.dli_fbase == pieces[0].start, "%p", where.dli_fbase);
    CHECK(strrchr(where.dli_fname, '/') && !strcmp(strrchr(where.dli_fname, '/'), strrchr(exe, '/')), "%s", where.dli_fname);
}

/* With musl, Debian's unwinder does not link. */
#ifdef __GLIBC__
#define DEPTH 8
static void *returns[DEPTH + 1], *unwound[64];
static int unwound_count;

static _Unwind_Reason_Code frame(struct _Unwind_Context *context, void *unused)
{
    (void)unused;
    if (unwound_count < 64)
        unwound[unwound_count++] = (void *)_Unwind_GetIP(context);
    return _URC_NO_REASON;
}

__attribute__((noinline)) static int descend(int depth)
{
    returns[depth] = __builtin_return_address(0);
    if (depth == DEPTH) {
        _Unwind_Backtrace(frame, NULL);
        return 1;
    }
    int below = descend(depth + 1);
    __asm__ volatile("" : "+r"(below));
    return below + 1;
}

static void check_unwinding(void)
{
    int frames = descend(0), matched = 0;
    /* The unwinder saw descend itself first, then each place it returns to. */
    for (int i = 0; i <= DEPTH; i++)
        matched += unwound_count > i + 1 && unwound[i + 1] == returns[DEPTH - i];
    CHECK(frames == DEPTH + 1 && matched == DEPTH + 1, "%d of %d frames", matched, unwound_count);
    CHECK(unwound_count > DEPTH + 3, "%d frames: main and its caller are not among them", unwound_count);
    void *more[64];
    CHECK(backtrace(more, 64) >= 3 && (in_text((unsigned long)more[0]) || lives), "%p", more[0]);
}
#else
static void check_unwinding(void) {}
#endif

static unsigned long stat_field(const char *stat, int number)
{
    const char *at = strrchr(stat, ')') + 2;
    for (int i = 3; i < number; i++)
        at = strchr(at, ' ') + 1;
    return strtoul(at, NULL, 10);
}

/* musl's sbrk refuses. */
static char *grow(long by)
{
#ifdef __GLIBC__
    return sbrk(by);
#else
    long at = syscall(SYS_brk, 0L);
    return syscall(SYS_brk, at + by) == at + by ? (char *)at : (char *)-1;
#endif
}

static void check_kernels_view(int argc, char **argv)
{
    char stat[4096] = "", name[4096] = "";
    FILE *f = fopen("/proc/self/stat", "re");
    CHECK(f && fgets(stat, sizeof stat, f), "no stat");
    if (f)
        fclose(f);
    static const struct { const char *name; int number; } fields[] = {
        {"startcode", 26}, {"endcode", 27}, {"start_data", 45}, {"end_data", 46}, {"start_brk", 47},
        {"arg_start", 48}, {"arg_end", 49}, {"env_start", 50}, {"env_end", 51}};
    unsigned long value[9];
    for (int i = 0; i < 9; i++) {
        value[i] = stat_field(stat, fields[i].number);
        if (i < 4)
            SAY("%s +%lx\n", fields[i].name, value[i] - bias);
    }
    CHECK((piece_of(value[0]) && in_text(value[1] - 1)) || lives, "code %lx-%lx", value[0], value[1]);
    CHECK((piece_of(value[2]) && value[2] < value[3]) || lives, "data %lx-%lx", value[2], value[3]);
    CHECK((piece_of(value[3] - 1) && piece_of(value[3] - 1)->perms[1] == 'w') || lives, "data ends at %lx", value[3]);
    CHECK(value[5] == (unsigned long)argv[0], "%lx", value[5]);
    CHECK(value[6] == (unsigned long)argv[argc - 1] + strlen(argv[argc - 1]) + 1, "%lx", value[6]);
    CHECK(!environ[0] || value[7] == (unsigned long)environ[0], "%lx", value[7]);

    /* The heap begins where the kernel says, and grows. */
    char *brk = grow(0);
    CHECK(value[4] <= (unsigned long)brk, "start_brk %lx", value[4]);
    long length = brief || lives ? 4 << 20 : 48 << 20;
    char *more = grow(length);
    CHECK(more == brk && grow(0) == brk + length, "sbrk %p", (void *)more);
    if (more == brk) {
        memset(more, 5, length);
        CHECK(more[0] == 5 && more[length - 1] == 5, "%d", more[0]);
    }
    read_maps();
    CHECK(heap_start <= (unsigned long)more && (unsigned long)more + length <= heap_end, "[heap] %lx-%lx", heap_start, heap_end);
    CHECK(heap_start >= value[4] - sysconf(_SC_PAGESIZE) && heap_start <= value[4] + sysconf(_SC_PAGESIZE), "[heap] %lx, start_brk %lx", heap_start, value[4]);
    for (int i = 0; i < 2000; i++) {
        char *block = malloc(i * 17 + 1);
        CHECK(block, "malloc");
        if (block)
            memset(block, i, i * 17 + 1);
    }
#ifdef __GLIBC__
    char *small = malloc(100);
    CHECK((unsigned long)small >= heap_start && (unsigned long)small < (unsigned long)sbrk(0), "malloc %p", (void *)small);
#endif
    CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD, "there is a child");
    f = fopen("/proc/self/comm", "re");
    CHECK(f && fgets(name, 64, f), "no comm");
    if (f)
        fclose(f);
    SAY("comm %s", name);
    SAY("exe %s\n", exe);
    SAY("name %s\n", program_invocation_name);
    SAY("execfn %s\n", (char *)getauxval(AT_EXECFN));
}

static unsigned long hash(unsigned long h, const char *s)
{
    while (*s)
        h = h * 31 + (unsigned char)*s++;
    return h * 31 + 1;
}

int main(int argc, char **argv)
{
    unsigned long h = 0;
    int n = 0;
    /* Changes nothing, but links the signal return, which a static program that uses no signals lacks (no_gadget.c). */
    signal(SIGUSR2, SIG_DFL);
    brief = argc > 1 && !strcmp(argv[1], "brief");
    ssize_t len = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[len > 0 ? len : 0] = 0;
    lives = argc > 1 && !strcmp(argv[1], "lives");
    const ElfW(Ehdr) *header = (const void *)__ehdr_start;
    const ElfW(Phdr) *headers = (const void *)(__ehdr_start + header->e_phoff);
    for (int i = 0; i < header->e_phnum; i++)
        if (headers[i].p_type == PT_LOAD && headers[i].p_offset == 0)
            bias = (unsigned long)__ehdr_start - headers[i].p_vaddr;
    for (int i = 0; i < header->e_phnum; i++)
        if (headers[i].p_type == PT_LOAD && bias + headers[i].p_vaddr + headers[i].p_memsz > image_end)
            image_end = bias + headers[i].p_vaddr + headers[i].p_memsz;
    read_maps();
    CHECK(piece_count >= 2, "%d mappings of %s", piece_count, exe);
    if (piece_count < 2)
        return BROKEN;
    /* The mappings of the image, and nothing else of it anywhere. */
    for (int i = 0; i < piece_count; i++)
        SAY("piece +%lx-%lx %s %lx\n", pieces[i].start - bias, pieces[i].end - bias, pieces[i].perms, pieces[i].offset);
    check_data();
    check_auxv();
    check_headers();
    check_unwinding();
    check_kernels_view(argc, argv);
    check_or_die();
    for (int i = 0; i < argc; i++)
        h = hash(h, argv[i]);
    for (char **e = environ; *e; e++, n++)
        h = hash(h, *e);
    SAY("arguments %d environment %d\n", argc, n);
    printf("strings %lx\nbias %lx\npid %d\n", h, bias, getpid());
    /* Where the auxiliary vector begins in its page. */
    printf("place %lu\n", (unsigned long)(environ + n + 1) % 4096);
    SAY("huge %lu\n", huge_text());
    if (bad_count)
        printf("%s", maps_text);
    fflush(stdout);
    if (argc > 1 && (lives || !strcmp(argv[1], "hold"))) {
        ready_and_wait();
        check_or_die();
    }
    return bad_count ? BROKEN : 7;
}
