//! A program that searches its own maps for its file finds the file, unless its text is a copy. In that case `inspect`
//! and `doctor` report it.

use support::attaching::{ctl, json, ok, revert, small};
use support::fresh::{NO_HUGE_FOLIOS, huge_folios};
use support::{Fresh, Held, Kind, Run, program, require};

const NONE: [&str; 0] = [];
const RIGHT: &str = "name right exe right";

/// Returns the findings of `inspect` and of the doctor on its maps.
fn told(held: &Held) -> (String, bool) {
    let pid = held.pid().to_string();
    let report = json(ok(&ctl(["inspect", "--json", &pid])));
    let doctor = ctl(["doctor", "--json", &pid]);
    let findings = json(&doctor)["findings"].as_array().expect("findings").clone();
    let found = findings.into_iter().find(|finding| finding["thing"] == "maps").expect("maps");
    (report["maps"].as_str().unwrap_or("nothing").to_owned(), found["level"] == "warn")
}

/// Returns the program's findings now.
fn asked(held: &mut Held) -> String {
    let before = held.out_text().len();
    held.write(b"\n");
    held.wait_more();
    held.out_text()[before..].trim().to_owned()
}

#[test]
fn a_copy_misleads_it_and_that_is_said() {
    let copy = small("reads_maps", Kind::DynamicNoPie);
    let mut held = Run::new(copy.path(), NONE).plain().start();
    held.wait_line("ready");
    assert!(held.out_text().contains(RIGHT), "{}", held.out_text());
    assert_eq!(told(&held), ("nothing".into(), false));
    let pid = held.pid().to_string();
    ok(&ctl(["attach", "--backing=image", &pid]));
    assert_eq!(asked(&mut held), "name wrong exe wrong");
    assert_eq!(told(&held), ("show the copy".into(), true));
    ok(&revert(held.pid()));
    assert_eq!(asked(&mut held), RIGHT);
    assert_eq!(told(&held), ("nothing".into(), false));
    held.finish().assert_code(7);
}

#[test]
fn on_the_page_cache_it_is_right() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    let copy = Fresh::cold(&program("reads_maps", Kind::DynamicPie));
    let mut held = Run::new(copy.path(), NONE).options(["--backing=pagecache"]).start();
    held.wait_line("ready");
    assert!(held.coverage().huge > 0, "{:?}", held.coverage());
    assert!(held.out_text().contains(RIGHT), "{}", held.out_text());
    assert_eq!(told(&held), ("ok".into(), false));
    held.finish().assert_code(7);
}
