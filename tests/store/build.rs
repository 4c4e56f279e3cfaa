//! An image of the store equals its original, byte for byte, in huge pages, and tools read it like the original, even
//! if a builder dies at any instant.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use support::child::eventually;
use support::edges::text_bytes;
use support::extent::{met, rounds};
use support::store::{
    self, IMAGES, Load, Mapped, add, ctl, json, loads, names, own_run, readelf, set_up, text_pages,
};
use support::{Kind, Public, Random, installed, is_root, pmd_size, program, require};

/// The large programs and libraries that exist on this machine.
fn real_files() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        ["node", "prometheus", "mariadbd", "gdb"].into_iter().filter_map(installed).collect();
    let under = |directory: &Path, name: &str| {
        std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).find(
            |path| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(name)),
        )
    };
    let java = installed("java").and_then(|java| java.canonicalize().ok());
    files.extend(
        java.map(|java| java.with_file_name("../lib/server/libjvm.so")).filter(|f| f.exists()),
    );
    let rustc = Command::new("rustc").args(["--print", "sysroot"]).output();
    let sysroot =
        rustc.ok().map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    files.extend(sysroot.and_then(|root| under(&Path::new(&root).join("lib"), "librustc_driver")));
    // Debian's node has its text there.
    let libraries = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    files.extend(under(Path::new(&libraries), "libnode.so"));
    let files = files.iter().filter_map(|file| file.canonicalize().ok());
    files.filter(|file| text_bytes(file) >= pmd_size()).collect()
}

fn same_tool_output(tool: &[&str], original: &Path, image: &Path) {
    let output = |file: &Path| {
        let output = Command::new(tool[0]).args(&tool[1..]).arg(file).output().expect(tool[0]);
        let text =
            String::from_utf8_lossy(&output.stdout).replace(&*file.to_string_lossy(), "FILE");
        (output.status.code(), text)
    };
    assert!(
        output(original) == output(image),
        "{tool:?} {} {}",
        original.display(),
        image.display()
    );
}

/// The lines of `readelf` without the parts that must differ: offsets, and the file's name.
fn sections(file: &Path) -> Vec<Vec<String>> {
    let lines = readelf(&["-SW"], file).replace("[ ", "[");
    let words = lines.lines().filter(|line| line.trim_start().starts_with('[')).map(|line| {
        let mut words: Vec<String> = line.split_ascii_whitespace().map(str::to_owned).collect();
        if words.len() > 5 {
            // Number, name, type, address, offset; a section without a name has one word less.
            let offset = if words[1] == "NULL" { 3 } else { 4 };
            words.remove(offset);
        }
        words
    });
    words.collect()
}

fn build_id(file: &Path) -> Option<String> {
    let text = readelf(&["-n"], file);
    text.lines().find_map(|line| line.trim().strip_prefix("Build ID: ").map(str::to_owned))
}

/// The memory that an image may take: text in whole huge pages, what tools read, and headers.
fn needed(file: &Path) -> u64 {
    let texts = loads(file).into_iter().filter(|load| load.text);
    let text: u64 = texts.map(|text| text.size + 2 * pmd_size()).sum();
    let hex = |word: &String| u64::from_str_radix(word, 16).ok();
    let read = sections(file).into_iter().filter(|words| {
        // Number, name, type, address, size, size of an entry, and, if there are any, flags.
        let loaded = words.len() > 9 && words[6].contains('A');
        let read = ["SYM", "STRTAB", "HASH", "VER", "DYNAMIC", "NOTE"];
        let table = read.iter().any(|kind| words.get(2).is_some_and(|word| word.contains(kind)));
        let named = [".eh_frame", ".eh_frame_hdr", ".gopclntab", ".rela.plt"];
        !loaded || table || words.get(1).is_some_and(|name| named.contains(&name.as_str()))
    });
    let in_file = read.filter(|words| words.get(2).is_some_and(|kind| kind != "NOBITS"));
    let read: u64 = in_file.filter_map(|words| words.get(4).and_then(hex)).sum();
    text + read + (1 << 20)
}

