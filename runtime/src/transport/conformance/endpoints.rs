//! U44 to U47, U55, U56, U59: endpoints and addresses.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use super::rig::*;
use crate::transport::*;

/// U44: each connect mode that is offered works; the others are refused.
pub fn u44_connect_modes<R: Rig>() {
    use Capabilities as Can;
    let duo = Duo::<R>::unconnected(R::options());
    assert!(duo.a.can(Can::CONNECT_TO_IFACE) || duo.a.can(Can::CONNECT_TO_EP), "at least one");
    let got = Rc::new(Cell::new(0));
    let seen = Rc::clone(&got);
    duo.b.interface.set_handler(0, Some(Box::new(move |_| seen.set(seen.get() + 1)))).expect("id");
    if duo.a.can(Can::CONNECT_TO_IFACE) {
        // One side is enough.
        let ep = duo.a.interface.connect(&duo.b.interface.address()).expect("connects");
        duo.insist(|| ep.am_short(0, 0, &[]));
        duo.until("the message", || got.get() == 1);
    }
    if duo.a.can(Can::CONNECT_TO_EP) {
        got.set(0);
        let (here, there) =
            (duo.a.interface.endpoint().expect("offered"), duo.b.interface.endpoint().expect("offered"));
        assert_eq!(here.am_short(0, 0, &[]), Err(Error::NotConnected));
        let (at, of) = (duo.b.interface.address(), there.address().expect("offered"));
        assert_eq!(of.len(), duo.b.interface.attributes().endpoint_address_len);
        assert_eq!(here.connect_to_endpoint(&at, &of[1..]).map_err(Error::code), Err(-6), "no address");
        let heard = Rc::new(RefCell::new(Vec::new()));
        let list = Rc::clone(&heard);
        duo.a.interface.set_error_handler(Some(Box::new(move |ep, error| list.borrow_mut().push((ep, error)))));
        here.connect_to_endpoint(&at, &of).expect("connects");
        duo.settle();
        assert_eq!(here.am_short(0, 0, &[]), Err(Error::NoResource), "the other end has not connected yet");
        assert_eq!(here.check(), Ok(()));
        there.connect_to_endpoint(&duo.a.interface.address(), &here.address().expect("offered")).expect("connects");
        assert!(here.connect_to_endpoint(&at, &of).is_err(), "once");
        duo.insist(|| here.am_short(0, 0, &[]));
        duo.until("the message", || got.get() == 1);
        // A second pair, which outlives the first.
        let pair = (duo.a.interface.endpoint().expect("offered"), duo.b.interface.endpoint().expect("offered"));
        pair.1.connect_to_endpoint(&duo.a.interface.address(), &pair.0.address().expect("offered")).expect("connects");
        pair.0.connect_to_endpoint(&at, &pair.1.address().expect("offered")).expect("connects");
        duo.insist(|| pair.0.am_short(0, 0, &[]));
        assert_eq!(*heard.borrow(), []);
        drop(there);
        duo.until("the end of the other end", || heard.borrow().len() == 1);
        assert_eq!(here.am_short(0, 0, &[]), Err(Error::ConnectionReset));
        // No endpoint has this address now, though another one may have the same index.
        let another = duo.b.interface.endpoint().expect("offered");
        assert_ne!(another.address().expect("offered"), of);
        let late = duo.a.interface.endpoint().expect("offered");
        late.connect_to_endpoint(&at, &of).expect("connecting says nothing");
        duo.until("the refusal", || heard.borrow().len() == 2);
        let ended = [&here, &late].map(|ep| (ep.index(), Error::ConnectionReset));
        assert_eq!(*heard.borrow(), ended, "each once");
        duo.insist(|| pair.0.am_short(0, 0, &[]));
        duo.until("the message of the second pair", || got.get() == 3);
        duo.a.interface.set_error_handler(None);
    } else {
        assert!(matches!(duo.a.interface.endpoint().map(drop), Err(Error::Unsupported(_))));
        let ep = duo.a.connect(&duo.b.interface.address());
        assert!(matches!(ep.address(), Err(Error::Unsupported(_))));
        assert!(matches!(ep.connect_to_endpoint(&[], &[]), Err(Error::Unsupported(_))));
    }
    let duo = Duo::<R>::unconnected(InterfaceOptions { without: Can::CONNECT_TO_IFACE, ..R::options() });
    assert!(matches!(duo.a.interface.connect(&[]).map(drop), Err(Error::Unsupported(_))));
}

