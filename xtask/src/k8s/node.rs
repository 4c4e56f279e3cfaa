//! The programs of the cluster, which has one node that is also the control plane.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::proxy::Proxy;
use crate::vm::run;

/// The node's address.
pub(super) const ADDRESS: &str = "10.77.0.1";
/// The address at which pods find the API server.
const SERVICE: &str = "10.96.0.1";
/// The users and groups of the programs that use the API server. Nothing else can reach the server.
const USERS: [(&str, &str); 5] = [
    ("admin", "system:masters"),
    ("system:node:node1", "system:nodes"),
    ("system:kube-controller-manager", ""),
    ("system:kube-scheduler", ""),
    ("kwok", "system:masters"),
];

/// A running cluster. Its processes end with the namespaces.
pub(super) struct Cluster {
    work: PathBuf,
    pub(super) started: Instant,
    /// The proxy between pods and the API server.
    pub(super) proxy: Proxy,
    apiserver: Option<Child>,
}

/// Waits until the condition is true.
pub(super) fn eventually(what: &str, limit: u64, mut is: impl FnMut() -> bool) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(limit);
    while !is() {
        if Instant::now() >= end {
            bail!("not within {limit} s: {what}");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

impl Cluster {
    /// Starts all programs, and waits until the node is ready.
    pub(super) fn start(work: &Path) -> Result<Self> {
        let started = Instant::now();
        let proxy = Proxy::start((SERVICE, 443), (ADDRESS, 6443))?;
        let mut cluster = Self { work: work.to_owned(), started, proxy, apiserver: None };
        cluster.credentials()?;
        cluster.containerd()?;
        cluster.etcd()?;
        cluster.start_apiserver()?;
        cluster.controllers()?;
        cluster.kubelet()?;
        let ready = || {
            let node = cluster.kubectl(&["get", "node", "node1", "--no-headers"]);
            node.is_ok_and(|text| text.contains(" Ready"))
        };
        eventually("the node is ready", 120, ready)?;
        let account = || cluster.kubectl(&["get", "serviceaccount", "default"]).is_ok();
        eventually("there is a service account", 60, account)?;
        Ok(cluster)
    }

    /// A path in the directory of the run.
    pub(super) fn at(&self, name: &str) -> PathBuf {
        self.work.join(name)
    }

    fn text(&self, name: &str) -> String {
        self.at(name).to_string_lossy().into_owned()
    }

    /// Starts a program, whose output goes to a log with its name.
    fn spawn(&self, program: &str, args: &[String]) -> Result<Child> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.at("log").join(format!("{program}.log")))?;
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        command.spawn().with_context(|| format!("cannot start {program}"))
    }

    /// Makes a key and a self-signed certificate for the API server, which clients trust directly, and a token for each
    /// user.
    fn credentials(&self) -> Result<()> {
        // rustls rejects a CA certificate as a server's certificate, and openssl's defaults make a CA certificate.
        let config = self.at("openssl.cnf");
        fs::write(&config, "[req]\ndistinguished_name = name\n[name]\n")?;
        let mut openssl = Command::new("openssl");
        openssl.args([
            "req",
            "-x509",
            "-nodes",
            "-newkey",
            "ec",
            "-days",
            "2",
            "-subj",
            "/CN=node1",
        ]);
        openssl.arg("-config").arg(config).args(["-addext", "basicConstraints=critical,CA:FALSE"]);
        openssl.args(["-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout"]).arg(self.at("key"));
        let names = format!(
            "subjectAltName=DNS:kubernetes.default.svc,DNS:localhost,IP:127.0.0.1,IP:{ADDRESS},IP:{SERVICE}"
        );
        openssl.arg("-out").arg(self.at("crt")).args(["-addext", &names]);
        run(openssl.stderr(Stdio::null()))?;
        let mut tokens = String::new();
        for (user, group) in USERS {
            let token = format!("token-of-{}", user.replace(':', "-"));
            tokens += &format!("{token},{user},{user},\"{group}\"\n");
            let config = format!(
                "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
                clusters: [{{name: c, cluster: {{server: \"https://{ADDRESS}:6443\", certificate-authority: {}}}}}]\n\
                users: [{{name: u, user: {{token: {token}}}}}]\n\
                contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n",
                self.text("crt")
            );
            fs::write(self.kubeconfig(user), config)?;
        }
        fs::write(self.at("tokens"), tokens)?;
        // The audit log names the user of each request, so that the cases can count the agent's requests.
        let policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n";
        Ok(fs::write(self.at("audit.yaml"), policy)?)
    }

    /// The kubeconfig file of a user.
    pub(super) fn kubeconfig(&self, user: &str) -> PathBuf {
        self.at(&format!("{}.kubeconfig", user.rsplit(':').next().unwrap_or(user)))
    }

    fn etcd(&self) -> Result<()> {
        let (clients, peers) = ("http://127.0.0.1:2379", "http://127.0.0.1:2380");
        let args = [
            format!("--data-dir={}", self.text("etcd")),
            "--unsafe-no-fsync".to_owned(),
            format!("--listen-client-urls={clients}"),
            format!("--advertise-client-urls={clients}"),
            format!("--listen-peer-urls={peers}"),
            format!("--initial-advertise-peer-urls={peers}"),
            format!("--initial-cluster=default={peers}"),
        ];
        self.spawn("etcd", &args).map(drop)
    }

    /// Starts the API server, and waits until it answers.
    pub(super) fn start_apiserver(&mut self) -> Result<()> {
        let (key, crt) = (self.text("key"), self.text("crt"));
        let args = [
            "--etcd-servers=http://127.0.0.1:2379".to_owned(),
            format!("--advertise-address={ADDRESS}"),
            "--secure-port=6443".to_owned(),
            format!("--tls-cert-file={crt}"),
            format!("--tls-private-key-file={key}"),
            format!("--cert-dir={}", self.text("apiserver")),
            format!("--token-auth-file={}", self.text("tokens")),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--allow-privileged=true".to_owned(),
            format!("--service-account-key-file={crt}"),
            format!("--service-account-signing-key-file={key}"),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            "--max-requests-inflight=2000".to_owned(),
            "--max-mutating-requests-inflight=1000".to_owned(),
            format!("--audit-policy-file={}", self.text("audit.yaml")),
            format!("--audit-log-path={}", self.text("log/audit.log")),
        ];
        self.apiserver = Some(self.spawn("kube-apiserver", &args)?);
        let ready = || self.kubectl(&["get", "--raw", "/readyz"]).is_ok();
        eventually("the API server is ready", 120, ready)
    }

    /// Ends the API server at once.
    pub(super) fn stop_apiserver(&mut self) -> Result<()> {
        let mut server = self.apiserver.take().context("it does not run")?;
        server.kill()?;
        server.wait()?;
        Ok(())
    }

    fn controllers(&self) -> Result<()> {
        let config = |user| format!("--kubeconfig={}", self.kubeconfig(user).display());
        let fast = ["--kube-api-qps=500", "--kube-api-burst=1000"].map(str::to_owned);
        let common = |user| {
            let words = [config(user), "--leader-elect=false".to_owned()];
            words.into_iter().chain(fast.clone())
        };
        let manager = [
            format!("--cert-dir={}", self.text("manager")),
            // On a busy machine the heartbeats of kwok's nodes are late, and without this limit their pods would never
            // be ready again.
            "--node-monitor-grace-period=10m".to_owned(),
            "--use-service-account-credentials".to_owned(),
            format!("--service-account-private-key-file={}", self.text("key")),
            format!("--root-ca-file={}", self.text("crt")),
            "--controllers=*,-nodeipam,-cloud-node-lifecycle,-service-lb-controller,-node-route-controller"
                .to_owned(),
        ];
        let manager = common("system:kube-controller-manager").chain(manager);
        self.spawn("kube-controller-manager", &manager.collect::<Vec<_>>())?;
        let scheduler = common("system:kube-scheduler");
        let scheduler = scheduler.chain([format!("--cert-dir={}", self.text("scheduler"))]);
        self.spawn("kube-scheduler", &scheduler.collect::<Vec<_>>()).map(drop)
    }

    /// Debian's containerd and runc, and the images.
    fn containerd(&self) -> Result<()> {
        let base = self.text("containerd");
        fs::create_dir_all(format!("{base}/cni"))?;
        let config = format!(
            r#"version = 2
root = "{base}/root"
state = "{base}/state"
[grpc]
  address = "{base}/sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "local.test/programs:1"
  restrict_oom_score_adj = true
  disable_apparmor = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{base}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
"#
        );
        fs::write(format!("{base}/config.toml"), config)?;
        let network = format!(
            r#"{{"cniVersion":"1.0.0","name":"pods","plugins":[{{"type":"bridge","bridge":"cni0","isGateway":true,
            "ipam":{{"type":"host-local","dataDir":"{base}/ipam","ranges":[[{{"subnet":"10.78.0.0/24"}}]],
            "routes":[{{"dst":"0.0.0.0/0"}}]}}}}]}}"#
        );
        fs::write(format!("{base}/cni/10-pods.conflist"), network)?;
        self.spawn("containerd", &["-c".to_owned(), format!("{base}/config.toml")])?;
        eventually("containerd answers", 30, || self.ctr(&["version"]).is_ok())?;
        for entry in fs::read_dir(self.at("images"))? {
            let image = entry?.path();
            self.ctr(&["images", "import", image.to_str().context("not UTF-8")?])?;
        }
        Ok(())
    }

    fn kubelet(&self) -> Result<()> {
        let (base, sock) = (self.text("kubelet-config"), self.text("containerd/sock"));
        fs::create_dir_all(&base)?;
        let config = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\naddress: {ADDRESS}\n\
            authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}\n\
            authorization: {{mode: AlwaysAllow}}\n\
            containerRuntimeEndpoint: unix://{sock}\ncgroupDriver: cgroupfs\nfailCgroupV1: false\n\
            failSwapOn: false\noomScoreAdj: 0\nmakeIPTablesUtilChains: false\nresolvConf: \"\"\n\
            enforceNodeAllocatable: [pods]\nimageGCHighThresholdPercent: 100\nlocalStorageCapacityIsolation: false\n\
            evictionHard: {{memory.available: 50Mi, nodefs.available: 1%, imagefs.available: 1%}}\n\
            nodeStatusUpdateFrequency: 5s\nsyncFrequency: 10s\n"
        );
        fs::write(format!("{base}/config.yaml"), config)?;
        let args = [
            format!("--config={base}/config.yaml"),
            format!("--kubeconfig={}", self.kubeconfig("system:node:node1").display()),
            "--hostname-override=node1".to_owned(),
            format!("--node-ip={ADDRESS}"),
        ];
        self.spawn("kubelet", &args).map(drop)
    }

    /// Starts kwok, which simulates the nodes with its annotation.
    pub(super) fn kwok(&self) -> Result<Child> {
        let args = [
            format!("--kubeconfig={}", self.kubeconfig("kwok").display()),
            "--manage-all-nodes=false".to_owned(),
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake".to_owned(),
        ];
        self.spawn("kwok", &args)
    }

    /// Returns the output of the command, or its standard error as the error.
    pub(super) fn output(command: &mut Command) -> Result<String> {
        let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
        if !output.status.success() {
            let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
            let (out, err) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            bail!(
                "{} {}: {}",
                command.get_program().to_string_lossy(),
                words.join(" "),
                tail(&format!("{out}{err}"))
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// A command with the administrator's credentials.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("KUBECONFIG", self.kubeconfig("admin")).env("HOME", self.at("home"));
        command
    }

    pub(super) fn kubectl(&self, args: &[&str]) -> Result<String> {
        Self::output(self.command("kubectl").args(args))
    }

    /// Applies a manifest.
    pub(super) fn apply(&self, manifest: &str) -> Result<()> {
        let file = tempfile::NamedTempFile::new_in(&self.work)?;
        fs::write(file.path(), manifest)?;
        Self::output(self.command("kubectl").args(["apply", "-f"]).arg(file.path())).map(drop)
    }

    fn ctr(&self, args: &[&str]) -> Result<String> {
        let mut ctr = Command::new("ctr");
        ctr.args(["-a", &self.text("containerd/sock"), "-n", "k8s.io"]).args(args);
        Self::output(&mut ctr)
    }

    /// The PID of a container's first process, in the PID namespace of the node.
    pub(super) fn pid(&self, namespace: &str, pod: &str) -> Result<i32> {
        let path = "jsonpath={.status.containerStatuses[0].containerID}";
        let id = self.kubectl(&["-n", namespace, "get", "pod", pod, "-o", path])?;
        let id = id.trim_start_matches("containerd://");
        let tasks = self.ctr(&["tasks", "list"])?;
        let line = tasks.lines().find(|line| line.split_whitespace().next() == Some(id));
        let pid = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        pid.with_context(|| format!("no process of {namespace}/{pod}"))
    }
}

/// The last lines of a text.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}
