//! Tests with several interfaces of one rank: the state that each has for itself, and the events that concern all.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::across::{Endpoint, Side, offer};
use crate::transport::conformance::{join, wait};
use crate::transport::lock::Mutex;
use crate::transport::verbs::Device;
use crate::transport::verbs::address::Address;
use crate::transport::{
    Completion, Domain as _, Endpoint as _, Error, Flush, Interface as _, Iov, Message, Posted, RemoteKey,
};

fn device(rank: usize) -> Device {
    Device::new(rank, 2, &offer()).expect("opens")
}

/// A key for `from` to the memory of `to`.
fn key(from: &Side, to: &Side) -> RemoteKey {
    // SAFETY: each test keeps its memory while keys to it are used.
    unsafe { from.domain.unpack_key(&to.domain.pack_key(to.memory.region())) }.expect("a key")
}

fn put(end: &Endpoint, value: u64, key: &RemoteKey, turn: impl Fn()) {
    let put = || match end.put_short(&value.to_ne_bytes(), key.address(), key) {
        Err(Error::NoResource) => false,
        other => other.map(|()| true).expect("puts"),
    };
    wait("room for a put", put, &turn);
    wait("a flush", || end.flush(Flush::REMOTE, None) == Ok(Posted::Done), &turn);
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn each_has_queue_pairs_and_queues_of_its_own() {
    let (here, there) = (device(0), device(1));
    let (near, far) = ([(); 2].map(|()| Side::on(&here)), [(); 3].map(|()| Side::on(&there)));
    let turn = || near.iter().chain(&far).for_each(|side| _ = side.worker.progress());
    let mut pairs = BTreeSet::new();
    for (number, side) in near.iter().enumerate() {
        assert_eq!(side.interface.wire().queue_pairs(), []);
        let ends = far.each_ref().map(|to| (side.interface.connect(&to.interface.address()).expect("connects"), to));
        for (end, to) in &ends {
            put(end, 7 + number as u64, &key(side, to), turn);
            assert_eq!(to.bytes(0, 8), (7 + number as u64).to_ne_bytes());
        }
        let own = side.interface.wire().queue_pairs();
        println!("interface {number}: queue pairs {own:?}");
        assert_eq!(own.len(), 3, "one to each interface of the other rank");
        pairs.extend(own);
    }
    assert_eq!(pairs.len(), 6, "and none is used by both");
    let (completions, shared): (BTreeSet<_>, BTreeSet<_>) =
        near.iter().chain(&far).map(|side| side.interface.wire().queues()).unzip();
    assert_eq!((completions.len(), shared.len()), (5, 5));
}

/// Four threads, two on the device of each of two ranks; each sends to all, itself and its rank's other included.
#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn threads_drive_one_each() {
    const THREADS: usize = 4;
    const COUNT: u64 = 100;
    let devices = [device(0), device(1)];
    let addresses = Mutex::new(vec![Vec::new(); THREADS]);
    let came_to = [(); 3].map(|()| AtomicUsize::new(0));
    let together = |place: usize, turn: &dyn Fn()| {
        came_to[place].fetch_add(1, Ordering::SeqCst);
        wait("the other threads", || came_to[place].load(Ordering::SeqCst) == THREADS, turn);
    };
    let run = |me: usize| {
        let side = Side::on(&devices[me / 2]);
        let came = Rc::new(RefCell::new(Vec::new()));
        let told = Rc::clone(&came);
        let handler = move |message: &Message<'_>| told.borrow_mut().extend(message.short().map(|(header, _)| header));
        side.interface.set_handler(1, Some(Box::new(handler))).expect("an id");
        addresses.lock()[me] = side.interface.address();
        let turn = || _ = side.worker.progress();
        together(0, &turn);
        let addresses = addresses.lock().clone();
        let ends: Vec<_> = addresses.iter().map(|to| side.interface.connect(to).expect("connects")).collect();
        for number in 0..COUNT {
            for (to, end) in ends.iter().enumerate() {
                let word = (me * THREADS + to) as u64 * COUNT + number;
                let sent = || match end.am_short(1, word, &[]) {
                    Err(Error::NoResource) => false,
                    other => other.map(|()| true).expect("sends"),
                };
                wait("room for a message", sent, turn);
            }
        }
        wait("all messages", || came.borrow().len() >= THREADS * COUNT as usize, turn);
        for end in &ends {
            wait("a flush", || end.flush(Flush::REMOTE, None) == Ok(Posted::Done), turn);
        }
        together(1, &turn);
        for from in 0..THREADS {
            let first = (from * THREADS + me) as u64 * COUNT;
            let sent = first..first + COUNT;
            let of_this: Vec<_> = came.borrow().iter().copied().filter(|word| sent.contains(word)).collect();
            assert_eq!(of_this, Vec::from_iter(sent), "from {from} to {me}, in order");
        }
        together(2, &turn);
    };
    std::thread::scope(|scope| {
        let run = &run;
        join((0..THREADS).map(|me| scope.spawn(move || run(me))).collect());
    });
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn a_flush_waits_for_its_own_interface_only() {
    let (here, there) = (device(0), device(1));
    let far = Side::on(&there);
    let [stuck, free] = [(); 2].map(|()| Side::on(&here));
    let turn = || [&stuck, &free, &far].into_iter().for_each(|side| _ = side.worker.progress());
    let [of_stuck, of_free] =
        [&stuck, &free].map(|side| side.interface.connect(&far.interface.address()).expect("connects"));
    let [key_of_stuck, key_of_free] = [&stuck, &free].map(|side| key(side, &far));
    put(&of_stuck, 1, &key_of_stuck, turn);
    put(&of_free, 2, &key_of_free, turn);
    // The other end of one connection takes nothing any more, and this end asks again and again for a while.
    let peer = Address::decode(&stuck.interface.address()).expect("an address").peer();
    there.board().fail(peer);
    of_stuck.put_short(&[3; 8], key_of_stuck.address() + 8, &key_of_stuck).expect("is posted");
    put(&of_free, 4, &key_of_free, turn);
    assert_eq!(of_stuck.flush(Flush::REMOTE, None), Ok(Posted::InProgress), "not given up so soon");
    assert_eq!(far.bytes(0, 16), [4u64.to_ne_bytes(), [0; 8]].concat());
    wait("the loss", || of_stuck.check() == Err(Error::ConnectionReset), turn);
    put(&of_free, 5, &key_of_free, turn);
    assert_eq!((far.bytes(0, 8), of_free.check()), (5u64.to_ne_bytes().into(), Ok(())));
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn a_drop_waits_for_no_peer_that_is_gone() {
    let (here, there) = (device(0), device(1));
    let (near, far) = (Side::on(&here), Side::on(&there));
    let turn = || [&near, &far].into_iter().for_each(|side| _ = side.worker.progress());
    let [goes, stays] = [(); 2].map(|()| near.interface.connect(&far.interface.address()).expect("connects"));
    let key = key(&near, &far);
    put(&stays, 1, &key, turn);
    there.board().fail(Address::decode(&near.interface.address()).expect("an address").peer());
    let region = near.memory.region();
    let iov = Iov { pointer: near.memory.address(), length: 4096, stride: 0, count: 1, region: Some(region) };
    // SAFETY: the memory lives to the end.
    assert_eq!(unsafe { goes.get_zcopy(&[iov], key.address(), &key, None) }, Ok(Posted::InProgress));
    let done = Completion::new(1, |_| {});
    let post = || stays.get_bcopy(8, |_| {}, key.address(), &key, Some(&done));
    assert_eq!(post(), Ok(Posted::InProgress));
    drop(goes);
    wait("the loss", || done.count() == 0, turn);
    assert_eq!((done.status(), stays.check()), (Err(Error::ConnectionReset), Err(Error::ConnectionReset)));
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn an_address_never_reaches_the_next_interface() {
    let (here, there) = (device(0), device(1));
    let asker = Side::on(&here);
    let [kept, closed] = [(); 2].map(|()| Side::on(&there));
    let turn = || [&asker, &kept].into_iter().for_each(|side| _ = side.worker.progress());
    let [to_kept, to_closed] =
        [&kept, &closed].map(|side| asker.interface.connect(&side.interface.address()).expect("connects"));
    put(&to_kept, 1, &key(&asker, &kept), turn);
    let gone = closed.interface.address();
    drop(closed);
    let next = Side::on(&there);
    let turn = || {
        turn();
        next.worker.progress();
    };
    let to_next = asker.interface.connect(&next.interface.address()).expect("connects");
    put(&to_next, 2, &key(&asker, &next), turn);
    // Though its queue pair had the number of the one that is gone, and on the same rank too.
    let [gone, instead] = [gone, next.interface.address()].map(|bytes| Address::decode(&bytes).expect("an address"));
    assert_ne!(gone.peer(), instead.peer(), "its number is not used again at once");
    let gone = Address { datagrams: instead.datagrams, ..gone };
    let beside = kept.interface.connect(&gone.encode()).expect("a good address");
    for (end, from) in [(&to_closed, &asker), (&beside, &kept)] {
        let key = key(from, &next);
        let lost = || end.put_short(&[9; 8], key.address(), &key) == Err(Error::ConnectionReset);
        wait("a connection that nobody answers for", lost, turn);
    }
    assert_eq!((next.bytes(0, 8), kept.bytes(0, 8)), (2u64.to_ne_bytes().into(), 1u64.to_ne_bytes().into()));
    // A question that the interface did not answer has made no connection.
    let back = next.interface.connect(&kept.interface.address()).expect("connects");
    for (end, from, to, value) in
        [(&to_kept, &asker, &kept, 3u64), (&to_next, &asker, &next, 4), (&back, &next, &kept, 5)]
    {
        put(end, value, &key(from, to), turn);
        assert_eq!(to.bytes(0, 8), value.to_ne_bytes(), "goes on");
    }
}

#[test]
#[ignore = "needs an RDMA device: ci/softroce"]
fn a_device_that_fails_ends_the_connections_of_all() {
    let (here, there) = (device(0), device(1));
    let far = Side::on(&there);
    let near = [(); 2].map(|()| Side::on(&here));
    let turn = || near.iter().chain([&far]).for_each(|side| _ = side.worker.progress());
    let ends = near.each_ref().map(|side| side.interface.connect(&far.interface.address()).expect("connects"));
    for (end, side) in ends.iter().zip(&near) {
        put(end, 5, &key(side, &far), turn);
    }
    // They have seen how their connections came.
    turn();
    // The device reports each event once: here to the first interface.
    here.board().hear_fault(rdma_core_sys::IBV_EVENT_DEVICE_FATAL);
    for end in &ends {
        wait("the loss", || end.check() == Err(Error::ConnectionReset), turn);
    }
}
