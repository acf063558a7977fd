//! Memory that other contexts write: on the heap, in a segment, on the stack, static.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU8, Ordering};

use bellwether_runtime::Symmetric;
use bellwether_runtime::vocabulary::cheetah::{Bell, Controller};

use super::{Load, addresses, barrier, place, wait};

/// Bytes that other contexts may write at any time, so no slice of these bytes exists.
pub struct Memory {
    start: *mut u8,
    len: usize,
    owner: Owner,
}

enum Owner {
    Heap(Layout),
    #[expect(dead_code, reason = "holds the memory")]
    Segment(Symmetric<u8>),
    Elsewhere,
}

impl Memory {
    /// Zeroed memory of this process's heap.
    pub fn heap(len: usize) -> Memory {
        let layout = Layout::from_size_align(len.max(1), 64).expect("a sane length");
        // SAFETY: not of size zero.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        Memory { start, len, owner: Owner::Heap(layout) }
    }

    /// Zeroed memory of the segment. Collective.
    pub fn segment(controller: &Controller, len: usize) -> Memory {
        let array = controller.as_world().expect("valid").alloc::<u8>(len).expect("it fits");
        Memory { start: array.as_ptr_range().start, len, owner: Owner::Segment(array) }
    }

    /// Memory that other code owns.
    ///
    /// # Safety
    /// It outlives the value, and is only touched through it and by other contexts.
    pub unsafe fn at(start: *mut u8, len: usize) -> Memory {
        Memory { start, len, owner: Owner::Elsewhere }
    }

    /// Its address.
    pub fn address(&self) -> usize {
        self.start as usize
    }

    /// The start of the memory, for writers.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Overwrites all bytes.
    pub fn set(&self, byte: u8) {
        // SAFETY: our own range; rows synchronise through bells.
        unsafe { self.start.write_bytes(byte, self.len) };
    }

    /// Copies `bytes` to offset `at`.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        // SAFETY: in range, as just checked.
        unsafe { self.start.add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// A copy of `len` bytes from offset `at`.
    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len);
        let mut bytes = vec![0; len];
        // SAFETY: in range, as just checked.
        unsafe { self.start.add(at).copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
        bytes
    }

    /// Whether these bytes are at offset `at` now; others may be writing there.
    pub fn holds(&self, at: usize, bytes: &[u8]) -> bool {
        assert!(at + bytes.len() <= self.len);
        // SAFETY: in range, as just checked; concurrent writers use atomics, or are another agent.
        let byte = |i: usize| unsafe { AtomicU8::from_ptr(self.start.add(at + i)).load(Ordering::Acquire) };
        bytes.iter().enumerate().all(|(i, expected)| byte(i) == *expected)
    }

    /// One byte as it is now.
    pub fn byte(&self, at: usize) -> u8 {
        assert!(at < self.len);
        // SAFETY: in range, as just checked.
        unsafe { self.start.add(at).read_volatile() }
    }

    /// The counter at offset `at`.
    pub fn bell(&self, at: usize) -> &Bell {
        assert!(at + 4 <= self.len && (self.address() + at).is_multiple_of(4));
        // SAFETY: aligned, in range, and a bell is an atomic counter of four bytes.
        unsafe { &*self.start.add(at).cast::<Bell>() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Owner::Heap(layout) = self.owner {
            // SAFETY: from `heap`, once.
            unsafe { dealloc(self.start, layout) };
        }
    }
}

/// Bytes in which every shift and every seed shows.
pub fn pattern(seed: usize, len: usize) -> Vec<u8> {
    /// After this many bytes it repeats; no multiple of anything.
    const PERIOD: usize = 1_000_003;
    let seed = (seed as u32).wrapping_mul(0x85EB_CA6B);
    let mut bytes = Vec::with_capacity(len);
    bytes.extend((0..len.min(PERIOD) as u32).map(|i| ((i ^ seed).wrapping_mul(0x9E37_79B1) >> 24) as u8));
    while bytes.len() < len {
        bytes.extend_from_within(..PERIOD.min(len - bytes.len()));
    }
    bytes
}

/// Fails with the first byte that differs.
#[track_caller]
pub fn same(got: &[u8], expected: &[u8], what: &str) {
    if got != expected {
        let at = got.iter().zip(expected).position(|(a, b)| a != b);
        panic!("{what}: {} bytes of {}, first difference at {at:?}", got.len(), expected.len());
    }
}

const AREA: usize = 4096;

/// Static memory; contexts that are threads of one process use a part each.
#[repr(align(64))]
struct Static(UnsafeCell<[u8; 64 * AREA]>);

// SAFETY: only touched through raw pointers; rows synchronise through bells.
unsafe impl Sync for Static {}

static STATIC: Static = Static(UnsafeCell::new([0; 64 * AREA]));

pub(super) fn c27(controller: Controller, _: &Load) {
    let (me, n) = place(&controller);
    let next = (me + 1) % n;
    let mut stack = [0u64; AREA / 8];
    // SAFETY: both outlive this function's transfers, which a barrier ends; a part of the static for each context.
    let (on_stack, in_static) = unsafe {
        let part = STATIC.0.get().cast::<u8>().add(me * AREA);
        (Memory::at(stack.as_mut_ptr().cast(), AREA), Memory::at(part, AREA))
    };
    in_static.set(0);
    let kinds = [Memory::heap(AREA), on_stack, in_static, Memory::segment(&controller, AREA)];
    let names = ["heap", "stack", "static", "segment"];
    let theirs: Vec<Vec<usize>> = kinds.iter().map(|memory| addresses(&controller, memory.address())).collect();
    // In each: bells at 0 and 4, then what is written, what is sent.
    let (put_bell, get_bell, target, source, len) = (0, 4, 64 + 3, 1024 + 1, 777);
    let mut rounds = 0;
    for (from, sender) in kinds.iter().enumerate() {
        for (to, receiver) in kinds.iter().enumerate() {
            let what = format!("{} to {}", names[from], names[to]);
            // Bells lie in memory of yet another kind.
            let bells = (from + to + 1) % 4;
            rounds += 1;
            sender.write(source, &pattern(100 * me + rounds, len));
            barrier(&controller, &what);
            let before = kinds[bells].bell(put_bell).read(&controller).expect("fine") as usize;
            let (bytes, remote_bell) = (sender.read(source, len), theirs[bells][next] + put_bell);
            barrier(&controller, &what);
            // SAFETY: `next` expects writes there.
            unsafe { controller.put(next, theirs[to][next] + target, &bytes, None, Some(remote_bell)) }.expect(&what);
            wait(&controller, kinds[bells].bell(put_bell), before + 1, &what);
            let sent = pattern(100 * ((me + n - 1) % n) + rounds, len);
            same(&receiver.read(target, len), &sent, &format!("put from {what}"));
            barrier(&controller, &what);
            // And back by get: from the neighbour's source, which still holds what it sent.
            receiver.write(target, &vec![0; len]);
            let before = kinds[bells].bell(get_bell).read(&controller).expect("fine") as usize;
            let here = receiver.start().wrapping_add(target);
            let bell = kinds[bells].bell(get_bell);
            // SAFETY: our own memory, untouched until the bell; the source is readable there.
            unsafe { controller.get(next, theirs[from][next] + source, here, len, Some(bell), None) }.expect(&what);
            wait(&controller, bell, before + 1, &what);
            same(&receiver.read(target, len), &pattern(100 * next + rounds, len), &format!("get to {what}"));
            barrier(&controller, &what);
        }
    }
}
