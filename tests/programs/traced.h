/* The functions that debuggers and profilers look at, and the lines of input that a program waits for. The includer defines NAMED. */
#include <stddef.h>
#include <unistd.h>

extern const char __ehdr_start[] __attribute__((visibility("hidden")));
static volatile unsigned sink;

NAMED unsigned probed(unsigned n)
{
    sink += n;
    return sink * 3;
}

NAMED unsigned spin_inner(unsigned n)
{
    for (unsigned i = 0; i < 1000000; i++)
        n = n * 1664525 + (sink ^ i);
    return n;
}

NAMED unsigned fail_inner(unsigned n)
{
    if (n)
        *(volatile int *)8 = 1;
    return sink + n;
}

NAMED unsigned fail_outer(unsigned n)
{
    return fail_inner(n) + 1;
}

NAMED ssize_t wait_inner(char *line, size_t len)
{
    ssize_t n = 0;
    while ((size_t)n < len - 1 && read(0, line + n, 1) == 1 && line[n] != '\n')
        n++;
    line[n] = 0;
    sink += n;
    return n;
}

NAMED ssize_t wait_outer(char *line, size_t len)
{
    return wait_inner(line, len) + 1;
}

/* The place of probed() in the file. */
static inline unsigned long probed_offset(void)
{
    return (unsigned long)probed - (unsigned long)__ehdr_start;
}
