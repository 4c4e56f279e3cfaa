//! Programs that people run, with their data in pipes and sockets: what arrives is what was sent, and no server fails.

use std::path::Path;
use std::time::Duration;

use support::attaching::{attach, revert};
use support::child::eventually;
use support::databases::{Mariadb, Postgres};
use support::extent::is_whole;
use support::objects::{Made, WithObject};
use support::programs::{Cgo, build_go};
use support::smaps::{Vma, children, vmas_unless_ended};
use support::{
    Held, Kind, Run, installed, is_root, program, require, rounds, without_blanks, write_program,
};

/// The pairs of one test; fewer if the program ends before.
fn pairs() -> usize {
    rounds(5)
}

/// Returns whether the process has text of a copy; false if it has ended meanwhile.
fn is_switched(pid: i32) -> bool {
    vmas_unless_ended(pid).iter().any(Vma::is_switched)
}

/// Attaches to the processes and reverts them, until the pairs are done or `ended` says so. More pairs follow if each of these found
/// no suitable moment. Returns how often there was text to switch.
fn turns(pids: &[i32], mut ended: impl FnMut() -> bool) -> usize {
    let mut attached = 0;
    let pairs = pairs();
    for pair in 0..10 * pairs {
        if pair >= pairs && attached > 0 {
            break;
        }
        for &pid in pids {
            if ended() {
                return attached;
            }
            let done = attach(pid);
            // A process without a thread to stop, or one that ends meanwhile, is left alone.
            let left = ["no_thread", "target_gone", "changed", "cannot read", "no process"];
            let is_left = || left.iter().any(|reason| done.err().contains(reason));
            assert!(done.status.code() == Some(0) || is_left() || ended(), "{done}");
            print!("{}", done.err());
            attached += usize::from(done.status.code() == Some(0) && is_switched(pid));
            let _or_left = revert(pid);
        }
    }
    attached
}

/// Runs a program until it was attached to. On a busy machine a pipe's writer may end before a suitable moment comes. `run` checks the
/// program's output each time, and returns how often it was attached to.
fn until_attached(mut run: impl FnMut() -> usize) {
    const PROGRAMS: usize = 10;
    let attached = (0..PROGRAMS).any(|_| run() > 0);
    assert!(attached, "each of {PROGRAMS} programs ended before the first attach");
}

/// A shared object with much text, for programs that have little of their own.
fn object() -> WithObject {
    WithObject::new(Made::Gnu)
}

/// Returns the command of a process that hands bytes on slowly until the directory has a file `hurry`. The program before it thus has a
/// full pipe for as long as the attaches take, and few bytes are enough.
fn drip(dir: &Path) -> String {
    let program = program("drip", Kind::DynamicPie);
    format!("'{}' '{}'", program.display(), dir.join("hurry").display())
}

/// Ends the slowness of [`drip`].
fn hurry(dir: &Path) {
    std::fs::write(dir.join("hurry"), "").expect("a file");
}

/// A shell's pipeline, of which one process loads the object.
struct Pipeline {
    held: Held,
    pid: i32,
    /// For [`drip`].
    own: tempfile::TempDir,
}

impl Pipeline {
    /// `target` is a command whose process is attached to. It stands for `TARGET` in `script`, and [`drip`] for `DRIP`.
    fn start(script: &str, target: &str, dir: &Path, object: &Path) -> Pipeline {
        let quoted = format!(
            "sh -c 'echo pid $$ >&3; exec 3>&-; exec env LD_PRELOAD={} {target}'",
            without_blanks(object).display()
        );
        let own = tempfile::tempdir().expect("a directory");
        let script = script.replace("TARGET", &quoted).replace("DRIP", &drip(own.path()));
        let script = format!("exec 3>&1; {script}");
        let mut held = Run::new("/bin/sh", ["-c", &script]).plain().cwd(dir).limit(600).start();
        eventually("the target says its id", || held.has_said("pid"));
        let pid = held.said_pid();
        let maps = || std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        eventually("the target has loaded the object", || {
            held.has_ended() || maps().contains("libbig_object")
        });
        Pipeline { held, pid, own }
    }

