//! One dimension of a layout: which part has an index, and where in that part it is.

use std::ops::Range;
use std::sync::Arc;

use super::divide::Divisor;

/// How the indices of one dimension are dealt out.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Axis {
    extent: usize,
    parts: usize,
    rule: Rule,
}

#[derive(Debug, Clone, PartialEq)]
enum Rule {
    /// The first `large` parts have one index more than the others.
    Block {
        large: usize,
        boundary: usize,
        larger: Divisor,
        smaller: Divisor,
    },
    Cyclic {
        parts: Divisor,
    },
    BlockCyclic {
        block: Divisor,
        parts: Divisor,
    },
    /// Where each part begins, and where the last one ends.
    Uneven {
        starts: Arc<[usize]>,
    },
}

/// Neighbouring indices that are neighbours in one part too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// The part that has them.
    pub part: usize,
    /// The first one in that part.
    pub local: usize,
    /// The first one in the array.
    pub global: usize,
    /// How many there are.
    pub count: usize,
}

/// Indices whose places follow from their quotient by one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// The first index, and how many there are.
    pub start: usize,
    pub count: usize,
    /// The part that the first one is in.
    pub part: usize,
    /// Indices of a part, or parts if they are dealt out one by one.
    pub divisor: usize,
    pub dealt: bool,
    /// Indices of a block of each part, where parts get blocks in turn of `divisor` indices; else 0.
    pub round: usize,
}

impl Axis {
    pub fn block(extent: usize, parts: usize) -> Axis {
        let (smaller, large) = (extent / parts, extent % parts);
        let rule = Rule::Block {
            large,
            boundary: large * (smaller + 1),
            larger: Divisor::new(smaller + 1),
            // Without any, every index lies before the boundary.
            smaller: Divisor::new(smaller.max(1)),
        };
        Axis { extent, parts, rule }
    }

    pub fn cyclic(extent: usize, parts: usize) -> Axis {
        if parts == 1 {
            return Self::block(extent, parts);
        }
        Axis { extent, parts, rule: Rule::Cyclic { parts: Divisor::new(parts) } }
    }

    /// `block` is at least 1.
    pub fn block_cyclic(extent: usize, parts: usize, block: usize) -> Axis {
        if parts == 1 {
            return Self::block(extent, parts);
        }
        // No larger than the extent: what it is multiplied with then fits.
        let rule = Rule::BlockCyclic { block: Divisor::new(block.min(extent)), parts: Divisor::new(parts) };
        Axis { extent, parts, rule }
    }

    /// Parts in proportion to `weights`, which are finite, not negative, and not all zero.
    pub fn uneven(extent: usize, weights: &[f64]) -> Axis {
        if weights.len() == 1 {
            return Self::block(extent, 1);
        }
        // Scaled, so that the sum stays finite.
        let largest = weights.iter().fold(0.0, |a: f64, b| a.max(*b));
        let total: f64 = weights.iter().map(|weight| weight / largest).sum();
        let (mut sum, mut before) = (0.0, 0);
        let mut starts = vec![0];
        for weight in weights {
            sum += weight / largest;
            before = ((extent as f64 * (sum / total)).round() as usize).clamp(before, extent);
            starts.push(before);
        }
        // Rounding must not lose the end; it belongs to the last part that has any weight.
        let last = weights.iter().rposition(|weight| *weight > 0.0).expect("a weight that is not zero");
        starts[last + 1..].fill(extent);
        Axis { extent, parts: weights.len(), rule: Rule::Uneven { starts: starts.into() } }
    }

    /// Parts of these sizes, not all zero.
    pub fn sized(sizes: &[usize]) -> Axis {
        let extent = sizes.iter().sum();
        if sizes.len() == 1 {
            return Self::block(extent, 1);
        }
        let ends = sizes.iter().scan(0, |end, size| {
            *end += size;
            Some(*end)
        });
        let starts = std::iter::once(0).chain(ends).collect();
        Axis { extent, parts: sizes.len(), rule: Rule::Uneven { starts } }
    }

    #[inline(always)]
    pub fn extent(&self) -> usize {
        self.extent
    }

    #[inline(always)]
    pub fn parts(&self) -> usize {
        self.parts
    }

    /// Part and index in it; `index` is below the extent.
    #[inline(always)]
    pub fn locate(&self, index: usize) -> (usize, usize) {
        match &self.rule {
            Rule::Block { large, boundary, larger, smaller } => {
                if index >= *boundary {
                    let (part, local) = smaller.divide(index - boundary);
                    (large + part, local)
                } else {
                    larger.divide(index)
                }
            }
            Rule::Cyclic { parts } => {
                let (local, part) = parts.divide(index);
                (part, local)
            }
            Rule::BlockCyclic { block, parts } => {
                let (number, within) = block.divide(index);
                let (row, part) = parts.divide(number);
                (part, row * block.by() + within)
            }
            Rule::Uneven { starts } => {
                let part = starts.partition_point(|start| *start <= index) - 1;
                (part, index - starts[part])
            }
        }
    }

