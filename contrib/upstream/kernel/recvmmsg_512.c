/* Shows that recvmmsg(2) returns an errno of the kernel's own, ERESTARTSYS (512), after a stop of the process.

   A child receives batches of four datagrams. The parent sends one, stops and continues the child, which waits for the second one then, and
   sends the rest. The child has no signal handler, so it should notice nothing. It prints what each call returned.

   cc -o recvmmsg_512 recvmmsg_512.c && ./recvmmsg_512
   The exit status is 1 if a call failed with errno 512, and 0 if none did. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BATCH = 4, CALLS = 3, PAUSE = 1000, OF_THE_KERNEL = 512 };

static int receive(int from)
{
    char bytes[BATCH][16];
    struct iovec parts[BATCH];
    struct mmsghdr batch[BATCH];
    int failed = 0;
    memset(batch, 0, sizeof batch);
    for (int i = 0; i < BATCH; i++) {
        parts[i] = (struct iovec){bytes[i], sizeof bytes[i]};
        batch[i].msg_hdr.msg_iov = &parts[i];
        batch[i].msg_hdr.msg_iovlen = 1;
    }
    for (int call = 0; call < CALLS; call++) {
        int count = recvmmsg(from, batch, BATCH, 0, NULL);
        if (count < 0)
            printf("call %d: -1, errno %d\n", call, errno);
        else
            printf("call %d: %d datagrams\n", call, count);
        failed |= count < 0 && errno == OF_THE_KERNEL;
    }
    return failed;
}

/* Waits until the child has received all, and sleeps in its call. */
static void wait_for(pid_t child, int socket)
{
    char path[64], state = 0;
    int left = 1;
    snprintf(path, sizeof path, "/proc/%d/stat", child);
    while (left || state != 'S') {
        usleep(PAUSE);
        FILE *stat = fopen(path, "r");
        if (!stat || ioctl(socket, FIONREAD, &left) || fscanf(stat, "%*d (%*[^)]) %c", &state) != 1)
            return;
        fclose(stat);
    }
}

int main(void)
{
    int ends[2], status;
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, ends)) {
        perror("socketpair");
        return 2;
    }
    pid_t child = fork();
    if (child < 0) {
        perror("fork");
        return 2;
    }
    if (!child)
        return receive(ends[0]);
    send(ends[1], "one", 3, 0);
    wait_for(child, ends[0]);
    kill(child, SIGSTOP);
    waitpid(child, NULL, WUNTRACED);
    kill(child, SIGCONT);
    /* Enough for all calls, however the first one ended. */
    for (int i = 0; i < CALLS * BATCH; i++)
        send(ends[1], "more", 4, 0);
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}
