//! Global pointers of any bits, used in every way there is. A model of the memory that the program shares predicts the result of each
//! access: pointers reach that memory and nothing else, least of all the library's own data in the same memory.
//!
//! A test feeds seeded numbers, biased to live allocations; `ci/fuzz` feeds the inputs of a fuzzer.

use bellwether_runtime::memory::copy;
use bellwether_runtime::{Bell, Error, Pod, Posted, Result, Sum, Symmetric, Team, World};

use crate::aggregate::{Aggregator, Options};
use crate::array::{Ghosts, GlobalArray, Layout, Shared};
use crate::pointer::{GlobalPtr, GlobalSlice};
use crate::{DistHashMap, DistQueue};

/// Where a pointer claims to point.
#[derive(Debug, Clone, Copy)]
struct Aim {
    rank: u32,
    block: u32,
    generation: u64,
    index: u64,
}

impl Aim {
    fn of<T: 'static>(pointer: GlobalPtr<T>) -> Aim {
        let [ids, generation, index] = bytemuck::cast::<GlobalPtr<T>, [u64; 3]>(pointer);
        Aim { rank: ids as u32, block: (ids >> 32) as u32, generation, index }
    }

    /// By way of an address `apart` elements before.
    fn pointer<T: 'static>(self, apart: u64) -> GlobalPtr<T> {
        let ids = u64::from(self.rank) | u64::from(self.block) << 32;
        let before: GlobalPtr<T> = bytemuck::cast([ids, self.generation, self.index.wrapping_sub(apart)]);
        before.add(apart as usize)
    }
}

/// An allocation that pointers reach.
struct Part {
    block: u32,
    generation: u64,
    /// Its bytes at each rank.
    bytes: Vec<Vec<u8>>,
}

/// The library's own objects in symmetric memory, one of each kind.
struct Library<'w> {
    bells: [Bell; 2],
    team: Team,
    map: DistHashMap<'w, u64, u64>,
    queue: DistQueue<'w, u64>,
    aggregator: Aggregator<'w, u64>,
    plate: GlobalArray<f64, 2>,
}

/// One rank that tries pointers, on memory that all ranks share and leave alone meanwhile.
pub struct Attack<'w> {
    world: &'w World,
    parts: Vec<Part>,
    library: Library<'w>,
    /// Before and behind what the library has allocated, and in between.
    shared: [Symmetric<u64>; 3],
    array: GlobalArray<u32, 1, Shared>,
    /// More than any live number of an allocation, and of allocations made.
    most: [u64; 2],
    /// Accesses with the expected result: to shared memory, and refused.
    pub counts: [u64; 2],
}

