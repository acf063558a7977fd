//! Items pushed to their owners: none is lost or doubled, with the smallest buffers, by either route.

mod common;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bellwether::aggregate::{Aggregator, Options, Push, Route};
use bellwether::{Error, Result, Simulated, World, sim, threads};
use common::{Chance, everywhere};

/// Everybody pushes to everybody, in an order of their own, in two bouts.
fn everybody_to_everybody(world: &World, options: &Options, each: usize) -> Result<()> {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let sink = Rc::clone(&seen);
    let mut push = Push::new(world, options, move |item: [u32; 3]| sink.borrow_mut().push(item))?;
    let ranks = world.size();
    for bout in 0..2u32 {
        let mut chance = Chance::new(world.rank(), bout.into());
        let first = chance.below(ranks);
        for number in 0..each {
            for step in 0..ranks {
                push.push((first + step) % ranks, [bout, world.rank() as u32, number as u32])?;
            }
        }
        push.finish()?;
        let mut seen = seen.take();
        seen.sort_unstable();
        let expected = (0..ranks).flat_map(|from| (0..each).map(move |number| [bout, from as u32, number as u32]));
        assert!(seen.into_iter().eq(expected), "bout {bout} at rank {}", world.rank());
        world.barrier()?;
    }
    Ok(())
}

#[test]
fn buffers_of_one_item() {
    everywhere("buffers_of_one_item", |world| {
        everybody_to_everybody(world, &Options { items: 1, memory: 0, ..Options::new(world) }, 30)
    });
}

#[test]
fn two_hops_with_next_to_no_memory() {
    everywhere("two_hops_with_next_to_no_memory", |world| {
        for columns in [None, Some(1), Some(2), Some(3)] {
            let route = Route::TwoHops { columns };
            everybody_to_everybody(world, &Options { memory: 0, route, ..Options::new(world) }, 10)?;
            everybody_to_everybody(world, &Options { items: 3, route, ..Options::new(world) }, 10)?;
        }
        Ok(())
    });
}

#[test]
fn large_buffers() {
    everywhere("large_buffers", |world| everybody_to_everybody(world, &Options::new(world), 40));
}

#[test]
fn all_to_one() {
    everywhere("all_to_one", |world| {
        let sum = Rc::new(Cell::new(0));
        let sink = Rc::clone(&sum);
        let least = Options { items: 2, memory: 0, ..Options::new(world) };
        let mut push = Push::new(world, &least, move |item: u64| sink.set(sink.get() + item))?;
        (1..=100).try_for_each(|item| push.push(0, item))?;
        push.finish()?;
        assert_eq!(sum.get(), if world.rank() == 0 { 5050 * world.size() as u64 } else { 0 });
        Ok(())
    });
}

#[test]
fn what_has_waited_long_enough_leaves_by_itself() {
    everywhere("what_has_waited_long_enough_leaves_by_itself", |world| {
        let seen = Rc::new(Cell::new(0));
        let sink = Rc::clone(&seen);
        let options = Options { age: Duration::from_micros(50), ..Options::new(world) };
        let mut push = Push::new(world, &options, move |_: u8| sink.set(sink.get() + 1))?;
        for to in 0..world.size() {
            push.push(to, 1)?;
        }
        // No flush and no finish: age alone.
        while seen.get() < world.size() {
            world.sleep(Duration::from_micros(60));
            push.progress()?;
            let _ = world.wait_until_for(Duration::from_micros(10), || seen.get() == world.size());
        }
        // The others may still wait for this rank's.
        push.finish()
    });
}

#[test]
fn memory_is_told_and_kept() {
    everywhere("memory_is_told_and_kept", |world| {
        for memory in [1000, 10_000, 1 << 20] {
            for route in [Route::OneHop, Route::TwoHops { columns: None }] {
                let options = Options { memory, route, ..Options::new(world) };
                let told = Push::new(world, &options, |_: u64| ())?.memory();
                assert!(told <= memory, "{told} bytes where {memory} were wished for");
            }
        }
        Ok(())
    });
}

