//! A process leads the socket, over which TiExec hands it files, to a third process. That process hears nothing from root.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::unix::net::UnixDatagram;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use support::attaching::ctl;
use support::{Kind, Public, Run, chmod, installed, is_root, program_big, require, rounds};

use super::ATTACKER;

/// Listens as a daemon of root's does that asks the kernel who sends (`SO_PASSCRED`), such as the journal's.
fn daemon(public: &Public) -> UnixDatagram {
    let path = public.path().join("daemon");
    let socket = UnixDatagram::bind(&path).expect("an own directory");
    chmod(&path, 0o666);
    rustix::net::sockopt::set_socket_passcred(&socket, true).expect("a socket");
    socket.set_nonblocking(true).expect("a socket");
    socket
}

/// Returns the user IDs of the senders of all messages that have come.
fn senders(daemon: &UnixDatagram) -> Vec<u32> {
    let mut senders = Vec::new();
    loop {
        let mut data = [0_u8; 64];
        let mut space = [MaybeUninit::uninit(); 256];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut vector = [IoSliceMut::new(&mut data)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        if recvmsg(daemon, &mut vector, &mut control, flags).is_err() {
            return senders;
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmCredentials(from) = message {
                senders.push(from.uid.as_raw());
            }
        }
    }
}

/// Attaches again and again to a process that redirects the socket. Returns who sent something to root's daemon.
fn redirected(when: &str) -> Vec<u32> {
    let public = Public::new();
    let daemon = daemon(&public);
    let file = program_big("hostile/redirects", Kind::DynamicPie, 4);
    let copy = public.add(&file, "redirects", 0o755);
    let path = public.path().join("daemon");
    let args = [path.as_os_str(), when.as_ref()];
    // The same program is attached to as any other, as long as it does not redirect anything.
    let honest = Run::new(&copy, [path.as_os_str(), "never".as_ref()]).plain();
    let honest = honest.behind(ATTACKER).hold();
    ctl(["attach", "--backing=image", &honest.pid().to_string()]).assert_code(0);
    honest.finish().assert_code(7);
    assert_eq!(senders(&daemon), [0; 0]);
    let held = Run::new(&copy, args).plain().behind(ATTACKER).hold();
    let pid = held.pid().to_string();
    let mut all = Vec::new();
    for _ in 0..rounds(15) {
        ctl(["attach", "--backing=image", &pid]);
        all.extend(senders(&daemon));
        ctl(["revert", &pid]);
        all.extend(senders(&daemon));
    }
    held.finish().assert_code(7);
    all
}

#[test]
fn a_socket_that_leads_elsewhere_is_not_taken() {
    require!(is_root() && installed("setpriv").is_some(), "another user needs root");
    let senders = redirected("before");
    assert!(!senders.contains(&0), "root spoke to a third process: {senders:?}");
}

#[test]
fn a_socket_that_is_led_elsewhere_carries_the_users_own_word() {
    require!(is_root() && installed("setpriv").is_some(), "another user needs root");
    let senders = redirected("after");
    println!("{} messages went astray", senders.len());
    assert!(!senders.contains(&0), "root spoke to a third process: {senders:?}");
}