impl<'w> Attack<'w> {
    /// Shares memory and makes library objects. Collective.
    ///
    /// # Errors
    /// Those of allocation.
    pub fn new(world: &'w World) -> Result<Attack<'w>> {
        let (first, dropped) = (world.alloc(10)?, world.alloc::<u64>(100)?);
        drop(DistHashMap::<u64, u64>::new(world)?);
        let team = Team::world(world)?.split(Some(0), 0)?.expect("a colour was given");
        let bells = [world.bell()?, world.bell()?];
        let map = DistHashMap::new(world)?;
        let middle = world.alloc(1)?;
        let options = Options::new(world);
        let (queue, aggregator) = (DistQueue::new(world)?, Aggregator::new(world, &options)?);
        drop(dropped);
        let layout = Layout::rows([4 * world.size(), 5], world.size())?;
        let plate = GlobalArray::with_ghosts(world, layout, Ghosts::new([1, 0]))?;
        let last = world.alloc(37)?;
        let layout = Layout::block([16 * world.size()], world.size())?;
        let array = GlobalArray::new(world, layout)?.share(world)?;
        let library = Library { bells, team, map, queue, aggregator, plate };
        let shared = [first, middle, last];
        let newest = Aim::of(array.pointer(0)?);
        let mut attack = Attack {
            world,
            parts: Vec::new(),
            library,
            array,
            most: [u64::from(newest.block) + 4, (newest.generation >> 32) + 2],
            counts: [0; 2],
            shared,
        };
        let zeros = |elements: usize| vec![vec![0; 8 * elements]; world.size()];
        for number in 0..3 {
            let aim = Aim::of(GlobalPtr::to(&attack.shared[number], 0, 0)?);
            let bytes = zeros(attack.shared[number].len());
            attack.parts.push(Part { block: aim.block, generation: aim.generation, bytes });
        }
        attack.parts.push(Part { block: newest.block, generation: newest.generation, bytes: zeros(8) });
        world.barrier()?;
        Ok(attack)
    }

    /// Makes a pointer of the numbers that come, uses it in one way, and looks whether that did what it must.
    ///
    /// # Panics
    /// If it did not.
    pub fn attempt(&mut self, next: &mut dyn FnMut() -> u64) {
        let aim = self.aim(next);
        let numbers = [next(), next(), next(), next()];
        match next() % 6 {
            0 => self.access::<u8>(aim, next() as u8, numbers),
            1 => self.access::<u32>(aim, next() as u32, numbers),
            2 => self.access::<u64>(aim, next(), numbers),
            3 => self.access::<[u64; 3]>(aim, [next(); 3], numbers),
            4 => self.change_u32(aim, next() as u32, numbers),
            _ => self.change_u64(aim, next(), numbers),
        }
    }

    fn aim(&self, next: &mut dyn FnMut() -> u64) -> Aim {
        let (how, size) = (next(), self.world.size() as u64);
        let rank = match how & 15 {
            0 => next() as u32,
            1 => size as u32,
            _ => (next() % size) as u32,
        };
        let part = &self.parts[next() as usize % self.parts.len()];
        let (block, generation) = match how >> 4 & 7 {
            0 => (part.block, part.generation),
            1 => (part.block, part.generation ^ 1 << (next() % 64)),
            2 => (next() as u32, next()),
            _ => ((next() % self.most[0]) as u32, ((next() % self.most[1]) << 32) | (next() % 4)),
        };
        let near = next() % 8;
        let index = match how >> 7 & 7 {
            0 => next(),
            1 => near.wrapping_neg(),
            // In bytes these are around 0 again.
            2 => (1 << (61 + near % 3)) + near,
            3 => (part.bytes[0].len() as u64 / [1, 4, 8, 24][near as usize % 4]).wrapping_add(near).wrapping_sub(4),
            _ => next() % 40,
        };
        Aim { rank, block, generation, index }
    }

    /// Uses a pointer to read and write.
    fn access<T: Pod>(&mut self, aim: Aim, value: T, [kind, a, b, c]: [u64; 4]) {
        let (world, later) = (self.world, kind >> 32 & 1 == 1);
        let pointer = aim.pointer::<T>(a);
        let len = match b & 7 {
            0 => c,
            1 => (c & 7).wrapping_neg(),
            _ => (b >> 3) % 12,
        };
        let slice = GlobalSlice::new(pointer, len as usize);
        let (one, all) = (Some(vec![0]), (len < 1000).then(|| (0..len).collect::<Vec<u64>>()));
        let (values, stride) = (
            vec![value; if len < 1000 { len } else { 12 } as usize],
            [1, 2, 3, 1 << 61, 1 << 63, u64::MAX][a as usize % 6],
        );
        let (from, count) = (if c & 7 == 0 { c } else { c >> 3 & 3 }, (a >> 8 & 3) as usize);
        let steps =
            (0..count as u64).map(|step| stride.checked_mul(step)?.checked_add(from)).collect::<Option<Vec<_>>>();
        let indices = [from, from.wrapping_add(2), from ^ 1].map(|index| index as usize);
        let scattered = Some(indices[..count].iter().map(|index| *index as u64).collect::<Vec<_>>());
        let (from, stride, values_apart) = (from as usize, stride as usize, &vec![value; count][..]);
        match kind % 12 {
            0 if later => {
                self.reads(aim, 1, one, pointer.get_async(world).and_then(Posted::wait).map(|value| vec![value]))
            }
            0 => self.reads(aim, 1, one, pointer.get(world).map(|value| vec![value])),
            1 if aim.rank as usize == world.rank() => {
                self.reads(aim, 1, one, pointer.local(world).map(|value| vec![value.expect("it is here")]));
            }
            1 => assert!(matches!(pointer.local(world), Ok(None)), "{aim:?}"),
            2 if later => self.writes(aim, 1, one, value, pointer.put_async(world, value).and_then(Posted::wait)),
            2 | 3 => self.writes(aim, 1, one, value, pointer.put(world, value)),
            4 if later => self.reads(aim, len, all, slice.get_async(world).and_then(Posted::wait)),
            4 => self.reads(aim, len, all, slice.get(world)),
            5 if len < 1000 => {
                let mut values = values;
                self.reads(aim, len, all, slice.get_into(world, &mut values).map(|()| values));
            }
            5 => assert!(slice.get_into(world, &mut [value]).is_err(), "{aim:?}"),
            6 if later => self.writes(aim, len, all, value, slice.put_async(world, &values).and_then(Posted::wait)),
            6 => self.writes(aim, len, all, value, slice.put(world, &values)),
            7 if later => {
                let got = slice.get_strided_async(world, from, stride, count).and_then(Posted::wait);
                self.reads(aim, len, steps, got);
            }
            7 => self.reads(aim, len, steps, slice.get_strided(world, from, stride, count)),
            8 if later => {
                let done = slice.put_strided_async(world, from, stride, values_apart).and_then(Posted::wait);
                self.writes(aim, len, steps, value, done);
            }
            8 => self.writes(aim, len, steps, value, slice.put_strided(world, from, stride, values_apart)),
            9 if later => {
                let got = slice.gather_async(world, &indices[..count]).and_then(Posted::wait);
                self.reads(aim, len, scattered, got);
            }
            9 => self.reads(aim, len, scattered, slice.gather(world, &indices[..count])),
            10 if later => {
                let done = slice.scatter_async(world, &indices[..count], values_apart).and_then(Posted::wait);
                self.writes(aim, len, scattered, value, done);
            }
            10 => self.writes(aim, len, scattered, value, slice.scatter(world, &indices[..count], values_apart)),
            _ => {
                // Only the elements of the part have to be inside.
                let part = slice.slice(from..from.saturating_add(count)).and_then(|part| part.get(world));
                let aim = Aim { index: aim.index.wrapping_add(from as u64), ..aim };
                let inside = (from as u64).checked_add(count as u64).is_some_and(|end| end <= len);
                self.reads(aim, count as u64, inside.then(|| (0..count as u64).collect()), part);
            }
        }
    }

    /// The memory of this allocation and generation, if it is shared.
    fn part(&self, aim: Aim) -> Option<usize> {
        self.parts.iter().position(|part| (part.block, part.generation) == (aim.block, aim.generation))
    }

    /// Checks that an access to elements of the slice fails with [`Error::Stale`] if nothing shared has this generation, and only then:
    /// the null pointer is stale, not out of the bounds of an allocation without bytes.
    fn check_stale<R>(&self, aim: Aim, result: &Result<R>) {
        let error = result.as_ref().err();
        let is_stale = matches!(error, Some(Error::Stale { .. }));
        assert_eq!(is_stale, self.part(aim).is_none(), "the error of {aim:?}: {error:?}");
    }

    /// Where these elements of the `len` at `aim` begin, if all that is named exists and is shared.
    fn places<T>(&self, aim: Aim, len: u64, indices: Option<Vec<u64>>) -> Option<(usize, Vec<usize>)> {
        let indices = indices.filter(|indices| indices.iter().all(|index| *index < len))?;
        let part = self.part(aim)?;
        let available = (self.parts[part].bytes.get(aim.rank as usize)?.len() / size_of::<T>()) as u64;
        if aim.index > available || len > available - aim.index {
            return None;
        }
        Some((part, indices.iter().map(|index| (aim.index + index) as usize * size_of::<T>()).collect()))
    }

    /// Checks a read: either the elements were read, or the call returned an error.
    fn reads<T: Pod>(&mut self, aim: Aim, len: u64, indices: Option<Vec<u64>>, got: Result<Vec<T>>) {
        if indices.as_ref().is_some_and(Vec::is_empty) {
            return;
        }
        if indices.as_ref().is_some_and(|indices| indices.iter().all(|index| *index < len)) {
            self.check_stale(aim, &got);
        }
        let got = got.ok().map(|values| bytemuck::cast_slice::<T, u8>(&values).to_vec());
        let expected = self.places::<T>(aim, len, indices).map(|(part, starts)| {
            let bytes = &self.parts[part].bytes[aim.rank as usize];
            starts.iter().flat_map(|start| &bytes[*start..][..size_of::<T>()]).copied().collect::<Vec<u8>>()
        });
        assert_eq!(got, expected, "read {} bytes each of {len} at {aim:?}", size_of::<T>());
        self.counts[usize::from(got.is_none())] += 1;
    }

    /// Checks a write: either `value` was written to all of these elements, or the call returned an error.
    fn writes<T: Pod>(&mut self, aim: Aim, len: u64, indices: Option<Vec<u64>>, value: T, done: Result<()>) {
        if indices.as_ref().is_some_and(Vec::is_empty) {
            return;
        }
        if indices.as_ref().is_some_and(|indices| indices.iter().all(|index| *index < len)) {
            self.check_stale(aim, &done);
        }
        let places = self.places::<T>(aim, len, indices);
        assert_eq!(done.is_ok(), places.is_some(), "wrote {} bytes each of {len} at {aim:?}", size_of::<T>());
        self.counts[usize::from(done.is_err())] += 1;
        let Some((part, starts)) = places else { return };
        let bytes = &mut self.parts[part].bytes[aim.rank as usize];
        for start in starts {
            bytes[start..][..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&value));
        }
    }

