// trace() installs glog's handler of fatal signals, and dies.
#include <csignal>
#include <glog/logging.h>

extern "C" void trace(void)
{
    google::InitGoogleLogging("subject");
    google::InstallFailureSignalHandler();
    raise(SIGABRT);
}
