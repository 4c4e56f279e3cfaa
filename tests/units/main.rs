//! Services of a real systemd, by Debian's own units.

mod boots;
mod wait_exec;
