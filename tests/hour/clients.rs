//! Clients, each of which compares every byte of every answer. A service stops only between two requests, so a request that fails, or an
//! answer that differs, is a loss.

use std::io::{BufRead, BufReader, Error, Read, Result, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, RwLock, RwLockWriteGuard};
use std::time::Duration;

use support::child::{patience, soon};

/// The page that nginx serves.
pub(crate) const PAGE: &str = "/var/www/html/hour";

/// Between two requests of a client, so that the services leave the processors to the acts.
const PAUSE: Duration = Duration::from_millis(20);

/// Whether a service takes requests, and the number of its starts.
pub(crate) struct Gate(RwLock<Option<u64>>);

impl Gate {
    /// No service runs yet.
    pub(crate) fn new() -> Gate {
        Gate(RwLock::new(None))
    }

    /// Waits until no request is on its way. None begins before the result is dropped, nor while it holds `None`.
    pub(crate) fn close(&self) -> RwLockWriteGuard<'_, Option<u64>> {
        self.0.write().expect("no client has panicked")
    }
}

/// The requests of one client.
pub(crate) struct Record {
    /// The requests that were answered.
    pub(crate) answered: AtomicU64,
    /// The requests that were not, or not rightly.
    pub(crate) lost: Mutex<Vec<String>>,
}

impl Record {
    /// Nothing yet.
    pub(crate) const fn new() -> Record {
        Record { answered: AtomicU64::new(0), lost: Mutex::new(Vec::new()) }
    }
}

/// Asks a service again and again until `over`.
pub(crate) fn ask(kind: &Kind, inside: Inside, gate: &Gate, record: &Record, over: &AtomicBool) {
    let mut connected: Option<(u64, Box<dyn Client>)> = None;
    while !over.load(Ordering::Relaxed) {
        // The main thread has panicked if the lock is poisoned.
        let Ok(start) = gate.0.read() else { return };
        if let Some(start) = *start {
            if connected.as_ref().is_none_or(|(of, _)| *of != start) {
                drop(connected.take());
                connected = Some((start, kind.connect(inside)));
            }
            let (_, client) = connected.as_mut().expect("just connected");
            let number = record.answered.load(Ordering::Relaxed) + 1;
            if let Err(error) = client.ask(number) {
                let text = format!("request {number} of {kind:?}: {error}");
                record.lost.lock().expect("no client has panicked").push(text);
                return;
            }
            record.answered.store(number, Ordering::Relaxed);
        }
        drop(start);
        std::thread::sleep(PAUSE);
    }
}

/// A kind of client.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    /// Sets and gets a value of redis.
    Redis,
    /// Requests [`PAGE`] from nginx.
    Nginx,
    /// Requests the metrics of prometheus.
    Prometheus,
    /// Inserts the number of the request into a table of MariaDB.
    Mariadb,
    /// The same with PostgreSQL.
    Postgres,
}

/// The namespaces of the services.
#[derive(Clone, Copy)]
pub(crate) struct Inside {
    /// The PID of their systemd.
    pub(crate) systemd: i32,
}

impl Inside {
    /// A command inside.
    pub(crate) fn command(self, argv: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.systemd.to_string(), "--all", "--"]).args(argv);
        command
    }

    /// Connects to a port inside. The thread is in the namespace of that network from then on.
    fn connect(self, port: u16) -> Result<TcpStream> {
        let namespace = std::fs::File::open(format!("/proc/{}/ns/net", self.systemd))?;
        // SAFETY: setns takes an open descriptor and a number.
        if unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
            return Err(Error::last_os_error());
        }
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        // A service that does not answer at all ends the test.
        stream.set_read_timeout(Some(patience(Duration::from_secs(200))))?;
        Ok(stream)
    }
}

trait Client {
    /// Makes a request, and compares the answer.
    fn ask(&mut self, number: u64) -> Result<()>;
}

impl Kind {
    fn connect(self, inside: Inside) -> Box<dyn Client> {
        match self {
            Kind::Redis => Box::new(Redis::connect(inside)),
            Kind::Nginx => Box::new(Http { inside, port: 80, path: "/hour" }),
            Kind::Prometheus => {
                // systemd starts it as a service of Type=simple, which may not listen yet.
                soon(|| inside.connect(9090).is_ok());
                Box::new(Http { inside, port: 9090, path: "/metrics" })
            }
            Kind::Mariadb => Box::new(Sql::start(inside, &MARIADB)),
            Kind::Postgres => Box::new(Sql::start(inside, &PSQL)),
        }
    }

