//! The operation of a reduction on two values.

use std::ops::{Add, BitAnd, BitOr, BitXor, Mul};

/// [`Operator::CODE`] of closures.
pub(crate) const CLOSURE: u8 = 15;

/// Combines two values into one. Associative, or near to it as the addition of floats is; it need not commute: the left
/// value is of lower ranks.
///
/// One of the named operators, or any closure `Fn(T, T) -> T`. All members of a team use the same.
pub trait Operator<T> {
    /// A number that tells named operators apart, so that members that use different ones are found out.
    #[doc(hidden)]
    const CODE: u8 = CLOSURE;

    /// Combines a value of lower ranks with one of higher ranks.
    fn combine(&self, lower: T, higher: T) -> T;
}

impl<T, F: Fn(T, T) -> T> Operator<T> for F {
    #[inline(always)]
    fn combine(&self, lower: T, higher: T) -> T {
        self(lower, higher)
    }
}

macro_rules! operators {
    ($($(#[$doc:meta])* $name:ident, $code:literal, [$($bound:path),*], |$a:ident, $b:ident| $body:expr;)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq)]
            pub struct $name;

            impl<T: $($bound +)*> Operator<T> for $name {
                const CODE: u8 = $code;

                #[inline(always)]
                fn combine(&self, $a: T, $b: T) -> T {
                    $body
                }
            }
        )*

        /// The name of the operator with number `code`.
        pub(super) fn name(code: u8) -> &'static str {
            match code {
                $($code => stringify!($name),)*
                _ => "a closure",
            }
        }
    };
}

operators! {
    /// Adds. Integers overflow as `+` does.
    Sum, 1, [Add<Output = T>], |a, b| a + b;
    /// Multiplies. Integers overflow as `*` does.
    Product, 2, [Mul<Output = T>], |a, b| a * b;
    /// The smaller value; the one of lower ranks if they do not compare, as NaN.
    Min, 3, [PartialOrd], |a, b| if b < a { b } else { a };
    /// The larger value; the one of lower ranks if they do not compare, as NaN.
    Max, 4, [PartialOrd], |a, b| if b > a { b } else { a };
    /// Bitwise and.
    And, 5, [BitAnd<Output = T>], |a, b| a & b;
    /// Bitwise or.
    Or, 6, [BitOr<Output = T>], |a, b| a | b;
    /// Bitwise exclusive or.
    Xor, 7, [BitXor<Output = T>], |a, b| a ^ b;
}

/// An operator on slices of one length. The algorithms take it behind a reference, so that they are compiled once for each type of
/// element, and not for each closure.
pub(crate) trait OnSlices<T> {
    /// As [`Operator::CODE`].
    fn code(&self) -> u8;

    /// `lower[i] = lower[i] op higher[i]`.
    fn combine_into(&self, lower: &mut [T], higher: &[T]);

    /// `higher[i] = lower[i] op higher[i]`.
    fn combine_onto(&self, lower: &[T], higher: &mut [T]);
}

impl<T: Copy, O: Operator<T>> OnSlices<T> for O {
    fn code(&self) -> u8 {
        O::CODE
    }

    #[inline]
    fn combine_into(&self, lower: &mut [T], higher: &[T]) {
        lower.iter_mut().zip(higher).for_each(|(low, high)| *low = self.combine(*low, *high));
    }

    #[inline]
    fn combine_onto(&self, lower: &[T], higher: &mut [T]) {
        higher.iter_mut().zip(lower).for_each(|(high, low)| *high = self.combine(*low, *high));
    }
}

/// Combines contributions of ranks 0, 1, 2, ... along the one tree that every algorithm follows: each level combines
/// pairs of neighbours, and an element without a neighbour goes up unchanged. So the result has the same bits,
/// independent of the rank that computes it.
pub(super) struct Fold<'a, T> {
    operator: &'a dyn OnSlices<T>,
    /// Results of whole subtrees, largest first, and how many ranks each is of.
    done: Vec<(usize, Vec<T>)>,
    spare: Vec<Vec<T>>,
}

impl<'a, T: Copy> Fold<'a, T> {
    pub(super) fn new(operator: &'a dyn OnSlices<T>) -> Self {
        Fold { operator, done: Vec::new(), spare: Vec::new() }
    }

    pub(super) fn operator(&self) -> &'a dyn OnSlices<T> {
        self.operator
    }

    /// An empty vector for the next contribution.
    pub(super) fn buffer(&mut self) -> Vec<T> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer
    }

    /// Takes the contribution of the next rank.
    #[inline]
    pub(super) fn push(&mut self, contribution: Vec<T>) {
        let (mut ranks, mut value) = (1, contribution);
        while let Some((lower_ranks, lower)) = self.done.pop_if(|(lower_ranks, _)| *lower_ranks == ranks) {
            value = self.join(lower, value);
            ranks += lower_ranks;
        }
        self.done.push((ranks, value));
    }

    /// The result of all so far, which it begins anew after; empty of none.
    pub(super) fn finish(&mut self) -> Vec<T> {
        let Some((_, mut value)) = self.done.pop() else { return Vec::new() };
        while let Some((_, lower)) = self.done.pop() {
            value = self.join(lower, value);
        }
        value
    }

    /// Gives a buffer back.
    pub(super) fn give_back(&mut self, buffer: Vec<T>) {
        self.spare.push(buffer);
    }

    fn join(&mut self, mut lower: Vec<T>, higher: Vec<T>) -> Vec<T> {
        self.operator.combine_into(&mut lower, &higher);
        self.spare.push(higher);
        lower
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_that_of_recursive_doubling() {
        // Brackets show the order.
        for (ranks, tree) in [(1, "0"), (2, "(01)"), (3, "((01)2)"), (5, "(((01)(23))4)"), (7, "(((01)(23))((45)6))")] {
            let shown = std::cell::RefCell::new((0..ranks).map(|rank: usize| rank.to_string()).collect::<Vec<_>>());
            let join = |a: usize, b: usize| {
                let mut shown = shown.borrow_mut();
                let text = format!("({}{})", shown[a], shown[b]);
                shown.push(text);
                shown.len() - 1
            };
            let mut fold = Fold::new(&join);
            (0..ranks).for_each(|rank| fold.push(vec![rank]));
            let root = fold.finish()[0];
            assert_eq!(shown.borrow()[root], tree);
        }
    }
}