fn assert_is_image(original: &Path, image: &Path) {
    let what = original.display();
    let (old, new) =
        (std::fs::read(original).expect("original"), std::fs::read(image).expect("image"));
    let (old_loads, new_loads) = (loads(original), loads(image));
    assert_eq!(old_loads.len(), new_loads.len(), "{what}");
    assert!(!old_loads.is_empty(), "{what}");
    let is_fixed = readelf(&["-h"], original).contains("EXEC (");
    let is_library = !is_fixed && !readelf(&["-h"], original).contains("Executable");
    let texts: Vec<&Load> = new_loads.iter().filter(|load| load.text).collect();
    if let ([text], false) = (&texts[..], is_fixed || is_library) {
        // The image has as many whole huge pages as the length of the text allows.
        let page = |at: u64| at & !0xfff;
        let (start, end) = (page(text.offset), page(text.offset + text.size + 0xfff));
        let whole = (end / pmd_size()).saturating_sub(start.div_ceil(pmd_size()));
        assert_eq!(whole, (end - start) / pmd_size(), "{what}: {text:x?}");
    }
    let has_own_offsets = old_loads
        .iter()
        .zip(&new_loads)
        .all(|(old_load, new_load)| old_load.offset == new_load.offset);
    // Profilers compute addresses in the JVM from the offsets of its mappings.
    assert!(has_own_offsets || !original.ends_with("libjvm.so"), "{what}: {new_loads:x?}");
    for (old_load, new_load) in old_loads.iter().zip(&new_loads) {
        assert_eq!((old_load.vaddr, old_load.size), (new_load.vaddr, new_load.size), "{what}");
        // A launch moves the program so that the image can be mapped. A program with fixed addresses stays in place.
        let shift = |load: &Load| load.offset.wrapping_sub(load.vaddr) % pmd_size();
        let wanted = if is_fixed { 0 } else { shift(texts[0]) };
        if new_load.text || !has_own_offsets {
            assert_eq!(shift(new_load), wanted, "{what}: {new_load:x?}");
        }
        let part = |offset: u64| offset as usize..(offset + old_load.size) as usize;
        let (was, is) = (&old[part(old_load.offset)], &new[part(new_load.offset)]);
        if new_load.text {
            assert!(was == is, "{what}: {new_load:x?}");
        }
        // Data is a hole.
        let kept = was.chunks(4096).zip(is.chunks(4096)).all(|(was, is)| {
            was == is || was.iter().zip(is).all(|(was, is)| was == is || *is == 0)
        });
        assert!(kept, "{what}: {new_load:x?}");
    }
    assert_eq!(sections(original), sections(image), "{what}");
    for tool in [&["nm"][..], &["nm", "-D"], &["readelf", "--dyn-syms", "-W"], &["size", "-A"]] {
        same_tool_output(tool, original, image);
    }
    // Complaints of readelf about the original do not count.
    let complaints = |file: &Path| {
        let text = readelf(&["-lSW"], file);
        text.lines().filter(|l| l.contains("Warning") || l.contains("Error")).count()
    };
    assert_eq!(complaints(image), complaints(original), "{}", readelf(&["-lSW"], image));
    match build_id(original) {
        Some(id) => {
            // perf keeps one file for each build ID, so other offsets need another ID.
            let its = build_id(image).expect("a build ID");
            assert_eq!(its == id, has_own_offsets, "{what}: {id} {its}");
            assert_eq!(its.len(), id.len(), "{what}: {id} {its}");
        }
        None => assert_eq!(build_id(image), None, "{what}"),
    }
}

/// A program whose section headers lie a tebibyte behind it. An image with the file's offsets would hash all that.
#[test]
fn a_file_with_a_long_hole() {
    require!(is_root(), "a mount namespace needs root");
    own_run();
    set_up("1G");
    let public = Public::new();
    let path = public.add(&program("hold", Kind::DynamicNoPie), "hold", 0o755);
    let file = std::fs::File::options().write(true).open(&path).expect("an own file");
    let far: u64 = 1 << 40;
    file.write_all_at(&far.to_le_bytes(), 40).expect("an own file");
    file.set_len(far + (1 << 20)).expect("a file system with holes");
    drop(file);
    let image = add(&path);
    let len = image.metadata().expect("an image").len();
    assert!(len < 4 << 30, "{len}");
}

#[test]
fn images_of_real_programs() {
    require!(is_root(), "a mount namespace needs root");
    require!(installed("readelf").is_some(), "no readelf (binutils)");
    own_run();
    set_up("1G");
    let public = Public::new();
    let files = real_files();
    require!(!files.is_empty(), "no large program here");
    for file in files {
        // Some of these files lie where not all users may read them.
        let copy = public.add(&file, &file.file_name().expect("a name").to_string_lossy(), 0o755);
        let image = add(&copy);
        assert_is_image(&copy, &image);
        let pages = text_pages(&image);
        assert!(pages.len() >= 2, "{}: {pages:x?}", file.display());
        for offset in pages {
            assert_eq!(
                Mapped::page(&image, offset).huge(),
                pmd_size(),
                "{} {offset:#x}",
                file.display()
            );
        }
        // Symbols take no huge pages, and data takes none at all.
        let memory = image.metadata().expect("image").blocks() * 512;
        let most = needed(&copy);
        assert!(memory <= most, "{}: {memory} of {most}", file.display());
        ctl(["prune", "--all-unused"]).assert_code(0);
        std::fs::remove_file(copy).expect("an own file");
    }
}

