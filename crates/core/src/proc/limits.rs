//! `/proc/PID/limits`: the limits of a process on its resources.

use super::{lines, number};

/// Returns the soft limit of the resource that the file calls `name`, such as `Max processes`; `None` if it is
/// unlimited, or the file does not have it.
pub fn soft(text: &[u8], name: &[u8]) -> Option<u64> {
    let values = lines(text).find_map(|(_, line)| line.strip_prefix(name))?;
    let mut words = values.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    number(words.next()?, 10)
}

#[cfg(test)]
mod tests {
    use super::soft;

    #[test]
    fn the_soft_limit_is_the_first_figure() {
        let text =
            b"Limit                     Soft Limit           Hard Limit           Units     \n\
            Max core file size        unlimited            unlimited            bytes     \n\
            Max processes             4                    96364                processes \n";
        assert_eq!(soft(text, b"Max processes"), Some(4));
        assert_eq!(soft(text, b"Max core file size"), None);
        assert_eq!(soft(text, b"Max open files"), None);
        assert_eq!(soft(b"", b"Max processes"), None);
    }
}
