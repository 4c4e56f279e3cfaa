//! The processors of the machine.

/// Returns the processors in a list of `/sys` (`0-3,8`), such as `online` or `possible`; none without `/sys`.
pub(crate) fn listed(list: &str) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/{list}"));
    let text = text.unwrap_or_default();
    let ranges = text.trim().split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    ranges.flatten().collect()
}
