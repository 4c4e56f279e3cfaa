/* Maps, like text, a file of a file system that it serves itself (FUSE), and that stops answering.
 *
 *   silent_fuse (plain|overlay|descriptor|locked|copy|program|container) DEVICE
 *
 * With "overlay" the file is seen through an overlay of the user's own namespaces, or of root's. With "descriptor" the text is the
 * program's own, on a local file system: its first thread reads from descriptor 0, and meanwhile another puts a file of the
 * silent one under that number. A process that closes a copy of it waits for an answer (FUSE_FLUSH). With "locked" another process
 * reads a page of the silent file in this one's memory, and keeps its mmap lock until there is an answer; and a thread waits
 * for that lock to write, so that nobody else gets it to read. With "copy" the silent file lies over text of the program and is named like a copy of it in an
 * image store. With "program", as root only, this program executes itself as user 2001, by a file of the silent system that everybody may
 * open: each request of root's goes without an answer from the beginning. With "container", as root only and as the first process of a
 * PID namespace, it is a container's root: its root directory is an overlay over the silent file system, and a tmpfs covers the paths of the
 * layers.
 *
 * Started by root it has the file system mounted for user 2001 in the initial user namespace, as fusermount(1) does: there
 * root's reads ask the server too, which elsewhere fail (`fuse_get_req` in fs/fuse/dev.c). Exits with 7. */
#define _GNU_SOURCE
#include <grp.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include "../namespaces.h"

enum { MIB = 1 << 20, FILE_NODE = 2, USER = 2001 };
static const unsigned long LEN = 8 * MIB;
static unsigned long file_len = 8 * MIB;
static int own_file = -1;
static volatile sig_atomic_t silent;
static pid_t server;

static void falls_silent(int unused)
{
    (void)unused;
    silent = 1;
}

static void become_user(void)
{
    if (setgroups(0, NULL) || setresgid(USER, USER, USER) || setresuid(USER, USER, USER))
        _exit(BROKEN);
    prctl(PR_SET_DUMPABLE, 1);
}

static void map_it(const char *path)
{
    char *text = (char *)0x200000000000;
    int fd = open(path, O_RDONLY);
    if (fd < 0 || mmap(text, 6 * MIB + 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED_NOREPLACE | MAP_POPULATE, fd, 0) != text)
        _exit(BROKEN);
}

/* `programs` is the directory of this program. Root of a container has other groups than the machine's root. */
static void enter_container(int programs)
{
    char from[64], number[16];
    gid_t group = 4242;
    snprintf(from, sizeof from, "/proc/self/fd/%d", programs);
    snprintf(number, sizeof number, "%d", server);
    if (mount("none", "/mnt/tmp", "tmpfs", 0, NULL) || mkdir("/mnt/tmp/bin", 0755) ||
        mount(from, "/mnt/tmp/bin", NULL, MS_BIND, NULL) || chroot("/mnt") || chdir("/") || setgroups(1, &group))
        _exit(BROKEN);
    execl("/tmp/bin/silent_fuse", "silent_fuse", "inside", number, (char *)NULL);
    _exit(BROKEN);
}

static void attributes(struct fuse_attr *attr, unsigned long node)
{
    memset(attr, 0, sizeof *attr);
    attr->ino = node;
    attr->mode = node == FILE_NODE ? S_IFREG | 0755 : S_IFDIR | 0755;
    attr->size = node == FILE_NODE ? file_len : 4096;
    attr->nlink = 1;
    attr->blksize = 4096;
}

/* Once the first thread sleeps in its read. */
static void *replaces(void *fd)
{
    int input = dup(0);
    char c;
    usleep(500 * 1000);
    if (input < 0 || dup2(*(int *)fd, 0))
        _exit(BROKEN);
    kill(server, SIGUSR1);
    puts("ready");
    fflush(stdout);
    while (read(input, &c, 1) > 0)
        ;
    /* The first thread's read was made again, of the silent file: that ends now. */
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    _exit(7);
}

static volatile sig_atomic_t is_locked;

