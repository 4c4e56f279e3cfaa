//! Fail open: where huge pages cannot be had, programs run all the same, and the reason is said.

mod filters;
mod hardened;
mod resources;
mod without_huge_pages;
mod yama_forbids;
