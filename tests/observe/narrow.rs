//! On a terminal of 80 columns no line of a table or a report is longer, and nothing is missing. A pipe gets unchanged
//! lines.

use support::attaching::{attach, held, ok, small};
use support::pty::Pty;
use support::{Kind, Run};

const END: &str = "that is all";

/// Returns what a command prints on a terminal with 80 columns.
fn on_a_terminal(args: &[&str]) -> String {
    shown_of(support::tiexecctl(), args)
}

fn shown_of(program: &std::path::Path, args: &[&str]) -> String {
    let mut pty = Pty::new();
    pty.resize(25, 80);
    let tty = pty.slave_fd();
    let command = Run::new(program, args).plain().stdio([tty, tty, tty]);
    let script = format!("\"$@\"; echo {END}");
    command.behind(["sh", "-c", &script, "sh"]).start().finish();
    pty.wait_for(END).replace('\r', "")
}

#[test]
fn tables_fit() {
    let copy = small("hold", Kind::DynamicNoPie);
    // The path is as long as those of libraries.
    let name = "java-runtime/lib";
    let directory = copy.dir().join(name);
    std::fs::create_dir_all(&directory).expect("a directory");
    let program = directory.join("hold");
    std::fs::copy(copy.path(), &program).expect("a copy");
    let held = Run::new(&program, ["7"]).plain().hold();
    let pid = held.pid().to_string();
    let path = program.to_str().expect("UTF-8");
    let commands: [&[&str]; 6] = [
        &["attach", "--backing=image", &pid],
        &["inspect", &pid],
        &["warm", "--check", path],
        &["attach", "--dry-run", &pid],
        &["doctor", &pid],
        &["doctor"],
    ];
    for command in commands {
        let said = on_a_terminal(command);
        for line in said.lines() {
            // A fix is not folded, and no word is cut.
            let whole = line.trim().starts_with("fix: ") || !line.trim().contains(' ');
            assert!(line.chars().count() <= 80 || whole, "{command:?}: {line}\nin {said}");
        }
    }
    // The terminal shows the same words as the unfolded lines of a pipe.
    let narrow = on_a_terminal(&["inspect", &pid]);
    let wide = Run::new(support::tiexecctl(), ["inspect", &pid]).plain().output().out();
    assert!(wide.lines().any(|line| line.chars().count() > 80), "{wide}");
    for word in wide.split_whitespace() {
        assert!(narrow.split_whitespace().any(|there| there == word), "no {word} in {narrow}");
    }
    held.finish().assert_code(7);
}

#[test]
fn a_plan_of_a_start_fits() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join("a-program-with-a-name-as-long-as-that-of-a-library");
    std::fs::copy(support::program("hold", Kind::DynamicPie), &program).expect("a copy");
    let said = shown_of(support::tiexec(), &["--dry-run", program.to_str().expect("UTF-8")]);
    assert!(said.contains("REST BECAUSE"), "{said}");
    for line in said.lines() {
        assert!(line.chars().count() <= 80, "{line}\nin {said}");
    }
}

#[test]
fn json_is_one_line() {
    let copy = small("hold", Kind::DynamicNoPie);
    let held = held(&copy);
    ok(&attach(held.pid()));
    let said = on_a_terminal(&["inspect", "--json", &held.pid().to_string()]);
    let line = said.lines().next().expect("a line");
    assert!(line.starts_with('{') && line.ends_with('}'), "{said}");
    held.finish().assert_code(7);
}
