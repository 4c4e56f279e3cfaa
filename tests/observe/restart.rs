//! `inspect`, `doctor` and an attach predict the result of a start by `tiexec`, if that would give more. The start must
//! give that result.

use serde_json::Value;

use support::attaching::{ctl, held, json, small};
use support::smaps::{NO_TEXT_FOR_LARGE, pmd_size};
use support::{Kind, Report, Run, require};

/// The kernel chooses the address of a position-independent program. There, 6 MiB of text have two or three whole huge
/// pages.
#[test]
fn a_program_that_a_start_would_move() {
    require!(pmd_size() <= 2 << 20, "{NO_TEXT_FOR_LARGE}");
    let copy = small("hold", Kind::DynamicPie);
    let path = copy.path().to_string_lossy().into_owned();
    let report = Report::new();
    let run = Run::new(copy.path(), ["7"]).options(["--backing=image"]);
    report.of(&run).hold().finish().assert_code(7);
    let launched = report.read();
    let of_main = |report: &Value| {
        let files = report["files"].as_array().expect("files").clone();
        let main = files.into_iter().find(|file| file["path"] == path.as_str());
        main.unwrap_or_else(|| panic!("{report}"))["huge_bytes"].as_u64().expect("bytes")
    };
    let mut told = 0;
    for _ in 0..6 {
        let held = held(&copy);
        let pid = held.pid().to_string();
        let inspected = json(&ctl(["inspect", "--json", &pid]));
        let (table, advice) = (ctl(["inspect", &pid]).out(), ctl(["doctor", &pid]).out());
        let done = ctl(["attach", "--backing=image", &pid]);
        done.assert_code(0).assert_silent();
        let attached = json(&ctl(["inspect", "--json", &pid]));
        let restart = &inspected["restart"];
        if restart.is_null() {
            assert_eq!(of_main(&attached), of_main(&launched), "{inspected}");
            assert!(!table.contains("a start by tiexec"), "{table}");
        } else {
            told += 1;
            assert_eq!(restart["path"], path.as_str());
            assert_eq!(restart["launch_bytes"], of_main(&launched), "{restart} {launched}");
            assert_eq!(restart["here_bytes"], of_main(&attached), "{restart} {attached}");
            assert_eq!(attached["restart"], *restart);
            let line = format!(
                "MiB of {path} can be huge where it lies; a start by tiexec --backing=image gives 6.0\n"
            );
            assert!(table.contains(&line), "{table}");
            assert!(
                done.out().contains("; a start by tiexec --backing=image gives 6.0 of 6."),
                "{done}"
            );
            assert!(advice.contains("a start by tiexec --backing=image gives 6.0 MiB"), "{advice}");
        }
        held.finish().assert_code(7);
    }
    // One address of thirty is as good without a move.
    assert!(told > 0);
}

#[test]
fn a_program_that_no_start_moves() {
    let copy = small("hold", Kind::DynamicNoPie);
    let held = held(&copy);
    let pid = held.pid().to_string();
    assert!(json(&ctl(["inspect", "--json", &pid]))["restart"].is_null());
    assert!(!ctl(["inspect", &pid]).out().contains("a start by tiexec"));
    held.finish().assert_code(7);
}
