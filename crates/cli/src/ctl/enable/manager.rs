//! The services of a systemd manager.

use std::path::{Path, PathBuf};

use tiexec_core::escape::AsShown;

use crate::ctl::systemctl;
use crate::exit;
use crate::stdio::warn;

/// The instance name that is used for a template where systemd does not accept a template.
const INSTANCE: &str = "tiexec";

/// The system's systemd, or a user's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Manager {
    /// True for the manager of the user who runs this process.
    pub user: bool,
}

/// A unit that systemd knows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Unit {
    /// Its own name, not an alias. In the name of a template the instance is empty.
    pub name: String,
    /// The program of `ExecStart=`.
    pub program: Option<PathBuf>,
}

/// The reason why a unit cannot be enabled or disabled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// systemd does not answer.
    NoAnswer(String),
    /// The unit is unknown or masked, or is not a service with a lasting process.
    Unit(String),
}

impl Manager {
    /// Returns the directory for units. With `runtime`, returns the directory that the next boot empties.
    pub(super) fn directory(self, runtime: bool) -> Result<PathBuf, String> {
        let of = |variable: &str| {
            let path = std::env::var_os(variable).map(PathBuf::from);
            path.filter(|path| path.is_absolute())
        };
        match (self.user, runtime) {
            (false, false) => Ok("/etc/systemd/system".into()),
            (false, true) => Ok("/run/systemd/system".into()),
            (true, false) => of("XDG_CONFIG_HOME")
                .or_else(|| Some(of("HOME")?.join(".config")))
                .map(|config| config.join("systemd/user"))
                .ok_or_else(|| "HOME is not set; fix: set HOME".to_owned()),
            (true, true) => of("XDG_RUNTIME_DIR")
                .map(|run| run.join("systemd/user"))
                .ok_or_else(no_runtime_directory),
        }
    }

    /// Makes sure that the user's systemd can be found.
    ///
    /// # Errors
    /// The environment does not say where its socket is. The text ends with the fix.
    pub(super) fn can_be_found(self) -> Result<(), String> {
        let is_set = |variable| std::env::var_os(variable).is_some();
        match !self.user || is_set("XDG_RUNTIME_DIR") || is_set("DBUS_SESSION_BUS_ADDRESS") {
            true => Ok(()),
            false => Err(no_runtime_directory()),
        }
    }

