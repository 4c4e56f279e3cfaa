//! Processes that end within a slice. Where no cgroup counts their processor time, the canary knows it as long as nobody has waited for
//! them. Otherwise it leaves the pair out, and says why.

use std::os::unix::fs::PermissionsExt;

use support::child::{eventually, state};
use support::smaps::children;
use support::{Held, is_root, require};

use crate::{Server, started};

#[test]
fn within_a_slice() {
    require!(is_root(), "files in a directory of root's");
    let (server, other) = (Server::start(100, 1), Server::start(100, 0));
    let [child] = children(server.pid())[..] else { panic!("the server has one child") };
    let place = server.public.path();
    let calls = place.join("calls");
    std::fs::create_dir(&calls).expect("a directory");
    std::fs::set_permissions(&calls, PermissionsExt::from_mode(0o777)).expect("chmod");
    // The first call is before the first slice. Each slice has one at its beginning and one at its end.
    let ends = [3, 5].map(|call| (call, place.join(format!("wait{call}"))));
    ends.iter().for_each(|(_, wait)| std::fs::write(wait, "").expect("a file"));
    let counter = format!(
        "cd '{}' && : >$(ls | wc -l) && while [ -e ../wait$(ls | wc -l) ]; do sleep 0.05; done && cat ../count",
        calls.display()
    );
    let [left, gone] = [child, other.pid()].map(|pid| pid.to_string());
    let mut canary =
        started(&server.with_counter(&["--keep-above=2", "--counter", &counter, &left, &gone]));
    let mut other = Some(other);
    let called = |times: usize, canary: &mut Held| {
        eventually("the counter is called", || {
            assert!(!canary.has_ended(), "{}", canary.err_text());
            std::fs::read_dir(&calls).expect("a directory").count() >= times
        });
    };
    for (call, wait) in ends {
        called(call, &mut canary);
        if call == 3 {
            // The server does not wait for it.
            // SAFETY: kill has no memory conditions; the server does not reap the child, so the number is still its own.
            unsafe { libc::kill(child, libc::SIGKILL) };
            eventually("the child has ended", || state(child) == Some('Z'));
        } else {
            drop(other.take().map(|other| other.held));
        }
        std::fs::remove_file(wait).expect("a file");
    }
    // The next pair has begun.
    called(6, &mut canary);
    canary.signal(libc::SIGINT);
    let done = canary.finish();
    done.assert_code(130);
    let why = format!(
        "; 1 left out, the last because process {gone} has ended, and no selected process has waited for it"
    );
    assert!(done.out().contains(&why), "{done}");
    server.finish();
}
