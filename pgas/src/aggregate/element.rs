//! Element types that can be added up.

use bellwether_runtime::Pod;

/// An element that [`Aggregator::scatter_add`](super::Aggregator::scatter_add) can add to. Integers wrap around.
pub trait Addend: Pod {
    /// The sum.
    fn plus(self, other: Self) -> Self;
}

macro_rules! wrapping {
    ($($int:ty),*) => {$(
        impl Addend for $int {
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
        }
    )*};
}

wrapping!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);

macro_rules! floating {
    ($($float:ty),*) => {$(
        impl Addend for $float {
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self + other
            }
        }
    )*};
}

floating!(f32, f64);
