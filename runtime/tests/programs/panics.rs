//! Handlers and closures that panic: the caller hears of it at once, from the target and not from its end.

use std::sync::atomic::AtomicBool;

use super::*;

/// A rank that panicked in a handler and caught that stays, without a poll, until its caller has got the error.
fn stays_until(told: &AtomicBool) {
    let start = Instant::now();
    while !told.load(Ordering::Acquire) {
        assert!(start.elapsed() < Duration::from_secs(20), "the caller was not told while its target lived");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Rank 0 does `call`, whose handler panics at rank 1, and looks at the error.
fn caller_and_target(call: impl Fn(&World) -> Error + Sync, handler: &str) {
    watchdog();
    let (ready, told) = (AtomicBool::new(false), AtomicBool::new(false));
    let program = |world: World| {
        if world.rank() == 0 {
            // The target may be starting still.
            while !ready.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            let error = call(&world);
            told.store(true, Ordering::Release);
            let Error::HandlerPanicked { rank: 1, handler: name, why, place } = &error else { panic!("{error}") };
            assert!(name.contains(handler), "{error}");
            assert_eq!(why, "no 7 here", "{error}");
            let place = place.as_deref().expect("nobody replaced the panic hook");
            assert!(place.starts_with(file!()), "{error}");
            assert!(error.to_string().contains(place), "{error}");
        } else if world.rank() == 1 {
            // The panic comes out of the call that delivered the message, as it does without a caller.
            ready.store(true, Ordering::Release);
            let caught = catch_unwind(AssertUnwindSafe(|| world.wait_until(|| false)));
            let panic = caught.expect_err("it waits for ever, but for the panic");
            assert_eq!(panic.downcast_ref::<String>().map(String::as_str), Some("no 7 here"));
            stays_until(&told);
        }
        // Who catches it goes on.
        world.barrier().expect("all live");
        let next = (world.rank() + 1) % world.size();
        assert_eq!(world.call(next, 1, |_, x: i32| x + 1).expect("sent").wait().expect("answered"), 2);
        world.finish().expect("all live, and as much was delivered as was sent");
    };
    let job = Threads::new(3).settings(settings());
    job.build(|mut builder| {
        builder.handler("a handler that panics", |_, bytes| panic_over(bytes[0]));
        program(builder.start().expect("starts"));
    })
    .expect("starts");
}

fn panic_over(number: u8) {
    panic!("no {number} here");
}

/// The error of a later poll.
fn later(world: &World) -> Error {
    let start = Instant::now();
    loop {
        if let Err(error) = world.poll() {
            return error;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "no error");
    }
}

pub fn a_call_whose_closure_panics_is_answered_at_once() {
    let call =
        |world: &World| world.call(1, 7u8, |_, number| panic_over(number)).expect("sent").wait().expect_err("panics");
    caller_and_target(call, "a_call_whose_closure_panics_is_answered_at_once");
}

pub fn a_plain_call_whose_closure_panics_is_answered_at_once() {
    let call = |world: &World| {
        world.call_plain(1, 7u8, |_, number| panic_over(number)).expect("sent").wait().expect_err("panics")
    };
    caller_and_target(call, "a_plain_call_whose_closure_panics_is_answered_at_once");
}

pub fn a_closure_without_an_answer_that_panics_is_told_to_its_caller() {
    let call = |world: &World| {
        world.invoke(1, 7u8, |_, number| panic_over(number)).expect("sent");
        later(world)
    };
    caller_and_target(call, "a_closure_without_an_answer_that_panics_is_told_to_its_caller");
}

pub fn a_handler_that_panics_is_told_to_its_caller() {
    let call = |world: &World| {
        world.send(1, bellwether_runtime::HandlerId::from_number(0), &[7]).expect("sent");
        later(world)
    };
    caller_and_target(call, "a handler that panics");
}

pub fn a_rank_that_ends_of_a_handlers_panic_has_answered_first() {
    watchdog();
    for _ in 0..30 {
        let told = AtomicBool::new(false);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            threads(2, |world| {
                if world.rank() == 1 {
                    return world.wait_until(|| false);
                }
                let answer = world.call(1, 7u8, |_, number| panic_over(number))?.wait();
                assert!(matches!(answer, Err(Error::HandlerPanicked { rank: 1, .. })), "{answer:?}");
                told.store(true, Ordering::Release);
                Ok(())
            })
        }));
        let panic = outcome.expect_err("the panic comes out");
        assert_eq!(panic.downcast_ref::<String>().map(String::as_str), Some("no 7 here"));
        assert!(told.into_inner());
    }
}

