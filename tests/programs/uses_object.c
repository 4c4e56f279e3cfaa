/* Runs the text of its shared object, and its own, in eight threads all the time, until its input ends; exits with its first argument. Its
   second argument says what else it does first. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "situation.h"

int object_check(void);
int object_signals(void);

static atomic_int stop;
static int (*other)(void);

static void all(void)
{
    check_or_die();
    if (!object_check() || (other && !other())) {
        fputs("the object is corrupt\n", stderr);
        _exit(CORRUPT);
    }
}

static void *worker(void *unused)
{
    while (!atomic_load(&stop))
        all();
    return unused;
}

static int (*symbol(void *handle))(void)
{
    return handle ? (int (*)(void))(unsigned long)dlsym(handle, "object_check") : NULL;
}

/* The range of the object's text. */
struct range {
    unsigned long start, end;
};

static int look(struct dl_phdr_info *info, size_t size, void *to)
{
    struct range *range = to;
    (void)size;
    if (!strstr(info->dlpi_name, "big_object"))
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_flags & PF_X) {
            range->start = (info->dlpi_addr + info->dlpi_phdr[i].p_vaddr) & ~4095UL;
            range->end = (info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz + 4095) & ~4095UL;
        }
    return 1;
}

static void prepare(const char *what)
{
    char path[4096];
    struct range text = {0, 0};
    dl_iterate_phdr(look, &text);
    Dl_info info;
    dladdr((void *)(unsigned long)object_check, &info);
#ifdef LM_ID_NEWLM
    if (!strcmp(what, "dlmopen"))
        other = symbol(dlmopen(LM_ID_NEWLM, info.dli_fname, RTLD_NOW));
    else
#endif
    if (!strcmp(what, "memfd")) {
        /* The object once more, from a file without a name. */
        int from = open(info.dli_fname, O_RDONLY), to = memfd_create("object", 0);
        char buffer[65536];
        for (ssize_t n; (n = read(from, buffer, sizeof buffer)) > 0;)
            if (write(to, buffer, (size_t)n) != n)
                _exit(BROKEN);
        snprintf(path, sizeof path, "/proc/self/fd/%d", to);
        other = symbol(dlopen(path, RTLD_NOW));
    } else if (!strcmp(what, "sealed")) {
        if (syscall(462, text.start, text.end - text.start, 0UL)) {
            puts("no mseal");
            return;
        }
    } else if (!strcmp(what, "execute-only")) {
        if (mprotect((void *)text.start, text.end - text.start, PROT_EXEC))
            _exit(BROKEN);
        return;
    } else
        return;
    if (!strcmp(what, "sealed"))
        puts("sealed");
    else if (!other)
        _exit(BROKEN);
}

int main(int argc, char **argv)
{
    enum { THREADS = 8 };
    pthread_t ids[THREADS];
    if (argc > 2)
        prepare(argv[2]);
    int calm = argc > 2 && !strcmp(argv[2], "execute-only");
    if (!calm) {
        all();
        for (int i = 0; i < THREADS; i++)
            pthread_create(&ids[i], NULL, worker, NULL);
    }
    errno = 0;
    pid_t waited = argc > 2 && !strcmp(argv[2], "waits") ? wait(NULL) : waitpid(-1, NULL, WNOHANG);
    printf("wait %s\n", waited > 0 ? "a child" : waited ? strerror(errno) : "none yet");
    printf("pid %d\nsignals %d\nhuge %lu\n", getpid(), object_signals(), huge_text());
    ready_and_wait();
    atomic_store(&stop, 1);
    for (int i = 0; !calm && i < THREADS; i++)
        pthread_join(ids[i], NULL);
    if (!calm)
        all();
    return argc > 1 ? atoi(argv[1]) : 0;
}
