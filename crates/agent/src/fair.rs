//! Limited lists that many owners fill, so that nobody takes the room of another owner.

use std::collections::HashMap;
use std::hash::Hash;

/// Returns which entry has to go from a list that is too long, the oldest entries first: the oldest entry of the user who has
/// the most. Returns its place, and how many that user has. The entries of the machine, which have no owner, stay. `None` if
/// there are no others.
pub(crate) fn surplus<T: Eq + Hash>(
    owners: impl IntoIterator<Item = Option<T>>,
) -> Option<(usize, usize)> {
    let mut counts: HashMap<T, (usize, usize)> = HashMap::new();
    for (at, owner) in owners.into_iter().enumerate() {
        if let Some(owner) = owner {
            counts.entry(owner).or_insert((0, at)).0 += 1;
        }
    }
    // If two users have as many entries, the older of their oldest entries goes.
    let most = counts.into_values().max_by_key(|&(count, first)| (count, std::cmp::Reverse(first)));
    most.map(|(count, first)| (first, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_the_room_of_another() {
        let (a, b) = (Some(1), Some(2));
        assert_eq!(surplus([None, b, a, a, None]), Some((2, 2)));
        assert_eq!(surplus([None, b, a]), Some((1, 1)));
        assert_eq!(surplus([None::<u32>, None]), None);
    }
}
