//! Going on after deaths: at random moments, of any rank, also of the one that leads the agreement, and of several.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bellwether_runtime::transport::sim::{Config, Network, Random, check};
use bellwether_runtime::{Error, Max, Min, Result, Settings, Simulated, Sum, Team, Threads, Transport, World};

use super::{is_full, job, networks};

const ROUNDS: u64 = 12;

/// At this moment of this round rank `killer` ends rank `victim`.
#[derive(Debug, Clone, Copy)]
struct Death {
    round: u64,
    moment: u64,
    killer: usize,
    victim: usize,
}

fn surviving() -> Settings {
    let mut settings = Settings::default();
    settings.survive = true;
    settings
}

/// Up to `most` deaths of different ranks, one of which is rank 0 most often.
fn deaths(random: &mut Random, ranks: usize, most: usize) -> Vec<Death> {
    let mut victims: Vec<usize> = (0..ranks).collect();
    if random.below(3) > 0 {
        victims.swap(0, ranks - 1);
    }
    let many = 1 + random.below(most as u64) as usize;
    let mut out = Vec::new();
    for _ in 0..many {
        let victim = victims.pop().expect("more ranks than deaths");
        let killer = victims[random.below(victims.len() as u64) as usize];
        out.push(Death { round: random.below(ROUNDS), moment: random.below(5), killer, victim });
    }
    out
}

/// What one rank found: the members of the team after each agreement.
type Teams = Vec<Vec<usize>>;

struct Program<'a> {
    network: &'a Network,
    deaths: &'a [Death],
}

impl Program<'_> {
    fn strike(&self, world: &World, round: u64, moment: u64) {
        for death in self.deaths.iter().filter(|death| (death.round, death.moment) == (round, moment)) {
            if death.killer == world.rank() {
                self.network.kill(death.victim);
            }
        }
    }

    fn run(&self, world: &World) -> Result<Teams> {
        let rank = world.rank();
        let memory = world.alloc::<u64>(world.size())?;
        let bell = world.bell()?;
        let mut team = world.survivors()?;
        let mut teams = vec![team.world_ranks().collect::<Vec<_>>()];
        let mut round = 0;
        while round < ROUNDS {
            self.strike(world, round, 0);
            let outcome = self.step(world, &team, round, || {
                let next = team.world_rank((team.rank() + 1) % team.size())?;
                memory.put_bell(next, rank, round, &bell)?;
                let answer = world.call(next, round, |_, round: u64| round + 1)?.wait()?;
                assert_eq!(answer, round + 1);
                let half = team.split(Some(team.rank() as u64 % 2), 0)?.expect("a colour");
                half.barrier()
            });
            let done = match outcome {
                Ok(()) => 1,
                Err(Error::PeerLost { .. }) => 0,
                Err(error) => return Err(error),
            };
            self.strike(world, round, 3);
            let (next, all_done) = world.agree_surviving(done)?;
            team = next;
            teams.push(team.world_ranks().collect());
            round += all_done;
            self.strike(world, round, 4);
        }
        teams.push(world.survivors()?.world_ranks().collect());
        Ok(teams)
    }

    fn step(&self, world: &World, team: &Team, round: u64, rest: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut sums = [1, round];
        team.allreduce(&mut sums, Sum)?;
        assert_eq!(sums, [team.size() as u64, team.size() as u64 * round]);
        self.strike(world, round, 1);
        rest()?;
        self.strike(world, round, 2);
        let mut ends = [round];
        team.allreduce(&mut ends, Min)?;
        assert_eq!(ends, [round]);
        Ok(())
    }
}

