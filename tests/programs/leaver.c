/* Two threads run in the text; a third, once it gets SIGUSR1, does what the argument says: exit, exec (from a thread that is not the
   first), fork. With "exec_first" the first thread execs. What it has become says so and exits with 7. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include "situation.h"

static const char *what;
static char *name;
static atomic_int go;

static void again(void)
{
    execl(name, name, "again", (char *)NULL);
    _exit(BROKEN);
}

static void *waits(void *none)
{
    (void)none;
    sigset_t user;
    int signal, status;
    sigemptyset(&user);
    sigaddset(&user, SIGUSR1);
    sigwait(&user, &signal);
    if (!strcmp(what, "exit"))
        _exit(7);
    if (!strcmp(what, "exec"))
        again();
    if (!strcmp(what, "exec_first")) {
        atomic_store(&go, 1);
        return NULL;
    }
    for (int k = 0; k < 20; k++) {
        pid_t child = fork();
        if (!child) {
            check_or_die();
            _exit(7);
        }
        if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 7)
            _exit(BROKEN);
    }
    _exit(7);
}

static void *spins(void *none)
{
    for (;;)
        check_or_die();
    return none;
}

int main(int argc, char **argv)
{
    pthread_t threads[2];
    sigset_t user;
    name = argv[0];
    what = argc > 1 ? argv[1] : "";
    check_or_die();
    if (!strcmp(what, "again")) {
        puts("again");
        return 7;
    }
    sigemptyset(&user);
    sigaddset(&user, SIGUSR1);
    sigprocmask(SIG_BLOCK, &user, NULL);
    pthread_create(&threads[0], NULL, waits, NULL);
    pthread_create(&threads[1], NULL, spins, NULL);
    puts("ready");
    fflush(stdout);
    while (!atomic_load(&go))
        check_or_die();
    again();
}
