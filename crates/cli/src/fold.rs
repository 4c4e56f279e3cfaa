//! Folds long lines on a terminal. A table is cut between two columns, and other lines between words. A continuation
//! line has an indent. Files, pipes and JSON get the lines unchanged.

use std::os::fd::AsFd;

/// The indent of a continuation line.
const INDENT: &str = "    ";
/// On a narrower terminal nothing is folded.
const NARROWEST: usize = 40;

/// Returns how many columns the terminal has; `None` if the stream is not a terminal, or if the terminal is too narrow.
pub(crate) fn width(stream: impl AsFd) -> Option<usize> {
    columns(stream).filter(|&width| width >= NARROWEST)
}

/// Returns how many columns the terminal has; `None` if it does not tell, or is none.
pub(crate) fn columns(stream: impl AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    Some(usize::from(size.ws_col)).filter(|&columns| columns > 0)
}

/// Folds the lines of a text that are wider than the terminal.
pub(crate) fn folded(text: &str, width: Option<usize>) -> String {
    let Some(width) = width.filter(|_| !text.starts_with(['{', '[', '<'])) else {
        return text.to_owned();
    };
    let lines: Vec<Vec<char>> = text.split('\n').map(|line| line.chars().collect()).collect();
    let mut folded: Vec<String> = Vec::new();
    let mut rest = &lines[..];
    while let Some(first) = rest.first() {
        let alike = |line: &&Vec<char>| line.len() > width && is_row(line) == is_row(first);
        let long = rest.iter().take_while(alike).count();
        let (group, after) = rest.split_at(long.max(1));
        match common(group, width) {
            _ if long == 0 => folded.push(first.iter().collect()),
            Some(column) => group.iter().for_each(|line| cut(line, column, width, &mut folded)),
            None => group.iter().for_each(|line| cut(line, place(line, width), width, &mut folded)),
        }
        rest = after;
    }
    folded.join("\n")
}

/// Folds a message. Its fix gets its own line, so that the user can copy it.
pub(crate) fn folded_message(message: &str, width: Option<usize>) -> String {
    match message.split_once("; fix: ") {
        Some((why, fix)) if width.is_some_and(|width| message.chars().count() > width) => {
            format!("{}\n{INDENT}fix: {fix}", folded(why, width))
        }
        _ => folded(message, width),
    }
}

/// Returns whether the line belongs to a table, which has two spaces between its columns.
fn is_row(line: &[char]) -> bool {
    line.windows(2).any(|two| two == [' ', ' '])
}

/// Finds the last column, within the width, at which all the lines have a space. Prefers a column at which one line has
/// two spaces, because a single space may lie between two words of a column.
fn common(lines: &[Vec<char>], width: usize) -> Option<usize> {
    let is_space = |line: &Vec<char>, column: usize| line.get(column) == Some(&' ');
    let free = |column: &usize| lines.iter().all(|line| is_space(line, *column));
    let wide = |column: &usize| lines.iter().any(|line| is_space(line, *column - 1));
    let columns = || (width / 2..=width).rev().filter(free);
    let found = columns().find(wide).or_else(|| columns().next());
    found.filter(|_| lines.len() > 1)
}

/// Finds the position at which to cut a single line: between two columns, else after a clause, else between two words.
fn place(line: &[char], width: usize) -> usize {
    let last = |between: &[char], keep: usize| {
        let at = |&at: &usize| line[at..].starts_with(between);
        (width / 4..=width - keep).rev().find(at).map(|at| at + keep)
    };
    let parts = last(&[' '; 3], 0).or_else(|| last(&[';', ' '], 1)).or_else(|| last(&[' '], 0));
    // Words are never cut, because a word may be a path that the user wants to copy.
    let behind = || line.iter().skip(width).position(|&letter| letter == ' ');
    parts.or_else(|| Some(width + behind()?)).unwrap_or(line.len())
}

fn cut(line: &[char], column: usize, width: usize, folded: &mut Vec<String>) {
    let (head, tail) = line.split_at(column.min(line.len()));
    folded.push(head.iter().collect::<String>().trim_end().to_owned());
    let tail: String = tail.iter().collect();
    if tail.trim().is_empty() {
        return;
    }
    let tail: Vec<char> = INDENT.chars().chain(tail.trim_start().chars()).collect();
    if tail.len() > width {
        cut(&tail, place(&tail, width), width, folded);
    } else {
        folded.push(tail.into_iter().collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_lines_and_json_stay() {
        let text = "a b c\nd\n";
        assert_eq!(folded(text, Some(40)), text);
        let json = format!("{{\"a\":\"{}\"}}\n", "b ".repeat(99));
        assert_eq!(folded(&json, Some(40)), json);
        let long = "word ".repeat(40);
        assert_eq!(folded(&long, None), long);
    }

    #[test]
    fn a_table_is_cut_in_one_column() {
        let table = "HEAD                          ONE      TWO WORDS\n\
                     first                         100      200 and 3\n\
                     short\n";
        let cut = "HEAD                          ONE\n    TWO WORDS\n\
                   first                         100\n    200 and 3\nshort\n";
        assert_eq!(folded(table, Some(42)), cut);
    }

    #[test]
    fn a_sentence_below_a_table_does_not_move_its_cut() {
        let table = "NAME           PLAIN         TIEXEC   RATIO\n\
                     seconds      212.0 ms      200.0 ms   0.95\n\
                     the runs differ too much to tell anything here\n";
        let cut = "NAME           PLAIN         TIEXEC\n    RATIO\n\
                   seconds      212.0 ms      200.0 ms\n    0.95\n\
                   the runs differ too much to tell\n    anything here\n";
        assert_eq!(folded(table, Some(40)), cut);
    }

    #[test]
    fn parts_stay_whole() {
        let line = "cost  24.0 MiB shmem   perf only if recording began   uprobes lost\n";
        let cut = "cost  24.0 MiB shmem\n    perf only if recording began\n    uprobes lost\n";
        assert_eq!(folded(line, Some(40)), cut);
        let word = "x".repeat(100);
        assert_eq!(folded(&format!("{word} y"), Some(40)), format!("{word}\n    y"));
    }

    #[test]
    fn a_fix_is_a_line() {
        let message =
            "tiexec: cannot do what you want: it is much too long; fix: tiexecctl warm a b";
        let said = folded_message(message, Some(60));
        assert!(said.ends_with("\n    fix: tiexecctl warm a b"), "{said}");
        assert_eq!(folded_message(message, Some(80)), message);
    }
}
