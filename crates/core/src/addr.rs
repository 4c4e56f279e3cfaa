//! Addresses of another address space, ranges of them, and page sizes.
//!
//! A [`RemoteAddr`] is a number, never a pointer: it means something only in the target. There are
//! no bare operators on it; arithmetic is checked, because addresses come from the kernel's text
//! and from files that nobody vouches for.

use std::borrow::Cow;
use std::fmt;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::order;

/// An address in the target's address space, in bytes. Cannot be dereferenced here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RemoteAddr(u64);

impl RemoteAddr {
    /// Wraps a raw address.
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// Returns the raw address.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the address `bytes` higher, or `None` past the end of the address space.
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(raw) => Some(Self(raw)),
            None => None,
        }
    }

    /// Returns the address `bytes` lower, or `None` below zero.
    pub const fn checked_sub(self, bytes: u64) -> Option<Self> {
        match self.0.checked_sub(bytes) {
            Some(raw) => Some(Self(raw)),
            None => None,
        }
    }

    /// Returns the greatest multiple of `size` that is not above this address.
    pub const fn align_down(self, size: PageSize) -> Self {
        Self(self.0 & !(size.0 - 1))
    }

    /// Returns the least multiple of `size` that is not below this address, or `None` if the
    /// address space has no such multiple.
    pub const fn align_up(self, size: PageSize) -> Option<Self> {
        match self.0.checked_add(size.0 - 1) {
            Some(raw) => Some(Self(raw).align_down(size)),
            None => None,
        }
    }

    /// Returns whether this is a multiple of `size`.
    pub const fn is_aligned(self, size: PageSize) -> bool {
        self.0 & (size.0 - 1) == 0
    }
}

impl fmt::Debug for RemoteAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::LowerHex for RemoteAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

/// Serialised as `/proc/PID/maps` prints it: eight or more hexadecimal digits.
impl Serialize for RemoteAddr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:08x}", self.0))
    }
}

impl<'de> Deserialize<'de> for RemoteAddr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let digits = <Cow<'de, str>>::deserialize(deserializer)?;
        u64::from_str_radix(&digits, 16).map(Self).map_err(D::Error::custom)
    }
}

/// A page size in bytes: a power of two, read from the kernel, never written into the code.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct PageSize(u64);

impl TryFrom<u64> for PageSize {
    type Error = &'static str;

    fn try_from(bytes: u64) -> Result<Self, Self::Error> {
        Self::new(bytes).ok_or("no power of two")
    }
}

impl From<PageSize> for u64 {
    fn from(size: PageSize) -> Self {
        size.0
    }
}

impl PageSize {
    /// Returns the page size of `bytes`, or `None` if that is not a power of two.
    pub const fn new(bytes: u64) -> Option<Self> {
        if bytes.is_power_of_two() { Some(Self(bytes)) } else { None }
    }

    /// Returns the size in bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Returns the size's binary logarithm.
    pub const fn bits(self) -> u32 {
        self.0.trailing_zeros()
    }
}

/// The page sizes that a plan uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pages {
    /// The architecture's smallest page (`sysconf(_SC_PAGESIZE)`).
    pub base: PageSize,
    /// The huge page: what one PMD entry maps (`hpage_pmd_size`), 2 MiB on x86-64; or a page of the
    /// hugetlb pool of another size, if the plan uses that.
    pub pmd: PageSize,
}

/// A range of addresses `start..end` in the target; `start <= end`, and empty where they are equal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "Ends")]
pub struct AddrRange {
    start: RemoteAddr,
    end: RemoteAddr,
}

/// A range that need not be valid.
#[derive(Deserialize)]
struct Ends {
    start: RemoteAddr,
    end: RemoteAddr,
}

impl TryFrom<Ends> for AddrRange {
    type Error = &'static str;

    fn try_from(Ends { start, end }: Ends) -> Result<Self, Self::Error> {
        Self::new(start, end).ok_or("the end is before the start")
    }
}

impl AddrRange {
    /// Returns the range from `start` up to, not including, `end`; `None` if `end < start`.
    pub fn new(start: RemoteAddr, end: RemoteAddr) -> Option<Self> {
        (start <= end).then_some(Self { start, end })
    }

    /// Returns the range of `len` bytes at `start`; `None` if it leaves the address space.
    pub fn with_len(start: RemoteAddr, len: u64) -> Option<Self> {
        Some(Self { start, end: start.checked_add(len)? })
    }

    /// Returns the first address.
    pub const fn start(self) -> RemoteAddr {
        self.start
    }

    /// Returns the address after the last.
    pub const fn end(self) -> RemoteAddr {
        self.end
    }

    /// Returns the length in bytes.
    pub const fn len(self) -> u64 {
        self.end.0 - self.start.0
    }

    /// Returns whether the range holds no address.
    pub const fn is_empty(self) -> bool {
        self.start.0 == self.end.0
    }

    /// Returns whether `addr` lies in the range.
    pub fn contains(self, addr: RemoteAddr) -> bool {
        self.start <= addr && addr < self.end
    }

