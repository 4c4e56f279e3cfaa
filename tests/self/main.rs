//! `libtiexec`: a program puts its own text onto huge pages, by a call or by preloading the library.

mod adoption;
mod calls;
mod examples;
mod filters;
mod hardened;
mod interface;
mod library;
mod preload;
mod seen;
