//! U30 to U33: local keys, limits, scatter/gather.

use std::cell::RefCell;
use std::rc::Rc;

use super::rig::*;
use crate::transport::*;

/// U30: where zero-copy needs a region, none is an error.
pub fn u30_local_keys<R: Rig>() {
    let duo = Duo::<R>::new();
    let (_memory, key) = duo.remote(64);
    let (local, elsewhere) = (duo.a.memory(64), duo.a.memory(64));
    let bare = Iov { pointer: local.address(), length: 64, stride: 64, count: 1, region: None };
    // SAFETY: the buffers live past the flush.
    let attempt = |iov: Iov<'_>| unsafe { duo.a.ep().put_zcopy(&[iov], key.address, &key, None) };
    if duo.a.domain.attributes().needs_region {
        assert_eq!(attempt(bare).map_err(Error::code), Err(-5));
        if duo.a.can(Capabilities::AM_ZCOPY) {
            // SAFETY: as above.
            let message = unsafe { duo.a.ep().am_zcopy(0, &[], &[bare], None) };
            assert_eq!(message.map_err(Error::code), Err(-5));
        }
    } else {
        let _posted = duo.insist(|| attempt(bare));
    }
    assert_eq!(attempt(bare.with(elsewhere.region())).map_err(Error::code), Err(-5), "a region that does not cover it");
    let _posted = duo.insist(|| attempt(bare.with(local.region())));
    duo.flush();
}

/// U31: every transport takes 40 bytes as a short message or put.
pub fn u31_least_short<R: Rig>() {
    let duo = Duo::<R>::new();
    let attributes = duo.a.interface.attributes();
    assert!(attributes.am.max_short >= SHORT_LEAST && attributes.put.max_short >= SHORT_LEAST);
    let (memory, key) = duo.remote(64);
    duo.insist(|| duo.a.ep().am_short(0, 0, &[0; SHORT_LEAST - 8]));
    duo.insist(|| duo.a.ep().put_short(&[3; SHORT_LEAST], key.address, &key));
    duo.flush();
    assert_eq!(bytes(&memory)[..SHORT_LEAST], [3; SHORT_LEAST]);
}