/// U45: several endpoints to one peer have their own index, flush and pending queue.
pub fn u45_many_endpoints<R: Rig>() {
    let duo = Duo::<R>::new();
    let second = Rc::new(duo.a.connect(&duo.b.interface.address()));
    assert_ne!(duo.a.ep().index(), second.index());
    let (_memory, key) = duo.remote(8);
    duo.insist(|| duo.a.ep().put_short(&[1; 8], key.address, &key));
    assert_eq!(second.flush(Flush::REMOTE, None), Ok(Posted::Done), "nothing was posted on this one");
    // A pending request on one does not hold back the other.
    while second.am_short(0, 0, &[]).is_ok() {}
    let held = second.pending_add(Box::new(|| Resume::Keep));
    assert!(held.is_ok());
    assert_eq!(second.am_short(0, 0, &[]), Err(Error::NoResource));
    duo.insist(|| duo.a.ep().am_short(0, 0, &[]));
    assert_eq!(second.flush(Flush::LOCAL, None), Err(Error::NoResource), "its own queue is in front");
    duo.flush();
    second.pending_purge(drop);
    duo.until("a flush", || second.flush(Flush::REMOTE, None) == Ok(Posted::Done));
}

/// U46: an endpoint to a dead peer can be made; the error handler is called for it, once.
pub fn u46_endpoint_to_the_dead<R: Rig>() {
    let duo = Duo::<R>::unconnected(R::options());
    let heard = Rc::new(RefCell::new(Vec::new()));
    let list = Rc::clone(&heard);
    duo.a.interface.set_error_handler(Some(Box::new(move |ep, error| list.borrow_mut().push((ep, error)))));
    let before = duo.a.interface.connect(&duo.b.interface.address()).expect("connects");
    duo.rig.kill(1);
    let after = duo.a.interface.connect(&duo.b.interface.address()).expect("creating is no error");
    duo.until("both endpoints' errors", || {
        if R::BY_ITSELF {
            // Asking for the connection that there is none yet.
            let _ = before.am_short(0, 0, &[]);
        }
        heard.borrow().len() == 2
    });
    let later = duo.a.interface.connect(&duo.b.interface.address()).expect("nor is it when the death is known");
    duo.until("the third one's error", || heard.borrow().len() == 3);
    for _ in 0..200 {
        duo.turn();
    }
    let mut indices: Vec<u32> = heard.borrow().iter().map(|(ep, _)| *ep).collect();
    indices.sort_unstable();
    assert_eq!(indices, [before.index(), after.index(), later.index()], "each once");
    assert!(heard.borrow().iter().all(|(_, error)| *error == Error::ConnectionReset));
    assert_eq!(after.am_short(0, 0, &[]), Err(Error::ConnectionReset));
    assert!(before.check().is_err());
}

/// U47: addresses that are none are unreachable, and no more than that.
pub fn u47_reachability<R: Rig>() {
    let duo = Duo::<R>::new();
    let good = duo.b.interface.address();
    assert!(duo.a.interface.is_reachable(&good));
    let mut far = good.clone();
    far.iter_mut().for_each(|byte| *byte ^= 0xff);
    let long = [&good[..], &[0]].concat();
    for bogus in [&[][..], &[0; 8], &[0xff; 8], &good[..good.len() - 1], &long, &far] {
        assert!(!duo.a.interface.is_reachable(bogus));
        assert_eq!(duo.a.interface.connect(bogus).map(drop), Err(Error::Unreachable));
    }
}

/// U55: dropping an endpoint forgets its operations in flight; no completion is called after the drop.
pub fn u55_drop_forgets<R: Rig>() {
    let mut duo = Duo::<R>::new();
    let (_memory, key) = duo.remote(20_000);
    let local = duo.a.memory(20_000);
    let calls = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&calls);
    let completion = Completion::new(2, move |_| panic!("called after the endpoint is gone"));
    let flushed = Completion::new(1, move |_| {
        seen.fetch_add(1, SeqCst);
    });
    let iov = [Iov { pointer: local.address(), length: 20_000, stride: 0, count: 1, region: Some(local.region()) }];
    // SAFETY: the buffer lives to the end.
    let posted = unsafe { duo.a.ep().get_zcopy(&iov, key.address, &key, Some(&completion)) }.expect("posts");
    if posted == Posted::InProgress {
        completion.add(-1);
    }
    assert!(duo.a.ep().flush(Flush::REMOTE, Some(&flushed)).is_ok());
    let dropped = Rc::new(());
    let share = Rc::clone(&dropped);
    while duo.a.ep().am_short(0, 0, &[]).is_ok() {}
    let queued = duo.a.ep().pending_add(Box::new(move || {
        let _ = &share;
        Resume::Keep
    }));
    assert!(queued.is_ok());
    duo.a.ep = None;
    // SAFETY: our allocation; after the drop of an endpoint its buffers are no longer used.
    unsafe { std::ptr::write_bytes(local.address(), 0xee, 20_000) };
    duo.settle();
    assert_eq!(calls.load(SeqCst), 0, "the flush completed");
    assert_ne!(completion.count(), 0);
    assert!(bytes(&local).iter().all(|byte| *byte == 0xee), "an answer was taken after the endpoint was gone");
    assert_eq!(Rc::strong_count(&dropped), 1, "its pending requests are dropped with it");
    // The place is used again, with nothing left over.
    duo.a.ep = Some(duo.a.connect(&duo.b.interface.address()));
    duo.insist(|| duo.a.ep().put_short(&[1; 8], key.address, &key));
    duo.flush();
}

