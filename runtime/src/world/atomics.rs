//! Atomic operations on symmetric memory.

use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering};

use bytemuck::Pod;

use super::{Posted, Symmetric};
use crate::engine::Change;
use crate::error::Result;
use crate::transport::{AtomicOp, Width};

mod sealed {
    pub trait Sealed {}
    pub trait Word {}
}

/// Elements with atomic operations: 32- and 64-bit integers.
pub trait AtomicElement: Pod + sealed::Sealed {
    #[doc(hidden)]
    const WIDTH: Width;
    #[doc(hidden)]
    fn widen(self) -> u64;
    #[doc(hidden)]
    fn narrow(word: u64) -> Self;
    #[doc(hidden)]
    unsafe fn fetch_add(at: *mut Self, value: Self) -> Self;
    #[doc(hidden)]
    unsafe fn fetch_and(at: *mut Self, value: Self) -> Self;
    #[doc(hidden)]
    unsafe fn fetch_or(at: *mut Self, value: Self) -> Self;
    #[doc(hidden)]
    unsafe fn fetch_xor(at: *mut Self, value: Self) -> Self;
    #[doc(hidden)]
    unsafe fn swap(at: *mut Self, value: Self) -> Self;
    #[doc(hidden)]
    unsafe fn compare_swap(at: *mut Self, expected: Self, new: Self) -> Self;
}

macro_rules! element {
    ($($int:ty, $atomic:ty, [$($operation:ident),*];)*) => {$(
        impl sealed::Sealed for $int {}
        impl AtomicElement for $int {
            const WIDTH: Width = if size_of::<$int>() == 4 { Width::Four } else { Width::Eight };
            fn widen(self) -> u64 {
                self as u64
            }
            fn narrow(word: u64) -> Self {
                word as Self
            }
            $(#[inline(always)]
            unsafe fn $operation(at: *mut Self, value: Self) -> Self {
                // SAFETY: the caller guarantees that it is valid, aligned and only accessed by atomics.
                unsafe { <$atomic>::from_ptr(at) }.$operation(value, Ordering::AcqRel)
            })*
            #[inline(always)]
            unsafe fn compare_swap(at: *mut Self, expected: Self, new: Self) -> Self {
                // SAFETY: as above.
                let word = unsafe { <$atomic>::from_ptr(at) };
                match word.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(old) | Err(old) => old,
                }
            }
        }
    )*};
}

element! {
    u32, AtomicU32, [fetch_add, fetch_and, fetch_or, fetch_xor, swap];
    i32, AtomicI32, [fetch_add, fetch_and, fetch_or, fetch_xor, swap];
    u64, AtomicU64, [fetch_add, fetch_and, fetch_or, fetch_xor, swap];
    i64, AtomicI64, [fetch_add, fetch_and, fetch_or, fetch_xor, swap];
}

/// Elements that can be changed in any way by compare-and-swap: integers and floating-point numbers of 32 and 64 bits.
pub trait Word: Pod + sealed::Word {
    /// The integer of the same bits.
    #[doc(hidden)]
    type Bits: AtomicElement + PartialEq;
}

macro_rules! word {
    ($($element:ty, $bits:ty;)*) => {$(
        impl sealed::Word for $element {}
        impl Word for $element {
            type Bits = $bits;
        }
    )*};
}

word! {
    u32, u32;
    i32, i32;
    u64, u64;
    i64, i64;
    f32, u32;
    f64, u64;
}

impl<T: Pod> Symmetric<T> {
    /// For elements that this processor cannot change: an error, or an atomic over the network, on an element as long as `W`.
    #[cold]
    #[track_caller]
    pub(super) fn atomic_remote<W: AtomicElement>(
        &self,
        operation: &'static str,
        op: AtomicOp,
        rank: usize,
        index: usize,
        value: W,
        compare: W,
    ) -> Result<W> {
        self.engine().at(|| {
            let offset = self.range(operation, rank, index, 1)?;
            let change = Change { op, width: W::WIDTH, value: value.widen(), compare: compare.widen() };
            self.engine().remote_atomic(operation, rank, offset, change).map(W::narrow)
        })
    }
}

