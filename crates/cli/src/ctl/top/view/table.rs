//! The table of processes.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Text;
use ratatui::widgets::{Cell, Row, Table};
use tiexec_core::addr::mib;
use tiexec_core::escape::AsShown;
use tiexec_core::report::percent;

use super::super::model::{Model, Sort};
use super::super::processes::{Looked, Process};
use super::{BOLD, Look, REVERSED};
use crate::ctl::date::since;
use crate::ctl::status::agent;

/// A column: its title, its sort order, its width, and its alignment.
struct Column {
    title: &'static str,
    sort: Option<Sort>,
    width: Constraint,
    right: bool,
}

impl Column {
    /// Returns its width, if that does not depend on the others.
    const fn length(&self) -> u16 {
        match self.width {
            Constraint::Length(length) => length,
            _ => 0,
        }
    }
}

/// The blanks between two columns.
const SPACING: u16 = 2;
/// The column of paths. If a path is too long, its end is shown.
const PROGRAM: &str = "PROGRAM";

/// Returns a text, or its end if the text is too long.
fn end_of(text: String, room: usize) -> String {
    let count = text.chars().count();
    if count <= room {
        return text;
    }
    let end = text.chars().skip(count + "..".len() - room.max("..".len()));
    "..".chars().chain(end).collect()
}

const fn number(title: &'static str, sort: Option<Sort>, width: u16) -> Column {
    Column { title, sort, width: Constraint::Length(width), right: true }
}

const fn words(title: &'static str, sort: Option<Sort>, width: Constraint) -> Column {
    Column { title, sort, width, right: false }
}

/// The widths of a terminal from which these columns are shown.
const UNIT: u16 = 110;
const OUTCOME: u16 = 150;
/// The width of the kernel's name of a process.
const NAME: u16 = 16;
/// The column of paths is omitted if it would be narrower: its end would name no program.
const PATH: u16 = 20;
/// Most characters of a unit that are shown.
const WIDEST_UNIT: usize = 36;

/// Returns the width that these columns take, except those whose width depends on the others.
fn taken(columns: &[Column]) -> u16 {
    columns.iter().map(|column| column.length() + SPACING).sum()
}

fn columns(width: u16, agent: bool, units: u16) -> Vec<Column> {
    let mut columns = vec![
        number("PID", Some(Sort::Pid), 7),
        number("TEXT MiB", Some(Sort::Text), 8),
        number("HUGE MiB", None, 8),
        number("%", Some(Sort::Huge), 3),
        number("CPU %", Some(Sort::Cpu), 6),
        words("BACKING", None, Constraint::Length(9)),
    ];
    let rule = agent.then(|| words("RULE", None, Constraint::Length(12)));
    let cost = number("COST MiB", None, 8);
    if width >= taken(&columns) + taken(rule.as_slice()) + cost.length() + SPACING + NAME {
        columns.push(cost);
    }
    columns.extend(rule);
    if agent && width >= OUTCOME {
        columns.push(words("OUTCOME", None, Constraint::Length(24)));
    }
    let others = taken(&columns);
    let name = if width >= UNIT { Constraint::Length(NAME) } else { Constraint::Fill(1) };
    columns.push(words("NAME", Some(Sort::Name), name));
    if width >= UNIT {
        let has_path = width >= others + NAME + units + PATH + 2 * SPACING;
        let unit = if has_path { Constraint::Length(units) } else { Constraint::Fill(1) };
        columns.push(words("UNIT", None, unit));
        if has_path {
            columns.push(words(PROGRAM, None, Constraint::Fill(1)));
        }
    }
    columns
}

