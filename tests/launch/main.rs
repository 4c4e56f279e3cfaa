//! A program that `tiexec` launches is the program that would have run alone, with its text on huge pages.

mod bad_images;
mod becomes_exit;
mod becomes_fds;
mod becomes_identity;
mod becomes_pid1;
mod becomes_signals;
mod becomes_terminal;
mod called;
mod counted;
mod environment;
mod executable_places;
mod follow;
mod helper_killed;
mod images_any_elf;
mod real_programs;
mod report_and_dry_run;
mod seen;
mod settle;
mod start;
mod streams_and_strays;
mod strict;
mod under_tracers;
mod until_exec;
mod wrappers;
