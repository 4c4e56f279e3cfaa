//! Plans by property, for processes that lie.

mod check;

use check::Had;
use proptest::prelude::*;

proptest! {
    // For more cases: PROPTEST_CASES=1000000.
    #![proptest_config(ProptestConfig { max_shrink_iters: 100_000, ..ProptestConfig::default() })]
    #[test]
    fn what_is_planned_for_a_lying_process_harms_nobody(
        input in prop::collection::vec(any::<u8>(), 0..1500)
    ) {
        check::check(&input);
    }
}

/// The worlds have something to plan for, and something to get wrong.
#[test]
fn worlds_are_not_empty() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut had = Had::default();
    for _ in 0..3000 {
        let input: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(1500).collect();
        let Had { spans, edges, certain, doubtful, moved } = check::check(&input);
        had.spans += spans;
        had.edges += edges;
        had.certain += certain;
        had.doubtful += doubtful;
        had.moved += moved;
    }
    println!("{had:?}");
    let Had { spans, edges, certain, doubtful, moved } = had;
    assert!([spans, edges, certain, doubtful, moved].iter().all(|&count| count > 50), "{had:?}");
}
