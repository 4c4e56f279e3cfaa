//! `/etc/ld.so.cache`: where glibc's `ld.so` finds libraries by name (ld.so(8), `dl-cache.h`).

use std::cmp::Ordering;
use std::ffi::CStr;

/// The part of the file that glibc since 2.2 reads; an older table may precede it.
const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const HEADER_LEN: usize = 48;
const ENTRY_LEN: usize = 24;
/// `FLAG_ELF_LIBC6` and the machine's 64-bit ABI.
const FLAGS: u32 = if cfg!(target_arch = "aarch64") { 0x0a03 } else { 0x0303 };

/// Returns the path of the library `name` for a processor without special features. Returns `None` if
/// the library is not in the cache, or if `cache` is not an `ld.so.cache`.
pub fn find<'a>(cache: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let start = cache.windows(MAGIC.len()).position(|window| window == MAGIC)?;
    let table = &cache[start..];
    let word = |at: usize| Some(u32::from_le_bytes(table.get(at..at + 4)?.try_into().ok()?));
    let string = |at: u32| {
        let text = table.get(usize::try_from(at).ok()?..)?;
        CStr::from_bytes_until_nul(text).ok().map(CStr::to_bytes)
    };
    let count = usize::try_from(word(20)?).ok()?;
    let entry = |index: usize| HEADER_LEN + index * ENTRY_LEN;
    table.get(..entry(count))?;
    // The names are in descending order.
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if compare(string(word(entry(middle) + 4)?)?, name) == Ordering::Greater {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    (low..count).map(entry).map_while(|at| (string(word(at + 4)?)? == name).then_some(at)).find_map(
        |at| {
            // A later glibc has bits for processor features in a second word.
            let plain = word(at + 16)? == 0 && word(at + 20)? == 0;
            (plain && word(at)? == FLAGS).then(|| string(word(at + 8)?))?
        },
    )
}

/// `_dl_cache_libcmp`: compares as strings, but numbers in them by value.
fn compare(mut one: &[u8], mut other: &[u8]) -> Ordering {
    let number = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    loop {
        match (one.first(), other.first()) {
            (None, None) => return Ordering::Equal,
            (Some(a), Some(b)) if a.is_ascii_digit() && b.is_ascii_digit() => {
                let (long, longer) = (number(one), number(other));
                let value = |digits: &[u8]| {
                    digits.iter().fold(0u64, |value, digit| {
                        value.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'))
                    })
                };
                let order = value(&one[..long]).cmp(&value(&other[..longer]));
                if order != Ordering::Equal {
                    return order;
                }
                (one, other) = (&one[long..], &other[longer..]);
            }
            // A number comes after anything else.
            (Some(a), _) if a.is_ascii_digit() => return Ordering::Greater,
            (_, Some(b)) if b.is_ascii_digit() => return Ordering::Less,
            (a, b) if a != b => return a.cmp(&b),
            _ => (one, other) = (&one[1..], &other[1..]),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cache(entries: &[(&str, &str, u32, u64)]) -> Vec<u8> {
        let mut table = MAGIC.to_vec();
        table.extend(u32::try_from(entries.len()).unwrap().to_le_bytes());
        table.resize(HEADER_LEN, 0);
        let mut strings: Vec<u8> = Vec::new();
        let first = HEADER_LEN + entries.len() * ENTRY_LEN;
        for (name, path, flags, processor) in entries {
            let mut put = |text: &str| {
                let at = u32::try_from(first + strings.len()).unwrap();
                strings.extend(text.as_bytes());
                strings.push(0);
                at
            };
            let words = [*flags, put(name), put(path), 0];
            table.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            table.extend(processor.to_le_bytes());
        }
        table.extend(strings);
        table
    }

    #[test]
    fn finds_the_plain_one_of_this_machine() {
        let entries = [
            ("libz.so.10", "/10", FLAGS, 0),
            ("libz.so.9", "/32", 0x0003, 0),
            ("libz.so.9", "/v3", FLAGS, 1 << 62),
            ("libz.so.9", "/9", FLAGS, 0),
            ("libz.so", "/0", FLAGS, 0),
            ("liba.so", "/a", FLAGS, 0),
        ];
        let mut file = b"ld.so-1.7.0 and what follows".to_vec();
        file.extend(cache(&entries));
        for (name, path) in
            [("libz.so.10", "/10"), ("libz.so.9", "/9"), ("libz.so", "/0"), ("liba.so", "/a")]
        {
            assert_eq!(find(&file, name.as_bytes()), Some(path.as_bytes()), "{name}");
        }
        for missing in ["libz.so.1", "libb.so", "", "libz.so.11", "a"] {
            assert_eq!(find(&file, missing.as_bytes()), None, "{missing}");
        }
    }

    #[test]
    fn what_is_cut_off_finds_nothing() {
        let whole = cache(&[("libz.so", "/0", FLAGS, 0)]);
        for len in 0..whole.len() {
            assert_eq!(find(&whole[..len], b"libz.so"), None, "{len}");
        }
        let mut many = whole;
        many[20..24].fill(0xff);
        assert_eq!(find(&many, b"libz.so"), None);
    }

    proptest! {
        #[test]
        fn a_hostile_cache_gives_only_its_own_bytes(
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..40),
            name in "libz?[0-9]{0,24}(\\.so)?",
        ) {
            let mut file = cache(&[("libz9.so", "/9", FLAGS, 0), ("libz.so", "/0", FLAGS, 0)]);
            for (at, byte) in damage {
                // The words of the header and of the entries are what leads elsewhere.
                let at = MAGIC.len() + at.index(file.len() - MAGIC.len());
                file[at] = byte;
            }
            if let Some(path) = find(&file, name.as_bytes()) {
                let inside = file.as_ptr_range();
                let found = path.as_ptr_range();
                prop_assert!(inside.start <= found.start && found.end < inside.end);
                prop_assert!(!path.contains(&0));
            }
        }
    }

    #[test]
    fn numbers_are_compared_as_numbers() {
        assert_eq!(compare(b"a10", b"a9"), Ordering::Greater);
        assert_eq!(compare(b"a1", b"ab"), Ordering::Greater);
        assert_eq!(compare(b"a", b"ab"), Ordering::Less);
        assert_eq!(compare(b"a01x", b"a1x"), Ordering::Equal);
    }
}
