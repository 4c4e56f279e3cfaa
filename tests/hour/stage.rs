//! The services: private copies of Debian's programs under Debian's own units, and a program that checks its own bytes. And what is looked
//! at: that they live, and what TiExec has left in them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use support::attaching::{descriptors, files_joined};
use support::child::{eventually, soon};
use support::machine::{Groups, memory_controller};
use support::smaps::status_field;
use support::systemd::{Systemd, postgresql};
use support::{Kind, install, program};

use crate::clients::{Gate, Inside, Kind as Asks, PAGE, page};

const UNIT: &str = include_str!("../../systemd/tiexecd.service");
pub(crate) const AGENT: &str = "tiexecd.service";
/// The unit of `tests/programs/exchange.c`, and the file with the number of its bytes.
pub(crate) const EXCHANGE: &str = "exchange.service";
pub(crate) const BYTES: &str = "/run/exchange";
/// The directory of the copies, inside.
const OPT: &str = "/opt";
/// A file for the page cache of the cgroup.
const FILLER: &str = "/opt/filler";
const FILLED: u64 = 192 << 20;
/// The name of the directory of copies that covers one of the machine's.
const COVER: &str = "cover";

/// A service, how it is asked, and the setting with which its text becomes huge.
struct Kept {
    unit: String,
    /// The machine's file, whose copy below [`OPT`] the unit runs; empty for the exchange.
    file: PathBuf,
    asks: Option<Asks>,
    rule: &'static str,
}

/// The services of all machines. Postgres runs from a cover of its directory, where Debian's template searches.
fn all() -> Vec<Kept> {
    let version = postgresql();
    let kept = |unit: &str, file: &str, asks, rule| {
        let (unit, file) = (unit.replace("VERSION", &version), file.replace("VERSION", &version));
        Kept { unit, file: file.into(), asks, rule }
    };
    let aggressive = "backing = \"image\"\nedges = \"aggressive\"";
    let pad = "backing = \"image\"\nedges = \"pad\"";
    vec![
        kept(EXCHANGE, "", None, "backing = \"image\""),
        kept("redis-server.service", "/usr/bin/redis-server", Some(Asks::Redis), aggressive),
        kept("nginx.service", "/usr/sbin/nginx", Some(Asks::Nginx), aggressive),
        kept("mariadb.service", "/usr/sbin/mariadbd", Some(Asks::Mariadb), pad),
        kept(
            "postgresql@VERSION-main.service",
            "/usr/lib/postgresql/VERSION/bin/postgres",
            Some(Asks::Postgres),
            "backing = \"image\"",
        ),
        kept(
            "prometheus.service",
            "/usr/bin/prometheus",
            Some(Asks::Prometheus),
            "edges = \"conservative\"",
        ),
    ]
}

impl Kept {
    fn is_exchange(&self) -> bool {
        self.unit == EXCHANGE
    }

    fn name(&self) -> String {
        let name = self.file.file_name().unwrap_or("exchange".as_ref());
        name.to_string_lossy().into_owned()
    }

    /// The directory of the program's file, where a copy of it covers the machine's.
    fn covered(&self) -> Option<&Path> {
        (self.asks == Some(Asks::Postgres)).then(|| self.file.parent()).flatten()
    }
}

/// A service that the machine has.
pub(crate) struct Service {
    kept: Kept,
    /// The copy, outside.
    pub(crate) copy: PathBuf,
    /// Closed while the service is stopped.
    pub(crate) gate: Gate,
    /// Its main process; none while it is stopped by us.
    main: RefCell<Option<String>>,
    /// Counts its starts.
    starts: Cell<u64>,
    pub(crate) enabled: Cell<bool>,
    /// Its text as systemd started it, without TiExec.
    plain: RefCell<Vec<String>>,
}

impl Service {
    pub(crate) fn unit(&self) -> &str {
        &self.kept.unit
    }

    pub(crate) fn asks(&self) -> Option<Asks> {
        self.kept.asks
    }

