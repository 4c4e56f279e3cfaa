//! The reader: opens the files that a process maps, with the rights of the process's user. It makes their page
//! cache huge and fills images, and the process's memory cgroup pays for all of that.
//!
//! The reader answers one request at a time, in packets of JSON. The bytes of a file follow a zero byte, not in
//! JSON.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tiexec_core::addr::Pages;
use tiexec_core::escape::AsShown;
use tiexec_core::file_ranges::{Part, Parts};
use tiexec_core::plan::{Backing, Span};
use tiexec_core::proc::status::Credentials;
use tiexec_core::skip::FailureKind;
use tiexec_sys::impersonate::{self, Place};
use tiexec_sys::kernel_file;
use tiexec_sys::process;
use tiexec_sys::process_name::Role;
use tiexec_sys::procfs::ProcDir;
use tiexec_sys::reopen::PathFile;
use tiexec_sys::seqpacket::{LONGEST, Packets};
use tiexec_tracee::Failure;

use super::{IN_A_STOP, ReadsApart, Wanted, Worker};
use crate::credentials::place;
use crate::file_facts::FileFacts;
use crate::image::{Filled, ImageMemory, Source};
use crate::images::{Image, Images};
use crate::pagecache::{Held, Small};
use crate::{headroom, pagecache};

/// The longest time to open a file of a local file system.
const OPENING: Duration = Duration::from_secs(5);
/// How much longer than its own deadline a request may take.
const GRACE: Duration = Duration::from_secs(2);

#[derive(Serialize, Deserialize)]
enum Request {
    /// Opens the file that comes with the request, under this number.
    Open {
        id: u32,
    },
    Read {
        id: u32,
        at: u64,
        len: usize,
    },
    Cache {
        id: u32,
        chunks: Vec<Range<u64>>,
        pages: Pages,
        small: Small,
        patience: Duration,
    },
    Make(Box<Make>),
    /// Sends the file over the socket that comes with the request.
    Send {
        id: u32,
    },
}

#[derive(Serialize, Deserialize)]
struct Make {
    id: u32,
    path: String,
    spans: Vec<Span>,
    /// The parts in the huge pages at the edges.
    parts: Option<Vec<Part>>,
    backing: Backing,
    pages: Pages,
    nodes: Vec<u32>,
    patience: Duration,
}

#[derive(Serialize, Deserialize)]
enum Reply {
    Done,
    Opened(FileFacts),
    Cached {
        huge: Vec<Range<u64>>,
        shortfall: Option<Failure>,
    },
    /// The image comes with the reply.
    Made {
        filled: Filled,
        spans: Vec<Span>,
    },
    Failed(Failure),
}

fn time_until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// The reader, as seen by the tracer.
#[derive(Debug)]
pub(crate) struct Reader {
    worker: Worker,
    next: AtomicU32,
    /// Why the process's memory cgroup cannot pay. If there is a reason, nothing is made for which it would have to
    /// pay.
    nobody_pays: Option<Failure>,
}

impl Reader {
    /// Starts the reader with the credentials of `process`.
    ///
    /// # Errors
    /// `fork_failed`; `memcg_headroom`: the process's memory cgroup cannot be joined.
    pub(super) fn start(process: &ProcDir, credentials: &Credentials) -> Result<Self, Failure> {
        let Some(place) = place(credentials) else {
            let what = "/proc shows no credentials of the process";
            return Err(Failure::new(FailureKind::ProcUnavailable, what));
        };
        let (cgroup, nobody_pays) = match headroom::charged_to(process) {
            Ok(cgroup) => (cgroup, None),
            Err(failure) => (None, Some(failure)),
        };
        let work = |packets: &Packets| serve(packets, &place, cgroup.as_deref());
        let worker = Worker::start(Role::Reader, "the reader of the process's files", work)?;
        let reader = Self { worker, next: AtomicU32::new(0), nobody_pays };
        // The reader reports whether its set-up succeeded.
        match reader.answer(OPENING)? {
            (Reply::Done, _) => Ok(reader),
            (reply, _) => Err(unexpected(reply)),
        }
    }

