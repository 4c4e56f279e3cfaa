/* Shows that a tracer which stops a thread shortens its write(2) to a pipe.

   The program writes blocks of 1 MiB to a pipe that a child reads slowly. It has no signal handler and its pipe blocks, so each write(2) is whole,
   unless a stop interrupts it. Attach a tracer while it runs, such as

   cc -o short_write short_write.c && ./short_write & timeout 1 strace -o /dev/null -p $!; wait

   The exit status is 1 if a write was short, and 0 if none was within ten seconds, or as many as the argument says. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 1 << 20, PART = 4096, SECONDS = 10, PAUSE = 200 };

static char block[BLOCK];

int main(int count, char **words)
{
    int ends[2], seconds = count > 1 ? atoi(words[1]) : SECONDS;
    if (pipe(ends)) {
        perror("pipe");
        return 2;
    }
    pid_t child = fork();
    if (child < 0) {
        perror("fork");
        return 2;
    }
    if (!child) {
        close(ends[1]);
        while (read(ends[0], block, PART) > 0)
            usleep(PAUSE);
        return 0;
    }
    /* Yama lets only ancestors trace, unless the program allows others. */
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    close(ends[0]);
    for (time_t end = time(NULL) + seconds; time(NULL) < end;) {
        ssize_t written = write(ends[1], block, BLOCK);
        if (written != BLOCK) {
            printf("write: %zd of %d bytes\n", written, BLOCK);
            return 1;
        }
    }
    puts("each write was whole");
    return 0;
}