    /// Looks whether all that is shared is as the model has it.
    ///
    /// # Panics
    /// If it is not.
    ///
    /// # Errors
    /// Those of reading it.
    pub fn verify(&self) -> Result<()> {
        for rank in 0..self.world.size() {
            for (part, shared) in self.parts.iter().zip(&self.shared) {
                let mut values = vec![0; shared.len()];
                shared.get_slice(rank, 0, &mut values)?;
                assert!(bytemuck::cast_slice::<u64, u8>(&values) == part.bytes[rank], "{shared:?} at rank {rank}");
            }
            let values = self.array.pointer(16 * rank)?.slice(16).get(self.world)?;
            assert!(bytemuck::cast_slice::<u32, u8>(&values) == self.parts[3].bytes[rank], "the array at rank {rank}");
        }
        Ok(())
    }

    /// The library's memory between the allocations that pointers reach. Empty where memory is not mapped.
    pub fn library_memory(&self) -> Vec<Vec<u8>> {
        let [first, middle, last] = &self.shared;
        let between = |rank: usize| {
            let (start, len) = (first.ptr(rank)?, last.offset() - first.offset());
            let mut bytes = vec![0; len];
            // SAFETY: both allocations are live and in one slot, which is committed up to the later one; `bytes` is private.
            unsafe { copy::copy(bytes.as_mut_ptr(), start.cast(), len) };
            for shared in [first, middle] {
                bytes[shared.offset() - first.offset()..][..8 * shared.len()].fill(0);
            }
            Some(bytes)
        };
        (0..self.world.size()).map_while(between).collect()
    }

