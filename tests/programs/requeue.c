/* requeue HOW: the first thread waits on a futex. A second one moves it to another futex, says "ready", and reads its input; at a line it wakes
   who waits on the other, and says how many those were. HOW is "move", or "join": then the first thread waits for the end of the second,
   and a third one computes. Ends with 7 if the first one has woken. */
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include "situation.h"

static volatile int first, second, over;

static long futex(volatile int *at, int operation, int value, long most, volatile int *to, int compare)
{
    return syscall(SYS_futex, at, operation, value, most, to, compare);
}

static void *move(void *unused)
{
    (void)unused;
    /* Once it waits there, one is moved; nobody is woken, and the first word stays as it is. */
    while (futex(&first, FUTEX_CMP_REQUEUE, 0, 1, &second, 0) == 0)
        usleep(1000);
    puts("moved");
    ready_and_wait();
    over = 1;
    printf("woken %ld\n", futex(&second, FUTEX_WAKE, 1, 0, NULL, 0));
    fflush(stdout);
    /* Wherever else it is. */
    futex(&first, FUTEX_WAKE, 1, 0, NULL, 0);
    return NULL;
}

static void *ends(void *unused)
{
    (void)unused;
    ready_and_wait();
    over = 1;
    return NULL;
}

static void *compute(void *unused)
{
    (void)unused;
    while (!over)
        check_or_die();
    return NULL;
}

int main(int argc, char **argv)
{
    int joins = argc > 1 && !strcmp(argv[1], "join");
    pthread_t other, third;
    check_or_die();
    printf("pid %d\n", getpid());
    if (pthread_create(&other, NULL, joins ? ends : move, NULL) || (joins && pthread_create(&third, NULL, compute, NULL)))
        return BROKEN;
    while (!joins && !over)
        futex(&first, FUTEX_WAIT, 0, 0, NULL, 0);
    pthread_join(other, NULL);
    if (joins)
        pthread_join(third, NULL);
    check_or_die();
    return 7;
}
