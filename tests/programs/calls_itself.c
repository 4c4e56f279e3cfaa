/* calls_itself SITUATION [SETTINGS]: a program that is linked with libtiexec, and has its own text put onto huge pages in a situation.
   Says "pid", then for each call a line "call CODE HUGE TEXT REASON", then "ready", and waits for a line; ends with 7 if all was as it
   should be. */
#include <dirent.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <tiexec.h>
#include "one_call_filter.h"
#include "situation.h"

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#define PR_MDWE_REFUSE_EXEC_GAIN 1
#endif

static const char *settings;
static volatile int over;
/* More than the stack of the library's thread would hold: glibc takes the variables of each thread from its stack. */
static __thread char own[2 << 20];

static void say(const char *what, int code, const struct tiexec_result *result)
{
    printf("%s %d %llu %llu %s %s\n", what, code, (unsigned long long)result->huge_bytes,
           (unsigned long long)result->text_bytes, *result->reason ? result->reason : "-", result->detail);
    fflush(stdout);
}

static int call(void)
{
    struct tiexec_options options = {.size = sizeof options, .settings = settings};
    struct tiexec_result result = {.size = sizeof result};
    int code = tiexec_self(&options, &result);
    say("call", code, &result);
    check_or_die();
    return code;
}

static int revert(void)
{
    struct tiexec_result result = {.size = sizeof result};
    int code = tiexec_self_revert(&result);
    say("revert", code, &result);
    check_or_die();
    return code;
}

