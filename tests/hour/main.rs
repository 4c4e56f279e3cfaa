//! Everything that TiExec does, at random, beside services under load.

mod acts;
mod clients;
mod everything;
mod stage;
