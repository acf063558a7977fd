//! Contiguous shares of a row of items, one for each rank.

use std::ops::Range;

/// Where each rank's share begins; one more entry than there are ranks, the last is the number of items.
///
/// Shares are in rank order, cover every item once, and may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares {
    starts: Vec<usize>,
}

impl Shares {
    /// Equal shares: the first `items % ranks` ranks get one item more than the rest.
    ///
    /// With more ranks than items, the last ranks get none; a rank with an item has its neighbours' items next to its own.
    pub fn even(items: usize, ranks: usize) -> Shares {
        let (each, extra) = (items / ranks, items % ranks);
        Shares { starts: (0..=ranks).map(|rank| rank * each + rank.min(extra)).collect() }
    }

    /// Shares of equal weight, as far as whole items allow. `before[i]` is the weight of all items before item `i`; it
    /// never decreases, and has one entry more than there are items.
    ///
    /// # Panics
    /// If `before` is empty.
    pub fn weighted(before: &[usize], ranks: usize) -> Shares {
        let (&total, items) = (before.last().expect("one entry more than items"), before.len() - 1);
        let cut = |rank: usize| {
            let goal = total as u128 * rank as u128 / ranks as u128;
            // The boundary nearest to the goal: the last one before it or the first one after it.
            let after = before.partition_point(|&weight| (weight as u128) < goal).min(items);
            match after.checked_sub(1) {
                Some(low) if goal - (before[low] as u128) < (before[after] as u128).saturating_sub(goal) => low,
                _ => after,
            }
        };
        let mut starts: Vec<usize> = (0..ranks).map(cut).collect();
        starts.push(items);
        Shares { starts }
    }

    /// The same shares when each item consists of `parts`.
    pub fn scaled(&self, parts: usize) -> Shares {
        Shares { starts: self.starts.iter().map(|start| start * parts).collect() }
    }

    /// The shares that begin at `starts` (the last entry is the number of items).
    pub fn from_starts(starts: Vec<usize>) -> Shares {
        Shares { starts }
    }

    /// Where each share begins, and the number of items at the end.
    pub fn starts(&self) -> &[usize] {
        &self.starts
    }

    /// The items of `rank`.
    pub fn of(&self, rank: usize) -> Range<usize> {
        self.starts[rank]..self.starts[rank + 1]
    }

    /// The rank whose share has `item`.
    pub fn owner(&self, item: usize) -> usize {
        self.starts.partition_point(|&start| start <= item) - 1
    }

    /// The size of the largest share.
    pub fn largest(&self) -> usize {
        self.starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every item belongs to exactly one rank, and `owner` finds it.
    fn covers(shares: &Shares, items: usize, ranks: usize) {
        assert_eq!((shares.starts()[0], shares.starts()[ranks]), (0, items));
        let mut next = 0;
        for rank in 0..ranks {
            let share = shares.of(rank);
            assert_eq!(share.start, next, "{shares:?}");
            assert!(share.end >= share.start, "{shares:?}");
            next = share.end;
            share.for_each(|item| assert_eq!(shares.owner(item), rank, "{shares:?}"));
        }
    }

    #[test]
    fn even_shares_cover_everything_and_differ_by_one() {
        for items in [0, 1, 2, 3, 7, 100, 512] {
            for ranks in 1..=9 {
                let shares = Shares::even(items, ranks);
                covers(&shares, items, ranks);
                let sizes = (0..ranks).map(|rank| shares.of(rank).len());
                assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1);
            }
        }
    }

    #[test]
    fn weighted_shares_cover_everything_and_stay_near_the_mean() {
        let mut state = 1_u64;
        for items in [0, 1, 2, 5, 40, 1000] {
            let mut before = vec![0];
            for _ in 0..items {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                before.push(before[before.len() - 1] + (state >> 60) as usize);
            }
            for ranks in 1..=9 {
                let shares = Shares::weighted(&before, ranks);
                covers(&shares, items, ranks);
                for rank in 0..ranks {
                    let share = shares.of(rank);
                    let weight = before[share.end] - before[share.start];
                    // Each end is off by at most half an item of weight at most 15.
                    assert!(weight <= before[items] / ranks + 16, "rank {rank} of {ranks}: {weight}");
                }
            }
        }
    }
}
