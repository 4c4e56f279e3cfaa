//! The image store: who may use it, what it holds, and what tools see through it.

mod admission;
mod build;
mod room;
mod setup;
mod tools;
mod trust;