    /// Lets the rest of the bytes go at once. Returns the output beside the process's ID.
    fn end(self) -> String {
        hurry(self.own.path());
        let done = self.held.finish();
        done.assert_code(0);
        let out = done.out();
        out.lines().filter(|line| !line.starts_with("pid ")).collect::<Vec<_>>().join("\n")
    }
}

/// Runs the pipeline without an attach, then beside attaches. Both must print the same.
fn same(script: &str, target: &str, make: impl FnOnce(&Path)) {
    let dir = tempfile::tempdir().expect("a directory");
    make(dir.path());
    let object = object();
    let start = || Pipeline::start(script, target, dir.path(), &object.object);
    let plain = start().end();
    until_attached(|| {
        let mut pipeline = start();
        let attached = turns(&[pipeline.pid], || pipeline.held.has_ended());
        println!("{target}: {attached} attaches");
        assert_eq!(pipeline.end(), plain, "{target}: {attached} attaches");
        attached
    });
}

/// Bytes in which a shift shows.
fn numbers(dir: &Path) {
    let text: String = (0..2_000_000).map(|n| format!("{n}\n")).collect();
    std::fs::write(dir.join("numbers"), text).expect("a file");
}

/// How much a program transfers: `make soak` has double, because a program that ends before the pairs are done ends the test.
fn much(times: usize) -> usize {
    if is_whole() { 2 * times } else { times }
}

/// The file, many times, as the arguments of a command.
fn many() -> String {
    ["numbers"].repeat(much(2)).join(" ")
}

/// In containers, python's output is a pipe and not buffered. Python does not repeat a short write then.
#[test]
fn python_into_a_pipe() {
    require!(installed("python3").is_some(), "no python");
    let dir = tempfile::tempdir().expect("a directory");
    let print = "import sys, zlib
block, crc, size = 'x' * (1 << 20), 0, 0
line = (block + '\\n').encode()
for number in range(int(sys.argv[1])):
    print(block)
    crc = zlib.crc32(line, crc)
    size += len(line)
sys.stderr.write('%d %d\\n' % (size, crc))
";
    write_program(&dir.path().join("print.py"), print.as_bytes(), 0o644);
    let count = "import sys, zlib
crc, size = 0, 0
while bytes := sys.stdin.buffer.read(1 << 16):
    crc = zlib.crc32(bytes, crc)
    size += len(bytes)
print('%d %d' % (size, crc))
";
    write_program(&dir.path().join("count.py"), count.as_bytes(), 0o644);
    let object = object();
    let script = "TARGET 2>printed | DRIP | python3 count.py";
    until_attached(|| {
        let target = format!("python3 -u print.py {}", much(30));
        let mut pipeline = Pipeline::start(script, &target, dir.path(), &object.object);
        let attached = turns(&[pipeline.pid], || pipeline.held.has_ended());
        let received = pipeline.end();
        let printed = std::fs::read_to_string(dir.path().join("printed")).expect("its count");
        println!("{attached} attaches, printed {} received {received}", printed.trim());
        assert_eq!(received, printed.trim(), "{attached} attaches");
        attached
    });
}

/// A stop in a wait that follows a repeated one does not end it, although the repeated one would have ended before.
#[test]
fn python_waits_as_long_as_it_asked() {
    require!(installed("python3").is_some(), "no python");
    let wait = "import select, time
poll = select.epoll()
print('pid', __import__('os').getpid(), flush=True)
for number in range(1000):
    begun = time.monotonic()
    poll.poll(0.4)
    print('waited', time.monotonic() - begun, flush=True)
";
    let object = object();
    let preload = without_blanks(&object.object);
    let run = Run::new("python3", ["-c", wait]).plain().env("LD_PRELOAD", &preload);
    let mut held = run.limit(600).start();
    eventually("python says its id", || held.has_said("pid"));
    let pid = held.said_pid();
    let waited = |held: &Held| held.out_text().matches("waited").count();
    let next = |held: &mut Held| {
        let before = waited(held);
        while waited(held) == before {
            held.wait_more();
        }
    };
    let mut attached = 0;
    for _ in 0..rounds(5) {
        next(&mut held);
        std::thread::sleep(Duration::from_millis(150));
        attached += usize::from(attach(pid).status.code() == Some(0) && is_switched(pid));
        // The repeated wait ends, later than it would have. The next one begins, and is stopped at once.
        next(&mut held);
        std::thread::sleep(Duration::from_millis(50));
        let _or_left = revert(pid);
        next(&mut held);
    }
    assert!(attached > 0, "{attached}");
    held.signal(libc::SIGKILL);
    let done = held.finish();
    let out = done.out();
    let waits = out.lines().filter_map(|line| line.strip_prefix("waited "));
    let waits: Vec<f64> = waits.map(|wait| wait.parse().expect("a time")).collect();
    let early: Vec<&f64> = waits.iter().filter(|&&wait| wait < 0.4).collect();
    assert!(early.is_empty(), "{early:?} of {waits:?}");
}

