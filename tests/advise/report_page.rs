//! `tiexecctl report` makes a page that a browser shows without complaint. The numbers of the page equal those of its
//! JSON.

use serde_json::Value;

use support::attaching::{attach, ctl, small};
use support::child::{eventually, state};
use support::page::{
    PAGE, after, assert_in_browser, assert_narrow, assert_numbers, assert_print, between, browser,
    of_json, shown,
};
use support::{Held, Kind, Run, install, program, require};

#[test]
fn of_a_process() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("page.html");
    let copy = small("hotset", Kind::DynamicNoPie);
    let mut held = Run::new(copy.path(), ["300", "600"]).plain().start();
    held.wait_line("spinning");
    attach(held.pid()).assert_code(0);
    let (pid, out) = (held.pid().to_string(), file.display().to_string());
    ctl(["report", "--duration", "1s", "-o", &out, &pid]).assert_code(0).assert_silent();
    let html = std::fs::read_to_string(&file).expect("a page");
    // The text in the copy counts for its file, so there is one row.
    assert!(assert_numbers(&html) > 12, "{html}");
    for part in [
        "Coverage",
        "Footprint",
        "Heat",
        "prefers-color-scheme: dark",
        "@media print",
        "class=\"now\"",
        "class=\"hot\"",
        "Next: ",
        "Processor time saved, and memory",
        "<dt>Host</dt>",
        " 300 600</code></dd>",
        "The TLB is ",
        "href=\"file:///usr/share/doc/tiexec/measuring.md\"",
        " UTC; ",
        "Linux ",
        "TiExec ",
    ] {
        assert!(html.contains(part), "{part}");
    }
    assert!(!html.contains("src=") && !html.contains("url("), "nothing from elsewhere");
    // What is saved comes first, then its cost, and what is huge comes before where it executes.
    let order = ["<h2>Processor", "Memory: ", "<h2>Coverage", "<h2>Heat", "<h2>Footprint"];
    let memory = html.find("<th scope=\"col\">memory</th>");
    let places = order.map(|part| html.find(part).or(memory).expect("a section"));
    assert!(places.is_sorted(), "{places:?}");
    let json = between(&html, "id=\"data\">", "</script>").expect("the JSON");
    let json: Value = serde_json::from_str(json).expect("JSON");
    let process = &json["process"];
    assert_eq!(process["advice"]["pid"], held.pid());
    let cells = |row: &Value| {
        row["cells"]
            .as_array()
            .expect("cells")
            .iter()
            .map(|cell| cell.as_u64().expect("a count"))
            .sum::<u64>()
    };
    let files = process["heat"]["files"].as_array().expect("files");
    let rows = files.iter().flat_map(|file| file["rows"].as_array().expect("rows"));
    assert_eq!(
        rows.map(cells).sum::<u64>(),
        process["advice"]["sampling"]["samples"].as_u64().expect("samples")
    );

    ctl(["report", "--svg", "--duration", "1s", "-o", &out, &pid]).assert_code(0).assert_silent();
    let svg = std::fs::read_to_string(&file).expect("plots");
    assert!(svg.starts_with("<svg xmlns") && svg.contains("coverage"), "{svg}");

    // A short sampling gives no figure: neither in words nor as a bar.
    ctl(["report", "--duration", "50ms", "-o", &out, &pid]).assert_code(0).assert_silent();
    let html = std::fs::read_to_string(&file).expect("a page");
    assert!(html.contains(">maybe: too few samples to tell<"), "{html}");
    assert!(!html.contains("The bar is the share"), "{html}");
}

#[test]
fn of_several_processes() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("page.html");
    let copy = small("hotset", Kind::DynamicNoPie);
    let all = [(); 2].map(|()| {
        let mut held = Run::new(copy.path(), ["300", "600"]).plain().start();
        held.wait_line("spinning");
        held
    });
    let mut pids = all.each_ref().map(Held::pid);
    pids.sort_unstable();
    attach(pids[0]).assert_code(0);
    let out = file.display().to_string();
    let (exe, list) = (copy.path().to_string_lossy(), pids.map(|pid| pid.to_string()).join(","));
    for selected in [&["--exe", &*exe][..], &[&*list]] {
        let words = [&["report", "--duration", "1s", "-o", &out][..], selected].concat();
        ctl(words).assert_code(0).assert_silent();
        let html = std::fs::read_to_string(&file).expect("a page");
        assert!(assert_numbers(&html) > 12, "{html}");
        let json = between(&html, "id=\"data\">", "</script>").expect("the JSON");
        let json: Value = serde_json::from_str(json).expect("JSON");
        let (advice, coverage) = (&json["process"]["advice"], &json["process"]["coverage"]);
        assert_eq!(advice["sampling"]["processes"], 2, "{advice}");
        assert_eq!((&advice["pid"], &coverage["pid"]), (&pids[0].into(), &pids[0].into()));
        assert!(coverage["huge_bytes"].as_u64() > Some(0), "{coverage}");
        assert!(html.contains(&format!("<h2>Coverage of process {}</h2>", pids[0])), "{html}");
        assert!(html.contains("</data> processes in "), "{html}");
    }
    let done = ctl(["report", "--exe", "/nonexistent/program"]);
    done.assert_code(4);
    assert!(done.err().contains("there is no such file"), "{done}");
    ctl(["report", &list, "--exe", &exe]).assert_code(2);
}

