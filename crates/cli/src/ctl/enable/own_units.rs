//! TiExec's own units beside a service: their names, their files and the texts of these.
//!
//! | for | the attach | `--warm` |
//! |---|---|---|
//! | `x.service`, `x@i.service` | `tiexec@x.service`, with the options in a drop-in | `tiexec_warm@x.service` |
//! | the template `x@.service` | `tiexec-x@.service` | `tiexec_warm-x@.service` |
//!
//! A link in `x.service.wants` makes the service want the unit. In the link of a template systemd replaces only the
//! instance, so a template needs a template of its own, whose instances are called as the service's.

use std::path::{Path, PathBuf};

use super::own_file;

/// The template that packages install.
const TEMPLATE: &str = include_str!("../../../../../systemd/tiexec@.service");
/// The name of [`TEMPLATE`].
pub(super) const NAME: &str = "tiexec@.service";
/// The path of `tiexecctl` in [`TEMPLATE`].
const PROGRAM: &str = "/usr/bin/tiexecctl";
/// The time limit of `warm` before a start, in seconds.
const WARM: &str = "10";

/// What a unit of TiExec's does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// Attaches after the start.
    Attach,
    /// Warms the program before the start.
    Warm,
}

/// A service that is enabled, or is to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Service<'a> {
    /// The name, such as `x.service`. A template has no instance.
    pub name: &'a str,
    /// True if it is one of the user's own manager.
    pub user: bool,
}

impl<'a> Service<'a> {
    fn stem(self) -> &'a str {
        self.name.strip_suffix(".service").unwrap_or(self.name)
    }

    /// Returns the name of a template, without the `@`.
    fn template(self) -> Option<&'a str> {
        // An instance may have this sign, too.
        self.stem().strip_suffix('@').filter(|prefix| !prefix.contains('@'))
    }

    /// Returns whether this is a unit of TiExec's, which is not to be enabled itself.
    pub(super) fn is_ours(self) -> bool {
        self.stem().starts_with("tiexec@") || self.stem().starts_with("tiexec_warm@")
    }

    /// Returns the name of TiExec's unit beside the service.
    pub(super) fn unit(self, part: Part) -> String {
        let of = match part {
            Part::Attach => "tiexec",
            Part::Warm => "tiexec_warm",
        };
        match self.template() {
            Some(prefix) => format!("{of}-{prefix}@.service"),
            None => format!("{of}@{}.service", self.stem()),
        }
    }

    /// Returns the path of the link by which the service wants TiExec's unit.
    pub(super) fn link(self, part: Part, units: &Path) -> PathBuf {
        units.join(format!("{}.wants", self.name)).join(self.unit(part))
    }

    /// Returns the path of the file that `enable` may write for TiExec's unit.
    pub(super) fn file(self, part: Part, units: &Path) -> PathBuf {
        match (part, self.template()) {
            (Part::Attach, None) => own_file::drop_in(units, &self.unit(part)),
            _ => units.join(self.unit(part)),
        }
    }

    /// Returns the text of the file for the attach by this `tiexecctl` with these options, which are words for systemd.
    /// `None`: no file is needed.
    pub(super) fn attach_text(self, program: &str, options: &str) -> Option<String> {
        let rest = match self.template() {
            Some(prefix) => with_options(
                &template(program, self.user)
                    .replace("%i.service", &format!("{prefix}@%i.service"))
                    .replace(
                        &format!("WantedBy={prefix}@%i.service"),
                        &format!("WantedBy={}", self.name),
                    ),
                options,
            ),
            None if options.is_empty() => return None,
            None => {
                let whole = with_options(&template(program, self.user), options);
                let line = whole.lines().find(|line| line.starts_with("ExecStart="));
                format!("[Service]\nExecStart=\n{}\n", line.unwrap_or_default())
            }
        };
        Some(own_file::marked(&rest))
    }

    /// Returns the text of the file for the warming of a file by this `tiexecctl`; both are words for systemd.
    pub(super) fn warm_text(self, program: &str, file: &str) -> String {
        let of = match self.template() {
            Some(prefix) => format!("{prefix}@%i.service"),
            None => self.name.to_owned(),
        };
        // A dollar sign is doubled in commands only.
        let path = file.replace("$$", "$");
        own_file::marked(&format!(
            "# The start of the service waits for this unit, for {WARM} seconds and a little at most.\n\
             [Unit]\nDescription=Warm the program of {of}\nDocumentation=man:tiexecctl(8)\nBefore={of}\n\
             JobRunningTimeoutSec=15s\nStartLimitIntervalSec=0\n\
             DefaultDependencies=no\nConflicts=shutdown.target\nBefore=shutdown.target\nRequiresMountsFor={path}\n\n\
             [Service]\nType=oneshot\nExecStart=-/usr/bin/timeout {WARM} {program} warm --quiet --deps {file}\n\
             KillMode=process\nTimeoutStopSec=1s\n\n\
             [Install]\nWantedBy={}\n",
            self.name
        ))
    }
}

/// Returns the service beside which TiExec's unit of this name runs. The reverse of [`Service::unit`].
pub(super) fn service_of(unit: &str) -> Option<String> {
    let rest = unit.strip_prefix("tiexec_warm").or_else(|| unit.strip_prefix("tiexec"))?;
    let name = match rest.strip_prefix('-') {
        Some(template) => template.ends_with("@.service").then_some(template),
        None => rest.strip_prefix('@').filter(|name| *name != ".service"),
    };
    name.filter(|name| name.ends_with(".service")).map(str::to_owned)
}

