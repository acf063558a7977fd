//! Starts and ends, and nothing else: shows what a job costs, and serves as a second program for jobs that must not mix two. By arguments:
//!
//! - `fail RANK`, `exit RANK`, `return RANK`: that rank ends with an error, exits with 3 or ends with 0 while the others need it.
//! - `fail all`: every rank ends with the same error.
//! - `ask segment`, `ask map`: rank 0 asks rank 1 for a segment that is closed or a map that is dropped. It ends with the error when rank 1
//!   has ended with 0.
//! - `unwrap` after one of these: ranks panic on the error that another rank causes.
//! - `go on`: rank 1 asks rank 2 for a map that is dropped, and goes on. Rank 2 lives, and rank 3 fails.
//! - `survive RANK [FOLDER]`: that rank is killed. The others go on, and each prints how many they are, and writes it to a file in FOLDER.
//! - `stream`, of two ranks without a supervisor: rank 1 is killed while rank 0 gets messages without end, and waits with a limit. Rank 0
//!   prints the error that ends its wait.
//! - `again N`: starts N worlds in turn.
//! - `copies N`: asks for N copies of this program; rank 0 prints how many came.

use std::path::Path;
use std::time::Duration;

use bellwether::{DistHashMap, Error, World};

fn main() -> bellwether::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let world = match &arguments[..] {
        [_, how] if how == "stream" => return a_stream_beside_a_death(),
        [_, how, ranks] if how == "copies" => World::builder().ranks(ranks.parse().expect("a number")).start()?,
        [_, how, rank, folder @ ..] if how == "survive" => {
            return survive(rank.parse().expect("a number"), folder.first().map(Path::new));
        }
        [_, how, what, last @ ..] if how == "ask" => return ask_in_vain(what == "map", !last.is_empty()),
        [_, how, last] if how == "go" && last == "on" => return go_on_without_a_map(),
        _ => World::start()?,
    };
    if let [_, how, rank, last @ ..] = &arguments[..] {
        match how.as_str() {
            "fail" if rank == "all" => {
                world.barrier()?;
                return Err(Error::InvalidArgument { operation: "start", why: "as all were asked".into() });
            }
            "fail" if rank.parse() == Ok(world.rank()) => {
                return Err(Error::InvalidArgument { operation: "start", why: "as asked".into() });
            }
            "again" => {
                world.finish()?;
                return (1..rank.parse().expect("a number")).try_for_each(|_| World::start()?.finish());
            }
            "copies" => {
                if world.rank() == 0 {
                    println!("{} copies", world.size());
                }
            }
            "exit" if rank.parse() == Ok(world.rank()) => std::process::exit(3),
            "return" if rank.parse() == Ok(world.rank()) => return Ok(()),
            _ if last.is_empty() => world.barrier()?,
            _ => world.barrier().unwrap(),
        }
    }
    world.finish()
}

/// The first key that belongs to `rank`.
fn key_of(rank: usize, map: &DistHashMap<'_, u64, u64>) -> u64 {
    (0..).find(|key| map.owner(key) == rank).expect("each rank has some")
}

fn ask_in_vain(by_map: bool, unwraps: bool) -> bellwether::Result<()> {
    let world = World::start()?;
    let (bell, segment, map) = (world.bell()?, world.segment(64)?, DistHashMap::new(&world)?);
    let (number, process) = (world.allgather(&[segment.number()])?[1], world.allgather(&[std::process::id()])?[1]);
    if world.rank() != 0 {
        drop((segment, map));
        bell.ring(0)?;
        // Until rank 0 was told.
        return bell.wait(1).map(drop);
    }
    bell.wait(1)?;
    let told = if by_map { map.get(&key_of(1, &map)).map(drop) } else { world.put_segment(1, number, 0, &[1]) };
    bell.ring(1)?;
    while Path::new(&format!("/proc/{process}")).exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    if unwraps {
        told.as_ref().unwrap();
    }
    told
}

fn go_on_without_a_map() -> bellwether::Result<()> {
    let world = World::start()?;
    let (bell, map) = (world.bell()?, DistHashMap::new(&world)?);
    match world.rank() {
        1 => {
            bell.wait(1)?;
            map.get(&key_of(2, &map)).expect_err("rank 2 has dropped it");
            bell.ring(3)?;
        }
        2 => {
            drop(map);
            bell.ring(1)?;
        }
        3 => {
            bell.wait(1)?;
            return Err(Error::InvalidArgument { operation: "start", why: "as asked".into() });
        }
        _ => {}
    }
    world.barrier()?;
    world.finish()
}

/// Of four polls of rank 0 one delivers a message: its wait finds nothing for a moment, and never sleeps.
fn a_stream_beside_a_death() -> bellwether::Result<()> {
    let mut builder = World::builder();
    let handler = builder.handler("a message of a stream", |_, _| {});
    let world = builder.start()?;
    let bell = world.bell()?;
    if world.rank() == 1 {
        bell.wait(1)?;
        // SAFETY: plain numbers.
        unsafe { libc::kill(std::process::id() as i32, libc::SIGKILL) };
    }
    bell.ring(1)?;
    let mut polls = 0;
    let ended = world.wait_until_for(Duration::from_secs(20), || {
        polls += 1;
        if polls % 4 == 0 {
            world.try_send(world.rank(), handler, &[1; 8]).expect("there is room");
        }
        false
    });
    println!("rank 0: {}", ended.as_ref().expect_err("nobody ends it"));
    ended
}

fn survive(victim: usize, folder: Option<&Path>) -> bellwether::Result<()> {
    let world = World::builder().survive().start()?;
    // A death before all have started ends the job. A rank may hear of one before it has left this barrier.
    let all_started = world.barrier();
    if world.rank() == victim {
        // SAFETY: plain numbers.
        unsafe { libc::kill(std::process::id() as i32, libc::SIGKILL) };
    }
    match all_started.and_then(|()| world.barrier()) {
        Err(Error::PeerLost { rank, .. }) if rank == victim => {}
        outcome => panic!("rank {victim} was killed, and the barrier gives {outcome:?}"),
    }
    let team = world.survivors()?;
    let mut ranks = [1];
    team.allreduce(&mut ranks, bellwether::Sum)?;
    let line = format!("rank {} goes on, one of {}", world.rank(), ranks[0]);
    println!("{line}");
    if let Some(folder) = folder {
        std::fs::write(folder.join(world.rank().to_string()), line).expect("the folder is ours");
    }
    world.finish()
}
