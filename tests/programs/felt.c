/* felt ROW [none|restart|interrupt|quiet]: one thread that makes one system call over and over, and counts what it would not see without a stop:
   short counts, EINTR, other errors, timeouts that end early, and bytes that are lost, doubled or changed on their way. The second argument
   says whether signals come at random moments, and whether their handlers have SA_RESTART; "quiet" has the handlers and sends nothing. A
   call in which a handler ran may be short or return EINTR (that is "excused"); the number of handlers is read before and after each call,
   so this is exact. The program ends at the end of its input, prints one line of key=value, and exits with 7. */
#include "situation.h"
#include <dirent.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/bpf.h>
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/random.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>

/* Byte p of every stream is table[p % PERIOD]. A prime period shows every shift. The values leave the highest bit to the second writer. */
enum { BLOCK = 1 << 20, PERIOD = 1048573, PART = 65536, WAIT_MS = 20, SOCKET_WAIT_MS = 100 };
/* The kernel counts the timeouts of sockets in ticks. A host that has taken the processor away makes up for the ticks later, and the
   timeout ends that much earlier: 17 ms in a plain run. */
static const long ticks_ns = 60 * 1000 * 1000, socket_ns = SOCKET_WAIT_MS * 1000L * 1000 - ticks_ns;
static const long wait_ns = WAIT_MS * 1000L * 1000;
static char table[PERIOD + BLOCK], buffer[4 * BLOCK];

/* Shared with the helpers, which are processes: the program under test has one thread. */
static struct {
    volatile int stop;
    int word, lock;
    long got, other_sent, other_got, corrupt, parts;
} *shared;

static struct {
    long calls, shorter, eintr, other, last, early, wrong, excused, sent;
} n;
static volatile sig_atomic_t handlers;
static sig_atomic_t seen;
static int ends[2], more[2], fd = -1, allowed, touched;
static long began, lasted;
static pid_t helpers[8];
static int helping;

static void on_signal(int signal)
{
    (void)signal;
    handlers++;
}

static int must(long returned, const char *what)
{
    if (returned < 0) {
        perror(what);
        _exit(BROKEN);
    }
    return (int)returned;
}

static void unsupported(const char *why)
{
    printf("unsupported %s\nready\n", why);
    exit(7);
}

static long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000 + t.tv_nsec;
}

static int clean(void) { return handlers == seen; }

static void before(void)
{
    touched = !clean();
    seen = handlers;
    began = now();
    errno = 0;
}

/* Counts what the call returned. An error that the row allows is a timeout or a full buffer. A signal can also give another error, and
   one of recvmmsg shows only in the next call. */
static long after(long returned)
{
    int error = errno;
    lasted = now() - began;
    n.calls++;
    if (returned < 0 && error == EINTR)
        ++*(clean() ? &n.eintr : &n.excused);
    else if (returned < 0 && error != allowed) {
        ++*(clean() && !touched ? &n.other : &n.excused);
        n.last = error;
    }
    errno = error;
    return returned;
}

#define CALL(call) (before(), after(call))

/* A call that transfers less than it was asked for. */
static long whole(long returned, long wanted)
{
    if (returned >= 0 && returned < wanted)
        ++*(clean() ? &n.shorter : &n.excused);
    return returned;
}

/* A call that says that its time is over. */
static void timed(int over, long least)
{
    if (over && lasted < least)
        n.early++;
}

static const char *at(long offset) { return table + offset % PERIOD; }

static unsigned random_below(unsigned limit)
{
    static unsigned long state;
    if (!state)
        state = (unsigned long)now() * 2654435761u | 1;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)(state >> 20) % limit;
}