    /// Makes the table of a database.
    pub(crate) fn prepare(self, inside: Inside) {
        let (command, statements) = match self {
            Kind::Mariadb => {
                (&MARIADB[..3], "create database hour; create table hour.hour (n bigint);")
            }
            Kind::Postgres => (&PSQL[..], "create table hour (n bigint);"),
            _ => return,
        };
        let mut child = inside.command(command).stdin(Stdio::piped()).spawn().expect("a client");
        child.stdin.take().expect("a pipe").write_all(statements.as_bytes()).expect("it reads");
        assert!(child.wait().expect("a child").success(), "{statements}");
    }

    /// Panics unless a database has each number that was answered, once.
    pub(crate) fn count(self, inside: Inside, answered: u64) {
        let mut sql = match self {
            Kind::Mariadb => Sql::start(inside, &MARIADB),
            Kind::Postgres => Sql::start(inside, &PSQL),
            _ => return,
        };
        let query = "select count(*) from hour; select sum(n) from hour;\n";
        let lines = [answered.to_string(), (answered * (answered + 1) / 2).to_string()];
        sql.query(query, &lines).unwrap_or_else(|error| panic!("rows of {self:?}: {error}"));
    }
}

fn differs(what: &str) -> Error {
    Error::other(format!("another answer: {what:?}"))
}

/// Bytes that differ from request to request.
fn value(number: u64) -> String {
    let len = 1 + usize::try_from(number * 7919 % 30_000).expect("a small number");
    let word = format!("{number}-");
    word.chars().cycle().take(len).collect()
}

struct Redis {
    stream: Result<BufReader<TcpStream>>,
}

impl Redis {
    fn connect(inside: Inside) -> Redis {
        Redis { stream: inside.connect(6379).map(BufReader::new) }
    }
}

impl Client for Redis {
    fn ask(&mut self, number: u64) -> Result<()> {
        let stream =
            self.stream.as_mut().map_err(|error| Error::new(error.kind(), error.to_string()))?;
        let (value, key) = (value(number), format!("key{}", number % 50));
        let len = value.len();
        let command = format!(
            "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${len}\r\n{value}\r\n*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n",
            key.len(),
            key.len()
        );
        stream.get_mut().write_all(command.as_bytes())?;
        let expected = format!("+OK\r\n${len}\r\n{value}\r\n");
        let mut got = vec![0; expected.len()];
        stream.read_exact(&mut got)?;
        if got == expected.as_bytes() {
            return Ok(());
        }
        Err(differs(&String::from_utf8_lossy(&got)))
    }
}

/// Each request has a connection of its own.
struct Http {
    inside: Inside,
    port: u16,
    path: &'static str,
}

impl Client for Http {
    fn ask(&mut self, _number: u64) -> Result<()> {
        let mut stream = self.inside.connect(self.port)?;
        stream.write_all(format!("GET {} HTTP/1.0\r\n\r\n", self.path).as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| differs(&answer))?;
        let is_whole = match self.path {
            "/metrics" => body.contains("\ngo_goroutines ") && body.ends_with('\n'),
            _ => body == page(),
        };
        let is_ok = head.split(' ').nth(1) == Some("200");
        if is_whole && is_ok { Ok(()) } else { Err(differs(&answer)) }
    }
}

/// The text of [`PAGE`].
pub(crate) fn page() -> String {
    value(4_321)
}

const MARIADB: [&str; 6] =
    ["mariadb", "-BN", "--unbuffered", "--skip-reconnect", "--database", "hour"];
const PSQL: [&str; 7] =
    ["runuser", "--user=postgres", "--", "psql", "-AtqX", "--set=ON_ERROR_STOP=1", "postgres"];

/// A database's own client, which asks on one connection as long as it lives.
struct Sql {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Sql {
    fn start(inside: Inside, command: &[&str]) -> Sql {
        let mut command = inside.command(command);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).current_dir("/");
        let mut child = piped.spawn().expect("a client");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Sql { child, input, output }
    }

    fn query(&mut self, query: &str, expected: &[String]) -> Result<()> {
        self.input.as_mut().expect("a pipe").write_all(query.as_bytes())?;
        for expected in expected {
            let mut line = String::new();
            self.output.read_line(&mut line)?;
            if line.trim_end_matches('\n') != expected {
                return Err(differs(&line));
            }
        }
        Ok(())
    }
}

impl Client for Sql {
    fn ask(&mut self, number: u64) -> Result<()> {
        let query = format!(
            "insert into hour values ({number}) returning n; select repeat('{number}-', 3000);\n"
        );
        let expected = [number.to_string(), format!("{number}-").repeat(3000)];
        self.query(&query, &expected)
    }
}

impl Drop for Sql {
    fn drop(&mut self) {
        // The client ends at the end of its input.
        self.input = None;
        let _reaped = self.child.wait();
    }
}