/// Returns the text of the template, without a mark.
fn template(program: &str, user: bool) -> String {
    let text = TEMPLATE.replace(PROGRAM, program);
    if user { text.replace("--unit=", "--user=") } else { text }
}

/// Returns the template's text for a machine on which no package has installed it.
pub(super) fn template_by_hand(program: &str, user: bool) -> String {
    own_file::marked(&template(program, user))
}

/// Appends words to the command of a unit, in which systemd reads a backslash as an escape.
fn with_options(text: &str, options: &str) -> String {
    let lines = text.lines().map(|line| match line.strip_prefix("ExecStart=") {
        Some(command) => {
            let command = command.replace('\\', r"\\");
            let blank = if options.is_empty() { "" } else { " " };
            format!("ExecStart={command}{blank}{options}\n")
        }
        None => format!("{line}\n"),
    });
    lines.collect()
}

/// The words that a drop-in of an earlier version has, as systemd reads them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Earlier {
    /// The options of the attach.
    pub options: String,
    /// The file that is warmed.
    pub warmed: Option<String>,
}

/// Returns the path of the drop-in that earlier versions wrote for a service.
pub(super) fn earlier_path(units: &Path, service: &str) -> PathBuf {
    own_file::drop_in(units, service)
}

/// Parses a drop-in of an earlier version, whose hash is right.
pub(super) fn earlier(text: &str) -> Earlier {
    let after = |key: &str, words: &str| {
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(words)?.1.trim_start().to_owned())
    };
    Earlier {
        options: after("ExecStartPost=", " --quiet --wait-exec").unwrap_or_default(),
        warmed: after("ExecStartPre=", " warm --quiet --deps "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn service(name: &str) -> Service<'_> {
        Service { name, user: false }
    }

    #[test]
    fn the_template_of_users_differs_by_the_option_only() {
        let of_users = include_str!("../../../../../systemd/user/tiexec@.service");
        assert_eq!(template(PROGRAM, true), of_users);
        assert!(TEMPLATE.contains(&format!("\nExecStart=-{PROGRAM} attach --unit=%i.service ")));
    }

    #[test]
    fn names() {
        let units = Path::new("/u");
        for (name, attach, warm) in [
            ("x.service", "tiexec@x.service", "tiexec_warm@x.service"),
            ("x@.service", "tiexec-x@.service", "tiexec_warm-x@.service"),
            ("x@i.service", "tiexec@x@i.service", "tiexec_warm@x@i.service"),
            ("x@i@.service", "tiexec@x@i@.service", "tiexec_warm@x@i@.service"),
            // The unit of this template must not be taken for the warming of another one.
            ("warm@.service", "tiexec-warm@.service", "tiexec_warm-warm@.service"),
        ] {
            assert_eq!(service(name).unit(Part::Attach), attach);
            assert_eq!(service(name).unit(Part::Warm), warm);
            for unit in [attach, warm] {
                assert_eq!(service_of(unit).as_deref(), Some(name));
            }
            let link = format!("/u/{name}.wants/{attach}");
            assert_eq!(service(name).link(Part::Attach, units), Path::new(&link));
        }
    }

    #[test]
    fn units_beside_no_service() {
        for unit in [
            NAME,
            "tiexec_warm@.service",
            "tiexecd.service",
            "tiexec-x.service",
            "x@y.service",
            "tiexec@x.d",
        ] {
            assert_eq!(service_of(unit), None, "{unit}");
        }
    }

    #[test]
    fn a_templates_unit_is_a_template() {
        let text = service(r"a\x20b@.service").attach_text("/bin/t", "--edges=pad").unwrap();
        for line in [
            r"After=a\x20b@%i.service",
            r"PartOf=a\x20b@%i.service",
            r"WantedBy=a\x20b@.service",
            r"ExecStart=-/bin/t attach --unit=a\\x20b@%i.service --quiet --wait-exec --edges=pad",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }

    #[test]
    fn an_instance_needs_a_file_for_options_only() {
        assert_eq!(service("x.service").attach_text("/bin/t", ""), None);
        let text = service("x.service").attach_text("/bin/t", "--edges=pad").unwrap();
        let wanted = "[Service]\nExecStart=\nExecStart=-/bin/t attach --unit=%i.service --quiet --wait-exec --edges=pad\n";
        assert_eq!(text.split_once('\n').unwrap().1, wanted);
    }

    #[test]
    fn drop_ins_of_earlier_versions() {
        let attach = "ExecStartPost=-+/usr/bin/tiexecctl attach --unit %n --quiet --wait-exec";
        let warm =
            "ExecStartPre=-+/usr/bin/timeout 10 /usr/bin/tiexecctl warm --quiet --deps \"/a b\"";
        let found = earlier(&format!("[Service]\n{warm}\n{attach} --edges=pad \"--only=/a b\"\n"));
        assert_eq!(found.options, "--edges=pad \"--only=/a b\"");
        assert_eq!(found.warmed.as_deref(), Some("\"/a b\""));
        assert_eq!(earlier(&format!("[Service]\n{attach}\n")), Earlier::default());
    }
}
