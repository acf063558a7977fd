//! Inner loops that are compiled for several processors, and picked when the program runs; memory in huge pages.
//!
//! A Rust program is compiled for the oldest processor of its architecture: on x86-64 its vectors hold two numbers of double precision.
//! Compiled with `target-cpu=native` it uses all that the building machine has, and crashes elsewhere. A [`Kernel`] is compiled once
//! for each [`Level`]; [`run`] uses the best that this processor has.
//!
//! All levels give the same bits: Rust neither contracts a multiplication and an addition nor reorders additions.
//!
//! # Examples
//! ```
//! use bellwether::cpu::{self, Kernel};
//!
//! /// `y += a x`
//! struct Axpy<'a> {
//!     a: f64,
//!     x: &'a [f64],
//!     y: &'a mut [f64],
//! }
//!
//! impl Kernel for Axpy<'_> {
//!     type Output = ();
//!
//!     #[inline(always)]
//!     fn run(self) {
//!         for (y, x) in self.y.iter_mut().zip(self.x) {
//!             *y += self.a * x;
//!         }
//!     }
//! }
//!
//! let mut y = [1.0; 100];
//! cpu::run(Axpy { a: 2.0, x: &[3.0; 100], y: &mut y });
//! assert_eq!(y, [7.0; 100]);
//! ```

use std::mem::MaybeUninit;

use bellwether_runtime::Pod;
use bellwether_runtime::memory::limits::page_size;

/// A loop with its arguments.
pub trait Kernel {
    /// The result of the loop.
    type Output;

    /// Computes it. Implementations are marked `#[inline(always)]`, and so are the functions that they call in the loop: what is not
    /// inlined is compiled for the oldest processor.
    fn run(self) -> Self::Output;
}

/// Vector instructions of a processor. A later variant includes all earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Level {
    /// The instructions that every processor of the architecture has.
    Base,
    /// x86-64 with AVX2 and FMA: vectors of 32 bytes. The psABI's level x86-64-v3.
    Avx2,
    /// x86-64 with AVX-512 (F, BW, CD, DQ, VL): vectors of 64 bytes. The psABI's level x86-64-v4.
    Avx512,
}

impl Level {
    /// The best that this processor has.
    #[inline]
    pub fn best() -> Level {
        [Level::Avx512, Level::Avx2].into_iter().find(|level| level.is_available()).unwrap_or(Level::Base)
    }

    /// Whether this processor has it. Asked of the processor once, then a load.
    #[inline]
    pub fn is_available(self) -> bool {
        match self {
            Level::Base => true,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => has_avx2(),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => has_avx512(),
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// Runs a kernel as compiled for this level; for [`Level::Base`] if the processor does not have it.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the processor has every feature of the function, as just asked.
            Level::Avx512 if has_avx512() => unsafe { avx512(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Level::Avx2 if has_avx2() => unsafe { avx2(kernel) },
            _ => kernel.run(),
        }
    }
}

/// Runs a kernel as compiled for the best [`Level`] that this processor has.
#[inline]
pub fn run<K: Kernel>(kernel: K) -> K::Output {
    Level::best().run(kernel)
}

/// The features of [`avx2`].
#[cfg(target_arch = "x86_64")]
#[inline]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
}

/// The features of [`avx512`].
#[cfg(target_arch = "x86_64")]
#[inline]
fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512cd")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2")]
fn avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
fn avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run()
}

/// A vector of `len` zeros, in huge pages where the system gives them on request.
///
/// A loop that streams through large private arrays spends much of its time on looking up pages of 4 KiB, more so in a virtual machine:
/// a processor prefetches within a page only. Where `/sys/kernel/mm/transparent_hugepage/enabled` says `madvise`, the default of most
/// distributions, the kernel gives huge pages to memory that asks for them, as this vector does. Where it says `never` this is an
/// ordinary vector. It pays from a few MiB on. Local.
///
/// # Examples
/// ```
/// let mut x = bellwether::cpu::huge_zeros::<f64>(1 << 20);
/// x[7] = 1.5;
/// assert_eq!(x.iter().sum::<f64>(), 1.5);
/// ```
pub fn huge_zeros<T: Pod>(len: usize) -> Vec<T> {
    let mut values = Vec::with_capacity(len);
    let room: &mut [MaybeUninit<T>] = values.spare_capacity_mut();
    let (page, bytes) = (page_size(), room.as_ptr_range());
    let (start, end) = ((bytes.start as usize).next_multiple_of(page), bytes.end as usize / page * page);
    if start < end {
        let first = room.as_mut_ptr().cast::<u8>().wrapping_add(start - bytes.start as usize);
        // SAFETY: whole pages inside of the vector's own memory; the advice changes nothing that is in them. A system without huge pages
        // refuses it, which changes nothing either.
        let _ = unsafe { rustix::mm::madvise(first.cast(), end - start, rustix::mm::Advice::LinuxHugepage) };
    }
    values.resize(len, T::zeroed());
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sum of products with differences, where a contraction or another order would show in the last bits.
    struct Sums<'a>(&'a [f64], &'a mut [f64]);

    impl Kernel for Sums<'_> {
        type Output = f64;

        #[inline(always)]
        fn run(self) -> f64 {
            let mut sum = 0.0;
            for (out, window) in self.1.iter_mut().zip(self.0.windows(3)) {
                *out = window[1] + 0.3 * ((window[0] - window[1]) + (window[2] - window[1]));
                sum += *out * window[0];
            }
            sum
        }
    }

    #[test]
    fn all_levels_give_the_same_bits() {
        let values: Vec<f64> = (1..1003).map(|i| 1.0 / f64::from(i * i % 17 + i)).collect();
        let compute = |level: Level| {
            let mut out = vec![0.0; 1000];
            let sum = level.run(Sums(&values, &mut out));
            (sum.to_bits(), out.into_iter().map(f64::to_bits).collect::<Vec<_>>())
        };
        let base = compute(Level::Base);
        assert!([Level::Avx2, Level::Avx512].into_iter().all(|level| compute(level) == base));
    }

    #[test]
    fn the_best_level_is_there_and_none_above_it() {
        let best = Level::best();
        assert!(best.is_available());
        assert!(
            [Level::Base, Level::Avx2, Level::Avx512].into_iter().all(|level| level.is_available() == (level <= best))
        );
    }

    #[test]
    fn huge_zeros_are_zeros_of_any_length() {
        for len in [0, 1, 511, 512, 513, 5000, 3 << 20] {
            let values = huge_zeros::<u8>(len);
            assert!(values.len() == len && values.iter().all(|value| *value == 0));
        }
        assert_eq!(huge_zeros::<[f64; 3]>(1000), vec![[0.0; 3]; 1000]);
    }

    /// Where the system gives them on request, the kernel counts them for the mapping.
    #[test]
    fn large_ones_are_in_huge_pages_where_the_system_gives_them() {
        let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
        if !setting.contains("[madvise]") && !setting.contains("[always]") {
            return;
        }
        let values = huge_zeros::<u64>(4 << 20);
        let inside = values.as_ptr() as usize + (16 << 20);
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("on Linux");
        let mut lines = maps.lines().skip_while(|line| {
            let ends = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            let end = |text| usize::from_str_radix(text, 16).ok();
            let range = ends.and_then(|(start, stop)| Some(end(start)?..end(stop)?));
            !range.is_some_and(|range| range.contains(&inside))
        });
        let flags = lines.find(|line| line.starts_with("VmFlags:")).expect("each mapping has them");
        assert!(flags.split_whitespace().any(|flag| flag == "hg"), "advised: {flags}");
    }
}
