//! A plan for people and programs to read.

use std::fmt;

use serde::Serialize;

use crate::addr::{AddrRange, mib};
use crate::escape::{self, AsShown};
use crate::plan::{Backing, Plan, Span, TextPlan};
use crate::skip::Reason;

impl fmt::Display for Plan {
    /// The table of `--dry-run`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (text, huge) = (self.text_bytes(), self.huge_bytes());
        writeln!(
            f,
            "plan   text {} MiB   huge {} MiB ({} %)   backing {}",
            mib(text),
            mib(huge),
            crate::report::percent(huge, text),
            self.main_backing().map_or_else(|| "-".to_owned(), |backing| backing.to_string()),
        )?;
        if let Some(rebase) = &self.rebase {
            writeln!(f, "rebase {} to {}", rebase.from, rebase.to)?;
        }
        if self.widened_bytes() > 0 {
            writeln!(
                f,
                "edges  {} MiB that are no text become executable",
                mib(self.widened_bytes())
            )?;
        }
        writeln!(f, "{:<32} {:>7} {:>7}  {:<22} REST BECAUSE", "TEXT", "MiB", "HUGE", "FILE")?;
        for text in &self.texts {
            let rest = text.rest.iter().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
            let huge = text.vma.range.len().saturating_sub(rest);
            let name = text.vma.display_path();
            let short = name.rsplit('/').next().unwrap_or_default().shown();
            let rest: Vec<String> = text
                .rest
                .iter()
                .map(|(reason, bytes)| format!("{reason} {}", mib(*bytes)))
                .collect();
            writeln!(
                f,
                "{:<32} {:>7} {:>7}  {short:<22} {}",
                text.vma.range.to_string(),
                mib(text.vma.range.len()),
                mib(huge),
                if rest.is_empty() { "-".to_owned() } else { rest.join(", ") },
            )?;
            for span in &text.spans {
                let Span { range, file_offset, backing, widened_bytes, .. } = span;
                write!(f, "  huge {range} from file offset {file_offset:#x} by {backing}")?;
                if *widened_bytes > 0 {
                    write!(f, ", {} KiB of it no text", widened_bytes >> 10)?;
                }
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

impl Plan {
    /// Returns the plan as one line of JSON. `reason` says why the plan cannot be carried out, and
    /// is `None` if it can. `objects` is the plan for shared objects that are not mapped yet, at
    /// the addresses in their files.
    ///
    /// # Panics
    /// Never: a plan holds nothing that JSON cannot.
    pub fn to_json(&self, reason: Option<Reason>, objects: Option<&Self>) -> String {
        #[derive(Serialize)]
        struct Text {
            #[serde(flatten)]
            range: AddrRange,
            path: String,
            rest: Vec<crate::coverage::Rest>,
        }
        #[derive(Serialize)]
        struct Move {
            from: AddrRange,
            to: AddrRange,
        }
        #[derive(Serialize)]
        struct Json<'a> {
            schema: u32,
            kind: &'static str,
            backing: Option<Backing>,
            rebase: Option<Move>,
            reason: Option<Reason>,
            text_bytes: u64,
            huge_bytes: u64,
            widened_bytes: u64,
            spans: Vec<&'a Span>,
            texts: Vec<Text>,
            #[serde(skip_serializing_if = "Option::is_none")]
            objects: Option<Objects<'a>>,
        }
        #[derive(Serialize)]
        struct Objects<'a> {
            text_bytes: u64,
            huge_bytes: u64,
            widened_bytes: u64,
            spans: Vec<&'a Span>,
            texts: Vec<Text>,
        }
        let text = |text: &TextPlan| Text {
            range: text.vma.range,
            path: text.vma.display_path(),
            rest: text
                .rest
                .iter()
                .map(|&(reason, bytes)| crate::coverage::Rest { reason, bytes })
                .collect(),
        };
        let json = Json {
            schema: crate::report::SCHEMA,
            kind: "plan",
            backing: self.main_backing(),
            rebase: self.rebase.as_ref().map(|rebase| Move { from: rebase.from, to: rebase.to }),
            reason,
            text_bytes: self.text_bytes(),
            huge_bytes: self.huge_bytes(),
            widened_bytes: self.widened_bytes(),
            spans: self.spans().collect(),
            texts: self.texts.iter().map(text).collect(),
            objects: objects.map(|objects| Objects {
                text_bytes: objects.text_bytes(),
                huge_bytes: objects.huge_bytes(),
                widened_bytes: objects.widened_bytes(),
                spans: objects.spans().collect(),
                texts: objects.texts.iter().map(text).collect(),
            }),
        };
        escape::json(&json)
    }
}
