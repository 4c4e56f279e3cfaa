//! `--for DURATION`: a revert that runs later, after this process has ended.

use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tiexec_engine::programs::{self, Environment};
use tiexec_sys::{Pid, process};

use crate::stdio::warn;

/// Schedules `tiexecctl revert PID` after `time`, if the process is still the same. Uses a transient timer of systemd,
/// or else a process that waits.
///
/// # Errors
/// The waiting process could not be started, so nothing will be reverted.
pub(super) fn revert_after(pid: Pid, start_time: u64, time: Duration) -> std::io::Result<()> {
    let own = std::env::current_exe()?;
    let own = own.with_file_name("tiexecctl");
    let pid = pid.as_raw_nonzero().to_string();
    let start_time = start_time.to_string();
    let revert = ["revert", "--quiet", "--forked", "--started-at", &start_time, &pid];
    // For another user, the machine's systemd would ask for a password, and then run the command as root.
    if rustix::process::geteuid().is_root() && Path::new("/run/systemd/system").is_dir() {
        let timer = programs::command("systemd-run", Environment::OfUser)
            .args(["--quiet", "--collect", "--on-active", &format!("{}ms", time.as_millis())])
            // By default systemd may delay a timer for a minute (systemd.timer(5)).
            .arg("--timer-property=AccuracySec=100ms")
            .args(["--description", &format!("TiExec: revert process {pid}"), "--"])
            .arg(&own)
            .args(revert)
            .stdin(Stdio::null())
            .status();
        if timer.is_ok_and(|status| status.success()) {
            return Ok(());
        }
        warn("systemd-run made no timer: a process waits instead");
    }
    let mut waits = programs::command(&own, Environment::OfUser);
    waits.args(revert).args(["--after", &time.as_millis().to_string()]);
    waits.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).current_dir("/");
    let mut waits = waits.spawn()?;
    // Until the waiting process has left the terminal, a hangup or Ctrl-C could end it. This process therefore waits
    // for its message.
    let said = waits.stdout.take().map(|mut stdout| stdout.read(&mut [0]));
    match said {
        Some(Ok(1)) => Ok(()),
        _ => Err(std::io::Error::other("the process that was to wait has ended")),
    }
}

/// Sleeps for `time` in its own session. Writes to standard output once it has left the old session.
pub(super) fn wait(time: Duration) {
    process::own_session();
    let _nobody_listens =
        std::io::stdout().write_all(b".").and_then(|()| std::io::stdout().flush());
    std::thread::sleep(time);
}