/// Plans are made for the first 16 processes. The page says that the others are not counted.
#[test]
fn of_more_processes_than_are_planned() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("page.html");
    let (hot, still) = (small("hotset", Kind::DynamicNoPie), small("hold", Kind::DynamicNoPie));
    let mut all = vec![Run::new(hot.path(), ["1500", "600"]).plain().start()];
    all[0].wait_line("spinning");
    all.extend((0..16).map(|_| Run::new(still.path(), ["7"]).plain().hold()));
    let list: Vec<String> = all.iter().map(|held| held.pid().to_string()).collect();
    let out = file.display().to_string();
    ctl(["report", "--duration", "1s", "-o", &out, &list.join(",")]).assert_code(0);
    let html = std::fs::read_to_string(&file).expect("a page");
    let json = between(&html, "id=\"data\">", "</script>").expect("the JSON");
    let json: Value = serde_json::from_str(json).expect("JSON");
    let process = &json["process"];
    let counts = (&process["memory_processes"], &process["memory_left_out"]);
    assert_eq!(counts, (&16.into(), &1.into()), "{process}");
    let has_memory = process["memory"].as_object().is_some_and(|memory| !memory.is_empty());
    assert_eq!(html.contains("; processes not counted: <data"), has_memory, "{html}");
    assert_numbers(&html);
}

#[test]
fn in_a_browser() {
    let browser = browser();
    require!(browser.is_some(), "no chromium");
    let browser = browser.expect("just looked");
    let dir = tempfile::tempdir().expect("a directory");
    let (figures, page) = (dir.path().join("bench.json"), dir.path().join("page.html"));
    let work = program("work", Kind::DynamicNoPie).to_string_lossy().into_owned();
    let (export, out) =
        (format!("--export-json={}", figures.display()), page.display().to_string());
    ctl(["bench", "-r", "6", "-w", "0", &export, "--", &work, "2000", "0"]).assert_code(0);
    ctl(["report", "-o", &out, &figures.to_string_lossy()]).assert_code(0).assert_silent();
    let html = std::fs::read_to_string(&page).expect("a page");
    let dom = shown(&browser, &page);
    assert_narrow(&browser, &page);
    assert_print(&browser, &page);
    let (own, seen) = (assert_numbers(&html), assert_numbers(&dom));
    assert!(own > 5 && own == seen, "{own} {seen}");
    assert_eq!(dom.matches("<rect").count(), html.matches("<rect").count(), "all of the plots");
    let copy = small("hotset", Kind::DynamicNoPie);
    let mut held = Run::new(copy.path(), ["30", "600"]).plain().start();
    held.wait_line("spinning");
    ctl(["report", "--duration", "1s", "-o", &out, &held.pid().to_string()]).assert_code(0);
    drop(held);
    let dom = shown(&browser, &page);
    assert!(assert_numbers(&dom) > 10, "{dom}");
    // The page's own script has run: its policy allows it.
    assert!(dom.contains("<th scope=\"col\" tabindex=\"0\">"), "{dom}");
    assert_narrow(&browser, &page);
    assert_print(&browser, &page);
    ctl([
        "report",
        "--svg",
        "-o",
        &dir.path().join("plots.svg").to_string_lossy(),
        &figures.to_string_lossy(),
    ])
    .assert_code(0);
    let dom = shown(&browser, &dir.path().join("plots.svg"));
    assert!(dom.contains("tiexec over plain") && !dom.contains("parsererror"), "{dom}");
}

#[test]
fn tables_sort() {
    let browser = browser();
    require!(browser.is_some(), "no chromium");
    let dir = tempfile::tempdir().expect("a directory");
    let (figures, page) = (dir.path().join("bench.json"), dir.path().join("page.html"));
    let work = program("work", Kind::DynamicNoPie).to_string_lossy().into_owned();
    let export = format!("--export-json={}", figures.display());
    ctl(["bench", "-r", "6", "-w", "0", &export, "--", &work, "2000", "0"]).assert_code(0);
    let out = page.to_string_lossy().into_owned();
    ctl(["report", "-o", &out, &figures.to_string_lossy()]).assert_code(0);
    let medians = |dom: &str| -> Vec<f64> {
        let rows = between(dom, "<tbody>", "</tbody>").expect("a table").split("<tr>").skip(1);
        let plain = |row: &str| between(row, "value=\"", "\"").and_then(|value| value.parse().ok());
        rows.map(|row| plain(row).expect("a median")).collect()
    };
    let browser = browser.expect("just looked");
    let click = "document.querySelector('table.wide th:nth-child(2)').click();";
    for (clicks, is_sorted) in [
        (1, (|all: &[f64]| all.is_sorted_by(|one, other| one >= other)) as fn(&[f64]) -> bool),
        (2, |all| all.is_sorted()),
    ] {
        let all = medians(&after(&browser, &page, &click.repeat(clicks)));
        assert!(all.len() > 3 && is_sorted(&all), "{clicks}: {all:?}");
    }
}

