//! Revert restores exactly all that attach accepts: in generated worlds of files, layouts, offsets and protections, whose files
//! change while a copy is in their place.

use std::path::{Path, PathBuf};

use support::attaching::{attach, ctl, descriptors, files_joined, json, revert, switched};
use support::child::eventually;
use support::{Held, Kind, Random, Run, pmd_size, program, program_big, rounds};

/// Bytes of a base page; the worlds are made for such.
const PAGE: u64 = 4096;

/// One mapping of a world.
struct Mapping {
    file: PathBuf,
    offset: u64,
    len: u64,
    at: u64,
    protection: &'static str,
}

/// The change of the files between attach and revert.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Meanwhile {
    Nothing,
    Deleted,
    Replaced,
    Shortened,
    Lengthened,
    Rewritten,
}

fn starts(mappings: &[Mapping]) -> Held {
    let args: Vec<String> = mappings
        .iter()
        .flat_map(|Mapping { file, offset, len, at, protection }| {
            let file = file.to_string_lossy().into_owned();
            [
                file,
                format!("{offset:x}"),
                format!("{len:x}"),
                format!("{at:x}"),
                (*protection).to_owned(),
            ]
        })
        .collect();
    Run::new(program("world", Kind::DynamicNoPie), args).plain().hold()
}

/// Asks the program for a checksum of its mappings.
fn sum(held: &mut Held, when: &str) -> String {
    held.write(format!("{when}\n").as_bytes());
    eventually("it says the checksum", || held.has_said(when));
    held.said(when).expect("it was said")
}

/// LOAD segments of an x86-64 or aarch64 ELF file: offset, vaddr, size in the file, and flags.
fn loads(elf: &[u8]) -> Vec<(u64, u64, u64, u32)> {
    let number = |at: usize, len: usize| {
        elf[at..at + len].iter().rev().fold(0_u64, |all, &byte| all << 8 | u64::from(byte))
    };
    let (table, count) = (number(32, 8) as usize, number(56, 2) as usize);
    let headers = (0..count).map(|index| table + index * 56);
    headers
        .filter(|&at| number(at, 4) == 1)
        .map(|at| {
            (number(at + 8, 8), number(at + 16, 8), number(at + 32, 8), number(at + 4, 4) as u32)
        })
        .collect()
}

/// A random multiple of a page below a huge page; often none.
fn shift(random: &mut Random) -> u64 {
    match random.below(3) {
        0 => PAGE * random.below(pmd_size() / PAGE),
        _ => 0,
    }
}

/// Adds the mappings of one more file from `at` on. Returns the first address that is free beyond them.
fn add_file(
    random: &mut Random,
    dir: &Path,
    index: usize,
    at: u64,
    world: &mut Vec<Mapping>,
) -> u64 {
    let (pmd, file) = (pmd_size(), dir.join(format!("file{index}")));
    let elf = std::fs::read(program_big("hold", Kind::DynamicPie, 6)).expect("an own program");
    let segments = loads(&elf);
    let kind = random.below(5);
    let mut content = elf;
    match kind {
        // No ELF file, or one whose headers say little.
        0 => content.iter_mut().take(64).for_each(|byte| *byte ^= 0x55),
        1 => content.iter_mut().skip(64).take(512).for_each(|byte| *byte = 0),
        _ => {}
    }
    std::fs::write(&file, &content).expect("a file");
    let length = (content.len() as u64).next_multiple_of(PAGE);
    let mut add = |offset: u64, len: u64, at: u64, protection: &'static str| {
        let offset = offset & !(PAGE - 1);
        let len = len.min(length.saturating_sub(offset)).next_multiple_of(PAGE);
        if len > 0 {
            world.push(Mapping { file: file.clone(), offset, len, at, protection });
        }
    };
    let bias = at + shift(random);
    if random.below(2) == 0 {
        // As the kernel maps it, or without some of its segments.
        let without = random.below(6) as usize;
        for (number, &(offset, vaddr, size, flags)) in segments.iter().enumerate() {
            let protection = match flags & 3 {
                1 => "rx",
                2 | 3 => "rw",
                _ => "r",
            };
            let head = vaddr & (PAGE - 1);
            if number != without {
                add(offset, size + head, bias + vaddr - head, protection);
            }
        }
    } else {
        // By hand: text at any offset and place, and perhaps something of the file beside it or far away.
        let offset = match random.below(3) {
            0 => 0,
            1 => PAGE * random.below(pmd / PAGE),
            _ => pmd * random.below(3),
        };
        let len = match random.below(3) {
            0 => pmd,
            1 => 2 * pmd,
            _ => 2 * pmd + PAGE * random.below(pmd / PAGE),
        };
        let text = bias.next_multiple_of(pmd) + shift(random);
        add(offset, len, text, "rx");
        match random.below(5) {
            0 => add(0, PAGE, text + 3 * pmd + PAGE, "r"),
            1 => add(0, 4 * PAGE, text + (1 << 32), "rw"),
            2 => add(offset + pmd, pmd + PAGE, text + 8 * pmd, "rx"),
            3 => add(offset, PAGE, text + 8 * pmd, "-"),
            _ => {}
        }
    }
    at + 32 * pmd
}

