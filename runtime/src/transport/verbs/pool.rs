//! Registered buffers of the wire's own.

use std::alloc::Layout;
use std::cell::RefCell;
use std::sync::Arc;

use super::card::{Card, MemoryRegion};
use crate::transport::error::{Error, Result};

/// Buffers of one size.
#[derive(Debug)]
pub struct Pool {
    region: MemoryRegion,
    memory: *mut u8,
    layout: Layout,
    size: usize,
    free: RefCell<Vec<u32>>,
}

// SAFETY: the memory is the pool's own.
unsafe impl Send for Pool {}

impl Pool {
    /// `count` buffers of `size` bytes, all free.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn new(card: &Arc<Card>, count: usize, size: usize) -> Result<Pool> {
        let layout = Layout::from_size_align(count * size, 4096).map_err(|_| Error::NoMemory)?;
        // SAFETY: the layout has at least one byte.
        let memory = unsafe { std::alloc::alloc_zeroed(layout) };
        if memory.is_null() {
            return Err(Error::NoMemory);
        }
        // SAFETY: freed when the pool is dropped, after the region.
        match unsafe { MemoryRegion::new(card, memory, count * size) } {
            Ok(region) => {
                let free = RefCell::new((0..count as u32).rev().collect());
                Ok(Pool { region, memory, layout, size, free })
            }
            Err(error) => {
                // SAFETY: allocated above.
                unsafe { std::alloc::dealloc(memory, layout) };
                Err(error)
            }
        }
    }

    /// Bytes of a buffer.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Takes a buffer.
    pub fn take(&self) -> Option<u32> {
        self.free.borrow_mut().pop()
    }

    /// Gives a buffer back that was taken.
    pub fn give_back(&self, buffer: u32) {
        self.free.borrow_mut().push(buffer);
    }

    /// Where a buffer lies.
    pub fn at(&self, buffer: u32) -> *mut u8 {
        assert!((buffer as usize + 1) * self.size <= self.layout.size());
        // SAFETY: inside the memory, as just checked.
        unsafe { self.memory.add(buffer as usize * self.size) }
    }

    /// What the device knows them by.
    pub fn key(&self) -> u32 {
        self.region.local_key()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // The region goes after this, but the queue pairs that used it are gone.
        // SAFETY: allocated with this layout, freed once.
        unsafe { std::alloc::dealloc(self.memory, self.layout) };
    }
}