macro_rules! operations {
    ($($(#[$doc:meta])* $operation:ident, $op:ident, $future:ident;)*) => {
        /// Atomic operations. All ranks' operations on one element, and its owner's, are atomic to each other. They
        /// complete before they return and on one node need nothing from the target. Adding wraps around.
        ///
        /// # Errors
        /// All of them: [`crate::Error::RankOutOfRange`], [`crate::Error::OutOfBounds`]; over a network
        /// [`crate::Error::PeerLost`] and [`crate::Error::InsideHandler`].
        impl<T: AtomicElement> Symmetric<T> {
            $($(#[$doc])*
            ///
            /// # Errors
            /// [`crate::Error::RankOutOfRange`], [`crate::Error::OutOfBounds`].
            #[inline(always)]
            #[track_caller]
            pub fn $operation(&self, rank: usize, index: usize, value: T) -> Result<T> {
                match self.element(rank, index) {
                    // SAFETY: an element of ours, only touched atomically.
                    Some(at) => Ok(unsafe { T::$operation(at, value) }),
                    None => self.atomic_remote(stringify!($operation), AtomicOp::$op, rank, index, value, value),
                }
            }

            #[doc = concat!("The future form of [`Symmetric::", stringify!($operation), "`].")]
            #[track_caller]
            pub fn $future(&self, rank: usize, index: usize, value: T) -> Posted<T> {
                match self.element(rank, index) {
                    // SAFETY: as above.
                    Some(at) => self.posted_already(stringify!($future), unsafe { T::$operation(at, value) }),
                    None => {
                        let change = Change { op: AtomicOp::$op, width: T::WIDTH, value: value.widen(), compare: 0 };
                        self.post_atomic(stringify!($future), rank, index, change)
                    }
                }
            })*

            /// The future form of [`Symmetric::compare_swap`].
            #[track_caller]
            pub fn compare_swap_async(&self, rank: usize, index: usize, expected: T, new: T) -> Posted<T> {
                const DOING: &str = "compare_swap_async";
                match self.element(rank, index) {
                    // SAFETY: as above.
                    Some(at) => self.posted_already(DOING, unsafe { T::compare_swap(at, expected, new) }),
                    None => {
                        let (value, compare) = (new.widen(), expected.widen());
                        let change = Change { op: AtomicOp::CompareSwap, width: T::WIDTH, value, compare };
                        self.post_atomic(DOING, rank, index, change)
                    }
                }
            }

            /// Stores `new` if the element is `expected`; returns what it was before.
            ///
            /// # Errors
            /// [`crate::Error::RankOutOfRange`], [`crate::Error::OutOfBounds`].
            #[inline(always)]
            #[track_caller]
            pub fn compare_swap(&self, rank: usize, index: usize, expected: T, new: T) -> Result<T> {
                match self.element(rank, index) {
                    // SAFETY: as above.
                    Some(at) => Ok(unsafe { T::compare_swap(at, expected, new) }),
                    None => self.atomic_remote("compare_swap", AtomicOp::CompareSwap, rank, index, new, expected),
                }
            }
        }
    };
}

operations! {
    /// Adds `value` to an element of `rank`; returns what it was before.
    fetch_add, Add, fetch_add_async;
    /// Ands `value` into an element of `rank`; returns what it was before.
    fetch_and, And, fetch_and_async;
    /// Ors `value` into an element of `rank`; returns what it was before.
    fetch_or, Or, fetch_or_async;
    /// Xors `value` into an element of `rank`; returns what it was before.
    fetch_xor, Xor, fetch_xor_async;
    /// Stores `value` in an element of `rank`; returns what it was before.
    swap, Swap, swap_async;
}
