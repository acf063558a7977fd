//! A token goes round the ranks, by every means there is; rank 0 tells in one line how it went.
//!
//! `ring [ROUNDS]` runs and checks itself. `ring WAY RANK [busy]` lets one rank go wrong while the others wait for
//! it, or compute for a minute: `kill`, `panic`, `leave`, `exit`, `abort`, or `desert`, where they wait for a bell that no rank
//! rings; or `handler`, where the next rank calls a function that panics at RANK. `ring barrier RANK` and `ring finish RANK` kill a rank that has
//! entered its last collective call, where the others come later, and the last long after the rest. `ring told RANK FILE` is as `handler`,
//! but RANK catches the panic, and lives on without a poll until its caller has been told and has made the file. `ring hold` tells process ids and waits to be killed;
//! `ring until FILE` tells them and goes round until there is such a file. `ring pairs ROUNDS` does every operation between all
//! pairs of ranks, and tells how each rank reaches the others.

use std::cell::Cell;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bellwether::{Error, Result, World};
use bellwether_tests::pairs::every_pair;

const ROUNDS: u64 = 1000;
const CALLS: u64 = 100;
const WIDE: usize = 50_000;

fn main() -> ExitCode {
    let Err(error) = run() else { return ExitCode::SUCCESS };
    // One write, so that the words of ranks do not mix.
    let _ = std::io::stderr().write_all(format!("Error: {error}\n").as_bytes());
    ExitCode::FAILURE
}

fn run() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let world = World::start()?;
    match arguments.as_slice() {
        [] => ring(&world, ROUNDS)?,
        [way] if way == "hold" => {
            tell(&format!("rank {} is process {}", world.rank(), std::process::id()));
            world.bell()?.wait(1)?;
        }
        [way, rounds] if way == "pairs" => {
            let ways = every_pair(&world, rounds.parse().expect("ROUNDS is a number"))?;
            tell(&format!("pairs: rank {} of {}: {ways}", world.rank(), world.size()));
        }
        [way, file] if way == "until" => {
            tell(&format!("rank {} is process {}", world.rank(), std::process::id()));
            let mut there = [0u32];
            while there[0] == 0 {
                there[0] = std::path::Path::new(file).exists().into();
                world.allreduce(&mut there, u32::max)?;
            }
            ring(&world, 100)?;
        }
        [call, rank] if call == "barrier" || call == "finish" => {
            let wrong: usize = rank.parse().expect("RANK is a number");
            let processes = world.allgather(&[std::process::id()])?;
            world.barrier()?;
            let late = world.size() - 1 - usize::from(wrong == world.size() - 1);
            match world.rank() {
                rank if rank == wrong => drop(std::thread::spawn(|| {
                    std::thread::sleep(Duration::from_millis(100));
                    kill_self();
                })),
                // A process that its parent has not waited for still is one.
                rank if rank == late => {
                    while is_process(processes[wrong]) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
                _ => std::thread::sleep(Duration::from_millis(200)),
            }
            if call == "barrier" {
                world.barrier()?;
            }
        }
        [way, rank, file] if way == "told" => {
            let wrong: usize = rank.parse().expect("RANK is a number");
            let (file, caller) = (std::path::Path::new(file), (wrong + 1) % world.size());
            let ready = world.bell()?;
            if world.rank() == wrong {
                let waits = || ready.ring(caller).and_then(|()| world.wait_until(|| false));
                catch_unwind(AssertUnwindSafe(waits)).expect_err("it waits for ever, but for the panic");
                let start = Instant::now();
                while !file.exists() {
                    assert!(
                        start.elapsed() < Duration::from_secs(60),
                        "the caller was not told while its target lived"
                    );
                    std::thread::sleep(Duration::from_millis(1));
                }
            } else if world.rank() == caller {
                ready.wait(1)?;
                let answer = world.call(wrong, 7u8, |_, number| -> () { panic!("no {number} here") })?.wait();
                let Err(Error::HandlerPanicked { rank, why, place: Some(place), .. }) = &answer else {
                    panic!("{answer:?}")
                };
                assert_eq!((*rank, &**why), (wrong, "no 7 here"));
                assert!(place.starts_with(file!()), "{place}");
                std::fs::write(file, "").expect("there is room");
            }
            world.barrier()?;
        }
        [rounds] => ring(&world, rounds.parse().expect("ROUNDS is a number"))?,
        [way, rank, busy @ ..] => {
            let bell = world.bell()?;
            world.barrier()?;
            let wrong: usize = rank.parse().expect("RANK is a number");
            if wrong == world.rank() && way != "handler" {
                return go_wrong(&world, way);
            }
            if way == "handler" && world.rank() == (wrong + 1) % world.size() {
                return world.call(wrong, 7u8, |_, number| panic!("no {number} here"))?.wait();
            }
            if way == "desert" {
                return bell.wait(1).map(drop);
            }
            if !busy.is_empty() {
                std::thread::sleep(Duration::from_secs(60));
            }
            world.barrier()?;
        }
    }
    world.finish()
}

