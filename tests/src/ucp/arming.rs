//! The descriptor, arming, and progress.

use std::os::fd::AsRawFd;
use std::time::Duration;

use bellwether_runtime::vocabulary::ucp::codes::{BUSY, INVALID_PARAM};
use bellwether_runtime::vocabulary::ucp::{Params, Status, Worker};

use super::{NOW, Run, Task};

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("there is /proc").count()
}

pub fn w01(task: &Task<'_>) {
    let before = open_files();
    let here = Run::new(task);
    if task.rank() == 0 {
        let descriptor = here.worker.efd().expect("has one").as_raw_fd();
        assert_eq!(here.worker.efd().expect("has one").as_raw_fd(), descriptor);
        here.settle();
        assert!(here.is_quiet());
    }
    here.end();
    for _ in 0..100 {
        let worker = Worker::create(task.world, &Params::default()).expect("makes one");
        assert!(worker.efd().expect("has one").as_raw_fd() >= 0);
    }
    task.barrier().expect("all are there");
    // Threads of other tests have files too, and a network may have opened some of its own.
    if task.processes && task.mapped {
        assert_eq!(open_files(), before);
    }
}

pub fn w02(task: &Task<'_>) {
    let without = Params { features: 0, ..Params::default() };
    let worker = Worker::create(task.world, &without).expect("makes one");
    assert_eq!(worker.efd().expect_err("none"), Status(INVALID_PARAM));
    assert_eq!(worker.arm(), Err(Status(INVALID_PARAM)));
    assert_eq!(worker.wait(), Err(Status(INVALID_PARAM)));
    assert_eq!(worker.signal(), Err(Status(INVALID_PARAM)));
    assert_eq!(worker.signaller().expect_err("none"), Status(INVALID_PARAM));
    worker.progress().expect("makes progress");
    assert_eq!(INVALID_PARAM, -5);
    task.barrier().expect("all are there");
}

pub fn w04(task: &Task<'_>) {
    let here = Run::new(task);
    if task.rank() == 0 && task.size() > 1 {
        for count in 1..=20 {
            here.go_on_quietly();
            here.drain_and_arm();
            here.await_messages(count);
        }
        // And strictly: nothing but the message comes.
        here.settle();
        if task.mapped {
            assert_eq!(here.came(), 20);
            here.go_on();
            here.await_event();
            assert_eq!(here.came(), 20);
        } else {
            here.go_on();
        }
        here.await_messages(21);
    }
    here.answer(21);
    here.end();
}

pub fn w05(task: &Task<'_>) {
    let here = Run::new(task);
    if task.rank() == 0 && task.size() > 1 {
        here.settle();
        here.go_on();
        if task.mapped {
            here.await_event();
            assert_eq!(here.worker.arm(), Err(Status(BUSY)));
            assert_eq!(here.worker.arm(), Err(Status(BUSY)), "it was not armed, so it still is");
            assert_eq!(here.came(), 0);
            here.drain();
            assert_eq!(here.came(), 1);
            here.worker.arm().expect("nothing waits");
        } else if task.is_quiet_alone() {
            // Sends of this rank may end first, which wakes it too.
            while here.came() == 0 {
                here.await_event();
                if let Err(status) = here.worker.arm() {
                    assert_eq!(status, Status(BUSY));
                    assert_eq!(here.worker.arm(), Err(Status(BUSY)), "it was not armed, so it still is");
                    assert_eq!(here.came(), 0);
                    here.drain_and_arm();
                }
            }
        } else {
            here.await_messages(1);
        }
    }
    here.answer(1);
    here.end();
}

pub fn w07(task: &Task<'_>) {
    let here = Run::new(task);
    if task.rank() == 0 && task.size() > 1 {
        here.settle();
        here.go_on();
        here.await_event();
        for _ in 0..10 {
            assert!(here.readable(NOW), "until it is armed it stays readable");
        }
        here.await_messages(1);
        assert!(!task.mapped || here.readable(NOW), "progress alone does not take it back");
        here.settle();
        assert!(here.is_quiet());
    }
    here.answer(1);
    here.end();
}

pub fn w08(task: &Task<'_>) {
    const MESSAGES: u64 = 30;
    let here = Run::new(task);
    if task.rank() == 0 && task.size() > 1 {
        for _ in 0..MESSAGES {
            here.go_on();
        }
        // All are there, or come in time: what is there when it is armed makes it busy.
        task.sleep(Duration::from_millis(20));
        here.await_messages(MESSAGES);
        here.settle();
        assert_eq!(here.came(), MESSAGES);
    }
    here.answer(MESSAGES as usize);
    here.end();
}

pub fn w09(task: &Task<'_>) {
    let here = Run::new(task);
    if task.rank() == 0 && task.size() > 1 {
        here.settle();
        assert_eq!(here.worker.progress().expect("makes progress"), 0);
        here.go_on();
        here.await_event();
        if task.mapped {
            assert_eq!(here.came(), 0);
            assert!(here.worker.progress().expect("makes progress") > 0);
            assert_eq!(here.came(), 1);
            assert_eq!(here.worker.progress().expect("makes progress"), 0);
        }
        here.await_messages(1);
    }
    here.answer(1);
    here.end();
}
