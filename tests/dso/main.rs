//! The text of shared objects becomes huge as the program's own does.

mod attach;
mod killed;
mod launch;
mod linking;
mod real_programs;