/// dd counts a short read as a whole block. Its bytes go fast, because the stop is to meet a read.
#[test]
fn dd_from_zero() {
    let target = format!("dd if=/dev/zero bs=4M count={} status=none", much(250));
    same("TARGET | wc -c", &target, |_| {});
}

#[test]
fn dd_into_a_pipe() {
    same("cat numbers numbers | TARGET | DRIP | md5sum", "dd bs=1M status=none", numbers);
}

#[test]
fn cat_into_a_pipe() {
    same("TARGET | DRIP | md5sum", &format!("cat {}", many()), numbers);
}

#[test]
fn pv_into_a_pipe() {
    require!(installed("pv").is_some(), "no pv");
    same("TARGET | DRIP | md5sum", &format!("pv -q {}", many()), numbers);
}

#[test]
fn tar_into_a_pipe() {
    let script = "TARGET | DRIP | tar --extract --to-stdout --file=- | md5sum";
    let target = format!("tar --create --mtime=@0 --hard-dereference --file=- {}", many());
    same(script, &target, numbers);
}

#[test]
fn gzip_between_pipes() {
    same("cat numbers numbers numbers numbers | TARGET | DRIP | md5sum", "gzip -1", numbers);
}

#[test]
fn rsync_between_directories() {
    require!(installed("rsync").is_some(), "no rsync");
    let target = "rsync --whole-file --ignore-times --bwlimit=30m numbers copy";
    same("TARGET; md5sum copy", target, numbers);
}

/// A Rust program with a read timeout takes WouldBlock and TimedOut for idle, and any other error for a failure.
#[test]
fn rust_receiver_with_a_read_timeout() {
    require!(installed("rustc").is_some() || cargo_rustc().is_some(), "no rustc");
    let rustc = installed("rustc").or_else(cargo_rustc).expect("just looked");
    let dir = tempfile::tempdir().expect("a directory");
    let source = dir.path().join("receiver.rs");
    let text = "use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::time::Duration;
std::arch::global_asm!(\".text\", \".globl pad\", \"pad:\", \"ret\", \".fill 8 * 1024 * 1024, 1, 0xc3\");
unsafe extern \"C\" { fn pad(); }
fn main() {
    unsafe { pad() };
    let (mut stream, _peer) = UnixStream::pair().unwrap();
    let timeout = std::env::args().nth(1).unwrap().parse().unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(timeout))).unwrap();
    println!(\"ready\");
    loop {
        match stream.read(&mut [0; 1500]) {
            Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                eprintln!(\"receiver failed: {error}\");
                std::process::exit(1);
            }
            _ => {}
        }
    }
}
";
    write_program(&source, text.as_bytes(), 0o644);
    let built = std::process::Command::new(rustc)
        .args(["-O", "--edition", "2024", "-o"])
        .args([&dir.path().join("receiver"), &source])
        .output()
        .expect("rustc");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    for timeout in ["10", "20", "100", "500"] {
        let mut held = Run::new(dir.path().join("receiver"), [timeout]).plain().hold();
        let attached = turns(&[held.pid()], || held.has_ended());
        println!("timeout {timeout} ms: {attached} attaches");
        assert!(!held.has_ended(), "timeout {timeout} ms: {}", held.finish());
        assert!(attached > 0, "timeout {timeout} ms");
    }
}

