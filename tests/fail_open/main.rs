//! Programs run also if they cannot have huge pages, and the reason is told.

mod filters;
mod hardened;
mod resources;
mod without_huge_pages;
mod yama_forbids;