/* Forks a helper, which ends with this process. */
static pid_t helper(void (*work)(void))
{
    pid_t pid = must(fork(), "fork");
    if (pid) {
        helpers[helping++ % 8] = pid;
        return pid;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGALRM, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    work();
    _exit(0);
}

static void end_of(pid_t pid)
{
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

static void check(long offset, const char *bytes, long count)
{
    if (memcmp(bytes, at(offset), (size_t)count))
        shared->corrupt++;
}

/* The helper that reads a stream to its end, and the one that writes a stream. The first one pauses often, so that the writer waits in its
   call for most of the time and neither uses a processor all the time. */
static int from, to, unused;
static void reads_stream(void)
{
    long count;
    close(unused);
    while ((count = read(from, buffer, PART)) > 0) {
        check(shared->got, buffer, count);
        shared->got += count;
        if (!shared->stop && !random_below(4))
            usleep(random_below(2000));
    }
}

static void writes_stream(void)
{
    close(unused);
    while (!shared->stop) {
        long count = write(to, at(shared->other_sent), 1 + random_below(PART));
        if (count < 0)
            break;
        shared->other_sent += count;
        if (!random_below(64))
            usleep(random_below(3000));
    }
}

/* Ends the stream that this process writes, and waits until the helper has read it. */
static void finish_stream(void)
{
    close(to);
    end_of(helpers[0]);
}

static void to_reader(int mine, int other)
{
    to = unused = mine;
    from = other;
    helper(reads_stream);
    close(from);
}

static void from_writer(int mine, int other)
{
    from = unused = mine;
    to = other;
    helper(writes_stream);
    close(to);
}

static void stream_pair(int domain, int pair[2])
{
    if (domain == AF_UNIX) {
        must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair");
        return;
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int listener = must(socket(AF_INET, SOCK_STREAM, 0), "socket");
    must(bind(listener, (struct sockaddr *)&address, len), "bind");
    must(listen(listener, 1), "listen");
    must(getsockname(listener, (struct sockaddr *)&address, &len), "getsockname");
    pair[1] = must(socket(AF_INET, SOCK_STREAM, 0), "socket");
    must(connect(pair[1], (struct sockaddr *)&address, len), "connect");
    pair[0] = must(accept(listener, 0, 0), "accept");
    close(listener);
}

static void set_timeout(int socket, int option)
{
    struct timeval time = {0, SOCKET_WAIT_MS * 1000};
    must(setsockopt(socket, SOL_SOCKET, option, &time, sizeof time), "setsockopt");
}

static void sent(long count)
{
    if (count > 0)
        n.sent += count;
}

/* --- Pipes. --- */
static void pipe_row(void)
{
    must(pipe(ends), "pipe");
    to_reader(ends[1], ends[0]);
}
static void write_step(void) { sent(whole(CALL(write(to, at(n.sent), BLOCK)), BLOCK)); }
static void writev_step(void)
{
    struct iovec parts[4];
    for (int i = 0; i < 4; i++)
        parts[i] = (struct iovec){(char *)at(n.sent) + i * (BLOCK / 4), BLOCK / 4};
    sent(whole(CALL(writev(to, parts, 4)), BLOCK));
}
static void nonblock_row(void)
{
    pipe_row();
    fcntl(to, F_SETFL, O_NONBLOCK);
    allowed = EAGAIN;
}
static void nonblock_step(void) { sent(CALL(write(to, at(n.sent), BLOCK))); }

/* Two writers of records of PIPE_BUF bytes, which the kernel never tears. */
enum { RECORD = 4096 };
static void record(char *bytes, int writer, long number)
{
    memset(bytes, writer, RECORD);
    memcpy(bytes, &number, sizeof number);
}
static void reads_records(void)
{
    long next[2] = {0, 0}, have = 0, count;
    close(to);
    while ((count = read(from, buffer + have, RECORD - have)) > 0)
        if ((have += count) == RECORD) {
            int writer = buffer[RECORD - 1];
            if (writer != 0 && writer != 1)
                shared->corrupt++;
            else {
                record(buffer + RECORD, writer, next[writer]++);
                shared->corrupt += memcmp(buffer, buffer + RECORD, RECORD) != 0;
            }
            have = 0;
        }
    shared->got = next[0] * RECORD;
    shared->other_got = next[1] * RECORD;
}
static void writes_records(void)
{
    close(from);
    for (long number = 0; !shared->stop; number++) {
        record(buffer, 1, number);
        if (write(to, buffer, RECORD) != RECORD)
            shared->corrupt++;
        shared->other_sent += RECORD;
    }
}
static void small_row(void)
{
    must(pipe(ends), "pipe");
    from = ends[0];
    to = ends[1];
    helper(reads_records);
    helper(writes_records);
    close(from);
}
static void small_step(void)
{
    record(buffer, 0, n.sent / RECORD);
    sent(whole(CALL(write(to, buffer, RECORD)), RECORD));
}

/* Two writers of big blocks, whose bytes differ by the highest bit. */
static char highs[PERIOD + BLOCK];
static void reads_two(void)
{
    static char of[2][PART];
    long got[2] = {0, 0}, count;
    close(to);
    while ((count = read(from, buffer, PART)) > 0) {
        long have[2] = {0, 0};
        for (long i = 0; i < count; i++) {
            int writer = buffer[i] < 0;
            of[writer][have[writer]++] = buffer[i] & 0x7f;
        }
        for (int writer = 0; writer < 2; writer++) {
            check(got[writer], of[writer], have[writer]);
            got[writer] += have[writer];
        }
    }
    shared->got = got[0];
    shared->other_got = got[1];
}
static void writes_highs(void)
{
    close(from);
    while (!shared->stop) {
        long count = write(to, highs + shared->other_sent % PERIOD, BLOCK);
        shared->corrupt += count != BLOCK;
        shared->other_sent += count > 0 ? count : 0;
    }
}
static void writers_row(void)
{
    for (size_t i = 0; i < sizeof highs; i++)
        highs[i] = (char)(table[i] | 0x80);
    must(pipe(ends), "pipe");
    from = ends[0];
    to = ends[1];
    helper(reads_two);
    helper(writes_highs);
    close(from);
}

/* The reader goes away after some bytes, and the next pipe has another. */
static long in_this_pipe;
static void reads_some(void)
{
    long left = random_below(3 * BLOCK), count = 1, got = 0;
    close(to);
    while (left > 0 && (count = read(from, buffer, left < PART ? left : PART)) > 0) {
        check(got, buffer, count);
        got += count;
        left -= count;
    }
    shared->other_got = got;
}
static void gone_row(void) { allowed = EPIPE; }
static void gone_step(void)
{
    must(pipe(ends), "pipe");
    from = ends[0];
    to = ends[1];
    helping = 0;
    shared->other_got = 0;
    pid_t reader = helper(reads_some);
    close(from);
    long in_pipe = 0, count;
    int was_short = 0;
    while ((count = CALL(write(to, at(in_pipe), BLOCK))) >= 0 || errno == EINTR) {
        if (was_short)
            n.shorter++;
        in_pipe += count > 0 ? count : 0;
        was_short = count < BLOCK && clean();
    }
    close(to);
    end_of(reader);
    if (shared->other_got > in_pipe)
        n.wrong++;
    in_this_pipe += in_pipe;
    shared->other_got = 0;
}

/* Another process replaces the descriptor by that of another pipe. Each block goes to one of the two, whole. */
static int pipes[2][2];
static void reads_blocks(void)
{
    long run = 0, count;
    int value = -1;
    close(pipes[0][1]);
    close(pipes[1][1]);
    while ((count = read(from, buffer, PART)) > 0) {
        for (long i = 0; i < count; i++) {
            if (buffer[i] != value) {
                if (run % BLOCK)
                    __atomic_fetch_add(&shared->parts, 1, __ATOMIC_RELAXED);
                run = 0;
                value = buffer[i];
            }
            run++;
        }
        __atomic_fetch_add(&shared->got, count, __ATOMIC_RELAXED);
    }
    if (run % BLOCK)
        __atomic_fetch_add(&shared->parts, 1, __ATOMIC_RELAXED);
}
static void replaced_row(void)
{
    must(pipe(pipes[0]), "pipe");
    must(pipe(pipes[1]), "pipe");
    for (int i = 0; i < 2; i++) {
        from = pipes[i][0];
        helper(reads_blocks);
    }
    close(pipes[0][0]);
    close(pipes[1][0]);
    to = must(dup(pipes[0][1]), "dup");
    /* It shares the table of descriptors and nothing else, so that the program has one thread. */
    pid_t pid = (pid_t)must(syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0), "clone");
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int i = 1; !shared->stop; i ^= 1) {
            usleep(random_below(2000));
            dup2(pipes[i][1], to);
        }
        syscall(SYS_exit, 0);
    }
    helpers[2] = pid;
}
static void replaced_step(void)
{
    static int number;
    memset(buffer, number++ % 127, BLOCK);
    sent(whole(CALL(write(to, buffer, BLOCK)), BLOCK));
}
static void replaced_finish(void)
{
    end_of(helpers[2]);
    close(to);
    close(pipes[0][1]);
    close(pipes[1][1]);
    end_of(helpers[0]);
    end_of(helpers[1]);
    /* A short block is counted as such. */
    if (!n.excused && !n.shorter)
        shared->corrupt += shared->parts;
}

