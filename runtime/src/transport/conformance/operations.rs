//! U4 to U6: puts, gets, atomics.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;

use super::rig::*;
use crate::transport::lock::Mutex;
use crate::transport::*;

/// Gets `len` bytes from the start of a remote region.
pub(super) fn get<R: Rig>(duo: &Duo<R>, key: &RemoteKey, len: usize) -> Vec<u8> {
    let local = duo.a.memory(len);
    let iov = [Iov { pointer: local.address(), length: len, stride: len, count: 1, region: Some(local.region()) }];
    // SAFETY: the buffer lives past the flush.
    let _posted = duo.insist(|| unsafe { duo.a.ep().get_zcopy(&iov, key.address, key, None) });
    duo.flush();
    bytes(&local)
}

/// U4: each primitive at several sizes.
pub fn u04_primitives<R: Rig>() {
    let duo = Duo::<R>::new();
    let attributes = *duo.a.interface.attributes();
    let (memory, key) = duo.remote(256 << 10);
    // The largest packed put takes more than one message, where it takes messages.
    for len in [1, 2, 3, 7, 8, 9, 63, 64, 65, 255, 4096, 10_000, attributes.put.max_bcopy] {
        if len <= attributes.put.max_short {
            let data = pattern(len, 1);
            duo.insist(|| duo.a.ep().put_short(&data, key.address, &key));
            duo.flush();
            assert_eq!(bytes(&memory)[..len], data, "short put of {len}");
        }
        if len <= attributes.put.max_bcopy {
            let data = pattern(len, 2);
            let pack = |to: &mut [u8]| {
                to.copy_from_slice(&data);
                len
            };
            assert_eq!(duo.insist(|| duo.a.ep().put_bcopy(len, pack, key.address + 1, &key)), len);
            duo.flush();
            assert_eq!(bytes(&memory)[1..=len], data, "packed put of {len}");
        }
        if len <= attributes.put.max_zcopy {
            let local = duo.a.memory(len);
            let data = pattern(len, 3);
            // SAFETY: our allocation.
            unsafe { local.address().copy_from(data.as_ptr(), len) };
            let iov =
                [Iov { pointer: local.address(), length: len, stride: 0, count: 1, region: Some(local.region()) }];
            // SAFETY: the buffer lives past the flush.
            let _posted = duo.insist(|| unsafe { duo.a.ep().put_zcopy(&iov, key.address, &key, None) });
            duo.flush();
            assert_eq!(bytes(&memory)[..len], data, "zero-copy put of {len}");
            assert_eq!(get(&duo, &key, len), data, "zero-copy get of {len}");
        }
        if len <= attributes.get.max_short {
            let mut data = vec![0; len];
            duo.a.ep().get_short(&mut data, key.address, &key).expect("gets");
            assert_eq!(data, bytes(&memory)[..len]);
        }
        if len <= attributes.am.max_bcopy {
            let got = Rc::new(RefCell::new(Vec::new()));
            let seen = Rc::clone(&got);
            duo.b.interface.set_handler(3, Some(Box::new(move |m| *seen.borrow_mut() = m.data().into()))).expect("id");
            let data = pattern(len, 4);
            duo.insist(|| {
                duo.a.ep().am_bcopy(3, len, |to| {
                    to.copy_from_slice(&data);
                    len
                })
            });
            duo.until("the message", || !got.borrow().is_empty());
            assert_eq!(*got.borrow(), data, "message of {len}");
        }
    }
    atomics::<R, u32>(&duo, &memory, &key);
    atomics::<R, u64>(&duo, &memory, &key);
    duo.a.ep().fence().expect("fences");
    assert_eq!(duo.a.ep().put_short(&[], key.address, &key), Ok(()), "nothing is nothing");
}

