//! `libtiexec`: a program puts its own text onto huge pages, by a call or because the library was preloaded.

mod adoption;
mod calls;
mod examples;
mod filters;
mod hardened;
mod interface;
mod library;
mod preload;
