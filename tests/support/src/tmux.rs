//! A terminal with a screen: tmux(1), whose server belongs to the test alone.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::child::soon;

/// A screen on which a shell command runs after [`Screen::go`]. Drop ends the server and all processes on the screen.
pub struct Screen {
    dir: tempfile::TempDir,
}

impl Screen {
    /// Makes a screen of this size for that command, with these variables.
    pub fn new(columns: u16, rows: u16, command: &str, environment: &[(&str, &str)]) -> Screen {
        let dir = tempfile::tempdir().expect("a directory");
        let screen = Screen { dir };
        let (columns, rows) = (columns.to_string(), rows.to_string());
        let mut args = vec!["new-session", "-d", "-x", &columns, "-y", &rows];
        let settings: Vec<String> =
            environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
        for setting in &settings {
            args.extend(["-e", setting]);
        }
        let script = format!("read go; {command}; echo \"ended $?\"; stty -a; read end");
        args.extend(["sh", "-c", &script]);
        screen.tmux(&args);
        // The log has all bytes that the program sends, unchanged.
        screen.tmux(&["pipe-pane", "-O", &format!("exec cat >'{}'", screen.log().display())]);
        screen
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    fn tmux(&self, args: &[&str]) -> Vec<u8> {
        let mut tmux = Command::new("tmux");
        tmux.args(["-u", "-f", "/dev/null", "-S"]).arg(self.dir.path().join("socket")).args(args);
        let done = tmux.output().expect("tmux");
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
        done.stdout
    }

    /// Starts the command.
    pub fn go(&self) -> &Screen {
        self.keys(&["Enter"])
    }

    /// Sends keys, as tmux names them.
    pub fn keys(&self, keys: &[&str]) -> &Screen {
        let mut args = vec!["send-keys"];
        args.extend(keys);
        self.tmux(&args);
        self
    }

    /// Changes the size.
    pub fn resize(&self, columns: u16, rows: u16) {
        let (columns, rows) = (columns.to_string(), rows.to_string());
        self.tmux(&["resize-window", "-x", &columns, "-y", &rows]);
    }

    /// Returns the text on the screen.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.tmux(&["capture-pane", "-p"])).into_owned()
    }

    /// Waits until the text is on the screen. Returns the whole screen.
    pub fn wait_for(&self, text: &str) -> String {
        self.wait_until(text, |screen| screen.contains(text))
    }

    /// Waits until the screen fulfils the condition. Returns the screen.
    pub fn wait_until(&self, what: &str, mut is_so: impl FnMut(&str) -> bool) -> String {
        let mut last = String::new();
        let came = soon(|| {
            last = self.text();
            is_so(&last)
        });
        assert!(came, "no {what}:\n{last}");
        last
    }

    /// Returns all bytes that the command has sent, which has ended. The log may have them a moment after the screen.
    pub fn sent_in_all(&self) -> Vec<u8> {
        // The last word of the script above, by stty(1).
        let last = b"iexten";
        let has_last = || self.sent().windows(last.len()).any(|part| part == last);
        assert!(soon(has_last), "the log has no {}", last.escape_ascii());
        self.sent()
    }

    /// Returns the bytes that the command has sent, as far as they are in the log.
    pub fn sent(&self) -> Vec<u8> {
        std::fs::read(self.log()).unwrap_or_default()
    }

    /// Returns the title of the terminal, which programs may set.
    pub fn title(&self) -> String {
        let title = self.tmux(&["display-message", "-p", "#{pane_title}"]);
        String::from_utf8_lossy(title.trim_ascii_end()).into_owned()
    }

    /// Returns the process of this program on the screen.
    pub fn process_of(&self, program: &Path) -> i32 {
        let shell = self.tmux(&["display-message", "-p", "#{pane_pid}"]);
        let shell = String::from_utf8_lossy(&shell).trim().to_owned();
        let children = format!("/proc/{shell}/task/{shell}/children");
        let children = std::fs::read_to_string(children).expect("a shell");
        let runs = |pid: &&str| {
            std::fs::read_link(format!("/proc/{pid}/exe"))
                .is_ok_and(|exe| exe.as_os_str().as_bytes() == program.as_os_str().as_bytes())
        };
        let pid = children.split_whitespace().find(runs);
        pid.unwrap_or_else(|| panic!("none of {children}")).parse().expect("a number")
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let socket = self.dir.path().join("socket");
        let _ended = Command::new("tmux").arg("-S").arg(socket).arg("kill-server").output();
    }
}