    /// Its main process, by the ID inside.
    pub(crate) fn main(&self) -> Option<String> {
        self.main.borrow().clone()
    }

    pub(crate) fn is_up(&self) -> bool {
        self.main.borrow().is_some()
    }

    /// The name for `tiexecctl enable`, and the unit of TiExec's beside it.
    pub(crate) fn to_enable(&self) -> (String, String) {
        match self.unit().split_once('@') {
            Some((template, rest)) => {
                (format!("{template}@.service"), format!("tiexec-{template}@{rest}"))
            }
            None => (self.unit().to_owned(), format!("tiexec@{}", self.unit())),
        }
    }

    /// The file that is copied.
    fn source(&self) -> PathBuf {
        if self.kept.is_exchange() {
            return program("exchange", Kind::DynamicNoPie);
        }
        self.kept.file.canonicalize().expect("an installed program")
    }

    /// Replaces the copy by an equal file, as an upgrade of its package does.
    pub(crate) fn upgrade(&self) {
        let new = self.copy.with_extension("new");
        install(&self.source(), &new, 0o755);
        std::fs::rename(new, &self.copy).expect("a rename in one directory");
    }
}

/// What one look at the agent showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Agent {
    pub(crate) anonymous_kib: u64,
    /// The targets of its descriptors without numbers, and how many there are of each.
    pub(crate) descriptors: BTreeMap<String, usize>,
}

pub(crate) struct Stage {
    pub(crate) systemd: Systemd,
    pub(crate) services: Vec<Service>,
    /// The memory cgroup of all processes inside, and the name of its limit.
    memory: Option<(PathBuf, &'static str)>,
    _member: Option<Member>,
    _groups: Groups,
    /// The exchange before TiExec has worked on any.
    untouched: RefCell<[Vec<String>; 2]>,
    opt: tempfile::TempDir,
}

impl Stage {
    /// Boots a systemd with the agent's unit and the services of this machine, of which none is started.
    pub(crate) fn boot() -> Stage {
        let opt = support::warm::directory();
        let there = |kept: &Kept| kept.is_exchange() || Systemd::has(&kept.unit);
        let (here, missing): (Vec<_>, Vec<_>) = all().into_iter().partition(there);
        missing.iter().for_each(|kept| support::skip(&format!("{} is not installed", kept.unit)));
        let services: Vec<Service> =
            here.into_iter().map(|kept| service(kept, opt.path())).collect();
        let mut over = vec![(opt.path().to_owned(), PathBuf::from(OPT))];
        for covered in services.iter().filter_map(|service| service.kept.covered()) {
            let own = opt.path().join(COVER);
            support::warm::run("cp", &["-a".as_ref(), covered, &own]);
            over.push((own, covered.to_owned()));
        }
        services.iter().for_each(Service::upgrade);
        let mut groups = Groups::new();
        let memory =
            memory_controller().and_then(|(parent, limit)| Some((groups.group(&parent)?, limit)));
        let programs = support::tiexecctl().with_file_name("");
        let member =
            memory.as_ref().map(|(group, limit)| Member::of(group, *limit == "memory.max"));
        let systemd = Systemd::boot_over(&programs, &over);
        let stage = Stage {
            systemd,
            services,
            memory,
            _member: member,
            _groups: groups,
            untouched: RefCell::default(),
            opt,
        };
        stage.write_files();
        stage
    }

