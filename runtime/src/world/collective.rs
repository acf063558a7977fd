//! Collectives of the world. Small ones are one exchange; larger ones, and those that the settings force an algorithm for, compare in
//! an exchange that all ranks are in the same call, which the algorithms of teams then do ([`super::team`]). Reductions combine along
//! the tree of the teams' either way, so results are the same on every rank, bit for bit.

use super::{PlainData, World};
use crate::error::{Error, Result};
use crate::settings::Broadcast;
use crate::team::exchange::BOARD;
use crate::team::see::{FromRoot, Reduction, See, Shown, Wanted, elements};
use crate::team::title::{Asked, Kind};
use crate::team::{CLOSURE, Operator, Sum};

/// Room for words behind their length.
const WORDS: usize = BOARD - 8;

impl World {
    /// Shows `mine` to all ranks and returns everyone's, in the order of the ranks. Collective; same length on every
    /// rank.
    ///
    /// # Errors
    /// [`Error::RanksDiffer`] for other lengths; as [`World::barrier`]. Of more than 2 KiB, and where `BELLWETHER_ALLGATHER` forces an
    /// algorithm, as [`Team::allgather`](crate::Team::allgather) and [`Team::world`](crate::Team::world).
    #[track_caller]
    pub fn allgather<T: PlainData>(&self, mine: &[T]) -> Result<Vec<T>> {
        let asked = Asked::data::<T>(Kind::Gather, mine.len());
        self.engine.at(|| {
            if self.goes_by_team(self.engine.settings.collectives.allgather, size_of_val(mine)) {
                return self.by_team(asked, |team| team.allgather(mine));
            }
            if self.size() == 1 {
                self.show_all((asked, Wanted::All), &mut Shown(&[], |_, _: &[u8]| ()))?;
                return Ok(mine.to_vec());
            }
            let mut all = Vec::with_capacity(mine.len() * self.size());
            let see = |_, theirs: &[u8]| all.extend_from_slice(&elements::<T>(theirs));
            self.show_all((asked, Wanted::All), &mut Shown(bytemuck::cast_slice(mine), see))?;
            Ok(all)
        })
    }

    /// Combines `values` of all ranks element by element, in the order of the ranks and in pairs; the result replaces `values`
    /// everywhere. Collective; same length, type and operator on every rank. `combine` is associative, or near to it as the addition of
    /// floats is, and need not commute: its first argument is of lower ranks. It runs at every rank, or at some for
    /// all while the others wait: it may make no collective call, of a team neither. More than 64 ranks combine up a tree, in 2 log2 n
    /// messages after a barrier, unless they share cores on one host: there the last one combines for all. If they call it at different
    /// places of the program, each rank gets the values of all, and combines them. After an error `values` are unchanged. The same number of ranks gives the same bits as
    /// [`Team::allreduce`](crate::Team::allreduce) does, whichever way it goes.
    ///
    /// Ranks that call it at different places of the program and get different results, as one that adds beside one that takes the
    /// larger value, are told so by their next blocking collective call of the world, [`World::finish`] at the latest: [`Error::RanksDiffer`]. Over
    /// a network barriers do not compare. Where all ranks are mapped and leave without [`World::finish`], [`threads`](crate::threads()) returns that
    /// error, and a rank that is a process prints it when it leaves. Of results of more than 512 bytes both ends are compared.
    ///
    /// # Errors
    /// As [`World::allgather`]; `BELLWETHER_ALLREDUCE` forces an algorithm. [`Error::Agreed`] of more than 64 ranks, or of more than
    /// 2 KiB: with a rank that a panic, as of its operator, took out of this call.
    #[track_caller]
    pub fn allreduce<T: PlainData>(&self, values: &mut [T], combine: impl Fn(T, T) -> T) -> Result<()> {
        self.reduce_all(values, &combine)
    }

    #[track_caller]
    fn reduce_all<T: PlainData, O: Operator<T>>(&self, values: &mut [T], operator: &O) -> Result<()> {
        let asked = Asked::data::<T>(Kind::Reduce, values.len()).operator(O::CODE);
        self.engine.at(|| {
            if self.goes_by_team(self.engine.settings.collectives.allreduce, size_of_val(values)) {
                self.by_team(asked, |team| team.allreduce(values, operator))?;
            } else if self.size() > 1 {
                let mut reduction = Reduction::new([self.rank(), self.size()], values, operator);
                self.show_all((asked, Wanted::Combined), &mut reduction)?;
            } else {
                self.show_all((asked, Wanted::All), &mut Shown(&[], |_, _: &[u8]| ()))?;
            }
            // Named operators are compared by their numbers.
            if O::CODE == CLOSURE {
                self.exchange.note_result(&self.engine, bytemuck::cast_slice(values));
            }
            Ok(())
        })
    }