/// U55: an endpoint that is dropped or cancelled with operations in flight leaves those of others to the same peer alone.
pub fn u55_drop_leaves_others_alone<R: Rig>() {
    const LEN: usize = 20_000;
    const ROUNDS: u64 = 4;
    let duo = Duo::<R>::new();
    let (heard, came) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(Vec::new())));
    let count = Rc::clone(&heard);
    duo.a.interface.set_error_handler(Some(Box::new(move |_, _| count.set(count.get() + 1))));
    let told = Rc::clone(&came);
    let handler = move |message: &Message<'_>| told.borrow_mut().extend(message.short().map(|(header, _)| header));
    duo.b.interface.set_handler(2, Some(Box::new(handler))).expect("an id");
    let (memory, key) = duo.remote(LEN + 16);
    let [added, put] = [0, 8].map(|at| key.address + (LEN + at) as u64);
    let [kept, given_up] = [(); 2].map(|()| duo.a.memory(LEN));
    let stays = duo.a.ep();
    let get = |ep: &Ep<R>, to: &Allocation, completion: Option<&Completion>| {
        let iov = [Iov { pointer: to.address(), length: LEN, stride: 0, count: 1, region: Some(to.region()) }];
        // SAFETY: the buffers live to the end.
        duo.insist(|| unsafe { ep.get_zcopy(&iov, key.address, &key, completion) })
    };
    for round in 0..ROUNDS {
        let content = pattern(LEN, round as usize);
        // SAFETY: the allocation's own bytes, which nothing reads or writes now.
        unsafe { crate::memory::copy::copy(memory.address(), content.as_ptr(), LEN) };
        let goes = duo.a.connect(&duo.b.interface.address());
        duo.insist(|| stays.am_short(2, 2 * round, &[]));
        let _forgotten = get(&goes, &given_up, None);
        let done = Completion::new(1, |_| {});
        if get(stays, &kept, Some(&done)) == Posted::Done {
            done.add(-1);
        }
        duo.insist(|| stays.atomic_post(AtomicOp::Add, 1u64, added, &key));
        let _forgotten = get(&goes, &given_up, None);
        duo.insist(|| stays.put_short(&round.to_ne_bytes(), put, &key));
        duo.insist(|| stays.am_short(2, 2 * round + 1, &[]));
        if round % 2 == 0 {
            drop(goes);
        } else {
            assert_eq!(goes.flush(Flush::CANCEL, None), Ok(Posted::Done));
            assert_eq!(goes.am_short(2, 0, &[]), Err(Error::Canceled));
        }
        // SAFETY: our allocation; after the drop of an endpoint its buffers are no longer used.
        unsafe { std::ptr::write_bytes(given_up.address(), 0xee, LEN) };
        duo.until("what was read by the endpoint that stays", || done.count() == 0);
        assert_eq!(done.status(), Ok(()));
        assert_eq!(bytes(&kept), content);
        duo.flush();
        duo.until("its messages", || came.borrow().len() as u64 >= 2 * (round + 1));
        assert!(bytes(&given_up).iter().all(|byte| *byte == 0xee), "touched after it was given back");
    }
    duo.settle();
    let mut came = came.borrow().clone();
    came.sort_unstable();
    assert_eq!(came, Vec::from_iter(0..2 * ROUNDS), "each message once");
    assert_eq!(bytes(&memory)[LEN..], [ROUNDS, ROUNDS - 1].map(u64::to_ne_bytes).concat());
    assert_eq!((heard.get(), stays.check()), (0, Ok(())));
}

/// U56: all that ends exchange is bytes.
pub fn u56_only_address_bytes<R: Rig>() {
    let duo = Duo::<R>::unconnected(R::options());
    let memory = duo.b.memory(16);
    let blobs: (Vec<u8>, Vec<u8>) = (duo.b.interface.address(), duo.b.domain.pack_key(memory.region()).into());
    let carried = blobs.clone();
    let ep = duo.a.connect(&carried.0);
    let key = unpack(&duo.a.domain, &carried.1).expect("a key");
    duo.insist(|| {
        ep.put_short(b"over the contract", key.address, &key).or_else(|e| match e {
            Error::OutOfRange => ep.put_short(b"over the contrac", key.address, &key),
            other => Err(other),
        })
    });
    duo.until("a flush", || ep.flush(Flush::REMOTE, None) == Ok(Posted::Done));
    assert_eq!(bytes(&memory), b"over the contrac");
}