/// U32: strided entries gather and scatter; one entry too many is an error.
pub fn u32_scatter_gather<R: Rig>() {
    let duo = Duo::<R>::new();
    let (memory, key) = duo.remote(256);
    let local = duo.a.memory(1024);
    let data = pattern(1024, 4);
    // SAFETY: our allocation.
    unsafe { local.address().copy_from(data.as_ptr(), 1024) };
    let strided = Iov { pointer: local.address(), length: 8, stride: 32, count: 16, region: Some(local.region()) };
    let gathered: Vec<u8> = (0..16).flat_map(|i| data[32 * i..32 * i + 8].to_vec()).collect();
    // SAFETY: the buffers live past the flush.
    let _posted = duo.insist(|| unsafe { duo.a.ep().put_zcopy(&[strided], key.address, &key, None) });
    duo.flush();
    assert_eq!(bytes(&memory)[..128], gathered);
    // And back, scattered into other memory.
    let back = duo.a.memory(1024);
    let into = Iov { pointer: back.address(), length: 4, stride: 9, count: 32, region: Some(back.region()) };
    // SAFETY: as above.
    let _posted = duo.insist(|| unsafe { duo.a.ep().get_zcopy(&[into], key.address, &key, None) });
    duo.flush();
    let scattered = bytes(&back);
    for i in 0..32 {
        assert_eq!(scattered[9 * i..9 * i + 4], gathered[4 * i..4 * i + 4]);
        assert_eq!(scattered[9 * i + 4..9 * i + 9], [0; 5], "between blocks nothing is touched");
    }
    let got = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&got);
    duo.b.interface.set_handler(0, Some(Box::new(move |m| *seen.borrow_mut() = m.data().to_vec()))).expect("id");
    let sends = duo.a.can(Capabilities::AM_ZCOPY);
    if sends {
        // SAFETY: as above.
        let _posted = duo.insist(|| unsafe { duo.a.ep().am_zcopy(0, &[], &[strided], None) });
        duo.until("the message", || !got.borrow().is_empty());
        assert_eq!(got.take(), gathered);
    }
    let one = Iov { pointer: local.address(), length: 1, stride: 1, count: 1, region: Some(local.region()) };
    let attributes = duo.a.interface.attributes();
    // SAFETY: as above.
    let put = |iov: &[Iov<'_>]| unsafe { duo.a.ep().put_zcopy(iov, key.address, &key, None) }.map(drop);
    // SAFETY: as above.
    let get = |iov: &[Iov<'_>]| unsafe { duo.a.ep().get_zcopy(iov, key.address, &key, None) }.map(drop);
    // SAFETY: as above.
    let send = |iov: &[Iov<'_>]| unsafe { duo.a.ep().am_zcopy(0, &[], iov, None) }.map(drop);
    type Post<'a> = &'a dyn Fn(&[Iov<'_>]) -> Result<()>;
    let posts: [(Post<'_>, usize); 3] =
        [(&put, attributes.put.max_iov), (&get, attributes.get.max_iov), (&send, attributes.am.max_iov)];
    // A last block outside the registration, a span and a sum of bytes that no number holds.
    let wrong = [
        Iov { stride: 64, count: 17, length: 8, ..one },
        Iov { stride: usize::MAX / 2, count: 3, ..one },
        Iov { length: usize::MAX / 2, stride: usize::MAX / 2, count: 3, ..one },
        Iov { length: 1025, ..one },
    ];
    for (post, max) in posts.into_iter().take(if sends { 3 } else { 2 }) {
        duo.insist(|| post(&vec![one; max]));
        assert!(matches!(post(&vec![one; max + 1]), Err(Error::ExceedsLimit { .. })));
        for (i, entry) in wrong.into_iter().enumerate() {
            assert_eq!(post(&[one, entry]).map_err(Error::code), Err(-5), "wrong entry {i}");
            let bare = Iov { region: None, ..entry };
            if (1..=2).contains(&i) {
                assert_eq!(post(&[one, bare]).map_err(Error::code), Err(-5), "wrong entry {i} without a region");
            }
        }
        // An empty transfer is valid, whether the length or the count is 0.
        for nothing in [Iov { length: 0, ..one }, Iov { count: 0, ..one }] {
            duo.insist(|| post(&[nothing]));
        }
    }
    duo.flush();
}

/// U33: at the limit is right, one more is an error, for each limit.
pub fn u33_limits_are_exact<R: Rig>() {
    let duo = Duo::<R>::new();
    let attributes = *duo.a.interface.attributes();
    let most = attributes.put.max_zcopy.max(attributes.am.max_bcopy) + 1;
    let (_memory, key) = duo.remote(most);
    let local = duo.a.memory(most);
    let exceeds = |outcome: Result<()>| {
        assert!(matches!(outcome, Err(Error::ExceedsLimit { .. })), "{outcome:?}");
        assert_eq!(outcome.map_err(Error::code), Err(-5), "to UCT a wrong length is an invalid parameter");
    };
    let ep = duo.a.ep();
    let iov =
        |length| [Iov { pointer: local.address(), length, stride: length, count: 1, region: Some(local.region()) }];
    let buffer = vec![0u8; most];
    duo.insist(|| ep.put_short(&buffer[..attributes.put.max_short], key.address, &key));
    exceeds(ep.put_short(&buffer[..attributes.put.max_short + 1], key.address, &key));
    // SAFETY: the buffers live past the flush.
    let put = |length| unsafe { ep.put_zcopy(&iov(length), key.address, &key, None) }.map(drop);
    // SAFETY: as above.
    let get = |length| unsafe { ep.get_zcopy(&iov(length), key.address, &key, None) }.map(drop);
    // SAFETY: as above.
    let send = |header: usize, length| unsafe { ep.am_zcopy(0, &buffer[..header], &iov(length), None) }.map(drop);
    if R::SHORTEN <= 100 {
        duo.insist(|| put(attributes.put.max_zcopy));
        duo.insist(|| get(attributes.get.max_zcopy));
    }
    exceeds(put(attributes.put.max_zcopy + 1));
    exceeds(get(attributes.get.max_zcopy + 1));
    if duo.a.can(Capabilities::AM_ZCOPY) {
        duo.insist(|| send(attributes.am.max_header, attributes.am.max_zcopy));
        exceeds(send(attributes.am.max_header + 1, 0));
        exceeds(send(0, attributes.am.max_zcopy + 1));
    }
    let (short, packed) = (attributes.am.max_short, attributes.am.max_bcopy);
    duo.insist(|| ep.am_short(0, 0, &buffer[..short - 8]));
    exceeds(ep.am_short(0, 0, &buffer[..short - 7]));
    duo.insist(|| ep.am_bcopy(0, packed, |to| to.len()).map(drop));
    exceeds(ep.am_bcopy(0, packed + 1, |_| panic!("packs nothing")).map(drop));
    duo.insist(|| ep.put_bcopy(attributes.put.max_bcopy, |to| to.len(), key.address, &key).map(drop));
    exceeds(ep.put_bcopy(attributes.put.max_bcopy + 1, |_| panic!("packs nothing"), key.address, &key).map(drop));
    duo.insist(|| ep.get_bcopy(attributes.get.max_bcopy, |_| {}, key.address, &key, None).map(drop));
    let unpack = |_: &[u8]| panic!("unpacks nothing");
    exceeds(ep.get_bcopy(attributes.get.max_bcopy + 1, unpack, key.address, &key, None).map(drop));
    // No bytes are a right length of everything; a packing function that says more than its room is not believed.
    duo.insist(|| ep.put_short(&[], key.address, &key));
    duo.insist(|| ep.am_bcopy(0, 0, |to| to.len()).map(drop));
    assert_eq!(duo.insist(|| ep.put_bcopy(8, |_| 9, key.address, &key)), 8);
    assert_eq!(duo.insist(|| ep.am_bcopy(0, 8, |_| 9)), 8);
    duo.insist(|| put(0));
    duo.insist(|| get(0));
    if attributes.get.max_short > 0 {
        let mut to = vec![0; attributes.get.max_short + 1];
        let (fits, all) = (attributes.get.max_short, to.len());
        assert_eq!(ep.get_short(&mut to[..fits], key.address, &key), Ok(()));
        exceeds(ep.get_short(&mut to[..all], key.address, &key));
    }
    // Beyond the registered memory.
    let end = key.address + key.len;
    for (remote, len) in [(end, 1), (end - 7, 8), (key.address - 1, 1), (u64::MAX - 3, 8)] {
        assert_eq!(ep.put_short(&buffer[..len], remote, &key), Err(Error::OutOfRange));
    }
    duo.flush();
}
