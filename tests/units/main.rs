//! Services of a real systemd, by Debian's own units.

mod boots;
mod enable;
mod wait_exec;