    /// Returns the option, in a command, that selects the user's manager.
    pub(super) fn scope(self) -> &'static str {
        if self.user { "--user " } else { "" }
    }

    /// Makes systemd read its units again, after files of these units have changed.
    ///
    /// # Errors
    /// The exit status. The message is on stderr already.
    pub(super) fn reload(self, units: &[String]) -> Result<(), u8> {
        self.systemctl(&["daemon-reload"]).map(drop).map_err(|why| {
            let units: Vec<String> = units.iter().map(|unit| unit.shown().to_string()).collect();
            warn(format_args!(
                "cannot reload the units of {}: {why}; the files are changed, and systemd reads them at its next reload; fix: \
                 systemctl {}daemon-reload",
                units.join(", "),
                self.scope()
            ));
            exit::FAILED
        })
    }

    /// Runs `systemctl` with these arguments.
    pub(super) fn systemctl(self, args: &[&str]) -> Result<String, String> {
        systemctl::run(self.user, args)
    }

    /// Makes the units that want this one want it. systemd's manager does not read its units again.
    pub(super) fn enable(self, unit: &str, runtime: bool) -> Result<(), String> {
        let mut args = vec!["enable", "--quiet", "--no-reload"];
        args.extend(runtime.then_some("--runtime"));
        args.extend(["--", unit]);
        self.systemctl(&args).map(drop)
    }

    /// Returns the program of a unit or of a template; `None` if the unit is not installed.
    pub(super) fn program(self, unit: &str) -> Option<PathBuf> {
        let found = self.properties(&instance(unit), "ExecStart").ok()?;
        program_of(&found.first()?.1)
    }

    /// Returns the complaints of `systemd-analyze verify` about this file of a unit.
    pub(super) fn complaints(self, unit: &str, file: &str) -> Vec<String> {
        let Ok(output) =
            systemctl::tool(self.user, "systemd-analyze", &["verify", "--man=no", &instance(unit)])
        else {
            return Vec::new();
        };
        // The output also has complaints about other files and units.
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        said.lines().filter(|line| line.contains(file)).map(str::to_owned).collect()
    }

    fn properties(self, unit: &str, names: &str) -> Result<Vec<(String, String)>, String> {
        systemctl::properties(self.user, unit, names)
    }

    /// Finds the service with this name, which may be an alias or a template.
    pub(super) fn find(self, name: &str) -> Result<Unit, Refusal> {
        let shown = name.shown().to_string();
        if !name.ends_with(".service") {
            let why = "it is not a service; fix: name the service";
            return Err(Refusal::Unit(format!("{shown}: {why}")));
        }
        let found = self
            .properties(&instance(name), "Id,LoadState,Type,ExecStart")
            .map_err(Refusal::NoAnswer)?;
        let value = |wanted: &str| {
            let pair = found.iter().find(|(name, _)| name == wanted);
            pair.map_or("", |(_, value)| value.as_str())
        };
        match value("LoadState") {
            "loaded" if value("Type") == "oneshot" => {
                let near = systemctl::near(self.user, name).unwrap_or_default();
                let fix = systemctl::fix(near, "name the service that runs the program");
                Err(Refusal::Unit(format!(
                    "{shown}: its commands end before it is up (Type=oneshot); {fix}"
                )))
            }
            "loaded" => {
                let id = value("Id");
                let own = match name.contains("@.") {
                    true => id.replacen(&format!("@{INSTANCE}."), "@.", 1),
                    false => id.to_owned(),
                };
                Ok(Unit { name: own, program: program_of(value("ExecStart")) })
            }
            "masked" => {
                let fix = format!("systemctl {}unmask {shown}", self.scope());
                Err(Refusal::Unit(format!("{shown}: it is masked; fix: {fix}")))
            }
            "not-found" => {
                let near = systemctl::near(self.user, name).map_err(Refusal::NoAnswer)?;
                let list = format!("systemctl {}list-unit-files", self.scope());
                let fix = systemctl::fix(near, &format!("use a name that `{list}` shows"));
                Err(Refusal::Unit(format!("{shown}: systemd has no unit of this name; {fix}")))
            }
            other => {
                let state = other.shown();
                let fix = format!("`systemctl {}status {shown}` tells why", self.scope());
                Err(Refusal::Unit(format!(
                    "{shown}: systemd could not load it ({state}); fix: {fix}"
                )))
            }
        }
    }

    /// Lists the active units with this name, those included that reload: the unit itself, or the instances of a template.
    pub(super) fn active(self, unit: &str) -> Result<Vec<String>, String> {
        self.in_state("--state=active,reloading", unit)
    }

    /// Stops the unit, or the instances of a template, if it runs.
    pub(super) fn stop(self, unit: &str) -> Result<(), String> {
        let running = self.in_state("--state=active,activating,reloading", unit)?;
        if running.is_empty() {
            return Ok(());
        }
        let names = running.iter().map(String::as_str);
        self.systemctl(&["stop", "--"].into_iter().chain(names).collect::<Vec<_>>()).map(drop)
    }

    /// Lists the units in one of these states with this name, or the instances of a template.
    fn in_state(self, states: &str, unit: &str) -> Result<Vec<String>, String> {
        let pattern = unit.replacen("@.", "@*.", 1);
        let list = self.systemctl(&[
            "list-units",
            states,
            "--full",
            "--plain",
            "--no-legend",
            "--",
            &pattern,
        ])?;
        let names = list.lines().filter_map(|line| line.split_whitespace().next());
        Ok(names.map(str::to_owned).collect())
    }

    /// Returns the executable of a unit's main process.
    pub(super) fn running_program(self, unit: &str) -> Option<PathBuf> {
        let active = self.active(unit).ok()?;
        let properties = self.properties(active.first()?, "MainPID").ok()?;
        let pid: u32 = properties.first()?.1.parse().ok().filter(|&pid| pid > 0)?;
        std::fs::read_link(format!("/proc/{pid}/exe")).ok()
    }
}

/// Returns the message that `XDG_RUNTIME_DIR` is not set, with the fix. A shell of `su -` often lacks the variable.
fn no_runtime_directory() -> String {
    let user = rustix::process::geteuid().as_raw();
    let usual = format!("/run/user/{user}");
    let export = format!("export XDG_RUNTIME_DIR={usual}");
    if Path::new(&usual).is_dir() {
        return format!("XDG_RUNTIME_DIR is not set; fix: {export}");
    }
    format!(
        "XDG_RUNTIME_DIR is not set, and there is no {usual}; fix: loginctl enable-linger {user}, as root, then {export}"
    )
}

/// Parses the property `ExecStart`, such as `{ path=/usr/sbin/nginx ; argv[]=… }`.
fn program_of(commands: &str) -> Option<PathBuf> {
    Some(commands.strip_prefix("{ path=")?.split_once(" ; ")?.0.into())
}

/// Returns the name of an instance for a template, else the name.
fn instance(unit: &str) -> String {
    unit.replacen("@.", &format!("@{INSTANCE}."), 1)
}
