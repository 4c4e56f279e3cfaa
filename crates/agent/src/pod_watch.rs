//! The watch of this node's pods. A child process, which runs as nobody, asks the API server and reports to the agent.
//!
//! The agent forks, so it must have one thread, and the asynchronous client runs in this child process. The child asks
//! for the metadata of the pods of one node only. The client starts a new list after each interruption that it cannot
//! mend, with growing pauses.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use tiexec_remap::workers;
#[cfg(feature = "kubernetes")]
use tiexec_sys::impersonate::{self, NOBODY, Place};
use tiexec_sys::process::{self, Fork};
use tiexec_sys::process_name::Role;
use tiexec_sys::seqpacket::{self, Packets};
use tiexec_sys::{Pid, SysError};

use crate::pods::{News, Pods};

/// The shortest time from one start of the watch to the next, if the watch ends.
const AGAIN: Duration = Duration::from_secs(10);
/// Most packets that the agent reads at a time.
const MOST: usize = 1024;

/// The news since the last time.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// The UIDs of the pods whose known data changed.
    pub(crate) changed: Vec<String>,
    /// Why the API server cannot be asked; the empty string if it answers again.
    pub(crate) trouble: Option<String>,
}

/// The agent's side of the watch, or that of a command.
#[derive(Debug, Default)]
pub struct PodWatch {
    running: Option<(Pid, Packets)>,
    begun: Option<Instant>,
}

impl PodWatch {
    /// Starts the watch, unless it runs or was started less than [`AGAIN`] ago. This process must have one thread.
    fn begin(&mut self) -> Result<(), SysError> {
        if self.running.is_some() || self.begun.is_some_and(|begun| begun.elapsed() < AGAIN) {
            return Ok(());
        }
        self.begun = Some(Instant::now());
        let (ours, theirs) = seqpacket::pair()?;
        match process::fork_single_threaded(Role::Pods)? {
            Fork::Parent(pid) => {
                self.running = Some((pid, ours));
                Ok(())
            }
            Fork::Child => {
                let work = std::panic::AssertUnwindSafe(|| watch(&theirs));
                let _ended = std::panic::catch_unwind(work);
                process::exit_now(1)
            }
        }
    }

    /// Reads the reports of the watch into `pods`.
    pub(crate) fn read(&mut self, pods: &mut Pods) -> Told {
        let trouble = self.begin().err().map(|error| error.to_string());
        let mut told = Told { trouble, ..Told::default() };
        for _ in 0..MOST {
            let Some((_, packets)) = &self.running else { break };
            match packets.receive_within(Duration::ZERO) {
                Ok(None) => break,
                Ok(Some((bytes, _))) => {
                    let Ok(news) = serde_json::from_slice::<News>(&bytes) else { continue };
                    match &news {
                        News::Trouble(why) => told.trouble = Some(why.clone()),
                        News::Begin => {}
                        News::End | News::There(..) | News::Gone(_) => {
                            told.trouble = Some(String::new())
                        }
                    }
                    told.changed.extend(pods.take(news));
                }
                Err(_ended) => {
                    self.end();
                    pods.break_off();
                    told.trouble = Some("the process that watches pods has ended".to_owned());
                }
            }
        }
        told
    }

    /// Waits for the first list of all pods. This process must have one thread.
    ///
    /// # Errors
    /// The API server does not answer within `patience`, or refuses.
    pub fn list(&mut self, pods: &mut Pods, patience: Duration) -> Result<(), String> {
        let (mut why, end) = ("no answer in time".to_owned(), Instant::now() + patience);
        while Instant::now() < end {
            let trouble = self.read(pods).trouble;
            if pods.is_complete {
                return Ok(());
            }
            why = trouble.unwrap_or(why);
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(why)
    }

    /// Applies to `pods` what has changed since. While the API server does not answer, the pods stay as they are.
    pub fn refresh(&mut self, pods: &mut Pods) {
        let _they_stay = self.read(pods);
    }

    fn end(&mut self) {
        if let Some((pid, _)) = self.running.take() {
            workers::end(pid, Duration::from_secs(1));
        }
    }

    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.running.as_ref().map(|(_, packets)| packets.as_fd())
    }
}