static void from_pipe_row(void)
{
    must(pipe(ends), "pipe");
    from_writer(ends[0], ends[1]);
}
static void read_step(void)
{
    long count = CALL(read(from, buffer, PART));
    if (count > 0) {
        check(shared->got, buffer, count);
        shared->got += count;
    }
}
/* The writer's bytes must all have come. It ends by itself, and the rest is read here. */
/* A signal in a recvmmsg that had received something: the next call on the socket fails with this number of the kernel's own. */
#define ERESTARTSYS 512

static void finish_from(void)
{
    long count;
    while ((count = read(from, buffer, PART)) > 0 || (count < 0 && (errno == EINTR || errno == ERESTARTSYS)))
        if (count > 0) {
            check(shared->got, buffer, count);
            shared->got += count;
        }
    n.sent = shared->other_sent;
    shared->other_sent = shared->other_got = 0;
}

/* Wakes the program now and then, and once more after the end was asked for, so that it does not sleep for ever. */
static void each_time(void (*wake)(void), unsigned pause)
{
    int last;
    do {
        last = shared->stop;
        wake();
        usleep(random_below(pause));
    } while (!last);
}

static void open_fifo(void) { close(open("fifo", O_WRONLY)); }
static void opens_fifo(void) { each_time(open_fifo, 1000); }
static void fifo_row(void)
{
    must(mkfifo("fifo", 0600), "mkfifo");
    helper(opens_fifo);
}
static void fifo_step(void) { close((int)CALL(open("fifo", O_RDONLY))); }

/* From a pipe to a pipe: short counts are normal, but the bytes are not to be lost. */
static int source;
static void splice_row(void)
{
    from_pipe_row();
    source = from;
    must(pipe(more), "pipe");
    from = more[0];
    to = unused = more[1];
    helper(reads_stream);
    close(from);
}
static void splice_step(void) { sent(CALL(splice(source, NULL, to, NULL, PART, 0))); }
static void splice_finish(void)
{
    long count;
    while ((count = splice(source, NULL, to, NULL, PART, 0)) > 0 || (count < 0 && errno == EINTR))
        sent(count);
    close(to);
    end_of(helpers[1]);
    if (n.sent != shared->other_sent)
        n.wrong++;
    shared->other_sent = 0;
}
static void vmsplice_step(void)
{
    struct iovec part = {(char *)at(n.sent), BLOCK / 4};
    sent(CALL(vmsplice(to, &part, 1, 0)));
}

/* --- Files. --- */
static void source_file(void)
{
    fd = must(memfd_create("source", 0), "memfd_create");
    if (write(fd, table, sizeof table) != sizeof table)
        must(-1, "write");
}
static long send_file(long wanted)
{
    off_t offset = n.sent % PERIOD, start = offset;
    long count = CALL(sendfile(to, fd, &offset, (size_t)wanted));
    if (count >= 0 && offset - start != count)
        n.wrong++;
    sent(count);
    return count;
}
static void sendfile_row(void)
{
    source_file();
    stream_pair(AF_INET, ends);
    to_reader(ends[1], ends[0]);
}
static void sendfile_step(void) { whole(send_file(BLOCK), BLOCK); }
static void sendfile_pipe_row(void)
{
    source_file();
    pipe_row();
}
static void sendfile_pipe_step(void) { send_file(BLOCK); }
static void copied(long count, off_t end)
{
    whole(count, BLOCK);
    if (count < 0)
        return;
    if (end != count || pread(more[0], buffer, BLOCK, 0) < count || memcmp(buffer, table, (size_t)count))
        n.wrong++;
}
static void copy_row(void)
{
    source_file();
    more[0] = must(memfd_create("copy", 0), "memfd_create");
}
static void copy_step(void)
{
    off_t in = 0, out = 0;
    long count = CALL(copy_file_range(fd, &in, more[0], &out, BLOCK, 0));
    copied(count, in);
}
static void sendfile_file_step(void)
{
    off_t in = 0;
    lseek(more[0], 0, SEEK_SET);
    long count = CALL(sendfile(more[0], fd, &in, BLOCK));
    copied(count, in);
}
static void read_file_step(void) { whole(CALL(pread(fd, buffer, BLOCK, 0)), BLOCK); }
static void write_file_step(void) { whole(CALL(pwrite(fd, table, BLOCK, 0)), BLOCK); }
static void getrandom_step(void) { whole(CALL(getrandom(buffer, BLOCK, 0)), BLOCK); }
static void urandom_row(void) { fd = must(open("/dev/urandom", O_RDWR), "/dev/urandom"); }
static void zero_row(void) { fd = must(open("/dev/zero", O_RDONLY), "/dev/zero"); }
static void device_step(void) { whole(CALL(read(fd, buffer, sizeof buffer)), sizeof buffer); }
static void urandom_step(void) { whole(CALL(read(fd, buffer, BLOCK)), BLOCK); }
static void urandom_write_step(void) { whole(CALL(write(fd, table, BLOCK)), BLOCK); }
static void fallocate_row(void) { fd = must(memfd_create("allocated", 0), "memfd_create"); }
static void fallocate_step(void)
{
    CALL(fallocate(fd, 0, 0, 16 << 20));
    must(ftruncate(fd, 0), "ftruncate");
}
enum { ENTRIES = 500 };
static void getdents_row(void)
{
    char name[32];
    must(mkdir("entries", 0700), "mkdir");
    for (int i = 0; i < ENTRIES; i++) {
        snprintf(name, sizeof name, "entries/%d", i);
        close(must(open(name, O_CREAT | O_WRONLY, 0600), "open"));
    }
    fd = must(open("entries", O_RDONLY | O_DIRECTORY), "open");
}
static void getdents_step(void)
{
    long count, entries = 0;
    lseek(fd, 0, SEEK_SET);
    while ((count = CALL(syscall(SYS_getdents64, fd, buffer, PART))) > 0)
        for (long i = 0; i < count; i += ((struct dirent64 *)(buffer + i))->d_reclen)
            entries++;
    if (count == 0 && entries != ENTRIES + 2)
        n.wrong++;
}