    fn write_files(&self) {
        let write = |path: &str, text: &str| {
            let path = self.systemd.path(path);
            std::fs::create_dir_all(path.parent().expect("a file")).expect("a directory inside");
            std::fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        };
        let mut rules = String::new();
        for Service { kept, .. } in &self.services {
            let (unit, rule) = (&kept.unit, kept.rule);
            let name = unit.split(['.', '@']).next().unwrap_or(unit);
            let _to_a_string = write!(
                rules,
                "[[rule]]\nname = \"{name}\"\nunit = \"{unit}\"\naction = \"attach\"\ncanary = \"off\"\n\
                 min-text = \"1MiB\"\nmin-age = \"1s\"\n{rule}\n"
            );
            let text = match std::fs::read_to_string(format!("/usr/lib/systemd/system/{unit}")) {
                Ok(text) => {
                    let file = kept.file.to_string_lossy();
                    text.replace(&*file, &format!("{OPT}/{}", kept.name()))
                }
                // Its addresses are always the same, so that its mappings can be compared.
                Err(_) if kept.is_exchange() => {
                    format!("[Service]\nType=exec\nExecStart=setarch -R {OPT}/exchange {BYTES}\n")
                }
                // The cover of a directory is where the template's programs search.
                Err(_) => continue,
            };
            write(&format!("/etc/systemd/system/{unit}"), &text);
        }
        write("/etc/tiexec/conf.d/hour.toml", &rules);
        write(PAGE, &page());
        write("/etc/systemd/system/service.d/often.conf", "[Unit]\nStartLimitIntervalSec=0\n");
        // On cgroup v1, systemd may not see that a child of a killed agent has ended. It waits for this time then.
        let soon = "[Service]\nTimeoutStopSec=20s\n";
        write(&format!("/etc/systemd/system/{AGENT}.d/soon.conf"), soon);
        std::fs::File::create(self.opt.path().join("filler"))
            .and_then(|file| file.set_len(FILLED))
            .expect("a sparse file");
        self.systemd.write_unit(&format!("/etc/systemd/system/{AGENT}"), UNIT);
    }

    pub(crate) fn inside(&self) -> Inside {
        Inside { systemd: self.systemd.pid() }
    }

    pub(crate) fn exchange(&self) -> &Service {
        &self.services[0]
    }

    /// Starts or restarts a service, between two requests.
    pub(crate) fn start(&self, service: &Service) {
        let mut gate = service.gate.close();
        let unit = service.unit();
        let done = self.systemd.systemctl(["restart", unit]);
        assert!(done.status.success(), "{done}\n{}", self.systemd.log(unit));
        // A forking daemon may write its PID file a moment later.
        eventually(&format!("{unit} has a main process"), || {
            let main = self.systemd.property(unit, "MainPID");
            *service.main.borrow_mut() = Some(main).filter(|main| main != "0");
            service.is_up()
        });
        service.starts.set(service.starts.get() + 1);
        *gate = Some(service.starts.get());
        drop(gate);
        if service.enabled.get() {
            self.systemd.eventually_done(unit, &service.to_enable().1);
        }
    }

    /// Stops a service, between two requests. Panics unless the service ends as it does by itself.
    pub(crate) fn stop(&self, service: &Service) {
        let mut gate = service.gate.close();
        *gate = None;
        *service.main.borrow_mut() = None;
        let unit = service.unit();
        self.systemd.systemctl(["stop", unit]).assert_code(0);
        let result = self.systemd.property(unit, "Result");
        assert_eq!(result, "success", "{unit}: {}", self.systemd.log(unit));
    }

    /// Panics if a service has ended, or was restarted, by other than our stop.
    pub(crate) fn assert_alive(&self) {
        let names = "--property=Id,MainPID,NRestarts,ActiveState,Result";
        let units = self.services.iter().filter(|service| service.is_up());
        let words = ["show", names].into_iter().chain(units.map(Service::unit));
        let shown = self.systemd.systemctl(words).assert_code(0).out();
        for service in self.services.iter().filter(|service| service.is_up()) {
            let unit = service.unit();
            let of_it = shown.split("\n\n").find(|block| block.contains(&format!("Id={unit}\n")));
            let of_it = of_it.unwrap_or_else(|| panic!("{unit}: {shown}"));
            let main = service.main().unwrap_or_default();
            for fact in [
                format!("MainPID={main}"),
                "NRestarts=0".into(),
                "ActiveState=active".into(),
                "Result=success".into(),
            ] {
                assert!(
                    of_it.lines().any(|line| line == fact),
                    "{unit}: not {fact}: {of_it}\n{}",
                    self.systemd.log(unit)
                );
            }
        }
    }

