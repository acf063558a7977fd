//! Streams of random numbers that do not depend on the number of ranks.
//!
//! A stream is named by a seed and a number. Every rank can make any stream, from any place on, without a message and
//! without making what comes before. So a program that names its streams after its work (a particle, a sample, a row), and
//! not after its ranks, computes the same on any number of ranks, whichever rank does what.
//!
//! The generator is Philox4x32-10, which is *counter based*: each block of 128 random bits is a function of the seed, the
//! number of the stream and the number of the block (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
//! SC11, 2011). It passes the batteries of TestU01. It is not fit for cryptography.
//!
//! # Examples
//! Pi from points in a square: the same sum on any number of ranks, as each point has a stream.
//! ```
//! use bellwether::array::Layout;
//! use bellwether::random::Stream;
//!
//! let inside = |world: &bellwether::World| -> bellwether::Result<u64> {
//!     let mine = Layout::block([10_000], world.size())?.box_at(world.rank()).expect("blocks");
//!     let mut inside = [0u64];
//!     for point in mine.range(0) {
//!         let mut random = Stream::new(2011, point as u64);
//!         let (x, y) = (random.unit(), random.unit());
//!         inside[0] += u64::from(x * x + y * y < 1.0);
//!     }
//!     world.allreduce_sum(&mut inside)?;
//!     Ok(inside[0])
//! };
//! let on = |ranks| bellwether::threads(ranks, inside).unwrap().remove(0).unwrap();
//! assert_eq!(on(1), on(3));
//! assert!((on(1) as f64 / 2500.0 - 3.14).abs() < 0.1);
//! ```

use std::f64::consts::TAU;
use std::ops::Range;

/// Multipliers of a round and increments of the key; Salmon et al., section 3.3 and table 2.
const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const INCREMENTS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
const ROUNDS: u32 = 10;

/// The block of Philox4x32-10 with this counter under this key: what [`Stream`] is made of.
#[inline]
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut a, mut b, mut c, mut d], [mut k, mut l]) = (counter, key);
    for _ in 0..ROUNDS {
        let first = u64::from(MULTIPLIERS[0]) * u64::from(a);
        let second = u64::from(MULTIPLIERS[1]) * u64::from(c);
        (a, b) = ((second >> 32) as u32 ^ b ^ k, second as u32);
        (c, d) = ((first >> 32) as u32 ^ d ^ l, first as u32);
        (k, l) = (k.wrapping_add(INCREMENTS[0]), l.wrapping_add(INCREMENTS[1]));
    }
    [a, b, c, d]
}

/// A stream of random numbers, named by a seed and a number: 2^64 words of 64 bits, in order or from any place on.
///
/// Streams of different numbers or seeds have no block in common. Each call takes words from the stream, as many as it says.
/// A clone goes on from the same place. The numbers are the same on every machine, except for [`Stream::normal`] and
/// [`Stream::exponential`], where the last bits of logarithm and cosine depend on the system.
///
/// # Examples
/// ```
/// use bellwether::random::Stream;
/// let mut random = Stream::new(1, 7);
/// let first: Vec<u64> = (0..10).map(|_| random.next_u64()).collect();
/// random.jump_to(8);
/// assert_eq!(random.next_u64(), first[8]);
/// let die = 1 + Stream::new(1, 8).below(6);
/// assert!((1..=6).contains(&die));
/// ```
#[derive(Clone, Debug)]
pub struct Stream {
    seed: u64,
    number: u64,
    /// The word that comes next.
    position: u64,
    /// The two words of the block that the last word came from.
    block: [u64; 2],
}

impl Stream {
    /// The stream of this seed and number, from its first word on.
    #[inline]
    pub fn new(seed: u64, number: u64) -> Stream {
        Stream { seed, number, position: 0, block: [0; 2] }
    }

    /// How many words have been taken: where the stream is.
    #[inline]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Goes to the word that this many others come before, at the cost of one block wherever that is.
    #[inline]
    pub fn jump_to(&mut self, position: u64) {
        self.position = position;
        if !position.is_multiple_of(2) {
            self.block = self.block_at(position / 2);
        }
    }

    #[inline]
    fn block_at(&self, block: u64) -> [u64; 2] {
        let halves = |word: u64| [word as u32, (word >> 32) as u32];
        let ([low, high], [number, upper]) = (halves(block), halves(self.number));
        let [a, b, c, d] = philox4x32([low, high, number, upper], halves(self.seed));
        let join = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
        [join(a, b), join(c, d)]
    }

