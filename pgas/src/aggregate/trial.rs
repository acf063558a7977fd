//! Chooses the faster of two ways to read elements. Machine and data decide which that is, so both are tried and timed.

use std::time::Duration;

/// A way to read elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// In the order of the caller's indices.
    Straight,
    /// Sorted by their place in the table.
    Sorted,
}

/// A call with fewer items never sorts.
const FEW: usize = 1 << 14;
/// The first calls try both ways in turn. Of each way only the shortest time counts, because these calls may be the first to
/// touch the memory.
const FIRST: u32 = 4;
/// After the first calls, one in this many tries the slower way again.
const AGAIN: u32 = 64;

/// How long both ways took lately, for calls of one shape.
#[derive(Debug, Default)]
pub(super) struct Trial {
    /// Elements of the table at each rank, and half the binary logarithm of the number of items.
    shape: (usize, u32),
    calls: u32,
    /// Nanoseconds per item of both ways, in the order of [`Way`].
    took: [f64; 2],
}

impl Trial {
    /// The way for a call with `items` items, on a table with `len` elements at each rank.
    pub(super) fn choose(&mut self, len: usize, items: usize) -> Way {
        if items < FEW {
            return Way::Straight;
        }
        let shape = (len, items.ilog2() / 2);
        if shape != self.shape {
            *self = Trial { shape, calls: 0, took: [f64::INFINITY; 2] };
        }
        let [straight, sorted] = self.took;
        let prefers_straight = match self.calls {
            calls if calls < FIRST => calls.is_multiple_of(2),
            calls => (straight <= sorted) != calls.is_multiple_of(AGAIN),
        };
        if prefers_straight { Way::Straight } else { Way::Sorted }
    }

    /// Records how long the call took.
    pub(super) fn note(&mut self, way: Way, items: usize, time: Duration) {
        if items < FEW {
            return;
        }
        let took = time.as_nanos() as f64 / items as f64;
        let known = &mut self.took[way as usize];
        // After the first calls a moving average, so that one slow call does not change the choice.
        *known = if self.calls < FIRST { known.min(took) } else { (3.0 * *known + took) / 4.0 };
        self.calls += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ways that `calls` calls choose, if the two ways take `took` nanoseconds per item.
    fn ways(trial: &mut Trial, calls: usize, took: [u64; 2]) -> Vec<Way> {
        let call = |_| {
            let way = trial.choose(1000, FEW);
            trial.note(way, FEW, Duration::from_nanos(took[way as usize] * FEW as u64));
            way
        };
        (0..calls).map(call).collect()
    }

    #[test]
    fn both_are_tried_and_the_quicker_is_kept() {
        use Way::{Sorted, Straight};
        for (took, kept, other) in [([3, 5], Straight, Sorted), ([5, 3], Sorted, Straight)] {
            let mut trial = Trial::default();
            let first = ways(&mut trial, 4, took);
            assert_eq!(first, [Straight, Sorted, Straight, Sorted]);
            assert_eq!(ways(&mut trial, 60, took), [kept; 60]);
            assert_eq!(ways(&mut trial, 2, took), [other, kept], "now and then the other is tried again");
        }
    }

    #[test]
    fn what_becomes_quicker_is_taken() {
        let mut trial = Trial::default();
        assert_eq!(ways(&mut trial, 10, [3, 5])[9], Way::Straight);
        let later = ways(&mut trial, 200, [30, 5]);
        assert_eq!(later[199], Way::Sorted, "{later:?}");
    }

    #[test]
    fn few_items_are_not_sorted_and_other_calls_are_tried_anew() {
        let mut trial = Trial::default();
        for _ in 0..10 {
            assert_eq!(trial.choose(1000, FEW - 1), Way::Straight);
            trial.note(Way::Straight, FEW - 1, Duration::from_secs(1));
        }
        assert_eq!(ways(&mut trial, 10, [5, 3])[9], Way::Sorted);
        assert_eq!(trial.choose(2000, FEW), Way::Straight, "another table");
        assert_eq!(trial.choose(2000, 16 * FEW), Way::Straight, "many more items");
    }
}
