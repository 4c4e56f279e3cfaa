//! A rollout over 5,000 nodes, with planted regressions: the number of nodes that it touches before it stops.
//!
//! The nodes, their programs, the time and the operator are simulated. The choice of nodes ([`NodeShare`]) and the
//! quarantine of each node ([`State`]) are real. `TIEXEC_TEST_ROUNDS=200 cargo test -p tiexec-agent --test
//! rollout -- --nocapture` prints the table of docs/KUBERNETES.md.

use support::rounds;
use tiexec_agent::nodes::NodeShare;
use tiexec_agent::state::{Build, Quarantined, State, Whose};

const NODES: usize = 5000;
/// The steps of a rollout. The remaining nodes are held out.
const STEPS: [&str; 4] = ["1%", "5%", "25%", "95%"];
/// The time that a step lasts, in seconds.
const STEP: f64 = 3600.0;
/// `helm upgrade` replaces the agents of a tenth of the nodes at a time, and a tenth takes a minute.
const UPGRADE: f64 = 600.0;
/// The default of `min-age`, in seconds.
const MIN_AGE: f64 = 10.0;
/// The time after a switch in which a crash counts, in seconds.
const WINDOW: f64 = 300.0;
/// The time from the first build in quarantine anywhere to the kill switch everywhere.
const REACTION: f64 = 300.0;
/// The standard deviation, over nodes, of the cost of a request in one step.
const SPREAD: f64 = 0.10;
/// The operator stops if treated nodes are worse than the others by this many standard errors at the end of a step.
const ERRORS: f64 = 3.0;

/// The planted regression of a build.
#[derive(Clone, Copy)]
enum Planted {
    /// A process of it crashes within the window, with this probability.
    Crash(f64),
    /// A request costs more by this share.
    Slow(f64),
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a number from a distribution with mean 0 and variance 1, close to the normal one.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.share()).sum::<f64>() - 6.0
    }
}

/// A node that runs the build.
struct Node {
    name: String,
    state: State,
    /// When its program was switched.
    switched: Option<f64>,
    /// When it crashes, if the switch makes it crash.
    crash: Option<f64>,
    cost: f64,
}

/// The outcome of one rollout.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    /// Nodes where a program with the regression was switched.
    touched: usize,
    crashes: usize,
    /// The step in which it stopped, from 1; 0 if it never stopped.
    stopped: usize,
}

fn build() -> Build {
    Build { build_id: "5f2f1c0e".to_owned(), text: "digest".to_owned() }
}

fn crashed(node: &mut Node) {
    let whose = Whose { uid: 999, namespace: Some("shop".to_owned()) };
    node.state.add(Quarantined {
        build: build(),
        uid: Some(whose.uid),
        namespace: whose.namespace.clone(),
        rule: "pods".to_owned(),
        signal: 11,
        exe: "/usr/bin/server".to_owned(),
        when: 0,
    });
    // The kubelet starts the container again. The agent leaves the new process alone.
    assert!(node.state.quarantined(&build(), &whose).is_some());
}

/// Simulates one rollout by these steps, of a build that runs on this share of the nodes.
fn roll_out(seed: u64, steps: &[&str], planted: Planted, runs_on: f64) -> Outcome {
    let mut random = Random(seed);
    let mut nodes: Vec<Node> = Vec::new();
    for number in 0..NODES {
        if random.share() < runs_on {
            let name = format!("ip-10-{seed}-{}-{}.internal", number / 256, number % 256);
            let cost = 1.0 + SPREAD * random.normal();
            nodes.push(Node { name, state: State::default(), switched: None, crash: None, cost });
        }
    }
    let (mut first_crash, mut stopped) = (f64::INFINITY, 0);
    for (index, step) in steps.iter().enumerate() {
        let share: NodeShare = step.parse().expect("a share");
        let begun = STEP * index as f64;
        for node in nodes.iter_mut().filter(|node| node.switched.is_none()) {
            if share.has("pods", &node.name) {
                let at = begun + UPGRADE * random.share() + MIN_AGE;
                node.switched = Some(at);
                if let Planted::Crash(probability) = planted
                    && random.share() < probability
                {
                    node.crash = Some(at + WINDOW * random.share());
                }
            }
        }
        let crashes = nodes.iter().filter_map(|node| node.crash);
        first_crash = crashes.fold(first_crash, f64::min);
        let killed = first_crash + REACTION;
        if killed < begun + STEP {
            // The nodes whose turn would have come later were never switched.
            for node in &mut nodes {
                if node.switched.is_some_and(|at| at > killed) {
                    (node.switched, node.crash) = (None, None);
                }
            }
            stopped = index + 1;
            break;
        }
        if let Planted::Slow(slower) = planted {
            let (mut with, mut without) = (Vec::new(), Vec::new());
            for node in &nodes {
                match node.switched {
                    Some(_) => with.push(node.cost * (1.0 + slower)),
                    None => without.push(node.cost),
                }
            }
            if is_worse(&with, &without) {
                stopped = index + 1;
                break;
            }
        }
    }
    nodes.iter_mut().filter(|node| node.crash.is_some()).for_each(crashed);
    Outcome {
        touched: nodes.iter().filter(|node| node.switched.is_some()).count(),
        crashes: nodes.iter().map(|node| node.state.quarantine.len()).sum(),
        stopped,
    }
}

