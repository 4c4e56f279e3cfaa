//! `tiexecctl top`: the processes of the machine with their text, on a screen that refreshes itself.
//!
//! One thread waits for keys, for the time of the next refresh, and for answers. It never waits for the agent, or for a
//! process that it examines:
//!
//! ```text
//!   tiexecctl top            reads keys and stat of each process, draws
//!   ├─ tiexec-tracer         looks at the text of processes whose turn it is (looks)
//!   ├─ tiexecctl attach      or revert, once the user has said yes (job)
//!   ├─ tiexecctl inspect     the files of the process in the detail view
//!   └─ tiexecctl advise      samples that process, by a key
//! ```

mod agent;
mod input;
mod job;
mod keys;
mod looks;
mod model;
mod processes;
mod screen;
mod view;

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use tiexec_core::escape::AsShown;
use tiexec_sys::{interrupt, thp};

use self::input::Input;
use self::job::{Ended, Job};
use self::keys::Ask;
use self::looks::{Looks, Wanted};
use self::model::{Act, Chosen, Itlb, Mode, Model};
use self::screen::Screen;
use self::view::Look;
use crate::exit;
use crate::options;
use crate::stdio::warn;

/// The longest wait for the rest of an incomplete key. After that, a lone ESC byte is the key Esc.
const WHOLE_KEY: Duration = Duration::from_millis(50);
/// The time for which answers are collected before they are drawn.
const GATHER: Duration = Duration::from_millis(200);

/// Shows the screen until the user ends it; returns the exit status.
pub(super) fn run(options: &options::Top) -> u8 {
    if let Some(why) = screen::missing() {
        warn(format_args!("cannot show the processes: {why}; fix: tiexecctl status"));
        return exit::USAGE;
    }
    let least = thp::pages().map_or(u64::MAX, |pages| pages.pmd.bytes());
    let mut top = Top::new(Look::new(options.delay, least));
    interrupt::catch();
    let done = Screen::enter().and_then(|mut screen| top.until_the_end(&mut screen));
    if let Some((act, chosen, _)) = &top.act {
        warn(format_args!(
            "{} process {} goes on; `tiexecctl inspect {1}` shows what comes of it",
            act.doing(),
            chosen.pid
        ));
    }
    match (done, interrupt::signal()) {
        (_, Some(signal)) => exit::of_signal(signal),
        (Ok(()), None) => exit::OK,
        (Err(error), None) => {
            warn(format_args!("cannot show the processes: {error}; fix: tiexecctl status"));
            exit::FAILED
        }
    }
}

/// The screen's state, and the running work.
struct Top {
    model: Model,
    looks: Looks,
    look: Look,
    act: Option<(Act, Chosen, Job)>,
    inspect: Option<(Chosen, Job)>,
    sample: Option<(Chosen, Job)>,
}

impl Top {
    fn new(look: Look) -> Self {
        let model = Model::new();
        Self { model, looks: Looks::default(), look, act: None, inspect: None, sample: None }
    }

    fn until_the_end(&mut self, screen: &mut Screen) -> std::io::Result<()> {
        let mut next = Instant::now();
        // The time of the first change that is not drawn yet.
        let mut changed = None;
        let (mut input, mut size) = (Input::default(), screen::size());
        loop {
            if interrupt::asked() {
                return Ok(());
            }
            let now = Instant::now();
            if now >= next {
                self.refresh();
                next = now + self.look.delay;
                changed.get_or_insert(now);
            }
            if changed.is_some_and(|since| now >= since + GATHER) {
                changed = self.looks.take(&mut self.model.processes).then_some(now);
                self.model.filling = self.looks.fill_the_screen();
                self.model.arrange();
                screen.0.draw(|frame| view::draw(frame, &mut self.model, self.look))?;
            }
            let until = changed.map_or(next, |since| next.min(since + GATHER));
            let left = until.saturating_duration_since(Instant::now());
            let is_partial = input.is_partial();
            let left = if is_partial { WHOLE_KEY } else { left };
            let found = screen::wait(&self.sources(), left);
            if !input.read(found) {
                return Ok(());
            }
            if self.take_answers() {
                changed.get_or_insert(now);
            }
            let size_before = std::mem::replace(&mut size, screen::size());
            if size != size_before {
                changed = Some(now.checked_sub(GATHER).unwrap_or(now));
            }
            for key in input.keys(is_partial && found.is_empty()) {
                match keys::take(&mut self.model, key) {
                    Ask::Nothing => {}
                    Ask::End => return Ok(()),
                    Ask::Redraw => screen.0.clear()?,
                    Ask::Refresh => next = now,
                    Ask::Do(act, chosen) => self.act(act, chosen),
                    Ask::Inspect => self.inspect(),
                    Ask::Sample => self.sample(),
                }
                // The screen is drawn at once after a key.
                changed = Some(now.checked_sub(GATHER).unwrap_or(now));
            }
        }
    }