/// U59: a further interface of a rank is refused, and the first goes on; or it is reached by its own address, and messages
/// to one do not arrive at another.
pub fn u59_several_interfaces<R: Rig>() {
    let duo = Duo::<R>::new();
    let (memory, key) = duo.remote(256);
    let beside = Worker::new();
    let turn = || {
        duo.turn();
        beside.progress();
    };
    if duo.b.interface.attributes().max_interfaces == 1 {
        let further = duo.b.domain.open_interface(&beside, R::options());
        assert_eq!(further.map(drop), Err(Error::Busy));
        duo.insist(|| duo.a.ep().put_short(&[7; 8], key.address, &key));
        duo.flush();
        assert_eq!(bytes(&memory)[..8], [7; 8]);
        return;
    }
    let open = |side: &Side<R>, worker: &Worker<If<R>>| {
        let interface = side.domain.open_interface(worker, R::options()).expect("a further interface");
        interface.progress_enable(BOTH);
        interface
    };
    let senders = [Rc::clone(&duo.a.interface), open(&duo.a, &duo.a.worker)];
    let receivers = [Rc::clone(&duo.b.interface), open(&duo.b, &duo.b.worker), open(&duo.b, &beside)];
    let came = receivers.each_ref().map(|interface| {
        let (messages, notices) = (Rc::new(RefCell::new(Vec::new())), Rc::new(RefCell::new(Vec::new())));
        let told = Rc::clone(&messages);
        let handler = move |message: &Message<'_>| told.borrow_mut().extend(message.short().map(|(header, _)| header));
        interface.set_handler(3, Some(Box::new(handler))).expect("an id");
        let told = Rc::clone(&notices);
        interface.set_notice_handler(Some(Box::new(move |notice| told.borrow_mut().push(notice))));
        (messages, notices)
    });
    let mut addresses: Vec<_> = senders.iter().chain(&receivers).map(|interface| interface.address()).collect();
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), 5, "each has an address of its own");

    // The last of the senders is on the rank of the receivers.
    let senders = senders.iter().chain(&receivers[..1]);
    let ends: Vec<_> = senders
        .flat_map(|sender| receivers.iter().map(|to| sender.connect(&to.address()).expect("connects")))
        .enumerate()
        .collect();
    let insist = |what: &str, send: &dyn Fn() -> Result<()>| {
        let sent = || match send() {
            Err(Error::NoResource) => false,
            other => other.map(|()| true).expect("sends"),
        };
        wait(what, sent, turn);
    };
    let notifies = duo.a.interface.attributes().max_notified.is_some();
    const ROUNDS: u64 = 3;
    for round in 0..ROUNDS {
        for (number, end) in &ends {
            let (word, place) = (round * 100 + *number as u64, key.address + 8 * *number as u64);
            insist("room for a put", &|| end.put_short(&word.to_ne_bytes(), place, &key));
            insist("room for a message", &|| end.am_short(3, word, &[]));
            if notifies {
                insist("room for a notice", &|| end.put_notify(&[], place, &key, word as u32));
            }
        }
    }
    for (number, end) in &ends {
        wait("a flush", || end.flush(Flush::REMOTE, None) == Ok(Posted::Done), turn);
        // Of this endpoint alone: puts of the others may still be on their way.
        // SAFETY: an aligned word of the allocation.
        let word = unsafe { crate::memory::copy::load(memory.address().add(8 * number).cast::<u64>()) };
        assert_eq!(word, (ROUNDS - 1) * 100 + *number as u64, "what endpoint {number} put");
    }
    let expected = |receiver: usize| {
        let of_round = |round| (0..3).map(move |sender| round * 100 + 3 * sender + receiver as u64);
        (0..ROUNDS).flat_map(of_round).collect::<Vec<_>>()
    };
    for (receiver, (messages, notices)) in came.iter().enumerate() {
        let expected = expected(receiver);
        let all = |count| count >= expected.len();
        wait("messages", || all(messages.borrow().len()) && (!notifies || all(notices.borrow().len())), turn);
        duo.settle();
        let sorted = |mut words: Vec<u64>| {
            words.sort_unstable();
            words
        };
        assert_eq!(sorted(messages.borrow().clone()), expected, "messages to interface {receiver}");
        let notices = sorted(notices.borrow().iter().map(|notice| u64::from(*notice)).collect());
        assert_eq!(notices, if notifies { expected } else { Vec::new() }, "notices to interface {receiver}");
    }

    // One that closes takes nothing from the others.
    let [first, second, third] = receivers;
    drop((second, third));
    let (number, end) = &ends[0];
    insist("room for a message", &|| end.am_short(3, 1000, &[]));
    wait("the last message", || came[0].0.borrow().contains(&1000), turn);
    assert_eq!((*number, end.check()), (0, Ok(())));
    drop((ends, first));
}