/// The compiler that built this test, if it is not on the tests' path.
fn cargo_rustc() -> Option<std::path::PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(std::path::PathBuf::from);
    let home = home.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cargo")))?;
    Some(home.join("bin/rustc")).filter(|path| path.is_file())
}

/// Bodies of 28 MB over TCP, more than its buffers hold, with attaches to the server's worker and to the client.
#[test]
fn nginx_and_curl() {
    let have = installed("nginx").is_some() && installed("curl").is_some();
    require!(is_root() && have, "no nginx, no curl, or not root");
    let object = object();
    let body: String = (0..4_000_000).map(|n: u32| format!("{n:07}")).collect();
    for sendfile in ["on", "off"] {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("body"), &body).expect("a file");
        let port = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = port.local_addr().expect("an address");
        drop(port);
        let at = dir.path().display();
        let conf = format!(
            "daemon off; user root; worker_processes 1; pid {at}/pid; error_log {at}/log;
             events {{}}
             http {{ access_log off; sendfile {sendfile};
                     server {{ listen {address}; root {at}; }} }}\n"
        );
        write_program(&dir.path().join("conf"), conf.as_bytes(), 0o644);
        let conf = format!("{at}/conf");
        let server = Run::new(installed("nginx").expect("just looked"), ["-c", &conf]);
        let server =
            server.plain().env("LD_PRELOAD", without_blanks(&object.object)).limit(600).start();
        eventually("it listens", || std::net::TcpStream::connect(address).is_ok());
        eventually("it has a worker", || !children(server.pid()).is_empty());
        let worker = children(server.pid())[0];
        let url = format!("http://{address}/body");
        let urls = [url.as_str()].repeat(much(2)).join(" ");
        let script = "TARGET | DRIP | md5sum";
        let mut client =
            Pipeline::start(script, &format!("curl -sf {urls}"), dir.path(), &object.object);
        let attached = turns(&[worker, client.pid], || client.held.has_ended());
        println!("sendfile {sendfile}: {attached} attaches");
        assert!(attached > 0);
        let files = ["body"].repeat(much(2)).join(" ");
        let expected =
            support::child::tool(&["sh", "-c", &format!("cd {at} && cat {files} | md5sum")]);
        assert_eq!(client.end(), String::from_utf8_lossy(&expected.stdout).trim_end());
        server.signal(libc::SIGTERM);
        server.finish().assert_code(0);
        let log = std::fs::read_to_string(dir.path().join("log")).unwrap_or_default();
        assert!(!log.contains("[alert]") && !log.contains("[emerg]"), "{log}");
    }
}

/// COPY through psql, with attaches to psql and to its backend.
#[test]
fn psql_copy() {
    let bin = Postgres::installed();
    require!(is_root() && bin.is_some(), "no postgres, or not root");
    let postgres = Postgres::start(bin.expect("just looked"));
    let object = object();
    let query = "copy (select g, md5(g::text) from generate_series(1, 800000) g) to stdout";
    let psql = postgres.program("psql");
    let target = format!("{} {} bench -c \"{query}\"", psql.display(), postgres.to().join(" "));
    let start =
        || Pipeline::start("TARGET | DRIP | md5sum", &target, Path::new("/"), &object.object);
    let plain = start().end();
    let mut copy = start();
    let shown = |pid: i32| {
        let shown = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&shown).contains(" COPY")
    };
    let backend = || children(postgres.pid()).into_iter().find(|&pid| shown(pid));
    eventually("a backend copies", || copy.held.has_ended() || backend().is_some());
    let pids: Vec<i32> = backend().into_iter().chain([copy.pid]).collect();
    let attached = turns(&pids, || copy.held.has_ended());
    println!("{attached} attaches to {} processes", pids.len());
    assert!(attached > 0);
    assert_eq!(copy.end(), plain, "{attached} attaches");
    postgres.stop();
}