    /// Reads the list of processes, and starts looks at the text of those that are due.
    fn refresh(&mut self) {
        self.model.processes.refresh();
        self.model.agent.ask();
        self.looks.note_silent(&mut self.model.processes);
        self.model.arrange();
        let wanted = Wanted {
            selected: self.model.selected,
            on_screen: self.model.on_screen(),
            delay: self.look.delay,
            least: self.look.least,
        };
        self.looks.begin(&self.model.processes, &wanted);
        self.inspect();
    }

    /// Returns the descriptors on which answers arrive, except those of looks, which are collected.
    fn sources(&self) -> Vec<BorrowedFd<'_>> {
        let agent = self.model.agent.answers().map(AsFd::as_fd);
        let act = self.act.as_ref().map(|(.., job)| job.output().as_fd());
        let jobs = [&self.inspect, &self.sample];
        let jobs = jobs.into_iter().flatten().map(|(_, job)| job.output().as_fd());
        agent.into_iter().chain(act).chain(jobs).collect()
    }

    /// Reads the available answers. Returns whether something changed.
    fn take_answers(&mut self) -> bool {
        let mut news = self.model.agent.take();
        if let Some((act, chosen, job)) = &mut self.act
            && let Some(ended) = job.take()
        {
            self.model.message = outcome(*act, chosen, &ended);
            let pid = chosen.pid;
            self.act = None;
            self.model.look_again(pid);
            self.model.agent.ask_soon();
            self.refresh();
            news = true;
        }
        if let Some(ended) = self.inspect.as_mut().and_then(|(_, job)| job.take())
            && let Some((chosen, _)) = self.inspect.take()
            && let Mode::Detail(detail) = &mut self.model.mode
            && detail.chosen == chosen
        {
            detail.files = Some(ended.text);
            news = true;
        }
        if let Some(ended) = self.sample.as_mut().and_then(|(_, job)| job.take())
            && let Some((chosen, _)) = self.sample.take()
        {
            self.tell_itlb(&chosen, &ended);
            news = true;
        }
        news
    }

    fn act(&mut self, act: Act, chosen: Chosen) {
        let Chosen { pid, .. } = chosen;
        if let Some((other, its, _)) = &self.act {
            let doing = other.doing();
            self.model.message = format!("wait: {doing} process {} is still under way", its.pid);
            return;
        }
        if self.model.still(&chosen).is_none() {
            self.model.message = format!("process {pid} has ended, or executed another program");
            return;
        }
        let started = chosen.identity.start_time.to_string();
        let words = [act.command(), "--started-at", &started, &pid.to_string()];
        match Job::start(&words.map(str::to_owned)) {
            Ok(job) => {
                self.model.message = format!("{} process {pid} ...", act.doing());
                self.act = Some((act, chosen, job));
            }
            Err(error) => self.model.message = format!("cannot start {}: {error}", act.command()),
        }
    }

    /// Starts `inspect` for the process in the detail view.
    fn inspect(&mut self) {
        let Mode::Detail(detail) = &self.model.mode else { return };
        let chosen = &detail.chosen;
        if self.inspect.is_some() || self.model.still(chosen).is_none() {
            return;
        }
        if let Ok(job) = Job::start(&["inspect".to_owned(), chosen.pid.to_string()]) {
            self.inspect = Some((chosen.clone(), job));
        }
    }

    /// Starts `advise` for the process in the detail view.
    fn sample(&mut self) {
        let Mode::Detail(detail) = &self.model.mode else { return };
        let chosen = detail.chosen.clone();
        if let Some((_, other)) = self.sample.take() {
            other.end();
        }
        if let Ok(job) = Job::start(&["advise".to_owned(), chosen.pid.to_string()]) {
            self.sample = Some((chosen, job));
        }
    }

    fn tell_itlb(&mut self, chosen: &Chosen, ended: &Ended) {
        // A confirmation may cover the detail view meanwhile.
        let detail = match &mut self.model.mode {
            Mode::Detail(detail) => Some(detail),
            _ => self.model.below.as_mut(),
        };
        let Some(detail) = detail.filter(|detail| detail.chosen == *chosen) else { return };
        // The table of files is omitted, because it is wider than many terminals.
        let text = &ended.text;
        let from = text.find("\niTLB").map_or(0, |line| line + 1);
        detail.itlb = Itlb::Told(text[from..].to_owned());
    }
}

/// Returns the last line of a command's output, or else the meaning of its exit status.
fn outcome(act: Act, chosen: &Chosen, ended: &Ended) -> String {
    let doing = act.doing();
    let pid = chosen.pid;
    match (ended.text.lines().rfind(|line| !line.trim().is_empty()), ended.status) {
        (Some(line), _) => line.shown().to_string(),
        (None, Some(status)) if status == i32::from(exit::GONE) => {
            format!("process {pid} has ended")
        }
        (None, Some(0)) => format!("{doing} process {pid}: done"),
        (None, _) => format!("cannot {doing} process {pid}: the command ended and said nothing"),
    }
}
