//! Text on the page cache costs no memory: many launched programs together use no more than the same number of plain
//! ones, and V8, which reads and remaps its own text, finds the file's bytes there.

use std::os::unix::fs::FileExt;
use std::path::Path;

use support::attaching::{ctl, json};
use support::fresh::{NO_HUGE_FOLIOS, assert_file_pmd_mapped, collapses_files, huge_folios};
use support::programs::whole_node;
use support::smaps::{Vma, vmas};
use support::{Fresh, Held, Kind, Pinned, Run, installed, program, program_big, require};

const NODE: &str =
    "console.log('ready');process.stdin.on('data',()=>{}).on('end',()=>process.exit(7))";

/// The proportional set size of the mappings of a file, and of all mappings, in bytes.
fn pss(held: &Held, file: &Path) -> (u64, u64) {
    let name = file.to_string_lossy();
    let all = vmas(held.pid());
    let sum = |of_file: bool| {
        let counted = all.iter().filter(|vma| !of_file || vma.path == name);
        counted.map(|vma| vma.counter("Pss")).sum()
    };
    (sum(true), sum(false))
}

/// Runs eight programs at a time. Returns the sums over all of them.
fn eight(run: &Run, file: &Path, launched: bool) -> (u64, u64) {
    let held: Vec<Held> = (0..8).map(|_| run.hold()).collect();
    if launched {
        held.iter().for_each(|held| assert_file_pmd_mapped(held.pid(), file));
    }
    let sums = held.iter().map(|held| pss(held, file));
    let sums = sums.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    for held in held {
        held.finish().assert_code(7);
    }
    sums
}

#[test]
fn eight_nodes_share_their_text() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    let node = whole_node();
    require!(node.is_some(), "no node on PATH whose text is its own");
    let copy = Fresh::copy(&node.expect("just found"));
    let run = Run::new(copy.path(), ["-e", NODE]);
    let (plain_file, plain) = eight(&run.plain(), copy.path(), false);
    let (ours_file, ours) = eight(&run, copy.path(), true);
    println!("plain {plain} (file {plain_file}), launched {ours} (file {ours_file})");
    // A huge page counts as a whole, even if only a part is used, while a plain program maps only the pages that it
    // touches. All eight share the huge pages, so the sum can grow only once by the text that a plain program never
    // touches.
    let text: u64 = 24 << 20;
    assert!(ours_file <= plain_file + text, "{ours_file}, plain {plain_file}");
    // Private memory: V8's heaps differ by some 100 KiB from run to run.
    let (own, plain_own) = (ours - ours_file, plain - plain_file);
    assert!(own < plain_own + 8 * (1 << 20), "{own}, plain {plain_own}");
}

#[test]
fn eight_that_use_all_their_text_use_as_much_memory_as_plain_ones() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    for kind in [Kind::DynamicPie, Kind::StaticNoPie] {
        let copy = Fresh::copy(&program("hold", kind));
        let run = Run::new(copy.path(), ["7"]);
        let (plain_file, plain) = eight(&run.plain(), copy.path(), false);
        let (ours_file, ours) = eight(&run, copy.path(), true);
        println!("{kind:?}: plain {plain} (file {plain_file}), launched {ours} (file {ours_file})");
        // Each program has a few pages of noise: relocated data is private, and the start of the stack is random.
        let noise = 8 * (64 << 10);
        assert!(ours <= plain + noise, "{kind:?}: {ours}, plain {plain}");
        assert!(ours_file <= plain_file + noise, "{kind:?}: {ours_file}, plain {plain_file}");
    }
}