#[test]
fn programs_however_linked() {
    require!(is_root(), "a mount namespace needs root");
    own_run();
    set_up("1G");
    let public = Public::new();
    for kind in support::programs::COMMON {
        let copy = public.add(&program("hold", kind), &format!("{kind:?}"), 0o755);
        let image = add(&copy);
        assert_is_image(&copy, &image);
        assert!(text_pages(&image).len() >= 2, "{kind:?}");
        for offset in text_pages(&image) {
            assert_eq!(Mapped::page(&image, offset).huge(), pmd_size(), "{kind:?} {offset:#x}");
        }
    }
}

#[test]
fn an_image_belongs_to_root_and_is_written_by_nobody() {
    require!(is_root(), "a mount namespace needs root");
    own_run();
    set_up("256M");
    let public = Public::new();
    let copy = public.add(&program("hold", Kind::DynamicPie), "it is: a name", 0o755);
    let image = add(&copy);
    let name = image.file_name().expect("a name").to_string_lossy().into_owned();
    assert!(name.starts_with("it_is__a_name:") && name.ends_with(".tiexec"), "{name}");
    assert_eq!(names(IMAGES), [name.clone(), format!("{name}.json")]);
    let meta = image.metadata().expect("an image");
    assert_eq!((meta.mode(), meta.uid(), meta.nlink()), (0o10_0444, 0, 1));
    let sidecar = std::fs::read(format!("{}.json", image.display())).expect("a sidecar");
    let sidecar: serde_json::Value = serde_json::from_slice(&sidecar).expect("JSON");
    assert_eq!(sidecar["original"], *copy.to_string_lossy());
    assert_eq!(sidecar["key"]["inode"], copy.metadata().expect("a copy").ino());
    assert_eq!(sidecar["image_size"], meta.len());
    // The second time, `add` finds the image and does not build it.
    assert_eq!(add(&copy), image);
    assert_eq!(image.metadata().expect("an image").ino(), meta.ino());
    ctl(["verify"]).assert_code(0);
}

#[test]
fn a_changed_original_has_another_image() {
    require!(is_root(), "a mount namespace needs root");
    own_run();
    set_up("256M");
    let public = Public::new();
    let copy = public.add(&program("hold", Kind::DynamicPie), "changing", 0o755);
    let first = add(&copy);
    let state = |image: &Path| {
        let list = json(&["list", "--json"]);
        let all = list["images"].as_array().expect("images").clone();
        let name = image.file_name().expect("a name").to_string_lossy().into_owned();
        all.iter().find(|entry| entry["name"] == *name).map(|entry| entry["state"].clone())
    };
    assert_eq!(state(&first), Some("ok".into()));
    support::chmod(&copy, 0o555);
    assert_eq!(state(&first), Some("outdated".into()));
    let second = add(&copy);
    assert_ne!(first, second);
    // `prune` removes the image from the directory. A process that maps it keeps it, and maps shows it as deleted.
    let held = Mapped::page(&first, text_pages(&first)[0]);
    ctl(["prune"]).assert_code(0).assert_silent();
    assert_eq!((state(&first), state(&second)), (None, Some("ok".into())));
    assert_eq!(held.huge(), pmd_size());
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    assert!(maps.contains(&format!("{} (deleted)", first.display())), "{maps}");
}

#[test]
fn of_two_builders_one_builds_and_the_other_uses_it() {
    require!(is_root(), "a mount namespace needs root");
    own_run();
    set_up("256M");
    let public = Public::new();
    let copy = public.add(&program("hold", Kind::DynamicPie), "wanted", 0o755);
    for _ in 0..rounds(8) {
        let builders: Vec<_> =
            (0..4).map(|_| store::started(&[], &["add".as_ref(), copy.as_ref()])).collect();
        let images: Vec<String> = builders
            .into_iter()
            .map(|builder| {
                let done = builder.finish();
                done.assert_code(0).assert_silent();
                done.out()
            })
            .collect();
        assert!(images.windows(2).all(|pair| pair[0] == pair[1]), "{images:?}");
        assert_eq!(names(IMAGES).len(), 2, "{:?}", names(IMAGES));
        ctl(["prune", "--all-unused"]).assert_code(0);
    }
}