impl Drop for PodWatch {
    fn drop(&mut self) {
        self.end();
    }
}

/// Asks once for the pods of this node. This process must have one thread.
///
/// # Errors
/// The API server does not answer within `patience`, or refuses.
pub fn list(patience: Duration) -> Result<Pods, String> {
    let mut pods = Pods::default();
    PodWatch::default().list(&mut pods, patience).map(|()| pods)
}

#[cfg(not(feature = "kubernetes"))]
fn watch(_packets: &Packets) {}

#[cfg(feature = "kubernetes")]
fn watch(packets: &Packets) {
    // A hostile server may take over this process through its answers. Root owns files even without a capability, so
    // this process becomes nobody. The chart's `fsGroup` lets the group read the token.
    let nobody = Place { uid: NOBODY, gid: NOBODY, groups: Vec::new() };
    if impersonate::take(&nobody).is_err() {
        return;
    }
    process::close_all_except(&[packets.as_fd()]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    if let Ok(runtime) = runtime {
        runtime.block_on(cluster::watch(packets));
    }
}

#[cfg(feature = "kubernetes")]
mod cluster {
    use std::time::Duration;

    use futures_util::TryStreamExt;
    use k8s_openapi::api::core::v1;
    use kube::core::PartialObjectMeta;
    use kube::runtime::watcher::Event;
    use kube::runtime::{WatchStreamExt, watcher};
    use kube::{Api, Client, Config, ResourceExt};
    use tiexec_sys::Errno;
    use tiexec_sys::seqpacket::Packets;

    use crate::pods::{News, Pod};

    /// Most characters of an error that are reported.
    const LONGEST: usize = 500;

    /// Watches until the agent is gone.
    pub(super) async fn watch(packets: &Packets) {
        let node = std::env::var("NODE_NAME").unwrap_or_default();
        let config = Config::incluster().map_err(|error| error.to_string());
        let client = config.and_then(|mut config| {
            // The server ends a watch after 290 s. If the network fails, no packet arrives at all, so only this timeout
            // ends the read.
            config.read_timeout = Some(Duration::from_secs(300));
            Client::try_from(config).map_err(|error| error.to_string())
        });
        let client = match client {
            Ok(client) => client,
            Err(why) => {
                let _gone = tell(packets, &trouble(&why)).await;
                return;
            }
        };
        let pods: Api<PartialObjectMeta<v1::Pod>> = Api::all(client);
        // A list from the server's cache is enough, because the watch then reports everything newer.
        let of_node =
            watcher::Config::default().fields(&format!("spec.nodeName={node}")).any_semantic();
        let stream = watcher(pods, of_node).default_backoff();
        let mut stream = std::pin::pin!(stream);
        loop {
            let news = match stream.try_next().await {
                Ok(None) => return,
                Ok(Some(Event::Init)) => Some(News::Begin),
                Ok(Some(Event::InitDone)) => Some(News::End),
                Ok(Some(Event::InitApply(pod) | Event::Apply(pod))) => pod.uid().map(|uid| {
                    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
                    let (annotations, labels) = (pod.annotations().iter(), pod.labels().iter());
                    News::There(uid, Pod::new((&namespace, &name), annotations, labels))
                }),
                Ok(Some(Event::Delete(pod))) => pod.uid().map(News::Gone),
                Err(error) => Some(trouble(&error.to_string())),
            };
            if let Some(news) = news
                && tell(packets, &news).await.is_err()
            {
                return;
            }
        }
    }

    fn trouble(why: &str) -> News {
        News::Trouble(why.chars().take(LONGEST).collect())
    }

    /// Sends a packet to the agent, and retries while the agent is busy and does not read.
    async fn tell(packets: &Packets, news: &News) -> Result<(), ()> {
        let Ok(bytes) = serde_json::to_vec(news) else { return Ok(()) };
        loop {
            match packets.send(&bytes, None) {
                Err(error) if error.errno == Errno::AGAIN => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                sent => return sent.map_err(|_gone| ()),
            }
        }
    }
}
