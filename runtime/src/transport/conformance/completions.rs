//! U7 to U18: completions, flush, fence, order.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicI32, AtomicU32, AtomicU64,
    Ordering::{Acquire, SeqCst},
};

use super::rig::*;
use crate::transport::lock::Mutex;
use crate::transport::*;

/// A completion and the number of its calls.
pub(super) fn counted(count: i32) -> (Completion, Arc<AtomicU32>) {
    let calls = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&calls);
    (
        Completion::new(count, move |_| {
            seen.fetch_add(1, SeqCst);
        }),
        calls,
    )
}

/// Puts a whole allocation. Returns what the call returned.
fn put<R: Rig>(duo: &Duo<R>, from: &Allocation, key: &RemoteKey, completion: Option<&Completion>) -> Posted {
    let len = from.region().len();
    let iov = [Iov { pointer: from.address(), length: len, stride: len, count: 1, region: Some(from.region()) }];
    // SAFETY: callers keep the buffer until a flush.
    duo.insist(|| unsafe { duo.a.ep().put_zcopy(&iov, key.address, key, completion) })
}

/// Gets as many bytes as the allocation has. A get that is emulated over messages is never complete when the call returns.
fn pull<R: Rig>(duo: &Duo<R>, to: &Allocation, key: &RemoteKey, completion: Option<&Completion>) -> Posted {
    let len = to.region().len();
    let iov = [Iov { pointer: to.address(), length: len, stride: len, count: 1, region: Some(to.region()) }];
    // SAFETY: callers keep the buffer until a flush.
    let posted = duo.insist(|| unsafe { duo.a.ep().get_zcopy(&iov, key.address, key, completion) });
    assert!(posted == Posted::InProgress || !duo.a.interface.attributes().emulated.has(Capabilities::GET_ZCOPY));
    posted
}

fn filled<R: Rig>(duo: &Duo<R>, len: usize, salt: usize) -> Allocation {
    let memory = duo.a.memory(len);
    // SAFETY: our allocation.
    unsafe { memory.address().copy_from(pattern(len, salt).as_ptr(), len) };
    memory
}

/// Bytes of a transfer that do not fit into the queues of any rig.
fn large<R: Rig>() -> usize {
    if R::SHORTEN > 100 { 2000 } else { 200_000 }
}

/// U7: Done leaves the completion alone; InProgress completes it later; NoResource starts nothing.
pub fn u07_three_return_values<R: Rig>() {
    let duo = Duo::<R>::new();
    let (_memory, key) = duo.remote(large::<R>());
    let small = filled(&duo, 8, 1);
    let (completion, calls) = counted(1);
    let posted = put(&duo, &small, &key, Some(&completion));
    duo.flush();
    duo.settle();
    let expected = if posted == Posted::Done { (0, 1) } else { (1, 0) };
    assert_eq!((calls.load(SeqCst) as i32, completion.count()), expected, "{posted:?}");
    let (completion, calls) = counted(1);
    let posted = pull(&duo, &small, &key, Some(&completion));
    assert_eq!(completion.count(), 1, "never inside the call");
    duo.flush();
    duo.settle();
    let expected = if posted == Posted::Done { (0, 1) } else { (1, 0) };
    assert_eq!((calls.load(SeqCst) as i32, completion.count()), expected, "{posted:?}");
    // Puts until one is refused. A refused put never completes.
    let (completion, calls) = counted(0);
    let source = filled(&duo, large::<R>(), 2);
    let len = source.region().len();
    let iov = [Iov { pointer: source.address(), length: len, stride: len, count: 1, region: Some(source.region()) }];
    let (mut under_way, mut refused) = (0, false);
    for _ in 0..1000 {
        completion.add(1);
        // SAFETY: the buffer lives past the flush.
        match unsafe { duo.a.ep().put_zcopy(&iov, key.address, &key, Some(&completion)) } {
            Ok(Posted::InProgress) => under_way += 1,
            Ok(Posted::Done) => completion.add(-1),
            Err(Error::NoResource) => {
                completion.add(-1);
                refused = true;
                break;
            }
            Err(error) => panic!("{error}"),
        }
    }
    // A device may complete puts as fast as the caller posts them.
    let fast = under_way == 0 || R::BY_ITSELF;
    assert!(refused || fast, "{under_way} puts are under way, and none found the queue full");
    assert_eq!(completion.count(), under_way);
    duo.flush();
    duo.settle();
    assert_eq!((completion.count(), calls.load(SeqCst)), (0, u32::from(under_way > 0)));
    // Messages to a peer that makes no progress are refused in the end. A refused message never arrives.
    let came = Rc::new(Cell::new(0));
    let seen = Rc::clone(&came);
    duo.b.interface.set_handler(3, Some(Box::new(move |_| seen.set(seen.get() + 1)))).expect("id");
    let refused = (0..1_000_000).find(|number| duo.a.ep().am_short(3, *number, &[]) == Err(Error::NoResource));
    let sent = refused.expect("no room in the end");
    duo.until("the messages", || came.get() >= sent);
    duo.settle();
    assert_eq!(came.get(), sent, "what was refused came all the same");
}

