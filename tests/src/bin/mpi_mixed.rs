//! A program that uses MPI itself, at `MPI_THREAD_SERIALIZED`, and makes worlds on communicators.
//!
//! `mpi_mixed` runs and checks itself; `mpi_mixed settings RANK` expects that rank RANK has a setting that cannot be
//! understood, and that every rank gets the error; `mpi_mixed memory RANK` leaves that rank no address space for the others'
//! memory; `mpi_mixed network` moves ranks to network namespaces of their own.

use std::cell::Cell;
use std::io::Write;
use std::rc::Rc;

use bellwether::{Error, Result, World};
use mpi::collective::SystemOperation;
use mpi::environment::Universe;
use mpi::topology::{Color, SimpleCommunicator};
use mpi::traits::{Communicator, CommunicatorCollectives};
use mpi::{Rank, Threading};
use rustix::process::{Resource, Rlimit};
use rustix::thread::UnshareFlags;

fn main() -> Result<()> {
    // The universe finalises MPI when it is dropped, in a panic too, and would wait for the other ranks.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::exit(101);
    }));
    let (universe, level) = mpi::initialize_with_threading(Threading::Serialized).expect("nobody has initialised MPI");
    assert!(level >= Threading::Serialized, "this MPI offers {level:?} only");
    let all = universe.world();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [] => parts(universe),
        [what, rank] if what == "memory" => one_has_no_room(&all, rank.parse().expect("a rank")),
        [_, rank] => one_has_bad_settings(&all, rank.parse().expect("a rank")),
        _ => other_networks(&all),
    }
}

fn parts(universe: Universe) -> Result<()> {
    let all = universe.world();

    // Halves, by the parity of the rank; one after the other, in either order of ranks.
    for round in 0..3 {
        let key = if round % 2 == 0 { all.rank() } else { -all.rank() };
        let color = Color::with_value(all.rank() % 2);
        let half = all.split_by_color_with_key(color, key).expect("a rank with a color has a part");
        let world = World::from_mpi(&half)?;
        exercise(&world, &half)?;
        // MPI and the world take turns, and do not notice each other.
        let mut sum = 0;
        all.all_reduce_into(&world.rank(), &mut sum, SystemOperation::sum());
        let ranks = all.size() as usize;
        let (evens, odds) = (ranks.div_ceil(2), ranks / 2);
        let triangle = |n: usize| n * n.saturating_sub(1) / 2;
        assert_eq!(sum, triangle(evens) + triangle(odds));
        world.finish()?;
    }

    // Two worlds at a time, and one alone.
    let whole = World::from_mpi(&all)?;
    let half = World::from_mpi(&all.split_by_color(Color::with_value(all.rank() % 2)).expect("as above"))?;
    let alone = World::from_mpi(&SimpleCommunicator::self_comm())?;
    exercise(&whole, &all)?;
    let mut sizes = [half.size()];
    half.broadcast(0, &mut sizes)?;
    assert_eq!((sizes[0], alone.size(), alone.rank()), (half.size(), 1, 0));
    whole.barrier()?;

    // Handlers, and another thread than the one that initialised MPI.
    let heard = std::thread::scope(|scope| {
        let thread = scope.spawn(|| -> Result<u64> {
            let heard = Rc::new(Cell::new(0));
            let mut builder = World::builder();
            let sink = Rc::clone(&heard);
            let handler = builder.handler("hear", move |_, payload| sink.set(sink.get() + u64::from(payload[0])));
            let world = builder.start_on(&SimpleCommunicator::world())?;
            for to in 0..world.size() {
                world.send(to, handler, &[world.rank() as u8 + 1])?;
            }
            let size = world.size() as u64;
            world.wait_until(|| heard.get() == size * (size + 1) / 2)?;
            world.finish()?;
            Ok(heard.get())
        });
        thread.join().expect("no panic")
    })?;

    // A world outlives MPI.
    drop(universe);
    whole.barrier()?;
    if whole.rank() == 0 {
        let line = format!("mpi_mixed ok: {} ranks, halves from {}, heard {heard}\n", whole.size(), half.size());
        std::io::stdout().write_all(line.as_bytes()).expect("standard output is open");
    }
    whole.finish()
}

/// Ranks are those of the communicator, and everyone reaches everyone.
fn exercise(world: &World, communicator: &SimpleCommunicator) -> Result<()> {
    let (rank, size) = (world.rank(), world.size());
    assert_eq!((rank as Rank, size as Rank), (communicator.rank(), communicator.size()));
    let board = world.alloc::<u64>(size)?;
    let bell = world.bell()?;
    for to in 0..size {
        board.put_bell(to, rank, (to * 1000 + rank) as u64, &bell)?;
    }
    bell.wait(size as u64)?;
    for from in 0..size {
        assert_eq!(board.load(from), (rank * 1000 + from) as u64);
    }
    world.barrier()
}

fn one_has_bad_settings(all: &SimpleCommunicator, bad: Rank) -> Result<()> {
    let error = World::from_mpi(all).expect_err("one rank cannot start");
    if all.rank() == bad {
        assert!(matches!(error, Error::Setting { name: "BELLWETHER_SPIN", .. }), "{error:?}");
    } else {
        assert!(matches!(error, Error::Agreed { rank, .. } if rank as Rank == bad), "{error:?}");
        assert!(error.to_string().contains("BELLWETHER_SPIN"), "{error}");
    }
    // MPI is as it was.
    all.barrier();
    if all.rank() == 0 {
        println!("settings ok: {} ranks heard of it", all.size());
    }
    Ok(())
}

/// Rank 0 cannot be reached by an abstract socket from there.
fn other_networks(all: &SimpleCommunicator) -> Result<()> {
    // SAFETY: changes the network namespace of this thread, and no memory or descriptor.
    let moved = all.rank() == 0 || unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.is_ok();
    let mut all_moved = false;
    all.all_reduce_into(&moved, &mut all_moved, SystemOperation::logical_and());
    if all_moved {
        let world = World::from_mpi(all)?;
        exercise(&world, all)?;
        world.finish()?;
    }
    if all.rank() == 0 {
        println!("network {}: {} ranks", if all_moved { "ok" } else { "skipped, not allowed here" }, all.size());
    }
    Ok(())
}

/// Fails after the ranks have met, so that the others wait for it in the world, not in MPI.
fn one_has_no_room(all: &SimpleCommunicator, poor: Rank) -> Result<()> {
    let before = rustix::process::getrlimit(Resource::As);
    if all.rank() == poor {
        let limit = Rlimit { current: Some(16 << 30), ..before };
        rustix::process::setrlimit(Resource::As, limit).expect("a limit can be lowered");
    }
    let error = World::from_mpi(all).expect_err("one rank cannot map the memory");
    if all.rank() == poor {
        assert!(matches!(error, Error::OutOfMemory { what: "address space", .. }), "{error:?}");
    } else {
        assert!(matches!(error, Error::PeerLost { rank, .. } if rank as Rank == poor), "{error:?}");
    }
    rustix::process::setrlimit(Resource::As, before).expect("a limit can be set back");
    exercise(&World::from_mpi(all)?, all)?;
    if all.rank() == 0 {
        println!("memory ok: {} ranks heard of it", all.size());
    }
    Ok(())
}
