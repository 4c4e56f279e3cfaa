//! Programs also run if they cannot have huge pages, and TiExec reports the reason.

mod filters;
mod hardened;
mod resources;
mod without_huge_pages;
mod yama_forbids;
