//! Database servers of a test's own: a private data directory, a unix socket, and no network.

use std::path::{Path, PathBuf};

use super::attaching::started;
use super::child::{Done, Held, eventually};
use super::{Fresh, Public, Run, installed};

/// A PostgreSQL server, run as the user `nobody`, with the database `bench`.
pub struct Postgres {
    public: Public,
    bin: PathBuf,
    server: PathBuf,
    at: String,
}

/// The user of the server.
const FRONT: [&str; 6] =
    ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "HOME=/tmp"];

impl Postgres {
    /// The directory of a PostgreSQL that has all programs that a test needs.
    pub fn installed() -> Option<PathBuf> {
        ["16", "17", "15", "14", "13"]
            .map(|version| PathBuf::from(format!("/usr/lib/postgresql/{version}/bin")))
            .into_iter()
            .find(|bin| bin.join("pgbench").exists() && bin.join("initdb").exists())
    }

    /// Starts a server. The server is a private copy, so that other servers and tests do not use it. The copy still
    /// finds its libraries.
    pub fn start(bin: PathBuf) -> Postgres {
        let public = Public::new();
        let server = public.add(&bin.join("postgres"), "postgres", 0o755);
        let dir = public.path().join("cluster");
        std::fs::create_dir(&dir).expect("a directory");
        std::os::unix::fs::chown(&dir, Some(65534), Some(65534)).expect("chown");
        let postgres = Postgres { public, bin, server, at: dir.display().to_string() };
        let data = postgres.data();
        postgres.run("initdb", &["-D", &data, "-A", "trust", "-U", "tester"]);
        let options = format!("-c listen_addresses= -k {}", postgres.at);
        let server = postgres.server.display().to_string();
        let log = dir.join("log").display().to_string();
        let start = ["-D", &data, "-p", &server, "-o", &options, "-l", &log, "-w", "start"];
        postgres.run("pg_ctl", &start);
        postgres.run("createdb", &[&postgres.to()[..], &["bench"]].concat());
        postgres
    }

    fn data(&self) -> String {
        format!("{}/data", self.at)
    }

    /// The private copy of the server's file.
    pub fn server(&self) -> &Path {
        &self.server
    }

    /// A directory to which the server's user may write.
    pub fn directory(&self) -> PathBuf {
        self.public.path().join("cluster")
    }

    /// The arguments by which a client finds the server.
    pub fn to(&self) -> [&str; 4] {
        ["-h", &self.at, "-U", "tester"]
    }

    /// A program of PostgreSQL.
    pub fn program(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }

    /// A program of PostgreSQL, run as the server's user, not yet started.
    pub fn command(&self, name: &str, args: &[&str]) -> Run {
        Run::new(self.program(name), args).plain().behind(FRONT)
    }

    /// Runs a program of PostgreSQL to its end. Returns its output.
    pub fn run(&self, name: &str, args: &[&str]) -> String {
        started(&FRONT, &self.program(name), args).finish().assert_code(0).out()
    }

    /// Returns the answer to a query.
    pub fn ask(&self, query: &str) -> String {
        self.run("psql", &[&self.to()[..], &["-Atc", query, "bench"]].concat())
    }

    /// The first process of the server.
    pub fn pid(&self) -> i32 {
        let text = std::fs::read_to_string(format!("{}/postmaster.pid", self.data()));
        let text = text.expect("a postmaster");
        text.lines().next().and_then(|pid| pid.parse().ok()).expect("its id")
    }

    /// Stops the server once its clients have ended. Panics if its log has an error.
    pub fn stop(self) {
        // A fast stop would end the server's process of a client that has just ended, with an error in the log.
        self.run("pg_ctl", &["-D", &self.data(), "-m", "smart", "-w", "stop"]);
        let log = std::fs::read_to_string(format!("{}/log", self.at)).expect("its log");
        for word in ["FATAL", "PANIC", "ERROR", "terminated"] {
            assert!(!log.contains(word), "{log}");
        }
    }
}

/// A MariaDB server, run as root.
pub struct Mariadb {
    dir: tempfile::TempDir,
    _copy: Fresh,
    server: Held,
}

/// Starts a program of the machine with these arguments. The program lives for at most ten minutes.
fn start(name: &str, args: &[&str]) -> Held {
    start_file(&installed(name).unwrap_or_else(|| panic!("no {name}")), args)
}

fn start_file(path: &Path, args: &[&str]) -> Held {
    Run::new(path, args).plain().limit(600).start()
}

impl Mariadb {
    /// Returns whether the machine has the server and its tools.
    pub fn is_installed() -> bool {
        ["mariadbd", "mariadb-install-db", "mariadb-admin"]
            .iter()
            .all(|name| installed(name).is_some())
    }

    /// Starts a server. The server is a private copy, so that other servers and tests do not use it.
    pub fn start() -> Mariadb {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name).display().to_string();
        let datadir = format!("--datadir={}", at("data"));
        let install = ["--no-defaults", "--user=root", "--skip-test-db", &datadir];
        start("mariadb-install-db", &install).finish().assert_code(0);
        let copy = Fresh::installed("mariadbd").expect("it is installed");
        let server = start_file(
            copy.path(),
            &[
                "--no-defaults",
                "--user=root",
                "--skip-networking",
                "--skip-log-bin",
                &datadir,
                &format!("--socket={}", at("socket")),
                &format!("--log-error={}", at("log.err")),
                &format!("--pid-file={}", at("pid")),
            ],
        );
        let mariadb = Mariadb { dir, _copy: copy, server };
        eventually("it answers", || mariadb.admin(&["ping"]).status.success());
        mariadb
    }

    /// The server's process.
    pub fn pid(&self) -> i32 {
        self.server.pid()
    }

    /// The server's socket.
    pub fn socket(&self) -> String {
        self.dir.path().join("socket").display().to_string()
    }

    /// Runs a command of the administrator.
    pub fn admin(&self, what: &[&str]) -> Done {
        let to = format!("--socket={}", self.socket());
        start("mariadb-admin", &[&["--no-defaults", "-uroot", &to][..], what].concat()).finish()
    }

    /// Stops the server. Panics if its log has an error.
    pub fn stop(self) {
        self.admin(&["shutdown"]).assert_code(0);
        self.server.finish().assert_code(0);
        let log = std::fs::read_to_string(self.dir.path().join("log.err")).expect("its log");
        for word in ["[ERROR]", "Aborted connection", "signal"] {
            assert!(!log.contains(word), "{log}");
        }
    }
}
