//! Runs of contiguous elements, each copied in one piece.

/// Neighbouring elements that go to neighbouring places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) count: usize,
}

/// Joins single moves, as (from, to), in their order.
pub(super) fn pairs(moves: Vec<(usize, usize)>) -> Vec<Pair> {
    let mut pairs: Vec<Pair> = Vec::new();
    for (from, to) in moves {
        match pairs.last_mut() {
            Some(pair) if pair.from + pair.count == from && pair.to + pair.count == to => pair.count += 1,
            _ => pairs.push(Pair { from, to, count: 1 }),
        }
    }
    pairs
}

/// Joins places, as start and count, in their order.
pub(super) fn spans(places: &[u64]) -> Vec<(usize, usize)> {
    let mut spans: Vec<(usize, usize)> = Vec::new();
    for place in places.iter().map(|place| *place as usize) {
        match spans.last_mut() {
            Some((start, count)) if *start + *count == place => *count += 1,
            _ => spans.push((place, 1)),
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_joined() {
        assert_eq!(spans(&[3, 4, 5, 7, 9, 10]), [(3, 3), (7, 1), (9, 2)]);
        assert_eq!(spans(&[]), []);
        let pair = |from, to, count| Pair { from, to, count };
        let moves = vec![(0, 5), (1, 6), (2, 8), (3, 9), (3, 10)];
        assert_eq!(pairs(moves), [pair(0, 5, 2), pair(2, 8, 2), pair(3, 10, 1)]);
    }
}
