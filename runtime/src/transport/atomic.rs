//! Remote atomics: which there are, and how the processor does them.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

mod sealed {
    pub trait Sealed {}
    impl Sealed for u32 {}
    impl Sealed for u64 {}
}

/// The operation of an atomic on the word at the target. The numbers are UCT's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum AtomicOp {
    /// Adds, wrapping around.
    Add = 0,
    /// Bitwise and.
    And = 1,
    /// Bitwise or.
    Or = 2,
    /// Bitwise exclusive or.
    Xor = 3,
    /// Stores the operand.
    Swap = 4,
    /// Stores the operand if the word equals the comparand.
    CompareSwap = 5,
}

impl AtomicOp {
    /// All of them.
    pub const ALL: [AtomicOp; 6] =
        [AtomicOp::Add, AtomicOp::And, AtomicOp::Or, AtomicOp::Xor, AtomicOp::Swap, AtomicOp::CompareSwap];
    /// Those that may be posted without a result, as a bit set.
    pub const POST: u32 = 0b00_1111;
    /// Those that may be asked for a result, as a bit set.
    pub const FETCH: u32 = 0b11_1111;

    /// The operation with this number.
    pub fn from_number(number: u8) -> Option<AtomicOp> {
        AtomicOp::ALL.get(number as usize).copied()
    }
}

/// A word that atomics work on: `u32` or `u64`.
pub trait Word: Copy + Eq + std::fmt::Debug + sealed::Sealed + 'static {
    /// Bytes.
    const WIDTH: Width;
    /// As 64 bits.
    fn widen(self) -> u64;
    /// From the low bits.
    fn narrow(word: u64) -> Self;
}

impl Word for u32 {
    const WIDTH: Width = Width::Four;
    fn widen(self) -> u64 {
        self.into()
    }
    fn narrow(word: u64) -> u32 {
        word as u32
    }
}

impl Word for u64 {
    const WIDTH: Width = Width::Eight;
    fn widen(self) -> u64 {
        self
    }
    fn narrow(word: u64) -> u64 {
        word
    }
}

/// Bytes of an atomic's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Width {
    /// 32 bits.
    Four = 4,
    /// 64 bits.
    Eight = 8,
}

impl Width {
    /// The width of this many bytes.
    pub fn from_bytes(bytes: u8) -> Option<Width> {
        match bytes {
            4 => Some(Width::Four),
            8 => Some(Width::Eight),
            _ => None,
        }
    }
}

/// One atomic, ready to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Atomic {
    /// The operation.
    pub op: AtomicOp,
    /// The width of the word.
    pub width: Width,
    /// The operand.
    pub value: u64,
    /// The value that the word is compared with, for [`AtomicOp::CompareSwap`].
    pub compare: u64,
}

impl Atomic {
    /// The value of the word after the atomic, if it held `before`.
    pub(crate) fn apply(self, before: u64) -> u64 {
        let Atomic { op, width, value, compare } = self;
        let mask = u64::MAX >> (64 - 8 * width as u32);
        let after = match op {
            AtomicOp::Add => before.wrapping_add(value),
            AtomicOp::And => before & value,
            AtomicOp::Or => before | value,
            AtomicOp::Xor => before ^ value,
            AtomicOp::Swap => value,
            AtomicOp::CompareSwap if before & mask == compare & mask => value,
            AtomicOp::CompareSwap => before,
        };
        after & mask
    }

    /// Does this with the processor's own atomics, and returns the former value of the word. Sequentially consistent.
    ///
    /// # Safety
    /// `at` is a word of this width, aligned, mapped, and only touched by atomics meanwhile.
    #[inline]
    pub unsafe fn perform(self, at: *mut u8) -> u64 {
        const ORDER: Ordering = Ordering::SeqCst;
        let Atomic { op, width, value, compare } = self;
        match width {
            Width::Four => {
                // SAFETY: the caller guarantees it.
                let word = unsafe { AtomicU32::from_ptr(at.cast()) };
                let value = value as u32;
                u64::from(match op {
                    AtomicOp::Add => word.fetch_add(value, ORDER),
                    AtomicOp::And => word.fetch_and(value, ORDER),
                    AtomicOp::Or => word.fetch_or(value, ORDER),
                    AtomicOp::Xor => word.fetch_xor(value, ORDER),
                    AtomicOp::Swap => word.swap(value, ORDER),
                    AtomicOp::CompareSwap => {
                        word.compare_exchange(compare as u32, value, ORDER, ORDER).unwrap_or_else(|found| found)
                    }
                })
            }
            Width::Eight => {
                // SAFETY: the caller guarantees it.
                let word = unsafe { AtomicU64::from_ptr(at.cast()) };
                match op {
                    AtomicOp::Add => word.fetch_add(value, ORDER),
                    AtomicOp::And => word.fetch_and(value, ORDER),
                    AtomicOp::Or => word.fetch_or(value, ORDER),
                    AtomicOp::Xor => word.fetch_xor(value, ORDER),
                    AtomicOp::Swap => word.swap(value, ORDER),
                    AtomicOp::CompareSwap => {
                        word.compare_exchange(compare, value, ORDER, ORDER).unwrap_or_else(|found| found)
                    }
                }
            }
        }
    }
}
