//! Services of a real systemd, by Debian's own units, and the agent under its own.

mod agent;
mod boots;
mod canary;
mod enable;
mod kinds;
mod launch;
mod names;
mod scan;
mod wait_exec;
