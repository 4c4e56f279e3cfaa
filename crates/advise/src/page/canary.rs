//! The page about a canary.

use std::fmt::Write;

use super::plots::{self, Plot};
use super::{Data, Saving, command_line, escape, heading, next, percent, section, table};
use crate::canary::Account;
use crate::compare::{saved_of, times};
use crate::sequential::TOLERANCE;

fn saving(account: &Account) -> Option<Saving> {
    let ratio = account.per_cpu_second;
    let range = ratio.low.zip(ratio.high).map(|(low, high)| [saved_of(low), saved_of(high)]);
    let name = "for the same work".to_owned();
    Some(Saving { name, share: saved_of(ratio.estimate?), range })
}

pub(super) fn plots(account: &Account) -> Vec<Plot> {
    let saved = saving(account).map(|saving| plots::savings(&[saving]));
    let narrowing = (!account.history.is_empty()).then(|| plots::narrowing(account));
    saved.into_iter().chain(narrowing).collect()
}

pub(super) fn html(data: &Data<'_>, account: &Account) -> String {
    let measured = format!(
        "{} pairs of slices of {} in {}; {} could not be measured",
        data.count("/canary/pairs"),
        data.seconds("/canary/slice_s"),
        data.seconds("/canary/lasted_s"),
        data.count("/canary/pairs_left_out"),
    );
    let facts = [
        ("Host", account.origin.host.as_deref().map(escape)),
        ("Unit", account.unit.as_deref().map(escape)),
        ("Command", command_line(&account.command)),
        ("Machine", account.origin.machine.as_deref().map(escape)),
        ("Measured", Some(measured)),
    ];
    let mut html = String::new();
    heading(&mut html, &account.exe, &facts);
    let _infallible = write!(html, "<p class=\"verdict\">{}", account.verdict.as_str());
    if account.ended != "known" {
        let _infallible = write!(html, " <small>(ended: {})</small>", escape(&account.ended));
    }
    if let Some(reason) = &account.reason {
        let _infallible = write!(html, "<br><small>{}</small>", escape(reason));
    }
    html.push_str("</p>\n");
    if let Some(step) = &account.next {
        next(&mut html, step);
    }
    saved(&mut html, data, account);
    if !account.history.is_empty() {
        let explained = format!(
            "The line is the ratio of the work per CPU second with copies to that on base pages, after each pair; the \
             band is its interval. The canary ends once the whole interval lies above {keep} (better), below 1 (worse), \
             or between {} and {keep} (no worse than {}): these are the dashed lines.",
            times(1.0 - TOLERANCE),
            percent(TOLERANCE),
            keep = data.number("/canary/keep_above", times),
        );
        let content = plots::narrowing(account).to_html();
        section(&mut html, "The interval, pair by pair", true, &explained, &content);
    }
    html
}

fn saved(html: &mut String, data: &Data<'_>, account: &Account) {
    let (mut content, mut explained) = (String::new(), String::new());
    match saving(account) {
        Some(saving) => {
            explained = saving.explained("the processor time", "the copies");
            content += &plots::savings(&[saving]).to_html();
        }
        None => {
            content += "<p>Processor time saved: not known, because no pair was measured.</p>\n"
        }
    }
    if account.copied_bytes.is_some() {
        let size = data.mib("/canary/copied_bytes");
        let _infallible = match account {
            Account { kept: true, .. } => {
                writeln!(content, "<p>Memory: the copies take {size} of huge pages.</p>")
            }
            Account { given_back: true, .. } => writeln!(
                content,
                "<p>Memory: the copies took {size} of huge pages, which were given back.</p>"
            ),
            Account { switches: 0, .. } => writeln!(
                content,
                "<p>Memory: no copies were made; they would take {size} of huge pages.</p>"
            ),
            // The revert failed, or an earlier version wrote the account.
            _ => writeln!(
                content,
                "<p>Memory: copies take {size} of huge pages, until all processes are reverted or have ended.</p>"
            ),
        };
    }
    let row = |name: &str, key: &str| {
        let at = |end: &str| data.number(&format!("/canary/{key}/{end}"), times);
        let ends = format!("{} to {}", at("low"), at("high"));
        let interval = match account.per_cpu_second.low {
            Some(_) => ends,
            None => "not known yet".to_owned(),
        };
        vec![name.to_owned(), at("estimate"), interval]
    };
    let rows = [row("per CPU second", "per_cpu_second"), row("per second", "per_second")];
    if account.per_cpu_second.estimate.is_some() {
        table(&mut content, &["work", "ratio", "interval"], rows.into_iter());
    }
    let _infallible = writeln!(
        content,
        "<p>{} switches in {}, the longest in {}.</p>",
        data.count("/canary/switches"),
        data.seconds("/canary/switching_s"),
        data.seconds("/canary/longest_switch_s")
    );
    section(html, "Processor time saved, and memory", false, &explained, &content);
}
