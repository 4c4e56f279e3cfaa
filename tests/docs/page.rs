//! The command blocks of a Markdown page, and the marks before them.

/// A page.
pub(crate) struct Page {
    /// Its path in the repository.
    pub(crate) path: String,
    /// Its blocks with commands, in order.
    pub(crate) blocks: Vec<Block>,
}

/// A fenced block with commands, or a file that the commands use.
pub(crate) struct Block {
    /// The line of the page on which the block begins.
    pub(crate) line: usize,
    /// What has to be done before it.
    pub(crate) marks: Vec<Mark>,
    /// Its commands; for a file none.
    pub(crate) steps: Vec<Step>,
    /// The whole text of the block.
    pub(crate) text: String,
    /// Whether it shows the output of its commands, of at least one.
    pub(crate) has_output: bool,
}

/// A command, and the lines of its output that the page shows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// The line of the page.
    pub(crate) line: usize,
    /// The words after the prompt.
    pub(crate) command: String,
    /// The lines, without blank lines at the end.
    pub(crate) output: Vec<String>,
}

/// A part of a comment `<!-- docs-test: MARK; MARK -->`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// `skip REASON`: the block cannot run here.
    Skip(String),
    /// `file PATH`: the block is the content of this file.
    File(String),
    /// `WORD is COMMAND`: in commands, the word stands for what the command prints.
    Stands(String, String),
    /// `with COMMAND`: the command runs first.
    With(String),
    /// `status N`: a command of the block may end with this status, too.
    Status(String),
}

/// The beginning of a comment with marks.
const BEGIN: &str = "<!-- docs-test: ";
/// The languages of blocks without commands (`sh`: a script). Such a block needs no mark.
const NO_COMMANDS: [&str; 5] = ["c", "dockerfile", "ini", "sh", "toml"];

impl Mark {
    fn parse(text: &str) -> Option<Mark> {
        let (first, rest) = text.split_once(char::is_whitespace)?;
        let rest = rest.trim();
        let (next, command) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        Some(match (first, next) {
            ("skip", _) => Mark::Skip(rest.to_owned()),
            ("file", _) => Mark::File(rest.to_owned()),
            (word, "is") if !command.is_empty() => {
                Mark::Stands(word.to_owned(), command.trim().to_owned())
            }
            ("with", _) => Mark::With(rest.to_owned()),
            ("status", _) => Mark::Status(rest.to_owned()),
            _ => return None,
        })
    }
}

/// Returns the command after a prompt. `# HELP` and `# TYPE` begin lines of metrics.
fn command(line: &str) -> Option<&str> {
    let of_root = || {
        line.strip_prefix("# ")
            .filter(|rest| !rest.starts_with("HELP ") && !rest.starts_with("TYPE "))
    };
    line.strip_prefix("$ ").or_else(of_root)
}

/// Returns the steps of a block, whose first line is this line of the page.
fn steps(lines: &[&str], first: usize, console: bool) -> Result<Vec<Step>, usize> {
    let mut steps: Vec<Step> = Vec::new();
    for (line, text) in (first..).zip(lines) {
        let begun = if console {
            command(text)
        } else {
            Some(*text).filter(|text| !text.trim().is_empty())
        };
        match (begun, steps.last_mut()) {
            (Some(command), _) => {
                steps.push(Step { line, command: command.to_owned(), output: Vec::new() });
            }
            (None, Some(step)) => step.output.push((*text).to_owned()),
            // Output before the first command.
            (None, None) if console => return Err(line),
            (None, None) => {}
        }
    }
    for step in &mut steps {
        while step.output.last().is_some_and(|line| line.trim().is_empty()) {
            step.output.pop();
        }
    }
    Ok(steps)
}