    /// 64 random bits: one word. After the last word the first comes again.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let odd = self.position % 2;
        if odd == 0 {
            self.block = self.block_at(self.position / 2);
        }
        self.position = self.position.wrapping_add(1);
        self.block[odd as usize]
    }

    /// 32 random bits, of one word.
    #[inline]
    pub fn next_u32(&mut self) -> u32 {
        self.next_u64() as u32
    }

    /// A number in [0, 1), a multiple of 2^-53, each as likely: one word.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// A whole number below `end`, each as likely (Lemire 2019): one word, and seldom another.
    ///
    /// # Panics
    /// If `end` is 0.
    #[inline]
    #[track_caller]
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0, "there is no number below 0");
        loop {
            let product = u128::from(self.next_u64()) * u128::from(end);
            // Rejects the words whose `low` is below 2^64 mod `end`: with them some numbers would be more likely than others.
            let low = product as u64;
            if low >= end || low >= end.wrapping_neg() % end {
                return (product >> 64) as u64;
            }
        }
    }

    /// A number of `range`, each as likely: one word. `range.start` for an empty range.
    #[inline]
    pub fn uniform(&mut self, range: Range<f64>) -> f64 {
        let value = range.start + (range.end - range.start) * self.unit();
        // The product may have been rounded up to the end.
        if value < range.end { value } else { range.end.next_down().max(range.start) }
    }

    /// A number of the exponential distribution of mean 1: one word.
    #[inline]
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    /// A number of the normal distribution of mean 0 and variance 1 (Box and Muller 1958): two words.
    #[inline]
    pub fn normal(&mut self) -> f64 {
        let radius = (2.0 * self.exponential()).sqrt();
        radius * (TAU * self.unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `kat_vectors` of the authors' library Random123, the rows of `philox4x32 10`.
    #[test]
    fn blocks_are_the_published_ones() {
        let vectors = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, block) in vectors {
            assert_eq!(philox4x32(counter, key), block);
        }
    }

    #[test]
    fn a_stream_is_its_blocks_in_order() {
        assert_eq!(Stream::new(0, 0).next_u64(), 0xe169_c58d_6627_e8d5);
        let (seed, number, block) = (0x299f_31d0_a409_3822, 0x0370_7344_1319_8a2e, 0x85a3_08d3_243f_6a88);
        assert_eq!(Stream::new(seed, number).block_at(block), [0x94fd_cceb_d16c_fe09, 0x2412_6ea1_5001_e420]);
    }

    #[test]
    fn a_jump_leads_where_a_walk_does() {
        let all: Vec<u64> = {
            let mut random = Stream::new(3, 5);
            (0..101).map(|_| random.next_u64()).collect()
        };
        for at in (0..100).rev() {
            let mut random = Stream::new(3, 5);
            random.next_u64();
            random.jump_to(at as u64);
            assert_eq!(random.position(), at as u64);
            assert_eq!([random.next_u64(), random.next_u64()], all[at..at + 2]);
        }
        let mut last = Stream::new(3, 5);
        last.jump_to(u64::MAX);
        last.next_u64();
        assert_eq!((last.position(), last.next_u64()), (0, all[0]));
    }

    #[test]
    fn neighbouring_seeds_and_streams_are_not_alike() {
        let mut words: Vec<u64> = (0..32u64)
            .flat_map(|i| [(0, i), (i + 1, 0), (0, i << 32 | 1 << 63), ((i + 1) << 32, 0)])
            .flat_map(|(seed, number)| {
                let mut random = Stream::new(seed, number);
                [random.next_u64(), random.next_u64()]
            })
            .collect();
        let count = words.len();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), count);
    }

    /// Mean and variance of `count` draws.
    fn moments(count: u32, mut draw: impl FnMut(&mut Stream) -> f64) -> [f64; 2] {
        let mut random = Stream::new(17, 4);
        let draws: Vec<f64> = (0..count).map(|_| draw(&mut random)).collect();
        let mean = draws.iter().sum::<f64>() / f64::from(count);
        [mean, draws.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / f64::from(count)]
    }

    #[test]
    fn distributions_have_their_moments() {
        // Beyond these bounds chance is once in millions of seeds, and the seed is fixed.
        let near = |[mean, variance]: [f64; 2], wanted: [f64; 2], within: f64| {
            assert!((mean - wanted[0]).abs() < within && (variance - wanted[1]).abs() < within, "{mean}, {variance}");
        };
        near(moments(100_000, Stream::unit), [0.5, 1.0 / 12.0], 0.005);
        near(moments(100_000, |random| random.uniform(-2.0..4.0)), [1.0, 3.0], 0.03);
        near(moments(100_000, Stream::exponential), [1.0, 1.0], 0.05);
        near(moments(100_000, Stream::normal), [0.0, 1.0], 0.03);
        near(moments(100_000, |random| random.below(6) as f64), [2.5, 35.0 / 12.0], 0.03);
        let odd = moments(100_000, |random| f64::from(random.next_u32() % 2));
        near(odd, [0.5, 0.25], 0.01);
    }

    #[test]
    fn ranges_are_kept_to() {
        let mut random = Stream::new(1, 1);
        // Three quarters of the words' range: if a quarter of the words were taken too, every third number would be twice as likely.
        let most = 3u64 << 62;
        let mut thirds = [0u32; 3];
        for _ in 0..30_000 {
            thirds[(random.below(most) % 3) as usize] += 1;
            assert!((0.0..1.0).contains(&random.unit()));
            assert!((1.0..1.0 + 4.0 * f64::EPSILON).contains(&random.uniform(1.0..1.0 + 4.0 * f64::EPSILON)));
        }
        assert!(thirds.iter().all(|third| third.abs_diff(10_000) < 500), "{thirds:?}");
        assert_eq!((random.below(1), random.uniform(5.0..5.0)), (0, 5.0));
    }
}
