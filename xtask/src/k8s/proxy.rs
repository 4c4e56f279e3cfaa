//! The proxy between pods and the API server. It counts the traffic, and can cut connections.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};

/// The state that the threads share.
#[derive(Default)]
struct Shared {
    connections: AtomicU64,
    received: AtomicU64,
    /// True while the proxy silently forwards nothing.
    silent: AtomicBool,
    /// The number of bytes after which a connection is cut in the middle of a record; 0 for never.
    cut_after: AtomicU64,
    cuts: AtomicU64,
    open: Mutex<Vec<TcpStream>>,
}

/// The proxy, with counts since the last [`Proxy::reset`].
#[derive(Clone)]
pub(super) struct Proxy(Arc<Shared>);

/// The traffic since the last [`Proxy::reset`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Traffic {
    pub(super) connections: u64,
    /// Bytes from the API server.
    pub(super) received: u64,
    pub(super) cuts: u64,
}

impl Proxy {
    pub(super) fn start(at: (&'static str, u16), to: (&'static str, u16)) -> Result<Self> {
        let listener = TcpListener::bind(at).with_context(|| format!("cannot listen at {at:?}"))?;
        let proxy = Self(Arc::default());
        let shared = Arc::clone(&proxy.0);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                shared.connections.fetch_add(1, Relaxed);
                // If the API server is down, the proxy drops the client at once.
                let Ok(server) = TcpStream::connect(to) else { continue };
                let carried = Arc::new(AtomicU64::new(0));
                for (from, to, answers) in [(&client, &server, false), (&server, &client, true)] {
                    let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { continue };
                    let (shared, carried) = (Arc::clone(&shared), Arc::clone(&carried));
                    std::thread::spawn(move || shared.carry(from, to, answers, &carried));
                }
                if let Ok(mut open) = shared.open.lock() {
                    open.push(client);
                }
            }
        });
        Ok(proxy)
    }

    /// Resets the counts to zero.
    pub(super) fn reset(&self) {
        for counter in [&self.0.connections, &self.0.received, &self.0.cuts] {
            counter.store(0, Relaxed);
        }
    }

    pub(super) fn traffic(&self) -> Traffic {
        Traffic {
            connections: self.0.connections.load(Relaxed),
            received: self.0.received.load(Relaxed),
            cuts: self.0.cuts.load(Relaxed),
        }
    }

    /// Cuts each connection after this number of bytes; 0 for never.
    pub(super) fn cut_after(&self, bytes: u64) {
        self.0.cut_after.store(bytes, Relaxed);
    }

    /// Cuts all open connections.
    pub(super) fn cut_all(&self) {
        if let Ok(mut open) = self.0.open.lock() {
            for stream in open.drain(..) {
                let _gone = stream.shutdown(Shutdown::Both);
            }
        }
    }

    /// Forwards nothing, like a network that loses all packets.
    pub(super) fn silence(&self, silent: bool) {
        self.0.silent.store(silent, Relaxed);
    }
}

impl Shared {
    fn carry(&self, mut from: TcpStream, mut to: TcpStream, answers: bool, carried: &AtomicU64) {
        let mut buffer = [0; 16 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            while self.silent.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(20));
            }
            if answers {
                self.received.fetch_add(count as u64, Relaxed);
            }
            let before = carried.fetch_add(count as u64, Relaxed);
            let limit = self.cut_after.load(Relaxed);
            let cut = limit > 0 && before + count as u64 >= limit;
            // Half of the data goes through, so that a TLS record, and the event in it, ends in the middle.
            let end = if cut { count / 2 } else { count };
            if to.write_all(&buffer[..end]).is_err() {
                break;
            }
            if cut {
                self.cuts.fetch_add(1, Relaxed);
                break;
            }
        }
        for stream in [&from, &to] {
            let _gone = stream.shutdown(Shutdown::Both);
        }
    }
}
