/* Has its shared object throw, in two threads, until its input ends. */
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <unistd.h>

extern "C" int throws_check();

int main(int argc, char **argv)
{
    std::atomic<bool> stop{false};
    auto work = [&] {
        while (!stop)
            if (!throws_check())
                _exit(99);
    };
    if (!throws_check())
        return 99;
    std::thread one(work), two(work);
    std::puts("ready");
    std::fflush(stdout);
    std::getchar();
    stop = true;
    one.join();
    two.join();
    return argc > 1 ? std::atoi(argv[1]) : 0;
}