/// All that were not killed have seen the same teams, each one a part of the one before, and the last is of them alone.
fn judge(what: &str, deaths: &[Death], killed: &[usize], outcomes: Vec<Result<Teams>>) {
    let living: Vec<usize> = (0..outcomes.len()).filter(|rank| !killed.contains(rank)).collect();
    let mut first: Option<Teams> = None;
    for (rank, outcome) in outcomes.into_iter().enumerate().filter(|(rank, _)| !killed.contains(rank)) {
        let teams = outcome.unwrap_or_else(|error| panic!("rank {rank}: {error}; {what}, {deaths:?}"));
        assert!(
            teams.is_sorted_by(|before, after| after.iter().all(|rank| before.contains(rank))),
            "{what}: {teams:?}"
        );
        assert_eq!(teams.last(), Some(&living), "{what}, {deaths:?}");
        assert_eq!(first.get_or_insert_with(|| teams.clone()), &teams, "rank {rank}; {what}, {deaths:?}");
    }
}

fn survive(name: &str, seeds: u64, ranks: &[usize], most: usize) {
    for ranks in ranks {
        check(name, seeds, |seed| {
            for (network, config) in networks(*ranks, seed) {
                let deaths = deaths(&mut Random::new(seed * 31 + *ranks as u64), *ranks, most.min(ranks - 1));
                let job = job(config).settings(surviving());
                let program = Program { network: &job.network().clone(), deaths: &deaths };
                let outcomes = job.run(|world| program.run(world)).expect("the job starts");
                // A killer may have died before its moment.
                let killed: Vec<usize> = (0..*ranks).filter(|rank| job.network().is_dead(*rank)).collect();
                judge(&format!("{network}, {ranks} ranks, seed {seed}"), &deaths, &killed, outcomes);
            }
        });
    }
}

#[test]
fn survivors_of_one_death_agree_and_go_on() {
    survive("survivors::survivors_of_one_death_agree_and_go_on", if is_full() { 4 } else { 1 }, &[2, 3, 5], 1);
}

#[test]
fn survivors_of_several_deaths_agree_and_go_on() {
    survive("survivors::survivors_of_several_deaths_agree_and_go_on", if is_full() { 4 } else { 1 }, &[4, 7], 3);
}

/// Messages that each rank sends to each other one before it finishes.
const LAST_WORDS: u64 = 20;

#[test]
fn who_lives_finishes_though_others_die_while_they_finish() {
    let seeds = if is_full() { 20 } else { 5 };
    check("survivors::who_lives_finishes_though_others_die_while_they_finish", seeds, |seed| {
        let straggling = [("straggling", Config::new(4, seed).straggling())];
        for (network, config) in networks(4, seed).into_iter().chain(straggling) {
            let job = job(config).settings(surviving());
            let killed = Mutex::new(Vec::new());
            let kill = |victim: usize| {
                killed.lock().expect("no panic").push(victim);
                job.network().kill(victim);
            };
            // By receiver and sender. Handlers cannot take it along, but their rank's state can.
            let received: Arc<[[AtomicU64; 4]; 4]> = Arc::default();
            let sent: [[AtomicU64; 4]; 4] = Default::default();
            let outcomes = job.build(|builder| {
                let world = builder.start()?;
                world.set_state(Arc::clone(&received));
                let mut random = Random::new(seed);
                let (first, second) = (random.below(4) as usize, random.below(4) as usize);
                // All have started.
                drop(world.survivors()?);
                if world.rank() == (first + 1) % 4 {
                    kill(first);
                }
                let team = world.survivors()?;
                world.sleep(Duration::from_nanos(random.below(40_000)));
                if second != first && world.rank() == (0..4).find(|rank| ![first, second].contains(rank)).expect("four")
                {
                    kill(second);
                }
                for to in team.world_ranks().filter(|to| *to != world.rank()) {
                    for _ in 0..LAST_WORDS {
                        // The receiver may be dead, and a call that waits for room may end because another rank is.
                        let outcome = world.invoke(to, world.rank(), |context, from: usize| {
                            let received = context.state::<Arc<[[AtomicU64; 4]; 4]>>().expect("set at the start");
                            received[context.rank()][from].fetch_add(1, Ordering::Relaxed);
                        });
                        match outcome {
                            Ok(()) => drop(sent[to][world.rank()].fetch_add(1, Ordering::Relaxed)),
                            Err(Error::PeerLost { .. }) => {}
                            Err(error) => return Err(error),
                        }
                    }
                }
                drop(team);
                world.finish()
            });
            let outcomes = outcomes.expect("the job starts");
            let killed = killed.lock().expect("no panic");
            let live: Vec<usize> = (0..4).filter(|rank| !killed.contains(rank)).collect();
            for (to, from) in live.iter().flat_map(|to| live.iter().map(move |from| (*to, *from))) {
                let outcome = &outcomes[to];
                assert!(outcome.is_ok(), "{network}, seed {seed}, rank {to}: {outcome:?}");
                let came = received[to][from].load(Ordering::Relaxed);
                let expected = sent[to][from].load(Ordering::Relaxed);
                assert_eq!(came, expected, "{network}, seed {seed}: from {from} to {to}, {killed:?} killed");
            }
        }
    });
}

