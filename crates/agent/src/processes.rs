//! The facts about a process that rules match. Reading them never waits for anything that the process controls.
//!
//! This module never takes the lock of the process's memory, opens a file that the process chose, or follows one of its
//! paths. A process of another user could block each of these for any time.

use tiexec_core::proc::cgroup;
use tiexec_core::proc::mountinfo;
use tiexec_engine::identity::Identity;
use tiexec_remap::file_state::FileState;
use tiexec_sys::Pid;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::reopen::{self, PathFile};

use crate::pods::{Pod, Pods};
use crate::state::Whose;

/// The facts about a process that rules match.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Process {
    /// See [`Identity`].
    pub identity: Identity,
    /// Its name.
    pub comm: Vec<u8>,
    /// The path of its program in this mount namespace. `None` if the program lies on a mount that this mount namespace
    /// does not have: there the process decides how its path reads.
    pub exe: Option<Vec<u8>>,
    /// The path that the process shows, even where it controls how the path reads.
    pub shown_exe: Vec<u8>,
    /// Its program's file; `None` if this process may not know it.
    pub(crate) file: Option<FileState>,
    /// Its unit of the system's manager.
    pub unit: Option<String>,
    /// The path of its cgroup.
    pub cgroup: Option<Vec<u8>>,
    /// Real, effective, saved and file system user id.
    pub uids: Vec<u32>,
    /// True if it is in a PID namespace of its own: in a container.
    pub contained: bool,
    /// The UID of its pod of Kubernetes.
    pub pod_uid: Option<String>,
    /// The pod, if the agent knows it.
    pub pod: Option<Pod>,
}

/// The facts about the machine that are needed to examine processes.
#[derive(Clone, Debug, Default)]
pub struct Examiner {
    mounts: Vec<u64>,
    cgroup_of_init: Vec<u8>,
    /// The pods of this node, as far as they are known.
    pub pods: Pods,
}

impl Examiner {
    /// Reads the facts about the machine. No pods are known yet.
    pub fn look() -> Self {
        let mut examiner = Self::default();
        examiner.look_again();
        examiner
    }

    /// Reads the facts again. The pods stay as they are.
    pub fn look_again(&mut self) {
        let mounts = ProcDir::this_process().and_then(|this| this.read("mountinfo"));
        let mounts = mounts.unwrap_or_default();
        self.mounts = mountinfo::parse(&mounts).iter().map(|mount| mount.id).collect();
        let init = ProcDir::of(Pid::INIT).and_then(|init| init.read("cgroup"));
        self.cgroup_of_init = init.unwrap_or_default();
    }

    /// Returns the unit of a process. Any user may read it, also of a process about which [`process`](Self::process) tells
    /// this user nothing.
    pub fn unit(&self, process: &ProcDir) -> Option<String> {
        self.unit_in(&process.read("cgroup").unwrap_or_default())
    }

    fn unit_in(&self, cgroup: &[u8]) -> Option<String> {
        cgroup::units(cgroup, &self.cgroup_of_init).map(|units| units.system)
    }

    /// Returns the facts about a process; `None` if it is gone, or a kernel thread.
    pub fn process(&self, process: &ProcDir) -> Option<Process> {
        let identity = Identity::of(process)?;
        let shown_exe = process.exe_path().ok()?;
        let held = PathFile::of_process(process, "exe").ok()?;
        let ours = reopen::mount_id(&held).is_some_and(|id| self.mounts.contains(&id));
        let path = shown_exe.strip_suffix(b" (deleted)").unwrap_or(&shown_exe);
        let status = process.status().ok()?;
        let cgroup = process.read("cgroup").unwrap_or_default();
        let pod_uid = cgroup::pod(&cgroup);
        let pod = pod_uid.as_deref().and_then(|uid| self.pods.get(uid)).cloned();
        Some(Process {
            identity,
            comm: status.name,
            exe: ours.then(|| path.to_vec()),
            unit: self.unit_in(&cgroup),
            cgroup: cgroup::path(&cgroup).map(<[u8]>::to_vec),
            uids: status.credentials.uids,
            contained: status.in_own_pid_namespace,
            shown_exe,
            file: FileState::of(&held),
            pod_uid,
            pod,
        })
    }
}

/// Lists all processes except this one.
pub fn every() -> impl Iterator<Item = (Pid, ProcDir)> {
    let this = tiexec_sys::process::this();
    ProcDir::every().filter(move |(pid, _)| *pid != this)
}

impl Process {
    /// Returns whether a crash of this process counts for the whole machine, and not only for its user. The process
    /// must belong to root, or to a service's own user in a unit of the system. The unit alone does not decide, because
    /// a user's program may run in a unit of the system such as cron's. Root in a container, and any user in a pod,
    /// does not count: it must not be able to switch the agent off for all.
    pub fn counts_for_all(&self) -> bool {
        let root = self.uids.len() == 4 && self.uids.iter().all(|&uid| uid == 0);
        let service = self.uids.len() == 4 && self.uids.iter().all(|&uid| is_of_a_service(uid));
        let alone = self.contained || self.pod_uid.is_some();
        !alone && (root || (service && self.unit.is_some()))
    }

    /// Returns the owner of the process, so that the crashes of one user do not affect another user.
    pub fn whose(&self) -> Whose {
        let is_in_pod = self.pod_uid.is_some();
        let namespace = self.pod.as_ref().map(|pod| pod.namespace.clone());
        let namespace = namespace.or_else(|| is_in_pod.then(|| Whose::UNKNOWN.to_owned()));
        Whose { uid: self.uid(), namespace }
    }

    /// Returns the real user id.
    pub fn uid(&self) -> u32 {
        self.uids.first().copied().unwrap_or(u32::MAX)
    }
}

/// Returns whether a user ID belongs to a service and not to a person: it is below `UID_MIN` (login.defs(5)), or
/// systemd gives it to `DynamicUser=` (systemd: docs/UIDS-GIDS.md).
fn is_of_a_service(uid: u32) -> bool {
    uid < 1000 || (61184..=65519).contains(&uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_crash_is_the_users() {
        let process = |uids: [u32; 4], unit: Option<&str>| Process {
            uids: uids.to_vec(),
            unit: unit.map(str::to_owned),
            ..Process::default()
        };
        let service = Some("postgresql@16-main.service");
        assert!(process([0; 4], None).counts_for_all());
        assert!(process([105; 4], service).counts_for_all());
        assert!(!Process { contained: true, ..process([0; 4], None) }.counts_for_all());
        assert!(!Process { contained: true, ..process([105; 4], service) }.counts_for_all());
        assert!(process([61184; 4], service).counts_for_all());
        assert!(!process([105; 4], None).counts_for_all());
        assert!(!process([1000; 4], Some("cron.service")).counts_for_all());
        assert!(!process([1000, 0, 0, 0], Some("cron.service")).counts_for_all());
        assert!(!process([65534; 4], service).counts_for_all());
        assert!(!Process::default().counts_for_all());
        let of_pod = Process { pod_uid: Some("u".to_owned()), ..process([0; 4], service) };
        assert!(!of_pod.counts_for_all());
        let pod = Pod { namespace: "shop".to_owned(), ..Pod::default() };
        let known = Process { pod: Some(pod), ..of_pod.clone() };
        assert_ne!(of_pod.whose(), known.whose());
        let outside = Process { pod_uid: None, ..of_pod.clone() };
        assert_ne!(of_pod.whose(), outside.whose());
        assert!(of_pod.whose().may_be(&known.whose()) && !of_pod.whose().may_be(&outside.whose()));
    }
}
