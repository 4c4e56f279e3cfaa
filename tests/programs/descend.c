/* descend HOW PROGRAM ARGS…: has a descendant run the program and ends with its status. HOW is fork, vfork, spawn, clone (with a shared
   address space), daemon (orphaned, in a session of its own; ends with 0 when it has ended), or thread (fork, by another thread). */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int run(void *argv)
{
    execv(*(char **)argv, argv);
    _exit(98);
}

static pid_t forked(char **argv)
{
    pid_t pid = fork();
    if (pid == 0)
        run(argv);
    return pid;
}

static void *in_thread(void *argv)
{
    return (void *)(long)forked(argv);
}

static int daemon_of(char **argv)
{
    int ends[2];
    char byte;
    if (pipe(ends))
        return 98;
    if (fork() == 0) {
        setsid();
        close(ends[0]);
        if (fork() == 0)
            run(argv);
        _exit(0);
    }
    close(ends[1]);
    wait(NULL);
    return read(ends[0], &byte, 1) == 0 ? 0 : 98;
}

int main(int argc, char **argv)
{
    char *how = argc > 2 ? argv[1] : "", **program = argv + 2;
    static char stack[65536] __attribute__((aligned(64)));
    pid_t pid = -1;
    int status;
    if (!strcmp(how, "daemon"))
        return daemon_of(program);
    if (!strcmp(how, "fork"))
        pid = forked(program);
    else if (!strcmp(how, "vfork")) {
        pid = vfork();
        if (pid == 0)
            run(program);
    } else if (!strcmp(how, "spawn")) {
        if (posix_spawn(&pid, program[0], NULL, NULL, program, environ))
            return 98;
    } else if (!strcmp(how, "clone"))
        pid = clone(run, stack + sizeof stack, CLONE_VM | SIGCHLD, program);
    else if (!strcmp(how, "thread")) {
        pthread_t thread;
        void *made;
        if (pthread_create(&thread, NULL, in_thread, program) || pthread_join(thread, &made))
            return 98;
        pid = (pid_t)(long)made;
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return 98;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