/// Some ranks are in `finish` when another one dies. Those that are not go on without them, and all leave in the end.
#[test]
fn ranks_in_finish_wait_for_those_that_go_on() {
    let body = |world: World, kill: &dyn Fn()| -> Result<Vec<usize>> {
        let memory = world.alloc::<u64>(5)?;
        let all = world.survivors()?;
        let error = match world.rank() {
            0 | 3 => return world.finish().map(|()| vec![]),
            4 => {
                kill();
                return Ok(vec![]);
            }
            _ => all.barrier().expect_err("rank 4 is gone"),
        };
        // Ranks 0 and 3 do not come either, and rank 4 leaves without dying where ranks are threads.
        assert!(matches!(error, Error::PeerLost { rank: 0 | 3 | 4, .. }), "{error}");
        let (team, flags) = world.agree_surviving(world.rank() as u64 | 4)?;
        assert_eq!((world.gone(), flags), (vec![4], 4));
        for round in 0..5 {
            let mut sum = [1, round];
            team.allreduce(&mut sum, Sum)?;
            assert_eq!(sum, [2, 2 * round]);
            // A rank in `finish` serves its memory and answers.
            memory.put(3, world.rank(), round)?;
            assert_eq!(memory.get(3, world.rank())?, round);
            assert_eq!(world.call(0, round, |_, round: u64| round + 1)?.wait()?, round + 1);
        }
        let again: Vec<usize> = world.survivors()?.world_ranks().collect();
        world.finish().map(|()| again)
    };
    let judge = |what: &str, outcomes: Vec<Result<Vec<usize>>>| {
        for (rank, outcome) in outcomes.into_iter().enumerate().take(4) {
            let members = outcome.unwrap_or_else(|error| panic!("{what}, rank {rank}: {error}"));
            let expected = if rank % 3 == 0 { vec![] } else { vec![1, 2] };
            assert_eq!(members, expected, "{what}, rank {rank}");
        }
    };
    for transport in [Transport::Auto, Transport::ShmContract] {
        let mut settings = surviving();
        settings.transport = transport;
        let threads = Threads::new(5).deadline(Duration::from_secs(60)).settings(settings);
        judge("threads", threads.build(|builder| body(builder.start()?, &|| ())).expect("threads start"));
    }
    check("survivors::ranks_in_finish_wait_for_those_that_go_on", 5, |seed| {
        for (network, config) in networks(5, seed) {
            let job = job(config).settings(surviving());
            let kill = || job.network().kill(4);
            let what = format!("{network}, seed {seed}");
            judge(&what, job.build(|builder| body(builder.start()?, &kill)).expect("the job starts"));
        }
    });
}

