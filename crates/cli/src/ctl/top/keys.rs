//! The keys. Each changes the state or requests work.

use super::input::Key;
use super::model::{Act, Chosen, Detail, Itlb, Mode, Model, Sort};

/// Work that a key requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Ask {
    Nothing,
    End,
    Redraw,
    Refresh,
    Do(Act, Chosen),
    /// The files of the process in the detail view.
    Inspect,
    /// The model of the instruction TLB for that process.
    Sample,
}

/// Most characters of a filter.
const LONGEST_FILTER: usize = 60;
/// The number of rows that stay on the screen when a page is scrolled.
const OVERLAP: usize = 1;

/// Handles a key.
pub(super) fn take(model: &mut Model, key: Key) -> Ask {
    match key {
        Key::Control('c') => return Ask::End,
        Key::Control('l') => return Ask::Redraw,
        Key::Control(_) => return Ask::Nothing,
        _ => {}
    }
    match &mut model.mode {
        Mode::Table => in_table(model, key),
        Mode::Filter => in_filter(model, key),
        Mode::Confirm(..) => in_confirmation(model, key),
        Mode::Detail(_) => in_detail(model, key),
        Mode::Help => {
            model.mode = Mode::Table;
            Ask::Nothing
        }
    }
}

fn in_table(model: &mut Model, key: Key) -> Ask {
    let page = isize::try_from(model.room.saturating_sub(OVERLAP).max(1)).unwrap_or(1);
    model.message.clear();
    match key {
        Key::Char('q') => return Ask::End,
        Key::Escape => {
            model.filter.clear();
            model.arrange();
        }
        Key::Up | Key::Char('k') => model.go(-1),
        Key::Down | Key::Char('j') => model.go(1),
        Key::PageUp => model.go(-page),
        Key::PageDown => model.go(page),
        Key::Home | Key::Char('g') => {
            model.go(0);
            model.go(isize::MIN);
        }
        Key::End | Key::Char('G') => {
            model.go(0);
            model.go(isize::MAX);
        }
        Key::Char('t') => model.sort_by(Sort::Text),
        Key::Char('h') => model.sort_by(Sort::Huge),
        Key::Char('c') => model.sort_by(Sort::Cpu),
        Key::Char('p') => model.sort_by(Sort::Pid),
        Key::Char('n') => model.sort_by(Sort::Name),
        Key::Char('f') => model.fold_or_unfold(),
        Key::Char('/') => model.mode = Mode::Filter,
        Key::Char('?') => model.mode = Mode::Help,
        Key::Char(' ') => return Ask::Refresh,
        Key::Char('a') => confirm(model, Act::Attach),
        Key::Char('r') => confirm(model, Act::Revert),
        Key::Enter => return open(model),
        _ => {}
    }
    Ask::Nothing
}

/// Shows the view of the selected process, or the processes of the selected family.
fn open(model: &mut Model) -> Ask {
    if model.unfold() {
        return Ask::Nothing;
    }
    let Some(chosen) = selected(model) else { return Ask::Nothing };
    model.mode = Mode::Detail(Detail { chosen, files: None, itlb: Itlb::NotAsked, scroll: 0 });
    Ask::Inspect
}

/// Returns the process to which a key applies. Shows a message if no process is selected, or a family.
fn selected(model: &mut Model) -> Option<Chosen> {
    let has_row = !matches!(model.mode, Mode::Detail(_));
    let family = model.selected.filter(|_| has_row).and_then(|pid| model.families.get(&pid));
    if let Some(family) = family {
        let count = family.pids.len();
        model.message =
            format!("these are {count} processes: Enter shows them, so that you can select one");
        return None;
    }
    let chosen = model.chosen();
    if chosen.is_none() {
        "select a process first, by the arrow keys".clone_into(&mut model.message);
    }
    chosen
}

fn confirm(model: &mut Model, act: Act) {
    let Some(chosen) = selected(model) else { return };
    let mode = std::mem::replace(&mut model.mode, Mode::Confirm(act, chosen));
    if let Mode::Detail(detail) = mode {
        model.below = Some(detail);
    }
}

fn in_confirmation(model: &mut Model, key: Key) -> Ask {
    let mode = model.below.take().map_or(Mode::Table, Mode::Detail);
    let Mode::Confirm(act, chosen) = std::mem::replace(&mut model.mode, mode) else {
        return Ask::Nothing;
    };
    match key {
        Key::Char('y' | 'Y') => Ask::Do(act, chosen),
        _ => {
            "nothing was changed".clone_into(&mut model.message);
            Ask::Nothing
        }
    }
}

fn in_filter(model: &mut Model, key: Key) -> Ask {
    match key {
        Key::Enter => {
            model.mode = Mode::Table;
            model.arrange();
            if let [only] = model.rows[..] {
                model.selected = Some(only);
                return open(model);
            }
        }
        Key::Escape => {
            model.mode = Mode::Table;
            model.filter.clear();
        }
        Key::Backspace => {
            model.filter.pop();
        }
        Key::Char(letter)
            if model.filter.chars().count() < LONGEST_FILTER && !letter.is_control() =>
        {
            model.filter.push(letter);
        }
        _ => {}
    }
    model.arrange();
    Ask::Nothing
}

fn in_detail(model: &mut Model, key: Key) -> Ask {
    let page = u16::try_from(model.room).unwrap_or(1).max(1);
    match key {
        Key::Char('a') => confirm(model, Act::Attach),
        Key::Char('r') => confirm(model, Act::Revert),
        _ => {}
    }
    let Mode::Detail(detail) = &mut model.mode else { return Ask::Nothing };
    match key {
        Key::Escape | Key::Enter | Key::Backspace | Key::Char('q') => {
            model.mode = Mode::Table;
            return Ask::Refresh;
        }
        Key::Up | Key::Char('k') => detail.scroll = detail.scroll.saturating_sub(1),
        Key::Down | Key::Char('j') => detail.scroll = detail.scroll.saturating_add(1),
        Key::PageUp => detail.scroll = detail.scroll.saturating_sub(page),
        Key::PageDown => detail.scroll = detail.scroll.saturating_add(page),
        Key::Char('m') if detail.itlb != Itlb::Sampling => {
            detail.itlb = Itlb::Sampling;
            return Ask::Sample;
        }
        _ => {}
    }
    Ask::Nothing
}