/// U8: one callback, after the fifth of five.
pub fn u08_completion_counts<R: Rig>() {
    let duo = Duo::<R>::new();
    let (_memory, key) = duo.remote(large::<R>());
    let (completion, calls) = counted(5);
    let sources: Vec<_> = (0..5).map(|i| filled(&duo, large::<R>(), i)).collect();
    for source in &sources {
        assert!(calls.load(SeqCst) == 0, "not before the fifth");
        if pull(&duo, source, &key, Some(&completion)) == Posted::Done {
            completion.complete(Ok(()));
        }
    }
    duo.until("five completions", || completion.count() == 0);
    duo.flush();
    assert_eq!(calls.load(SeqCst), 1);
    // The same completion again.
    completion.reset(1);
    if pull(&duo, &sources[0], &key, Some(&completion)) == Posted::Done {
        completion.complete(Ok(()));
    }
    duo.flush();
    duo.until("the second round", || calls.load(SeqCst) == 2);
}

/// U9: fewer operations than counted: no callback.
pub fn u09_fewer_operations_than_count<R: Rig>() {
    let duo = Duo::<R>::new();
    let (_memory, key) = duo.remote(large::<R>());
    let (completion, calls) = counted(2);
    let source = filled(&duo, large::<R>(), 1);
    let posted = pull(&duo, &source, &key, Some(&completion));
    duo.flush();
    duo.settle();
    let left = if posted == Posted::Done { 2 } else { 1 };
    assert_eq!((completion.count(), calls.load(SeqCst)), (left, 0));
}

/// U10: the peer dies during a transfer: the callback gets the error. A completion keeps its first error.
pub fn u10_completion_status<R: Rig>() {
    let duo = Duo::<R>::new();
    let (_memory, key) = duo.remote(large::<R>());
    duo.a.interface.set_error_handler(Some(Box::new(|_, _| {})));
    let outcome = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&outcome);
    let completion = Completion::new(1, move |status| *seen.lock() = Some(status));
    let local = duo.a.memory(large::<R>());
    let len = local.region().len();
    let iov = [Iov { pointer: local.address(), length: len, stride: len, count: 1, region: Some(local.region()) }];
    // SAFETY: the buffer lives on.
    let posted = unsafe { duo.a.ep().get_zcopy(&iov, key.address, &key, Some(&completion)) };
    duo.rig.kill(1);
    match posted {
        Ok(Posted::InProgress) => {
            duo.until("the callback", || outcome.lock().is_some());
            let seen = *outcome.lock();
            assert!(seen == Some(Err(Error::ConnectionReset)) || (R::BY_ITSELF && seen == Some(Ok(()))), "{seen:?}");
            if seen == Some(Ok(())) {
                // The get was complete before the peer died. The next one cannot complete.
                completion.reset(1);
                *outcome.lock() = None;
                let mut again = Err(Error::NoResource);
                duo.until("room", || {
                    // SAFETY: as above.
                    again = unsafe { duo.a.ep().get_zcopy(&iov, key.address, &key, Some(&completion)) };
                    again != Err(Error::NoResource)
                });
                // The loss may be known by now: then the call fails.
                if again != Err(Error::ConnectionReset) {
                    assert_eq!(again, Ok(Posted::InProgress));
                    duo.until("the callback", || outcome.lock().is_some());
                    assert_eq!(*outcome.lock(), Some(Err(Error::ConnectionReset)));
                }
            }
        }
        // A get that completes inside the call cannot be interrupted. The next one fails.
        Ok(Posted::Done) => assert_eq!(completion.count(), 1),
        Err(error) => panic!("{error}"),
    }
    duo.until("the loss", || duo.a.ep().check().is_err());
    // SAFETY: as above.
    let next = unsafe { duo.a.ep().get_zcopy(&iov, key.address, &key, None) };
    assert_eq!(next, Err(Error::ConnectionReset));
    let twice = Completion::new(3, |_| {});
    twice.complete(Ok(()));
    twice.complete(Err(Error::Canceled));
    twice.complete(Err(Error::NoMemory));
    assert_eq!(twice.status(), Err(Error::Canceled));
}

