//! Which way of copying is quickest here: the evidence behind `memory::copy`, which leaves large copies to the C
//! library. `bellwether bench-copies` prints it again.

use std::time::Instant;

use bellwether_runtime::{Symmetric, World};

const SIZES: [usize; 13] = [
    256,
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
    2 << 20,
    4 << 20,
    8 << 20,
    16 << 20,
    64 << 20,
];
const BATCHES: usize = 15;
/// Bytes of a batch.
const BATCH: usize = 64 << 20;

type Copy = unsafe fn(*mut u8, *const u8, usize);

const WAYS: &[(&str, Copy)] = &[
    ("memcpy", memcpy),
    #[cfg(target_arch = "x86_64")]
    ("rep movsb", movsb),
    #[cfg(target_arch = "x86_64")]
    ("streaming stores", stream),
];

/// Prints GB/s of each way of copying between private memory and a segment, medians of batches that take turns.
///
/// # Errors
/// Those of the runtime.
pub fn print() -> anyhow::Result<()> {
    let world = World::start()?;
    let largest = SIZES[SIZES.len() - 1];
    let segment: Symmetric<u8> = world.alloc(largest)?;
    let shared = segment.as_ptr_range().start;
    let mut private = vec![1u8; largest];
    for (name, putting) in [("put", true), ("get", false)] {
        print!("{name:>10}");
        WAYS.iter().for_each(|(way, _)| print!("{way:>18}"));
        println!("   GB/s");
        for size in SIZES {
            let mut batches = vec![Vec::new(); WAYS.len()];
            for _ in 0..BATCHES {
                for (way, (_, copy)) in WAYS.iter().enumerate() {
                    let ends = match putting {
                        true => (shared, private.as_ptr()),
                        false => (private.as_mut_ptr(), shared.cast_const()),
                    };
                    batches[way].push(once(*copy, ends, size));
                }
            }
            print!("{size:>10}");
            for batch in &mut batches {
                batch.sort_by(f64::total_cmp);
                print!("{:>18.2}", size as f64 / batch[BATCHES / 2]);
            }
            println!();
        }
    }
    world.finish()?;
    Ok(())
}

/// Nanoseconds of one copy.
fn once(copy: Copy, (to, from): (*mut u8, *const u8), size: usize) -> f64 {
    let times = (BATCH / size).clamp(1, 20_000);
    let start = Instant::now();
    for _ in 0..times {
        // SAFETY: both ends have the largest size, and no other code accesses them.
        unsafe { copy(to, from, std::hint::black_box(size)) };
    }
    start.elapsed().as_nanos() as f64 / times as f64
}

unsafe fn memcpy(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller guarantees it.
    unsafe { libc::memcpy(to.cast(), from.cast(), len) };
}

#[cfg(target_arch = "x86_64")]
unsafe fn movsb(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller guarantees both ranges; the direction flag is clear by the calling convention.
    unsafe {
        std::arch::asm!("rep movsb", inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags));
    }
}

/// Past the caches, 64 bytes a round; both ends and the length are multiples of 64.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(to: *mut u8, from: *const u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    for at in (0..len).step_by(64) {
        for lane in (0..64).step_by(16) {
            // SAFETY: the caller guarantees both ranges; `to` is aligned to a line.
            unsafe {
                let value = _mm_loadu_si128(from.add(at + lane).cast::<__m128i>());
                _mm_stream_si128(to.add(at + lane).cast(), value);
            }
        }
    }
    // SAFETY: an instruction of every such processor.
    unsafe { _mm_sfence() };
}
