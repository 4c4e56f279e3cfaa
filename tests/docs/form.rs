//! The form of output: its words, columns and their order, without the figures.

/// The verdicts, which depend on what was measured: each of them may stand for another one.
const VERDICTS: [&str; 12] = [
    "too noisy to tell",
    "too noisy",
    "no difference seen",
    "less, better",
    "less, worse",
    "more, better",
    "more, worse",
    "not worth it",
    "worth it",
    "maybe",
    "less",
    "more",
];
const TIMES: [&str; 8] = ["ns", "us", "µs", "ms", "s", "min", "h", "days"];
const SIZES: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];

/// The lines of `tiexecctl doctor` that measure this machine: `warn  host  …`, `ok  gain  …`.
const MEASURED: [&str; 2] = ["host", "gain"];

/// The first words of lines that say something else on each processor, or for each verdict.
const BY_MACHINE: [&str; 2] = ["next", "iTLB"];

/// What `tiexecctl scan` recommends, by the verdict: a word among the figures of a program.
const WAYS: [&str; 4] = ["attach", "restart", "done", "nothing"];

/// Stands for any lines, or for any words in a line.
const ANY: &str = "…";

/// Returns the words of a line, with `#` for each figure.
fn words(line: &str) -> Vec<String> {
    let mut line = line.to_owned();
    for verdict in VERDICTS {
        line = replaced(&line, verdict, "VERDICT");
    }
    let mut words: Vec<String> = Vec::new();
    for word in line.split_whitespace() {
        let after_figure = words.last().is_some_and(|last| last.ends_with('#'));
        words.push(masked(word, after_figure));
    }
    if let Some(end) = consequence(&words) {
        words.truncate(end);
    }
    if words.first().is_some_and(|word| word == "#") {
        for word in &mut words {
            if WAYS.contains(&word.as_str()) {
                "WAY".clone_into(word);
            }
        }
    }
    if let [_, name, ..] = &words[..]
        && MEASURED.contains(&name.as_str())
    {
        return vec![name.clone()];
    }
    words
}

/// Returns the place from which on a line depends on a verdict: `worth it: about …`, `wall time: too noisy to tell: …`,
/// `wall time: 2.0 % less …`, `/usr/bin/node, 1 process: maybe; memory …`, `next  nothing: …`.
fn consequence(words: &[String]) -> Option<usize> {
    if words.first().is_some_and(|word| BY_MACHINE.contains(&word.as_str()) || word == "VERDICT:") {
        return Some(1);
    }
    let is_verdict = |words: &[String]| match words {
        [first, ..] if first.trim_end_matches([':', ';']) == "VERDICT" => true,
        [figure, percent, verdict, ..] => figure == "#" && percent == "%" && verdict == "VERDICT",
        _ => false,
    };
    let mut labels = words.iter().enumerate().filter(|(_, word)| word.ends_with(':'));
    labels.find(|(at, _)| is_verdict(&words[at + 1..])).map(|(at, _)| at + 1)
}