/// A handler panics while its rank is in `survivors`: the next call ends the agreement that this one has entered.
#[test]
fn an_interrupted_agreement_is_ended_by_the_next_call() {
    let body = |world: World| -> Result<Vec<usize>> {
        let (rank, size) = (world.rank(), world.size());
        let bell = world.bell()?;
        let memory = world.alloc::<u64>(1)?;
        if rank + 1 == size {
            // Rank 0 is in the agreement, which waits for this rank.
            bell.wait(1).expect("rank 0 is about to agree");
            world.invoke(0, (), |_, ()| panic!("as it was told to")).expect("rank 0 lives");
            // This rank is told of the panic, and that rank 0 has caught it.
            let mut told = false;
            while !told || bell.count()? < 2 {
                told |= world.poll().is_err();
            }
        }
        if rank == 0 {
            memory.put_bell(size - 1, 0, 1, &bell)?;
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.survivors().map(drop)));
            assert!(outcome.is_err(), "{outcome:?}");
            memory.put_bell(size - 1, 0, 2, &bell)?;
        }
        for _ in 0..3 {
            let team = world.survivors().unwrap_or_else(|error| panic!("rank {rank}: {error}"));
            let mut ranks = [1];
            team.allreduce(&mut ranks, Sum)?;
            assert_eq!(ranks, [size]);
        }
        let members = world.survivors()?.world_ranks().collect();
        drop((memory, bell));
        world.finish().map(|()| members)
    };
    for ranks in [2, 4] {
        let threads = Threads::new(ranks).deadline(Duration::from_secs(60)).settings(surviving());
        for (rank, outcome) in
            threads.build(|builder| body(builder.start()?)).expect("threads start").into_iter().enumerate()
        {
            let members = outcome.unwrap_or_else(|error| panic!("rank {rank} of {ranks}: {error}"));
            assert_eq!(members, (0..ranks).collect::<Vec<_>>());
        }
    }
}

/// Ranks that are threads of one process, by mapped memory: those that leave without a word are gone, too.
#[test]
fn survivors_on_mapped_memory_keep_what_they_have() {
    for ranks in [2, 3, 5, 8] {
        for gone in [0, 1, ranks - 1] {
            let body = |world: World| -> Result<Vec<usize>> {
                let memory = world.alloc::<u64>(ranks)?;
                let bell = world.bell()?;
                let pairs = Team::world(&world)?.split(Some((world.rank() == gone) as u64), 0)?.expect("a colour");
                memory.put((world.rank() + 1) % ranks, 0, 7 + world.rank() as u64)?;
                world.barrier()?;
                if world.rank() == gone {
                    return Ok(vec![]);
                }
                let error = world.barrier().expect_err("a rank has left");
                assert!(matches!(error, Error::PeerLost { rank, .. } if rank == gone), "{error}");
                let team = world.survivors()?;
                assert_eq!(world.gone(), [gone]);
                // What was there before is there.
                assert_eq!(memory.load(0), 7 + ((world.rank() + ranks - 1) % ranks) as u64);
                for round in 1..20 {
                    let next = team.world_rank((team.rank() + 1) % team.size())?;
                    memory.put_bell(next, 1, round, &bell)?;
                    bell.wait(round)?;
                    let mut largest = [memory.load(1)];
                    team.allreduce(&mut largest, Max)?;
                    assert!(largest[0] >= round);
                    // A team of ranks that all live is used on.
                    pairs.barrier()?;
                }
                // Calls that need all ranks are refused, and do not hang.
                for error in [
                    world.barrier().expect_err("of all"),
                    world.alloc::<u8>(1).map(drop).expect_err("of all"),
                    Team::world(&world)?.barrier().expect_err("of all"),
                    world.call(gone, (), |_, ()| ()).map(drop).expect_err("to nobody"),
                ] {
                    assert!(matches!(error, Error::PeerLost { rank, .. } if rank == gone), "{error}");
                }
                let again = world.survivors()?;
                let error = team.barrier().expect_err("another took its place");
                assert!(matches!(error, Error::Agreed { .. }), "{error}");
                let members = again.world_ranks().collect();
                drop((memory, bell));
                world.finish().map(|()| members)
            };
            let threads = Threads::new(ranks).deadline(Duration::from_secs(60));
            let outcomes = threads.build(|builder| builder.survive().start().and_then(body)).expect("threads start");
            let living: Vec<usize> = (0..ranks).filter(|rank| *rank != gone).collect();
            for (rank, outcome) in outcomes.into_iter().enumerate().filter(|(rank, _)| *rank != gone) {
                assert_eq!(outcome.unwrap_or_else(|error| panic!("rank {rank}: {error}")), living);
            }
        }
    }
}

