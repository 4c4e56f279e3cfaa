//! Sorting with little code. The compiler makes a new copy of the standard library's sort for each type of element,
//! some 4 KiB each. Every program that uses libtiexec maps it; with these functions libtiexec is a twelfth smaller.

use std::cmp::Ordering;

/// Sorts by a key; equal elements keep their order, as with [`slice::sort_by_key`]. It calls `key` more often than once for
/// each element.
pub fn by_key<T, K: Ord>(items: &mut [T], key: impl Fn(&T) -> K) {
    by(items, |one, other| key(one).cmp(&key(other)));
}

/// Sorts by a comparison; equal elements keep their order, as with [`slice::sort_by`].
pub fn by<T>(items: &mut [T], compare: impl Fn(&T, &T) -> Ordering) {
    let mut places = sorted(items.len(), &|one, other| compare(&items[one], &items[other]));
    // The element of place `first` is where it belongs once its cycle of the permutation has been walked.
    for first in 0..places.len() {
        let mut at = first;
        while places[at] != first {
            let from = std::mem::replace(&mut places[at], at);
            items.swap(at, from);
            at = from;
        }
        places[at] = at;
    }
}

/// Returns which element belongs at each place. This is the only sort that is compiled.
#[inline(never)]
fn sorted(len: usize, compare: &dyn Fn(usize, usize) -> Ordering) -> Vec<usize> {
    let mut places: Vec<usize> = (0..len).collect();
    places.sort_by(|&one, &other| compare(one, other));
    places
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_sorts_as_the_standard_library_does(items in prop::collection::vec((0_u8..8, any::<u8>()), 0..200)) {
            let (mut ours, mut theirs) = (items.clone(), items);
            by_key(&mut ours, |item| item.0);
            theirs.sort_by_key(|item| item.0);
            prop_assert_eq!(&ours, &theirs);
            by(&mut ours, |one, other| other.cmp(one));
            theirs.sort_by(|one, other| other.cmp(one));
            prop_assert_eq!(ours, theirs);
        }
    }
}