    fn answer(&self, patience: Duration) -> Result<(Reply, Option<OwnedFd>), Failure> {
        let (bytes, file) = self.worker.answer(patience)?;
        let reply = serde_json::from_slice(&bytes);
        Ok((reply.map_err(Failure::of(FailureKind::HelperDied))?, file))
    }

    fn ask(&self, request: &Request, file: Option<BorrowedFd<'_>>) -> Result<(), Failure> {
        let bytes = serde_json::to_vec(request);
        let bytes = bytes.map_err(Failure::of(FailureKind::HelperDied))?;
        self.worker.ask(&bytes, file)
    }

    fn must_be_paid(&self) -> Result<(), Failure> {
        self.nobody_pays.clone().map_or(Ok(()), Err)
    }
}

impl ReadsApart for Reader {
    fn answers(&self) -> bool {
        self.worker.answers()
    }

    fn open(&self, file: &PathFile) -> Result<(u32, FileFacts), Failure> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.ask(&Request::Open { id }, Some(file.as_fd()))?;
        match self.answer(OPENING)? {
            (Reply::Opened(facts), _) => Ok((id, facts)),
            (reply, _) => Err(unexpected(reply)),
        }
    }

    fn read_at(&self, id: u32, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let len = buffer.len().min(LONGEST / 2);
        self.ask(&Request::Read { id, at, len }, None).map_err(io::Error::other)?;
        let (bytes, _) = self.worker.answer(OPENING).map_err(io::Error::other)?;
        match bytes.split_first() {
            Some((0, data)) => {
                let count = data.len().min(len);
                buffer[..count].copy_from_slice(&data[..count]);
                Ok(count)
            }
            _ => Err(io::Error::other("the reader could not read the file")),
        }
    }

    fn prepare_cache(
        &self,
        id: u32,
        chunks: &[Range<u64>],
        pages: Pages,
        small: Small,
        deadline: Instant,
    ) -> Result<pagecache::Prepared, Failure> {
        self.must_be_paid()?;
        let patience = time_until(deadline);
        self.ask(&Request::Cache { id, chunks: chunks.to_vec(), pages, small, patience }, None)?;
        match self.answer(patience + GRACE)? {
            (Reply::Cached { huge, shortfall }, _) => Ok(pagecache::Prepared {
                huge,
                shortfall,
                // The reader holds the mappings.
                held: Held::default(),
            }),
            (reply, _) => Err(unexpected(reply)),
        }
    }

    fn make_image(
        &self,
        id: u32,
        wanted: &Wanted,
        path: &str,
        deadline: Instant,
    ) -> Result<Image, Failure> {
        self.must_be_paid()?;
        let Wanted { spans, parts, backing, pages, nodes } = wanted;
        let edges = || spans.iter().filter(|span| span.edge);
        let parts =
            parts.as_ref().map(|parts| edges().flat_map(|span| parts.within(span.range)).collect());
        let patience = time_until(deadline);
        let make = Make {
            id,
            path: path.to_owned(),
            spans: spans.clone(),
            parts,
            backing: *backing,
            pages: *pages,
            nodes: nodes.clone(),
            patience,
        };
        self.ask(&Request::Make(Box::new(make)), None)?;
        match self.answer(patience + GRACE)? {
            (Reply::Made { filled, spans }, Some(file)) => {
                Ok(Image { file: File::from(file), filled, spans })
            }
            (reply, _) => Err(unexpected(reply)),
        }
    }

    fn send_over(&self, id: u32, socket: BorrowedFd<'_>) -> Result<(), Failure> {
        self.ask(&Request::Send { id }, Some(socket))?;
        match self.answer(IN_A_STOP)? {
            (Reply::Done, _) => Ok(()),
            (reply, _) => Err(unexpected(reply)),
        }
    }
}

fn unexpected(reply: Reply) -> Failure {
    match reply {
        Reply::Failed(failure) => failure,
        _ => Failure::new(FailureKind::HelperDied, "an answer to another question"),
    }
}

