//! `/proc/meminfo`: the memory of the machine (proc_meminfo(5)).

use super::{lines, number};

/// Returns `MemAvailable`, in bytes: the kernel's estimate of the memory that new users can have without
/// swapping. `None` before Linux 3.14.
pub fn available(text: &[u8]) -> Option<u64> {
    field(text, "MemAvailable")
}

/// Returns the field of that name, in bytes; `None` if the kernel does not have it.
pub fn field(text: &[u8], name: &str) -> Option<u64> {
    let value =
        lines(text).find_map(|(_, line)| line.strip_prefix(name.as_bytes())?.strip_prefix(b":"))?;
    let digits = value.trim_ascii().strip_suffix(b" kB")?;
    number(digits.trim_ascii(), 10)?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::available;

    #[test]
    fn the_line_is_found_wherever_it_is() {
        let text = b"MemTotal:       24683756 kB\nMemFree:        22079432 kB\nMemAvailable:   24098304 kB\n";
        assert_eq!(available(text), Some(24_098_304 << 10));
    }

    #[test]
    fn odd_text_says_nothing() {
        for text in [
            &b""[..],
            b"MemAvailable:\n",
            b"MemAvailable: -1 kB\n",
            b"MemAvailable: 12 MB\n",
            b"MemAvailable: 99999999999999999999 kB\n",
            b"MemAvailable: 18446744073709551615 kB\n",
            b"MemFree: 12 kB",
        ] {
            assert_eq!(available(text), None, "{}", String::from_utf8_lossy(text));
        }
    }
}
