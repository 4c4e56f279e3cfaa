//! The pages of `tiexecctl report`, in a real browser.

use std::path::Path;

use serde_json::Value;

use crate::attaching::ctl;
use crate::child::tool;
use crate::{installed, require};

/// Returns the name of a browser.
pub fn browser() -> Option<String> {
    let names = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"];
    names.into_iter().find(|name| installed(name).is_some()).map(str::to_owned)
}

/// Makes the page of the JSON that a command printed. Panics unless it has more than `least` numbers of the JSON. Returns the
/// page and its directory.
pub fn of_json(json: &str, least: usize) -> (String, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    let (file, page) = (dir.path().join("found.json"), dir.path().join(PAGE));
    std::fs::write(&file, json).expect("a file");
    let words = ["report", "-o", &page.to_string_lossy(), &file.to_string_lossy()];
    ctl(words).assert_code(0).assert_silent();
    let html = std::fs::read_to_string(&page).expect("a page");
    assert!(assert_numbers(&html) > least, "{html}");
    (html, dir)
}

/// The name of the page that [`of_json`] makes.
pub const PAGE: &str = "page.html";

/// Shows the page in a browser, where there is one: with all its numbers, on a narrow screen, and on paper.
pub fn assert_in_browser(page: &Path) {
    let browser = browser();
    require!(browser.is_some(), "no chromium");
    let browser = browser.expect("just looked");
    let html = std::fs::read_to_string(page).expect("a page");
    assert_eq!(assert_numbers(&shown(&browser, page)), assert_numbers(&html));
    assert_narrow(&browser, page);
    assert_print(&browser, page);
}

/// Returns the text between the first `from` and the next `to`.
pub fn between<'a>(text: &'a str, from: &str, to: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(from)?;
    Some(rest.split_once(to)?.0)
}

/// Panics unless each number on the page that names its place in the JSON equals the number there. Returns the count of
/// these numbers.
pub fn assert_numbers(html: &str) -> usize {
    let json = between(html, "id=\"data\">", "</script>").expect("the JSON");
    let json: Value = serde_json::from_str(json).expect("JSON");
    let mut numbers: Vec<&str> = html.split("<data ").skip(1).collect();
    // A sum or a count, by which a column sorts, has no place in the JSON.
    numbers.retain(|number| number.split('>').next().is_some_and(|tag| tag.contains("data-json")));
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

/// Makes the browser show the page after this script has run in it. Returns the document.
pub fn after(browser: &str, page: &Path, script: &str) -> String {
    let html = std::fs::read_to_string(page).expect("a page");
    // The policy of the page forbids scripts of others.
    let (head, rest) = html.split_once("<meta http-equiv").expect("the policy");
    let (_, rest) = rest.split_once('>').expect("its end");
    let changed =
        format!("{head}{}", rest.replace("</body>", &format!("<script>{script}</script></body>")));
    let copy = page.with_file_name("after.html");
    std::fs::write(&copy, changed).expect("a page");
    shown(browser, &copy)
}

/// Panics if, on a screen of 390 px, an element is wider than the page, or a plot cuts off one of its texts.
pub fn assert_narrow(browser: &str, page: &Path) {
    let script = "\
        const root = document.documentElement, width = root.clientWidth; \
        const out = (inner, outer) => inner.left < outer.left - 0.5 || inner.right > outer.right + 0.5; \
        const box = (element) => element.getBoundingClientRect(); \
        const wide = [...document.querySelectorAll('body *')].filter((one) => box(one).width > 0 && \
            out(box(one), { left: 0, right: width })); \
        const cut = [...document.querySelectorAll('svg text')].filter((one) => out(box(one), box(one.ownerSVGElement))); \
        const names = [...wide, ...cut].map((one) => one.outerHTML.slice(0, 200)); \
        root.dataset.room = `${width} ${root.scrollWidth} ${encodeURIComponent(names.join())} `;";
    let dom = after(browser, page, script);
    let room = between(&dom, "data-room=\"", " \"").expect("the widths");
    let [has, takes, wide] = room.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{room}") };
    let number = |text: &str| text.parse::<u32>().expect("a width");
    assert_eq!(number(has), 390, "the width of the screen");
    assert!(wide.is_empty() && number(takes) <= 390, "{room}");
}

/// Makes the browser print the page, with a dark or a light colour scheme. Returns the document.
fn printed(browser: &str, page: &Path, scheme: &str) -> Vec<u8> {
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

/// Panics unless the page prints the same with both colour schemes, with a page of paper for each large section.
pub fn assert_print(browser: &str, page: &Path) {
    // 0 is dark, 1 is light.
    let [dark, light] = ["0", "1"].map(|scheme| printed(browser, page, scheme));
    let count =
        |pdf: &[u8], words: &[u8]| pdf.windows(words.len()).filter(|at| *at == words).count();
    let html = std::fs::read_to_string(page).expect("a page");
    let large = html.matches("<section class=\"page\">").count();
    let pages = count(&light, b"/Type /Page\n");
    assert!(large > 0 && pages > large, "{pages} pages for {large} large sections");
    // Only the time of creation, and values derived from it, may differ.
    let streams = |pdf: &[u8]| {
        let text = String::from_utf8_lossy(pdf).into_owned();
        text.split("stream\n").skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(streams(&dark) == streams(&light), "a dark screen prints another page");
}

/// Makes the browser show the page. Returns the resulting document. Panics if there is output on the console.
pub fn shown(browser: &str, file: &Path) -> String {
    let page = format!("file://{}", file.display());
    let home = tempfile::tempdir().expect("a directory");
    let profile = format!("--user-data-dir={}", home.path().display());
    let done = tool(&[
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        &profile,
        "--window-size=390,800",
        "--hide-scrollbars",
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
