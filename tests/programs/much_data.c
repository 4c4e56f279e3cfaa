/* As hold, with megabytes of zeroed data. */
#include "situation.h"

static volatile char zeroes[16 << 20];

int main(void)
{
    check_or_die();
    for (unsigned long i = 0; i < sizeof zeroes; i += 512)
        if (zeroes[i])
            return BROKEN;
    zeroes[sizeof zeroes - 1] = 1;
    printf("huge %lu\n", huge_text());
    ready_and_wait();
    check_or_die();
    return 7;
}
