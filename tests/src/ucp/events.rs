//! Which events there are, and where they come to.

use std::os::fd::AsFd;
use std::time::Duration;

use bellwether_runtime::vocabulary::ucp::codes::{BUSY, UNSUPPORTED};
use bellwether_runtime::vocabulary::ucp::{Params, Status, WAKEUP_RX, Worker};
use bellwether_runtime::{Arm, Completion, Context, World};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use super::{LONG, NOW, Run, Task, is_readable};

pub fn w19(task: &Task<'_>) {
    let here = Run::new(task);
    if task.rank() == 0 && task.size() > 1 {
        here.settle();
        let done = Completion::new();
        let bytes = vec![7u8; 20_000.min(task.largest_message() / 2)];
        let length = |_: &Context<'_>, bytes: Vec<u8>| assert!(bytes.iter().all(|byte| *byte == 7));
        task.operation().handled(&done).invoke(1, bytes, length).expect("sends");
        here.go_on();
        while done.outcome().is_none() {
            here.drain();
            if done.outcome().is_some() {
                break;
            }
            here.arm();
            if done.outcome().is_none() {
                assert!(here.readable(LONG), "the send has ended, and that is not announced");
            }
        }
        done.outcome().expect("has ended").expect("was handled");
    }
    if task.rank() == 1 {
        // It computes before it takes the message.
        task.sleep(Duration::from_millis(20));
        here.wait_to_go_on();
    }
    here.end();
}

pub fn w20(task: &Task<'_>) {
    let here = Run::with(task, &Params { events: WAKEUP_RX, ..Params::default() });
    if task.rank() == 0 && task.size() > 1 {
        for count in 1..=10 {
            here.go_on();
            here.await_messages(count);
        }
    }
    here.answer(10);
    if task.posted {
        ends(&here);
    }
    here.end();
}

/// The end of a get keeps a rank from arming that asks for all events, and no other.
fn ends(here: &Run<'_>) {
    let task = here.task;
    let words = task.alloc::<u64>(1).expect("allocates");
    if task.rank() == 0 {
        for count in 1..=5 {
            words.put(1, 0, count).expect("puts");
            task.fence();
            here.settle();
            let got = words.get_async(1, 0);
            // It ends meanwhile, and its end is not taken.
            task.sleep(Duration::from_millis(10));
            let all = Worker::create(task.world, &Params::default()).expect("makes a worker");
            assert_eq!(all.arm(), Err(Status(BUSY)), "a get has ended, and one worker asks for that");
            drop(all);
            here.worker.arm().expect("no worker asks for what ends");
            assert_eq!(got.wait().expect("gets"), count);
        }
    }
    task.barrier().expect("all are there");
}

/// The data of the events that an epoll reports within `limit`.
fn events(outer: impl AsFd, limit: Duration) -> Vec<u64> {
    let mut events = Vec::with_capacity(8);
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    epoll::wait(outer, rustix::buffer::spare_capacity(&mut events), Some(&limit)).expect("waits");
    events.iter().map(|event| event.data.u64()).collect()
}

pub fn w21(task: &Task<'_>) {
    const DATA: u64 = 0xFEED_F00D;
    let outer = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll");
    let here = Run::with(task, &Params { event_fd: Some((outer.as_fd(), DATA)), ..Params::default() });
    assert_eq!(here.worker.efd().expect_err("it is the program's"), Status(UNSUPPORTED));
    assert_eq!(UNSUPPORTED, -22);
    if task.rank() == 0 && task.size() > 1 {
        here.settle();
        assert!(!task.mapped || here.is_quiet());
        // A second worker of the world has its own data there, and is woken too.
        let second = Params { event_fd: Some((outer.as_fd(), DATA + 1)), ..Params::default() };
        let second = Worker::create(task.world, &second).expect("an epoll takes another worker");
        here.go_on();
        here.await_event();
        let mut told = events(&outer, LONG);
        told.sort_unstable();
        assert_eq!(told, [DATA, DATA + 1]);
        drop(second);
        assert_eq!(events(&outer, LONG), [DATA], "the second is gone");
        here.await_messages(1);
    }
    here.answer(1);
    here.end();
    assert!(events(&outer, NOW).is_empty(), "a worker that is gone has no events");
    // A descriptor to which no other can be added is refused.
    let wrong = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
    let params = Params { event_fd: Some((wrong.as_fd(), 1)), ..Params::default() };
    Worker::create(task.world, &params).expect_err("no epoll");
    task.barrier().expect("all are there");
}

pub fn w22(task: &Task<'_>) {
    let here = Run::new(task);
    // A process has one world of its job.
    let by_itself = || {
        let other = World::start().expect("one rank alone");
        let second = Worker::create(&other, &Params::default()).expect("a worker");
        let outer = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll");
        let descriptors = [&here.worker, &second].map(|worker| worker.efd().expect("has one"));
        for (data, descriptor) in descriptors.iter().enumerate() {
            let data = epoll::EventData::new_u64(data as u64);
            epoll::add(&outer, descriptor, data, epoll::EventFlags::IN).expect("adds");
        }
        second.arm().expect("nothing has come");
        let (bell, context) = (other.bell().expect("a bell"), other.context().expect("a context"));
        while second.progress().expect("makes progress") > 0 || second.arm().is_err() {}
        let rung = bell.for_threads();
        std::thread::scope(|scope| {
            scope.spawn(move || context.ring(&rung, 0).expect("rings"));
        });
        assert!(is_readable(descriptors[1], LONG));
        assert!(events(&outer, NOW).contains(&1));
        // The descriptor of the first worker becomes readable by its timer alone.
        assert!(!task.mapped || here.is_quiet());
        assert_eq!(bell.count().expect("counts"), 1);
        second.progress().expect("makes progress");
        second.arm().expect("nothing more has come");
        here.worker.signal().expect("signals");
        assert!(events(&outer, NOW).contains(&0));
        let second = other.wake_up().expect("has one");
        assert!(!task.mapped || !second.poll(Some(NOW)).expect("polls"), "a signal to the first wakes the second");
    };
    if !task.processes && !task.virtual_time {
        here.by_itself(by_itself);
    }
    // Over a network both descriptors may hear of what wakes the rank.
    if task.mapped && !task.virtual_time {
        here.by_itself(|| beside_a_context(&here));
    }
    here.end();
}

/// The second descriptor is a context's, which a process may have beside its world.
fn beside_a_context(here: &Run<'_>) {
    let task = here.task;
    let context = task.context().expect("a context");
    let second = context.wake_up().expect("a descriptor");
    second.trust_announcements();
    let outer = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll");
    let descriptors = [here.worker.efd().expect("has one"), second.as_fd()];
    for (data, descriptor) in descriptors.into_iter().enumerate() {
        let data = epoll::EventData::new_u64(data as u64);
        epoll::add(&outer, descriptor, data, epoll::EventFlags::IN).expect("adds");
    }
    let settle = || {
        while second.progress().expect("makes progress") > 0 || second.arm().expect("arms") == Arm::Busy {}
        here.settle();
    };
    let tells = |which: u64| assert_eq!(events(&outer, LONG), [which]);
    for _ in 0..3 {
        settle();
        second.signaller().signal().expect("signals");
        tells(1);
        settle();
        here.worker.signal().expect("signals");
        tells(0);
        assert_eq!(here.worker.arm(), Err(Status(BUSY)), "told by the signal");
    }
}
