// trace() by Boost.Stacktrace, which starts addr2line(1) for each frame, or is linked with libbacktrace.
#ifndef BOOST_STACKTRACE_LINK
#define BOOST_STACKTRACE_USE_ADDR2LINE
#endif
#include <boost/stacktrace.hpp>
#include <iostream>

extern "C" void trace(void)
{
    std::cerr << boost::stacktrace::stacktrace() << std::endl;
}