#[test]
fn who_comes_second_waits_for_the_first() {
    require!(is_root(), "a mount namespace needs root");
    own_run();
    set_up("256M");
    let public = Public::new();
    let copy = public.add(&program("hold", Kind::DynamicPie), "wanted", 0o755);
    // An image under its temporary name, locked as its builder does.
    let image = add(&copy);
    let temporary = image.with_file_name(format!(".{}.new", names(IMAGES)[0]));
    std::fs::rename(&image, &temporary).expect("a rename");
    support::chmod(&temporary, 0o600);
    let builder = std::fs::File::options().write(true).open(&temporary).expect("open");
    builder.lock().expect("flock");
    let inode = builder.metadata().expect("fstat").ino();
    let waiting = store::started(&[], &["add".as_ref(), copy.as_ref()]);
    // The waiting command sleeps after each check.
    let looked = || {
        let sleeps = support::smaps::status_field(waiting.pid(), "voluntary_ctxt_switches");
        sleeps.and_then(|count| count.parse().ok()).is_some_and(|count: u64| count > 20)
    };
    eventually("the second builder waits", looked);
    assert!(!image.exists());
    support::chmod(&temporary, 0o444);
    std::fs::rename(&temporary, &image).expect("a rename");
    waiting.finish().assert_code(0).assert_silent();
    assert_eq!(image.metadata().expect("an image").ino(), inode, "used, not built again");
    assert_eq!(names(IMAGES).len(), 2, "{:?}", names(IMAGES));
}

#[test]
fn a_builder_killed_at_any_moment_leaves_no_half_image() {
    require!(is_root(), "a mount namespace needs root");
    own_run();
    set_up("512M");
    let public = Public::new();
    let file = installed("node").unwrap_or_else(|| program("hold", Kind::DynamicPie));
    let copy = public.add(&file.canonicalize().expect("a path"), "wanted", 0o755);
    let begin = std::time::Instant::now();
    add(&copy);
    let whole = begin.elapsed();
    ctl(["prune", "--all-unused"]).assert_code(0);
    let mut random = Random::new();
    let (mut half, mut done) = (0, 0);
    let rounds = rounds(20);
    for _ in 0..rounds {
        let builder = store::started(&[], &["add".as_ref(), copy.as_ref()]);
        let moment = random.below(whole.as_micros() as u64);
        std::thread::sleep(std::time::Duration::from_micros(moment));
        builder.signal(libc::SIGKILL);
        builder.finish();
        let left = names(IMAGES);
        half += usize::from(
            left.iter().any(|name| name.starts_with('.') && name.ends_with(".tiexec.new")),
        );
        if left.iter().any(|name| name.ends_with(".tiexec")) {
            // An image with its final name is complete.
            done += 1;
            ctl(["verify"]).assert_code(0).assert_silent();
            ctl(["prune", "--all-unused"]).assert_code(0);
        }
    }
    println!("{done} killed after the rename");
    met(half, rounds, "killed half way");
    // The next builder takes over the leftovers, and leaves only the image.
    add(&copy);
    ctl(["verify"]).assert_code(0).assert_silent();
    assert_eq!(names(IMAGES).len(), 2, "{:?}", names(IMAGES));
}

#[test]
fn what_has_no_image_is_said() {
    require!(is_root(), "a mount namespace needs root");
    own_run();
    set_up("64M");
    let public = Public::new();
    let script = public.path().join("script");
    support::write_program(&script, b"#!/bin/sh\n", 0o755);
    let cut = public.path().join("cut");
    let whole = std::fs::read(program("hold", Kind::DynamicPie)).expect("a program");
    support::write_program(&cut, &whole[..whole.len() / 2], 0o755);
    for (file, reason) in [
        (script.as_path(), "foreign_image"),
        (&cut, "odd_file"),
        (Path::new("/dev/null"), "odd_file"),
        (Path::new("/no/such/file"), "read_failed"),
    ] {
        let done = ctl(["add".as_ref(), file.as_os_str()]);
        done.assert_code(1);
        assert!(done.err().contains(reason), "{done}");
    }
    assert_eq!(names(IMAGES), [""; 0]);
    // If only some of several files succeed, there is a separate exit status.
    let sound = public.add(&program("hold", Kind::DynamicPie), "sound", 0o755);
    let done = ctl(["add".as_ref(), "--json".as_ref(), sound.as_os_str(), script.as_os_str()]);
    done.assert_code(3);
    let report: serde_json::Value = serde_json::from_str(&done.out()).expect("JSON");
    assert!(report["images"][0]["image"].is_string(), "{report}");
    assert_eq!(report["images"][1]["reason"], "foreign_image", "{report}");
}
