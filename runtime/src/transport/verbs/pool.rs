//! Registered buffers of the wire's own.

use std::alloc::Layout;
use std::cell::RefCell;
use std::sync::Arc;

use super::nic::{MemoryRegion, Nic};
use crate::transport::error::{Error, Result};

/// Buffers of one size.
#[derive(Debug)]
pub struct Pool {
    // In the order in which they may go.
    region: MemoryRegion,
    memory: Memory,
    size: usize,
    free: RefCell<Vec<u32>>,
}

#[derive(Debug)]
struct Memory {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: the memory is the value's own.
unsafe impl Send for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, freed once.
        unsafe { std::alloc::dealloc(self.start, self.layout) };
    }
}

impl Pool {
    /// `count` buffers of `size` bytes, all free.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn new(nic: &Arc<Nic>, count: usize, size: usize) -> Result<Pool> {
        let layout = Layout::from_size_align(count * size, 4096).map_err(|_| Error::NoMemory)?;
        // SAFETY: the layout has at least one byte.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        if start.is_null() {
            return Err(Error::NoMemory);
        }
        let memory = Memory { start, layout };
        // SAFETY: freed after the region.
        let region = unsafe { MemoryRegion::new(nic, start, count * size) }?;
        let free = RefCell::new((0..count as u32).rev().collect());
        Ok(Pool { region, memory, size, free })
    }

    /// Takes a buffer.
    #[inline(always)]
    pub fn take(&self) -> Option<u32> {
        self.free.borrow_mut().pop()
    }

    /// Gives a buffer back that was taken.
    #[inline(always)]
    pub fn give_back(&self, buffer: u32) {
        self.free.borrow_mut().push(buffer);
    }

    /// Where a buffer lies.
    #[inline(always)]
    pub fn at(&self, buffer: u32) -> *mut u8 {
        assert!((buffer as usize + 1) * self.size <= self.memory.layout.size());
        // SAFETY: inside the memory, as just checked.
        unsafe { self.memory.start.add(buffer as usize * self.size) }
    }

    /// The device's key for the buffers.
    #[inline(always)]
    pub fn key(&self) -> u32 {
        self.region.local_key()
    }

    /// The peers' key for the buffers.
    pub fn remote_key(&self) -> u32 {
        self.region.remote_key()
    }
}