#[test]
fn v8_finds_the_files_own_text() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    let node = whole_node();
    require!(node.is_some(), "no node on PATH whose text is its own");
    let copy = Fresh::copy(&node.expect("just found"));
    let run = Run::new(copy.path(), ["-e", NODE]);
    let plain = run.plain().hold();
    let held = run.hold();
    assert_file_pmd_mapped(held.pid(), copy.path());
    let name = copy.path().to_string_lossy().into_owned();
    let texts = |held: &Held| -> Vec<_> {
        vmas(held.pid()).into_iter().filter(|vma| vma.is_text() && vma.path == name).collect()
    };
    let ours = texts(&held);
    // If its code range happens to lie too far away, V8 maps its builtins there a second time.
    let shape = |held: &Held| -> Vec<_> {
        let all = texts(held);
        let len = |vma: &Vma| vma.end - vma.start;
        let holds = |other: &Vma, vma: &Vma| {
            let ends = (other.offset + len(other), vma.offset + len(vma));
            len(other) > len(vma) && other.offset <= vma.offset && ends.1 <= ends.0
        };
        let once = all.iter().filter(|vma| !all.iter().any(|other| holds(other, vma)));
        once.map(|vma| (len(vma), vma.offset, vma.perms.clone())).collect()
    };
    assert_eq!(shape(&held), shape(&plain), "the same mappings of the text");
    let memory = std::fs::File::open(format!("/proc/{}/mem", held.pid())).expect("its memory");
    let file = std::fs::File::open(copy.path()).expect("the program");
    for vma in ours {
        let (mut mapped, mut stored) = (Vec::new(), Vec::new());
        mapped.resize((vma.end - vma.start) as usize, 0);
        memory.read_exact_at(&mut mapped, vma.start).expect("its text");
        stored.resize(mapped.len(), 0);
        file.read_exact_at(&mut stored, vma.offset).expect("the file's text");
        assert!(mapped == stored, "{vma:?} is not what the file holds");
        assert_eq!(vma.counter("Anonymous"), 0, "a part was copied: {vma:?}");
    }
    for held in [plain, held] {
        held.finish().assert_code(7).assert_silent();
    }
}

#[test]
fn v8_compiles_javascript_and_wasm() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    let node = installed("node");
    require!(node.is_some(), "no node on PATH");
    let copy = Fresh::copy(&node.expect("just found").canonicalize().expect("a path"));
    // (func (param i32 i32) (result i32) local.get 0 local.get 1 i32.add), called often enough to be optimised.
    let script = "const b=Uint8Array.from([0,97,115,109,1,0,0,0,1,7,1,96,2,127,127,1,127,3,2,1,0,7,5,1,1,97,0,0,10,9,1,7,0,32,0,32,1,106,11]);\
        const add=new WebAssembly.Instance(new WebAssembly.Module(b)).exports.a;\
        const f=(a,b)=>Math.imul(a,31)^add(a,b);let h=1;for(let i=0;i<3e6;i++)h=f(h,i);\
        h+' '+/^(a+)+b$/.test('aaaab')+' '+[3,1,2].sort((x,y)=>x-y).join('')";
    let run = Run::new(copy.path(), ["-p", script]);
    let (plain, done) = (run.plain().output(), run.output());
    plain.assert_code(0);
    done.assert_code(0).assert_silent();
    assert_eq!(done.out(), plain.out());
    assert!(done.out().ends_with(" true 123\n"), "{done}");
}

/// One half of the file is in small folios, and the other half in huge ones.
#[test]
fn an_attach_names_the_page_cache_and_its_copies() {
    require!(huge_folios(), "{NO_HUGE_FOLIOS}");
    require!(!collapses_files(), "this kernel collapses the small folios, and nothing is copied");
    let copy = Fresh::cold(&program_big("hold", Kind::DynamicNoPie, 8));
    support::warm::cache_small_part(copy.path(), 2);
    let _pinned = Pinned::huge(copy.path());
    let held = Run::new(copy.path(), ["7"]).plain().hold();
    let pid = held.pid().to_string();
    let done = ctl(["attach", "--json", &pid]);
    done.assert_code(0).assert_silent();
    let report = json(&done);
    let of = |backing: &str, key: &str| report["by_backing"][backing][key].as_u64();
    let (copied, cached) = (of("image", "huge_bytes"), of("pagecache", "huge_bytes"));
    let (copied, cached) = copied.zip(cached).unwrap_or_else(|| panic!("{report}"));
    assert!(copied > 0 && cached > 0, "{report}");
    assert_eq!(report["huge_bytes"], copied + cached, "{report}");
    assert_eq!(of("pagecache", "cost_bytes"), Some(0), "{report}");
    assert!(of("image", "cost_bytes") >= Some(copied), "{report}");
    ctl(["revert", "-q", &pid]).assert_code(0);
    let line = ctl(["attach", &pid]).out();
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let both = format!(
        " by image {} (cost {} shmem) + pagecache {} (cost 0), one thread stopped ",
        mib(copied),
        mib(of("image", "cost_bytes").unwrap_or(0)),
        mib(cached)
    );
    assert!(line.contains(&both), "{both}: {line}");
    held.finish().assert_code(7);
}
