//! `/proc/PID/auxv`: pairs of native words that the kernel hands a new program (getauxval(3)).

/// The entry that ends the vector.
pub const AT_NULL: u64 = 0;
/// The address of the program headers.
pub const AT_PHDR: u64 = 3;
/// The address of the interpreter; 0 without one.
pub const AT_BASE: u64 = 7;
/// The program's own entry point.
pub const AT_ENTRY: u64 = 9;
/// Not 0 if the program runs with more privilege than its user (setuid and the like).
pub const AT_SECURE: u64 = 23;
/// The address of sixteen random bytes, on the initial stack.
pub const AT_RANDOM: u64 = 25;
/// The second word of processor features (`AT_HWCAP2`); each architecture defines the bits.
pub const AT_HWCAP2: u64 = 26;

/// Returns the value of entry `key`, or `None` if the vector has none. Assumes the 64-bit layout.
pub fn get(auxv: &[u8], key: u64) -> Option<u64> {
    let word = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_ne_bytes);
    auxv.chunks_exact(16)
        .map_while(|pair| Some((word(&pair[..8])?, word(&pair[8..])?)))
        .take_while(|&(found, _)| found != AT_NULL)
        .find_map(|(found, value)| (found == key).then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_entries_up_to_the_null() {
        let words = [AT_ENTRY, 0x1234, AT_NULL, 0, AT_SECURE, 1];
        let bytes: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_ne_bytes()).collect();
        assert_eq!(get(&bytes, AT_ENTRY), Some(0x1234));
        assert_eq!(get(&bytes, AT_SECURE), None);
        assert_eq!(get(&bytes[..9], AT_ENTRY), None);
        assert_eq!(get(&[], AT_ENTRY), None);
    }
}
