//! A launched program on a terminal is in the foreground, receives keys and their signals, and stops and continues as a
//! job.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;

use support::child::state;
use support::extent::{met, rounds};
use support::pty::{Pty, pipe, read_until};
use support::{Held, Kind, Prep, Random, Run, program};

/// A launch whose standard streams are a terminal, as leader of its session.
fn on_terminal(pty: &Pty, run: Run) -> Held {
    run.stdio([pty.slave_fd(); 3]).prep(Prep::Terminal).start()
}

#[test]
fn the_program_owns_the_terminal_and_gets_its_keys() {
    let run = Run::new(program("terminal", Kind::DynamicPie), [""; 0]);
    for (run, huge) in [(run.plain(), false), (run, true)] {
        let mut pty = Pty::new();
        let held = on_terminal(&pty, run);
        let said = pty.wait_for("ready\r\n");
        assert!(said.starts_with("tty 111 foreground 1 rows 33 cols 77 huge "), "{said:?}");
        assert_eq!(!said.contains("huge 0\r"), huge, "{said:?}");
        pty.type_keys("\x03");
        pty.wait_for("got INT\r\n");
        pty.type_keys("\x1c");
        pty.wait_for("got QUIT\r\n");
        pty.resize(50, 100);
        pty.wait_for("got WINCH\r\n");
        pty.type_keys("quit\n");
        held.finish().assert_code(42);
    }
}

#[test]
fn ctrl_c_in_the_launch_reaches_it() {
    let mut random = Random::new();
    let (mut died, mut handled) = (0, 0);
    let rounds = rounds(12);
    for _ in 0..rounds {
        let mut pty = Pty::new();
        let held = on_terminal(&pty, Run::new(program("terminal", Kind::DynamicPie), [""; 0]));
        random.spin(20_000);
        pty.type_keys("\x03");
        // Either the signal arrived before the program had its handler, or the handler reports it.
        let pid = held.pid();
        let until = std::time::Instant::now()
            + support::child::patience(std::time::Duration::from_secs(10));
        let mut seen = String::new();
        loop {
            if state(pid) == Some('Z') {
                held.finish().assert_signal(libc::SIGINT);
                died += 1;
                break;
            }
            seen.push_str(&pty.drain());
            if seen.contains("got INT") {
                pty.type_keys("quit\n");
                held.finish().assert_code(42);
                handled += 1;
                break;
            }
            assert!(std::time::Instant::now() < until, "Ctrl-C was lost: {seen:?}");
        }
    }
    assert_eq!(died + handled, rounds);
    met(died, rounds, "hit before its program ran");
}

/// A job of a small shell: the typed keys, and the shell's reports about the job.
struct Job {
    pty: Pty,
    shell: Held,
    reports: File,
    seen: String,
    orders: File,
    pid: i32,
}

impl Job {
    fn start(run: &Run) -> Job {
        let pty = Pty::new();
        let (reports, reports_in) = pipe();
        let (orders_out, orders) = pipe();
        // The shell expects the descriptors 3 and 4. Both numbers may be in use here, so the test copies them through
        // high numbers.
        let run = run
            .clone()
            .behind([program("jobshell", Kind::DynamicPie)])
            .stdio([pty.slave_fd(); 3])
            .prep(Prep::Terminal)
            .prep(Prep::Fd(reports_in.as_raw_fd(), 900))
            .prep(Prep::Fd(orders_out.as_raw_fd(), 901))
            .prep(Prep::Fd(900, 3))
            .prep(Prep::Fd(901, 4))
            .prep(Prep::CloseFd(900))
            .prep(Prep::CloseFd(901));
        let mut job = Job { pty, shell: run.start(), reports, seen: String::new(), orders, pid: 0 };
        job.report("started ");
        job.pid = job.report("\n").trim().parse().expect("a pid");
        job
    }

    fn report(&mut self, text: &str) -> String {
        read_until(&self.reports, &mut self.seen, text)
    }
}

#[test]
fn ctrl_z_and_fg_work_as_with_any_job() {
    let run = Run::new(program("terminal", Kind::DynamicPie), [""; 0]);
    for run in [run.plain(), run] {
        let mut job = Job::start(&run);
        let said = job.pty.wait_for("ready\r\n");
        assert!(said.contains("tty 111 foreground 1"), "{said:?}");
        job.pty.type_keys("\x1a");
        job.report(&format!("stopped {}\n", libc::SIGTSTP));
        assert_eq!(state(job.pid), Some('T'));
        job.orders.write_all(b"fg\n").expect("the shell listens");
        job.report("continued\n");
        job.pty.wait_for("got CONT\r\n");
        job.pty.type_keys("\x03");
        job.pty.wait_for("got INT\r\n");
        job.pty.type_keys("quit\n");
        job.report("exited 42\n");
        job.report("others none\n");
        job.shell.finish().assert_code(0);
    }
}

#[test]
fn ctrl_z_in_the_launch_stops_the_job() {
    let mut random = Random::new();
    for _ in 0..rounds(6) {
        let mut job = Job::start(&Run::new(program("terminal", Kind::DynamicPie), [""; 0]));
        random.spin(10_000);
        job.pty.type_keys("\x1a");
        job.report(&format!("stopped {}\n", libc::SIGTSTP));

        job.orders.write_all(b"fg\n").expect("the shell listens");
        job.report("continued\n");
        job.pty.wait_for("ready\r\n");
        job.pty.type_keys("quit\n");
        job.report("exited 42\n");
        job.report("others none\n");
        job.shell.finish().assert_code(0);
    }
}

#[test]
fn a_hangup_of_the_terminal_in_the_launch_kills_it() {
    let mut random = Random::new();
    for _ in 0..rounds(6) {
        let pty = Pty::new();
        let held = on_terminal(&pty, Run::new(program("hold", Kind::DynamicPie), [""; 0]));
        random.spin(6000);
        drop(pty);
        let done = held.finish();
        // Either SIGHUP killed the program, or it already read its terminal and found the terminal gone.
        assert!(
            done.status.signal() == Some(libc::SIGHUP) || done.status.code() == Some(0),
            "{done}"
        );
    }
}
