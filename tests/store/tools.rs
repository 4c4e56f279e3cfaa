//! A profile of a program that runs from an image has the same names as a profile of the original.

use std::path::{Path, PathBuf};
use std::process::Command;

use support::store::{add, loads, own_run, set_up, text_pages};
use support::{Kind, Public, installed, is_root, pmd_size, program, require};

/// The address of the symbol, from `nm`.
fn address(file: &Path, symbol: &str) -> u64 {
    let output = Command::new("nm").arg(file).output().expect("nm");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.ends_with(&format!(" {symbol}")));
    let line = line.unwrap_or_else(|| panic!("{symbol} in {}: {output:?}", file.display()));
    u64::from_str_radix(line.split(' ').next().expect("an address"), 16).expect("hexadecimal")
}

/// A program, its image, and the arguments that make it run from there.
struct Setting {
    original: PathBuf,
    image: PathBuf,
    arguments: Vec<String>,
    huge: u64,
}

fn setting(public: &Public) -> Setting {
    let original = public.add(&program("mapped_image", Kind::DynamicNoPie), "profiled", 0o755);
    let image = add(&original);
    let (first, count) = (text_pages(&image)[0], text_pages(&image).len() as u64);
    let text = loads(&image)
        .into_iter()
        .find(|load| load.text && load.offset <= first && first < load.offset + load.size);
    let text = text.expect("the segment of the text");
    let start = first - text.offset + text.vaddr;
    let huge = count * pmd_size();
    let symbol = address(&original, "big_middle");
    assert!(start <= symbol && symbol < start + huge, "{symbol:x} in {start:x}, {huge:x} bytes");
    let hex = |number: u64| format!("{number:x}");
    let arguments = vec![image.display().to_string(), hex(start), hex(first), hex(huge)];
    Setting { original, image, arguments, huge }
}

#[test]
fn a_program_runs_from_its_image_in_huge_pages() {
    require!(is_root(), "a mount namespace needs root");
    own_run();
    set_up("64M");
    let public = Public::new();
    let setting = setting(&public);
    let output =
        Command::new(&setting.original).args(&setting.arguments).output().expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains(&format!("huge {}\n", setting.huge)), "{said}");
}

/// Profiles a run. Returns the DSO and the function with the most time, except `main`, whose loop takes about the same
/// time.
fn profile(data: &Path, home: &Path, command: &[&str]) -> Option<(String, String)> {
    let perf = |arguments: &[&str]| {
        let output = Command::new("perf").args(arguments).env("HOME", home).output().expect("perf");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let data = data.to_string_lossy().into_owned();
    let mut record = vec!["record", "-q", "-e", "cpu-clock:u", "-F", "999", "-o", &data, "--"];
    record.extend(command);
    if !perf(&record).0 {
        return None;
    }
    let (_, text) = perf(&["report", "-q", "-i", &data, "--stdio", "--sort", "dso,symbol"]);
    let line = text.lines().find(|line| line.contains('%') && !line.contains("[.] main"));
    let line = line.unwrap_or_else(|| panic!("{text}"));
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    // The symbol follows the mark of user space. More columns may follow.
    let symbol = words.iter().skip_while(|word| **word != "[.]").nth(1);
    Some((words[1].to_owned(), symbol.unwrap_or_else(|| panic!("{line}")).to_string()))
}

#[test]
fn perf_names_functions_of_image_and_original() {
    require!(is_root(), "a mount namespace needs root");
    require!(installed("perf").is_some(), "no perf");
    own_run();
    set_up("64M");
    let public = Public::new();
    let setting = setting(&public);
    let original = setting.original.to_string_lossy().into_owned();
    let data = |name: &str| public.path().join(name);
    // All profiles share one cache of build IDs, which perf keeps in the home directory.
    let home = public.path();
    let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    let want = |dso: &Path| Some((name(dso), "big_middle".to_owned()));
    let before = profile(&data("before"), home, &[&original]);
    require!(before.is_some(), "perf cannot record here");
    assert_eq!(before, want(&setting.original));
    let mut treated = vec![original.as_str()];
    treated.extend(setting.arguments.iter().map(String::as_str));
    assert_eq!(profile(&data("during"), home, &treated), want(&setting.image));
    assert_eq!(profile(&data("after"), home, &[&original]), want(&setting.original));
}

#[test]
fn debuggers_read_the_image_as_the_original() {
    require!(is_root(), "a mount namespace needs root");
    own_run();
    set_up("64M");
    let public = Public::new();
    let setting = setting(&public);
    let main = format!("{:x}", address(&setting.original, "main"));
    let same = |tool: &str, arguments: &[&str]| {
        let run = |file: &Path| {
            let output = Command::new(tool).args(arguments).arg(file).output().expect(tool);
            assert!(output.status.success(), "{tool}: {output:?}");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let (was, is) = (run(&setting.original), run(&setting.image));
        assert!(was.contains("mapped_image.c"), "{was}");
        assert_eq!(was, is, "{tool} {arguments:?}");
    };
    require!(installed("addr2line").is_some(), "no addr2line (binutils)");
    same("addr2line", &["-f", &main, "-e"]);
    require!(installed("gdb").is_some(), "no gdb");
    same("gdb", &["-nx", "-batch", "-ex", "info line main", "-ex", "info scope main"]);
}