fn tell(line: &str) {
    // One write, so that the lines of ranks do not mix.
    std::io::stdout().write_all(format!("{line}\n").as_bytes()).expect("standard output is open");
}

fn go_wrong(world: &World, way: &str) -> Result<()> {
    match way {
        "panic" => panic!("as I was told to"),
        "exit" => std::process::exit(3),
        "leave" | "desert" => Ok(()),
        "abort" => world.abort(3, "as I was told to"),
        "kill" => kill_self(),
        _ => panic!("{way}: no such way to go wrong"),
    }
}

fn kill_self() -> ! {
    // SAFETY: no memory is involved.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    unreachable!("killed")
}

fn is_process(id: u32) -> bool {
    // SAFETY: signal 0 does nothing.
    unsafe { libc::kill(id.cast_signed(), 0) == 0 }
}

fn ring(world: &World, rounds: u64) -> Result<()> {
    let (rank, size) = (world.rank(), world.size());
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);

    // The token: an element and a bell.
    let token = world.alloc::<u64>(1)?;
    let came = world.bell()?;
    for round in 1..=rounds {
        if rank == 0 {
            let sent = (round - 1) * size as u64 + 1;
            token.put_bell(next, 0, sent, &came)?;
            came.wait(round)?;
        } else {
            came.wait(round)?;
            token.put_bell(next, 0, token.load(0) + 1, &came)?;
        }
    }
    let in_the_last_round = if rank == 0 { size } else { rank } as u64;
    let expected = rounds.saturating_sub(1) * size as u64 + in_the_last_round;
    assert!(rounds == 0 || token.load(0) == expected, "rank {rank} of {size}: {} is not {expected}", token.load(0));

    // Whole slices to everyone.
    let board = world.alloc::<u32>(size * 1000)?;
    let full = world.bell()?;
    let mine: Vec<u32> = (0..1000).map(|i| (rank * 1000 + i) as u32).collect();
    for to in 0..size {
        board.put_slice_bell(to, rank * 1000, &mine, &full)?;
    }
    full.wait(size as u64)?;
    for i in 0..size * 1000 {
        assert_eq!(board.load(i), i as u32, "rank {rank}");
    }
    // Our bell says that all have come here, not that all have come to `before`.
    world.barrier()?;
    let mut theirs = vec![0; 1000];
    board.get_slice(before, next * 1000, &mut theirs)?;
    assert_eq!(theirs[999], (next * 1000 + 999) as u32, "rank {rank}");

    // Many bytes from where they lie.
    let wide = world.alloc::<u64>(2 * WIDE)?;
    let mine: Vec<u64> = (0..WIDE).map(|i| (rank * WIDE + i) as u64).collect();
    wide.write(0, &mine);
    wide.put_from(next, WIDE, &wide, 0..WIDE)?;
    full.ring(next)?;
    full.wait(size as u64 + 1)?;
    let mut theirs = vec![0; WIDE];
    wide.read(WIDE, &mut theirs);
    assert!(theirs.into_iter().eq((0..WIDE).map(|i| (before * WIDE + i) as u64)), "rank {rank}");

    // Remote calls, with and without a result.
    world.set_state(Cell::new(0u64));
    world.barrier()?;
    for number in 0..CALLS {
        let (from, answer) = world.call(next, number, |context, number| (context.from(), number * 2))?.wait()?;
        assert_eq!((from, answer), (rank, number * 2));
        world.invoke(next, (number, "a word".to_string()), |context, (number, word)| {
            let state = context.state::<Cell<u64>>().expect("set before the barrier");
            state.set(state.get() + number + word.len() as u64);
        })?;
    }
    let state = world.state::<Cell<u64>>().expect("set above");
    world.wait_until(|| state.get() == CALLS * (CALLS - 1) / 2 + CALLS * 6)?;

    let mut sums = [rank as f64, 1.0];
    world.allreduce_sum(&mut sums)?;
    assert_eq!(sums, [(size * (size - 1) / 2) as f64, size as f64]);
    assert_eq!(world.allgather(&[rank])?, (0..size).collect::<Vec<_>>());
    let mut word = [if rank == size - 1 { 77u16 } else { 0 }];
    world.broadcast(size - 1, &mut word)?;
    assert_eq!(word, [77]);
    world.barrier()?;
    if rank == 0 {
        tell(&format!("{size} ranks, {rounds} rounds, sum {}", sums[0]));
    }
    Ok(())
}
