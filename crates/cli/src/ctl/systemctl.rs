//! Runs `systemctl` and its kin.

use std::process::{Output, Stdio};

use rustix::process::Signal;
use tiexec_core::escape::AsShown;
use tiexec_engine::programs::{self, Environment};
use tiexec_sys::process;

/// Most near names that a message lists.
const NAMES: usize = 3;

/// Runs `systemctl` with these arguments, for the calling user's own manager if `user` is true. Returns its output.
///
/// # Errors
/// The first line of its message.
pub(super) fn run(user: bool, args: &[&str]) -> Result<String, String> {
    let output = tool(user, "systemctl", args)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let why = said.lines().next().unwrap_or("it says no reason");
    Err(format!("systemctl {}: {}", args.first().unwrap_or(&""), why.shown()))
}

/// Runs one of systemd's tools to its end.
///
/// # Errors
/// The tool could not be started.
pub(super) fn tool(user: bool, program: &str, args: &[&str]) -> Result<Output, String> {
    let scope = user.then_some("--user");
    let mut command = programs::command(program, Environment::OfUser);
    process::end_command_with_parent(&mut command, Signal::KILL);
    let command = command.args(scope).args(args).stdin(Stdio::null()).output();
    command.map_err(|error| format!("cannot run {program}: {error}; fix: install systemd"))
}

/// Returns properties of a unit, each with its name.
///
/// # Errors
/// As [`run`].
pub(super) fn properties(
    user: bool,
    unit: &str,
    names: &str,
) -> Result<Vec<(String, String)>, String> {
    let text = run(user, &["show", "--property", names, "--", unit])?;
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    Ok(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

/// Lists the services with similar names: those that are loaded, such as instances of templates, and those with a file.
///
/// # Errors
/// As [`run`].
pub(super) fn near(user: bool, unit: &str) -> Result<Vec<String>, String> {
    let mut near = Vec::new();
    for list in ["list-units", "list-unit-files"] {
        let list = run(user, &[list, "--type=service", "--full", "--plain", "--no-legend"])?;
        let names = list.lines().filter_map(|line| line.split_whitespace().next());
        near.extend(names.filter(|name| *name != unit && is_near(name, unit)).map(str::to_owned));
    }
    near.sort_unstable();
    near.dedup();
    Ok(near)
}

/// Returns the fix: to use a near name or, if there is none, `otherwise`.
pub(super) fn fix(near: Vec<String>, otherwise: &str) -> String {
    let near: Vec<String> = near.iter().take(NAMES).map(|name| name.shown().to_string()).collect();
    match &near[..] {
        [] => format!("fix: {otherwise}"),
        _ => format!("fix: use {}", near.join(" or ")),
    }
}

/// Returns whether one name contains the other, without their suffixes.
pub(crate) fn is_near(unit: &str, wanted: &str) -> bool {
    let stem = |name: &str| name.rsplit_once('.').map_or(name, |(stem, _)| stem).to_lowercase();
    let (unit, wanted) = (stem(unit), stem(wanted));
    !wanted.is_empty() && unit.contains(&wanted) || !unit.is_empty() && wanted.contains(&unit)
}

#[cfg(test)]
mod tests {
    use super::is_near;

    #[test]
    fn near_names() {
        assert!(is_near("postgresql@16-main.service", "postgresql.service"));
        assert!(is_near("redis-server.service", "redis.service"));
        assert!(is_near("redis.service", "Redis-Server.service"));
        assert!(!is_near("cron.service", "redis.service"));
        assert!(!is_near("cron.service", ".service"));
    }
}
