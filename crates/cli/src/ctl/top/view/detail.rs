//! The view of one process: its files, why their text is not huge, and the model of its instruction TLB.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Wrap};
use tiexec_core::escape::{self, AsShown};

use super::super::model::{Itlb, Mode, Model};
use super::{BOLD, Look, rows_of};
use crate::ctl::date::since;

/// Draws the view, and limits the scroll position to the text.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, model: &mut Model, look: Look) {
    let (title, text) = content(model, area.width);
    let Mode::Detail(detail) = &mut model.mode else { return };
    let (title, text) = (look.plain(&title), look.plain(&escape::lines(&text)));
    let rows = 1 + rows_of(&text, area.width);
    detail.scroll = detail.scroll.min(rows.saturating_sub(area.height));
    let mut lines = vec![Line::styled(title, BOLD)];
    lines.extend(text.lines().map(|line| Line::raw(line.to_owned())));
    let view = Paragraph::new(lines).wrap(Wrap { trim: false }).scroll((detail.scroll, 0));
    frame.render_widget(view, area);
}

fn content(model: &Model, width: u16) -> (String, String) {
    let Mode::Detail(detail) = &model.mode else { return Default::default() };
    let chosen = &detail.chosen;
    let title = format!("process {} ({})", chosen.pid, chosen.name);
    let mut text = String::new();
    match model.still(chosen) {
        None => text += "it has ended, or executed another program\n",
        Some(process) => {
            text += &format!("program  {}\n", process.exe);
            if !process.unit.is_empty() {
                text += &format!("unit     {}\n", process.unit);
            }
        }
    }
    let outcomes = model.agent.outcomes.as_ref();
    if let Some(outcome) = outcomes.and_then(|outcomes| outcomes.get(&chosen.pid)) {
        let (rule, result) = (outcome.rule.shown(), outcome.result.shown());
        text += &format!("agent    rule {rule}: {result}, {}\n", since(outcome.when));
    }
    text.push('\n');
    text += &detail.files.as_deref().map_or_else(
        || "looking at its files ...\n".to_owned(),
        |files| fold(files, usize::from(width)),
    );
    text.push('\n');
    text += match &detail.itlb {
        Itlb::NotAsked => {
            "press m to sample it for 5 s, and to model how often its instruction TLB misses"
        }
        Itlb::Sampling => "sampling it for 5 s ...",
        Itlb::Told(told) => told,
    };
    (title, text)
}

/// The title of the last column of the table of files.
const REST: &str = "REST BECAUSE";

/// Moves the last column of the table of files below each row, if the table is wider than the screen.
fn fold(text: &str, width: usize) -> String {
    let column = text.lines().find_map(|line| line.strip_suffix(REST));
    let Some(column) = column.map(|before| before.chars().count()) else { return text.to_owned() };
    if text.lines().all(|line| line.chars().count() <= width) {
        return text.to_owned();
    }
    let mut folded = String::with_capacity(text.len());
    for line in text.lines() {
        let (at, _) = line.char_indices().nth(column).unwrap_or((line.len(), ' '));
        let (before, rest) = line.split_at(at);
        match rest {
            REST => folded += before.trim_end(),
            "" => folded += line,
            _ if before.ends_with("  ") => {
                folded += &format!("{}\n    rest because {rest}", before.trim_end());
            }
            _ => folded += line,
        }
        folded.push('\n');
    }
    folded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wide_table_is_folded() {
        let text = "node 7   text 31.2 MiB\n\
                    FILE        TEXT  BACKING    REST BECAUSE\n\
                    /bin/node   28.1  -          edges 2.5, base_pages 24.0\n\
                    /bin/small   0.1  -          \n\
                    cost  24.0 MiB shmem   undo: tiexecctl revert 7\n";
        assert_eq!(fold(text, 80), text);
        assert_eq!(
            fold(text, 50),
            "node 7   text 31.2 MiB\n\
             FILE        TEXT  BACKING\n\
             /bin/node   28.1  -\n    rest because edges 2.5, base_pages 24.0\n\
             /bin/small   0.1  -          \n\
             cost  24.0 MiB shmem   undo: tiexecctl revert 7\n"
        );
        assert_eq!(fold("cannot inspect", 5), "cannot inspect");
    }
}
