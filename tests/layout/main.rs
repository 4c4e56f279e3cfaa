//! The address of text: programs are moved to an address where their text is congruent, and the edges of the text
//! become huge.

mod coverage;
mod edges;
mod edges_attach;
mod edges_killed;
mod rebase;
mod rebase_aslr;
mod rebase_helper_killed;
mod rebase_refused;
mod rebase_stack;