fn atomics<R: Rig, T: Word>(duo: &Duo<R>, memory: &Allocation, key: &RemoteKey) {
    let start = T::narrow(0xf0f0_f0f0_f0f0_f0f0);
    let operand = T::narrow(0x0123_4567_89ab_cdef);
    let width = T::WIDTH as usize;
    let word = || {
        let mut wide = [0; 8];
        wide[..width].copy_from_slice(&bytes(memory)[64..64 + width]);
        u64::from_le_bytes(wide)
    };
    let mask = start.widen() | u64::MAX >> (64 - 8 * width);
    let at = key.address + 64;
    for op in AtomicOp::ALL {
        let (s, o) = (start.widen(), operand.widen());
        let expected = match op {
            AtomicOp::Add => s.wrapping_add(o) & mask,
            AtomicOp::And => s & o,
            AtomicOp::Or => s | o,
            AtomicOp::Xor => s ^ o,
            AtomicOp::Swap | AtomicOp::CompareSwap => o,
        };
        let set = || {
            duo.insist(|| duo.a.ep().put_short(&s.to_le_bytes()[..width], at, key));
            duo.flush();
        };
        set();
        let mut result = T::narrow(0);
        let to = &raw mut result;
        if op == AtomicOp::CompareSwap {
            // SAFETY: the result lives past the flush.
            let _posted = duo.insist(|| unsafe { duo.a.ep().atomic_compare_swap(start, operand, to, at, key, None) });
            duo.flush();
            assert_eq!((result, word()), (start, expected), "{op:?}");
            // And once more, when it does not compare equal.
            // SAFETY: as above.
            let _posted = duo.insist(|| unsafe { duo.a.ep().atomic_compare_swap(start, start, to, at, key, None) });
            duo.flush();
            assert_eq!((result, word()), (operand, expected), "{op:?} of unequals");
            continue;
        }
        // SAFETY: as above.
        let _posted = duo.insist(|| unsafe { duo.a.ep().atomic_fetch(op, operand, to, at, key, None) });
        duo.flush();
        assert_eq!((result, word()), (start, expected), "{op:?} with result");
        if op != AtomicOp::Swap {
            set();
            duo.insist(|| duo.a.ep().atomic_post(op, operand, at, key));
            duo.flush();
            assert_eq!(word(), expected, "{op:?} without result");
        }
    }
    assert!(matches!(duo.a.ep().atomic_post(AtomicOp::Add, operand, at + 1, key), Err(Error::InvalidParam(_))));
}

/// U5: two ranks fetch-add one word; nothing is lost, all results differ, and each is there when it completes.
pub fn u05_atomics<R: Rig>() {
    count_together::<R, u64>(R::rounds(R::ATOMICS));
    count_together::<R, u32>(R::rounds(R::ATOMICS / 2));
}

fn count_together<R: Rig, T: Word>(rounds: usize) {
    let rig = R::new(2);
    let board = Board::default();
    let all = Mutex::new(Vec::new());
    rig.ranks(&|player| {
        let me = player.rank();
        let side = Side::<R>::open(&rig, me, R::options());
        board.post(me, "address", side.interface.address());
        let word = (me == 0).then(|| side.memory(8));
        if let Some(word) = &word {
            board.post(0, "key", side.domain.pack_key(word.region()).into());
        }
        let key = unpack(&side.domain, &board.read(player, 0, "key")).expect("a key");
        let ep = side.connect(&board.read(player, 0, "address"));
        // Together, or there is nothing to see.
        board.post(me, "ready", Vec::new());
        board.read(player, 1 - me, "ready");
        let turn = || {
            if side.worker.progress() == 0 {
                player.idle();
            }
        };
        let none = T::narrow(u64::MAX);
        let mut mine = Vec::new();
        // On a busy machine the ranks may well have run one after the other, which shows nothing.
        let mut mixed = 0;
        for _ in 0..20 {
            let mut results = vec![none; rounds];
            let start = results.as_mut_ptr();
            for index in 0..rounds {
                let to = start.wrapping_add(index);
                let address = to as usize;
                let done = Completion::new(1, move |status| {
                    assert_eq!(status, Ok(()));
                    // SAFETY: an element of `results`, which lives past the flush, on the thread that owns it.
                    let result = unsafe { *(address as *const T) };
                    assert_ne!(result, T::narrow(u64::MAX), "the result is there when it is complete");
                });
                let one = T::narrow(1);
                let mut posted = Err(Error::NoResource);
                wait(
                    "room",
                    || {
                        // SAFETY: the result lives past the flush.
                        posted = unsafe { ep.atomic_fetch(AtomicOp::Add, one, to, key.address, &key, Some(&done)) };
                        posted != Err(Error::NoResource)
                    },
                    turn,
                );
                if posted.expect("posts") == Posted::Done {
                    done.complete(Ok(()));
                }
            }
            wait("the results", || ep.flush(Flush::REMOTE, None) == Ok(Posted::Done), turn);
            mixed += results.windows(2).filter(|pair| pair[1].widen() != pair[0].widen() + 1).count();
            mine.extend(results.iter().map(|result| result.widen()));
            if mixed > rounds / 20 {
                break;
            }
        }
        all.lock().extend(mine);
        board.post(me, "done", Vec::new());
        let served = || {
            side.worker.progress();
            player.pass();
        };
        for other in 0..2 {
            wait("the other", || board.has(other, "done"), served);
        }
        if let Some(word) = &word {
            let count = all.lock().len() as u64;
            assert_eq!(u64::from_le_bytes(bytes(word).try_into().expect("8")), count, "nothing is lost");
        }
    });
    let all = all.into_inner();
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len(), "all results differ");
}

