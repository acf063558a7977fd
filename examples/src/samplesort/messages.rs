//! The second form: buckets travel as active messages, and each rank decides where the keys that come to it go.
//!
//! Nothing is allocated together and no rank knows another's addresses: a message names a handler, and the handler at its target
//! answers with a vector. Ranks learn samples and counts of each other in the same way.

use std::cmp::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use bellwether::Layout;
use bellwether::lapi::{Answer, Code, Counter, Lapi};

use super::{Keys, Part, SUMS, Sorted, inversions, sums, verdict};
use crate::random::digest;

/// The handler of words that every rank gives to every other.
const WORDS: usize = 1;
/// The handler of keys on their way to the rank of their range.
const KEYS: usize = 2;
/// Samples of each rank.
const SAMPLES: usize = 64;

/// The bytes that have come from each rank.
type Came = Arc<Mutex<Vec<Vec<u8>>>>;

/// A rank that sorts, and what its handlers put aside.
struct Sorter<'a> {
    lapi: &'a Lapi,
    words: Came,
    keys: Came,
    arrived: Arc<Counter>,
}

impl<'a> Sorter<'a> {
    /// Sets the handlers. Collective.
    fn new(lapi: &'a Lapi) -> Result<Sorter<'a>, Code> {
        let empty = || Came::new(Mutex::new(vec![Vec::new(); lapi.size()]));
        let sorter = Sorter { lapi, words: empty(), keys: empty(), arrived: Arc::default() };
        for (index, came) in [(WORDS, &sorter.words), (KEYS, &sorter.keys)] {
            let (came, arrived) = (Arc::clone(came), Arc::clone(&sorter.arrived));
            lapi.handler(index, move |_, _| {
                let (came, arrived) = (Arc::clone(&came), Arc::clone(&arrived));
                // A fresh vector for each sender: the data goes straight there.
                Answer::vec(Vec::new()).then_inline(move |_, landed| {
                    let from = landed.from();
                    came.lock().unwrap_or_else(PoisonError::into_inner)[from] = landed.into_vec();
                    arrived.increment();
                })
            })?;
        }
        // No rank sends before all ranks have their handlers.
        lapi.gfence()?;
        Ok(sorter)
    }

    /// Sends each rank its part, and gives what came from each. Collective.
    fn exchange(&self, index: usize, came: &Came, part: impl Fn(usize) -> Vec<u8>) -> Result<Vec<Vec<u8>>, Code> {
        let (rank, n) = (self.lapi.rank(), self.lapi.size());
        // Each begins with another one.
        for to in (0..n).map(|step| (rank + step) % n) {
            self.lapi.message(to, index).data(part(to)).send()?;
        }
        self.lapi.wait(&self.arrived, n as i32)?;
        let all = came.lock().unwrap_or_else(PoisonError::into_inner).iter_mut().map(std::mem::take).collect();
        // No message of the next round comes before all ranks have taken those of this one.
        self.lapi.gfence()?;
        Ok(all)
    }

    /// Everyone's words, one rank after the other. Collective.
    fn share(&self, mine: &[u64]) -> Result<Vec<Vec<u64>>, Code> {
        let bytes: Vec<u8> = mine.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let came = self.exchange(WORDS, &self.words, |_| bytes.clone())?;
        let word = |bytes: &[u8; 8]| u64::from_ne_bytes(*bytes);
        Ok(came.iter().map(|bytes| bytes.as_chunks().0.iter().map(word).collect()).collect())
    }

    /// The keys of this rank's range, in order, of all ranks' keys. Collective.
    fn sort(&self, keys: &[u32]) -> Result<Vec<u32>, Code> {
        let mut mine = keys.to_vec();
        radsort::sort(&mut mine);
        let ends = self.ends(&mine)?;
        let start = |to: usize| if to == 0 { 0 } else { ends[to - 1] };
        let part = |to: usize| mine[start(to)..ends[to]].iter().flat_map(|key| key.to_ne_bytes()).collect();
        let came = self.exchange(KEYS, &self.keys, part)?;
        let key = |bytes: &[u8; 4]| u32::from_ne_bytes(*bytes);
        let mut merged: Vec<u32> = came.iter().flat_map(|bytes| bytes.as_chunks().0.iter().map(key)).collect();
        radsort::sort(&mut merged);
        Ok(merged)
    }

    /// For each rank, where its range ends in `mine`, which is sorted. Among equal keys rank and place decide.
    fn ends(&self, mine: &[u32]) -> Result<Vec<usize>, Code> {
        let (rank, n) = (self.lapi.rank(), self.lapi.size());
        let count = SAMPLES.min(mine.len());
        let place = |sample: usize| (2 * sample + 1) * mine.len() / (2 * count);
        let shown: Vec<u64> =
            (0..count).flat_map(|sample| [u64::from(mine[place(sample)]), place(sample) as u64]).collect();
        let mut samples: Vec<(u64, usize, u64)> = Vec::new();
        for (other, shown) in self.share(&shown)?.iter().enumerate() {
            samples.extend(shown.as_chunks().0.iter().map(|[key, place]| (*key, other, *place)));
        }
        samples.sort_unstable();
        let end = |range: usize| match samples.get(range * samples.len() / n) {
            Some(&(key, other, place)) => {
                let below = mine.partition_point(|own| u64::from(*own) < key);
                let equal = mine[below..].partition_point(|own| u64::from(*own) == key);
                below
                    + match rank.cmp(&other) {
                        Ordering::Less => equal,
                        Ordering::Equal => place as usize - below,
                        Ordering::Greater => 0,
                    }
            }
            None => mine.len(),
        };
        Ok((1..n).map(end).chain([mine.len()]).collect())
    }
}

/// As [`run`](super::run), with messages. Each rank keeps the keys of its range. Collective.
///
/// # Errors
/// The code of a call that failed.
pub fn run_by_messages(lapi: &Lapi, keys: Keys, count: usize, seed: u64, rounds: usize) -> Result<Sorted, Code> {
    let sorter = Sorter::new(lapi)?;
    let own = Layout::block([count], lapi.size()).ok().and_then(|layout| layout.box_at(lapi.rank()));
    let own = own.map_or(0..0, |own| own.range(0));
    let mine: Vec<u32> = own.map(|place| keys.at(seed, place as u64, count as u64)).collect();
    let mut times = Vec::new();
    let mut sorted = Vec::new();
    for _ in 0..rounds {
        lapi.gfence()?;
        let start = Instant::now();
        sorted = sorter.sort(&mine)?;
        times.push(start.elapsed());
    }
    let counts = sorter.share(&[sorted.len() as u64])?;
    let before: u64 = counts[..lapi.rank()].iter().flatten().sum();
    let places = (before..).zip(sorted.iter().map(|key| u64::from(*key)));
    let ends = [sorted.first(), sorted.last()].map(|key| key.map_or(0, |key| u64::from(*key)));
    let own = [&sums(&mine)[..], &sums(&sorted), &[digest(places), inversions(&sorted)], &ends].concat();
    let all = sorter.share(&own)?;
    let mut total = [0u64; 2 * SUMS + 2];
    for own in &all {
        total.iter_mut().zip(own).for_each(|(total, own)| *total = total.wrapping_add(*own));
    }
    let part = |own: &Vec<u64>| {
        let [keys, low, high] = [own[SUMS], own[2 * SUMS + 2], own[2 * SUMS + 3]];
        Part { keys, range: (keys > 0).then_some((low as u32, high as u32)) }
    };
    Ok(verdict(times, all.iter().map(part).collect(), &total))
}
