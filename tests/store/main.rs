//! The image store: its users, its contents, and how tools see programs that run from it.

mod admission;
mod build;
mod room;
mod setup;
mod tools;
mod trust;
