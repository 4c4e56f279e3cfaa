//! A journal of the test's own: a socket at the place where systemd's journal listens, in the test's own `/run`.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

/// Listens at the journal's socket, in this test's own `/run`. A read waits for a record at most a minute.
pub fn listen() -> UnixDatagram {
    super::store::own_run();
    std::fs::create_dir_all("/run/systemd/journal").expect("a directory in a /run of its own");
    let journal = UnixDatagram::bind("/run/systemd/journal/socket").expect("a socket");
    let limit = super::child::patience(Duration::from_secs(60));
    journal.set_read_timeout(Some(limit)).expect("a time limit");
    journal
}

/// Waits for the next record.
pub fn record(journal: &UnixDatagram) -> String {
    let mut record = [0; 4096];
    let len = journal.recv(&mut record).expect("a record");
    String::from_utf8_lossy(&record[..len]).into_owned()
}

/// Panics if somebody has written a record that nobody has read.
pub fn assert_empty(journal: &UnixDatagram) {
    journal.set_nonblocking(true).expect("fcntl");
    let mut record = [0; 4096];
    if let Ok(len) = journal.recv(&mut record) {
        panic!("a record: {}", String::from_utf8_lossy(&record[..len]));
    }
}
