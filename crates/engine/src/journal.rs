//! One record per switch, in the journal or the system log: who did what to which process.
//!
//! If root is the sender, the journal adds the unit of `OBJECT_PID` (systemd.journal-fields(7)), so that `journalctl -u UNIT`
//! shows the record among the lines of the process's own unit.

use std::os::unix::net::UnixDatagram;

use tiexec_core::escape::AsShown;
use tiexec_core::plan::Plan;
use tiexec_remap::build_id::build_id;
use tiexec_remap::open_exe;
use tiexec_sys::Pid;
use tiexec_tracee::target::Target;

/// The socket on which systemd's journal takes records in its own form (systemd.journal-fields(7)).
const JOURNAL: &str = "/run/systemd/journal/socket";
/// The socket on which syslog listens (syslog(3)).
const SYSLOG: &str = "/dev/log";
/// `LOG_DAEMON | LOG_INFO`.
const PRIORITY: u8 = 3 << 3 | 6;

/// A switch of one process.
pub struct Record<'a> {
    /// `attach` or `revert`.
    pub action: &'static str,
    /// The process.
    pub target: &'a Target,
    /// Bytes of text that changed their backing.
    pub bytes: u64,
    /// How it ended: `ok`, or the reason.
    pub result: &'a str,
    /// The plan of an attach, whose addresses the record names.
    pub plan: Option<&'a Plan>,
}

/// The number of address ranges in a record at most, so that a program with many pieces of text does not make it large.
const MOST_RANGES: usize = 64;

/// Returns the field with the addresses of the text, as `/proc/PID/maps` prints them. They show whether a later crash was in this
/// text. A list that is cut ends with `…`.
fn addresses(plan: &Plan) -> String {
    let all = plan.spans().map(|span| span.range.to_string());
    let mut ranges: Vec<String> = all.take(MOST_RANGES + 1).collect();
    if ranges.len() > MOST_RANGES {
        ranges[MOST_RANGES] = "…".to_owned();
    }
    format!("TIEXEC_TEXT={}\n", ranges.join(" "))
}

impl Record<'_> {
    /// Writes the record, if somebody listens.
    pub fn write(&self) {
        let Some(listener) = Listener::find() else { return };
        let process = &self.target.process;
        let exe = process.exe_path().unwrap_or_default();
        let exe = exe.shown();
        let build_id = open_exe(process).ok().and_then(|exe| build_id(&exe));
        let build_id = build_id.unwrap_or_else(|| "-".to_owned());
        let uid = rustix::process::getuid().as_raw();
        let Self { action, bytes, result, .. } = self;
        let pid = self.target.pid.as_raw_nonzero();
        let message = format!(
            "{action} by uid {uid}: pid {pid} {exe} build-id {build_id}: {bytes} bytes, {result}"
        );
        let addresses = self.plan.map(addresses).unwrap_or_default();
        let fields = format!(
            "MESSAGE={message}\nPRIORITY=6\nSYSLOG_IDENTIFIER=tiexec\nOBJECT_PID={pid}\nTIEXEC_ACTION={action}\n\
             TIEXEC_PID={pid}\nTIEXEC_EXE={exe}\nTIEXEC_BUILD_ID={build_id}\nTIEXEC_BYTES={bytes}\n\
             TIEXEC_RESULT={result}\nTIEXEC_UID={uid}\n{addresses}"
        );
        listener.send(&fields, &message);
    }
}

/// Writes a message about a process, if somebody listens. No part of `message` may hold a line end. `action`: what TiExec does
/// to the process, such as `start`.
pub fn note(action: &str, message: &str, pid: Pid) {
    let Some(listener) = Listener::find() else { return };
    let pid = pid.as_raw_nonzero();
    let fields = format!(
        "MESSAGE={message}\nPRIORITY=6\nSYSLOG_IDENTIFIER=tiexec\nOBJECT_PID={pid}\nTIEXEC_ACTION={action}\nTIEXEC_PID={pid}\n"
    );
    listener.send(&fields, message);
}

/// The `MESSAGE_ID` of a crash after a switch (journalctl(1)).
pub const CRASH: &str = "5c1d9f0e6b8a4f1cb1a7c2f0d3e49a61";

/// Writes that a program has crashed soon after a switch, at priority err. No part of `message` may hold a line end.
pub fn crash(message: &str, pid: Pid, build_id: &str, rule: &str) {
    let Some(listener) = Listener::find() else { return };
    let pid = pid.as_raw_nonzero();
    let fields = format!(
        "MESSAGE={message}\nPRIORITY=3\nMESSAGE_ID={CRASH}\nSYSLOG_IDENTIFIER=tiexec\nTIEXEC_ACTION=crash\n\
         TIEXEC_PID={pid}\nTIEXEC_BUILD_ID={build_id}\nTIEXEC_RULE={rule}\n"
    );
    listener.send(&fields, message);
}

/// The log that takes the records.
enum Listener {
    Journal(UnixDatagram),
    Syslog(UnixDatagram),
}

impl Listener {
    /// Returns the journal, or else the system log; `None` if nobody listens.
    fn find() -> Option<Self> {
        let connected = |to: &str| {
            let socket = UnixDatagram::unbound().ok()?;
            // A full log must not block this process.
            socket.set_nonblocking(true).ok()?;
            socket.connect(to).is_ok().then_some(socket)
        };
        connected(JOURNAL).map(Self::Journal).or_else(|| connected(SYSLOG).map(Self::Syslog))
    }

    /// Sends a record, by its fields or by its message alone. It is lost if the log is full.
    fn send(&self, fields: &str, message: &str) {
        let _lost = match self {
            Self::Journal(socket) => socket.send(fields.as_bytes()),
            Self::Syslog(socket) => {
                let own = std::process::id();
                socket.send(format!("<{PRIORITY}>tiexec[{own}]: {message}").as_bytes())
            }
        };
    }
}