/// U6: an atomic's result may be an unregistered variable on the stack.
pub fn u06_atomic_results_need_no_key<R: Rig>() {
    let duo = Duo::<R>::new();
    let (memory, key) = duo.remote(8);
    let mut result = 99u32;
    let to = &raw mut result;
    // SAFETY: the result lives past the flush.
    let _posted = duo.insist(|| unsafe { duo.a.ep().atomic_fetch(AtomicOp::Swap, 5u32, to, key.address, &key, None) });
    duo.flush();
    assert_eq!(result, 0);
    assert_eq!(bytes(&memory)[0], 5);
}

/// U58: a notice comes after its put and all earlier puts. A peer that takes no notices does not stop puts without notice.
pub fn u58_notices<R: Rig>() {
    // More than a network has in flight between two notices.
    const PLACES: usize = 32;
    let duo = Duo::<R>::new();
    let (memory, key) = duo.remote(64);
    let memory = Rc::new(memory);
    let Some(most) = duo.a.interface.attributes().max_notified else {
        let outcome = duo.a.ep().put_notify(&[], key.address, &key, 1);
        assert!(matches!(outcome, Err(Error::Unsupported(_))), "{outcome:?}");
        return;
    };
    let heard = Rc::new(RefCell::new(Vec::new()));
    let (told, seen) = (Rc::clone(&heard), Rc::clone(&memory));
    duo.b.interface.set_notice_handler(Some(Box::new(move |notice| {
        let place = (NOTICES - notice) as usize % PLACES;
        told.borrow_mut().push((notice, bytes(&seen)[place], bytes(&seen)[PLACES + place]));
    })));
    let too_long = vec![0; most + 1];
    let outcome = duo.a.ep().put_notify(&too_long, key.address, &key, 1);
    assert!(matches!(outcome, Err(Error::ExceedsLimit { .. })), "{outcome:?}");
    let outcome = duo.a.ep().put_notify(&[1], key.address, &key, NOTICES);
    assert!(matches!(outcome, Err(Error::InvalidParam(_))), "{outcome:?}");
    let outcome = duo.a.ep().put_notify(&[1, 2], key.address + 63, &key, 1);
    assert_eq!(outcome, Err(Error::OutOfRange));

    for n in 1..=200u8 {
        // Puts have no order among themselves: one that is late must not overwrite a later one.
        let place = key.address + u64::from(n) % PLACES as u64;
        duo.insist(|| duo.a.ep().put_short(&[n], place, &key));
        duo.insist(|| duo.a.ep().put_notify(&[n], place + PLACES as u64, &key, NOTICES - u32::from(n)));
    }
    duo.until("the notices", || heard.borrow().len() >= 200);
    for (n, (notice, before, with)) in (1..=200u8).zip(heard.take()) {
        assert_eq!(notice, NOTICES - u32::from(n), "in their order, once");
        assert!(before >= n && with >= n, "notice {n} came when {before} and {with} were written");
    }

    // The peer takes none any more. Notices end, puts go on.
    let alone = || {
        duo.a.worker.progress();
        duo.rig.turn();
    };
    let (mut sent, mut refused) = (0, 0);
    while refused < 100 {
        match duo.a.ep().put_notify(&[], key.address, &key, 7) {
            Ok(()) => (sent, refused) = (sent + 1, 0),
            Err(error) => {
                assert_eq!(error, Error::NoResource);
                refused += 1;
                alone();
            }
        }
        assert!(sent < 10_000, "they never end");
    }
    assert!(sent > 0);
    wait("a put", || duo.a.ep().put_short(&[250], key.address, &key) != Err(Error::NoResource), alone);
    wait("its flush", || matches!(duo.a.ep().flush(Flush::REMOTE, None), Ok(Posted::Done)), alone);
    assert_eq!(bytes(&memory)[0], 250);
    duo.until("the notices", || heard.borrow().len() == sent);
}
