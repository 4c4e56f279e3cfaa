// c++ huge.cc $(pkg-config --cflags --libs tiexec)
#include <iostream>
#include <tiexec.h>

int main()
{
    tiexec_options options = {sizeof options, "edges=aggressive"};
    tiexec_result result = {};
    result.size = sizeof result;

    // The program goes on in any case.
    if (tiexec_self(&options, &result) != 0)
        std::cerr << "text stays on base pages: " << result.reason << ": " << result.detail << '\n';
    std::cout << result.huge_bytes / 1024 << " of " << result.text_bytes / 1024 << " KiB of text are on huge pages\n";
}