static void pty_row(void)
{
    struct termios raw;
    ends[0] = must(posix_openpt(O_RDWR | O_NOCTTY), "posix_openpt");
    must(grantpt(ends[0]) | unlockpt(ends[0]), "unlockpt");
    ends[1] = must(open(ptsname(ends[0]), O_RDWR | O_NOCTTY), "pts");
    tcgetattr(ends[1], &raw);
    cfmakeraw(&raw);
    tcsetattr(ends[1], TCSANOW, &raw);
}
static void write_pty_row(void)
{
    pty_row();
    to_reader(ends[1], ends[0]);
}
/* A read at the end of a terminal can return old bytes once more, so the bytes are counted before. */
static void write_pty_finish(void)
{
    for (int ms = 0; shared->got < n.sent && ms < 5000; ms++)
        usleep(1000);
    kill(helpers[0], SIGKILL);
    end_of(helpers[0]);
}
static void write_pty_step(void) { sent(whole(CALL(write(to, at(n.sent), PART)), PART)); }
static void read_pty_row(void)
{
    pty_row();
    from_writer(ends[1], ends[0]);
}
static void read_pty_finish(void)
{
    /* The writer may wait for room, or count what it wrote. */
    kill(helpers[0], SIGKILL);
    end_of(helpers[0]);
    shared->got = shared->other_sent = 0;
}

/* --- Sockets. --- */
static void send_row(void)
{
    stream_pair(AF_UNIX, ends);
    to_reader(ends[1], ends[0]);
}
static void send_tcp_row(void)
{
    stream_pair(AF_INET, ends);
    to_reader(ends[1], ends[0]);
}
static void send_step(void) { sent(whole(CALL(send(to, at(n.sent), BLOCK, 0)), BLOCK)); }
static void send_timeout_row(void)
{
    send_row();
    set_timeout(to, SO_SNDTIMEO);
    allowed = EAGAIN;
}
static void send_timeout_step(void)
{
    long count = CALL(send(to, at(n.sent), BLOCK, 0));
    sent(count);
    if (count < BLOCK && (count >= 0 || errno == EAGAIN) && clean()) {
        /* A wait of the full time is the only other reason. */
        if (count >= 0 && lasted < socket_ns)
            n.shorter++;
        timed(count < 0, socket_ns);
    }
}
static void dontwait_row(void)
{
    send_row();
    allowed = EAGAIN;
}
static void dontwait_step(void) { sent(CALL(send(to, at(n.sent), BLOCK, MSG_DONTWAIT))); }

/* Each block carries a descriptor. The reader counts them. */
static void reads_passed(void)
{
    long count;
    close(unused);
    do {
        union { struct cmsghdr head; char room[256]; } control;
        struct iovec part = {buffer, PART};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
        count = recvmsg(from, &message, MSG_CMSG_CLOEXEC);
        if (count <= 0)
            break;
        check(shared->got, buffer, count);
        shared->got += count;
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
            for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
                close(((int *)CMSG_DATA(c))[i]);
                shared->other_got++;
            }
    } while (1);
}
static void scm_row(void)
{
    stream_pair(AF_UNIX, ends);
    to = unused = ends[1];
    from = ends[0];
    helper(reads_passed);
    close(from);
}
static void scm_step(void)
{
    union { struct cmsghdr head; char room[CMSG_SPACE(sizeof(int))]; } control = {
        .head = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))}};
    *(int *)CMSG_DATA(&control.head) = 1;
    struct iovec part = {(char *)at(n.sent), BLOCK};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    long count = whole(CALL(sendmsg(to, &message, 0)), BLOCK);
    sent(count);
    shared->other_sent += count > 0;
}

enum { DATAGRAM = 1000, BATCH = 16 };
static void reads_datagrams(void)
{
    long count;
    close(unused);
    while ((count = recv(from, buffer, PART, 0)) > 0) {
        if (count != DATAGRAM)
            shared->corrupt++;
        else
            check(shared->got, buffer, count);
        shared->got += count;
    }
}
static void datagram_pair(void) { must(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), "socketpair"); }
static void dgram_row(void)
{
    datagram_pair();
    to = unused = ends[1];
    from = ends[0];
    helper(reads_datagrams);
    close(from);
}
static void dgram_step(void) { sent(whole(CALL(send(to, at(n.sent), DATAGRAM, 0)), DATAGRAM)); }
static struct mmsghdr batch[BATCH];
static struct iovec batch_parts[BATCH];
static void fill_batch(const char *(*where)(long), long offset)
{
    for (int i = 0; i < BATCH; i++) {
        batch_parts[i] = (struct iovec){(char *)where(offset + i * DATAGRAM), DATAGRAM};
        batch[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &batch_parts[i], .msg_iovlen = 1}};
    }
}
static void sendmmsg_step(void)
{
    fill_batch(at, n.sent);
    long count = whole(CALL(sendmmsg(to, batch, BATCH, 0)), BATCH);
    for (long i = 0; i < count; i++) {
        whole(batch[i].msg_len, DATAGRAM);
        n.sent += batch[i].msg_len;
    }
}
static void sends_datagrams(void)
{
    close(unused);
    while (!shared->stop && send(to, at(shared->other_sent), DATAGRAM, 0) == DATAGRAM) {
        shared->other_sent += DATAGRAM;
        usleep(random_below(500));
    }
}
static const char *in_buffer(long offset) { return buffer + offset; }
static void recvmmsg_row(void)
{
    datagram_pair();
    from = unused = ends[0];
    to = ends[1];
    helper(sends_datagrams);
    close(to);
}
static void recvmmsg_step(void)
{
    fill_batch(in_buffer, 0);
    long count = CALL(recvmmsg(from, batch, BATCH, 0, NULL));
    if (!shared->stop)
        whole(count, BATCH);
    for (long i = 0; i < count && batch[i].msg_len; i++) {
        check(shared->got, in_buffer(i * DATAGRAM), DATAGRAM);
        shared->got += batch[i].msg_len;
    }
}

static void recv_row(void)
{
    stream_pair(AF_UNIX, ends);
    from = ends[0];
    set_timeout(from, SO_RCVTIMEO);
    allowed = EAGAIN;
}
static void recv_step(void)
{
    long count = CALL(recv(from, buffer, 8, 0));
    timed(count < 0 && errno == EAGAIN, socket_ns);
}
static void recv_block_row(void)
{
    stream_pair(AF_UNIX, ends);
    from_writer(ends[0], ends[1]);
}
static void recv_all_tcp_row(void)
{
    stream_pair(AF_INET, ends);
    from_writer(ends[0], ends[1]);
}
static void recv_all_step(void)
{
    long count = CALL(recv(from, buffer, BLOCK, MSG_WAITALL));
    if (!shared->stop)
        whole(count, BLOCK);
    if (count > 0) {
        check(shared->got, buffer, count);
        shared->got += count;
    }
}

static struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "socket"};
static void connect_once(void)
{
    int other = socket(AF_UNIX, SOCK_STREAM, 0);
    connect(other, (struct sockaddr *)&name, sizeof name);
    close(other);
}
static void connects(void) { each_time(connect_once, 2000); }
static void listen_at(int backlog)
{
    fd = must(socket(AF_UNIX, SOCK_STREAM, 0), "socket");
    must(bind(fd, (struct sockaddr *)&name, sizeof name), "bind");
    must(listen(fd, backlog), "listen");
}
static void accept_row(void)
{
    listen_at(8);
    helper(connects);
}
static void accept_step(void) { close((int)CALL(accept(fd, 0, 0))); }
static void accept_timeout_row(void)
{
    listen_at(8);
    set_timeout(fd, SO_RCVTIMEO);
    allowed = EAGAIN;
}
static void accept_timeout_step(void) { timed(CALL(accept(fd, 0, 0)) < 0 && errno == EAGAIN, socket_ns); }
static void connect_timeout_row(void)
{
    listen_at(0);
    must(connect(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&name, sizeof name), "connect");
    allowed = EAGAIN;
}
static void connect_timeout_step(void)
{
    int mine = must(socket(AF_UNIX, SOCK_STREAM, 0), "socket");
    set_timeout(mine, SO_SNDTIMEO);
    timed(CALL(connect(mine, (struct sockaddr *)&name, sizeof name)) < 0 && errno == EAGAIN, socket_ns);
    close(mine);
}
static void linger_step(void)
{
    struct linger one_second = {1, 1};
    stream_pair(AF_INET, ends);
    while (send(ends[1], table, BLOCK, MSG_DONTWAIT) > 0)
        ;
    must(setsockopt(ends[1], SOL_SOCKET, SO_LINGER, &one_second, sizeof one_second), "setsockopt");
    CALL(close(ends[1]));
    if (lasted < 1000000000 - ticks_ns)
        ++*(clean() ? &n.early : &n.excused);
    close(ends[0]);
}

/* --- Waits. --- */
static const struct timespec a_while = {0, WAIT_MS * 1000 * 1000};
static struct pollfd one;
static void poll_row(void)
{
    must(pipe(ends), "pipe");
    one = (struct pollfd){.fd = ends[0], .events = POLLIN};
    fd = must(epoll_create1(0), "epoll_create1");
    struct epoll_event in = {.events = EPOLLIN};
    must(epoll_ctl(fd, EPOLL_CTL_ADD, ends[0], &in), "epoll_ctl");
}
static struct epoll_event event;
static sigset_t mask;
static void epoll_wait_step(void) { timed(CALL(epoll_wait(fd, &event, 1, WAIT_MS)) == 0, wait_ns); }
static void epoll_pwait_step(void) { timed(CALL(epoll_pwait(fd, &event, 1, WAIT_MS, &mask)) == 0, wait_ns); }
static void epoll_pwait2_step(void) { timed(CALL(syscall(SYS_epoll_pwait2, fd, &event, 1, &a_while, &mask, 8)) == 0, wait_ns); }
static void poll_step(void) { timed(CALL(poll(&one, 1, WAIT_MS)) == 0, wait_ns); }
static void ppoll_step(void) { timed(CALL(ppoll(&one, 1, &a_while, &mask)) == 0, wait_ns); }
static void ppoll_readonly_step(void) { timed(CALL(syscall(SYS_ppoll, &one, 1, &a_while, NULL, 8)) == 0, wait_ns); }
static fd_set set;
static void select_step(void)
{
    struct timeval time = {0, WAIT_MS * 1000};
    FD_ZERO(&set);
    FD_SET(ends[0], &set);
    timed(CALL(select(ends[0] + 1, &set, 0, 0, &time)) == 0, wait_ns);
}
static void pselect_step(void)
{
    FD_ZERO(&set);
    FD_SET(ends[0], &set);
    timed(CALL(pselect(ends[0] + 1, &set, 0, 0, &a_while, &mask)) == 0, wait_ns);
}
static void nanosleep_step(void) { timed(CALL(nanosleep(&a_while, NULL)) == 0, wait_ns); }
static void nanosleep_rem_step(void)
{
    struct timespec left = {-1, -1};
    long returned = CALL(nanosleep(&a_while, &left));
    timed(returned == 0, wait_ns);
    if (returned == 0 && left.tv_nsec != -1)
        ++*(clean() ? &n.wrong : &n.excused);
}
static struct timespec soon(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    t.tv_nsec += wait_ns;
    if (t.tv_nsec >= 1000000000) {
        t.tv_nsec -= 1000000000;
        t.tv_sec++;
    }
    return t;
}
static void clock_nanosleep_step(void)
{
    struct timespec until = soon(CLOCK_MONOTONIC);
    before();
    int error = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    errno = error;
    after(error ? -1 : 0);
    /* The clock was read before the call began. */
    if (!error && now() < until.tv_sec * 1000000000 + until.tv_nsec)
        n.early++;
}
static void timeout_row(void) { allowed = ETIMEDOUT; }
static void futex_timeout_step(void)
{
    timed(CALL(syscall(SYS_futex, &shared->lock, FUTEX_WAIT, 0, &a_while, 0, 0)) < 0 && errno == ETIMEDOUT, wait_ns);
}
static void futex_waitv_step(void)
{
    struct futex_waitv one_word = {.uaddr = (uintptr_t)&shared->lock, .flags = FUTEX_32};
    struct timespec until = soon(CLOCK_MONOTONIC);
    if (CALL(syscall(SYS_futex_waitv, &one_word, 1, 0, &until, CLOCK_MONOTONIC)) < 0 && errno == ENOSYS)
        unsupported("futex_waitv");
}
static void waitv_row(void)
{
    allowed = ETIMEDOUT;
    futex_waitv_step();
}
static void wake_futex(void)
{
    __atomic_fetch_add(&shared->word, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &shared->word, FUTEX_WAKE, 1, 0, 0, 0);
}
static void wakes(void) { each_time(wake_futex, 2000); }
static void futex_row(void)
{
    allowed = EAGAIN;
    helper(wakes);
}
static void futex_step(void)
{
    int value = __atomic_load_n(&shared->word, __ATOMIC_SEQ_CST);
    CALL(syscall(SYS_futex, &shared->word, FUTEX_WAIT, value, 0, 0, 0));
}
static void holds_lock(void)
{
    while (!shared->stop) {
        syscall(SYS_futex, &shared->lock, FUTEX_LOCK_PI, 0, 0, 0, 0);
        usleep(random_below(2000));
        syscall(SYS_futex, &shared->lock, FUTEX_UNLOCK_PI, 0, 0, 0, 0);
    }
}
static void futex_pi_row(void) { helper(holds_lock); }
static void futex_pi_step(void)
{
    if (CALL(syscall(SYS_futex, &shared->lock, FUTEX_LOCK_PI, 0, 0, 0, 0)) == 0)
        syscall(SYS_futex, &shared->lock, FUTEX_UNLOCK_PI, 0, 0, 0, 0);
}
static void sigtimedwait_row(void)
{
    sigset_t user;
    sigemptyset(&user);
    sigaddset(&user, SIGUSR1);
    sigaddset(&user, SIGUSR2);
    sigprocmask(SIG_BLOCK, &user, NULL);
    mask = user;
    allowed = EAGAIN;
}
static void sigtimedwait_step(void) { timed(CALL(sigtimedwait(&mask, NULL, &a_while)) < 0 && errno == EAGAIN, wait_ns); }
static void raise_user(void) { kill(getppid(), SIGUSR2); }
static void raises(void) { each_time(raise_user, 2000); }
static void signalfd_row(void)
{
    sigtimedwait_row();
    fd = must(signalfd(-1, &mask, 0), "signalfd");
    helper(raises);
}
static void event_step(void) { CALL(read(fd, buffer, 4096)); }
static void write_event(void)
{
    unsigned long value = 1;
    shared->other_sent += write(fd, &value, sizeof value) > 0;
}
static void writes_event(void) { each_time(write_event, 2000); }
static void eventfd_row(void)
{
    fd = must(eventfd(0, 0), "eventfd");
    helper(writes_event);
}
static void eventfd_step(void)
{
    unsigned long value = 0;
    if (CALL(read(fd, &value, sizeof value)) == sizeof value)
        shared->other_got += (long)value;
}
static void eventfd_finish(void)
{
    unsigned long value = 0;
    end_of(helpers[0]);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    if (read(fd, &value, sizeof value) == sizeof value)
        shared->other_got += (long)value;
}
static void timerfd_row(void)
{
    struct itimerspec often = {{0, 3000000}, {0, 3000000}};
    fd = must(timerfd_create(CLOCK_MONOTONIC, 0), "timerfd_create");
    must(timerfd_settime(fd, 0, &often, NULL), "timerfd_settime");
}
static void touch(void) { close(open("touched", O_CREAT | O_WRONLY, 0600)); }
static void touches(void) { each_time(touch, 2000); }
static void inotify_row(void)
{
    fd = must(inotify_init1(0), "inotify_init1");
    must(inotify_add_watch(fd, ".", IN_OPEN | IN_CLOSE), "inotify_add_watch");
    helper(touches);
}

