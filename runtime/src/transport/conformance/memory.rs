//! U39 to U43 and U57: memory, keys.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::operations::get;
use super::rig::*;
use crate::transport::lock::Mutex;
use crate::transport::*;

/// U39: allocate, register any address, one byte, not zero bytes.
pub fn u39_memory<R: Rig>() {
    let duo = Duo::<R>::new();
    let memory = duo.a.memory(100);
    assert_eq!(bytes(&memory), [0; 100], "zeroed");
    let mut heap = vec![1u8; 10];
    // SAFETY: the buffer outlives the region.
    let region = unsafe { duo.a.domain.register(heap.as_mut_ptr().wrapping_add(3), 1) }.expect("one byte");
    assert_eq!(region.len(), 1);
    drop(region);
    // SAFETY: refused.
    assert_eq!(unsafe { duo.a.domain.register(heap.as_mut_ptr(), 0) }.expect_err("nothing").code(), -5);
    assert_eq!(duo.a.domain.allocate(0, &[Method::Heap]).expect_err("nothing").code(), -5);
    assert_eq!(duo.a.domain.allocate(1, &[]).expect_err("no method").code(), -5);
    // Freed memory is zero again when it is next given out.
    // SAFETY: our allocation.
    unsafe { std::ptr::write_bytes(memory.address(), 0xff, 100) };
    drop(memory);
    assert_eq!(bytes(&duo.a.memory(100)), [0; 100]);
    assert_eq!(heap, [1; 10]);
}

/// U40: keys travel as bytes; garbage is refused; a dropped registration is gone.
pub fn u40_remote_keys<R: Rig>() {
    let duo = Duo::<R>::new();
    let memory = duo.b.memory(64);
    let packed = duo.b.domain.pack_key(memory.region());
    assert!(packed.len() <= duo.b.domain.attributes().packed_key_len);
    let key = unpack(&duo.a.domain, &packed).expect("a key");
    duo.insist(|| duo.a.ep().put_short(&[4; 8], key.address, &key));
    duo.flush();
    assert_eq!(bytes(&memory)[..8], [4; 8]);
    for garbage in [&[][..], &[0; 48], &[0xff; 48], &packed[..47], &[&packed[..], &[0]].concat()[1..]] {
        assert_eq!(unpack(&duo.a.domain, garbage).map_err(Error::code), Err(-5));
    }
    for at in 0..packed.len() {
        let mut bent = packed;
        bent[at] ^= 0x10;
        assert!(unpack(&duo.a.domain, &bent).is_err(), "byte {at} changed");
    }
    // A key of a rank that does not exist.
    let stranger = RemoteKey { owner: 77, ..key };
    assert!(unpack(&duo.a.domain, &stranger.pack()).is_err());
    // A key of another rank than the peer.
    let own = RemoteKey { owner: 0, ..key };
    assert_eq!(duo.a.ep().put_short(&[1], own.address, &own).map_err(Error::code), Err(-5));
    // A key whose registration is gone, where the target checks keys.
    let buffer = [const { AtomicU64::new(0) }; 8];
    // SAFETY: the buffer outlives the region.
    let region = unsafe { duo.b.domain.register(buffer.as_ptr().cast_mut().cast(), 64) }.expect("registers");
    let key = duo.b.key(&region, &duo.a);
    drop(region);
    let heard = Rc::new(Cell::new(None));
    let error = Rc::clone(&heard);
    duo.a.interface.set_error_handler(Some(Box::new(move |_, told| error.set(Some(told)))));
    let word = || buffer[0].load(Relaxed);
    let put = || duo.a.ep().put_short(&[4; 8], key.address, &key);
    if duo.a.interface.attributes().emulated.has(Capabilities::PUT_SHORT) {
        assert_eq!(put(), Ok(()), "not known here");
        duo.until("the refusal", || heard.get().is_some() || word() != 0);
        assert_eq!((heard.get(), word()), (Some(Error::Rejected), 0));
    } else if duo.b.domain.attributes().needs_region {
        // The target's device checks the key. A wire need not report a put that it refuses, but has to report a get.
        let refused = put().is_err() || {
            let outcome = Arc::new(Mutex::new(None));
            let seen = Arc::clone(&outcome);
            let completion = Completion::new(1, move |status| *seen.lock() = Some(status));
            let got = duo.a.ep().get_bcopy(8, |_| {}, key.address, &key, Some(&completion));
            got.is_err() || {
                duo.until("the refusal", || outcome.lock().is_some());
                outcome.lock().is_some_and(|outcome| outcome.is_err())
            }
        };
        assert_eq!((refused, word()), (true, 0));
    }
}

/// U41: heap, stack, static and mapped memory, once registered.
pub fn u41_any_registered_memory<R: Rig>() {
    static STATIC: [std::sync::atomic::AtomicU64; 8] = [const { std::sync::atomic::AtomicU64::new(0) }; 8];
    // Tests of several rigs run at once, and the static is one.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock();
    let duo = Duo::<R>::new();
    let mut heap = vec![0u64; 8];
    let mut stack = [0u64; 8];
    let mapped = duo.b.domain.allocate(64, &[Method::Map]).expect("pages");
    let places =
        [heap.as_mut_ptr().cast(), stack.as_mut_ptr().cast(), STATIC.as_ptr().cast_mut().cast(), mapped.address()];
    for (i, place) in places.into_iter().enumerate() {
        // SAFETY: 64 bytes that outlive the region and that nobody touches meanwhile.
        let region = unsafe { duo.b.domain.register(place, 64) }.expect("registers");
        let key = duo.b.key(&region, &duo.a);
        let data = pattern(64, i);
        duo.insist(|| duo.a.ep().put_short(&data[..32], key.address, &key));
        duo.insist(|| duo.a.ep().put_short(&data[32..40], key.address + 32, &key));
        duo.flush();
        let mut there = [0u8; 40];
        // SAFETY: the same memory.
        unsafe { crate::memory::copy::copy(there.as_mut_ptr(), place, 40) };
        assert_eq!(there, data[..40], "memory of kind {i}");
        assert_eq!(get(&duo, &key, 40), data[..40]);
    }
    assert_eq!(heap[7] | stack[7], 0);
}