/// Draws the table: a title row, and the rows that fit.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, model: &Model, look: Look) {
    let rows = model.on_screen().iter().filter_map(|&pid| model.row(pid));
    let units = rows.map(|process| process.unit.chars().count()).max().unwrap_or(0);
    let units = u16::try_from(units.clamp("UNIT".len(), WIDEST_UNIT)).unwrap_or(0);
    let columns = columns(area.width, model.agent.outcomes.is_some(), units);
    let titles = columns.iter().map(|column| {
        let sorted = column.sort == Some(model.sort);
        let style =
            if sorted { REVERSED.patch(BOLD).add_modifier(Modifier::UNDERLINED) } else { REVERSED };
        cell(column, column.title.to_owned()).style(style)
    });
    let others = taken(&columns);
    let room = usize::from(area.width.saturating_sub(others));
    let rows = model.on_screen().iter().filter_map(|&pid| {
        let process = model.row(pid)?;
        let cells = columns.iter().map(|column| {
            let mut text = look.plain(&content(column.title, pid, process, model));
            if column.title == PROGRAM {
                text = end_of(text, room);
            }
            cell(column, text)
        });
        let style = style(process, look);
        let selected = model.selected == Some(pid);
        Some(Row::new(cells).style(if selected { style.patch(REVERSED) } else { style }))
    });
    let table = Table::new(rows, columns.iter().map(|column| column.width))
        .column_spacing(SPACING)
        .header(Row::new(titles).style(REVERSED));
    frame.render_widget(table, area);
}

fn cell(column: &Column, text: String) -> Cell<'static> {
    let side = if column.right { Alignment::Right } else { Alignment::Left };
    Cell::new(Text::from(text).alignment(side))
}

/// Processes with text that could be huge stand out, more strongly with more huge text.
fn style(process: &Process, look: Look) -> Style {
    let (text, huge) = process.bytes();
    match percent(huge, text) {
        _ if text < look.least => Style::new().add_modifier(Modifier::DIM),
        90.. => look.fg(Color::Green),
        1.. => look.fg(Color::Yellow),
        0 => Style::new(),
    }
}

fn content(title: &str, pid: i32, process: &Process, model: &Model) -> String {
    let (text, huge) = process.bytes();
    let none = match process.looked {
        Looked::Never => "...",
        Looked::Silent => "?",
        _ => "-",
    };
    let known = |what: String| if process.text().is_some() { what } else { none.to_owned() };
    let of_agent = |said: fn(&agent::Process) -> String| {
        let outcomes = model.agent.outcomes.as_ref();
        let of = |pid: &i32| outcomes.and_then(|all| all.get(pid)).map_or("-".to_owned(), said);
        match model.families.get(&pid) {
            Some(family) if family.pids.iter().any(|other| of(other) != of(&pid)) => {
                "mixed".to_owned()
            }
            _ => of(&pid),
        }
    };
    match title {
        "PID" => pid.to_string(),
        "TEXT MiB" => known(mib(text)),
        "HUGE MiB" => known(mib(huge)),
        "%" => known(percent(huge, text).to_string()),
        "CPU %" => process.cpu.map_or_else(|| "-".to_owned(), |cpu| format!("{cpu:.1}")),
        "BACKING" => {
            let backings = process.text().map(|text| &text.backings);
            let names = backings.into_iter().flat_map(|backings| backings.keys().cloned());
            let names = names.collect::<Vec<_>>().join(",");
            if names.is_empty() { "-".to_owned() } else { names }
        }
        "COST MiB" => {
            let copies = process.text().into_iter().flat_map(|text| &text.copies);
            known(mib(copies.map(|(_, bytes)| bytes).sum()))
        }
        "RULE" => of_agent(|it| it.rule.shown().to_string()),
        "OUTCOME" => of_agent(|it| format!("{}, {}", it.result.shown(), since(it.when))),
        "NAME" => process.name.clone(),
        "UNIT" if process.unit.is_empty() => "-".to_owned(),
        "UNIT" => process.unit.clone(),
        _ => process.exe.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_a_column_only_if_its_name_fits() {
        let has_path = |width, units| {
            columns(width, false, units).iter().any(|column| column.title == PROGRAM)
        };
        assert!(!has_path(109, 4) && has_path(110, 4));
        assert!(!has_path(138, 36) && has_path(139, 36));
    }

    #[test]
    fn a_long_path_shows_its_end() {
        let shown = |room| end_of("/usr/bin/größe".to_owned(), room);
        assert_eq!(shown(14), "/usr/bin/größe");
        assert_eq!((shown(8), shown(2), shown(0)), ("../größe".into(), "..".into(), "..".into()));
    }
}