    /// Uses all that the library keeps. Collective.
    ///
    /// # Panics
    /// If it does not do what it must.
    ///
    /// # Errors
    /// Those of its calls.
    pub fn use_library(&mut self) -> Result<()> {
        let (world, library) = (self.world, &mut self.library);
        let (rank, size) = (world.rank() as u64, world.size() as u64);
        let next = (world.rank() + 1) % world.size();
        for bell in &library.bells {
            bell.ring(next)?;
            assert_eq!(bell.wait(1)?, 1);
        }
        let mut sum = [1];
        library.team.allreduce(&mut sum, Sum)?;
        assert_eq!(sum, [size]);
        library.map.insert(rank, rank + 7)?;
        library.queue.push(rank)?;
        while library.queue.pop()?.is_some() {}
        world.barrier()?;
        assert_eq!(library.map.get(&(next as u64))?, Some(next as u64 + 7));
        assert_eq!(
            library.aggregator.gather(
                &self.shared[0],
                &crate::aggregate::Blocks::new(size as usize, size as usize),
                &[]
            )?,
            []
        );
        library.plate.exchange()?;
        world.barrier()
    }
}

macro_rules! change {
    ($($name:ident, $int:ty;)*) => {
        impl Attack<'_> {
            $(/// Uses a pointer to change an element atomically.
            fn $name(&mut self, aim: Aim, value: $int, [kind, apart, other, _]: [u64; 4]) {
                let (world, later, pointer) = (self.world, kind >> 32 & 1 == 1, aim.pointer::<$int>(apart));
                let place = self.places::<$int>(aim, 1, Some(vec![0])).map(|(part, starts)| (part, starts[0]));
                let old = place.map(|(part, start)| {
                    let bytes = &self.parts[part].bytes[aim.rank as usize];
                    bytemuck::pod_read_unaligned::<$int>(&bytes[start..][..size_of::<$int>()])
                });
                let expected = if kind >> 33 & 1 == 1 { old.unwrap_or(0) } else { other as $int };
                macro_rules! both {
                    ($now:ident, $future:ident, $new:expr) => {{
                        let got = match later {
                            true => pointer.$future(world, value).and_then(Posted::wait),
                            false => pointer.$now(world, value),
                        };
                        (got, $new)
                    }};
                }
                let new: (_, fn($int, $int) -> $int) = match kind % 6 {
                    0 => both!(fetch_add, fetch_add_async, |old, value| old.wrapping_add(value)),
                    1 => both!(fetch_and, fetch_and_async, |old, value| old & value),
                    2 => both!(fetch_or, fetch_or_async, |old, value| old | value),
                    3 => both!(fetch_xor, fetch_xor_async, |old, value| old ^ value),
                    4 => both!(swap, swap_async, |_, value| value),
                    _ => {
                        let got = match later {
                            true => pointer.compare_swap_async(world, expected, value).and_then(Posted::wait),
                            false => pointer.compare_swap(world, expected, value),
                        };
                        (got, if old == Some(expected) { |_, value| value } else { |old, _| old })
                    }
                };
                let (got, new) = new;
                self.check_stale(aim, &got);
                assert_eq!(got.ok(), old, "an atomic on {} bytes at {aim:?}", size_of::<$int>());
                self.counts[usize::from(old.is_none())] += 1;
                let (Some((part, start)), Some(old)) = (place, old) else { return };
                self.parts[part].bytes[aim.rank as usize][start..][..size_of::<$int>()]
                    .copy_from_slice(&new(old, value).to_ne_bytes());
            })*
        }
    };
}

