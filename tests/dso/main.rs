//! The text of shared objects becomes huge like the program's own text.

mod attach;
mod killed;
mod launch;
mod linking;
mod real_programs;
