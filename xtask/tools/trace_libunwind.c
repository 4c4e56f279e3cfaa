/* trace() by libunwind, within the process. */
#define UNW_LOCAL_ONLY
#include <libunwind.h>
#include <stdio.h>

void trace(void)
{
    unw_context_t context;
    unw_cursor_t cursor;
    char name[256];
    unw_word_t offset;
    unw_getcontext(&context);
    unw_init_local(&cursor, &context);
    do {
        if (unw_get_proc_name(&cursor, name, sizeof name, &offset) == 0)
            fprintf(stderr, "%s\n", name);
        else
            fprintf(stderr, "?\n");
    } while (unw_step(&cursor) > 0);
}