static int semaphores, queue;
static void semop_row(void)
{
    semaphores = must(semget(IPC_PRIVATE, 1, 0600), "semget");
    allowed = EAGAIN;
}
static void semtimedop_step(void)
{
    struct sembuf down = {0, -1, 0};
    timed(CALL(semtimedop(semaphores, &down, 1, &a_while)) < 0 && errno == EAGAIN, wait_ns);
}
static void up_once(void)
{
    struct sembuf up = {0, 1, 0};
    shared->other_sent += !semop(semaphores, &up, 1);
}
static void ups(void) { each_time(up_once, 2000); }
static void semop_up_row(void)
{
    semop_row();
    helper(ups);
}
static void semop_step(void)
{
    struct sembuf down = {0, -1, 0};
    shared->other_got += CALL(semop(semaphores, &down, 1)) == 0;
}
static void semop_finish(void)
{
    if (helping) {
        end_of(helpers[0]);
        shared->other_got += semctl(semaphores, 0, GETVAL);
    }
    semctl(semaphores, 0, IPC_RMID);
}
static struct { long type; char text[8]; } message = {1, "message"};
static void send_message(void) { shared->other_sent += !msgsnd(queue, &message, sizeof message.text, 0); }
static void sends_messages(void) { each_time(send_message, 2000); }
static void msgrcv_row(void)
{
    queue = must(msgget(IPC_PRIVATE, 0600), "msgget");
    helper(sends_messages);
}
static void msgrcv_step(void) { shared->other_got += CALL(msgrcv(queue, &message, sizeof message.text, 0, 0)) >= 0; }
static void msgrcv_finish(void)
{
    end_of(helpers[0]);
    while (msgrcv(queue, &message, sizeof message.text, 0, IPC_NOWAIT) >= 0)
        shared->other_got++;
    msgctl(queue, IPC_RMID, NULL);
}
static void mq_row(void)
{
    char path[32];
    struct mq_attr few = {.mq_maxmsg = 1, .mq_msgsize = 8};
    snprintf(path, sizeof path, "/tiexec-felt-%d", getpid());
    fd = must(mq_open(path, O_CREAT | O_RDWR, 0600, &few), "mq_open");
    mq_unlink(path);
    allowed = ETIMEDOUT;
}
static void mq_step(void)
{
    struct timespec until = soon(CLOCK_REALTIME);
    CALL(mq_timedreceive(fd, buffer, 8, NULL, &until));
}

static void locks(void)
{
    int mine = open("lock", O_RDWR);
    while (!shared->stop) {
        flock(mine, LOCK_EX);
        usleep(random_below(2000));
        flock(mine, LOCK_UN);
        usleep(random_below(100));
    }
}
static void flock_row(void)
{
    fd = must(open("lock", O_CREAT | O_RDWR, 0600), "open");
    helper(locks);
}
static void flock_step(void)
{
    CALL(flock(fd, LOCK_EX));
    flock(fd, LOCK_UN);
}
static struct flock range(short type) { return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_len = 1}; }
static void locks_range(void)
{
    while (!shared->stop) {
        struct flock lock = range(F_WRLCK), unlock = range(F_UNLCK);
        fcntl(fd, F_SETLKW, &lock);
        usleep(random_below(2000));
        fcntl(fd, F_SETLK, &unlock);
        usleep(random_below(100));
    }
}
static void setlkw_row(void)
{
    fd = must(open("lock", O_CREAT | O_RDWR, 0600), "open");
    helper(locks_range);
}
static void setlkw_step(void)
{
    struct flock lock = range(F_WRLCK), unlock = range(F_UNLCK);
    CALL(fcntl(fd, F_SETLKW, &lock));
    fcntl(fd, F_SETLK, &unlock);
}

