//! Tests of the interface of one rank.

use std::rc::Rc;

use super::*;
use crate::membership::Arrival;
use crate::memory::node::Slots;
use crate::settings::Settings;
use crate::sleep::Fences;

/// Interfaces of three ranks, of which the first and the last share a node.
fn interfaces(wakes: bool) -> [Interface; 2] {
    let settings = Settings { message_memory: 1 << 20, ..Settings::default() };
    let job = Arc::new(JobMemory::create(3, &settings).expect("a job"));
    let slots = Slots::of(&job, false);
    let node = Arc::new(NodeMemory::map(job.fd(), slots).expect("maps"));
    let layout = SlotLayout::new(3, 3, 1 << job.stride_log2(), None);
    for rank in 0..3 {
        let len = layout.control_len.next_multiple_of(node.granule(0));
        node.commit(rank, 0, len, 3, "", "").expect("commits");
        job.arrive(rank, Arrival { base: node.origin() as usize, build: 0, shape: 0 }).expect("arrives");
    }
    job.set_elsewhere([1].into_iter());
    [0, 2].map(|rank| {
        let (job, node) = (Arc::clone(&job), Arc::clone(&node));
        let place = NodeRank { rank, job, node, layout, message_memory: 1 << 20, cross_memory_attach: false };
        Interface::new(place, [0, 2], wakes)
    })
}

#[test]
fn lanes_are_those_of_the_senders_wherever_they_come_in_the_order_of_ranks() {
    let [zero, two] = interfaces(true);
    let seen: Rc<RefCell<Vec<(usize, usize)>>> = Rc::default();
    let sees = Rc::clone(&seen);
    let sink = |from, _, message: &Message<'_>| sees.borrow_mut().push((from, message.data().len()));
    // SAFETY: nothing else uses them meanwhile.
    assert_eq!(unsafe { &*zero.lanes.get() }.len(), 2);
    assert_eq!(two.send_short(0, 3, 7, b"x"), Sent::Done);
    assert_eq!(two.send_block(0, 3, 1000, |_| ()).expect("fits"), Sent::Done);
    assert_eq!(zero.send_short(0, 3, 7, b"own"), Sent::Done);
    assert_eq!((zero.first_waiting(), zero.receive(0, sink)), (Some(0), 3));
    assert_eq!(*seen.borrow(), [(0, 11), (2, 9), (2, 1000)]);
    assert!(zero.take_error().is_none());
}

#[test]
fn message_memory_is_divided_among_the_ranks_of_the_host() {
    let [zero, _two] = interfaces(true);
    assert_eq!(zero.arena.borrow().sharers, 2);
}

#[test]
fn a_forked_child_does_not_give_back_what_its_parent_keeps() {
    let [zero, two] = interfaces(true);
    let kept: Rc<RefCell<Vec<Retained>>> = Rc::default();
    let keeps = Rc::clone(&kept);
    let sink = move |_, _, message: &Message<'_>| keeps.borrow_mut().push(message.retain().expect("in a block"));
    let send = |byte: u8| {
        // SAFETY: room for so many bytes.
        let sent = two.send_block(0, 3, 1000, |to| unsafe { to.write_bytes(byte, 1000) }).expect("fits");
        assert_eq!(sent, Sent::Done);
        let waiting = zero.first_waiting().expect("it has come");
        assert_eq!(zero.receive(waiting, &sink), 1);
    };
    send(1);
    // SAFETY: the child drops a value, which frees no memory of the heap, and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no child: {}", std::io::Error::last_os_error());
    if child == 0 {
        // SAFETY: the only use of that value in this process; then it ends.
        unsafe {
            drop(std::ptr::read(&raw const kept.borrow()[0]));
            libc::_exit(0);
        }
    }
    let mut status = 0;
    // SAFETY: our own child, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child ended well");
    send(2);
    assert!(kept.borrow()[0].iter().all(|byte| *byte == 1), "the block was given out again");
    // A block that the parent drops is free again.
    let place = kept.borrow()[0].as_ptr();
    drop(kept.borrow_mut().remove(0));
    send(3);
    assert_eq!(kept.borrow()[1].as_ptr(), place);
}

#[test]
fn a_forked_child_does_not_answer_the_doorbell() {
    let [zero, two] = interfaces(true);
    assert_eq!(two.send_short(0, 3, 7, b"x"), Sent::Done);
    // SAFETY: the child polls, which allocates nothing, and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no child: {}", std::io::Error::last_os_error());
    if child == 0 {
        let found = (0..100).any(|_| zero.first_waiting().is_some()) || zero.any_waiting();
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(found)) };
    }
    let mut status = 0;
    // SAFETY: our own child, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child found its parent's message");
    assert_eq!(zero.first_waiting(), Some(0), "the child took the parent's ring");
}

#[test]
fn a_sleeper_is_told_of_once() {
    let [zero, two] = interfaces(false);
    for rank in [2, 0] {
        assert!(zero.job.sleep_word(rank).announce(Fences::Full, || false));
    }
    for rank in [2, 2, 0, 2] {
        zero.wake_if_asleep(rank);
    }
    assert_eq!([(); 3].map(|()| zero.take_asleep()), [Some(0), Some(2), None]);
    assert_eq!(two.take_asleep(), None);
}