impl Page {
    /// Reads a page. The error names the line of a mark or of a block that is wrong.
    pub(crate) fn parse(path: &str, text: &str) -> Result<Page, String> {
        let wrong = |line: usize, what: &str| format!("{path}:{line}: {what}");
        let lines: Vec<&str> = text.lines().collect();
        let (mut blocks, mut marks) = (Vec::new(), Vec::new());
        let mut at = 0;
        while at < lines.len() {
            let number = at + 1;
            let line = lines[at].trim_start();
            let indent = lines[at].len() - line.len();
            at += 1;
            if line.starts_with(BEGIN) {
                let mut comment = line.trim_start_matches(BEGIN).to_owned();
                while !comment.trim_end().ends_with("-->") {
                    let more =
                        lines.get(at).ok_or_else(|| wrong(number, "the mark does not end"))?;
                    comment = format!("{comment} {}", more.trim());
                    at += 1;
                }
                let comment = comment.trim_end().trim_end_matches("-->").trim().to_owned();
                let parts = if comment.starts_with("skip ") {
                    vec![comment.as_str()]
                } else {
                    comment.split("; ").collect()
                };
                for part in parts {
                    let mark = Mark::parse(part.trim());
                    marks
                        .push(mark.ok_or_else(|| wrong(number, &format!("no such mark: {part}")))?);
                }
                continue;
            }
            let Some(language) = line.strip_prefix("```") else {
                if !line.is_empty() && !marks.is_empty() {
                    return Err(wrong(number, "a mark stands before no block"));
                }
                continue;
            };
            let begin = at;
            while lines.get(at).ok_or_else(|| wrong(number, "the block does not end"))?.trim()
                != "```"
            {
                at += 1;
            }
            let inner: Vec<_> = lines[begin..at]
                .iter()
                .map(|line| line.get(indent..).unwrap_or_default())
                .collect();
            at += 1;
            let marks = std::mem::take(&mut marks);
            let is_file = marks.iter().any(|mark| matches!(mark, Mark::File(_)));
            let console = language == "console";
            let steps = match language {
                _ if is_file => Vec::new(),
                "console" | "" => steps(&inner, begin + 1, console)
                    .map_err(|line| wrong(line, "output before the first command"))?,
                language if NO_COMMANDS.contains(&language) => {
                    if !marks.is_empty() {
                        return Err(wrong(
                            number,
                            "a mark other than `file` before a block without commands",
                        ));
                    }
                    continue;
                }
                _ => {
                    return Err(wrong(number, &format!("is {language} a language with commands?")));
                }
            };
            if steps.is_empty() && !is_file {
                return Err(wrong(number, "a block without commands"));
            }
            let has_output = console && steps.iter().any(|step| !step.output.is_empty());
            blocks.push(Block {
                line: number,
                marks,
                steps,
                text: inner.join("\n") + "\n",
                has_output,
            });
        }
        if !marks.is_empty() {
            return Err(wrong(lines.len(), "a mark stands before no block"));
        }
        Ok(Page { path: path.to_owned(), blocks })
    }
}

#[test]
fn blocks_have_their_marks_and_lines() {
    let text = "a\n\n<!-- docs-test: PID is busy_node; with\n  systemctl start x -->\n```console\n$ one PID\nout\n\n# two\n# HELP x\n```\n\
                \n```ini\n[x]\n```\n\n  <!-- docs-test: skip a; b -->\n  ```\n  three   # does\n  ```\n";
    let page = Page::parse("p", text).unwrap();
    assert_eq!(page.blocks.len(), 2);
    let [first, second] = &page.blocks[..] else { panic!("two blocks") };
    assert_eq!(first.line, 5);
    let stands = Mark::Stands("PID".to_owned(), "busy_node".to_owned());
    assert_eq!(first.marks, [stands, Mark::With("systemctl start x".to_owned())]);
    let step = |line, command: &str, output: &[&str]| {
        let output = output.iter().map(|line| (*line).to_owned()).collect();
        Step { line, command: command.to_owned(), output }
    };
    assert_eq!(first.steps, [step(6, "one PID", &["out"]), step(9, "two", &["# HELP x"])]);
    assert!(first.has_output && !second.has_output);
    assert_eq!(second.marks, [Mark::Skip("a; b".to_owned())]);
    assert_eq!(second.steps, [step(19, "three   # does", &[])]);
}

#[test]
fn wrong_pages_are_found() {
    for (text, why) in [
        ("<!-- docs-test: skp x -->\n```\na\n```", "p:1: no such mark"),
        ("<!-- docs-test: skip x -->\ntext", "p:2: a mark stands before no block"),
        ("<!-- docs-test: skip x -->\n", "p:1: a mark stands before no block"),
        ("```console\nout\n```", "p:2: output before"),
        ("```\n```", "p:1: a block without commands"),
        ("```zsh\na\n```", "p:1: is zsh a language"),
        ("```\na", "p:1: the block does not end"),
        ("<!-- docs-test: skip x\n", "p:1: the mark does not end"),
        ("<!-- docs-test: skip x -->\n```ini\n```", "p:2: a mark other than"),
    ] {
        let error = Page::parse("p", text).err().unwrap_or_default();
        assert!(error.starts_with(why), "{text:?}: {error}");
    }
}
