//! Unit tests of the roster.

use super::*;
use crate::settings::Settings;

#[test]
fn who_leaves_and_dies_of_it_was_not_the_first_to_die() {
    let job = JobMemory::create(4, &Settings::default()).expect("a job");
    job.begin_to_leave(2);
    assert!(job.is_leaving(2) && job.first_lost().is_none());
    job.mark_lost(1, Loss::Signaled(9));
    // It waited for the one that died, and panics.
    job.mark_lost(2, Loss::Panicked);
    assert_eq!(job.first_lost(), Some((1, Loss::Signaled(9))));
    assert_eq!(job.first_to_leave(|_| true), None);
    job.begin_to_leave(3);
    job.leave(0);
    job.leave(3);
    assert!(!job.is_leaving(3));
    assert_eq!(job.first_to_leave(|_| true), Some(3));
    assert_eq!(job.first_to_leave(|rank| rank != 3), Some(0));
}

#[test]
fn ranks_of_a_host_are_counted_by_themselves() {
    let job = JobMemory::create(5, &Settings::default()).expect("a job");
    assert_eq!([0, 4].map(|rank| job.place_here(rank)), [0, 4]);
    job.set_elsewhere([0, 1, 3].into_iter());
    assert_eq!([2, 4].map(|rank| job.place_here(rank)), [0, 1]);
    assert_eq!(job.ranks_here(), 2);
}

#[test]
fn an_end_wakes_those_that_sleep_on_this_host() {
    let job = JobMemory::create(7, &Settings::default()).expect("a job");
    assert!(job.here().eq(0..7));
    job.set_elsewhere([0, 1, 4, 6].into_iter());
    assert!(job.here().eq([2, 3, 5]));
    let [before, behind] = job.header().outside.each_ref().map(|ranks| ranks.load(Ordering::Relaxed));
    assert_eq!([before, behind], [2, 1]);
    for asleep in [2, 3, 5] {
        assert!(job.sleep_word(asleep).announce(Fences::Full, || false));
    }
    job.mark_lost(6, Loss::Unknown);
    assert!([2, 3, 5].iter().all(|rank| !job.sleep_word(*rank).is_announced()));
}

#[test]
fn a_wait_looks_for_leavers_once_for_each() {
    let job = JobMemory::create(4, &Settings::default()).expect("a job");
    let mut seen = 0;
    let mut news = || [job.has_news(&mut seen), job.has_news(&mut seen)];
    assert!(!job.any_leaver());
    job.begin_to_leave(2);
    assert!(job.any_leaver());
    assert_eq!(news(), [false, false], "nobody has left");
    job.leave(0);
    assert_eq!(news(), [true, false]);
    job.begin_to_leave(3);
    assert_eq!(news(), [true, false]);
    job.leave(3);
    assert_eq!(news(), [true, false]);
}

#[test]
fn the_first_that_tells_of_an_end_is_believed() {
    let job = JobMemory::create(3, &Settings::default()).expect("a job");
    let before = |rank| job.record(rank).state.load(Ordering::Relaxed);
    // Another finds rank 0 alive, and comes too late to tell of its end.
    let found = before(0);
    job.mark_lost(0, Loss::Signaled(9));
    job.mark_lost(1, Loss::Exited(3));
    job.end_from(found, 0, RankState::Vanished, 0);
    assert_eq!(job.first_lost(), Some((0, Loss::Signaled(9))));
    assert_eq!((job.loss(1), job.header().lost.load(Ordering::Relaxed)), (Some(Loss::Exited(3)), 2));
    // It began to run since its end was seen.
    let found = before(2);
    job.arrive(2, Arrival { base: 0, build: 0, shape: 0 }).expect("arrives");
    job.end_from(found, 2, RankState::Panicked, 0);
    assert_eq!(job.loss(2), Some(Loss::Panicked));
}

#[test]
fn who_comes_too_late_is_told_what_became_of_it() {
    let job = JobMemory::create(2, &Settings::default()).expect("a job");
    let arrive = |rank| job.arrive(rank, Arrival { base: 0, build: 0, shape: 0 });
    job.mark_lost(1, Loss::Overdue);
    let late = arrive(1).expect_err("it was given up").to_string();
    assert!(late.contains("rank 1 was given up before it started: the job has passed its deadline"), "{late}");
    arrive(0).expect("arrives");
    let twice = arrive(0).expect_err("it is taken").to_string();
    assert!(twice.contains("rank 0 has joined this job before"), "{twice}");
    job.leave(0);
    let again = arrive(0).expect_err("it is taken").to_string();
    assert!(again.contains("rank 0 has joined this job before"), "{again}");
}

#[test]
fn the_end_of_a_rank_that_panics_is_waited_for() {
    let job = JobMemory::create(3, &Settings::default()).expect("a job");
    let looks = std::cell::Cell::new(0);
    let await_panic = |own| {
        looks.set(0);
        job.await_panic(own, || {
            looks.set(looks.get() + 1);
            job.first_lost()
        })
    };
    assert_eq!((await_panic(0), looks.get()), (None, 1));
    job.begin_to_panic(1, false);
    // It does not wait for itself.
    assert_eq!((await_panic(1), looks.get()), (None, 1));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            job.mark_lost(1, Loss::Panicked);
        });
        assert_eq!(await_panic(0), Some((1, Loss::Panicked)));
    });
    // One that has caught it is waited for once.
    let job = JobMemory::create(3, &Settings::default()).expect("a job");
    job.begin_to_panic(1, false);
    job.begin_to_panic(0, true);
    job.await_first_panic(0, || false);
    job.mark_lost(0, Loss::Panicked);
    assert!(!job.panicked_later(0), "no rank has died");
    let looks = std::cell::Cell::new(0);
    assert_eq!(
        job.await_panic(0, || {
            looks.set(looks.get() + 1);
            None
        }),
        None
    );
    assert_eq!(looks.get(), 1);
}

#[test]
fn a_rank_that_panics_because_of_another_ends_after_it() {
    let job = JobMemory::create(4, &Settings::default()).expect("a job");
    job.begin_to_panic(1, false);
    job.begin_to_panic(2, true);
    let await_first_panic = |own| job.await_first_panic(own, || job.any_lost());
    // The one that panicked first waits for nobody.
    await_first_panic(1);
    assert!((0..4).all(|rank| job.panics(rank) & AWAITED == 0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            job.mark_lost(1, Loss::Panicked);
        });
        await_first_panic(2);
        assert_eq!(job.first_lost(), Some((1, Loss::Panicked)));
    });
    job.mark_lost(2, Loss::Panicked);
    assert_eq!([1, 2].map(|rank| job.panicked_later(rank)), [false, true]);
    // Of two that panic because of a third, none waits for the other.
    let job = JobMemory::create(4, &Settings::default()).expect("a job");
    job.leave(0);
    job.miss(0);
    [1, 2].iter().for_each(|rank| job.begin_to_panic(*rank, true));
    job.await_first_panic(2, || false);
    assert!((0..4).all(|rank| job.panics(rank) & AWAITED == 0));
    job.mark_lost(2, Loss::Panicked);
    assert!(job.panicked_later(2), "rank 0 is missed");
    // Of two that panic of their own, none waits for the other.
    let job = JobMemory::create(4, &Settings::default()).expect("a job");
    [1, 2].iter().for_each(|rank| job.begin_to_panic(*rank, false));
    [1, 2].iter().for_each(|own| job.await_first_panic(*own, || false));
    assert!((0..4).all(|rank| job.panics(rank) & AWAITED == 0));
}
