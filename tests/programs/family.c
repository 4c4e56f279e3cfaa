/* Forks, vforks and threads from its own text: each of them runs the whole text and finds it right. */
#include <pthread.h>
#include <sys/wait.h>
#include "situation.h"

static void *thread(void *arg)
{
    return big_check() ? arg : NULL;
}

int main(int argc, char **argv)
{
    int status;
    pthread_t t;
    void *ret = NULL;
    pid_t child;
    if (argc > 1)
        return big_check() ? 7 : CORRUPT;
    check_or_die();
    child = fork();
    if (child == 0)
        _exit(big_check() ? 3 : CORRUPT);
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 3)
        return 1;
    child = vfork();
    if (child == 0) {
        execl("/proc/self/exe", argv[0], "again", (char *)NULL);
        _exit(BROKEN);
    }
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 7)
        return 2;
    if (pthread_create(&t, NULL, thread, argv) || pthread_join(t, &ret) || ret != argv)
        return 3;
    printf("huge %lu\n", huge_text());
    return 0;
}
