//! Collectives on values of any serde type, by threads, by processes and over simulated networks.

mod worlds;

use std::collections::BTreeMap;

use bellwether::{Error, Result, Settings, Team, World};
use serde::{Deserialize, Serialize};

/// Of different sizes, and with all that serde knows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Shape {
    Point,
    Circle(f64),
    Polygon { name: String, corners: Vec<(f32, f32)> },
    Many(Vec<Shape>),
}

fn shape(rank: usize, size: usize) -> Shape {
    match rank % 4 {
        0 => Shape::Point,
        1 => Shape::Circle(rank as f64),
        2 => Shape::Polygon { name: format!("of rank {rank}"), corners: vec![(1.0, rank as f32); size] },
        _ => Shape::Many(vec![shape(rank - 1, size), Shape::Point, shape(rank - 2, 1)]),
    }
}

/// All calls, with values of so many bytes at some ranks, on a team.
fn all_calls(team: &Team, size: usize) -> Result<()> {
    let (rank, ranks) = (team.rank(), team.size());
    for root in 0..ranks {
        let given = (rank == root).then(|| shape(root + 2, size));
        assert_eq!(team.broadcast_value(root, given)?, shape(root + 2, size));
        let all: Vec<Shape> = (0..ranks).map(|rank| shape(rank, size)).collect();
        let gathered = team.gather_values(root, &shape(rank, size))?;
        assert_eq!(gathered, (rank == root).then(|| all.clone()));
        assert_eq!(team.scatter_values(root, (rank == root).then_some(&all[..]))?, shape(rank, size));
        // Not commutative: the order is that of the ranks.
        let words = team.reduce_values(root, &format!("{rank}."), |a, b| a + &b)?;
        let expected: String = (0..ranks).map(|rank| format!("{rank}.")).collect();
        assert_eq!(words, (rank == root).then_some(expected));
    }
    let all: Vec<Shape> = (0..ranks).map(|rank| shape(rank, size)).collect();
    assert_eq!(team.allgather_values(&shape(rank, size))?, all);
    let mine = BTreeMap::from([(rank, vec![rank; rank]), (1000, vec![])]);
    let merged = team.allreduce_values(&mine, |mut a, b| {
        a.extend(b);
        a
    })?;
    assert_eq!(merged.len(), ranks + 1);
    assert!((0..ranks).all(|rank| merged[&rank] == vec![rank; rank]));
    Ok(())
}

fn on_world_and_parts(world: &World) -> Result<()> {
    for size in [0, 3, 3000] {
        all_calls(&Team::world(world)?, size)?;
    }
    let part = Team::world(world)?.split(Some(world.rank() as u64 % 2), -(world.rank() as i64))?.expect("a colour");
    all_calls(&part, 40)?;
    let words = world.allgather_values(&"x".repeat(world.rank()))?;
    assert!(words.iter().enumerate().all(|(rank, word)| word.len() == rank));
    let longest = world.allreduce_values(&words[world.rank()], |a, b| if b.len() > a.len() { b } else { a })?;
    assert_eq!(longest.len(), world.size() - 1);
    world.barrier()
}

#[test]
fn values_of_any_type_and_size() {
    worlds::everywhere(on_world_and_parts);
}

#[bellwether::test(ranks = [1, 3, 5], launch = "processes")]
fn values_between_processes(world: &World) -> Result<()> {
    on_world_and_parts(world)
}

#[test]
fn values_beyond_message_memory() {
    let settings = {
        let mut settings = Settings::default();
        settings.message_memory = 64 << 10;
        settings
    };
    worlds::on_threads(&settings, &[3], |world| {
        // One rank has 8 MB, the others next to nothing: each is sent as it is.
        let mine = vec![world.rank() as u64; if world.rank() == 1 { 1 << 20 } else { 1 }];
        let all = world.allgather_values(&mine)?;
        assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1 << 20, 1]);
        assert!(all[1].iter().all(|word| *word == 1));
        let all = world.gather_values(2, &mine)?;
        assert_eq!(all.is_some(), world.rank() == 2);
        let theirs = world.broadcast_value(1, (world.rank() == 1).then_some(mine))?;
        assert_eq!(theirs.len(), 1 << 20);
        world.barrier()
    });
}

