/* Locks against everybody all that it can open of its own /proc directory and of the places named as arguments, those
   inside directories too. Says how many files it holds, and holds them until it is told to end; so do its other threads
   run on, for a tracer that stops one of them. */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include "../situation.h"

static int held;

static void lock(const char *path)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
        held++;
}

static void lock_all_in(const char *directory)
{
    char path[4096];
    DIR *dir = opendir(directory);
    lock(directory);
    if (!dir)
        return;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        lock(path);
    }
    closedir(dir);
}

static void *sleeper(void *none)
{
    for (;;)
        pause();
    return none;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    char own[64];
    if (pthread_create(&thread, NULL, sleeper, NULL))
        return BROKEN;
    check_or_die();
    snprintf(own, sizeof own, "/proc/%d", getpid());
    lock_all_in(own);
    snprintf(own, sizeof own, "/proc/%d/task/%d", getpid(), getpid());
    lock_all_in(own);
    for (int i = 1; i < argc; i++)
        lock_all_in(argv[i]);
    printf("pid %d\nheld %d\n", getpid(), held);
    ready_and_wait();
    check_or_die();
    return 7;
}
