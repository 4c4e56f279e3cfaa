//! Debuggers, profilers, core dumps, `inspect` and `doctor` see a program as it is.

mod absent;
mod backtrace;
mod cores;
mod fixes;
mod forbidden;
mod gdb;
mod inspect_doctor;
mod limits;
mod lost_output;
mod maps;
mod narrow;
mod perf;
mod progress;
mod restart;
mod schemas;
mod selected;
mod split_host;
mod top;
mod uprobes;
mod upstream;
