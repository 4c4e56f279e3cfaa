//! Huge pages of every kind: their size, their node, and other contents than the text of files.

mod guarded_text;
mod jit;
mod large_huge_pages;
mod numa;
mod page_size;
