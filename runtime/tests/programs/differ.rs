//! Ranks that make the same collective call in different ways are told, with what both sides did and where.

use bellwether_runtime::{Barrier, Error, Result, Threads, World};

use super::{is_mapped, settings, threads, watchdog};

/// Runs a program that cannot come out well: every rank gets an error, and at least one that the ranks differ, in words that have
/// all of `said`.
fn told(ranks: usize, said: &[&str], program: impl Fn(&World) -> Result<()> + Sync) {
    told_to_all(ranks, said, |world| program(&world));
}

/// As [`told`], of a program that may finish its world.
fn told_to_all(ranks: usize, said: &[&str], program: impl Fn(World) -> Result<()> + Sync) {
    watchdog();
    let job = Threads::new(ranks).settings(settings());
    let errors = job.build(|builder| builder.start().and_then(&program)).expect("the ranks start");
    let mut texts = errors.into_iter().enumerate().map(|(rank, outcome)| match outcome {
        Ok(()) => panic!("rank {rank} of {ranks} was told nothing: {said:?}"),
        Err(Error::RanksDiffer { .. }) => outcome.expect_err("it is one").to_string(),
        // Somebody else was told, and left.
        Err(Error::PeerLost { .. }) => String::new(),
        Err(other) => panic!("rank {rank} of {ranks}: {other}"),
    });
    let texts: Vec<String> = texts.by_ref().collect();
    assert!(texts.iter().any(|text| said.iter().all(|word| text.contains(word))), "{said:?}: {texts:?}");
}

pub fn a_segment_of_all_beside_another_call() {
    told(2, &["an allgather of 1 elements", "in `segment_all`", file!()], |world| {
        if world.rank() == 0 { world.segment_all(64).map(drop) } else { world.allgather(&[1u8; 3]).map(drop) }
    });
}

pub fn a_bell_beside_another_call() {
    told(2, &["an allocation", concat!("in `bell`, called at ", file!())], |world| {
        if world.rank() == 0 { world.bell().map(drop) } else { world.allgather(&[1u8; 3]).map(drop) }
    });
}

/// The place of the line after this call.
#[track_caller]
fn next_line() -> String {
    let place = std::panic::Location::caller();
    format!("called at {}:{}", place.file(), place.line() + 1)
}

pub fn every_rank_its_own_root() {
    let said = if is_mapped() { "from root 1" } else { "root, length or type of a broadcast before" };
    told(3, &[said], |world| {
        let mut value = [10 + world.rank() as u64];
        world.broadcast(world.rank(), &mut value)?;
        world.allgather(&[1]).map(drop)
    });
}

pub fn every_rank_another_root() {
    for ranks in [2, 3, 5] {
        told(ranks, &["a broadcast of 1 elements", "from root"], |world| {
            let mut value = [10 + world.rank() as u64];
            world.broadcast((world.rank() + 1) % world.size(), &mut value)
        });
    }
}

pub fn one_rank_another_root() {
    for ranks in [3, 4, 7] {
        for odd in 0..ranks {
            told(ranks, &["broadcast", " from root "], |world| {
                let root = if world.rank() == odd { (odd + 1) % ranks } else { odd };
                // More than one message.
                world.broadcast(root, &mut vec![7u64; 30_000])?;
                world.allgather(&[1]).map(drop)
            });
        }
    }
}

pub fn a_root_beside_a_reduction() {
    // Without mapped memory each side knows of the other that it is elsewhere.
    let said = match is_mapped() {
        true => ["a broadcast of 1 elements of type u64 from root 0", "an allreduce of 1 elements of type u64"],
        false => ["a broadcast of 1 elements of type u64, 8 bytes, from root 0", "a barrier, or a call with one"],
    };
    told(3, &said, |world| {
        let mut value = [1u64];
        if world.rank() == 0 { world.allreduce_sum(&mut value) } else { world.broadcast(0, &mut value) }?;
        world.allgather(&[1]).map(drop)
    });
}

pub fn a_root_that_is_late_and_elsewhere() {
    told(3, &["broadcast", "from root 0"], |world| {
        if world.rank() == 0 {
            // Until it has been asked.
            world.sleep(std::time::Duration::from_millis(60));
            world.allgather(&[1]).map(drop)
        } else {
            world.broadcast(0, &mut [1u64])
        }
    });
}

pub fn different_elements() {
    told(2, &["type u64", "type"], |world| {
        let root = 1;
        if world.rank() == 0 { world.broadcast(root, &mut [1u64]) } else { world.broadcast(root, &mut [1i64]) }?;
        world.allgather(&[1]).map(drop)
    });
    told(3, &["type f64", "type u64"], |world| {
        if world.rank() == 2 { world.allreduce_sum(&mut [1u64]) } else { world.allreduce_sum(&mut [1f64]) }
    });
    told(2, &["an allocation of 1 elements of type u64", "an allocation of 1 elements of type f64"], |world| {
        if world.rank() == 0 { world.alloc::<u64>(1).map(drop) } else { world.alloc::<f64>(1).map(drop) }
    });
}

