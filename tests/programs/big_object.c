/* A shared object with megabytes of text. object_check() runs and reads all of it, through whatever else ld.so sees to: an indirect function,
   a variable per thread, calls bound late. What its init function does first is said by OBJECT_INIT. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "bigtext.h"

static __thread unsigned of_thread = 7;

#ifdef HAS_IFUNC
static int picked(void)
{
    return 42;
}
static int (*resolve(void))(void)
{
    return picked;
}
int object_pick(void) __attribute__((ifunc("resolve")));
#else
int object_pick(void)
{
    return 42;
}
#endif

/* Bound at its first call, unless LD_BIND_NOW is set. */
unsigned object_late(unsigned h)
{
    return big_middle(h) + of_thread++;
}

int object_check(void)
{
    unsigned before = object_late(1);
    return big_check() && object_pick() == 42 && object_late(1) == before + 1;
}

#ifdef TEXT_RELOCATION
/* A word of the text that ld.so writes to. */
__asm__(".text\n"
        ".balign 4096, 0xcc\n"
        ".fill 2097152, 1, 0xcc\n"
        "object_word: .quad object_check\n"
        ".fill 2097152, 1, 0xcc\n");
#endif

static volatile int children, urgent;

static void count(int signal)
{
    if (signal == SIGCHLD)
        children++;
    else
        urgent++;
}

int object_signals(void)
{
    return children * 100 + urgent;
}

static void *thread(void *unused)
{
    (void)unused;
    for (;;)
        if (!big_check())
            _exit(99);
}

static void *begins_another(void *unused)
{
    (void)unused;
    execl("/bin/echo", "echo", "ready", (char *)NULL);
    _exit(98);
}

__attribute__((constructor)) static void begin(void)
{
    const char *does = getenv("OBJECT_INIT");
    if (!does)
        return;
    if (!strcmp(does, "fork")) {
        pid_t child = fork();
        if (!child)
            _exit(big_check() ? 3 : 99);
        int status;
        if (waitpid(child, &status, 0) != child || status != 3 << 8)
            _exit(98);
    } else if (!strcmp(does, "child")) {
        /* One that ends later. */
        if (!fork()) {
            usleep(300000);
            _exit(3);
        }
    } else if (!strcmp(does, "threads")) {
        pthread_t id;
        for (int i = 0; i < 4; i++)
            pthread_create(&id, NULL, thread, NULL);
    } else if (!strcmp(does, "exec")) {
        unsetenv("OBJECT_INIT");
        execl("/bin/echo", "echo", "ready", (char *)NULL);
    } else if (!strcmp(does, "exec-thread")) {
        /* Not the first thread's doing. */
        pthread_t id;
        unsetenv("OBJECT_INIT");
        pthread_create(&id, NULL, begins_another, NULL);
        pthread_join(id, NULL);
    } else if (!strcmp(does, "exit")) {
        _exit(23);
    } else if (!strcmp(does, "die")) {
        raise(SIGSEGV);
    } else if (!strcmp(does, "stop")) {
        raise(SIGSTOP);
    } else if (!strcmp(does, "handlers")) {
        signal(SIGCHLD, count);
        signal(SIGURG, count);
        raise(SIGURG);
    } else if (!strcmp(does, "block")) {
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_BLOCK, &all, NULL);
    } else if (!strcmp(does, "sleep")) {
        usleep(700000);
    } else if (!strcmp(does, "replace")) {
        const char *file = getenv("OBJECT_FILE"), *by = getenv("OBJECT_BY");
        if (!file || !by || rename(by, file))
            _exit(98);
    } else {
        _exit(98);
    }
}

#ifdef RELOCATED
/* Addresses that ld.so has to fill in, read-only afterwards. */
const void *const object_addresses[RELOCATED] = {[0 ... RELOCATED - 1] = (const void *)object_check};
#endif