static void *works(void *rounds)
{
    while (!over) {
        check_or_die();
        __atomic_add_fetch((unsigned long *)rounds, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

/* Two threads that execute and read all of the text. */
static pthread_t worker[2];
static unsigned long rounds[2];

static void begin_work(void)
{
    for (int i = 0; i < 2; i++)
        if (pthread_create(&worker[i], NULL, works, &rounds[i]))
            _exit(BROKEN);
}

static void end_work(void)
{
    for (int i = 0; i < 2; i++) {
        unsigned long before = __atomic_load_n(&rounds[i], __ATOMIC_RELAXED);
        while (__atomic_load_n(&rounds[i], __ATOMIC_RELAXED) < before + 2)
            sched_yield();
    }
    over = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(worker[i], NULL);
}

static volatile sig_atomic_t handled;

static void handler(int signal)
{
    (void)signal;
    /* A function in the middle of the text. */
    handled += big_middle(1) != 0;
}

/* The descriptors of the process; those of this function are closed again. */
static int descriptors(void)
{
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    if (!dir)
        _exit(BROKEN);
    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

static int usual;

/* Forks all the time; each child looks whether it has a descriptor more than the program, and whether its text is right. */
static void *forks(void *count)
{
    while (!over) {
        int status;
        pid_t child = fork();
        if (child < 0)
            _exit(BROKEN);
        if (!child) {
            if (!big_check())
                _exit(CORRUPT);
            _exit(descriptors() == usual ? 0 : 1);
        }
        if (waitpid(child, &status, 0) != child || status) {
            fprintf(stderr, "a child ended with %#x\n", status);
            _exit(BROKEN);
        }
        ++*(unsigned long *)count;
    }
    return NULL;
}

/* In a child each: the call under a filter that answers one system call so. The children say nothing; a refusal must be clean. */
static void each_filtered(unsigned action, int first, int last)
{
    int full = 0, refused = 0, null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    for (int number = first; number <= last; number++) {
        pid_t child;
        int status;
        /* Without these no C program ends, or says what its end was. */
        if (number == SYS_exit_group || number == SYS_exit || number == SYS_seccomp)
            continue;
        child = fork();
        if (child < 0)
            _exit(BROKEN);
        if (!child) {
            struct tiexec_options options = {.size = sizeof options, .settings = settings};
            int code;
            filter_one_call(action, number);
            code = tiexec_self(&options, NULL);
            tiexec_self_report(null, 1);
            if (!big_check())
                _exit(CORRUPT);
            _exit(code ? 1 : 0);
        }
        if (waitpid(child, &status, 0) != child)
            _exit(BROKEN);
        if (WIFEXITED(status) && WEXITSTATUS(status) <= 1) {
            full += !WEXITSTATUS(status);
            refused += WEXITSTATUS(status);
        } else {
            printf("harmed %d %#x\n", number, status);
        }
    }
    printf("full %d\nrefused %d\n", full, refused);
}

/* Has the kernel map the program's own text by base pages, in whatever folios it is cached: the kernel makes no huge entries while THP are
   off for the process, and keeps the small ones afterwards. */
static void map_own_text_small(void)
{
    char line[4352], perms[8];
    unsigned long start, end, own = (unsigned long)map_own_text_small;
    FILE *f = fopen("/proc/self/maps", "re");
    if (!f || prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
        _exit(BROKEN);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "%lx-%lx %7s", &start, &end, perms) == 3 && start <= own && own < end)
            break;
    if (feof(f) || madvise((void *)start, end - start, MADV_DONTNEED))
        _exit(BROKEN);
    fclose(f);
    check_or_die();
    printf("small %lu\n", huge_text());
    if (prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0))
        _exit(BROKEN);
}

static void call_again_and_again(void)
{
    for (int i = 0; i < 5; i++)
        if (call() || revert())
            _exit(BROKEN);
    if (call())
        _exit(BROKEN);
}

static void *call_in_thread(void *code)
{
    *(int *)code = tiexec_self(NULL, NULL);
    return NULL;
}

static volatile int returned;

/* Is cancelled before it calls: the call is no cancellation point, and errno stays. */
static void *is_cancelled(void *unused)
{
    pthread_cancel(pthread_self());
    errno = EDOM;
    returned = tiexec_self(NULL, NULL) == 0 && tiexec_self_report(-1, 0) == -EBADF && errno == EDOM;
    pthread_testcancel();
    return unused;
}

/* Takes all memory that malloc has, but for pieces of less than 64 KiB. */
static void take_memory(void)
{
    struct rlimit none = {64 << 20, 64 << 20};
    if (setrlimit(RLIMIT_DATA, &none))
        _exit(BROKEN);
    for (size_t size = 16 << 20; size >= 64 << 10; size /= 2)
        for (void *taken; (taken = malloc(size));)
            memset(taken, 1, size);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    settings = argc > 2 ? argv[2] : NULL;
    own[argc] = 1;
    check_or_die();
    printf("pid %d\n", getpid());
    fflush(stdout);
    if (!strcmp(name, "nothing")) {
        /* It is linked with the library, and asks for nothing. */
    } else if (!strcmp(name, "call")) {
        call();
    } else if (!strcmp(name, "threads")) {
        begin_work();
        call_again_and_again();
        end_work();
    } else if (!strcmp(name, "refault")) {
        map_own_text_small();
        begin_work();
        call();
        end_work();
    } else if (!strcmp(name, "revert")) {
        call();
        ready_and_wait();
        revert();
        puts("reverted");
    } else if (!strcmp(name, "signals")) {
        struct itimerval often = {{0, 100}, {0, 100}}, never = {{0, 0}, {0, 0}};
        sig_atomic_t before;
        signal(SIGALRM, handler);
        signal(SIGPROF, handler);
        /* The kernel repeats calls after SIGPROF only. */
        siginterrupt(SIGALRM, 1);
        setitimer(ITIMER_REAL, &often, NULL);
        setitimer(ITIMER_PROF, &often, NULL);
        begin_work();
        call_again_and_again();
        before = handled;
        while (handled < before + 100)
            big_middle(2);
        end_work();
        setitimer(ITIMER_REAL, &never, NULL);
        setitimer(ITIMER_PROF, &never, NULL);
    } else if (!strcmp(name, "forks")) {
        pthread_t forker;
        unsigned long count = 0;
        usual = descriptors();
        if (pthread_create(&forker, NULL, forks, &count))
            return BROKEN;
        while (__atomic_load_n(&count, __ATOMIC_RELAXED) < 50)
            if (call() || revert())
                return BROKEN;
        if (call())
            return BROKEN;
        over = 1;
        pthread_join(forker, NULL);
        if (descriptors() != usual)
            return BROKEN;
    } else if (!strcmp(name, "child")) {
        /* The child's text becomes huge, and the parent's stays. */
        int status;
        pid_t child = fork();
        if (!child) {
            int code = call();
            _exit(code ? 1 : huge_text() ? 7 : 2);
        }
        if (waitpid(child, &status, 0) != child || status != 7 << 8 || huge_text())
            return BROKEN;
        if (call())
            return BROKEN;
        /* And a later child inherits it; the kernel maps the text when it is first used. */
        child = fork();
        if (!child)
            _exit(big_check() && huge_text() && !revert() && !huge_text() ? 7 : 2);
        if (waitpid(child, &status, 0) != child || status != 7 << 8 || !huge_text())
            return BROKEN;
    } else if (!strcmp(name, "both")) {
        /* Two threads at once: one of them may be told that the other is at work. */
        pthread_t other;
        int code, others;
        for (int i = 0; i < 10; i++) {
            if (pthread_create(&other, NULL, call_in_thread, &others))
                return BROKEN;
            code = tiexec_self(NULL, NULL);
            pthread_join(other, NULL);
            if ((code && code != -EBUSY) || (others && others != -EBUSY) || (code && others) || revert())
                return BROKEN;
        }
        call();
    } else if (!strcmp(name, "cancelled")) {
        pthread_t thread;
        void *end;
        if (pthread_create(&thread, NULL, is_cancelled, NULL) || pthread_join(thread, &end))
            return BROKEN;
        if (end != PTHREAD_CANCELED || !returned)
            return BROKEN;
        call();
    } else if (!strcmp(name, "no_memory")) {
        take_memory();
        if (tiexec_self_report(1, 0) != -ENOMEM || tiexec_self_revert(NULL) != -ENOMEM)
            return BROKEN;
        call();
    } else if (!strcmp(name, "mdwe")) {
        if (prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0)) {
            puts("no mdwe");
            return 7;
        }
        call();
    } else if (!strcmp(name, "thp_disabled")) {
        if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
            return BROKEN;
        call();
        if (prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) != 1)
            return BROKEN;
    } else if (!strcmp(name, "closed")) {
        /* The standard streams are closed: the library's files get their numbers meanwhile, and give them back. */
        int out = dup(1), in = dup(0), code, first;
        close(0);
        close(1);
        close(2);
        code = tiexec_self(NULL, NULL);
        first = open("/dev/null", O_RDONLY);
        if (first != 0 || open("/dev/null", O_RDONLY) != 1)
            return BROKEN;
        dup2(in, 0);
        dup2(out, 1);
        if (code)
            return BROKEN;
        puts("call 0 0 0 -");
    } else if (!strcmp(name, "undumpable")) {
        if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))
            return BROKEN;
        call();
        if (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0))
            return BROKEN;
    } else if (!strcmp(name, "each")) {
        /* each SETTINGS errno|kill|trap FIRST LAST */
        unsigned action = !strcmp(argv[3], "errno") ? SECCOMP_RET_ERRNO | EPERM
                          : !strcmp(argv[3], "trap") ? SECCOMP_RET_TRAP
                                                     : SECCOMP_RET_KILL_PROCESS;
        each_filtered(action, atoi(argv[4]), atoi(argv[5]));
    } else if (!strcmp(name, "interface")) {
        struct tiexec_options options = {0};
        struct tiexec_result result = {0};
        struct { struct tiexec_result known; char unknown[64]; } larger = {.known.size = sizeof larger};
        const char *bad[] = {"edges=round", "nonsense", "backing=", ",=,", "\xff\xfe=\n", "deadline=-1s"};
        /* A result of no size takes nothing. */
        if (tiexec_self(&options, &result) != -EINVAL || *result.detail)
            return BROKEN;
        options.size = 3;
        if (tiexec_self(&options, NULL) != -EINVAL)
            return BROKEN;
        options.size = sizeof options;
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            result.size = sizeof result;
            options.settings = bad[i];
            if (tiexec_self(&options, &result) != -EINVAL || *result.reason || !*result.detail || huge_text()) {
                fprintf(stderr, "%s\n", bad[i]);
                return BROKEN;
            }
        }
        if (tiexec_self_report(-1, 0) != -EBADF || tiexec_self_report(9999, 1) != -EBADF)
            return BROKEN;
        memset(larger.unknown, 0x5a, sizeof larger.unknown);
        if (tiexec_self(NULL, &larger.known) || !larger.known.huge_bytes)
            return BROKEN;
        for (size_t i = 0; i < sizeof larger.unknown; i++)
            if (larger.unknown[i] != 0x5a)
                return BROKEN;
        /* All zero means the defaults, and no result is wanted. */
        memset(&options, 0, sizeof options);
        if (tiexec_self(&options, NULL) || tiexec_self_revert(NULL) || huge_text() || tiexec_self_revert(NULL) ||
            tiexec_self(NULL, NULL) || !huge_text())
            return BROKEN;
        fflush(stdout);
        if (tiexec_self_report(1, 0) || tiexec_self_report(1, 1))
            return BROKEN;
    } else {
        return BROKEN;
    }
    ready_and_wait();
    check_or_die();
    return 7;
}