change! {
    change_u32, u32;
    change_u64, u64;
}

/// SplitMix64 (Steele, Lea and Flood 2014).
fn seeded(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }
}

/// Feeds one rank alone with pointers made of these bytes. It lives as long as the process: its start takes longer than many inputs.
#[cfg(fuzzing)]
pub fn feed_pointers(bytes: &[u8]) {
    use std::sync::{Mutex, OnceLock, mpsc};

    static RANK: OnceLock<Mutex<(mpsc::Sender<Vec<u8>>, mpsc::Receiver<()>)>> = OnceLock::new();
    let rank = RANK.get_or_init(|| {
        let ((inputs, input), (done, ended)) = (mpsc::channel::<Vec<u8>>(), mpsc::channel());
        let input = Mutex::new(input);
        std::thread::spawn(move || {
            bellwether_runtime::threads(1, |world| {
                let mut attack = Attack::new(world).expect("one rank alone");
                let before = attack.library_memory();
                for (number, bytes) in input.lock().expect("of this thread alone").iter().enumerate() {
                    attack.feed(&bytes);
                    // It is large, and a write that reaches it fails at once because it is not refused.
                    if number % 64 == 0 {
                        assert!(
                            attack.library_memory() == before,
                            "the library's memory was changed by one of 64 inputs"
                        );
                    }
                    done.send(()).expect("the fuzzer waits");
                }
            })
            .expect("one rank alone");
        });
        Mutex::new((inputs, ended))
    });
    let rank = rank.lock().expect("a failure ends the process");
    rank.0.send(bytes.to_vec()).expect("the rank lives");
    rank.1.recv().expect("the rank lives");
}