fn is_worse(with: &[f64], without: &[f64]) -> bool {
    let of = |all: &[f64]| {
        let count = all.len() as f64;
        let mean = all.iter().sum::<f64>() / count;
        let squares = all.iter().map(|one| (one - mean).powi(2)).sum::<f64>();
        (mean, squares / (count - 1.0) / count)
    };
    if with.len() < 2 || without.len() < 2 {
        return false;
    }
    let ((one, of_one), (other, of_other)) = (of(with), of(without));
    one - other > ERRORS * (of_one + of_other).sqrt()
}

/// The outcomes of all runs of a kind: median and greatest number of nodes and crashes, and how many runs stopped.
struct Row {
    touched: (usize, usize),
    crashes: (usize, usize),
    stopped: usize,
}

/// Simulated rollouts of each kind.
fn runs() -> usize {
    rounds(40)
}

fn row(what: &str, steps: &[&str], planted: Planted, runs_on: f64) -> Row {
    let runs: Vec<Outcome> =
        (0..runs() as u64).map(|seed| roll_out(seed, steps, planted, runs_on)).collect();
    let of = |figure: fn(&Outcome) -> usize| {
        let mut all: Vec<usize> = runs.iter().map(figure).collect();
        all.sort_unstable();
        (all[all.len() / 2], all[all.len() - 1])
    };
    let row = Row {
        touched: of(|run| run.touched),
        crashes: of(|run| run.crashes),
        stopped: runs.iter().filter(|run| run.stopped > 0).count(),
    };
    let stopped_in = |step| runs.iter().filter(|run| run.stopped == step).count().to_string();
    let by_step: Vec<String> = (1..=steps.len()).map(stopped_in).collect();
    println!(
        "| {what} | {} % | {} | {} ({}) | {} ({}) | {}; {} |",
        runs_on * 100.0,
        if steps.len() > 1 { "4 steps" } else { "at once" },
        row.touched.0,
        row.touched.1,
        row.crashes.0,
        row.crashes.1,
        by_step.join(", "),
        stopped_in(0),
    );
    row
}

#[test]
fn a_build_that_crashes_stops_in_the_first_step_that_shows_it() {
    // 50 nodes are 1 %; chance gives at most a few more.
    let sure = row("each process crashes", &STEPS, Planted::Crash(1.0), 1.0);
    assert!(sure.touched.1 <= 90 && sure.stopped == runs());
    assert!(sure.crashes.1 <= sure.touched.1, "a node has one crash of a build at most");
    let tenth = row("1 process in 10 crashes", &STEPS, Planted::Crash(0.1), 1.0);
    assert!(tenth.touched.0 <= 90 && tenth.stopped == runs());
    let hundredth = row("1 process in 100 crashes", &STEPS, Planted::Crash(0.01), 1.0);
    // 250 nodes are 5 %, 1250 are 25 %.
    assert!(hundredth.touched.0 <= 320 && hundredth.touched.1 <= 1400);
    row("1 process in 1000 crashes", &STEPS, Planted::Crash(0.001), 1.0);
    let rare = row("each process crashes", &STEPS, Planted::Crash(1.0), 0.01);
    assert!(rare.touched.0 <= 5 && rare.stopped == runs());
    let at_once = row("each process crashes", &["100%"], Planted::Crash(1.0), 1.0);
    assert!(at_once.touched.0 > 10 * sure.touched.0, "steps are what keeps the number small");
    row("1 process in 100 crashes", &["100%"], Planted::Crash(0.01), 1.0);
}

#[test]
fn a_build_that_is_slower_stops_as_soon_as_enough_nodes_tell() {
    let five = row("5 % slower", &STEPS, Planted::Slow(0.05), 1.0);
    assert!(five.touched.0 <= 320 && five.stopped == runs());
    let one = row("1 % slower", &STEPS, Planted::Slow(0.01), 1.0);
    assert!(one.touched.0 <= 1400);
    row("1 % slower", &STEPS, Planted::Slow(0.01), 0.1);
    // The last step is compared with the held-out nodes. Without held-out nodes nothing shows the regression.
    let blind = row("1 % slower", &["100%"], Planted::Slow(0.01), 1.0);
    assert_eq!(blind.stopped, 0);
    let none = row("no slower", &STEPS, Planted::Slow(0.0), 1.0);
    assert!(none.stopped <= runs() / 20, "{} of {} stopped for nothing", none.stopped, runs());
}

#[test]
fn shares_are_as_large_as_they_say_and_lie_within_each_other() {
    let names: Vec<String> = (0..NODES).map(|number| format!("node-{number:05}")).collect();
    let of = |rule: &str, text: &str| -> Vec<&String> {
        let share: NodeShare = text.parse().expect("a share");
        names.iter().filter(|name| share.has(rule, name)).collect()
    };
    let mut before = Vec::new();
    for (text, wanted) in STEPS.into_iter().zip([50_f64, 250.0, 1250.0, 4750.0]) {
        let now = of("pods", text);
        let spread = (wanted * (1.0 - wanted / NODES as f64)).sqrt();
        assert!((now.len() as f64 - wanted).abs() < 5.0 * spread, "{text}: {}", now.len());
        assert!(
            before.iter().all(|name| now.contains(name)),
            "a node of a smaller share is in {text}"
        );
        before = now;
    }
    let (one, other) = (of("pods", "5%"), of("databases", "5%"));
    let both = one.iter().filter(|name| other.contains(name)).count();
    assert!(both < 40, "each rule chooses others: {both} in common");
}
