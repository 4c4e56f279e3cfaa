//! Huge pages of every kind: their size, their node, and what else than text of files they hold.

mod guarded_text;
mod jit;
mod large_huge_pages;
mod numa;
mod page_size;
