//! A program for jobs whose ranks reach each other in several ways: every operation from every rank to every rank, and what
//! has to be exact across the ways.

use bellwether::{Result, Team, World};

/// Elements of each slice.
const LEN: usize = 400;
/// Atomics of each rank on each word in a round.
const ADDS: u64 = 40;

/// Runs `rounds` rounds. Fails with the first assertion that does not hold. Returns how this rank reaches the others, and who does
/// atomics, as its receipt says.
///
/// # Errors
/// Those of the operations.
///
/// # Panics
/// If a result is wrong.
pub fn every_pair(world: &World, rounds: u64) -> Result<String> {
    let (me, n) = (world.rank(), world.size());
    let (data, words, bell) = (world.alloc::<u64>(n * LEN)?, world.alloc::<u64>(2)?, world.bell()?);
    // More memory than was registered at the start.
    let more = world.alloc::<u64>(1 << 16)?;
    let segment = world.segment_all(8 * n + 8)?;
    let team = Team::world(world)?.split(Some((me % 2) as u64), -(me as i64))?.expect("this rank named a colour");
    for round in 1..=rounds {
        // Data before its bell, on every way.
        for to in 0..n {
            data.put_slice_bell(to, me * LEN, &[round * 100 + me as u64; LEN], &bell)?;
            more.put(to, (1 << 16) - 1 - me, round)?;
            world.put_segment(to, segment.number(), 8 * me, &round.to_ne_bytes())?;
        }
        bell.wait(round * n as u64)?;
        for from in 0..n {
            let came: Vec<u64> = (0..LEN).map(|at| data.load(from * LEN + at)).collect();
            assert_eq!(
                came,
                [round * 100 + from as u64; LEN],
                "rank {me}, round {round}: the bell came before its data"
            );
        }
        // All ranks change the same words at a time: the world's operations one, those of a context the other.
        let context = world.context()?;
        let threads = words.for_threads();
        let mut found = Vec::new();
        for _ in 0..ADDS {
            for to in 0..n {
                found.push((to, words.fetch_add(to, 0, 1)?));
                context.fetch_add(&threads, to, 1, 1)?;
            }
        }
        for to in 0..n {
            context.flush(to)?;
            let mut of_one: Vec<u64> = found.iter().filter(|(rank, _)| *rank == to).map(|(_, old)| *old).collect();
            of_one.dedup();
            assert_eq!(of_one.len() as u64, ADDS, "rank {me}: two adds at rank {to} found the same value");
            assert!(of_one.is_sorted(), "rank {me}: the word at rank {to} went back: {of_one:?}");
        }
        drop(context);
        world.barrier()?;
        let expected = round * ADDS * n as u64;
        assert_eq!((words.load(0), words.load(1)), (expected, expected), "rank {me}, round {round}: an atomic is lost");
        for from in 0..n {
            let (mut word, mut got) = ([0; 8], [0; LEN]);
            world.get_segment(from, segment.number(), 8 * me, &mut word)?;
            data.get_slice(from, me * LEN, &mut got)?;
            assert_eq!((u64::from_ne_bytes(word), got), (round, [round * 100 + me as u64; LEN]));
            assert_eq!(more.get(from, (1 << 16) - 1 - me)?, round);
            let answer = world.call(from, (me, vec![round; 100]), |context, (asker, words): (usize, Vec<u64>)| {
                (context.rank(), asker, words.len())
            })?;
            assert_eq!(answer.wait()?, (from, me, 100));
        }
        collectives(&Team::world(world)?, &(0..n).collect::<Vec<_>>(), me, round)?;
        let members: Vec<usize> = (0..n).rev().filter(|rank| rank % 2 == me % 2).collect();
        collectives(&team, &members, me, round)?;
        world.barrier()?;
    }
    segment.close()?;
    world.barrier()?;
    let receipt = world.receipt();
    let row = |name| &receipt.iter().find(|(what, _)| *what == name).expect("each receipt has this row").1;
    Ok(format!("{}; atomics {}", row("other ranks"), row("atomics")))
}

/// Collectives of a team whose members are these ranks, in this order.
fn collectives(team: &Team, members: &[usize], me: usize, round: u64) -> Result<()> {
    team.barrier()?;
    let mut sum = [me as u64 + round; 100];
    team.allreduce(&mut sum, bellwether::Sum)?;
    let expected = members.iter().map(|rank| *rank as u64 + round).sum::<u64>();
    assert_eq!(sum, [expected; 100], "rank {me}, round {round}");
    assert_eq!(team.allgather_values(&me)?, members, "rank {me}, round {round}");
    let root = round as usize % members.len();
    let value = (members[root] == me).then_some((round, me));
    assert_eq!(team.broadcast_value(root, value)?, (round, members[root]));
    Ok(())
}
