/* trace() allocates 64 MiB in functions of its own, for profilers of the heap. */
#include <stdlib.h>
#include <string.h>

__attribute__((noinline, noclone)) void *heap_inner(size_t size)
{
    void *memory = malloc(size);
    memset(memory, 1, size);
    return memory;
}

void *kept[64];

void trace(void)
{
    for (int i = 0; i < 64; i++)
        kept[i] = heap_inner(1 << 20);
}
