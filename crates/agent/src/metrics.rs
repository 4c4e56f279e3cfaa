//! The figures for Prometheus, each defined here.
//!
//! Users decide which programs they run and in which units of their own, so they could create any number of series. A
//! label therefore names a unit of the system or is `other`, and there are at most `MOST` pairs of rule and unit.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::state::now;

/// Most pairs of rule and unit. Each pair has one series, and one more for each of five backings: fewer than 200 in
/// total.
const MOST: usize = 33;

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Text {
    rule: String,
    unit: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Huge {
    rule: String,
    unit: String,
    backing: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Attach {
    outcome: &'static str,
    reason: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Build {
    version: &'static str,
}

type Seconds = Gauge<f64, AtomicU64>;

/// All figures.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    text: Family<Text, Gauge>,
    huge: Family<Huge, Gauge>,
    attach: Family<Attach, Counter>,
    stop: Histogram,
    copies: Gauge,
    store: Gauge,
    quarantined: Gauge,
    drained: Gauge,
    host_splits: Gauge,
    reconcile: Seconds,
    looked: Gauge,
    taken: Gauge,
}

/// Returns the figures in the form that the agent publishes, with one series of each kind: what a monitoring system may
/// expect.
pub fn example() -> String {
    let metrics = Metrics::new();
    metrics.count(true, "", Some(0));
    let share =
        Share { rule: String::new(), unit: None, text_bytes: 0, huge: vec![(String::new(), 0)] };
    metrics.text(&Figures {
        shares: vec![share],
        copies_bytes: 0,
        store_bytes: 0,
        quarantined: 0,
        drained: false,
        host_splits: false,
    })
}

/// The figures of one moment.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) shares: Vec<Share>,
    /// Bytes of copies, each counted once, however many processes execute it.
    pub(crate) copies_bytes: u64,
    pub(crate) store_bytes: u64,
    /// The number of builds in quarantine.
    pub(crate) quarantined: usize,
    pub(crate) drained: bool,
    pub(crate) host_splits: bool,
}

/// The share of a process in the sums.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Share {
    pub(crate) rule: String,
    /// Its unit of the system; `None` for a user's process.
    pub(crate) unit: Option<String>,
    pub(crate) text_bytes: u64,
    /// Bytes of huge text, by backing.
    pub(crate) huge: Vec<(String, u64)>,
}

fn gauge(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("tiexec");
        let (text, huge, attach) = (Family::default(), Family::default(), Family::default());
        // A stop lasts 0.1 to 10 ms. A hostile program can make it last a second.
        let stop = Histogram::new([0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.1, 1.0]);
        let [copies, store, quarantined, drained, host_splits, looked, taken] =
            std::array::from_fn(|_| Gauge::default());
        let reconcile = Seconds::default();
        registry.register("text_bytes", "Text of processes that were attached to", text.clone());
        registry.register("text_huge_bytes", "Bytes of it on huge pages", huge.clone());
        registry.register("attach", "Attaches, by outcome", attach.clone());
        registry.register("stop_seconds", "Time for which a thread was stopped", stop.clone());
        registry.register(
            "copies_bytes",
            "Memory of copies of text, each counted once",
            copies.clone(),
        );
        registry.register("store_bytes", "Memory of the image store", store.clone());
        registry.register("quarantined", "Builds in quarantine", quarantined.clone());
        registry.register("drained", "1 after tiexecctl agent drain", drained.clone());
        registry.register(
            "host_splits",
            "1 if the host of this machine splits huge pages",
            host_splits.clone(),
        );
        registry.register(
            "reconcile_seconds",
            "Time that the last look at all processes took",
            reconcile.clone(),
        );
        registry.register(
            "last_look_timestamp_seconds",
            "When the agent last looked at all processes, in seconds since 1970",
            looked.clone(),
        );
        registry.register(
            "figures_timestamp_seconds",
            "When these figures were taken, in seconds since 1970",
            taken.clone(),
        );
        // Only OpenMetrics has the type `info`, so this is a gauge.
        let build: Family<Build, Gauge> = Family::default();
        build.get_or_create(&Build { version: env!("CARGO_PKG_VERSION") }).set(1);
        registry.register("build_info", "The version of tiexecd", build);
        Self {
            registry,
            text,
            huge,
            attach,
            stop,
            copies,
            store,
            quarantined,
            drained,
            host_splits,
            reconcile,
            looked,
            taken,
        }
    }

    /// Counts an attach.
    pub(crate) fn count(&self, ok: bool, reason: &str, stop_us: Option<u64>) {
        let outcome = if ok { "ok" } else { "failed" };
        let reason = if ok { "none" } else { reason }.to_owned();
        self.attach.get_or_create(&Attach { outcome, reason }).inc();
        if let Some(micros) = stop_us {
            self.stop.observe(micros as f64 / 1e6);
        }
    }

    /// Notes that a look at all processes has ended, which took so many seconds.
    pub(crate) fn note_look(&self, seconds: f64) {
        self.reconcile.set(seconds);
        self.looked.set(gauge(now()));
    }

    /// Returns the figures in the text format of Prometheus. promtool and node_exporter's textfile collector cannot
    /// read OpenMetrics, which names a counter without its `_total` and ends with a mark.
    pub(crate) fn text(&self, figures: &Figures) -> String {
        self.text.clear();
        self.huge.clear();
        let mut units: BTreeSet<(&str, &str)> = BTreeSet::new();
        for share in &figures.shares {
            let unit = share.unit.as_deref().unwrap_or("other");
            let known = units.contains(&(&*share.rule, unit));
            let unit = if known || units.len() < MOST { unit } else { "other" };
            units.insert((&share.rule, unit));
            let (rule, unit) = (share.rule.clone(), unit.to_owned());
            let labels = Text { rule: rule.clone(), unit: unit.clone() };
            self.text.get_or_create(&labels).inc_by(gauge(share.text_bytes));
            for (backing, bytes) in &share.huge {
                let (rule, unit, backing) = (rule.clone(), unit.clone(), backing.clone());
                self.huge.get_or_create(&Huge { rule, unit, backing }).inc_by(gauge(*bytes));
            }
        }
        self.taken.set(gauge(now()));
        self.copies.set(gauge(figures.copies_bytes));
        self.store.set(gauge(figures.store_bytes));
        self.quarantined.set(i64::try_from(figures.quarantined).unwrap_or(i64::MAX));
        self.drained.set(figures.drained.into());
        self.host_splits.set(figures.host_splits.into());
        let mut text = String::new();
        match encode(&mut text, &self.registry) {
            Ok(()) => text
                .replace("# HELP tiexec_attach ", "# HELP tiexec_attach_total ")
                .replace("# TYPE tiexec_attach ", "# TYPE tiexec_attach_total ")
                .replace("# EOF\n", ""),
            Err(_never) => String::new(),
        }
    }
}
