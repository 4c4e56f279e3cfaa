//! An attach and a revert stop a thread. No system call of the program shows that.

mod calls;
mod killed;
mod looping;
mod real_programs;
mod unseen;