    /// The ID outside of the main process of a service.
    pub(crate) fn main(&self, unit: &str) -> i32 {
        let inside = self.systemd.property(unit, "MainPID");
        let is_it = |pid: &i32| {
            let ids = status_field(*pid, "NSpid").unwrap_or_default();
            ids.split_whitespace().last() == Some(inside.as_str())
        };
        let pids = self.systemd.pids(unit);
        pids.iter().copied().find(is_it).unwrap_or_else(|| panic!("{unit}: {inside} of {pids:?}"))
    }

    /// Notes the state of all services before TiExec works on them.
    pub(crate) fn note_plain(&self) {
        for service in &self.services {
            *service.plain.borrow_mut() = self.text(service);
        }
        *self.untouched.borrow_mut() = state(self.main(EXCHANGE));
    }

    /// Panics unless the exchange is as it was before TiExec worked on it.
    pub(crate) fn assert_exchange_untouched(&self) {
        let (pid, before) = (self.main(EXCHANGE), self.untouched.borrow());
        // A process has its own text a moment before the descriptors of the revert are closed.
        if !soon(|| state(pid) == *before) {
            assert_eq!(state(pid), *before);
        }
    }

    /// Panics unless nothing of TiExec's is in a service, and its text is as it was without TiExec.
    pub(crate) fn assert_reverted(&self, service: &Service) {
        let unit = service.unit();
        for pid in self.systemd.pids(unit) {
            // Between its path and this look, a process may end.
            let left: Vec<_> = mappings_of(pid).into_iter().filter(|path| is_ours(path)).collect();
            assert!(left.is_empty(), "{unit}: process {pid} maps {left:?}");
            if support::child::state(pid).is_some_and(|state| state != 'Z') {
                let left: Vec<_> =
                    descriptors(pid).into_iter().filter(|link| is_ours(link)).collect();
                assert!(left.is_empty(), "{unit}: process {pid} has {left:?}");
            }
        }
        assert_eq!(self.text(service), *service.plain.borrow(), "{unit}");
    }

    /// The mappings of text of the main process, sorted, because libraries may lie in any order. A unit's `ExecPaths=` is a mount of the program's file. The kernel takes
    /// it away when an upgrade replaces the file, and calls the file `/` then.
    fn text(&self, service: &Service) -> Vec<String> {
        let program = format!(" {OPT}/{}", service.kept.name());
        let named = |line: String| match line.strip_suffix(" /") {
            Some(rest) => rest.to_owned() + &program,
            None => line,
        };
        let mut all: Vec<String> = text(self.main(service.unit())).into_iter().map(named).collect();
        all.sort();
        all
    }

    /// Whether a process of the service has copies of TiExec's.
    pub(crate) fn has_copies(&self, service: &Service) -> bool {
        let pids = self.systemd.pids(service.unit());
        pids.into_iter().any(|pid| mappings_of(pid).iter().any(|path| is_ours(path)))
    }

    /// Looks at the agent, once it waits for nothing.
    pub(crate) fn agent(&self) -> Agent {
        let pid = self.main(AGENT);
        let number = status_field(pid, "RssAnon").expect("a living agent");
        let number = number.trim_end_matches(" kB").parse().expect("KiB");
        let mut found = BTreeMap::new();
        for link in descriptors(pid) {
            let target = link.split_once(' ').map_or("", |(_, target)| target);
            let kind: String = target.chars().filter(|letter| !letter.is_ascii_digit()).collect();
            *found.entry(kind).or_default() += 1;
        }
        Agent { anonymous_kib: number, descriptors: found }
    }