pub fn different_sizes_of_a_segment() {
    for ranks in [2, 3] {
        told(ranks, &["the size in bytes of a segment", "64", "in `segment_all`", file!()], |world| {
            world.segment_all(if world.rank() == 0 { 64 } else { 72 }).map(drop)
        });
    }
}

pub fn different_operators() {
    told(3, &["an earlier collective call", "the results of an allreduce before", file!()], |world| {
        add_or_take_the_larger(world)?;
        world.allgather(&[1]).map(drop)
    });
}

/// Adds at rank 0, takes the larger value elsewhere.
fn add_or_take_the_larger(world: &World) -> Result<u64> {
    let mut value = [world.rank() as u64 + 1];
    match world.rank() {
        0 => world.allreduce(&mut value, |a, b| a + b)?,
        _ => world.allreduce(&mut value, u64::max)?,
    }
    Ok(value[0])
}

/// The texts of `errors`, each of which says that results of an allreduce differ, and where it was called.
fn results_differ(errors: impl IntoIterator<Item = Option<Error>>) {
    for (rank, error) in errors.into_iter().enumerate() {
        let text = error.unwrap_or_else(|| panic!("rank {rank} was told nothing")).to_string();
        let places = text.matches(file!()).count();
        assert!(text.contains("the results of an allreduce before") && places == 2, "rank {rank}: {text}");
    }
}

/// Over a network barriers do not compare.
pub fn a_barrier_tells_of_different_operators() {
    if !is_mapped() {
        return;
    }
    watchdog();
    for barrier in [Barrier::Dissemination, Barrier::Central, Barrier::Direct] {
        for ranks in [2, 3, 5, 9] {
            let entered = std::sync::Barrier::new(ranks);
            for resumes in [false, true] {
                let mut settings = settings();
                settings.barrier = barrier;
                let outcomes = Threads::new(ranks).settings(settings).run(|world| {
                    add_or_take_the_larger(world)?;
                    if resumes && world.rank() > 0 {
                        let limit = std::time::Duration::ZERO;
                        let error = world.barrier_for(limit).expect_err("rank 0 has not entered");
                        assert!(matches!(error, Error::TimedOut { .. }), "{error}");
                    }
                    entered.wait();
                    world.barrier()
                });
                results_differ(outcomes.expect("the ranks start").into_iter().map(Result::err));
            }
        }
    }
}

/// No call comes after the one that differs, and no rank finishes.
pub fn the_end_tells_of_different_operators() {
    if !is_mapped() {
        return;
    }
    watchdog();
    for ranks in [2, 3, 5] {
        let outcome = threads(ranks, |world| add_or_take_the_larger(world).map(drop));
        results_differ([outcome.err()]);
        // After a rank that ended early nothing is compared.
        let outcomes =
            threads(ranks, |world| if world.rank() > 0 { Ok(()) } else { add_or_take_the_larger(world).map(drop) });
        let outcomes = outcomes.expect("nothing is compared");
        assert!(matches!(outcomes[0], Err(Error::PeerLost { .. })), "{outcomes:?}");
    }
}

