//! Sorting keys that are spread over ranks, and making sure that they are sorted.

mod messages;

use std::time::Duration;

use bellwether::random::Stream;
use bellwether::{GlobalArray, Layout, Result, World};
use clap::ValueEnum;

pub use self::messages::run_by_messages;
use crate::random::{digest, mix};

/// What the keys are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Keys {
    /// Every number is as likely as any other
    Uniform,
    /// Half of the keys have 32 random bits, a quarter have 31, and so on
    Skewed,
    /// Only 16 different keys
    Few,
    /// In order already
    Sorted,
    /// In the opposite order
    Reversed,
}

impl Keys {
    /// The key at a place of `count`.
    pub fn at(self, seed: u64, place: u64, count: u64) -> u32 {
        let mut random = Stream::new(seed, 0);
        random.jump_to(place);
        let random = random.next_u64();
        let low = random as u32;
        let rising = |place: u64| (u128::from(place) * u128::from(u32::MAX) / u128::from(count)) as u32;
        match self {
            Keys::Uniform => low,
            Keys::Skewed => low >> (random >> 32).trailing_ones().min(31),
            Keys::Few => (low % 16).wrapping_mul(0x0843_1a57),
            Keys::Sorted => rising(place),
            Keys::Reversed => rising(count - 1 - place),
        }
    }
}

/// One rank's keys at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// How many keys.
    pub keys: u64,
    /// The smallest and the largest, if there are any.
    pub range: Option<(u32, u32)>,
}

/// The result of sorting.
#[derive(Clone, Debug)]
pub struct Sorted {
    /// How long each round took.
    pub times: Vec<Duration>,
    /// The keys of each rank.
    pub parts: Vec<Part>,
    /// Neighbouring keys that are in the wrong order, on a rank or across two.
    pub disorder: u64,
    /// Whether the keys are those that there were before, as far as sums over them tell.
    pub permutation: bool,
    /// The digest of the sorted keys and their places.
    pub digest: u64,
}

/// Makes `count` keys, sorts them `rounds` times, and looks at the result. Collective.
///
/// # Errors
/// Out of memory, or a rank was lost.
pub fn run(world: &World, keys: Keys, count: usize, seed: u64, rounds: usize) -> Result<Sorted> {
    let layout = Layout::block([count], world.size())?;
    // The keys, the sorted keys, and those on their way: better to be told now than after a minute that there is no room.
    drop(world.alloc::<u32>(3 * count.div_ceil(world.size()))?);
    let array = GlobalArray::from_fn(world, layout, |[place]| keys.at(seed, place as u64, count as u64))?;
    let mut times = Vec::new();
    let mut timed = || -> Result<GlobalArray<u32, 1>> {
        world.barrier()?;
        let start = world.elapsed();
        let sorted = array.sort(world)?;
        times.push(world.elapsed() - start);
        Ok(sorted)
    };
    let mut sorted = timed()?;
    for _ in 1..rounds {
        sorted = timed()?;
    }
    let mut all = [sums(array.local()), sums(sorted.local())].concat();
    let places = sorted.iter().map(|([place], key)| (place as u64, u64::from(*key)));
    all.push(digest(places));
    all.push(inversions(sorted.local()));
    world.allreduce(&mut all, u64::wrapping_add)?;
    let parts = parts(world, sorted.local())?;
    Ok(verdict(times, parts, &all))
}

/// The result of sorting. `all` has sums over all ranks: those of the keys before, those of the keys after, the digest, and the number of
/// neighbours on one rank that are in the wrong order.
fn verdict(times: Vec<Duration>, parts: Vec<Part>, all: &[u64]) -> Sorted {
    let across = parts.iter().filter_map(|part| part.range).collect::<Vec<_>>();
    let across = across.windows(2).filter(|pair| pair[0].1 > pair[1].0).count() as u64;
    let (before, after) = (&all[..SUMS], &all[SUMS..2 * SUMS]);
    Sorted { times, permutation: before == after, disorder: all[2 * SUMS + 1] + across, digest: all[2 * SUMS], parts }
}

/// The digest of the same keys sorted without us.
pub fn serial_digest(keys: Keys, count: usize, seed: u64) -> u64 {
    let mut all: Vec<u32> = (0..count as u64).map(|place| keys.at(seed, place, count as u64)).collect();
    all.sort_unstable();
    digest((0..).zip(all.into_iter().map(u64::from)))
}

/// How many sums [`sums`] makes.
const SUMS: usize = 4;

/// Sums over the keys that do not depend on their order: their number, their sum, and sums of two hashes of them. With
/// another key in the place of one of them all four agree once in 2^128 times.
fn sums(keys: &[u32]) -> [u64; SUMS] {
    keys.iter().fold([0; SUMS], |[count, sum, one, other], key| {
        let key = u64::from(*key);
        let hashed = mix(key + 1);
        [count + 1, sum.wrapping_add(key), one.wrapping_add(hashed), other.wrapping_add(mix(!hashed))]
    })
}

fn inversions(keys: &[u32]) -> u64 {
    keys.windows(2).filter(|pair| pair[0] > pair[1]).count() as u64
}

fn parts(world: &World, keys: &[u32]) -> Result<Vec<Part>> {
    let ends = [keys.first(), keys.last()].map(|key| key.map_or(0, |key| u64::from(*key)));
    let all = world.allgather(&[[keys.len() as u64, ends[0], ends[1]]])?;
    let part = |[keys, low, high]: [u64; 3]| Part { keys, range: (keys > 0).then_some((low as u32, high as u32)) };
    Ok(all.into_iter().map(part).collect())
}