#[cfg(fuzzing)]
impl Attack<'_> {
    fn feed(&mut self, bytes: &[u8]) {
        // So that a finding fails again without the inputs before it.
        self.clear().expect("one rank alone");
        let mut words =
            bytes.chunks(8).map(|chunk| chunk.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)));
        // Few bytes stand for many pointers, too: what a fuzzer begins with would else be zeros nearly everywhere.
        let seed =
            bytes.iter().fold(bytes.len() as u64, |seed, byte| seed.wrapping_mul(257).wrapping_add((*byte).into()));
        let mut more = seeded(seed);
        while words.len() > 0 {
            self.attempt(&mut || words.next().unwrap_or_else(&mut more));
        }
        (0..8).for_each(|_| self.attempt(&mut more));
        self.verify().expect("one rank alone");
    }

    fn clear(&mut self) -> Result<()> {
        for rank in 0..self.world.size() {
            for shared in &self.shared {
                shared.put_slice(rank, 0, &vec![0; shared.len()])?;
            }
            self.array.pointer(16 * rank)?.slice(16).put(self.world, &[0; 16])?;
        }
        self.parts.iter_mut().flat_map(|part| &mut part.bytes).for_each(|bytes| bytes.fill(0));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bellwether_runtime::transport::sim::Config;
    use bellwether_runtime::{Settings, Simulated, Threads, Transport};
    use bellwether_tests::watchdog;

    use super::*;

    /// The last rank tries `attempts` pointers.
    fn attack(world: &World, attempts: usize) -> Result<()> {
        let mut attack = Attack::new(world)?;
        let over = world.bell()?;
        world.barrier()?;
        if world.rank() == world.size() - 1 {
            let before = attack.library_memory();
            let mut next = seeded(15);
            (0..attempts).for_each(|_| attack.attempt(&mut next));
            assert!(attack.library_memory() == before, "the library's memory was changed");
            let library: usize = before.iter().map(Vec::len).sum();
            let [reached, refused] = attack.counts;
            println!(
                "{reached} reached what is shared, {refused} were refused; {library} bytes of the library beside it"
            );
            assert!(reached > attempts as u64 / 50 && refused > attempts as u64 / 2);
            attack.verify()?;
            (0..world.size()).try_for_each(|rank| over.ring(rank))?;
        }
        over.wait(1)?;
        attack.use_library()
    }

    #[track_caller]
    fn all_well(name: &str, job: impl FnOnce() -> Result<Vec<Result<()>>>) {
        let _guard = watchdog::guard(name, Duration::from_secs(120));
        job()
            .expect("the job starts")
            .into_iter()
            .collect::<Result<Vec<()>>>()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    #[test]
    fn no_bits_reach_what_the_program_does_not_share() {
        all_well("1 thread", || Threads::new(1).run(|world| attack(world, 500_000)));
        all_well("2 threads", || Threads::new(2).run(|world| attack(world, 500_000)));
    }

    #[test]
    fn no_bits_reach_it_over_a_network() {
        let mut settings = Settings::default();
        settings.transport = Transport::ShmContract;
        all_well("contract", || Threads::new(2).settings(settings.clone()).run(|world| attack(world, 20_000)));
        settings.transport = Transport::Tcp;
        all_well("TCP", || Threads::new(2).settings(settings).run(|world| attack(world, 4_000)));
        all_well("simulated", || Simulated::new(Config::new(3, 7).wild()).run(|world| attack(world, 20_000)));
        let nodes = Config::new(3, 7).shared_nodes(&[2]).wild();
        all_well("simulated nodes", || Simulated::new(nodes).run(|world| attack(world, 20_000)));
    }
}
