// trace() by Boost.Stacktrace, which starts addr2line(1) for each frame.
#define BOOST_STACKTRACE_USE_ADDR2LINE
#include <boost/stacktrace.hpp>
#include <iostream>

extern "C" void trace(void)
{
    std::cerr << boost::stacktrace::stacktrace() << std::endl;
}
