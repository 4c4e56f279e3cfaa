//! The screen: a head with the sums, the table, a line for messages, and the keys.
//!
//! All names were escaped when they were read. Our own words and lines are ASCII, so that a terminal without UTF-8 can
//! show them.

mod detail;
mod table;

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};
use tiexec_core::addr::mib;
use tiexec_core::escape::AsShown;
use tiexec_core::report::percent;

use super::model::{Mode, Model, Sort};
use crate::ctl::status::counted;
use crate::stdio::wants_colours;

/// The terminal's abilities, and constant facts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) colour: bool,
    pub(super) utf8: bool,
    pub(super) delay: Duration,
    /// The size of a huge page.
    pub(super) least: u64,
}

impl Look {
    /// Reads the environment: whether colours are wanted, and the locale.
    pub(super) fn new(delay: Duration, least: u64) -> Self {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(|name| set(name));
        let locale = locale.unwrap_or_default().to_string_lossy().to_lowercase();
        let utf8 = locale.contains("utf-8") || locale.contains("utf8");
        Self { colour: wants_colours(), utf8, delay, least }
    }

    fn fg(self, color: Color) -> Style {
        if self.colour { Style::new().fg(color) } else { Style::new() }
    }

    /// Returns a text as this terminal can show it.
    fn plain(self, text: &str) -> String {
        if self.utf8 {
            return text.to_owned();
        }
        text.chars().map(|letter| if letter.is_ascii() { letter } else { '?' }).collect()
    }
}

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);
/// Most lines of a message.
const MESSAGE: u16 = 4;

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, model: &mut Model, look: Look) {
    let message = message(model, look);
    let lines = rows_of(&message, frame.area().width).clamp(1, MESSAGE);
    let parts = [
        Constraint::Length(3),
        Constraint::Fill(1),
        Constraint::Length(lines),
        Constraint::Length(1),
    ];
    let [head, body, below, keys] = Layout::vertical(parts).areas(frame.area());
    draw_head(frame, head, model, look);
    model.make_room(usize::from(body.height.saturating_sub(1)));
    match &mut model.mode {
        Mode::Help => draw_help(frame, body),
        Mode::Detail(_) => detail::draw(frame, body, model, look),
        _ => table::draw(frame, body, model, look),
    }
    let style = if matches!(model.mode, Mode::Confirm(..)) { BOLD } else { Style::new() };
    frame.render_widget(Paragraph::new(message).style(style).wrap(Wrap { trim: false }), below);
    frame.render_widget(Paragraph::new(keys_of(model)).style(REVERSED), keys);
}

/// Returns how many rows a text takes.
fn rows_of(text: &str, width: u16) -> u16 {
    let width = usize::from(width.max(1));
    let rows = text.lines().map(|line| line.chars().count().div_ceil(width).max(1)).sum::<usize>();
    u16::try_from(rows).unwrap_or(u16::MAX)
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, model: &Model, look: Look) {
    let all = model.processes.all.values();
    let (mut text, mut huge) = (0, 0);
    for (its, its_huge) in all.map(super::processes::Process::bytes) {
        (text, huge) = (text + its, huge + its_huge);
    }
    let by = match model.sort {
        Sort::Text => "text",
        Sort::Huge => "share of huge text",
        Sort::Cpu => "CPU",
        Sort::Pid => "PID",
        Sort::Name => "name",
    };
    let by = if model.reversed { format!("{by}, reversed") } else { by.to_owned() };
    let mut first = format!(
        "  {}, by {by}, every {} s",
        counted(model.processes.all.len(), "process", "processes"),
        look.delay.as_secs_f64()
    );
    if !model.filter.is_empty() {
        let shown = model.rows.len();
        first += &format!("; {shown} match \"{}\"", look.plain(&model.filter.shown().to_string()));
    }
    let share = percent(huge, text);
    let sums = format!("text {} MiB   huge {} MiB   {share:>3} % ", mib(text), mib(huge));
    let room = usize::from(area.width).saturating_sub(sums.chars().count() + 2).min(60);
    let full = room * usize::try_from(share.min(100)).unwrap_or(0) / 100;
    let lines = vec![
        Line::from(vec![
            Span::styled("tiexecctl top", BOLD.patch(look.fg(Color::Cyan))),
            Span::raw(first),
        ]),
        Line::from(vec![
            Span::raw(sums),
            Span::raw("["),
            Span::styled("|".repeat(full), look.fg(Color::Green)),
            Span::raw(" ".repeat(room - full)),
            Span::raw("]"),
        ]),
        Line::raw(format!("agent {}", look.plain(&model.agent.words.shown().to_string()))),
    ];
    frame.render_widget(Paragraph::new(lines), area);
}

/// Returns the text of the line for messages.
fn message(model: &Model, look: Look) -> String {
    if let Mode::Confirm(act, chosen) = &model.mode {
        let name: String = chosen.name.chars().take(24).collect();
        let name = look.plain(&name);
        let doing = act.doing();
        return format!("{doing} process {} ({name})?  y: yes, any other key: no", chosen.pid);
    }
    if model.mode == Mode::Filter {
        let filter = look.plain(&model.filter.shown().to_string());
        return format!(
            "filter: {filter}_   (name, path, unit, rule or PID; Enter keeps it, and opens the only match; Esc clears it)"
        );
    }
    if !model.message.is_empty() {
        return look.plain(&model.message.shown().to_string());
    }
    if model.filling {
        return "looking at the text of all processes ...".to_owned();
    }
    match model.denied() {
        0 => String::new(),
        denied if rustix::process::geteuid().is_root() => format!(
            "{} may not even be looked at by root; fix: run it outside the container",
            counted(denied, "process", "processes")
        ),
        denied => format!(
            "{} of others may not be looked at; fix: run it as root",
            counted(denied, "process", "processes")
        ),
    }
}

fn keys_of(model: &Model) -> &'static str {
    match model.mode {
        Mode::Table => {
            " Enter details  a attach  r revert  / filter  f fold  thcpn sort  ? help  q"
        }
        Mode::Filter => " Enter keep, open the only match  Esc clear",
        Mode::Confirm(..) => " y yes  any other key no",
        Mode::Detail(_) => " Esc q back  a attach  r revert  m model the iTLB  Up Down scroll",
        Mode::Help => " any key back",
    }
}

const HELP: &str = "\
Up Down PgUp PgDn Home End   select a process (also k j g G)
Enter                        its files, and why text is on base pages; of a row
                             such as postgres x60: its processes
f                            show processes of one program and unit as one row,
                             or each
a                            attach to it: put its text onto huge pages
r                            revert it: put the files' own text back
t h c p n                    sort by text, share of huge text, CPU, PID, name;
                             again: the other way round
/                            show only processes whose name, path, unit, rule or
                             PID matches; Enter opens the only match, Esc clears
Space                        look now
Ctrl-L                       draw the screen again
q                            back from a view; end
Ctrl-C                       end

TEXT      MiB of program text that the process maps
HUGE, %   what of it is on huge pages
CPU %     of one processor
BACKING   the kind of memory that the huge pages are in
COST      MiB of copies; several processes may share a copy
RULE      the agent's rule for the process, where tiexecd runs
";

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    frame.render_widget(Paragraph::new(HELP), area);
}
