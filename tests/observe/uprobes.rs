//! Uprobes in text on the page cache fire, whether they were set before or after the launch. A copy of the text loses
//! them, and `inspect` reports it.

use support::traced::{ALL, By};
use support::uprobe::{Uprobe, call, events};
use support::{is_root, require};

fn fires(by: By) {
    require!(is_root(), "uprobes need root");
    require!(
        events().exists(),
        "no uprobe_events: tracefs is not mounted, or the kernel has no uprobes"
    );
    let traced = by.traced();
    require!(traced.is_some(), "no {by:?} on this machine");
    let traced = traced.expect("just looked");
    let expected = |calls: usize| if by.is_the_file() { calls } else { 0 };

    let mut earlier = traced.hold();
    let offset = earlier.said("offset").and_then(|o| u64::from_str_radix(&o, 16).ok());
    let probe =
        Uprobe::set(&format!("{by:?}"), traced.copy.path(), offset.expect("where its function is"));
    require!(probe.is_some(), "the kernel takes no uprobe here");
    let probe = probe.expect("just looked");
    call(&mut earlier, 3);
    assert_eq!(probe.new_hits(), expected(3), "{by:?}: set after the launch");

    // The test does not check for huge text, because the page with the probe is a private copy and splits the huge
    // page.
    let mut later = traced.run().hold();
    call(&mut later, 2);
    assert_eq!(probe.new_hits(), expected(2), "{by:?}: set before the launch");
    let mut plain = traced.run().plain().hold();
    call(&mut plain, 4);
    assert_eq!(probe.new_hits(), 4, "a plain one");

    drop(probe);
    for held in [earlier, later, plain] {
        // The text is unchanged, because the program checks all of it.
        held.finish().assert_code(7);
    }
}

#[test]
fn in_text_on_each_backing() {
    for by in ALL {
        fires(by);
    }
}