/* Maps something, once the lock is held. */
static void *maps(void *unused)
{
    while (!is_locked)
        usleep(1000);
    mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return unused;
}

/* Has `at`, a page of the silent file, read by another process. After that this one can map nothing. */
static void lock(char *at)
{
    char path[64];
    pthread_t thread;
    pid_t reads;
    snprintf(path, sizeof path, "/proc/%d/mem", getpid());
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    if (pthread_create(&thread, NULL, maps, NULL))
        _exit(BROKEN);
    reads = fork();
    if (reads < 0)
        _exit(BROKEN);
    if (!reads) {
        char byte;
        int mem = open(path, O_RDONLY);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (mem < 0 || pread(mem, &byte, 1, (off_t)at) < 0)
            _exit(BROKEN);
        _exit(0);
    }
    usleep(200 * 1000);
    is_locked = 1;
    usleep(200 * 1000);
}

static void serve(int device)
{
    static char in[256 * 1024], out[256 * 1024];
    struct sigaction action = { .sa_handler = falls_silent };
    sigaction(SIGUSR1, &action, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        struct fuse_in_header *head = (void *)in;
        struct fuse_out_header *answer = (void *)out;
        void *body = out + sizeof *answer;
        ssize_t n = read(device, in, sizeof in);
        size_t len = 0;
        if (n < 0) {
            /* Not mounted yet. */
            usleep(1000);
            continue;
        }
        /* A process that waits for a request that was taken cannot even be killed (`request_wait_answer` in fs/fuse/dev.c). */
        if (silent || (own_file >= 0 && head->uid == 0 && head->opcode != FUSE_INIT))
            continue;
        memset(out, 0, sizeof *answer + 256);
        answer->unique = head->unique;
        switch (head->opcode) {
        case FUSE_INIT: {
            struct fuse_init_out *init = body;
            init->major = FUSE_KERNEL_VERSION;
            init->minor = 31;
            init->max_readahead = 65536;
            init->max_write = 65536;
            len = sizeof *init;
            break;
        }
        case FUSE_LOOKUP: {
            struct fuse_entry_out *entry = body;
            if (head->nodeid != 1 || (strcmp(in + sizeof *head, "file") && strcmp(in + sizeof *head, "file.tiexec"))) {
                answer->error = -ENOENT;
                break;
            }
            entry->nodeid = FILE_NODE;
            attributes(&entry->attr, FILE_NODE);
            len = sizeof *entry;
            break;
        }
        case FUSE_GETATTR: {
            struct fuse_attr_out *attr = body;
            attributes(&attr->attr, head->nodeid);
            len = sizeof *attr;
            break;
        }
        case FUSE_OPEN:
        case FUSE_OPENDIR:
            len = sizeof(struct fuse_open_out);
            break;
        case FUSE_READ: {
            struct fuse_read_in *read_in = (void *)(in + sizeof *head);
            if (own_file >= 0) {
                ssize_t got = pread(own_file, body, read_in->size, read_in->offset);
                len = got > 0 ? got : 0;
                break;
            }
            len = read_in->offset + read_in->size <= LEN ? read_in->size : 0;
            memset(body, 'f', len);
            break;
        }
        case FUSE_STATFS:
            len = sizeof(struct fuse_statfs_out);
            break;
        case FUSE_FORGET:
        case FUSE_BATCH_FORGET:
        case FUSE_INTERRUPT:
            continue;
        case FUSE_FLUSH:
        case FUSE_RELEASE:
        case FUSE_RELEASEDIR:
        case FUSE_ACCESS:
            break;
        default:
            answer->error = -ENOSYS;
        }
        answer->len = sizeof *answer + len;
        if (write(device, out, answer->len) < 0)
            continue;
    }
}

