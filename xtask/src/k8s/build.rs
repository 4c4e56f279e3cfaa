//! Builds Kubernetes and the other parts of a cluster from the Go module proxy, and keeps them in the cache.
//!
//! `xtask/k8s/NAME` is a Go module that names one version and the digests of all its components.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::repository;
use crate::vm::cache::Cache;
use crate::vm::{Lacking, need, run};

/// A Go module of `xtask/k8s`.
struct Module {
    name: &'static str,
    /// The module that determines the version.
    of: &'static str,
    /// The programs: their packages below the module, and their names.
    programs: &'static [(&'static str, &'static str)],
}

const MODULES: [Module; 4] = [
    Module {
        name: "kubernetes",
        of: "k8s.io/kubernetes",
        programs: &[
            ("/cmd/kube-apiserver", "kube-apiserver"),
            ("/cmd/kube-controller-manager", "kube-controller-manager"),
            ("/cmd/kube-scheduler", "kube-scheduler"),
            ("/cmd/kubelet", "kubelet"),
            ("/cmd/kubectl", "kubectl"),
        ],
    },
    Module { name: "etcd", of: "go.etcd.io/etcd/server/v3", programs: &[("", "etcd")] },
    Module { name: "kwok", of: "sigs.k8s.io/kwok", programs: &[("/cmd/kwok", "kwok")] },
    Module { name: "helm", of: "helm.sh/helm/v3", programs: &[("/cmd/helm", "helm")] },
];

/// Opens the cache.
pub(super) fn cache() -> Result<Cache> {
    Cache::named("tiexec-k8s", "TIEXEC_K8S_CACHE")
}

/// Returns the path of helm, and builds it first if necessary.
pub(super) fn helm() -> Result<PathBuf> {
    if let Some(helm) = helm_that_is_there() {
        return Ok(helm);
    }
    let module = MODULES.iter().find(|module| module.name == "helm").context("it is one")?;
    let version = module.version()?;
    let made = cache()?.once(&format!("helm-{version}"), |new| module.build(&version, new))?;
    Ok(made.join("helm"))
}

/// Returns the path of a helm in the cache or on the machine.
pub(super) fn helm_that_is_there() -> Option<PathBuf> {
    let module = MODULES.iter().find(|module| module.name == "helm")?;
    let own = cache().ok()?.path().join(format!("helm-{}/helm", module.version().ok()?));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed = std::env::split_paths(&path).map(|place| place.join("helm"));
    std::iter::once(own).chain(installed).find(|helm| helm.is_file())
}

/// Returns a `PATH` that begins with the directories of the programs, and builds the programs first if necessary.
pub(super) fn path(cache: &Cache) -> Result<OsString> {
    let mut places = Vec::new();
    for module in &MODULES {
        let version = module.version()?;
        let entry = format!("{}-{version}", module.name);
        places.push(cache.once(&entry, |new| module.build(&version, new))?);
    }
    let rest = std::env::var_os("PATH").unwrap_or_default();
    // The rest has containerd, runc and ip.
    places.extend(std::env::split_paths(&rest));
    places.extend(["/usr/sbin", "/sbin"].map(PathBuf::from));
    Ok(std::env::join_paths(places)?)
}

impl Module {
    fn directory(&self) -> Result<PathBuf> {
        Ok(repository()?.join("xtask/k8s").join(self.name))
    }

    /// Returns the version that the module's `go.mod` requires.
    fn version(&self) -> Result<String> {
        let file = self.directory()?.join("go.mod");
        let text =
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let mut words = text.split_whitespace().skip_while(|word| *word != self.of).skip(1);
        words.next().map(str::to_owned).with_context(|| format!("{} has no version", self.of))
    }

    /// Builds the programs. Go's own caches are dropped afterwards: they take ten times as much.
    fn build(&self, version: &str, to: &Path) -> Result<()> {
        need("go", "golang-go")?;
        let caches = tempfile::tempdir_in("/var/tmp")?;
        let mut numbers = version.trim_start_matches('v').split('.');
        let (major, minor) =
            (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
        // hack/lib/version.sh of Kubernetes sets the same variables. The other modules do not have them, which does no
        // harm.
        let set = "-X k8s.io/component-base/version.git";
        let flags = format!(
            "-s -w {set}Version={version} {set}Major={major} {set}Minor={minor} {set}TreeState=clean"
        );
        for (package, name) in self.programs {
            let mut go = Command::new("go");
            go.current_dir(self.directory()?).args(["build", "-ldflags", &flags, "-o"]);
            go.arg(to.join(name)).arg(format!("{}{package}", self.of));
            go.env("GOMODCACHE", caches.path().join("mod"));
            go.env("GOCACHE", caches.path().join("build"));
            go.env("GOFLAGS", "-trimpath -buildvcs=false -mod=readonly -modcacherw");
            run(go.env("CGO_ENABLED", "0").env("GOTOOLCHAIN", "local"))?;
        }
        Ok(())
    }
}

/// Fails with the missing tool unless the machine has all tools of a node.
pub(super) fn look_for_tools() -> Result<()> {
    if fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) != 0) {
        bail!(Lacking("only root can make the namespaces".to_owned()));
    }
    let setup = "scripts/setup k8s";
    for tool in ["containerd", "runc", "podman", "ip", "openssl", "setpriv", "unshare", "curl"] {
        let found = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]
            .into_iter()
            .any(|place| Path::new(place).join(tool).exists());
        if !found {
            bail!(Lacking(format!("no {tool}; fix: {setup}")));
        }
    }
    Ok(())
}