/// A dump through gzip, with attaches to the dump and to the server.
#[test]
fn mariadb_dump() {
    let have = Mariadb::is_installed() && installed("mariadb-dump").is_some();
    require!(is_root() && have && installed("mariadb").is_some(), "no mariadb, or not root");
    let mariadb = Mariadb::start();
    let object = object();
    mariadb.admin(&["create", "dumped"]).assert_code(0);
    let to = format!("--no-defaults -uroot --socket={}", mariadb.socket());
    let fill = format!(
        "create table t (a int primary key, b char(32)) engine=innodb;
        insert into t select seq, md5(seq) from seq_1_to_{}",
        much(300_000)
    );
    let client = installed("mariadb").expect("just looked");
    let filled = Run::new(client, to.split(' ').chain(["dumped", "-e", &fill])).plain().limit(600);
    filled.output().assert_code(0);
    let target = format!("mariadb-dump {to} --skip-dump-date --skip-extended-insert dumped");
    let script = "TARGET | DRIP | gzip -1 | gunzip | md5sum";
    let start = || Pipeline::start(script, &target, Path::new("/"), &object.object);
    let plain = start().end();
    let mut dump = start();
    let attached = turns(&[dump.pid, mariadb.pid()], || dump.held.has_ended());
    println!("{attached} attaches");
    assert!(attached > 0);
    assert_eq!(dump.end(), plain, "{attached} attaches");
    mariadb.stop();
}

/// Attaches until the pairs are done, and ends the program by a line. The program ends with 7 if nothing failed.
/// Text of the machine's programs may be huge already, so the program also loads an object.
fn serves(run: Run) {
    let object = object();
    let mut held = run.env("LD_PRELOAD", without_blanks(&object.object)).hold();
    let pid = held.pid();
    let attached = turns(&[pid], || held.has_ended());
    println!("{attached} attaches");
    assert!(attached > 0 && !held.has_ended(), "{attached} attaches: {}", held.finish());
    held.write(b"end\n");
    held.finish().assert_code(7);
}

/// A server and its client in one process, with timeouts on both sides.
#[test]
fn node_with_timeouts() {
    require!(installed("node").is_some(), "no node");
    let dir = tempfile::tempdir().expect("a directory");
    let source = dir.path().join("server.js");
    let text = "const http = require('http'), fs = require('fs');
        const body = Buffer.alloc(8 << 20, 'node and its bytes ');
        const fail = why => { console.error(why); process.exit(1); };
        const server = http.createServer((ask, answer) => { ask.setTimeout(20000); answer.end(body); });
        server.on('clientError', fail);
        process.stdin.on('data', () => process.exit(7));
        server.listen('socket', () => {
            const get = () => http.get({socketPath: 'socket', timeout: 20000}, answer => {
                const parts = [];
                answer.on('data', part => parts.push(part));
                answer.on('end', () => Buffer.concat(parts).equals(body) ? get() : fail('another body'));
            }).on('error', fail).on('timeout', () => fail('a timeout'));
            get();
            console.log('ready');
        });";
    write_program(&source, text.as_bytes(), 0o644);
    let node = installed("node").expect("just looked");
    serves(Run::new(node, [&source]).plain().cwd(dir.path()).limit(600));
}