/// A program names its file, its arguments and itself. None of them becomes a part of the page.
#[test]
fn a_name_that_looks_like_markup() {
    let evil = "</script><img src=x onerror=document.title=1>";
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join(evil);
    std::fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
    install(&program("hotset", Kind::DynamicNoPie), &path, 0o755);
    let mut held = Run::new(&path, ["300", "600", evil]).plain().start();
    held.wait_line("spinning");
    let page = dir.path().join("page.html");
    let (out, pid) = (page.display().to_string(), held.pid().to_string());
    ctl(["report", "--duration", "1s", "-o", &out, &pid]).assert_code(0).assert_silent();
    drop(held);
    let html = std::fs::read_to_string(&page).expect("a page");
    assert!(html.contains("script&gt;&lt;img src=x onerror"), "the name is on the page: {html}");
    assert!(!html.contains("<img") && html.matches("<script").count() == 2, "{html}");
    assert!(html.matches("</script>").count() == 2, "{html}");
    assert!(assert_numbers(&html) > 10, "{html}");
    let browser = browser();
    require!(browser.is_some(), "no chromium");
    let browser = browser.expect("just looked");
    let dom = shown(&browser, &page);
    assert!(!dom.contains("<img") && !dom.contains("<title>1"), "{dom}");
    assert_narrow(&browser, &page);
}

#[test]
fn of_a_scan() {
    let copy = small("hotset", Kind::DynamicNoPie);
    let mut held = Run::new(copy.path(), ["1500", "600"]).plain().start();
    held.wait_line("spinning");
    let done = ctl(["scan", "--json", "--duration", "2s"]);
    drop(held);
    let (html, dir) = of_json(&done.assert_code(0).out(), 3);
    for part in ["<h1>Scan of ", "<h2>Programs</h2>", "hotset", "measured ", " UTC by TiExec "] {
        assert!(html.contains(part), "{part}: {html}");
    }
    assert_in_browser(&dir.path().join(PAGE));
}

/// A page that has nothing to sample proposes the whole command, with its output.
#[test]
fn the_next_command_is_whole() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("page.html").display().to_string();
    let copy = small("hold", Kind::DynamicNoPie);
    let held = Run::new(copy.path(), ["7"]).plain().hold();
    eventually("it sleeps", || state(held.pid()) == Some('S'));
    let pid = held.pid().to_string();
    let done = ctl(["report", "--duration", "200ms", "-o", &out, &pid]);
    done.assert_code(1);
    let begin = format!("fix: `tiexecctl report --output {out} --duration ");
    let err = done.err();
    let seconds = between(&err, &begin, &format!("s {pid}` "));
    // A busy machine samples for longer.
    assert!(seconds.is_some_and(|it| it.parse::<u64>().is_ok_and(|it| it >= 6)), "{done}");
    held.finish().assert_code(7);
}

#[test]
fn of_what_is_neither() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("file").to_string_lossy().into_owned();
    let odd = ["", "{}", "[1]", "\u{0}"].map(str::to_owned).into_iter();
    let empty =
        ["bench", "canary", "scan"].map(|kind| format!("{{\"kind\":\"{kind}\",\"schema\":1}}"));
    for content in odd.chain(empty) {
        std::fs::write(&file, content).expect("a file");
        let done = ctl(["report", &file]);
        done.assert_code(1);
        assert!(done.out().is_empty() && done.err().contains("export-json"), "{done}");
    }
    // A file that cannot be written is detected before the sampling.
    let own = std::process::id().to_string();
    let nowhere = dir.path().join("missing/page.html").to_string_lossy().into_owned();
    for command in ["report", "advise"] {
        let done = ctl([command, "--duration", "10m", "-o", &nowhere, &own]);
        done.assert_code(1);
        assert!(done.err().contains("missing/page.html: no such file"), "{done}");
        ctl([command, "--duration", "0", &own]).assert_code(2);
    }
    ctl(["report", "/nonexistent"]).assert_code(1);
    ctl(["report", "0"]).assert_code(1);
    ctl(["report"]).assert_code(2);
    let ended = Run::new("/bin/true", [""; 0]).plain().start();
    let pid = ended.pid().to_string();
    ended.finish();
    ctl(["report", &pid]).assert_code(4);
}