/// The rank has no result to compare. The others have, and compare only theirs.
pub fn a_rank_that_a_panic_took_out_of_a_reduction_goes_on() {
    watchdog();
    for barrier in [Barrier::Dissemination, Barrier::Direct] {
        let program = |world: &World| {
            let me = world.rank();
            let mut sum = [1];
            // With these barriers each rank combines for itself.
            let reduced = catch_unwind(AssertUnwindSafe(|| {
                world.allreduce(&mut sum, |a, b: u64| if me == 1 { std::panic::panic_any(7u8) } else { a + b })
            }));
            match me {
                1 => drop(reduced.expect_err("the operator panics")),
                _ => reduced.expect("no panic here")?,
            }
            world.barrier()?;
            let all = world.allgather(&[me])?;
            assert_eq!(all, [0, 1, 2]);
            world.barrier()
        };
        let mut settings = settings();
        settings.barrier = barrier;
        for (rank, result) in Threads::new(3).settings(settings).run(program).expect("starts").into_iter().enumerate() {
            result.unwrap_or_else(|error| panic!("rank {rank}, {barrier:?}: {error}"));
        }
    }
}

/// Rank 0 combines the boards of an allreduce slowly. Meanwhile rank 2 is taken out of the next barrier, and begins an exchange that
/// uses the board, or the place, that rank 0 has not read.
fn combines_while_rank_2_exchanges(
    takes_part: impl Fn(&World) -> Result<()> + Sync,
    leaves_barrier: impl Fn(&World) + Sync,
    after: impl Fn(&World) -> Result<()> + Sync,
) {
    watchdog();
    for barrier in [Barrier::Dissemination, Barrier::Direct] {
        let (entered, left) = (AtomicBool::new(false), AtomicBool::new(false));
        let until = |flag: &AtomicBool| {
            while !flag.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        };
        let program = |world: &World| {
            let me = world.rank() as u64;
            let mut sum = [1 << (8 * me)];
            world.allreduce(&mut sum, |a, b: u64| {
                if me == 0 && a == 1 {
                    until(&left);
                    // Rank 2 has time to write its board, if it is going to.
                    std::thread::sleep(Duration::from_millis(30));
                }
                a + b
            })?;
            assert_eq!(sum, [0x01_01_01], "rank {me}");
            match me {
                1 => {
                    until(&entered);
                    takes_part(world)?;
                }
                2 => {
                    entered.store(true, Ordering::Release);
                    leaves_barrier(world);
                    left.store(true, Ordering::Release);
                }
                _ => {}
            }
            after(world)
        };
        let mut settings = settings();
        settings.barrier = barrier;
        for (rank, result) in Threads::new(3).settings(settings).run(program).expect("starts").into_iter().enumerate() {
            result.unwrap_or_else(|error| panic!("rank {rank}, {barrier:?}: {error}"));
        }
    }
}

pub fn a_rank_that_a_panic_took_out_of_a_barrier_overwrites_no_board() {
    combines_while_rank_2_exchanges(
        |world| {
            world.invoke(2, 7u8, |_, number| panic_over(number))?;
            later(world);
            Ok(())
        },
        |world| {
            let caught = catch_unwind(AssertUnwindSafe(|| world.barrier()));
            let panic = caught.expect_err("rank 0 does not enter, so this waits until a handler panics");
            assert_eq!(panic.downcast_ref::<String>().map(String::as_str), Some("no 7 here"));
        },
        |world| {
            if world.rank() != 2 {
                world.barrier()?;
            }
            for round in 0..10 {
                let all = world.allgather(&[10 * round + world.rank()])?;
                assert_eq!(all, [0, 1, 2].map(|rank| 10 * round + rank));
            }
            world.barrier()
        },
    );
}

pub fn a_rank_that_lost_a_peer_in_a_barrier_overwrites_no_board() {
    combines_while_rank_2_exchanges(
        |_| Ok(()),
        |world| {
            let told = world.barrier();
            assert!(matches!(told, Err(Error::PeerLost { rank: 1, .. })), "{told:?}");
        },
        |world| {
            if world.rank() == 2 {
                let told = world.allgather(&[7]);
                assert!(matches!(told, Err(Error::PeerLost { rank: 1, .. })), "{told:?}");
            }
            Ok(())
        },
    );
}