/// U10: the peer dies during a put without completion: the endpoint does not claim that the whole put has arrived.
pub fn u10_death_before_arrival<R: Rig>() {
    let duo = Duo::<R>::new();
    let (memory, key) = duo.remote(large::<R>());
    duo.a.interface.set_error_handler(Some(Box::new(|_, _| {})));
    let source = filled(&duo, large::<R>(), 5);
    let posted = put(&duo, &source, &key, None);
    duo.rig.kill(1);
    // A put that completes inside the call cannot be interrupted.
    if posted == Posted::InProgress {
        duo.until("the loss", || !matches!(duo.a.ep().flush(Flush::REMOTE, None), Ok(Posted::InProgress)));
        let all = bytes(&memory) == pattern(large::<R>(), 5);
        assert!(all || !duo.a.ep().had_arrived(), "a part of it is missing");
    }
}

/// U11: the buffer of a put without completion may be reused after a local flush.
pub fn u11_no_completion<R: Rig>() {
    let duo = Duo::<R>::new();
    let len = large::<R>();
    let (memory, key) = duo.remote(len);
    let source = filled(&duo, len, 5);
    let _posted = put(&duo, &source, &key, None);
    duo.until("a local flush", || duo.a.ep().flush(Flush::LOCAL, None) == Ok(Posted::Done));
    // SAFETY: our allocation, no longer in use.
    unsafe { std::ptr::write_bytes(source.address(), 0xee, len) };
    duo.flush();
    assert!(bytes(&memory) == pattern(len, 5), "the peer has what was there when it was posted");
}

/// U12: after a remote flush, and a message, the data is there.
pub fn u12_local_is_not_remote<R: Rig>() {
    let duo = Duo::<R>::new();
    let len = large::<R>();
    let (memory, key) = duo.remote(len);
    let source = filled(&duo, len, 6);
    let memory = Rc::new(memory);
    let there = Rc::new(Cell::new(false));
    let (seen, at) = (Rc::clone(&there), Rc::clone(&memory));
    let look = Box::new(move |_: &Message<'_>| {
        assert!(bytes(&at) == pattern(len, 6), "the data came before the message");
        seen.set(true);
    });
    duo.b.interface.set_handler(1, Some(look)).expect("id");
    let _posted = put(&duo, &source, &key, None);
    duo.flush();
    duo.insist(|| duo.a.ep().am_short(1, 0, &[]));
    duo.until("the message", || there.get());
}