/// Replaces a word, or words, that stand between blanks or punctuation.
pub(crate) fn replaced(text: &str, word: &str, by: &str) -> String {
    let is_part = |letter: Option<char>| {
        letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_' || letter == '-')
    };
    let (mut made, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(word) {
        let (before, after) = (&rest[..at], &rest[at + word.len()..]);
        made.push_str(before);
        let is_alone = !is_part(made.chars().next_back()) && !is_part(after.chars().next());
        made.push_str(if is_alone { by } else { word });
        rest = after;
    }
    made + rest
}

/// The directories whose paths count only by their last part.
const TEMPORARY: [&str; 3] = ["/tmp/", "/var/tmp/", "/root/"];

/// Returns a word with `#` for its figures, TIME and SIZE for units, and without the `s` of a plural after a figure.
fn masked(word: &str, after_figure: bool) -> String {
    if TEMPORARY.iter().any(|directory| word.starts_with(directory)) {
        return masked(word.rsplit('/').next().unwrap_or_default(), after_figure);
    }
    if is_version(word) {
        return "#".to_owned();
    }
    let bare = word.trim_matches(|letter: char| ",;:()".contains(letter));
    let unit = |units: &[&str]| units.contains(&bare);
    if unit(&TIMES) {
        return word.replacen(bare, "TIME", 1);
    }
    if unit(&SIZES) {
        return word.replacen(bare, "SIZE", 1);
    }
    if after_figure && bare.len() > 2 && bare.chars().all(|letter| letter.is_ascii_lowercase()) {
        let one = bare.strip_suffix("sses").map(|stem| format!("{stem}ss"));
        let one = one.or_else(|| {
            Some(bare.strip_suffix('s').filter(|stem| !stem.ends_with('s'))?.to_owned())
        });
        return word.replacen(bare, &one.unwrap_or_else(|| bare.to_owned()), 1);
    }
    figures(word)
}

/// Returns whether the word is the version of a kernel, to which distributions add words: `6.1.0-42-cloud-amd64`.
fn is_version(word: &str) -> bool {
    let numbers = word.split('-').next().unwrap_or_default();
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    numbers.split('.').count() == 3 && numbers.split('.').all(is_number)
}

/// Puts `#` for each number, address and hash of a word.
fn figures(word: &str) -> String {
    let letters: Vec<char> = word.chars().collect();
    let mut text = String::new();
    let mut at = 0;
    while at < letters.len() {
        let is_start = at == 0 || !letters[at - 1].is_alphanumeric();
        let hex = letters[at..].iter().take_while(|letter| letter.is_ascii_hexdigit()).count();
        let is_hex = is_start && hex >= 8 && letters[at..at + hex].iter().any(char::is_ascii_digit);
        let is_prefixed = is_start && letters[at..].starts_with(&['0', 'x']);
        let sign = letters[at] == '-' && (at == 0 || letters[at - 1] == '(');
        let digit = |at: usize| letters.get(at).is_some_and(char::is_ascii_digit);
        if is_hex {
            at += hex;
        } else if is_prefixed {
            at += 2;
            at += letters[at..].iter().take_while(|letter| letter.is_ascii_hexdigit()).count();
        } else if digit(at) || sign && digit(at + 1) {
            at += 1;
            while digit(at) || letters.get(at) == Some(&'.') && digit(at + 1) {
                at += 1;
            }
        } else {
            text.push(letters[at]);
            at += 1;
            continue;
        }
        text.push('#');
    }
    text
}

/// Returns whether `all` has the form of `pattern`, in which each `any` stands for any number of items.
fn fits<T>(
    pattern: &[T],
    all: &[T],
    any: &impl Fn(&T) -> bool,
    same: &impl Fn(&T, &T) -> bool,
) -> bool {
    // The items that the pattern's beginning can reach.
    let mut reached = vec![false; all.len() + 1];
    reached[0] = true;
    for item in pattern {
        let mut next = vec![false; all.len() + 1];
        if any(item) {
            let first = reached.iter().position(|is| *is).unwrap_or(all.len() + 1);
            next.iter_mut().skip(first).for_each(|is| *is = true);
        } else {
            for at in (0..all.len()).filter(|at| reached[*at]) {
                next[at + 1] = same(item, &all[at]);
            }
        }
        reached = next;
    }
    reached[all.len()]
}

/// Returns whether the line may be missing: a reason of a verdict, the number of files with few samples, the share of other processes,
/// or what `tiexecctl scan` says only of a program that gains, or only if none gains.
fn is_by_chance(line: &str) -> bool {
    let starts = |with: &str| line.starts_with(with);
    starts("  - ")
        || starts("others ")
        || starts("      next  ")
        || starts("nothing gains: ")
        || starts("(") && line.contains(" more) ")
}

fn same_line(shown: &str, said: &str) -> bool {
    fits(&words(shown), &words(said), &|word| word == ANY, &|one, other| one == other)
}

/// Returns none if the lines that a program said have the form of the lines that a page shows, and else the difference as lines with
/// `-` (only in the page), `+` (only said) or a blank. The lines of the page have their numbers, beginning with `first`.
pub(crate) fn difference(shown: &[String], said: &[String], first: usize) -> Option<String> {
    let said: Vec<String> = said.iter().map(|line| line.trim_end().to_owned()).collect();
    let compared = |lines: &[String]| {
        lines.iter().filter(|line| !is_by_chance(line)).cloned().collect::<Vec<_>>()
    };
    let (compared_shown, compared_said) = (compared(shown), compared(&said));
    if fits(&compared_shown, &compared_said, &|line| line.trim() == ANY, &|one, other| {
        same_line(one, other)
    }) {
        return None;
    }
    // The longest common subsequence, from the end.
    let mut longest = vec![vec![0_u32; said.len() + 1]; shown.len() + 1];
    for one in (0..shown.len()).rev() {
        for other in (0..said.len()).rev() {
            longest[one][other] = if same_line(&shown[one], &said[other]) {
                longest[one + 1][other + 1] + 1
            } else {
                longest[one + 1][other].max(longest[one][other + 1])
            };
        }
    }
    let (mut one, mut other) = (0, 0);
    let mut text = String::new();
    while one < shown.len() || other < said.len() {
        let both = one < shown.len() && other < said.len();
        let number = first + one;
        if one < shown.len() && shown[one].trim() == ANY
            || both && same_line(&shown[one], &said[other])
        {
            text += &format!("\n  {number:4}  {}", shown[one]);
            other += usize::from(shown[one].trim() != ANY);
            one += 1;
        } else if other == said.len() || both && longest[one + 1][other] >= longest[one][other + 1]
        {
            text += &format!("\n- {number:4}  {}", shown[one]);
            one += 1;
        } else {
            text += &format!("\n+       {}", said[other]);
            other += 1;
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    fn differs(shown: &str, said: &str) -> bool {
        difference(&lines(shown), &lines(said), 1).is_some()
    }

    #[test]
    fn figures_do_not_count() {
        for (shown, said) in [
            (
                "node 11   text 26.7 MiB   huge 24.0 MiB (89 %)",
                "node 4711 text 1.2 GiB huge 0.0 KiB (100 %)",
            ),
            ("and 1 file with text", "and  16 files with text"),
            ("1 process of 2", "7 processes of 3"),
            ("stop 1.28 ms   2 remote syscalls", "stop 3.1 s 15 remote syscalls"),
            (
                "image libz.so.1:930eec13838ec89bc80301707860c369.tiexec",
                "image libz.so.1:0123456789abcdef0123456789abcdef.tiexec",
            ),
            ("00402000-01923000  0.1", "7f2c16da7000-7f2c16dcd000 21.1"),
            ("offset 0x200000 (-0.3 to 0.0 %)", "offset 0x1 (0.1 to 11.2 %)"),
            ("wall time, s  1.1 (1–2)  too noisy", "wall time, ms 9 (8.1–9.2) less, better"),
            ("a\n…\nb", "a\nb"),
            ("a\n…\nb", "a\nx\ny\nb"),
            ("a …", "a x y"),
            ("a … b 1", "a x b 2"),
            (
                "wall time: too noisy to tell: between 0.7 and 1.4 times; about 9 rounds would do",
                "wall time: 44.3 % more by tiexec (between 27.2 % and 63.8 %), which is worse",
            ),
            ("kernel 6.18.44 x86_64", "kernel 6.1.0-42-cloud-amd64 x86_64"),
            (
                "warn  host  a load takes 1.4 ns: the host maps",
                "no  host  a load takes 9 ns: too uneven",
            ),
            ("all 1\n(2 more)   1%\nmaybe\n  - few", "all 1\nworth it\n  - one\n  - another"),
            ("iTLB  64 + 8", "iTLB  64; second level 512"),
            ("next  nothing: leave it as it is", "next  tiexecctl attach 1"),
            (
                "maybe: about 0.1 % of its time (0.0 to 0.6 %)",
                "not worth it: about 0.0 % of its time",
            ),
            (
                "0.1  0.1-1.1  72.2  attach  node\n/usr/bin/node, 1 process: maybe; memory 24.0 MiB image\n      next  attach 1",
                "0.0  0.0-0.0  14.5  nothing  node\n/usr/bin/node, 1 process: not worth it\nnothing gains: node: it fits",
            ),
            ("/tmp/srv 2.5", "/root/x/srv 1"),
        ] {
            assert!(!differs(shown, said), "{shown}: {said}");
        }
    }

    #[test]
    fn words_and_their_order_count() {
        for (shown, said) in [
            ("edges 3.1, base_pages 18.0", "base_pages 18.0, edges 3.1"),
            ("FILE TEXT HUGE", "FILE HUGE TEXT"),
            ("text 1 MiB", "text 1 MiB more_words"),
            ("libLLVM.so 1 image", "libLLVM.so 1 pagecache"),
            ("perf ok", "perf lost"),
            ("a\nb", "a"),
            ("a", "a\nb"),
            ("a\n…\nb", "a\nx"),
            ("huge 1.0 MiB", "huge - MiB"),
            ("worthy 1", "maybe 1"),
            ("wall time: too noisy", "user time: too noisy"),
            ("0.1  72.2  attach  node", "0.1  72.2  done  nodejs"),
            ("tiexecctl attach 1", "tiexecctl restart 1"),
        ] {
            assert!(differs(shown, said), "{shown}: {said}");
        }
    }

    #[test]
    fn the_difference_names_the_lines_of_the_page() {
        let text = difference(&lines("one 1\ntwo\n…\nfour"), &lines("one 2\n2 two\nx\nfour"), 7);
        assert_eq!(
            text.unwrap(),
            "\n     7  one 1\n-    8  two\n     9  …\n+       2 two\n+       x\n    10  four"
        );
    }
}
