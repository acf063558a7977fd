//! The bytes of values, aligned for the objects that C++ programs make in them.

use std::mem::MaybeUninit;

use crate::error::{CalledAt, Error, Result};

/// Values of up to this many bytes need no allocation.
pub(super) const INLINE: usize = 64;
/// The alignment of values: that of memory from `malloc` on present machines.
type Unit = u128;

/// The bytes of a value, aligned to 16 bytes. Those of a small one are part of it, so its address changes when it is moved.
#[derive(Debug)]
pub struct Value {
    room: Room,
    len: usize,
}

#[derive(Debug)]
enum Room {
    Inline([MaybeUninit<Unit>; INLINE / size_of::<Unit>()]),
    /// An allocation of enough capacity. Its length stays 0, so that gigabytes are not written twice.
    Heap(Vec<Unit>),
}

impl Value {
    /// Room for `len` bytes, which the caller writes through [`Value::start`] before anybody reads them.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[inline]
    pub fn with_len(len: usize) -> Result<Value> {
        if len <= INLINE {
            return Ok(Value { room: Room::Inline([MaybeUninit::uninit(); INLINE / size_of::<Unit>()]), len });
        }
        Value::on_heap(len)
    }

    #[inline(never)]
    fn on_heap(len: usize) -> Result<Value> {
        let mut units = Vec::new();
        units.try_reserve_exact(len.div_ceil(size_of::<Unit>())).map_err(|_| Error::OutOfMemory {
            what: "a value of a matching handler",
            asked: len,
            free: 0,
            limit: isize::MAX as usize,
            setting: "the memory limit of the process",
            place: CalledAt::default(),
        })?;
        Ok(Value { room: Room::Heap(units), len })
    }

    /// A copy of `bytes`, which came in a message and so are few.
    #[inline]
    pub(super) fn copy(bytes: &[u8]) -> Value {
        let mut value = Value::with_len(bytes.len()).expect("there is memory for a message");
        if let Some(word) = bytes.first_chunk::<8>().filter(|_| bytes.len() == 8) {
            // No call, for the length of a number or a pointer.
            // SAFETY: there is room for a word, which nobody else has.
            unsafe { value.start().cast::<[u8; 8]>().write(*word) };
            return value;
        }
        // SAFETY: there is room for as many bytes, which nobody else has.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.start(), bytes.len()) };
        value
    }

    /// The first byte. The others follow, [`Value::len`] of them, as long as the value lives and is not moved.
    #[inline]
    pub fn start(&mut self) -> *mut u8 {
        match &mut self.room {
            Room::Inline(units) => units.as_mut_ptr().cast(),
            Room::Heap(units) => units.as_mut_ptr().cast(),
        }
    }

    /// Bytes of the value.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a size, not a collection")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The bytes.
    ///
    /// # Safety
    /// All were written.
    #[inline]
    pub unsafe fn bytes(&self) -> &[u8] {
        let start: *const u8 = match &self.room {
            Room::Inline(units) => units.as_ptr().cast(),
            Room::Heap(units) => units.as_ptr().cast(),
        };
        // SAFETY: inside the room, and written, by the caller.
        unsafe { std::slice::from_raw_parts(start, self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_aligned_and_keep_their_bytes() {
        for len in [0, 1, INLINE - 1, INLINE, INLINE + 1, 5000] {
            let bytes: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
            let mut value = Value::copy(&bytes);
            assert_eq!(value.len(), len);
            assert!(value.start().cast::<Unit>().is_aligned());
            // SAFETY: all were copied.
            assert_eq!(unsafe { value.bytes() }, bytes);
        }
        assert!(matches!(Value::with_len(usize::MAX), Err(Error::OutOfMemory { .. })));
    }
}