/// The work of the reader's own process.
fn serve(packets: &Packets, place: &Place, cgroup: Option<&Path>) {
    process::close_all_except(&[packets.as_fd()]);
    let reply = |reply: &Reply, file: Option<BorrowedFd<'_>>| {
        serde_json::to_vec(reply).is_ok_and(|bytes| packets.send(&bytes, file).is_ok())
    };
    let refused = |kind: FailureKind, error: &dyn std::fmt::Display| {
        reply(&Reply::Failed(Failure::new(kind, error)), None);
    };
    // If memory is short, the kernel kills the reader first.
    let _as_it_was = kernel_file::write("/proc/self/oom_score_adj", "1000");
    if let Some(cgroup) = cgroup
        && let Err(error) = kernel_file::write(cgroup.join("cgroup.procs"), "0")
    {
        let what = format!("joining {}: {error}", cgroup.shown());
        return refused(FailureKind::MemcgHeadroom, &what);
    }
    if let Err(error) = impersonate::take(place) {
        return refused(FailureKind::ForkFailed, &error);
    }
    if !reply(&Reply::Done, None) {
        return;
    }
    let mut serving = Serving::default();
    while let Ok(Some((bytes, file))) = packets.receive(None) {
        let Ok(request) = serde_json::from_slice(&bytes) else { return };
        if let Request::Read { id, at, len } = request {
            let mut data = vec![0; 1 + len.min(LONGEST / 2)];
            let count =
                serving.files.get(&id).and_then(|file| file.read_at(&mut data[1..], at).ok());
            data.truncate(1 + count.unwrap_or(0));
            data[0] = u8::from(count.is_none());
            if packets.send(&data, None).is_err() {
                return;
            }
            continue;
        }
        let (answer, image) = match serving.answer(request, file) {
            Ok(answer) => answer,
            Err(failure) => (Reply::Failed(failure), None),
        };
        if !reply(&answer, image.as_ref().map(|image| image.file.as_fd())) {
            return;
        }
    }
}

fn no_such_file() -> Failure {
    Failure::new(FailureKind::FileGone, "no such file is open")
}

#[derive(Default)]
struct Serving {
    files: HashMap<u32, File>,
    /// Keeps the files' huge folios cached until the process has mapped them itself.
    held: Held,
    images: Images,
}

impl Serving {
    fn file(&self, id: u32) -> Result<&File, Failure> {
        self.files.get(&id).ok_or_else(no_such_file)
    }

    fn answer(
        &mut self,
        request: Request,
        file: Option<OwnedFd>,
    ) -> Result<(Reply, Option<Arc<Image>>), Failure> {
        let odd = || Failure::new(FailureKind::HelperDied, "a request of an odd form");
        let until = |patience| Instant::now() + patience;
        Ok(match request {
            Request::Open { id } => {
                let file = PathFile::from(file.ok_or_else(odd)?).open();
                let file = file.map_err(Failure::of(FailureKind::FileGone))?;
                let facts = FileFacts::of(&file).map_err(Failure::of(FailureKind::FileGone))?;
                self.files.insert(id, file);
                (Reply::Opened(facts), None)
            }
            Request::Read { .. } => return Err(odd()),
            Request::Cache { id, chunks, pages, small, patience } => {
                let file = self.file(id)?;
                let done = pagecache::prepare(file, &chunks, pages, small, until(patience))?;
                self.held.extend(done.held);
                (Reply::Cached { huge: done.huge, shortfall: done.shortfall }, None)
            }
            Request::Make(make) => {
                let Make { id, path, spans, parts, backing, pages, nodes, patience } = *make;
                let parts = parts.map(Parts::listed);
                let memory = ImageMemory { backing, pages, nodes: &nodes };
                let file = self.files.get(&id).ok_or_else(no_such_file)?;
                let source = Source { file, parts: parts.as_ref() };
                let before = self.images.bytes_copied();
                let image =
                    self.images.get(source, &path, &spans, memory, None, until(patience))?;
                // Bytes that were copied earlier count for another process.
                let copied = self.images.bytes_copied() - before;
                let filled = Filled { copied, ..image.filled.clone() };
                (Reply::Made { filled, spans: image.spans.clone() }, Some(image))
            }
            Request::Send { id } => {
                let socket = file.ok_or_else(odd)?;
                process::send_descriptor(socket.as_fd(), self.file(id)?.as_fd(), None)
                    .map_err(Failure::of(FailureKind::SwitchFailed))?;
                (Reply::Done, None)
            }
        })
    }
}