/// A rank leaves; some of the others are told of it and agree already, while the rest still wait in a collective of their team.
#[test]
fn who_agrees_waits_for_those_that_have_not_heard_yet() {
    let body = |world: World| -> Result<Vec<usize>> {
        let team = Team::world(&world)?;
        world.barrier()?;
        match world.rank() {
            0 => return Ok(vec![]),
            // These two know of it by themselves.
            1 | 2 => {}
            _ => {
                let error = team.barrier().expect_err("rank 0 has left");
                assert!(matches!(error, Error::PeerLost { rank: 0, .. }), "{error}");
            }
        }
        let members = world.survivors()?.world_ranks().collect();
        world.finish().map(|()| members)
    };
    let all = |what: &str, outcomes: Vec<Result<Vec<usize>>>| {
        for (rank, outcome) in outcomes.into_iter().enumerate().skip(1) {
            let members = outcome.unwrap_or_else(|error| panic!("{what}, rank {rank}: {error}"));
            assert_eq!(members, [1, 2, 3, 4], "{what}");
        }
    };
    for transport in [Transport::Auto, Transport::ShmContract] {
        let mut settings = surviving();
        settings.transport = transport;
        let threads = Threads::new(5).deadline(Duration::from_secs(60)).settings(settings);
        all("threads", threads.build(|builder| builder.start().and_then(body)).expect("threads start"));
    }
    check("survivors::who_agrees_waits_for_those_that_have_not_heard_yet", 3, |seed| {
        for (network, config) in networks(5, seed) {
            let job = job(config).settings(surviving());
            all(network, job.build(|builder| builder.start().and_then(body)).expect("the job starts"));
        }
    });
}

#[test]
fn a_world_that_was_not_started_to_survive_says_so() {
    let outcomes = Threads::new(2).run(|world| world.survivors().map(drop)).expect("threads start");
    for outcome in outcomes {
        let error = outcome.expect_err("not asked for").to_string();
        assert!(error.contains("Builder::survive"), "{error}");
    }
}

/// Two ranks that lose each other: nobody goes on as if it were alone with half of the job.
#[test]
fn of_ranks_that_lose_each_other_at_most_one_part_goes_on() {
    check("survivors::of_ranks_that_lose_each_other_at_most_one_part_goes_on", 20, |seed| {
        let job: Simulated = job(Config::new(3, seed).wild()).settings(surviving());
        let outcomes = job.run(|world| -> Result<Vec<usize>> {
            let memory = world.alloc::<u64>(1)?;
            world.barrier()?;
            if world.rank() == 0 {
                job.network().disconnect(0, 2);
            }
            world.sleep(Duration::from_micros(100));
            // The two that cannot reach each other find out.
            let peer = 2 - world.rank();
            let outcome = memory.put(peer, 0, 1).and_then(|()| world.poll().map(drop)).and_then(|()| world.barrier());
            drop(outcome);
            Ok(world.survivors()?.world_ranks().collect())
        });
        let outcomes = outcomes.expect("the job starts");
        let teams: Vec<&Vec<usize>> = outcomes.iter().flatten().collect();
        assert!(teams.windows(2).all(|pair| pair[0] == pair[1]), "seed {seed}: {outcomes:?}");
        assert!(!teams.is_empty() && !outcomes.iter().all(Result::is_ok), "seed {seed}: {outcomes:?}");
    });
}
