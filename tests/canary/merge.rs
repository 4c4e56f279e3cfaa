//! The combined verdicts of several machines.

use support::attaching::{ctl, verdict_export};

#[test]
fn several_machines_are_surer_than_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let files: Vec<String> = (0..6)
        .map(|at| {
            let file = dir.path().join(format!("{at}.json"));
            let export = verdict_export("ab", &at.to_string(), 1.04 + 0.004 * f64::from(at % 3));
            std::fs::write(&file, export.to_string()).expect("a file");
            file.display().to_string()
        })
        .collect();
    let merge = |files: &[String], more: &[&str]| {
        let words = ["canary", "merge"].into_iter().chain(more.iter().copied());
        ctl(words.chain(files.iter().map(String::as_str)).collect::<Vec<_>>())
    };
    let done = merge(&files, &[]);
    done.assert_code(0).assert_silent();
    assert!(
        done.out().contains("better: 1.044 times (1.0") && done.out().contains("6 hosts"),
        "{done}"
    );
    let two = merge(&files[..2], &[]);
    assert!(two.out().contains("undecided") && two.out().contains("takes 3 hosts"), "{two}");
    // Merged verdicts are stored like others, and exported in the same form.
    let state = dir.path().join("state").display().to_string();
    merge(&files, &["--keep", "--json", "--state-dir", &state]).assert_code(0);
    let kept = ctl(["canary", "export", "--state-dir", &state]);
    let kept = support::attaching::json(&kept);
    assert_eq!(
        (&kept["verdicts"][0]["hosts"], &kept["verdicts"][0]["verdict"]),
        (&6.into(), &"better".into())
    );
    // Too few machines make no claim, which must not take the place of one.
    let done = merge(&files[..2], &["--keep", "--state-dir", &state]);
    done.assert_code(0);
    assert!(done.err().contains("not kept, because of too few hosts: 1"), "{done}");
    assert_eq!(support::attaching::json(&ctl(["canary", "export", "--state-dir", &state])), kept);
}

#[test]
fn other_files_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("x.json");
    for text in ["", "[]", "{\"schema\":2,\"kind\":\"bench\",\"verdicts\":[]}", "\u{1b}[31m"] {
        std::fs::write(&file, text).expect("a file");
        let done = ctl(["canary".as_ref(), "merge".as_ref(), file.as_os_str()]);
        done.assert_code(1);
        assert!(done.err().contains("tiexecctl canary export"), "{done}");
        assert!(!done.err().contains('\u{1b}'), "{done}");
    }
}

/// No command waits forever for a file that the user names.
#[test]
fn a_file_without_an_end_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let fifo = dir.path().join("fifo").display().to_string();
    support::child::tool(&["mkfifo", &fifo]);
    let name = dir.path().display().to_string();
    for path in ["/dev/zero", &fifo, &name] {
        for words in [&["report"][..], &["canary", "merge"], &["rules", "check", "-f"]] {
            let done = ctl([words, &[path]].concat());
            done.assert_code(1);
            assert!(done.err().contains("; fix: "), "{done}");
            let why = if path == fifo {
                "nobody writes to this pipe"
            } else {
                "it is not a regular file"
            };
            assert!(done.err().contains(why), "{done}");
        }
    }
}