    /// Does `work` while the cgroup may have no more memory than now, of which a part is page cache that is not in use.
    pub(crate) fn under_pressure(&self, work: impl FnOnce()) {
        let Some((group, limit)) = &self.memory else { return work() };
        self.systemd
            .run(["dd", &format!("if={FILLER}"), "of=/dev/null", "bs=64k", "status=none"])
            .assert_code(0);
        let (used, limit, none) = match *limit {
            "memory.max" => ("memory.current", "memory.high", "max"),
            limit => ("memory.usage_in_bytes", limit, "-1"),
        };
        let now = std::fs::read_to_string(group.join(used)).expect("its usage");
        std::fs::write(group.join(limit), now.trim()).expect("a limit");
        work();
        std::fs::write(group.join(limit), none).expect("no limit");
    }

    /// Whether there is a memory cgroup.
    pub(crate) fn has_memory_group(&self) -> bool {
        self.memory.is_some()
    }

    /// The shared memory of all processes that no file system shows: memory files.
    pub(crate) fn memory_files(&self) -> Option<i64> {
        let (group, _) = self.memory.as_ref()?;
        let out = self
            .systemd
            .run(["df", "--block-size=1", "--output=used", "/var", "/run", "/tmp", "/dev/shm"])
            .assert_code(0)
            .out();
        let used: u64 = out.lines().filter_map(|line| line.trim().parse::<u64>().ok()).sum();
        Some(support::machine::shared_memory(group) as i64 - used as i64)
    }
}

fn service(kept: Kept, opt: &Path) -> Service {
    let directory = if kept.covered().is_some() { opt.join(COVER) } else { opt.to_owned() };
    let copy = directory.join(kept.name());
    Service {
        kept,
        copy,
        gate: Gate::new(),
        main: RefCell::new(None),
        starts: Cell::new(0),
        enabled: Cell::new(false),
        plain: RefCell::new(Vec::new()),
    }
}

/// This process is a member of a memory cgroup, and so are its children. Drop puts it back.
struct Member {
    before: PathBuf,
}

impl Member {
    fn of(group: &Path, is_unified: bool) -> Member {
        let all = std::fs::read_to_string("/proc/self/cgroup").expect("its cgroups");
        let of_memory = |controllers: &str| match is_unified {
            true => controllers.is_empty(),
            false => controllers.split(',').any(|one| one == "memory"),
        };
        let mut groups = all.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
        let (_, before) =
            groups.find(|(controllers, _)| of_memory(controllers)).expect("its cgroup");
        join(group);
        let root = group.parent().expect("a group");
        Member { before: root.join(before.trim_start_matches('/')) }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        join(&self.before);
    }
}

/// Makes this process a member of a cgroup.
fn join(group: &Path) {
    let joined = std::fs::write(group.join("cgroup.procs"), std::process::id().to_string());
    joined.unwrap_or_else(|error| panic!("{}: {error}", group.display()));
}

/// The mappings and descriptors of a process, of which each start has the same. A revert leaves text divided where a part of it was no copy.
fn state(pid: i32) -> [Vec<String>; 2] {
    let without_inode =
        |link: String| link.split_once(":[").map_or(link.clone(), |(kind, _)| kind.into());
    [files_joined(pid), descriptors(pid).into_iter().map(without_inode).collect()]
}

/// The paths of a process's mappings; none if it has ended.
fn mappings_of(pid: i32) -> Vec<String> {
    let text = std::fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    text.lines().filter_map(|line| Some(line.split_once('/')?.1.to_owned())).collect()
}

/// Whether a mapping or a descriptor is of a copy, or of another file of TiExec's.
fn is_ours(path: &str) -> bool {
    ["memfd:tiexec", "run/tiexec/"].iter().any(|ours| path.contains(ours))
}

/// The mappings of text from files, without their addresses.
fn text(pid: i32) -> Vec<String> {
    let without_address = |line: String| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let is_text = rest.split(' ').next()?.contains('x') && rest.contains(" /");
        is_text.then_some(format!("{:x} {rest}", number(end)? - number(start)?))
    };
    files_joined(pid).into_iter().filter_map(without_address).collect()
}
