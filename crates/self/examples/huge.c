/* cc huge.c $(pkg-config --cflags --libs tiexec) */
#include <stdio.h>
#include <tiexec.h>

int main(void)
{
    struct tiexec_options options = {.size = sizeof options, .settings = "edges=aggressive"};
    struct tiexec_result result = {.size = sizeof result};

    /* The program goes on in any case. */
    if (tiexec_self(&options, &result))
        fprintf(stderr, "text stays on base pages: %s: %s\n", result.reason, result.detail);
    printf("%llu of %llu KiB of text are on huge pages\n", (unsigned long long)result.huge_bytes >> 10,
           (unsigned long long)result.text_bytes >> 10);
    return 0;
}
