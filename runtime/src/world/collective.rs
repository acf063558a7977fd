//! Small collectives over the exchange boards. Results are the same on every rank, bit for bit, because contributions are combined in
//! the order of the ranks: by every rank, or, where barriers are by a counter, by the last rank that enters, for all.
//!
//! Where the settings force an algorithm, the team of all ranks does the call.

use bytemuck::Pod;

use super::{PlainData, World};
use crate::error::{Error, Result};
use crate::team::Team;
use crate::team::exchange::{BOARD, See, Wanted};
use crate::team::title::{Asked, Kind};

/// Room for words behind their length.
const WORDS: usize = BOARD - 8;

/// What takes the parts of arrays that ranks show.
trait SeeParts<T> {
    /// Takes that of a rank, which begins with element `start`.
    fn see(&mut self, rank: usize, start: usize, part: &[T]);
    /// What those of all ranks came to.
    fn result(&self, _start: usize, _into: &mut [T]) {}
}

impl<T, F: FnMut(usize, usize, &[T])> SeeParts<T> for F {
    fn see(&mut self, rank: usize, start: usize, part: &[T]) {
        self(rank, start, part);
    }
}

/// A reduction in the order of the ranks.
struct Reduction<'a, T, C> {
    values: &'a mut [T],
    combine: C,
}

impl<T: Copy, C: Fn(T, T) -> T> SeeParts<T> for Reduction<'_, T, C> {
    fn see(&mut self, rank: usize, start: usize, part: &[T]) {
        for (value, theirs) in self.values[start..].iter_mut().zip(part) {
            *value = if rank == 0 { *theirs } else { (self.combine)(*value, *theirs) };
        }
    }

    fn result(&self, start: usize, into: &mut [T]) {
        into.copy_from_slice(&self.values[start..start + into.len()]);
    }
}

/// The bytes of parts as elements.
struct Parts<T, S> {
    part: Vec<T>,
    start: usize,
    see: S,
}

impl<T: Pod, S: SeeParts<T>> See for &mut Parts<T, S> {
    fn see(&mut self, rank: usize, bytes: &[u8]) {
        bytemuck::cast_slice_mut::<T, u8>(&mut self.part).copy_from_slice(bytes);
        self.see.see(rank, self.start, &self.part);
    }

    fn result(&mut self, into: &mut [u8]) {
        self.see.result(self.start, &mut self.part);
        into.copy_from_slice(bytemuck::cast_slice(&self.part));
    }
}

impl World {
    /// Shows `mine` to all ranks and returns everyone's, in the order of the ranks. Collective; same length on every
    /// rank.
    ///
    /// # Errors
    /// [`Error::RanksDiffer`] for other lengths; as [`World::barrier`]. Where `BELLWETHER_ALLGATHER` forces an algorithm, as
    /// [`Team::allgather`].
    #[track_caller]
    pub fn allgather<T: PlainData>(&self, mine: &[T]) -> Result<Vec<T>> {
        if let Some(team) = self.forced(self.engine.settings.collectives.allgather)? {
            return team.allgather(mine);
        }
        let mut all = vec![T::zeroed(); mine.len() * self.size()];
        self.engine.at(|| {
            self.rounds(
                mine,
                (Asked::data::<T>(Kind::Gather, mine.len()), Wanted::All),
                |rank: usize, start: usize, part: &[T]| {
                    let at = rank * mine.len() + start;
                    all[at..at + part.len()].copy_from_slice(part);
                },
            )
        })?;
        Ok(all)
    }

    /// Combines `values` of all ranks element by element, in the order of the ranks; the result replaces `values`
    /// everywhere. Collective; same length, type and operator on every rank. `combine` runs at every rank, or at one for
    /// all while the others wait: it may make no collective call, of a team neither.
    ///
    /// Ranks that call it at different places of the program and get different results, as one that adds beside one that takes the
    /// larger value, are told so by their next collective call but a barrier, [`World::finish`] at the latest: [`Error::RanksDiffer`].
    /// Of results of more than 512 bytes both ends are compared.
    ///
    /// Where `BELLWETHER_ALLREDUCE` forces an algorithm, it combines as [`Team::allreduce`] does: in the order of the ranks too,
    /// but in pairs, which may round otherwise.
    ///
    /// # Errors
    /// As [`World::allgather`].
    #[track_caller]
    pub fn allreduce<T: PlainData>(&self, values: &mut [T], combine: impl Fn(T, T) -> T) -> Result<()> {
        if let Some(team) = self.forced(self.engine.settings.collectives.allreduce)? {
            return team.allreduce(values, combine);
        }
        let mine = values.to_vec();
        self.engine.at(|| {
            let asked = (Asked::data::<T>(Kind::Reduce, mine.len()), Wanted::Combined);
            self.rounds(&mine, asked, Reduction { values, combine: &combine })?;
            self.exchange.note_result(&self.engine, bytemuck::cast_slice(values));
            Ok(())
        })
    }