    /// Adds up `values` of all ranks; see [`World::allreduce`]. Ranks that call that one, or another operator, are told so by this call.
    ///
    /// # Errors
    /// As [`World::allgather`].
    #[track_caller]
    pub fn allreduce_sum<T: PlainData + std::ops::Add<Output = T>>(&self, values: &mut [T]) -> Result<()> {
        self.reduce_all(values, &Sum)
    }

    /// Copies `values` of rank `root` to all ranks. Collective; same root, length and type on every rank. Over a network down a
    /// binomial tree: at most log2 n messages one after the other, and no rank waits for those below it; a difference that shows
    /// in none of them is told by the next collective call but a barrier, [`World::finish`] at the latest.
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`]; as [`World::allgather`]; `BELLWETHER_BROADCAST` forces an algorithm.
    #[track_caller]
    pub fn broadcast<T: PlainData>(&self, root: usize, values: &mut [T]) -> Result<()> {
        self.engine.check_rank(root, "broadcast")?;
        let asked = Asked::data::<T>(Kind::Broadcast, values.len()).root(root);
        let (forced, bytes) = (self.engine.settings.collectives.broadcast, size_of_val(values));
        self.engine.at(|| {
            if !self.engine.routes.all_mapped() && forced == Broadcast::Auto {
                self.broadcast_by_messages(asked, root, bytemuck::cast_slice_mut(values))
            } else if self.goes_by_team(forced, bytes) {
                self.by_team(asked, |team| team.broadcast(root, values))
            } else {
                let values = if self.size() > 1 { bytemuck::cast_slice_mut(values) } else { &mut [] };
                self.show_all((asked, Wanted::From(root)), &mut FromRoot { root, values })
            }
        })
    }

    /// One exchange as a call of its own.
    fn show_all(&self, asked: (Asked, Wanted), see: &mut dyn See) -> Result<()> {
        let running = self.begin("a collective call")?;
        self.exchange_all(&running, asked, see)
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
        let see = |rank, theirs: &[u8]| {
            let word = u64::from_ne_bytes(theirs[..8].try_into().expect("eight bytes")) as usize;
            if word != 0 && first.is_none() {
                let end = 8 + (word - 1).min(WORDS);
                first = Some((rank, String::from_utf8_lossy(&theirs[8..end]).into_owned()));
            }
        };
        self.engine.at(|| {
            let running = self.begin("a collective call")?;
            self.exchange_within(&running, (Kind::Agree, Wanted::First), &board, see)
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
    use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use crate::error::{Error, Loss};
    use crate::settings::{Allgather, Allreduce, Barrier, Broadcast, Collectives, Settings, Transport};
    use crate::sleep::Fences;
    use crate::team::title::Kind;
    use crate::transport::sim;
    use crate::world::team::Everyone;
    use crate::{Simulated, Sum, Team, Threads, World};

    const BARRIERS: [Barrier; 3] = [Barrier::Central, Barrier::Dissemination, Barrier::Direct];

    /// The result of each of `ranks` ranks.
    fn each<R: Send>(barrier: Barrier, ranks: usize, body: impl Fn(&World) -> R + Sync) -> Vec<R> {
        let settings = Settings { barrier, ..Settings::default() };
        Threads::new(ranks).settings(settings).deadline(Duration::from_secs(60)).run(body).expect("threads start")
    }

    /// All ranks wait for one flag, so the rank that opens the barrier has to wake each of them.
    #[test]
    fn the_last_in_a_barrier_by_the_counter_wakes_all_others_that_sleep_and_not_itself() {
        let together = std::sync::Barrier::new(3);
        each(Barrier::Central, 3, |world| {
            let word = |rank| world.engine().job.sleep_word(rank);
            for last in 0..3 {
                if world.rank() == last {
                    together.wait();
                    let announced = word(last).announce(Fences::Full, || false);
                    world.barrier().expect("all have entered");
                    let asleep: Vec<_> = (0..3).filter(|rank| word(*rank).is_announced()).collect();
                    word(last).withdraw();
                    together.wait();
                    assert!(announced && asleep == [last], "rank {last} opened, and {asleep:?} sleep on");
                } else {
                    let outcome = world.barrier_for(Duration::ZERO);
                    let announced = word(world.rank()).announce(Fences::Full, || false);
                    together.wait();
                    together.wait();
                    word(world.rank()).withdraw();
                    assert!(announced && matches!(outcome, Err(Error::TimedOut { .. })), "{outcome:?}");
                    world.barrier().expect("all have entered");
                }
            }
        });
    }

    #[test]
    fn ranks_learn_whether_all_brought_the_same_digest() {
        for barrier in BARRIERS {
            for ranks in [1, 2, 3, 5, 7, 9, 12] {
                each(barrier, ranks, |world| {
                    for number in 0..300 {
                        // In every other barrier one rank differs.
                        let one = number % 2 == 1 && world.rank() == number / 2 % ranks;
                        let running = world.begin("a test").expect("no other call");
                        let facts = (0, 7 + u64::from(one));
                        let agreed =
                            world.barrier.enter_with(&running, world.engine(), facts, || ()).expect("all enter");
                        let expected = number % 2 == 0 || ranks == 1;
                        assert_eq!(agreed, expected, "{barrier:?}, {ranks} ranks, number {number}");
                    }
                    assert_eq!(world.barrier.is_direct(), barrier == Barrier::Direct && ranks <= 8);
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
            for barrier in BARRIERS {
                each(barrier, ranks, out_of_time);
            }
            let job = crate::Simulated::new(sim::Config::new(ranks, 1).wild());
            job.run(out_of_time).expect("the job starts");
        }
    }

    #[test]
    fn who_leaves_after_it_ran_out_of_time_is_missed() {
        let [told, timed_out] = [const { AtomicBool::new(false) }; 2];
        let await_flag = |flag: &AtomicBool, why: &str| {
            let start = Instant::now();
            while !flag.load(Ordering::Relaxed) {
                assert!(start.elapsed() < Duration::from_secs(20), "{why}");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        let outcomes = each(Barrier::Dissemination, 3, |world| {
            if world.rank() == 0 {
                // Rank 0 has told rank 1, and rank 2 waits for rank 0.
                let outcome = world.barrier_for(Duration::from_millis(1));
                timed_out.store(true, Ordering::Relaxed);
                return outcome;
            }
            await_flag(&timed_out, "rank 0 is still in its barrier");
            let outcome = world.barrier();
            if world.rank() == 2 {
                told.store(true, Ordering::Relaxed);
            }
            // Rank 1 stays without a wait: nobody finds a standstill, which would end the wait of rank 2 too.
            await_flag(&told, "rank 2 is not told");
            outcome
        });
        assert!(matches!(outcomes[0], Err(Error::TimedOut { .. })), "{outcomes:?}");
        assert!(matches!(outcomes[2], Err(Error::PeerLost { rank: 0, .. })), "{outcomes:?}");
    }

    #[test]
    fn calls_after_one_that_differed_see_what_all_brought_to_them() {
        for barrier in BARRIERS {
            for ranks in [3, 10] {
                each(barrier, ranks, |world| {
                    let rank = world.rank();
                    if rank == 1 {
                        world.barrier().expect_err("the others show something");
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
        for barrier in BARRIERS {
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

    /// The panic comes out of the first poll of rank 1's call: it has told nobody by then.
    #[test]
    fn a_call_that_a_panic_came_out_of_at_its_start_counts_as_made() {
        type Call = fn(&World) -> crate::Result<()>;
        fn own(world: &World) -> usize {
            world.rank() + 10
        }
        let calls: [Call; 5] = [
            World::barrier,
            |world| {
                assert_eq!(world.allgather(&[own(world)])?, [10, 11, 12]);
                Ok(())
            },
            |world| {
                let mut sum = [own(world)];
                world.allreduce(&mut sum, |a, b| a + b)?;
                assert_eq!(sum, [33]);
                Ok(())
            },
            |world| {
                let mut sum = vec![own(world); 200];
                world.allreduce_sum(&mut sum)?;
                assert_eq!(sum, [33; 200]);
                Ok(())
            },
            |world| world.agree(if world.rank() == 1 { Err("no input".into()) } else { Ok(()) }),
        ];
        let program = |world: &World, call: Call, sent: Option<&AtomicBool>| {
            match world.rank() {
                0 => {
                    let called = world.call(1, 7u8, |_, number: u8| assert_ne!(number, 7, "as asked")).expect("room");
                    if let Some(sent) = sent {
                        sent.store(true, Ordering::Release);
                    }
                    called.wait().expect_err("its handler panics");
                }
                1 => {
                    // Without a poll.
                    match sent {
                        Some(sent) => {
                            while !sent.load(Ordering::Acquire) {
                                std::thread::yield_now();
                            }
                        }
                        None => world.sleep(Duration::from_millis(50)),
                    }
                    catch_unwind(AssertUnwindSafe(|| call(world))).expect_err("the handler panics");
                }
                _ => {}
            }
            if world.rank() != 1 {
                match call(world) {
                    Ok(()) | Err(Error::Agreed { rank: 1, .. }) => {}
                    Err(error) => panic!("rank {}: {error}", world.rank()),
                }
            }
            for round in 0..3 {
                let all = world.allgather(&[100 * round + world.rank()]).expect("all call it");
                assert_eq!(all, [100 * round, 100 * round + 1, 100 * round + 2]);
            }
        };
        for call in calls {
            for barrier in BARRIERS {
                let sent = AtomicBool::new(false);
                each(barrier, 3, |world| program(world, call, Some(&sent)));
            }
            let job = Simulated::new(sim::Config::new(3, 1).wild());
            job.run(|world| program(world, call, None)).expect("the job starts");
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

    /// Each collective call once with each of these lengths.
    fn all_calls(world: &World, lens: &[usize]) {
        let (me, n) = (world.rank() as u64, world.size() as u64);
        for &len in lens {
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
                let is_many = world.size() > 1;
                all_calls(world, &[0, 1, 200]);
                let by_team = world.state::<Everyone>().is_some();
                assert_eq!(by_team, is_many && collectives != auto, "{collectives:?}");
                all_calls(world, &[3000]);
                assert_eq!(world.state::<Everyone>().is_some(), is_many);
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
        for barrier in BARRIERS {
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
        // By default the world combines at every rank, without a counter.
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
        for barrier in BARRIERS {
            let panicked = each(barrier, 5, |world| {
                let call = || world.allreduce(&mut [1u64], |_, _| panic!("an operator that panics"));
                let panicked = catch_unwind(AssertUnwindSafe(call)).is_err();
                world.barrier().expect("the world goes on");
                panicked
            });
            assert_eq!(panicked, [true; 5], "{barrier:?}");
        }
    }

    #[test]
    fn a_large_call_that_panics_leaves_nobody_waiting_and_the_next_begins_anew() {
        let program = |world: &World| {
            for round in 0..3 {
                let mut values = vec![1u64; 3000];
                let add = |a, b| if world.rank() == round { panic!("an operator that panics") } else { a + b };
                let outcome = catch_unwind(AssertUnwindSafe(|| world.allreduce(&mut values, add)));
                match (outcome, world.rank() == round) {
                    (Err(_), true) => {}
                    (Ok(Err(Error::Agreed { .. })), false) => {}
                    (outcome, _) => panic!("rank {}: {outcome:?}", world.rank()),
                }
                world.barrier().expect("the world goes on");
                let mut values = vec![world.rank() as u64; 3000];
                world.allreduce(&mut values, |a, b| a + b).expect("all add");
                assert_eq!(values, [3; 3000]);
            }
        };
        BARRIERS.into_iter().for_each(|barrier| drop(each(barrier, 3, program)));
        Simulated::new(sim::Config::new(3, 1).wild()).run(program).expect("the job starts");
    }

    /// A handler panics at rank 1, rank 2 hears of it and leaves, and rank 1 has not unwound yet.
    #[test]
    fn who_left_because_of_a_panic_is_not_named() {
        struct Late<'a>(&'a World);
        impl Drop for Late<'_> {
            fn drop(&mut self) {
                while self.0.engine().job.loss(2).is_none() {
                    std::thread::yield_now();
                }
                // Time for rank 0 to give up because of rank 2, if that were right.
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        type Wait = fn(&World, &Team) -> crate::Result<()>;
        let by_team: Wait = |_, team| team.allreduce(&mut [1], Sum);
        let waits: [Wait; 5] = [
            by_team,
            |world, _| world.barrier(),
            |world, _| world.allreduce(&mut [1], |a: u64, b| a + b),
            |world, _| world.wait_until(|| false),
            |world, _| {
                while world.engine().job.loss(2).is_none() {
                    std::thread::yield_now();
                }
                world.call(2, (), |_, ()| ())?.wait()
            },
        ];
        let each = |wait| [Transport::Auto, Transport::ShmContract].map(|transport| (wait, transport));
        for (wait, transport) in waits.into_iter().flat_map(each) {
            let settings = Settings { transport, ..Settings::default() };
            let job = Threads::new(3).settings(settings).deadline(Duration::from_secs(60));
            let (named, panicked, begun) = (AtomicBool::new(false), AtomicBool::new(false), AtomicUsize::new(0));
            let program = |world: &World| {
                let team = Team::world(world).expect("memory for teams");
                begun.fetch_add(1, Ordering::Release);
                match world.rank() {
                    0 => {
                        let error = wait(world, &team).expect_err("two ranks are gone");
                        assert!(matches!(error, Error::PeerLost { rank: 1, cause: Loss::Panicked, .. }), "{error}");
                        named.store(true, Ordering::Release);
                    }
                    1 => {
                        let _late = Late(world);
                        // The panic takes this rank out of the collective.
                        let _ = by_team(world, &team);
                    }
                    _ => {
                        // The panic must not take rank 1 out of a call that rank 0 still needs to make its team.
                        world.wait_until(|| begun.load(Ordering::Acquire) == 3).expect("all make it");
                        let call = world.call(1, true, |_, panics| assert!(!panics, "a handler that panics"));
                        let told = call.and_then(crate::Call::wait);
                        panicked.store(matches!(told, Err(Error::HandlerPanicked { rank: 1, .. })), Ordering::Release);
                    }
                }
            };
            catch_unwind(AssertUnwindSafe(|| job.run(program))).expect_err("the panic comes out");
            assert!(panicked.into_inner() && named.into_inner());
        }
    }

    /// Rank 3 is in another call than rank 0 because, in a real program, it had heard of the death of rank 2 before.
    #[test]
    fn a_rank_that_has_not_heard_of_a_death_is_not_told_to_differ() {
        const FLAG: u32 = 56;
        let [differs, is_dead, is_told] = [const { AtomicBool::new(false) }; 3];
        let await_flag = |flag: &AtomicBool| {
            while !flag.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        };
        let settings = Settings { transport: Transport::ShmContract, heap_limit: Some(1 << 20), ..Settings::default() };
        let ranks = Threads::new(4).settings(settings).deadline(Duration::from_secs(60));
        let outcomes = ranks.run(|world| {
            let engine = world.engine();
            match world.rank() {
                0 => {
                    // In the first round of a dissemination rank 0 hears from rank 3.
                    // SAFETY: an aligned word of this rank's slot, which ranks use as an atomic only.
                    let flag = unsafe {
                        AtomicU64::from_ptr(engine.node.slot(0).add(engine.layout.barrier_flag(0)).cast::<u64>())
                    };
                    let other = world.barrier.next_epoch() | (Kind::Finish as u64) << FLAG;
                    while flag.load(Ordering::Acquire) != other {
                        world.poll()?;
                    }
                    differs.store(true, Ordering::Release);
                    await_flag(&is_dead);
                    let outcome = world.barrier();
                    is_told.store(true, Ordering::Release);
                    return outcome;
                }
                2 => {
                    await_flag(&differs);
                    engine.job.mark_lost(2, Loss::Signaled(9));
                    is_dead.store(true, Ordering::Release);
                }
                3 => {
                    let running = world.begin("a call of the test")?;
                    let outcome = world.barrier.enter(&running, engine, Kind::Finish as u8);
                    await_flag(&is_told);
                    return outcome;
                }
                _ => await_flag(&is_told),
            }
            Ok(())
        });
        let outcomes = outcomes.expect("ranks start");
        for rank in [0, 3] {
            let told = &outcomes[rank];
            assert!(matches!(told, Err(Error::PeerLost { rank: 2, cause: Loss::Signaled(9), .. })), "{rank}: {told:?}");
        }
    }

    #[test]
    fn large_calls_need_no_order_among_those_of_the_team_of_all() {
        let program = |world: &World| {
            let team = Team::world(world).expect("memory for teams");
            let team_first = world.rank().is_multiple_of(2);
            let post = || team.allreduce_async(vec![1usize; 2000], |a, b| a + b);
            let before = team_first.then(post);
            let mut values = vec![world.rank(); 3000];
            world.allreduce(&mut values, |_, b| b).expect("all call it");
            assert_eq!(values, vec![world.size() - 1; 3000]);
            let sums = before.unwrap_or_else(post).wait().expect("all call it");
            assert_eq!(sums, vec![world.size(); 2000]);
        };
        BARRIERS.into_iter().for_each(|barrier| drop(each(barrier, 3, program)));
        Simulated::new(sim::Config::new(5, 1).wild().nodes(&[2, 3])).run(program).expect("the job starts");
    }
}
