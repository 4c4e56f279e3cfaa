/* A server that works and sleeps by turns, and counts its work in a file: counts FILE [WORTH [CHILDREN]]. A microsecond of its processor
   time counts 100, and WORTH while the text is on huge pages. So a difference is planted that no speed of the machine changes, for tests of
   what is done about one. Children do the same work. With a WORTH of 0 it crashes on huge pages. Ends with 7 at the end of its input, if the
   text was right to the end. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include "situation.h"

static atomic_ulong *count;

/* The processor time of this process, in microseconds. */
static unsigned long used(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void work(unsigned long worth)
{
    static unsigned long counted;
    check_or_die();
    int huge = huge_text() > 0;
    if (huge && !worth)
        __builtin_trap();
    unsigned long now = used();
    atomic_fetch_add(count, (now - counted) * (huge ? worth : 100));
    counted = now;
}

static int tell(int file)
{
    char text[32];
    snprintf(text, sizeof text, "%020lu\n", atomic_load(count));
    return pwrite(file, text, 21, 0) == 21;
}

int main(int argc, char **argv)
{
    unsigned long worth = argc > 2 ? strtoul(argv[2], 0, 10) : 100, children = argc > 3 ? strtoul(argv[3], 0, 10) : 0;
    int file = argc > 1 ? open(argv[1], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644) : -1;
    struct pollfd input = {.fd = 0, .events = POLLIN};
    pid_t parent = getpid();
    count = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (file < 0 || count == MAP_FAILED)
        return BROKEN;
    /* The stack of signals is the same for all: nobody needs a signal, but a static program needs the signal return (no_gadget.c). */
    signal(SIGUSR2, SIG_DFL);
    for (unsigned long k = 0; k < children; k++)
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            while (getppid() == parent) {
                work(worth);
                poll(NULL, 0, 10);
            }
            return 0;
        }
    if (!tell(file))
        return BROKEN;
    puts("ready");
    fflush(stdout);
    while (poll(&input, 1, 5) == 0) {
        work(worth);
        if (!tell(file))
            return BROKEN;
    }
    check_or_die();
    return 7;
}