static void waitid_step(void)
{
    siginfo_t info = {0};
    pid_t pid = (pid_t)CALL(fork());
    if (!pid) {
        usleep(1000);
        _exit(5);
    }
    long returned;
    while ((returned = CALL(waitid(P_PID, (id_t)pid, &info, WEXITED))) < 0 && errno == EINTR)
        ;
    if (returned || info.si_status != 5)
        n.wrong++;
}
/* A debugger that is itself attached to sees each stop of its tracee once. */
static void raises_by_itself(void)
{
    signal(SIGUSR1, SIG_IGN);
    while (1) {
        raise(SIGUSR1);
        usleep(random_below(1000));
    }
}
static void debugger_row(void) { must(ptrace(PTRACE_SEIZE, helper(raises_by_itself), 0, 0), "ptrace"); }
static void debugger_step(void)
{
    int status = 0;
    if (CALL(waitpid(helpers[0], &status, __WALL)) < 0)
        return;
    if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGUSR1)
        n.wrong++;
    CALL(ptrace(PTRACE_CONT, helpers[0], 0, 0));
}
static void debugger_finish(void) { kill(helpers[0], SIGKILL); }

static aio_context_t aio;
static void aio_row(void)
{
    if (syscall(SYS_io_setup, 8, &aio))
        unsupported("io_setup");
}
static void io_getevents_step(void)
{
    struct io_event completion;
    struct timespec time = a_while;
    timed(CALL(syscall(SYS_io_getevents, aio, 1, 1, &completion, &time)) == 0, wait_ns);
}

