/* A C++ shared object with megabytes of text: exceptions from its beginning, middle and end, through frames between, and a backtrace. */
#include <execinfo.h>
#include <stdexcept>
#include <string>
extern "C" {
#include "bigtext.h"
}

struct Counts {
    int &left;
    ~Counts() { left++; }
};

extern "C" __attribute__((noinline)) int throws_deep(int depth, int &left)
{
    Counts counts{left};
    if (!depth)
        throw std::runtime_error("from " + std::to_string(big_middle(1)));
    return throws_deep(depth - 1, left) + 1;
}

extern "C" int throws_check()
{
    int left = 0;
    try {
        throws_deep(20, left);
    } catch (const std::runtime_error &error) {
        if (error.what() != "from " + std::to_string(big_middle(1)))
            return 0;
    }
    void *frames[16];
    int depth = backtrace(frames, 16);
    char **names = backtrace_symbols(frames, depth);
    bool named = names && depth > 1 && std::string(names[0]).find("throws_check") != std::string::npos;
    free(names);
    return left == 21 && named && big_check();
}
