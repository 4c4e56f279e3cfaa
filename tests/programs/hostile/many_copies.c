/* Maps a memfd that is named like a copy of TiExec's, executable, 60000 times, each piece apart from the others. */
#include "../situation.h"
#include <sys/mman.h>

int main(void)
{
    enum { PAGE = 4096, PIECES = 60000, PAGES = 512 };
    static char page[PAGE];
    int made = memfd_create("tiexec:many_copies", 0), mapped = 0;
    check_or_die();
    if (made < 0)
        return BROKEN;
    memset(page, 0xcc, sizeof page);
    for (int i = 0; i < PAGES; i++)
        if (write(made, page, sizeof page) != sizeof page)
            return BROKEN;
    for (long i = 0; i < PIECES; i++) {
        void *at = (void *)(0x100000000000 + i * 2 * PAGE);
        mapped += mmap(at, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED_NOREPLACE, made, i % PAGES * PAGE) == at;
    }
    printf("pid %d\nmapped %d\n", getpid(), mapped);
    ready_and_wait();
    check_or_die();
    return 7;
}