/// U13: a thousand puts, a flush, and all are there.
pub fn u13_flush<R: Rig>() {
    let duo = Duo::<R>::new();
    let count = R::rounds(1000);
    let (memory, key) = duo.remote(count * 8);
    for i in 0..count {
        duo.insist(|| duo.a.ep().put_short(&(i as u64).to_le_bytes(), key.address + 8 * i as u64, &key));
    }
    duo.flush();
    let words = bytes(&memory);
    for (i, word) in words.chunks(8).enumerate() {
        assert_eq!(word, (i as u64).to_le_bytes());
    }
    // With a completion.
    let (completion, calls) = counted(1);
    duo.insist(|| duo.a.ep().put_short(&[9; 8], key.address, &key));
    match duo.a.ep().flush(Flush::REMOTE, Some(&completion)).expect("flushes") {
        Posted::Done => assert_eq!(completion.count(), 1),
        Posted::InProgress => {
            duo.until("the flush", || calls.load(SeqCst) == 1);
            assert_eq!(bytes(&memory)[..8], [9; 8]);
        }
    }
}

/// U14: a flush that cancels ends each operation once, and ends the endpoint.
pub fn u14_flush_flags<R: Rig>() {
    let duo = Duo::<R>::new();
    let len = large::<R>();
    let (_memory, key) = duo.remote(len);
    let canceled = Arc::new(AtomicI32::new(0));
    let sources: Vec<_> = (0..4).map(|i| filled(&duo, len, i)).collect();
    let mut under_way = 0;
    for source in &sources {
        let seen = Arc::clone(&canceled);
        let completion = Completion::new(1, move |status| {
            assert_eq!(status, Err(Error::Canceled));
            seen.fetch_add(1, SeqCst);
        });
        let iov =
            [Iov { pointer: source.address(), length: len, stride: len, count: 1, region: Some(source.region()) }];
        // SAFETY: the buffers live to the end.
        match unsafe { duo.a.ep().get_zcopy(&iov, key.address, &key, Some(&completion)) } {
            Ok(Posted::InProgress) => under_way += 1,
            Ok(Posted::Done) | Err(Error::NoResource) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert!(under_way > 0 || !duo.a.interface.attributes().emulated.has(Capabilities::GET_ZCOPY));
    assert!(duo.a.ep().flush(Flush::CANCEL, None).is_ok());
    duo.settle();
    assert_eq!(canceled.load(SeqCst), under_way, "each once");
    assert_eq!(duo.a.ep().put_short(&[1], key.address, &key), Err(Error::Canceled));
    assert_eq!(duo.a.ep().am_short(0, 0, &[]), Err(Error::Canceled));
    assert_eq!(duo.a.ep().flush(Flush::LOCAL, None), Err(Error::Canceled));
    // The peer and a new endpoint still work.
    let again = duo.a.connect(&duo.b.interface.address());
    duo.insist(|| again.put_short(&[1; 8], key.address, &key));
    duo.until("a flush", || again.flush(Flush::REMOTE, None) == Ok(Posted::Done));
}

/// U15: flushing the interface flushes every endpoint locally.
pub fn u15_interface_flush<R: Rig>() {
    let duo = Duo::<R>::new();
    let len = large::<R>();
    let (memory, key) = duo.remote(2 * len);
    let second = duo.a.connect(&duo.b.interface.address());
    let sources = [filled(&duo, len, 1), filled(&duo, len, 2)];
    for (i, source) in sources.iter().enumerate() {
        let iov =
            [Iov { pointer: source.address(), length: len, stride: len, count: 1, region: Some(source.region()) }];
        let ep = if i == 0 { duo.a.ep() } else { &second };
        // SAFETY: the buffers live to the end.
        let _posted = duo.insist(|| unsafe { ep.put_zcopy(&iov, key.address + (i * len) as u64, &key, None) });
    }
    duo.until("the interface's flush", || duo.a.interface.flush() == Ok(Posted::Done));
    for source in &sources {
        // SAFETY: our allocations, no longer in use.
        unsafe { std::ptr::write_bytes(source.address(), 0, len) };
    }
    for ep in [duo.a.ep(), &second] {
        assert_eq!(ep.flush(Flush::LOCAL, None), Ok(Posted::Done), "nothing is outstanding");
        duo.until("remote completion", || ep.flush(Flush::REMOTE, None) == Ok(Posted::Done));
    }
    assert!(bytes(&memory) == [pattern(len, 1), pattern(len, 2)].concat());
}

/// U16: the order that the attributes promise holds. The test relies on no other order.
pub fn u16_order_is_exposed<R: Rig>() {
    let duo = Duo::<R>::new();
    let attributes = *duo.a.interface.attributes();
    let seen = Rc::new(std::cell::RefCell::new(Vec::new()));
    let list = Rc::clone(&seen);
    let note = Box::new(move |m: &Message<'_>| {
        list.borrow_mut().push(u32::from_le_bytes(m.data()[..4].try_into().expect("4")));
    });
    duo.b.interface.set_handler(2, Some(note)).expect("id");
    let count = R::rounds(2000) as u32;
    for i in 0..count {
        // Mixed sizes: lines and blocks, one fragment and many.
        let len = if i % 3 == 0 { attributes.am.max_bcopy.min(5000) } else { 4 };
        duo.insist(|| {
            duo.a.ep().am_bcopy(2, len, |to| {
                to[..4].copy_from_slice(&i.to_le_bytes());
                len
            })
        });
    }
    duo.until("all messages", || seen.borrow().len() == count as usize);
    let mut seen = seen.take();
    let in_order = seen.is_sorted();
    if attributes.message_order == Order::Posted {
        assert!(in_order, "{seen:?}");
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..count), "each once");
    large_and_small::<R>();
}

