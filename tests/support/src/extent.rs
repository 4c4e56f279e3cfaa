//! How much the long tests do: a part in `make test`, and all in `make soak`, which sets `TIEXEC_TEST_ROUNDS`.

/// The value of `TIEXEC_TEST_ROUNDS`.
fn wanted() -> Option<usize> {
    let text = std::env::var("TIEXEC_TEST_ROUNDS").ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("TIEXEC_TEST_ROUNDS={text:?} is not a count")))
}

/// Returns whether tests do all that they can, however long it takes.
pub fn is_whole() -> bool {
    wanted().is_some()
}

/// The rounds of a loop at random moments: `TIEXEC_TEST_ROUNDS`, or else `few`.
pub fn rounds(few: usize) -> usize {
    wanted().unwrap_or(few)
}

/// Reports how many of the rounds came at the moment in question. Only the many rounds of `make soak` must have met it:
/// in few rounds that is a matter of chance.
pub fn met(count: usize, of: usize, what: &str) {
    println!("{what}: {count} of {of} rounds");
    assert!(count > 0 || !is_whole(), "{what}: none of {of} rounds");
}

/// The part of a sweep over the places of a fault. Several kinds of program share a sweep, each place with one of them
/// in turn. `make soak` tries every place with every kind.
#[derive(Debug, Clone, Copy)]
pub struct Share {
    /// The number of this kind, from 0.
    pub index: u32,
    /// The number of kinds.
    pub of: u32,
}

/// Every place.
pub const ALL: Share = Share { index: 0, of: 1 };

/// The kinds, each with its share.
pub fn shared<T>(
    kinds: impl IntoIterator<Item = T, IntoIter: ExactSizeIterator>,
) -> Vec<(Share, T)> {
    let kinds = kinds.into_iter();
    let of = u32::try_from(kinds.len()).expect("few kinds");
    (0..).zip(kinds).map(|(index, kind)| (Share { index, of }, kind)).collect()
}

/// The shares of a kind that has several of them, because it costs less than the others.
pub fn several(indices: std::ops::Range<u32>, of: u32) -> Vec<Share> {
    indices.map(|index| Share { index, of }).collect()
}

/// Calls `struck` with the numbers of the places of these shares in order, until it returns false, because the fault has
/// no such place. Panics if that place is one of the first `least`, as without fault injection. Returns the last
/// place that was struck, or 0.
pub fn sweep(shares: &[Share], least: u32, what: &str, mut struck: impl FnMut(u32) -> bool) -> u32 {
    /// More places than any fault has.
    const END: u32 = 300;
    let mut last = 0;
    for place in (1..END).filter(|place| shares.iter().any(|share| share.has(place - 1))) {
        if !struck(place) {
            assert!(
                place > least,
                "{what}: not struck at place {place}: is fault injection built in?"
            );
            return last;
        }
        last = place;
    }
    panic!("{what}: still struck at place {last}: it is never complete");
}

impl Share {
    /// Returns whether the place of this number, counted from 0, is in the share. In `make soak` each is.
    pub fn has(self, place: u32) -> bool {
        is_whole() || place % self.of == self.index
    }

    /// Sweeps over this share alone ([`sweep`]).
    pub fn sweep(self, least: u32, what: &str, struck: impl FnMut(u32) -> bool) -> u32 {
        sweep(&[self], least, what, struck)
    }
}
