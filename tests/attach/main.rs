//! Running programs: attach puts their text on huge pages, revert undoes it, and both do no harm.

mod batches;
mod blocked;
mod fails;
mod families;
mod killed;
mod limits;
mod looking;
mod manual;
mod masks;
mod meanwhile;
mod odd;
mod real_programs;
mod registers;
mod remapped;
mod requeue;
mod residue;
mod seccomp;
mod seen;
mod segment32;
mod servers;
mod spinning;
mod store;
mod target_leaves;
mod uprobes;
mod vectors;
mod worlds;