/// Puts 8 MiB, then 8 bytes, with a fence between them unless the attributes say that puts keep their order.
fn large_and_small<R: Rig>() {
    let large = if R::SHORTEN > 100 { 2000 } else { 8 << 20 };
    let rig = R::new(2);
    let board = Board::default();
    rig.ranks(&|player| {
        let me = player.rank();
        let side = Side::<R>::open(&rig, me, InterfaceOptions { max_zcopy: large, ..R::options() });
        board.post(me, "address", side.interface.address());
        let memory = side.memory(64 + large);
        board.post(me, "key", side.domain.pack_key(memory.region()).into());
        let ep = side.connect(&board.read(player, 1 - me, "address"));
        let key = unpack(&side.domain, &board.read(player, 1 - me, "key")).expect("a key");
        let ordered = side.interface.attributes().memory_order == Order::Posted;
        let turn = || {
            if side.worker.progress() == 0 {
                player.idle();
            }
        };
        // SAFETY: a word of our allocation, which the peer changes by stores of whole words only.
        let word = unsafe { AtomicU64::from_ptr(memory.address().cast()) };
        // Pairs with the peer's store of the flag, which follows its store of the data.
        let flag = || word.load(Acquire);
        let source = side.memory(large);
        for round in 1..=3u64 {
            if me == 0 {
                // SAFETY: our allocation; what was posted from it is flushed.
                unsafe { std::ptr::write_bytes(source.address(), round as u8, large) };
                let (pointer, region) = (source.address(), Some(source.region()));
                let iov = [Iov { pointer, length: large, stride: large, count: 1, region }];
                // SAFETY: the buffer is left alone until the flush.
                let put = || unsafe { ep.put_zcopy(&iov, key.address + 64, &key, None) }.is_ok();
                wait("room", put, turn);
                if !ordered {
                    ep.fence().expect("fences");
                }
                wait("room", || ep.put_short(&round.to_le_bytes(), key.address, &key).is_ok(), turn);
                wait("a flush", || ep.flush(Flush::REMOTE, None) == Ok(Posted::Done), turn);
                wait("the answer", || flag() == round, turn);
            } else {
                wait("the flag", || flag() == round, turn);
                let (last, all) = (bytes(&memory)[63 + large], bytes(&memory));
                assert_eq!(last, round as u8, "the 8 bytes came before the end of the {large}");
                assert!(all[64..].iter().all(|byte| *byte == round as u8), "round {round}");
                wait("room", || ep.put_short(&round.to_le_bytes(), key.address, &key).is_ok(), turn);
                wait("a flush", || ep.flush(Flush::REMOTE, None) == Ok(Posted::Done), turn);
            }
        }
        part(player, &board, &side);
    });
}

