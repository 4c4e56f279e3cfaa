//! The image store: its users, its contents, and the view of tools through it.

mod admission;
mod build;
mod room;
mod setup;
mod tools;
mod trust;