#[test]
fn an_item_larger_than_a_message_is_refused() {
    let config = sim::Config::new(2, 1).tiny();
    let ends = Simulated::new(config).run(|world| {
        let made = Push::new(world, &Options::new(world), |_: [u64; 100]| ());
        world.barrier()?;
        made.map(drop)
    });
    for end in ends.expect("the job starts") {
        let Err(Error::InvalidArgument { why, .. }) = end else { panic!("{end:?} instead of an error") };
        assert!(why.contains("800 bytes"), "{why}");
    }
    let ends = threads(2, |world| {
        let mut push = Push::new(world, &Options::new(world), |_: u64| ())?;
        let end = push.push(2, 1);
        assert!(matches!(end, Err(Error::RankOutOfRange { rank: 2, size: 2, .. })), "{end:?}");
        push.finish()
    });
    ends.expect("the job starts").into_iter().for_each(|end| end.expect("it goes on"));
}

/// What rank 0 makes and what the others make: refused on all, with what both have.
fn refused(end: Result<()>, said: [&str; 2]) {
    let Err(Error::RanksDiffer { theirs, ours, .. }) = end else { panic!("{end:?} instead of an error") };
    let is_told = |said: &&str| ours.contains(said) != theirs.contains(said);
    assert!(said.iter().all(is_told), "{ours}; {theirs}");
}

#[test]
fn ranks_that_push_other_items_or_another_way_are_told() {
    everywhere("ranks_that_push_other_items_or_another_way_are_told", |world| {
        let (options, is_first) = (Options::new(world), world.rank() == 0);
        if world.size() == 1 {
            return Ok(());
        }
        let other = |other: Options| if is_first { options.clone() } else { other };
        let words = |options: &Options| Push::new(world, options, |_: u64| ()).map(drop);
        let bytes = || Push::new(world, &options, |_: [u8; 12]| ()).map(drop);
        refused(if is_first { words(&options) } else { bytes() }, ["8 bytes (u64)", "12 bytes ([u8; 12])"]);
        // As long, but something else.
        let floats = || Push::new(world, &options, |_: f64| ()).map(drop);
        refused(if is_first { words(&options) } else { floats() }, ["(u64)", "(f64)"]);
        // Nothing at all, and more than some messages have room for.
        let nothing = || Push::new(world, &options, |_: ()| ()).map(drop);
        refused(if is_first { nothing() } else { words(&options) }, ["0 bytes (())", "8 bytes"]);
        let large = || Push::new(world, &options, |_: [u64; 100]| ()).map(drop);
        refused(if is_first { large() } else { words(&options) }, ["800 bytes", "items of 8 bytes"]);
        let two_hops = |columns| Route::TwoHops { columns };
        let hops = other(Options { route: two_hops(None), ..options.clone() });
        refused(words(&hops), ["Auto", "TwoHops { columns: None }"]);
        let route = two_hops(Some(if is_first { 1 } else { 2 }));
        refused(words(&Options { route, ..options.clone() }), ["Some(1)", "Some(2)"]);
        let less = other(Options { memory: 1000, ..options.clone() });
        refused(words(&less), ["1000 bytes of memory", &format!("{} bytes of memory", options.memory)]);
        let fewer = other(Options { items: 3, ..options.clone() });
        let end = words(&fewer).expect_err("other messages").to_string();
        assert!(end.contains("at most 3 in a message"), "{end}");
        // Tables too.
        let end = Aggregator::<u64>::new(world, &hops).map(drop);
        refused(end, ["Auto", "TwoHops { columns: None }"]);
        let end = match is_first {
            true => Aggregator::<u64>::new(world, &options).map(drop),
            false => Aggregator::<u32>::new(world, &options).map(drop),
        };
        refused(end, ["8 bytes (u64)", "4 bytes (u32)"]);
        // Each may have another age, and it goes on.
        let age = Duration::from_micros(world.rank() as u64);
        everybody_to_everybody(world, &Options { age, ..options }, 5)
    });
}

#[test]
fn a_lost_peer_is_told() {
    let _guard = bellwether_tests::watchdog::guard("a_lost_peer_is_told", Duration::from_secs(600));
    let ends = threads(3, |world| {
        let least = Options { items: 1, memory: 0, ..Options::new(world) };
        let mut push = Push::new(world, &least, |_: u64| ())?;
        if world.rank() == 1 {
            return Ok(());
        }
        loop {
            push.push(1, 5)?;
            push.finish()?;
        }
    });
    for (rank, end) in ends.expect("the job starts").into_iter().enumerate() {
        match end {
            Ok(()) => assert_eq!(rank, 1),
            Err(Error::PeerLost { rank: lost, .. }) => assert_eq!(lost, 1),
            Err(other) => panic!("rank {rank}: {other}"),
        }
    }
}
