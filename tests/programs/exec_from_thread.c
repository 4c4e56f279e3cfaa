/* Execs its arguments from a thread that is not its first. */
#include <pthread.h>
#include <unistd.h>

static void *run(void *argv) {
    execvp(((char **)argv)[0], argv);
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t thread;
    if (argc < 2 || pthread_create(&thread, NULL, run, argv + 1))
        return 99;
    for (;;)
        pause();
}