/// Ranks that are processes print what [`threads`] returns. The ranks are copies of this test.
pub fn processes_print_at_the_end_that_operators_differ() {
    const AGAIN: &str = "TEST_OF_THE_END";
    if !is_mapped() {
        return;
    }
    watchdog();
    if std::env::var_os(AGAIN).is_some() {
        let world = World::builder().ranks(2).start().expect("the ranks start");
        add_or_take_the_larger(&world).expect("a result");
        return;
    }
    let name = "mapped::differ::processes_print_at_the_end_that_operators_differ";
    let mut test = std::process::Command::new(std::env::current_exe().expect("a running test has a file"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("BELLWETHER_")) {
        test.env_remove(name);
    }
    let outcome = test.args(["--exact", name, "--nocapture"]).env(AGAIN, "1").output().expect("it starts");
    let said = String::from_utf8_lossy(&outcome.stderr);
    assert!(outcome.status.success() && said.contains("the results of an allreduce before"), "{outcome:?}");
    assert!(said.lines().any(|line| line.matches(file!()).count() == 2), "{said}");
}

pub fn a_barrier_beside_another_call_is_told_to_all() {
    if !is_mapped() {
        return;
    }
    for ranks in [2, 3, 9] {
        for odd in [0, ranks - 1] {
            watchdog();
            let outcomes = threads(ranks, |world| {
                if world.rank() == odd { world.barrier() } else { world.allgather(&[1u8; 3]).map(drop) }
            });
            for (rank, outcome) in outcomes.expect("the ranks start").into_iter().enumerate() {
                let text = outcome.expect_err("the ranks differ").to_string();
                let said = ["a barrier", "an allgather of 3 elements of type u8", file!()];
                assert!(said.iter().all(|said| text.contains(said)), "rank {rank} of {ranks}: {text}");
            }
        }
    }
}

/// No call comes after the one that differs.
pub fn finish_tells_of_different_operators() {
    for ranks in [2, 3, 5] {
        told_to_all(ranks, &["the results of an allreduce before", file!()], |world| {
            add_or_take_the_larger(&world)?;
            world.finish()
        });
    }
}

/// Over a network a rank that takes itself for the root neither sends nor waits. Where all are mapped the call itself tells.
pub fn finish_tells_of_different_roots() {
    let said = if is_mapped() { "from root 1" } else { "root, length or type of a broadcast before" };
    for ranks in [2, 3, 5] {
        told_to_all(ranks, &[said, file!()], |world| {
            world.broadcast(world.rank(), &mut [10 + world.rank() as u64])?;
            world.finish()
        });
    }
}

pub fn a_sum_beside_a_closure() {
    // Told by the call itself, small or large.
    for len in [1, 3000] {
        told(3, &["the collective call", "type u64 by Sum", "type u64 by a closure"], |world| {
            let mut values = vec![1u64; len];
            match world.rank() {
                0 => world.allreduce_sum(&mut values),
                _ => world.allreduce(&mut values, u64::max),
            }
        });
    }
}

/// As ranks get them that round differently, on unlike processors, or whose closure depends on the rank. Where barriers are by a
/// counter one rank combines for all.
pub fn different_results_of_one_call_are_the_programs_own() {
    watchdog();
    for barrier in [Barrier::Dissemination, Barrier::Central, Barrier::Direct] {
        let mut settings = settings();
        settings.barrier = barrier;
        let sums = Threads::new(3).settings(settings).run(|world| {
            let mut value = [world.rank() as u64 + 1];
            world.allreduce(&mut value, |a, b| if world.rank() == 0 { a + b } else { a.max(b) })?;
            world.allgather(&value)
        });
        for sums in sums.expect("the ranks start") {
            let sums = sums.expect("one call");
            let one_combines = is_mapped() && barrier == Barrier::Central;
            assert!(
                if one_combines { sums == [6; 3] || sums == [3; 3] } else { sums == [6, 3, 3] },
                "{barrier:?}: {sums:?}"
            );
        }
    }
}

pub fn who_was_told_can_go_on() {
    watchdog();
    let outcomes = threads(3, |world| {
        let len = if world.rank() == 1 { 4 } else { 3 };
        let first = world.broadcast(0, &mut vec![0u8; len]);
        let second = world.allgather(&[1u8]);
        assert!(first.is_err() || second.is_err(), "rank {} was told nothing", world.rank());
        world.allgather(&[world.rank()])
    });
    for all in outcomes.expect("the ranks start") {
        assert_eq!(all.expect("a call that all make alike"), [0, 1, 2]);
    }
}

pub fn a_rank_inside_the_tree_is_elsewhere() {
    told(4, &["differs between ranks"], |world| {
        if world.rank() != 2 {
            world.broadcast(0, &mut [1u64])?;
        }
        world.allgather(&[1]).map(drop)
    });
}

pub fn a_root_may_be_late_and_leave() {
    watchdog();
    for late in 0..4 {
        let outcomes = threads(4, |world| {
            if world.rank() == late {
                world.sleep(std::time::Duration::from_millis(70));
            }
            let mut value = [world.rank() as u64];
            world.broadcast(0, &mut value)?;
            Ok::<_, Error>(value)
        });
        for value in outcomes.expect("the ranks start") {
            assert_eq!(value.expect("a broadcast that all make alike"), [0], "rank {late} is late");
        }
    }
}

pub fn both_sides_are_told_with_their_places() {
    let (one, other) = (std::sync::OnceLock::new(), std::sync::OnceLock::new());
    watchdog();
    let errors = threads(2, |world| {
        if world.rank() == 0 {
            let _ = one.set(next_line());
            world.allgather(&[1u8]).map(drop)
        } else {
            let _ = other.set(next_line());
            world.allreduce_sum(&mut [1u8])
        }
    });
    let places = [one.get().expect("set"), other.get().expect("set")];
    for error in errors.expect("the ranks start") {
        let said = error.expect_err("the ranks differ").to_string();
        let own = places.iter().filter(|place| said.contains(**place)).count();
        // Without mapped memory, whoever finds out knows its own place only, and leaves.
        assert!(said.contains("the collective call differs") && own == 2 || !is_mapped() && own == 1, "{said}");
    }
}

pub fn a_wait_that_fails_is_told_with_its_place() {
    watchdog();
    let place = std::sync::OnceLock::new();
    let errors = threads(2, |world| {
        let bell = world.bell()?;
        if world.rank() == 0 {
            let _ = place.set(next_line());
            return bell.wait(1).map(drop);
        }
        Ok(())
    });
    let error = errors.expect("the ranks start").swap_remove(0).expect_err("nobody rings");
    assert!(error.to_string().contains(place.get().expect("set")), "{error}");
    let Error::PeerLost { doing, .. } = error else { panic!("{error}") };
    assert_eq!(doing.place().expect("a public call").file(), file!());
}