/// Makes progress until the other rank is done too.
fn part<R: Rig>(player: &dyn Player, board: &Board, side: &Side<R>) {
    board.post(player.rank(), "done", Vec::new());
    let turn = || {
        side.worker.progress();
        player.pass();
    };
    wait("the other", || board.has(1 - player.rank(), "done"), turn);
}

/// How a round of U17 sends its data.
#[derive(Clone, Copy)]
enum By {
    Packed(usize),
    Straight(usize),
    Atomic,
    /// Of 32 bits, which a device may do in several steps.
    NarrowAtomic,
}

/// U17: data, a fence, a flag: a rank that sees the flag sees the data, however either was sent, with a fence of the endpoint or of the interface.
pub fn u17_fence<R: Rig>() {
    const COUNTER: u64 = 8;
    const NARROW: u64 = 16;
    const DATA: u64 = 64;
    let rounds = R::rounds(100_000);
    let ways = [
        By::Packed(8),
        By::Straight(100),
        By::Atomic,
        By::Packed(64),
        By::Straight(1000),
        By::Packed(100),
        By::NarrowAtomic,
        By::Packed(4096),
        By::Straight(if R::SHORTEN > 100 { 2000 } else { 70_000 }),
    ];
    let rig = R::new(2);
    let board = Board::default();
    rig.ranks(&|player| {
        let me = player.rank();
        let side = Side::<R>::open(&rig, me, R::options());
        board.post(me, "address", side.interface.address());
        let memory = side.memory(DATA as usize + 70_000);
        board.post(me, "key", side.domain.pack_key(memory.region()).into());
        let source = side.memory(70_000);
        let other = 1 - me;
        let ep = side.connect(&board.read(player, other, "address"));
        let key = unpack(&side.domain, &board.read(player, other, "key")).expect("a key");
        let max_bcopy = side.interface.attributes().put.max_bcopy;
        let turn = || {
            if side.worker.progress() == 0 {
                player.idle();
            }
        };
        let insist = |send: &dyn Fn() -> Result<()>| {
            wait("room", || send().map_err(|e| assert_eq!(e, Error::NoResource)).is_ok(), turn);
        };
        let put = |byte: u8, len: usize| {
            let fill = |to: &mut [u8]| {
                to.fill(byte);
                to.len()
            };
            insist(&|| ep.put_bcopy(len, fill, key.address + DATA, &key).map(drop));
        };
        let put_straight = |byte: u8, length: usize| {
            // SAFETY: our allocation; what was posted from it is flushed.
            unsafe { std::ptr::write_bytes(source.address(), byte, length) };
            let iov =
                [Iov { pointer: source.address(), length, stride: length, count: 1, region: Some(source.region()) }];
            // SAFETY: the buffer is left alone until the flush of this round.
            insist(&|| unsafe { ep.put_zcopy(&iov, key.address + DATA, &key, None) }.map(drop));
        };
        let add = |at: u64| insist(&|| ep.atomic_post(AtomicOp::Add, 1u64, key.address + at, &key));
        // SAFETY: words of our allocation, which peers change by stores of whole words and by atomics only.
        let word = |at: u64| unsafe { AtomicU64::from_ptr(memory.address().wrapping_add(at as usize).cast()) };
        // Pairs with the peer's change of the flag. The fence orders it after the change of the data.
        let flag = || word(0).load(Acquire);
        let mut added = [0; 2];
        for round in 1..=rounds as u64 {
            let way = ways[round as usize % ways.len()];
            if me == 0 {
                match way {
                    By::Packed(len) => put(round as u8, len.min(max_bcopy)),
                    By::Straight(len) => put_straight(round as u8, len),
                    By::Atomic => add(COUNTER),
                    By::NarrowAtomic => {
                        insist(&|| ep.atomic_post(AtomicOp::Add, 1u32, key.address + NARROW, &key));
                    }
                }
                if round.is_multiple_of(2) { ep.fence() } else { side.interface.fence() }.expect("fences");
                // The flag goes up by one each round, by an atomic or by a put.
                match round % 5 {
                    0 | 1 => add(0),
                    _ => insist(&|| ep.put_short(&round.to_le_bytes(), key.address, &key)),
                }
                wait("the answer", || flag() == round, turn);
                wait("a flush", || ep.flush(Flush::LOCAL, None) == Ok(Posted::Done), turn);
                continue;
            }
            wait("the flag", || flag() == round, turn);
            let len = match way {
                By::Packed(len) => len.min(max_bcopy),
                By::Straight(len) => len,
                By::Atomic | By::NarrowAtomic => {
                    added[usize::from(matches!(way, By::NarrowAtomic))] += 1;
                    let there = [COUNTER, NARROW].map(|at| word(at).load(Acquire));
                    assert_eq!(there, added, "round {round}: the add came after the flag");
                    0
                }
            };
            let data = &bytes(&memory)[DATA as usize..][..len];
            assert!(data.iter().all(|byte| *byte == round as u8), "round {round}: the flag came before the data");
            insist(&|| ep.put_short(&round.to_le_bytes(), key.address, &key));
        }
        wait("a flush", || ep.flush(Flush::REMOTE, None) == Ok(Posted::Done), turn);
        part(player, &board, &side);
    });
    a_message_after_a_fence::<R>();
}