    /// Indices that `part` has.
    #[inline(always)]
    pub fn len(&self, part: usize) -> usize {
        match &self.rule {
            Rule::Block { large, smaller, boundary, larger } => {
                let most = larger.by() - 1;
                debug_assert!(most == smaller.by() || self.extent == *boundary);
                most + usize::from(part < *large)
            }
            Rule::Cyclic { parts } => {
                let (each, more) = parts.divide(self.extent);
                each + usize::from(part < more)
            }
            Rule::BlockCyclic { block, parts } => {
                let (blocks, rest) = block.divide(self.extent);
                let (rows, more) = parts.divide(blocks);
                rows * block.by()
                    + match part.cmp(&more) {
                        std::cmp::Ordering::Less => block.by(),
                        std::cmp::Ordering::Equal => rest,
                        std::cmp::Ordering::Greater => 0,
                    }
            }
            Rule::Uneven { starts } => starts[part + 1] - starts[part],
        }
    }

    /// The most indices that a part has.
    pub fn longest(&self) -> usize {
        match &self.rule {
            Rule::Uneven { starts } => starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0),
            _ => self.len(0),
        }
    }

    /// How many of the indices that `part` has are below `end`, which is at most the extent.
    fn below(&self, part: usize, end: usize) -> usize {
        match &self.rule {
            Rule::Block { .. } | Rule::Uneven { .. } => end.saturating_sub(self.start(part)).min(self.len(part)),
            Rule::Cyclic { .. } | Rule::BlockCyclic { .. } => Axis { extent: end, ..self.clone() }.len(part),
        }
    }

    /// Where in `part` its indices of a range inside are: together, as every part has its indices in order.
    pub fn locals(&self, part: usize, range: Range<usize>) -> Range<usize> {
        self.below(part, range.start)..self.below(part, range.end)
    }

    /// The index that `part` has at `local`, which is below its length.
    #[inline]
    pub fn global(&self, part: usize, local: usize) -> usize {
        match &self.rule {
            Rule::Block { .. } => self.start(part) + local,
            Rule::Cyclic { .. } => local * self.parts + part,
            Rule::BlockCyclic { block, .. } => {
                let (row, within) = block.divide(local);
                (row * self.parts + part) * block.by() + within
            }
            Rule::Uneven { starts } => starts[part] + local,
        }
    }

    /// Where a part of neighbouring indices begins.
    pub fn start(&self, part: usize) -> usize {
        match &self.rule {
            Rule::Block { large, larger, .. } => part * (larger.by() - 1) + part.min(*large),
            Rule::Uneven { starts } => starts[part],
            Rule::Cyclic { .. } | Rule::BlockCyclic { .. } => self.global(part, 0),
        }
    }

    /// Whether each part has neighbouring indices, all of them, in the order of the parts.
    pub fn is_contiguous(&self) -> bool {
        matches!(self.rule, Rule::Block { .. } | Rule::Uneven { .. })
    }

    /// Indices, the one at `global` first, that neighbours of the one at `local` of `part` are, that one included.
    fn run_length(&self, part: usize, local: usize) -> usize {
        match &self.rule {
            Rule::Block { .. } | Rule::Uneven { .. } => self.len(part) - local,
            Rule::Cyclic { .. } => 1,
            Rule::BlockCyclic { block, .. } => (block.by() - block.divide(local).1).min(self.len(part) - local),
        }
    }

    /// The runs of a range of indices, in order.
    pub fn runs(&self, range: Range<usize>) -> impl Iterator<Item = Run> + '_ {
        let mut next = range.start;
        std::iter::from_fn(move || {
            let (global, left) = (next, range.end.checked_sub(next).filter(|left| *left > 0)?);
            let (part, local) = self.locate(global);
            let count = self.run_length(part, local).min(left);
            next += count;
            Some(Run { part, local, global, count })
        })
    }

    /// The runs of the range `locals` of the indices of `part`, in order.
    pub fn runs_of(&self, part: usize, locals: Range<usize>) -> impl Iterator<Item = Run> + '_ {
        let mut next = locals.start;
        std::iter::from_fn(move || {
            let (local, left) = (next, locals.end.checked_sub(next).filter(|left| *left > 0)?);
            let count = self.run_length(part, local).min(left);
            next += count;
            Some(Run { part, local, global: self.global(part, local), count })
        })
    }

    /// All indices, as at most two stretches one after the other, if they can be told so.
    pub fn stretches(&self) -> Option<[Stretch; 2]> {
        let stretch = |start, end, part, divisor, dealt| {
            let count = end - start;
            Stretch { start, count, part, divisor, dealt, round: 0 }
        };
        match &self.rule {
            Rule::Block { large, boundary, larger, smaller } => Some([
                stretch(0, *boundary, 0, larger.by(), false),
                stretch(*boundary, self.extent, *large, smaller.by(), false),
            ]),
            Rule::Cyclic { parts } => {
                Some([stretch(0, 0, 0, parts.by(), true), stretch(0, self.extent, 0, parts.by(), true)])
            }
            Rule::BlockCyclic { block, parts } => {
                let (block, round) = (block.by(), block.by().checked_mul(parts.by())?);
                let all = Stretch { round, ..stretch(0, self.extent, 0, block, false) };
                Some([stretch(0, 0, 0, block, false), all])
            }
            Rule::Uneven { .. } => None,
        }
    }

    /// For people.
    pub fn describe(&self) -> String {
        match &self.rule {
            Rule::Block { .. } => "block".into(),
            Rule::Cyclic { .. } => "cyclic".into(),
            Rule::BlockCyclic { block, .. } => format!("blocks of {} in turn", block.by()),
            Rule::Uneven { starts } if starts.len() <= 9 => format!("parts beginning at {:?}", &starts[..self.parts]),
            Rule::Uneven { .. } => "uneven".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axes() -> Vec<Axis> {
        let mut axes = Vec::new();
        for extent in [1, 2, 3, 5, 7, 8, 12, 30, 31, 32, 97] {
            for parts in 1..=7 {
                axes.extend([Axis::block(extent, parts), Axis::cyclic(extent, parts)]);
                axes.extend([1, 2, 3, 8, 200].map(|block| Axis::block_cyclic(extent, parts, block)));
                let ramp: Vec<f64> = (0..parts).map(|part| part as f64 + 0.5).collect();
                let mut gaps: Vec<f64> = (0..parts).map(|part| (part % 2) as f64).collect();
                gaps[0] = 1e-300;
                axes.extend([ramp, gaps, vec![f64::MAX; parts]].map(|weights| Axis::uneven(extent, &weights)));
                let mut sizes = vec![0; parts];
                (sizes[0], sizes[parts - 1]) = (extent / 2, extent - if parts > 1 { extent / 2 } else { 0 });
                axes.push(Axis::sized(&sizes));
            }
        }
        axes
    }

    #[test]
    fn indices_and_places_are_one_to_one() {
        for axis in axes() {
            let mut seen = vec![Vec::new(); axis.parts()];
            for index in 0..axis.extent() {
                let (part, local) = axis.locate(index);
                assert_eq!(axis.global(part, local), index, "{axis:?}");
                seen[part].push(local);
            }
            for (part, mut locals) in seen.into_iter().enumerate() {
                locals.sort_unstable();
                assert_eq!(locals, (0..axis.len(part)).collect::<Vec<_>>(), "part {part} of {axis:?}");
                assert!(locals.len() <= axis.longest());
            }
            assert!((0..axis.parts()).any(|part| axis.len(part) == axis.longest()));
        }
    }

    #[test]
    fn runs_cover_a_range_once_and_in_order() {
        for axis in axes() {
            let extent = axis.extent();
            for range in [0..extent, 0..0, extent / 3..extent, extent / 3..extent - extent / 4] {
                let mut next = range.start;
                for run in axis.runs(range.clone()) {
                    assert_eq!(run.global, next, "{axis:?}");
                    for step in 0..run.count {
                        assert_eq!(axis.locate(next + step), (run.part, run.local + step), "{axis:?}");
                    }
                    next += run.count;
                }
                assert_eq!(next, range.end);
            }
            for part in 0..axis.parts() {
                let mut next = 0;
                for run in axis.runs_of(part, 0..axis.len(part)) {
                    assert_eq!((run.part, run.local), (part, next));
                    (0..run.count).for_each(|step| {
                        assert_eq!(axis.locate(run.global + step), (part, next + step), "{axis:?}");
                    });
                    next += run.count;
                }
                assert_eq!(next, axis.len(part));
            }
        }
    }

    #[test]
    fn indices_of_a_range_are_together_in_each_part() {
        for axis in axes() {
            let extent = axis.extent();
            for start in 0..=extent {
                for end in [start, (start + 1).min(extent), start + (extent - start) / 2, extent] {
                    for part in 0..axis.parts() {
                        let inside = |local: &usize| (start..end).contains(&axis.global(part, *local));
                        let expected: Vec<usize> = (0..axis.len(part)).filter(inside).collect();
                        let locals = axis.locals(part, start..end);
                        assert_eq!(locals.collect::<Vec<_>>(), expected, "{start}..{end} in part {part} of {axis:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_block_layout_differs_by_one_at_most() {
        for parts in 1..=7 {
            let axis = Axis::block(30, parts);
            let lengths: Vec<usize> = (0..parts).map(|part| axis.len(part)).collect();
            assert!(lengths.iter().max().expect("parts") - lengths.iter().min().expect("parts") <= 1);
        }
    }

    #[test]
    fn weights_are_followed() {
        let axis = Axis::uneven(100, &[1.0, 0.0, 3.0, 0.0]);
        assert_eq!((0..4).map(|part| axis.len(part)).collect::<Vec<_>>(), [25, 0, 75, 0]);
    }
}
