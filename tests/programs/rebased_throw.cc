// Throws through frames that must be cleaned up, across a thread too; checks its constructors, its thread-locals and its types.
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>
#include <typeinfo>

extern "C" {
#include "situation.h"
}

static int built, cleaned;

struct Built {
    std::string text = "built before main, too long to lie in the object";
    Built() { built++; }
};
static Built first;
static thread_local Built mine;

struct Cleaned {
    ~Cleaned() { cleaned++; }
};

struct Base {
    virtual ~Base() = default;
    virtual int answer() const { return 1; }
};
struct Derived : Base {
    int answer() const override { return 42; }
};

__attribute__((noinline)) static void descend(int depth)
{
    Cleaned cleaned;
    if (depth == 0)
        throw std::runtime_error("from the depth " + mine.text);
    descend(depth - 1);
    __asm__ volatile("");
}

static int caught()
{
    int before = cleaned;
    try {
        descend(20);
    } catch (const std::exception &error) {
        return std::string(error.what()).find("from the depth built") == 0 && cleaned - before == 21;
    }
    return 0;
}

static int caught_by_type(const Base *volatile object)
{
    try {
        throw object;
    } catch (const Derived *) {
        return 0;
    } catch (const Base *thrown) {
        return thrown->answer() == 42 && dynamic_cast<const Derived *>(thrown) && typeid(*thrown) == typeid(Derived);
    }
}

int main()
{
    check_or_die();
    int in_thread = 0;
    std::thread thread([&] { in_thread = caught(); });
    thread.join();
    Derived derived;
    std::printf("built %d caught %d %d %d\nhuge %lu\n", built, caught(), in_thread, caught_by_type(&derived), huge_text());
    ready_and_wait();
    return built >= 2 && in_thread ? 7 : BROKEN;
}
