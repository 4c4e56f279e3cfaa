//! `tiexecctl report` makes a page that a browser shows without complaint. The numbers of the page equal those of its
//! JSON.

use serde_json::Value;

use support::attaching::{attach, ctl, small};
use support::child::tool;
use support::{Held, Kind, Run, installed, program, require};

fn browser() -> Option<String> {
    let names = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"];
    names.into_iter().find(|name| installed(name).is_some()).map(str::to_owned)
}

/// Returns the text between the first `from` and the next `to`.
fn between<'a>(text: &'a str, from: &str, to: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(from)?;
    Some(rest.split_once(to)?.0)
}

/// Panics unless each number on the page equals that of its JSON. Returns the count of numbers.
fn assert_numbers(html: &str) -> usize {
    let json = between(html, "id=\"data\">", "</script>").expect("the JSON");
    let json: Value = serde_json::from_str(json).expect("JSON");
    let numbers: Vec<&str> = html.split("<data ").skip(1).collect();
    for number in &numbers {
        let value = between(number, "value=\"", "\"").expect("a value");
        let pointer = between(number, "data-json=\"", "\"").expect("a place");
        let shown = between(number, ">", "</data>").expect("a text");
        let meant = json.pointer(pointer).unwrap_or_else(|| panic!("{pointer}"));
        let meant = meant.as_f64().expect("a number");
        // Parsing JSON may change the last bit.
        let value: f64 = value.parse().expect("a number");
        assert!((meant - value).abs() <= meant.abs() * 1e-12, "{pointer}: {value} of {meant}");
        // The page shows the rounded value: in percent, in MiB, in milliseconds or without a unit.
        if let Some(bound) = shown.strip_prefix("&gt;") {
            assert!(meant >= bound.parse().expect("a number"), "{pointer}: {shown} of {meant}");
            continue;
        }
        let (text, unit) = shown.split_once(' ').unwrap_or((shown, ""));
        let read: f64 = text.parse().unwrap_or_else(|e| panic!("{shown}: {e}"));
        let scales: &[f64] = match unit {
            "%" | "ms" => &[100.0, 1000.0],
            "MiB" => &[1.0 / 1_048_576.0],
            "s" => &[1.0, 0.001],
            "M" => &[1e-6],
            _ => &[1.0],
        };
        let near = |scale: &f64| (meant * scale - read).abs() <= 0.051_f64.max(read.abs() * 0.001);
        assert!(scales.iter().any(near), "{pointer}: {shown} of {meant}");
    }
    numbers.len()
}

/// Panics if the page needs horizontal scrolling on a narrow screen such as a telephone's.
fn assert_narrow(browser: &str, page: &std::path::Path) {
    let html = std::fs::read_to_string(page).expect("a page");
    let asks = "<script>const root = document.documentElement; \
                root.dataset.room = `${root.clientWidth} ${root.scrollWidth} `;</script></body>";
    let asking = page.with_file_name("narrow.html");
    std::fs::write(&asking, html.replace("</body>", asks)).expect("a page");
    let dom = shown(browser, &asking);
    let room = between(&dom, "data-room=\"", " \"").expect("both widths");
    let (has, takes) = room.split_once(' ').expect("both widths");
    let number = |text: &str| text.parse::<u32>().expect("a width");
    assert!(number(has) < 500 && number(takes) <= number(has), "{room}");
}

/// Makes the browser print the page, with a dark or a light colour scheme. Returns the document.
fn printed(browser: &str, page: &std::path::Path, scheme: &str) -> Vec<u8> {
    let home = tempfile::tempdir().expect("a directory");
    let pdf = home.path().join("page.pdf");
    let done = tool(&[
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-pdf-header-footer",
        &format!("--user-data-dir={}", home.path().display()),
        &format!("--blink-settings=preferredColorScheme={scheme}"),
        &format!("--print-to-pdf={}", pdf.display()),
        &format!("file://{}", page.display()),
    ]);
    std::fs::read(&pdf).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&done.stderr)))
}

/// Panics unless the page prints the same with both colour schemes, with a page of paper for each section.
fn assert_print(browser: &str, page: &std::path::Path) {
    // 0 is dark, 1 is light.
    let [dark, light] = ["0", "1"].map(|scheme| printed(browser, page, scheme));
    let count =
        |pdf: &[u8], words: &[u8]| pdf.windows(words.len()).filter(|at| *at == words).count();
    let sections = std::fs::read_to_string(page).expect("a page").matches("<section>").count();
    let pages = count(&light, b"/Type /Page\n");
    assert!(sections > 1 && pages >= sections, "{pages} pages for {sections} sections");
    // Only the time of creation, and values derived from it, may differ.
    let streams = |pdf: &[u8]| {
        let text = String::from_utf8_lossy(pdf).into_owned();
        text.split("stream\n").skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(streams(&dark) == streams(&light), "a dark screen prints another page");
}

/// Makes the browser show the page. Returns the resulting document. Panics if there is output on the console.
fn shown(browser: &str, file: &std::path::Path) -> String {
    let page = format!("file://{}", file.display());
    let home = tempfile::tempdir().expect("a directory");
    let profile = format!("--user-data-dir={}", home.path().display());
    let done = tool(&[
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        &profile,
        "--window-size=400,800",
        "--enable-logging=stderr",
        "--v=0",
        "--dump-dom",
        &page,
    ]);
    let said = String::from_utf8_lossy(&done.stderr);
    let complaints: Vec<&str> =
        said.lines().filter(|line| line.contains("CONSOLE") || line.contains("net::ERR")).collect();
    assert!(complaints.is_empty(), "{complaints:?}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

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
        " UTC; ",
        "Linux ",
        "TiExec ",
    ] {
        assert!(html.contains(part), "{part}");
    }
    assert!(!html.contains("src=") && !html.contains("url("), "nothing from elsewhere");
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
    let dom = shown(&browser, &page);
    assert!(assert_numbers(&dom) > 10, "{dom}");
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
fn of_what_is_neither() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("file").to_string_lossy().into_owned();
    for content in ["", "{}", "[1]", "{\"kind\":\"bench\",\"schema\":1}", "\u{0}"] {
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