/// A message after a fence finds earlier puts in place.
fn a_message_after_a_fence<R: Rig>() {
    let duo = Duo::<R>::new();
    let (memory, key) = duo.remote(8);
    let memory = Rc::new(memory);
    let seen = Rc::new(Cell::new(0u64));
    let (at, last) = (Rc::clone(&memory), Rc::clone(&seen));
    let look = Box::new(move |m: &Message<'_>| {
        let (round, _) = m.short().expect("a header");
        let data = u64::from_le_bytes(bytes(&at).try_into().expect("8"));
        assert!(data >= round, "message {round} overtook its data, which is {data}");
        last.set(round);
    });
    duo.b.interface.set_handler(4, Some(look)).expect("id");
    for round in 1..=R::rounds(1000) as u64 {
        duo.insist(|| duo.a.ep().put_short(&round.to_le_bytes(), key.address, &key));
        duo.a.ep().fence().expect("fences");
        duo.insist(|| duo.a.ep().am_short(4, round, &[]));
        duo.a.ep().fence().expect("fences");
    }
    duo.until("the last message", || seen.get() == R::rounds(1000) as u64);
}

/// U18: remote completion implies local completion, also of operations posted without a completion: after it the buffers are the caller's
/// again, and nothing is in flight.
pub fn u18_implicit_completion<R: Rig>() {
    let duo = Duo::<R>::new();
    let len = large::<R>();
    let (memory, key) = duo.remote(len);
    let refill = |memory: &Allocation, byte: u8| {
        // SAFETY: our allocation, no longer in use.
        unsafe { std::ptr::write_bytes(memory.address(), byte, len) };
    };
    for round in 0..3 {
        let source = filled(&duo, len, 8 + round);
        let _posted = put(&duo, &source, &key, None);
        duo.flush();
        // No progress is made between the flush and this check.
        assert!(bytes(&memory) == pattern(len, 8 + round), "flushed, but not there");
        refill(&source, 0xee);
        assert_eq!(duo.a.ep().flush(Flush::LOCAL, None), Ok(Posted::Done));
        assert_eq!(duo.a.interface.flush(), Ok(Posted::Done));
        let back = duo.a.memory(len);
        let _posted = pull(&duo, &back, &key, None);
        duo.flush();
        assert!(bytes(&back) == pattern(len, 8 + round), "flushed, but not here");
        refill(&back, 0x11);
        duo.settle();
        assert!(bytes(&back).iter().all(|byte| *byte == 0x11), "written after the flush");
        assert!(bytes(&memory) == pattern(len, 8 + round), "read after the flush");
    }
}
