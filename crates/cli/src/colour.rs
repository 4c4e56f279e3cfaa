//! Colours on a terminal.

/// Returns whether the environment wants colours: `NO_COLOR` is unset or empty (no-color.org), and the terminal has them.
pub(crate) fn is_wanted() -> bool {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    set("NO_COLOR").is_none() && set("TERM").is_some_and(|term| term != "dumb")
}