/* A ring with one timeout of WAIT_MS after the other. */
static struct {
    struct io_uring_params p;
    char *sq, *cq;
    struct io_uring_sqe *entries;
} ring;
static void ring_row(void)
{
    fd = (int)syscall(SYS_io_uring_setup, 4, &ring.p);
    if (fd < 0)
        unsupported("io_uring_setup");
    ring.sq = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQ_RING);
    ring.cq = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_CQ_RING);
    ring.entries = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQES);
}
static unsigned *word_of(char *part, unsigned offset) { return (unsigned *)(part + offset); }
static void put_timeout(void)
{
    static struct __kernel_timespec time = {0, WAIT_MS * 1000 * 1000};
    unsigned *tail = word_of(ring.sq, ring.p.sq_off.tail), at_slot = *tail & (ring.p.sq_entries - 1);
    ring.entries[at_slot] = (struct io_uring_sqe){.opcode = IORING_OP_TIMEOUT, .fd = -1, .addr = (uintptr_t)&time, .len = 1};
    word_of(ring.sq, ring.p.sq_off.array)[at_slot] = at_slot;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
}
static int completed(void)
{
    unsigned *head = word_of(ring.cq, ring.p.cq_off.head);
    if (*head == __atomic_load_n(word_of(ring.cq, ring.p.cq_off.tail), __ATOMIC_ACQUIRE))
        return 0;
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    return 1;
}
static void ring_wait_step(void)
{
    put_timeout();
    must(syscall(SYS_io_uring_enter, fd, 1, 0, 0, NULL, 0), "io_uring_enter");
    long returned = 0;
    while ((returned = CALL(syscall(SYS_io_uring_enter, fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0))) < 0 && errno == EINTR)
        ;
    if (!completed())
        n.wrong++;
}
static void ring_submit_step(void)
{
    put_timeout();
    CALL(syscall(SYS_io_uring_enter, fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0));
    int short_wait = 0;
    while (!completed()) {
        short_wait = 1;
        syscall(SYS_io_uring_enter, fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
    }
    if (short_wait)
        ++*(clean() ? &n.shorter : &n.excused);
}

static void bpf_step(void)
{
    enum { INSTRUCTIONS = 30000 };
    struct bpf_insn *program = (struct bpf_insn *)buffer;
    for (int i = 0; i < INSTRUCTIONS; i++)
        program[i] = (struct bpf_insn){.code = BPF_ALU64 | BPF_MOV | BPF_K, .imm = i};
    program[INSTRUCTIONS - 1] = (struct bpf_insn){.code = BPF_JMP | BPF_EXIT};
    union bpf_attr load = {.prog_type = BPF_PROG_TYPE_SOCKET_FILTER, .insn_cnt = INSTRUCTIONS,
                           .insns = (uintptr_t)program, .license = (uintptr_t)"GPL"};
    long loaded = CALL(syscall(SYS_bpf, BPF_PROG_LOAD, &load, sizeof load));
    if (loaded < 0 && (errno == EPERM || errno == ENOSYS))
        unsupported("bpf");
    if (loaded >= 0)
        close((int)loaded);
}

/* Not a call: a load for the machine. */
static void busy_step(void)
{
    for (volatile int i = 0; i < 1000000; i++)
        ;
}

static const struct row {
    const char *name;
    void (*prepare)(void), (*step)(void), (*finish)(void);
} rows[] = {
    {"write", pipe_row, write_step, finish_stream},
    {"writev", pipe_row, writev_step, finish_stream},
    {"write_nonblock", nonblock_row, nonblock_step, finish_stream},
    {"write_small", small_row, small_step, finish_stream},
    {"write_writers", writers_row, write_step, finish_stream},
    {"write_gone", gone_row, gone_step, NULL},
    {"write_replaced", replaced_row, replaced_step, replaced_finish},
    {"read", from_pipe_row, read_step, finish_from},
    {"open_fifo", fifo_row, fifo_step, NULL},
    {"splice", splice_row, splice_step, splice_finish},
    {"vmsplice", pipe_row, vmsplice_step, finish_stream},
    {"sendfile", sendfile_row, sendfile_step, finish_stream},
    {"sendfile_pipe", sendfile_pipe_row, sendfile_pipe_step, finish_stream},
    {"sendfile_file", copy_row, sendfile_file_step, NULL},
    {"copy_file_range", copy_row, copy_step, NULL},
    {"read_file", source_file, read_file_step, NULL},
    {"write_file", source_file, write_file_step, NULL},
    {"getrandom", NULL, getrandom_step, NULL},
    {"urandom", urandom_row, urandom_step, NULL},
    {"urandom_write", urandom_row, urandom_write_step, NULL},
    {"zero", zero_row, device_step, NULL},
    {"fallocate", fallocate_row, fallocate_step, NULL},
    {"getdents64", getdents_row, getdents_step, NULL},
    {"write_pty", write_pty_row, write_pty_step, NULL},
    {"read_pty", read_pty_row, read_step, read_pty_finish},
    {"send", send_row, send_step, finish_stream},
    {"send_tcp", send_tcp_row, send_step, finish_stream},
    {"send_timeout", send_timeout_row, send_timeout_step, finish_stream},
    {"send_dontwait", dontwait_row, dontwait_step, finish_stream},
    {"send_scm", scm_row, scm_step, finish_stream},
    {"send_dgram", dgram_row, dgram_step, finish_stream},
    {"sendmmsg", dgram_row, sendmmsg_step, finish_stream},
    {"recvmmsg", recvmmsg_row, recvmmsg_step, finish_from},
    {"recv", recv_row, recv_step, NULL},
    {"recv_block", recv_block_row, read_step, finish_from},
    {"recv_all", recv_block_row, recv_all_step, finish_from},
    {"recv_all_tcp", recv_all_tcp_row, recv_all_step, finish_from},
    {"accept", accept_row, accept_step, NULL},
    {"accept_timeout", accept_timeout_row, accept_timeout_step, NULL},
    {"connect_timeout", connect_timeout_row, connect_timeout_step, NULL},
    {"close_linger", NULL, linger_step, NULL},
    {"epoll_wait", poll_row, epoll_wait_step, NULL},
    {"epoll_pwait", poll_row, epoll_pwait_step, NULL},
    {"epoll_pwait2", poll_row, epoll_pwait2_step, NULL},
    {"poll", poll_row, poll_step, NULL},
    {"ppoll", poll_row, ppoll_step, NULL},
    {"ppoll_readonly", poll_row, ppoll_readonly_step, NULL},
    {"select", poll_row, select_step, NULL},
    {"pselect", poll_row, pselect_step, NULL},
    {"nanosleep", NULL, nanosleep_step, NULL},
    {"nanosleep_rem", NULL, nanosleep_rem_step, NULL},
    {"clock_nanosleep", NULL, clock_nanosleep_step, NULL},
    {"futex", futex_row, futex_step, NULL},
    {"futex_timeout", timeout_row, futex_timeout_step, NULL},
    {"futex_waitv", waitv_row, futex_waitv_step, NULL},
    {"futex_pi", futex_pi_row, futex_pi_step, NULL},
    {"sigtimedwait", sigtimedwait_row, sigtimedwait_step, NULL},
    {"signalfd", signalfd_row, event_step, NULL},
    {"eventfd", eventfd_row, eventfd_step, eventfd_finish},
    {"timerfd", timerfd_row, event_step, NULL},
    {"inotify", inotify_row, event_step, NULL},
    {"semtimedop", semop_row, semtimedop_step, semop_finish},
    {"semop", semop_up_row, semop_step, semop_finish},
    {"msgrcv", msgrcv_row, msgrcv_step, msgrcv_finish},
    {"mq_timedreceive", mq_row, mq_step, NULL},
    {"flock", flock_row, flock_step, NULL},
    {"setlkw", setlkw_row, setlkw_step, NULL},
    {"waitid", NULL, waitid_step, NULL},
    {"debugger", debugger_row, debugger_step, debugger_finish},
    {"io_getevents", aio_row, io_getevents_step, NULL},
    {"io_uring_enter", ring_row, ring_wait_step, NULL},
    {"io_uring_submit", ring_row, ring_submit_step, NULL},
    {"bpf", bpf_step, bpf_step, NULL},
    {"busy", NULL, busy_step, NULL},
};

static void waits_for_end(void)
{
    char byte;
    while (read(0, &byte, 1) > 0)
        ;
    shared->stop = 1;
}

/* Sends the program a signal now and then. A handler for SIGCONT shows each stop of the process. */
static void sends_signals(void)
{
    pid_t target = getppid();
    while (!shared->stop) {
        usleep(500 + random_below(60000));
        switch (random_below(3)) {
        case 0: kill(target, SIGALRM); break;
        case 1: kill(target, SIGCHLD); break;
        default:
            kill(target, SIGSTOP);
            usleep(random_below(3000));
            kill(target, SIGCONT);
        }
    }
}

int main(int argc, char **argv)
{
    const struct row *row = rows;
    const char *signals = argc > 2 ? argv[2] : "none";
    while (row < rows + sizeof rows / sizeof *rows && strcmp(row->name, argc > 1 ? argv[1] : ""))
        row++;
    if (row == rows + sizeof rows / sizeof *rows) {
        fprintf(stderr, "no row %s\n", argc > 1 ? argv[1] : "");
        return BROKEN;
    }
    check_or_die();
    for (size_t i = 0, h = 1; i < PERIOD; i++) {
        h = h * 6364136223846793005u + 1442695040888963407u;
        table[i] = (char)(h >> 57);
    }
    for (size_t i = PERIOD; i < sizeof table; i++)
        table[i] = table[i - PERIOD];
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    signal(SIGPIPE, SIG_IGN);
    /* These two have none of the row's descriptors. */
    helper(waits_for_end);
    pid_t signaller = 0;
    if (strcmp(signals, "none")) {
        struct sigaction action = {.sa_handler = on_signal, .sa_flags = strcmp(signals, "restart") ? 0 : SA_RESTART};
        sigaction(SIGALRM, &action, NULL);
        sigaction(SIGCHLD, &action, NULL);
        sigaction(SIGCONT, &action, NULL);
        if (strcmp(signals, "quiet"))
            signaller = helper(sends_signals);
    }
    helping = 0;
    if (row->prepare)
        row->prepare();
    puts("ready");
    fflush(stdout);
    while (!shared->stop)
        row->step();
    if (signaller)
        end_of(signaller);
    if (row->finish)
        row->finish();
    else
        shared->got = n.sent;
    check_or_die();
    printf("saw calls=%ld short=%ld eintr=%ld other=%ld errno=%ld early=%ld wrong=%ld excused=%ld handlers=%d sent=%ld got=%ld "
           "other_sent=%ld other_got=%ld corrupt=%ld\n",
           n.calls, n.shorter, n.eintr, n.other, n.last, n.early, n.wrong, n.excused, (int)handlers, n.sent, shared->got,
           shared->other_sent, shared->other_got, shared->corrupt);
    return 7;
}