/// A server whose reads time out every 10 ms.
#[test]
fn java_with_read_timeouts() {
    let tools = installed("java").zip(installed("javac"));
    require!(tools.is_some(), "no JDK");
    let (java, javac) = tools.expect("just looked");
    let dir = tempfile::tempdir().expect("a directory");
    let text = "import java.io.*; import java.net.*;
public class Idle {
    public static void main(String[] none) throws Exception {
        ServerSocket server = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
        Socket peer = new Socket(InetAddress.getLoopbackAddress(), server.getLocalPort());
        Socket socket = server.accept();
        socket.setSoTimeout(10);
        server.setSoTimeout(10);
        Thread reader = new Thread(() -> {
            while (true) {
                try { socket.getInputStream().read(); } catch (SocketTimeoutException idle) {
                } catch (IOException failed) { System.err.println(failed); System.exit(1); }
                try { server.accept(); } catch (SocketTimeoutException idle) {
                } catch (IOException failed) { System.err.println(failed); System.exit(1); }
            }
        });
        reader.setDaemon(true);
        reader.start();
        System.out.println(\"ready\");
        System.in.read();
        System.exit(peer.isConnected() ? 7 : 1);
    }
}
";
    let source = dir.path().join("Idle.java");
    write_program(&source, text.as_bytes(), 0o644);
    let built = std::process::Command::new(javac).arg(&source).output().expect("javac");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    serves(Run::new(java, ["-cp", &dir.path().to_string_lossy(), "Idle"]).plain().limit(600));
}

/// A server whose reads time out every 10 ms, beside whole pages under timeouts. Go's own threads wait in the kernel.
#[test]
fn go_with_deadlines() {
    require!(installed("go").is_some(), "no go");
    let dir = tempfile::tempdir().expect("a directory");
    let built = dir.path().join("server");
    // With cgo the program is dynamic, and loads the object.
    build_go(&support::sources().join("go_deadlines"), Cgo::With, &[], &built)
        .expect("go builds the test program");
    serves(Run::new(built, [""; 0]).plain().limit(600));
}

/// The processes that descend from this one.
fn descendants(pid: i32) -> Vec<i32> {
    let mut all = children(pid);
    all.extend(all.clone().into_iter().flat_map(descendants));
    all
}

/// Raw bytes through a pseudo-terminal, sshd and ssh. All three programs are attached to. ssh starts sshd itself, without a
/// port and without a service.
#[test]
fn ssh_over_a_pseudo_terminal() {
    let sshd = Path::new("/usr/sbin/sshd");
    require!(is_root() && sshd.exists() && installed("ssh").is_some(), "no ssh, or not root");
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name).display().to_string();
    for name in ["host", "user"] {
        let made = std::process::Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-f", &at(name)])
            .status();
        assert!(made.expect("ssh-keygen").success());
    }
    std::fs::copy(at("user.pub"), at("authorized")).expect("a copy");
    // The unit of Debian's package makes this directory; here, in the test's own /run.
    support::store::own_run();
    std::fs::create_dir_all("/run/sshd").expect("a directory");
    let object = object();
    let preload = without_blanks(&object.object).display().to_string();
    let server = format!(
        "HostKey {host}\nAuthorizedKeysFile {keys}\nStrictModes no\nUsePAM no\nPermitRootLogin yes\nPidFile none\n",
        host = at("host"),
        keys = at("authorized"),
    );
    write_program(&dir.path().join("sshd_config"), server.as_bytes(), 0o644);
    numbers(dir.path());
    let remote = format!(
        "stty raw -echo; cd {}; echo $$ >cat.pid; exec env LD_PRELOAD={preload} cat numbers numbers",
        dir.path().display()
    );
    let proxy =
        format!("ProxyCommand=env LD_PRELOAD={preload} /usr/sbin/sshd -i -f {}", at("sshd_config"));
    let options =
        ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", &proxy];
    let options: String = options.map(|option| format!(" -o '{option}'")).concat();
    let ssh = format!("ssh -tt -F none -i {}{options} root@nowhere", at("user"));
    let script = format!(
        "sh -c 'echo $$ >ssh.pid; exec \"$@\"' sh env LD_PRELOAD={preload} {ssh} \"$0\" </dev/null | {} | md5sum",
        drip(dir.path())
    );
    let start = || {
        for name in ["cat.pid", "ssh.pid", "hurry"] {
            let _none = std::fs::remove_file(at(name));
        }
        Run::new("/bin/sh", ["-c", &script, &remote]).plain().cwd(dir.path()).limit(600).start()
    };
    let end = |run: Held| {
        hurry(dir.path());
        let done = run.finish();
        done.assert_code(0).assert_silent();
        done.out()
    };
    let plain = end(start());
    let mut run = start();
    let pid = |name: &str| {
        let text = || std::fs::read_to_string(at(name)).unwrap_or_default();
        eventually("the program says its id", || text().ends_with('\n'));
        text().trim().parse().expect("a number")
    };
    let (ssh, cat): (i32, i32) = (pid("ssh.pid"), pid("cat.pid"));
    let mut all = vec![cat, ssh];
    all.extend(descendants(ssh).into_iter().filter(|&pid| pid != cat));
    let attached = turns(&all, || run.has_ended());
    println!("{attached} attaches to {} processes", all.len());
    assert!(attached > 0, "it ended before the first attach");
    assert_eq!(end(run), plain, "{attached} attaches");
}