    /// Adds up `values` of all ranks; see [`World::allreduce`].
    ///
    /// # Errors
    /// As [`World::allgather`].
    #[track_caller]
    pub fn allreduce_sum<T: PlainData + std::ops::Add<Output = T>>(&self, values: &mut [T]) -> Result<()> {
        self.allreduce(values, |a, b| a + b)
    }

    /// Copies `values` of rank `root` to all ranks. Collective; same root, length and type on every rank. Over a network down a
    /// binomial tree: at most log2 n messages one after the other, and no rank waits for those below it; a difference that shows
    /// in none of them is told by the next collective call but a barrier, [`World::finish`] at the latest.
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`]; as [`World::allgather`].
    #[track_caller]
    pub fn broadcast<T: PlainData>(&self, root: usize, values: &mut [T]) -> Result<()> {
        self.engine.check_rank(root, "broadcast")?;
        if let Some(team) = self.forced(self.engine.settings.collectives.broadcast)? {
            return team.broadcast(root, values);
        }
        let asked = Asked::data::<T>(Kind::Broadcast, values.len()).root(root);
        if !self.engine.routes.all_mapped() {
            return self.engine.at(|| self.broadcast_by_messages(asked, root, bytemuck::cast_slice_mut(values)));
        }
        let mine = values.to_vec();
        self.engine.at(|| {
            self.rounds(&mine, (asked, Wanted::From(root)), |rank: usize, start: usize, part: &[T]| {
                if rank == root {
                    values[start..start + part.len()].copy_from_slice(part);
                }
            })
        })
    }

    /// The team of all ranks, if an algorithm is forced: one that is not `Auto`, the default.
    #[inline]
    #[track_caller]
    fn forced<A: Default + PartialEq>(&self, algorithm: A) -> Result<Option<Team>> {
        if algorithm == A::default() {
            return Ok(None);
        }
        // Refused inside another collective call.
        drop(self.engine.at(|| self.begin("a collective call"))?);
        Team::world(self).map(Some)
    }

    /// Passes `mine` through the boards, as many elements at a time as fit.
    fn rounds<T: Pod>(&self, mine: &[T], asked: (Asked, Wanted), see: impl SeeParts<T>) -> Result<()> {
        const { assert!(size_of::<T>() <= BOARD && size_of::<T>() > 0, "an element fits in an exchange") };
        let running = self.begin("a collective call")?;
        let most = mine.len().min(BOARD / size_of::<T>());
        let mut parts = Parts { part: vec![T::zeroed(); most], start: 0, see };
        loop {
            let part = &mine[parts.start..mine.len().min(parts.start + most)];
            parts.part.truncate(part.len());
            self.exchange_within(&running, asked, bytemuck::cast_slice(part), &mut parts)?;
            parts.start += part.len();
            if parts.start == mine.len() {
                return Ok(());
            }
        }
    }

    /// Shows this rank's address of something to all, and returns everyone's. Collective. An address that another
    /// rank can use with the raw calls of [`crate::vocabulary::cheetah`].
    ///
    /// # Errors
    /// As [`World::barrier`].
    #[track_caller]
    pub fn exchange_addresses<T>(&self, address: *const T) -> Result<Vec<usize>> {
        self.allgather(&[address as usize])
    }

    /// Agrees on an outcome: `Ok` if all ranks bring `Ok`, else the first failing rank and its text. Collective.
    /// Lets one rank read and check the input for all.
    ///
    /// # Errors
    /// [`Error::Agreed`] on every rank, with the first failure's rank and text; as [`World::barrier`].
    #[track_caller]
    pub fn agree(&self, mine: std::result::Result<(), String>) -> Result<()> {
        let mut board = [0u8; BOARD];
        if let Err(why) = mine {
            let shown = why.floor_char_boundary(WORDS);
            board[..8].copy_from_slice(&(1 + shown as u64).to_ne_bytes());
            board[8..8 + shown].copy_from_slice(&why.as_bytes()[..shown]);
        }
        let mut first = None;
        let exchange = |see: &mut dyn FnMut(usize, &[u8])| {
            self.engine.at(|| {
                let running = self.begin("a collective call")?;
                self.exchange_within(&running, (Kind::Agree, Wanted::First), &board, |rank, theirs: &[u8]| {
                    see(rank, theirs)
                })
            })
        };
        exchange(&mut |rank, theirs: &[u8]| {
            let word = u64::from_ne_bytes(theirs[..8].try_into().expect("eight bytes")) as usize;
            if word != 0 && first.is_none() {
                let end = 8 + (word - 1).min(WORDS);
                first = Some((rank, String::from_utf8_lossy(&theirs[8..end]).into_owned()));
            }
        })?;
        match first {
            None => Ok(()),
            Some((rank, why)) => Err(Error::Agreed { rank, why }),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use crate::error::Error;
    use crate::settings::{Allgather, Allreduce, Barrier, Broadcast, Collectives, Settings};
    use crate::transport::sim;
    use crate::world::team::Everyone;
    use crate::{Simulated, Team, Threads, World};

    /// What each of `ranks` ranks gives.
    fn each<R: Send>(barrier: Barrier, ranks: usize, body: impl Fn(&World) -> R + Sync) -> Vec<R> {
        let settings = Settings { barrier, ..Settings::default() };
        Threads::new(ranks).settings(settings).deadline(Duration::from_secs(60)).run(body).expect("threads start")
    }

    #[test]
    fn ranks_learn_whether_all_brought_the_same_digest() {
        for barrier in [Barrier::Central, Barrier::Dissemination] {
            for ranks in [1, 2, 3, 5, 7, 9, 12] {
                each(barrier, ranks, |world| {
                    let compares = world.barrier.compares();
                    for number in 0..300 {
                        // In every other barrier one rank differs.
                        let one = number % 2 == 1 && world.rank() == number / 2 % ranks;
                        let running = world.begin("a test").expect("no other call");
                        let facts = (0, 7 + u64::from(one));
                        let agreed =
                            world.barrier.enter_with(&running, world.engine(), facts, || ()).expect("all enter");
                        assert_eq!(
                            agreed,
                            compares && (number % 2 == 0 || ranks == 1),
                            "{barrier:?}, {ranks} ranks, number {number}"
                        );
                    }
                    assert_eq!(compares, barrier == Barrier::Central || ranks > 8);
                });
            }
        }
    }

    /// Rank 0 runs out of time, and the others enter when they have heard so.
    fn out_of_time(world: &World) {
        let told = world.bell().expect("memory for a bell");
        let limit = Duration::from_millis(1);
        for round in 0..3 {
            if world.rank() > 0 {
                told.wait(1 + round).expect("rank 0 rings");
                world.barrier().expect("all enter");
                continue;
            }
            for _ in 0..2 {
                let error = world.barrier_for(limit).expect_err("the others wait for this one");
                assert!(matches!(error, Error::TimedOut { .. }), "{error}");
                let error = world.allreduce(&mut [1u64], |a, b| a + b).expect_err("a barrier is not done").to_string();
                assert!(error.contains("ran out of time in a barrier"), "{error}");
            }
            (1..world.size()).for_each(|rank| told.ring(rank).expect("a rank"));
            world.barrier().expect("it goes on");
        }
        let mut sum = [1u64];
        world.allreduce(&mut sum, |a, b| a + b).expect("barriers are done");
        assert_eq!(sum, [world.size() as u64]);
    }

    #[test]
    fn a_barrier_that_ran_out_of_time_goes_on() {
        for ranks in [2, 3, 5] {
            for barrier in [Barrier::Central, Barrier::Dissemination] {
                each(barrier, ranks, out_of_time);
            }
            let job = crate::Simulated::new(sim::Config::new(ranks, 1).wild());
            job.run(out_of_time).expect("the job starts");
        }
    }

    #[test]
    fn who_leaves_after_it_ran_out_of_time_is_missed() {
        let told = AtomicBool::new(false);
        let outcomes = each(Barrier::Dissemination, 3, |world| {
            if world.rank() == 0 {
                // It has told rank 1, and rank 2 waits for it.
                return world.barrier_for(Duration::from_millis(1));
            }
            world.sleep(Duration::from_millis(50));
            let outcome = world.barrier();
            if world.rank() == 2 {
                told.store(true, Ordering::Relaxed);
            }
            // Rank 1 stays without a wait: nobody finds a standstill, which would end the wait of rank 2 too.
            let start = Instant::now();
            while !told.load(Ordering::Relaxed) {
                assert!(start.elapsed() < Duration::from_secs(20), "rank 2 is not told");
                std::thread::sleep(Duration::from_millis(1));
            }
            outcome
        });
        assert!(matches!(outcomes[0], Err(Error::TimedOut { .. })), "{outcomes:?}");
        assert!(matches!(outcomes[2], Err(Error::PeerLost { rank: 0, .. })), "{outcomes:?}");
    }

    #[test]
    fn calls_after_one_that_differed_see_what_all_brought_to_them() {
        for barrier in [Barrier::Central, Barrier::Dissemination] {
            for ranks in [3, 10] {
                each(barrier, ranks, |world| {
                    let rank = world.rank();
                    if rank == 1 {
                        world.barrier().expect("all enter one");
                    } else {
                        world.allgather(&[1u8]).expect_err("rank 1 is in a barrier");
                    }
                    for round in 0..3 {
                        let all = world.allgather(&[100 * round + rank]).expect("a call that all make alike");
                        assert_eq!(all, (0..ranks).map(|rank| 100 * round + rank).collect::<Vec<_>>(), "{barrier:?}");
                    }
                });
            }
        }
    }

    #[test]
    fn a_barrier_that_a_panic_came_out_of_is_finished_by_the_next_call() {
        for barrier in [Barrier::Central, Barrier::Dissemination] {
            each(barrier, 3, |world| {
                let in_barrier = world.bell().expect("memory for a bell");
                match world.rank() {
                    0 => {
                        in_barrier.wait(1).expect("rank 1 rings");
                        world.sleep(Duration::from_millis(20));
                        let call = world.call(1, 7u8, |_, number: u8| assert_ne!(number, 7, "as asked")).expect("room");
                        call.wait().expect_err("its handler panics");
                        world.barrier().expect("all enter");
                    }
                    1 => {
                        in_barrier.ring(0).expect("rank 0 is there");
                        catch_unwind(AssertUnwindSafe(|| world.barrier())).expect_err("a handler panics meanwhile");
                    }
                    _ => world.barrier().expect("all enter"),
                }
                let mut sum = [world.rank() as u64];
                world.allreduce(&mut sum, |a, b| a + b).expect("all call it");
                assert_eq!(sum, [3], "{barrier:?}");
            });
        }
    }

    #[test]
    fn one_rank_combines_for_all_where_barriers_are_by_a_counter() {
        for (ranks, len) in [(2, 1), (3, 5), (5, 1000), (7, 0)] {
            let combined = each(Barrier::Central, ranks, |world| {
                let (count, mut sums) = (Cell::new(0), vec![world.rank(); len]);
                let add = |a: usize, b: usize| {
                    count.set(count.get() + 1);
                    a + b
                };
                world.allreduce(&mut sums, add).expect("all call it");
                assert_eq!(sums, vec![ranks * (ranks - 1) / 2; len]);
                count.get()
            });
            assert_eq!(combined.iter().sum::<usize>(), (ranks - 1) * len, "{ranks} ranks: {combined:?}");
        }
    }

    /// Each collective call once, with a length that takes several pieces of a team's buffer and one that takes none.
    fn all_calls(world: &World) {
        let (me, n) = (world.rank() as u64, world.size() as u64);
        for len in [0, 1, 3000] {
            let all = world.allgather(&vec![me; len]).expect("all call it");
            assert_eq!(all, (0..n).flat_map(|rank| vec![rank; len]).collect::<Vec<_>>());
            let mut digits = vec![me; len];
            // Associative, and not commutative: the last rank counts.
            world.allreduce(&mut digits, |_, b| b).expect("all call it");
            assert_eq!(digits, vec![n - 1; len]);
            let root = world.size() / 2;
            let mut values = vec![me; len];
            world.broadcast(root, &mut values).expect("all call it");
            assert_eq!(values, vec![root as u64; len]);
        }
    }

    #[test]
    fn every_forced_algorithm_gives_the_worlds_result() {
        let auto = Collectives::default();
        let all = Allreduce::ALL.iter().map(|allreduce| Collectives { allreduce: *allreduce, ..auto });
        let all = all.chain(Broadcast::ALL.iter().map(|broadcast| Collectives { broadcast: *broadcast, ..auto }));
        let all = all.chain(Allgather::ALL.iter().map(|allgather| Collectives { allgather: *allgather, ..auto }));
        for collectives in all {
            let settings = Settings { collectives, ..Settings::default() };
            let program = |world: &World| {
                all_calls(world);
                let by_team = world.state::<Everyone>().is_some();
                assert_eq!(by_team, collectives != auto, "{collectives:?}");
            };
            for ranks in [1, 2, 3, 5, 7] {
                let job = Threads::new(ranks).settings(settings.clone()).deadline(Duration::from_secs(60));
                job.run(program).expect("threads start");
            }
            let config = sim::Config::new(7, 1).wild().nodes(&[2, 3]);
            Simulated::new(config).settings(settings).run(program).expect("the job starts");
        }
    }

    #[test]
    fn an_operator_makes_no_collective_call() {
        let refused = |error: Error| {
            let told = error.to_string();
            assert!(told.contains("this rank is in another collective call"), "{told}");
        };
        for barrier in [Barrier::Central, Barrier::Dissemination] {
            let counts = each(barrier, 3, |world| {
                let (team, count) = (Team::world(world).expect("memory for teams"), Cell::new(0));
                let add = |a: u64, b: u64| {
                    refused(team.barrier().expect_err("in another call"));
                    refused(team.allgather(&[1u8]).expect_err("in another call"));
                    refused(team.allgather_async(vec![1u8]).wait().expect_err("in another call"));
                    refused(team.split(Some(0), 0).expect_err("in another call"));
                    refused(world.barrier().expect_err("in another call"));
                    count.set(count.get() + 1);
                    a + b
                };
                let mut sums = [1, 2];
                world.allreduce(&mut sums, add).expect("all call it");
                team.allreduce(&mut sums, add).expect("all call it");
                assert_eq!(sums, [9, 18]);
                assert_eq!(team.allgather(&[world.rank()]).expect("all call it"), [0, 1, 2]);
                world.barrier().expect("all call it");
                count.get()
            });
            assert!(counts.into_iter().sum::<usize>() >= 8, "no operator has run");
        }
    }

    #[test]
    fn a_forced_algorithm_combines_as_it_says() {
        // Of itself the world combines at every rank without a counter.
        for (allreduce, times) in [(Allreduce::Auto, 4 * 5), (Allreduce::Tree, 4), (Allreduce::Gather, 4 * 5)] {
            let collectives = Collectives { allreduce, ..Collectives::default() };
            let settings = Settings { collectives, barrier: Barrier::Dissemination, ..Settings::default() };
            let job = Threads::new(5).settings(settings).deadline(Duration::from_secs(60));
            let counts = job.run(|world| {
                let count = Cell::new(0);
                let add = |a: usize, b: usize| {
                    count.set(count.get() + 1);
                    a + b
                };
                world.allreduce(&mut [1], add).expect("all call it");
                count.get()
            });
            assert_eq!(counts.expect("threads start").iter().sum::<usize>(), times, "{allreduce:?}");
        }
    }

    #[test]
    fn an_operator_that_panics_leaves_nobody_waiting() {
        for barrier in [Barrier::Central, Barrier::Dissemination] {
            let panicked = each(barrier, 5, |world| {
                let call = || world.allreduce(&mut [1u64], |_, _| panic!("an operator that panics"));
                let panicked = catch_unwind(AssertUnwindSafe(call)).is_err();
                world.barrier().expect("the world goes on");
                panicked
            });
            assert_eq!(panicked, [true; 5], "{barrier:?}");
        }
    }
}
