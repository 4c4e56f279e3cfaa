//! The place of text: programs are moved to where it is congruent, and its ragged edges become huge.

mod coverage;
mod edges;
mod edges_attach;
mod edges_killed;
mod rebase;
mod rebase_aslr;
mod rebase_helper_killed;
mod rebase_refused;
mod rebase_stack;