int main(int argc, char **argv)
{
    char options[128], *text = (char *)0x200000000000, *path = "/mnt/file", c;
    pthread_t thread;
    int device, fd, programs = -1, by_root = geteuid() == 0;
    if (argc != 3)
        return BROKEN;
    if (!strcmp(argv[1], "inside")) {
        server = atoi(argv[2]);
        map_it("/file");
        kill(server, SIGUSR1);
        printf("pid %d\n", getpid());
        ready_and_wait();
        kill(server, SIGKILL);
        waitpid(server, NULL, 0);
        return 7;
    }
    if (!strcmp(argv[1], "served")) {
        printf("pid %d\n", getpid());
        ready_and_wait();
        check_or_die();
        return 7;
    }
    if (!strcmp(argv[1], "program")) {
        struct stat stat;
        own_file = open("/proc/self/exe", O_RDONLY);
        if (own_file < 0 || fstat(own_file, &stat))
            return BROKEN;
        file_len = stat.st_size;
    }
    /* DEVICE is /dev/fuse, which everybody may open on most machines. */
    if (by_root) {
        if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
            return BROKEN;
    } else {
        own_namespaces(0, 0);
    }
    if (!strcmp(argv[1], "container")) {
        char own[4096];
        ssize_t len = readlink("/proc/self/exe", own, sizeof own - 1);
        if (len < 0)
            return BROKEN;
        own[len] = 0;
        *strrchr(own, '/') = 0;
        programs = open(own, O_PATH | O_DIRECTORY | O_CLOEXEC);
    }
    device = open(argv[2], O_RDWR | O_CLOEXEC);
    /* An overlay of root's reads its layers as root. */
    snprintf(options, sizeof options, "fd=%d,rootmode=40755,user_id=%d,group_id=%d%s", device, by_root ? USER : 0,
             by_root ? USER : 0, own_file >= 0 || (by_root && strcmp(argv[1], "copy")) ? ",allow_other" : "");
    if (device < 0 || mount("none", "/tmp", "tmpfs", 0, NULL) || mkdir("/tmp/lower", 0755) || mkdir("/tmp/upper", 0755) ||
        mkdir("/tmp/work", 0755) || mkdir("/tmp/second", 0755) || mkdir("/tmp/second/tmp", 0755))
        return BROKEN;
    server = fork();
    if (server < 0)
        return BROKEN;
    if (!server) {
        if (by_root)
            become_user();
        serve(device);
    }
    if (mount("fuse", "/tmp/lower", "fuse", 0, options))
        return BROKEN;
    if ((!strcmp(argv[1], "overlay") || programs >= 0) && mount("none", "/mnt", "overlay", 0, "lowerdir=/tmp/lower:/tmp/second"))
        return BROKEN;
    /* The server alone has the connection: it is aborted when the server ends. */
    close(device);
    if (programs >= 0)
        enter_container(programs);
    if (by_root)
        become_user();
    path = "/tmp/lower/file";
    if (own_file >= 0) {
        execl(path, path, "served", "", (char *)NULL);
        return BROKEN;
    }
    if (!strcmp(argv[1], "overlay"))
        path = "/mnt/file";
    if (!strcmp(argv[1], "copy"))
        path = "/tmp/lower/file.tiexec";
    fd = open(path, O_RDONLY);
    if (fd < 0)
        return BROKEN;
    if (!strcmp(argv[1], "copy")) {
        char *at = (char *)(((unsigned long)big_begin + 2 * MIB - 1) & -(2 * MIB));
        if (mmap(at, 2 * MIB, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, fd, 0) != at)
            return BROKEN;
    } else if (!strcmp(argv[1], "locked")) {
        if (mmap(text, LEN, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd, 0) != text)
            return BROKEN;
        printf("pid %d\n", getpid());
        fflush(stdout);
        kill(server, SIGUSR1);
        lock(text);
    } else if (strcmp(argv[1], "descriptor")) {
        map_it(path);
    } else {
        if (pthread_create(&thread, NULL, replaces, &fd))
            return BROKEN;
        printf("pid %d\n", getpid());
        fflush(stdout);
        while (read(0, &c, 1) != 0)
            ;
        pthread_join(thread, NULL);
    }
    kill(server, SIGUSR1);
    printf("pid %d\nserver %d\n", getpid(), server);
    ready_and_wait();
    /* The end of the server aborts the connection, and with it whatever waits for an answer. */
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    return 7;
}