/// U42: where there is a pointer, a store through it is seen by the peer.
pub fn u42_key_pointer<R: Rig>() {
    let duo = Duo::<R>::new();
    let (memory, key) = duo.remote(64);
    match duo.a.domain.key_pointer(&key, key.address + 8) {
        Ok(pointer) => {
            assert!(duo.a.domain.attributes().key_pointer);
            // SAFETY: inside the peer's allocation.
            unsafe { crate::memory::copy::store(pointer.cast::<u64>(), 42) };
            assert_eq!(bytes(&memory)[8], 42);
            assert_eq!(duo.a.domain.key_pointer(&key, key.address + 64), Err(Error::OutOfRange));
        }
        Err(error) => {
            assert!(matches!(error, Error::Unsupported(_)) && !duo.a.domain.attributes().key_pointer);
        }
    }
}

/// U43: methods are tried in order, and the result names the one that worked.
pub fn u43_allocation_methods<R: Rig>() {
    let duo = Duo::<R>::new();
    let domain = &duo.a.domain;
    let has_own = domain.attributes().max_alloc > 0;
    let memory = domain.allocate(10, &[Method::Domain, Method::Heap]).expect("memory");
    assert_eq!(memory.method(), if has_own { Method::Domain } else { Method::Heap });
    assert_eq!(domain.allocate(10, &[Method::Heap, Method::Domain]).expect("memory").method(), Method::Heap);
    let either = domain.allocate(10, &[Method::Huge, Method::Map]).expect("memory").method();
    assert_eq!(either == Method::Huge, domain.allocate(10, &[Method::Huge]).is_ok(), "{either:?}");
    // Pages of their own: not the heap's, and whole.
    let held = R::held();
    let pages = domain.allocate(1 << 20, &[Method::Map]).expect("pages");
    assert!(R::held().zip(held).is_none_or(|(now, before)| now < before + (1 << 18)), "it came from the heap");
    assert_eq!(pages.method(), Method::Map);
    assert!((pages.address() as usize).is_multiple_of(rustix::param::page_size()));
    assert_eq!(bytes(&pages)[(1 << 20) - 1], 0);
    drop(pages);
    match domain.allocate(10, &[Method::Huge]) {
        Ok(huge) => {
            assert_eq!(huge.method(), Method::Huge);
            let pages = std::fs::read_to_string("/proc/sys/vm/nr_hugepages").expect("a Linux with huge pages");
            assert_ne!(pages.trim(), "0", "the system has no huge pages");
            assert!((huge.address() as usize).is_multiple_of(1 << 20));
            assert_eq!(bytes(&huge), [0; 10]);
        }
        Err(error) => {
            assert!(matches!(error, Error::NoMemory | Error::Unsupported(_)), "{error}");
            let free = std::fs::read_to_string("/proc/sys/vm/nr_hugepages");
            assert!(free.is_err() || free.is_ok_and(|text| text.trim() == "0"), "the system has huge pages");
        }
    }
    if !has_own {
        assert!(matches!(domain.allocate(10, &[Method::Domain]), Err(Error::Unsupported(_))));
    } else {
        let all = domain.attributes().max_alloc;
        assert_eq!(domain.allocate(all + 1, &[Method::Domain]).map(drop), Err(Error::NoMemory));
        assert_eq!(domain.allocate(all + 1, &[Method::Domain, Method::Heap]).expect("heap").method(), Method::Heap);
    }
}

/// U57: registering the same memory again and again leaves nothing behind.
pub fn u57_registering_again<R: Rig>() {
    let duo = Duo::<R>::new();
    let mut memory = [0u8; 64];
    let resident = || {
        let text = std::fs::read_to_string("/proc/self/statm").expect("a Linux");
        text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("a number") * 4096
    };
    let mut ids = Vec::with_capacity(10);
    let pinned = || {
        let text = std::fs::read_to_string("/proc/self/status").expect("a Linux");
        let line = text.lines().find_map(|line| line.strip_prefix("VmPin:")).expect("a line");
        line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10
    };
    let (mut before, mut before_pinned, mut held) = (0, 0, None);
    for round in 0..100_000 {
        // SAFETY: the buffer outlives the region.
        let region = unsafe { duo.a.domain.register(memory.as_mut_ptr(), 64) }.expect("registers");
        if round % 10_000 == 0 {
            ids.push(region.key().id);
        }
        if round == 1000 {
            (before, before_pinned, held) = (resident(), pinned(), R::held());
        }
    }
    match (held, R::held()) {
        (Some(before), Some(after)) => assert!(after < before + 4096, "{before} bytes held, then {after}"),
        // Other tests of this process allocate too, so only a large leak can be told apart. Memory that a device can reach is
        // pinned: a registration that leaks keeps at least a page.
        _ => {
            assert!(resident() < before + (256 << 20), "{before} bytes resident, then {}", resident());
            assert!(pinned() < before_pinned + (128 << 20), "{before_pinned} bytes pinned, then {}", pinned());
        }
    }
    ids.dedup();
    assert_eq!(ids.len(), 10, "no registration's number comes back");
}
