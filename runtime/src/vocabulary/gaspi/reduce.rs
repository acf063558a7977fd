//! The operations of `allreduce`.

use super::types::{Datatype, Operation};

/// A type of elements.
trait Element: bytemuck::Pod {
    fn sum(self, other: Self) -> Self;
    fn is_less(self, other: Self) -> bool;
}

macro_rules! elements {
    ($($type:ty, $sum:expr;)+) => {$(
        impl Element for $type {
            fn sum(self, other: Self) -> Self {
                let sum: fn($type, $type) -> $type = $sum;
                sum(self, other)
            }

            fn is_less(self, other: Self) -> bool {
                self < other
            }
        }
    )+};
}

elements! {
    i32, i32::wrapping_add;
    u32, u32::wrapping_add;
    i64, i64::wrapping_add;
    u64, u64::wrapping_add;
    f32, |a, b| a + b;
    f64, |a, b| a + b;
}

fn each<T: Element>(operation: Operation, mine: &mut [u8], theirs: &[u8]) {
    for (mine, theirs) in mine.chunks_exact_mut(size_of::<T>()).zip(theirs.chunks_exact(size_of::<T>())) {
        let (a, b): (T, T) = (bytemuck::pod_read_unaligned(mine), bytemuck::pod_read_unaligned(theirs));
        let result = match operation {
            Operation::Sum => a.sum(b),
            Operation::Min if b.is_less(a) => b,
            Operation::Max if a.is_less(b) => b,
            Operation::Min | Operation::Max => a,
        };
        mine.copy_from_slice(bytemuck::bytes_of(&result));
    }
}

/// Makes `mine` the combination of both, element by element.
pub(super) fn combine(operation: Operation, datatype: Datatype, mine: &mut [u8], theirs: &[u8]) {
    let each = match datatype {
        Datatype::Int => each::<i32>,
        Datatype::Uint => each::<u32>,
        Datatype::Float => each::<f32>,
        Datatype::Double => each::<f64>,
        Datatype::Long => each::<i64>,
        Datatype::Ulong => each::<u64>,
    };
    each(operation, mine, theirs);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_know_the_signs_of_their_types() {
        let run = |operation, datatype| {
            let mut mine = (-1i64).to_ne_bytes();
            combine(operation, datatype, &mut mine, &2i64.to_ne_bytes());
            i64::from_ne_bytes(mine)
        };
        assert_eq!(run(Operation::Sum, Datatype::Long), 1);
        assert_eq!((run(Operation::Min, Datatype::Long), run(Operation::Max, Datatype::Long)), (-1, 2));
        assert_eq!((run(Operation::Min, Datatype::Ulong), run(Operation::Max, Datatype::Ulong)), (2, -1));
    }
}
