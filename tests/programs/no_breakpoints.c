/* no_breakpoints PROGRAM [ARG]...: runs PROGRAM with every debug register that a thread can have in use. */
#include <linux/hw_breakpoint.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct perf_event_attr attributes = {
        .type = PERF_TYPE_BREAKPOINT,
        .size = sizeof attributes,
        .sample_period = 1,
        .exclude_kernel = 1,
        .exclude_hv = 1,
        .bp_type = HW_BREAKPOINT_X,
        .bp_addr = 0x1000,
        .bp_len = sizeof(long),
    };
    int taken = 0;
    while (syscall(SYS_perf_event_open, &attributes, 0, -1, -1, 0) >= 0)
        taken++;
    if (argc < 2 || !taken) {
        perror("perf_event_open");
        return 99;
    }
    execvp(argv[1], argv + 1);
    perror(argv[1]);
    return 99;
}