    /// Returns whether all of `other` lies in the range.
    pub fn covers(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Returns whether the two ranges share an address.
    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Returns what the two ranges share; `None` if that is nothing.
    pub fn intersection(self, other: Self) -> Option<Self> {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (start < end).then_some(Self { start, end })
    }

    /// Returns the range from the lower start to the higher end.
    #[must_use]
    pub fn hull(self, other: Self) -> Self {
        Self { start: self.start.min(other.start), end: self.end.max(other.end) }
    }

    /// Returns the same addresses in as few ranges as possible, ascending.
    pub fn joined(mut ranges: Vec<Self>) -> Vec<Self> {
        order::by_key(&mut ranges, |range| range.start);
        let mut all: Vec<Self> = Vec::new();
        for range in ranges {
            match all.last_mut() {
                Some(last) if range.start <= last.end => *last = last.hull(range),
                _ => all.push(range),
            }
        }
        all
    }

    /// Returns the range widened to begin and end on multiples of `size`; `None` if that leaves the
    /// address space.
    pub fn align_outward(self, size: PageSize) -> Option<Self> {
        Some(Self { start: self.start.align_down(size), end: self.end.align_up(size)? })
    }

    /// Returns the largest part of the range that begins and ends on a multiple of `size`: the
    /// whole pages of that size in it; `None` if there are none.
    pub fn align_inward(self, size: PageSize) -> Option<Self> {
        let start = self.start.align_up(size)?;
        let end = self.end.align_down(size);
        (start < end).then_some(Self { start, end })
    }
}

impl fmt::Display for AddrRange {
    /// Formats the range as `/proc/PID/maps` prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}-{:08x}", self.start.0, self.end.0)
    }
}

impl fmt::Debug for AddrRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Formats the size of a page, as the kernel and numactl(8) do: `64K`, `2M`, `1G`.
pub fn short(bytes: u64) -> String {
    let units = [(30, "G"), (20, "M"), (10, "K")];
    let unit = units
        .into_iter()
        .find(|&(shift, _)| bytes >> shift > 0 && bytes.is_multiple_of(1 << shift));
    unit.map_or(bytes.to_string(), |(shift, letter)| format!("{}{letter}", bytes >> shift))
}

/// Formats `bytes` as MiB with one decimal, the unit of every table.
pub fn mib(bytes: u64) -> String {
    // Tenths of a MiB, rounded half up, in integers: a table must not depend on float printing.
    let tenths = (u128::from(bytes) * 10 + (1 << 19)) >> 20;
    format!("{}.{}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PMD: PageSize = PageSize(2 << 20);

    #[test]
    fn the_seeds_worked_example_keeps_three_huge_pages() {
        let text = AddrRange::new(RemoteAddr(0x5f_f000), RemoteAddr(0xc1_0000)).unwrap();
        let whole = text.align_inward(PMD).unwrap();
        assert_eq!(whole.to_string(), "00600000-00c00000");
        assert_eq!(whole.len() / PMD.bytes(), 3);
    }

    #[test]
    fn a_range_without_a_whole_page_has_no_interior() {
        let short = AddrRange::with_len(RemoteAddr(0x20_1000), (4 << 20) - 0x2000).unwrap();
        assert_eq!(short.align_inward(PMD), None);
        let top = AddrRange::new(RemoteAddr(u64::MAX - 10), RemoteAddr(u64::MAX)).unwrap();
        assert_eq!(top.align_inward(PMD), None);
    }

    #[test]
    fn ranges_that_touch_or_overlap_are_joined() {
        let range = |start, end| AddrRange::new(RemoteAddr(start), RemoteAddr(end)).unwrap();
        let joined = AddrRange::joined(vec![range(6, 8), range(0, 4), range(4, 5), range(1, 3)]);
        assert_eq!(joined, [range(0, 5), range(6, 8)]);
        assert_eq!(range(6, 8).hull(range(0, 4)), range(0, 8));
    }

    #[test]
    fn json_of_a_range_and_of_pages_comes_back() {
        let text = r#"{"start":"00600000","end":"7f0000c00000"}"#;
        let range: AddrRange = serde_json::from_str(text).unwrap();
        assert_eq!(range.start(), RemoteAddr(0x60_0000));
        assert_eq!(serde_json::to_string(&range).unwrap(), text);
        let text = r#"{"base":4096,"pmd":2097152}"#;
        let pages: Pages = serde_json::from_str(text).unwrap();
        assert_eq!(pages.pmd, PMD);
        assert_eq!(serde_json::to_string(&pages).unwrap(), text);
    }

    #[test]
    fn json_of_no_range_and_of_no_page_is_refused() {
        for text in [r#"{"start":"2","end":"1"}"#, r#"{"start":"x","end":"1"}"#, "{}"] {
            assert!(serde_json::from_str::<AddrRange>(text).is_err(), "{text}");
        }
        assert!(serde_json::from_str::<PageSize>("3").is_err());
    }

    #[test]
    fn sizes_of_pages_are_short() {
        for (bytes, text) in [(64 << 10, "64K"), (2 << 20, "2M"), (1 << 30, "1G"), (1000, "1000")] {
            assert_eq!(short(bytes), text);
        }
    }

    #[test]
    fn mib_rounds_to_one_decimal() {
        assert_eq!(mib(0), "0.0");
        assert_eq!(mib(52 << 20), "52.0");
        assert_eq!(mib((1 << 20) * 265 / 10), "26.5");
        assert_eq!(mib(u64::MAX), "17592186044416.0");
    }
}
