//! Programs that attack the TiExec which root runs on them. Each module covers one possible gain of such a program.
//! Each test fails at the commit before its defence.

mod copies;
mod exec;
mod files;
mod launches;
mod libraries;
mod locks;
mod names;
mod outputs;
mod overlays;
mod oversized;
mod priority;
mod reasons;
mod redirected;
mod selectors;
mod stored;
mod targets;
mod workers;
mod written;

/// The front of a command line that runs the rest as the attacker: an unprivileged user without groups.
pub(crate) const ATTACKER: [&str; 4] =
    ["setpriv", "--reuid=2001", "--regid=2001", "--clear-groups"];
