//! A bare name in the place of a PID: the service of this name.

use tiexec_core::escape::AsShown;

use super::select;
use crate::ctl::systemctl;
use crate::exit;
use crate::options::Targets;
use crate::stdio::warn;

/// The longest name of a unit (systemd: `UNIT_NAME_MAX`), with its end.
const LONGEST: usize = 255;

/// If the user has named a single word that can be the name of a unit and is not a number, selects the processes of this
/// unit of the system's systemd instead, and says so unless `quiet` is true.
///
/// # Errors
/// The exit status. The message is on stderr already: systemd has no such unit, or does not answer.
pub(crate) fn take(targets: &mut Targets, quiet: bool) -> Result<(), u8> {
    let [word] = &targets.pids[..] else { return Ok(()) };
    if !is_name(word) {
        return Ok(());
    }
    match find(word) {
        Ok(unit) => {
            if !quiet {
                warn(format_args!("{word}: the unit {unit}"));
            }
            *targets = Targets { unit: Some(unit), ..Targets::default() };
            Ok(())
        }
        Err(why) => {
            warn(format_args!("cannot find a process or a service {word}: {why}"));
            Err(exit::USAGE)
        }
    }
}

/// Returns whether the word has only letters that systemd accepts in the name of a unit (systemd.unit(5)), and is not a
/// number. Patterns, lists of PIDs and paths have other letters.
fn is_name(word: &str) -> bool {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b":-_.\\@".contains(&byte);
    word.len() <= LONGEST
        && word.bytes().all(is_valid)
        && word.bytes().any(|byte| byte.is_ascii_alphabetic())
}

/// Returns the own name of the unit, of which the word may be an alias.
///
/// # Errors
/// The cause and the fix.
fn find(word: &str) -> Result<String, String> {
    let unit = select::with_kind(word);
    let found = systemctl::properties(false, &unit, "Id,LoadState");
    let value = |wanted: &str| {
        let pair = found.as_ref().ok()?.iter().find(|(name, _)| name == wanted);
        pair.map(|(_, value)| value.clone())
    };
    match (&found, value("LoadState").as_deref()) {
        // The processes of a unit whose file is gone may live.
        (Ok(_), Some("not-found") | None) if has_processes(&unit) => Ok(unit),
        (Ok(_), Some("not-found") | None) => {
            let mut near = systemctl::near(false, &unit).unwrap_or_default();
            // A template has no processes.
            near.retain(|name| !name.contains("@."));
            let otherwise = "name a PID, or a service that `systemctl list-unit-files` shows";
            let fix = systemctl::fix(near, otherwise);
            Err(format!("systemd has no unit {unit}; {fix}"))
        }
        (Ok(_), Some(_)) => Ok(value("Id").filter(|id| is_name(id)).unwrap_or(unit)),
        // systemd does not answer, but its cgroups may be there.
        (Err(_), _) if has_processes(&unit) => Ok(unit),
        (Err(why), _) => {
            let why = why.split("; fix: ").next().unwrap_or_default();
            Err(format!("{}; fix: name a PID, or select processes by --exe", why.shown()))
        }
    }
}

/// Returns whether a process is in the cgroup of the unit.
fn has_processes(unit: &str) -> bool {
    !select::every(|_, process| select::is_of_unit(process, unit)).is_empty()
}

#[cfg(test)]
mod tests {
    use super::is_name;

    #[test]
    fn numbers_lists_patterns_and_paths_are_no_names() {
        for name in ["mariadb", "nginx.service", "postgresql@15-main", "a", "1a", "x.scope"] {
            assert!(is_name(name), "{name}");
        }
        let long = "x".repeat(256);
        for other in [
            "", "1", "-5", "1,2", "1 2", "1,x", "*", "a*", "[a]", "/a", "a b", "a\n", "ä", "$(a)",
            &long,
        ] {
            assert!(!is_name(other), "{other:?}");
        }
    }
}