/// What fails is an error value at every rank, and the team is used on.
fn mistakes(world: &World) -> Result<()> {
    let team = Team::world(world)?;
    let (rank, last) = (team.rank(), team.size() - 1);
    if last == 0 {
        return Ok(());
    }
    let differ = |error: Error, parts: [&str; 2]| {
        let text = error.to_string();
        assert!(matches!(error, Error::RanksDiffer { .. }) && parts.iter().all(|part| text.contains(part)), "{text}");
    };
    // Another root.
    let error = team.broadcast_value(usize::from(rank == last), Some(1u8)).expect_err("roots differ");
    differ(error, ["root 0", "root 1"]);
    // Another call.
    let error = match rank {
        0 => team.gather_values(0, &1u8).map(drop),
        _ => team.broadcast_value(0, Some(1u8)).map(drop),
    };
    differ(error.expect_err("calls differ"), ["gather_values", "broadcast_value"]);
    // Another type.
    let error = match rank {
        0 => team.allgather_values(&1u8).map(drop),
        _ => team.allgather_values(&String::new()).map(drop),
    };
    differ(error.expect_err("types differ"), ["allgather_values", "another type"]);
    // A root that gives nothing, or too little, and a member that is none.
    for error in [
        team.broadcast_value::<u8>(0, None).expect_err("nothing"),
        team.scatter_values(0, Some(&[1u8][..]).filter(|_| rank == 0)).expect_err("too few"),
    ] {
        let is_told = matches!(&error, Error::Agreed { rank: 0, .. }) || rank == 0;
        assert!(is_told && (rank > 0 || matches!(error, Error::InvalidArgument { .. })), "{error}");
    }
    let error = team.gather_values(99, &1u8).expect_err("no such member").to_string();
    assert!(error.contains("rank 99 is outside the team"), "{error}");
    assert_eq!(team.allgather_values(&rank)?, (0..=last).collect::<Vec<_>>());
    world.barrier()
}

#[test]
fn mistakes_are_told_at_every_rank() {
    worlds::everywhere(mistakes);
}

/// What one rank writes and another cannot read: its bytes are of another layout under the same name.
#[derive(Debug, Serialize)]
struct Odd(u8);

impl<'de> Deserialize<'de> for Odd {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Odd, D::Error> {
        let number = u8::deserialize(deserializer)?;
        if number % 2 == 1 { Ok(Odd(number)) } else { Err(serde::de::Error::custom("it is even")) }
    }
}

/// Where member 0 cannot combine the values, all members are told, and the team is used on.
#[test]
fn values_that_cannot_be_combined_are_an_error_value_at_all_members() {
    worlds::everywhere(|world| {
        let (rank, last) = (world.rank(), world.size() - 1);
        let first = |a: Odd, _: Odd| a;
        let error = world.allreduce_values(&Odd(1 + u8::from(rank == last)), first).expect_err("the last is even");
        match rank {
            0 => assert!(matches!(error, Error::BadMessage { from, .. } if from == last), "{error}"),
            _ => assert!(matches!(error, Error::Agreed { rank: 0, .. }), "{error}"),
        }
        assert_eq!(world.allreduce_values(&Odd(3), first)?.0, 3);
        if last > 0 {
            let panics = |_: u8, _: u8| -> u8 { panic!("as it was told to") };
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.allreduce_values(&1, panics)));
            match outcome {
                Err(_) => assert_eq!(rank, 0),
                Ok(outcome) => {
                    let error = outcome.expect_err("rank 0 has panicked");
                    assert!(rank > 0 && matches!(error, Error::Agreed { rank: 0, .. }), "{error}");
                }
            }
        }
        assert_eq!(world.allreduce_values(&1, |a: u64, b| a + b)?, world.size() as u64);
        world.barrier()
    });
}

#[test]
fn bytes_that_are_no_value_are_an_error_value() {
    worlds::everywhere(|world| {
        let last = world.size() - 1;
        let all = world.allgather_values(&Odd(1 + u8::from(world.rank() == last)));
        let is_bad = |error: &Error| matches!(error, Error::BadMessage { from, .. } if *from == last);
        let error = all.map(drop).expect_err("the last is even");
        assert!(is_bad(&error), "{error}");
        // The team is used on.
        assert_eq!(world.allgather_values(&Odd(3))?[last].0, 3);
        world.barrier()
    });
}