/// Changes the files of a world.
fn change(world: &[Mapping], meanwhile: Meanwhile) {
    let mut files: Vec<&PathBuf> = world.iter().map(|mapping| &mapping.file).collect();
    files.dedup();
    for file in files {
        let open = || std::fs::File::options().read(true).write(true).open(file).expect("a file");
        let len = std::fs::metadata(file).expect("a file").len();
        match meanwhile {
            Meanwhile::Nothing => {}
            Meanwhile::Deleted => std::fs::remove_file(file).expect("a file"),
            Meanwhile::Replaced => {
                let new = file.with_extension("new");
                std::fs::write(&new, b"another file").expect("a file");
                std::fs::rename(new, file).expect("the same directory");
            }
            Meanwhile::Shortened => open().set_len(len / 2).expect("a file"),
            Meanwhile::Lengthened => open().set_len(len + pmd_size()).expect("a file"),
            Meanwhile::Rewritten => {
                let content = std::fs::read(file).expect("a file");
                std::os::unix::fs::FileExt::write_all_at(&open(), &content, 0).expect("room");
            }
        }
    }
}

/// The mappings and descriptors of a process.
fn left_of(pid: i32) -> (Vec<String>, Vec<String>) {
    (files_joined(pid), descriptors(pid))
}

/// Makes a world, attaches, changes the files, and reverts. Returns whether there was a copy.
fn one_world(random: &mut Random, edges: &str) -> bool {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut world, mut at) = (Vec::new(), 0x10_0000_0000);
    for index in 0..=random.below(3) as usize {
        at = add_file(random, dir.path(), index, at, &mut world);
    }
    let mut held = starts(&world);
    let pid = held.pid();
    let (before, first) = (left_of(pid), sum(&mut held, "first"));
    let attached = match random.below(2) {
        0 => attach(pid),
        _ => ctl(["attach", "--json", &format!("--edges={edges}"), &pid.to_string()]),
    };
    let was = switched(pid);
    assert_eq!(sum(&mut held, "attached"), first, "{attached}");
    let kinds = [
        Meanwhile::Nothing,
        Meanwhile::Deleted,
        Meanwhile::Replaced,
        Meanwhile::Shortened,
        Meanwhile::Lengthened,
        Meanwhile::Rewritten,
    ];
    let meanwhile = kinds[random.below(kinds.len() as u64) as usize];
    change(&world, meanwhile);
    // A shortened file has lost its text for the program too, wherever no copy is in its place.
    let changed = sum(&mut held, "changed");
    let reverted = revert(pid);
    let left = switched(pid);
    if meanwhile == Meanwhile::Shortened {
        // The file has lost the bytes that the copy holds. The revert leaves the copy, and says why.
        assert!(left == 0 || reverted.err().contains("modified_text"), "{reverted}");
        assert!(sum(&mut held, "reverted") == changed || left < was, "{reverted}");
    } else {
        reverted.assert_code(0).assert_silent();
        assert_eq!(json(&reverted)["failure"], serde_json::Value::Null, "{reverted}");
        assert_eq!(left, 0, "{meanwhile:?}: {reverted}");
        assert_eq!(sum(&mut held, "reverted"), first, "{meanwhile:?}: {reverted}");
        assert_eq!(left_of(pid), before, "{meanwhile:?}: {reverted}");
    }
    held.finish().assert_code(7);
    was > 0
}

#[test]
fn whatever_attach_accepts_revert_restores() {
    let mut random = Random::new();
    let mut taken = 0;
    for round in 0..rounds(24) {
        let edges = ["conservative", "pad"][round % 2];
        taken += usize::from(one_world(&mut random, edges));
    }
    support::extent::met(taken, rounds(24), "worlds had a copy");
}
