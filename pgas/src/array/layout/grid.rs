//! Grids of ranks.

use bellwether_runtime::{Error, Placed, Result};

const OPERATION: &str = "a grid of ranks";

/// A grid of `ranks` ranks whose sides are as near to each other as they can be, the largest first: what
/// `MPI_Dims_create` gives (MPI 4.1, section 8.5.2). Sides that are not 0 in `fixed` stay as they are.
///
/// # Errors
/// [`Error::InvalidArgument`] if the fixed sides do not divide the ranks, or if there are more than 32 bits count.
///
/// # Examples
/// ```
/// # use bellwether::array::near_square;
/// assert_eq!(near_square(12, [0, 0])?, [4, 3]);
/// assert_eq!(near_square(12, [0, 2, 0])?, [3, 2, 2]);
/// assert!(near_square(12, [5, 0]).is_err());
/// # Ok::<(), bellwether::Error>(())
/// ```
#[track_caller]
pub fn near_square<const D: usize>(ranks: usize, fixed: [usize; D]) -> Result<[usize; D]> {
    if u32::try_from(ranks).is_err() {
        let why = format!("{ranks} ranks: there can be {}", u32::MAX);
        return Err(Error::InvalidArgument { operation: OPERATION, why }).placed();
    }
    let taken = fixed.iter().filter(|side| **side > 0).try_fold(1usize, |all, side| all.checked_mul(*side));
    let free = fixed.iter().filter(|side| **side == 0).count();
    let rest = match taken {
        Some(taken) if ranks > 0 && ranks.is_multiple_of(taken) && (free > 0 || taken == ranks) => ranks / taken,
        _ => {
            let why = format!("sides {fixed:?} (0: free) do not make a grid of {ranks} ranks");
            return Err(Error::InvalidArgument { operation: OPERATION, why }).placed();
        }
    };
    let mut sides = Vec::with_capacity(free);
    flattest(&divisors(rest), rest, free, &mut sides);
    sides.sort_unstable_by(|a, b| b.cmp(a));
    let mut sides = sides.into_iter();
    Ok(fixed.map(|side| if side > 0 { side } else { sides.next().expect("a side for each that is free") }))
}

/// The divisors of `number`, in order.
pub(super) fn divisors(number: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (1..).take_while(|n| n * n <= number).filter(|n| number.is_multiple_of(*n)).collect();
    let others: Vec<usize> = all.iter().rev().map(|n| number / n).filter(|n| n * n != number).collect();
    all.extend(others);
    all
}

/// Splits `ranks` into `count` of these divisors: the largest as small as can be, then the next.
fn flattest(divisors: &[usize], ranks: usize, count: usize, sides: &mut Vec<usize>) {
    let fits = |side: usize| ranks.is_multiple_of(side) && power_reaches(side, count, ranks);
    match count {
        0 => {}
        1 => sides.push(ranks),
        _ => {
            for side in divisors.iter().copied().filter(|side| fits(*side)) {
                let mut rest = Vec::with_capacity(count - 1);
                flattest(divisors, ranks / side, count - 1, &mut rest);
                // Smaller ones would have been the largest side before.
                if rest.iter().all(|other| *other <= side) {
                    sides.push(side);
                    sides.extend(rest);
                    return;
                }
            }
        }
    }
}

/// Whether `side`^`count` is at least `ranks`.
fn power_reaches(side: usize, count: usize, ranks: usize) -> bool {
    (0..count).try_fold(1usize, |all, _| all.checked_mul(side)).is_none_or(|all| all >= ranks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_mpi_would() {
        let two = |ranks| near_square(ranks, [0; 2]).expect("a grid");
        let three = |ranks| near_square(ranks, [0; 3]).expect("a grid");
        assert_eq!(
            [1, 2, 3, 4, 6, 7, 16, 24].map(two),
            [[1, 1], [2, 1], [3, 1], [2, 2], [3, 2], [7, 1], [4, 4], [6, 4]]
        );
        assert_eq!(
            [1, 7, 8, 12, 30, 64].map(three),
            [[1, 1, 1], [7, 1, 1], [2, 2, 2], [3, 2, 2], [5, 3, 2], [4, 4, 4]]
        );
        assert_eq!(near_square(9, [0]).expect("a grid"), [9]);
        // A prime, a square, and a number with the most divisors for its bits.
        assert_eq!(two(4_294_967_291), [4_294_967_291, 1]);
        assert_eq!(two(65_535 * 65_535), [65_535, 65_535]);
        assert_eq!(three(3_491_888_400), [1540, 1530, 1482]);
        assert!(near_square(usize::MAX, [0; 2]).is_err());
    }

    #[test]
    fn what_does_not_divide_is_told_with_both_sides() {
        for (ranks, fixed) in [(7, [2, 0]), (6, [3, 3]), (6, [usize::MAX, 2]), (0, [0, 0])] {
            let error = near_square(ranks, fixed).expect_err("no such grid").to_string();
            assert!(error.contains(&format!("{fixed:?}")) && error.contains(&format!("{ranks} ranks")), "{error}");
        }
    }
}
