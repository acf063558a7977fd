//! Memory a rank keeps for peers it never talks to: the runtime's own tables, built for real and counted, and what is laid out for them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use bellwether_runtime::memory::layout::{LINE, SlotLayout};
use bellwether_runtime::{LargeJob, Settings};

/// The job size to design for.
pub const RANKS: usize = 1_000_000;
/// Ranks on each host of that job.
const HERE: usize = 64;

/// Bytes this process has allocated and not given back.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, with a count.
struct Counting;

// SAFETY: everything is handed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller guarantees it.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller guarantees it.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller guarantees it.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Starts one rank of a job of `ranks` ranks on many hosts. Bytes for each idle peer: of the rank's own memory, and of memory that the
/// ranks of its host share.
///
/// # Errors
/// As [`LargeJob::start`].
pub fn per_idle_peer(ranks: usize) -> anyhow::Result<[f64; 2]> {
    let before = HELD.load(Ordering::Relaxed);
    let job = LargeJob::start(ranks, HERE)?;
    let held = HELD.load(Ordering::Relaxed).saturating_sub(before);
    Ok([held, job.host_bytes()].map(|bytes| bytes as f64 / ranks as f64))
}

/// Address space of a slot.
const STRIDE: usize = 1 << 36;

/// Bytes of shared memory in each rank's slot for each rank of another host, in a job of `ranks` ranks.
pub fn per_slot_peer(ranks: usize, settings: &Settings) -> f64 {
    let len = |ranks| SlotLayout::new(ranks, HERE, STRIDE, settings.lane_depth).control_len as f64;
    (len(ranks) - len(HERE)) / (ranks - HERE) as f64
}

/// Bytes of shared memory a rank has for each rank of its node: lane and credit, in a job of `ranks` on one node.
pub fn per_node_peer(ranks: usize, settings: &Settings) -> f64 {
    let layout = SlotLayout::new(ranks, ranks, STRIDE, settings.lane_depth);
    ((1 + layout.lane_depth) * LINE) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_peer_costs_what_the_table_of_figures_tells() {
        let [own, shared] = per_idle_peer(200_000).expect("starts");
        // Other tests of this process allocate meanwhile, but not by the megabyte.
        // A table of flags and one of routes, a byte each.
        assert!((2.0..=8.0).contains(&own), "{own}");
        // A record of the roster, and what the rank publishes.
        assert!((768.0..800.0).contains(&shared), "{shared}");
        // A word and a byte of the segment table, and a word of messages handled.
        let slot = per_slot_peer(RANKS, &Settings::default());
        assert!((16.9..17.1).contains(&slot), "{slot}");
    }

    #[test]
    fn a_peer_of_the_node_costs_a_lane_and_a_credit() {
        let bytes = |ranks| per_node_peer(ranks, &Settings::default());
        assert_eq!(bytes(2), 257.0 * 64.0);
        assert!(bytes(1000) < bytes(2));
    }
}
