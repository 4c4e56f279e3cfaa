//! `tiexecctl store verify`: checks that images still have the content that their builders wrote.

use std::fmt::Write;

use serde::Serialize;
use tiexec_core::escape::AsShown;
use tiexec_remap::store::integrity::verify;

use super::{all, cannot, print};
use crate::exit;

/// One image, as JSON shows it.
#[derive(Serialize)]
struct Verified {
    path: String,
    original: Option<String>,
    problems: Vec<String>,
}

pub(super) fn run(json: bool) -> u8 {
    let doing = "verify the image store";
    let directories = match all(doing) {
        Ok(directories) => directories,
        Err(status) => return status,
    };
    let mut verified = Vec::new();
    for directory in &directories {
        match verify(directory) {
            Ok(verdicts) => verified.extend(verdicts.into_iter().map(|verdict| Verified {
                path: directory.path.join(&verdict.name).to_string_lossy().into_owned(),
                original: verdict.original,
                problems: verdict.problems,
            })),
            Err(failure) => return cannot(doing, &failure),
        }
    }
    let bad = verified.iter().any(|image| !image.problems.is_empty());
    let status = print(&if json {
        super::list::as_json("store_verify", &[("images", &verified)])
    } else {
        as_text(&verified)
    });
    if bad { exit::FAILED } else { status }
}

fn as_text(verified: &[Verified]) -> String {
    verified.iter().fold(String::new(), |mut text, Verified { path, problems, .. }| {
        let path = path.shown();
        let _infallible = match &problems[..] {
            [] => writeln!(text, "ok    {path}"),
            problems => writeln!(text, "FAIL  {path} {}", problems.join("; ")),
        };
        text
    })
}
