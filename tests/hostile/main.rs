//! Programs that attack the TiExec which root runs on them. Each module covers one thing that such a program could gain,
//! and each of its tests fails at the commit before the defence was built.

mod copies;
mod exec;
mod files;
mod launches;
mod locks;
mod names;
mod outputs;
mod overlays;
mod oversized;
mod priority;
mod reasons;
mod selectors;
mod targets;
mod workers;

/// The front of a command line that runs the rest as the attacker: an unprivileged user without groups.
pub(crate) const ATTACKER: [&str; 4] =
    ["setpriv", "--reuid=2001", "--regid=2001", "--clear-groups"];
