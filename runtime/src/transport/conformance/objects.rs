//! U1 to U3: objects, capabilities, constants.

use std::rc::Rc;

use super::rig::*;
use crate::transport::*;

/// U1: md, worker, interface, endpoint open and close in order; resources have figures.
pub fn u01_objects<R: Rig>() {
    let rig = R::new(2);
    let transport = rig.transport(0);
    let resources = transport.resources();
    assert!(!resources.is_empty());
    for resource in &resources {
        for figure in [resource.bandwidth, resource.latency, resource.message_rate] {
            assert!(figure > 0.0 && figure.is_finite(), "{resource:?}");
        }
        assert!(!resource.transport.is_empty());
    }
    let mut stranger = resources[0].clone();
    stranger.device.push('?');
    assert!(transport.open(&stranger).is_err());
    let domain = transport.open(&resources[0]).expect("opens");
    let worker = Worker::new();
    let interface = domain.open_interface(&worker, R::options()).expect("opens");
    assert_eq!(interface.address().len(), interface.attributes().address_len);
    let endpoint = interface.connect(&interface.address()).expect("connects to itself");
    assert_eq!(Rc::strong_count(&interface), 2);
    drop(endpoint);
    assert_eq!(Rc::strong_count(&interface), 1, "an endpoint left nothing behind");
    let gone = Rc::downgrade(&interface);
    drop(interface);
    assert!(gone.upgrade().is_none());
    assert_eq!(worker.progress(), 0);
    drop((worker, domain));
}

/// U2: a set flag works, a clear one answers Unsupported.
pub fn u02_capabilities_are_attributes<R: Rig>() {
    use Capabilities as Can;
    type Try<R> = fn(&Duo<R>, &RemoteKey) -> Result<()>;
    let mut source = vec![7u8; 8];
    // One of the two.
    let atomic = if Duo::<R>::new().a.can(Can::ATOMIC_DEVICE) { Can::ATOMIC_DEVICE } else { Can::ATOMIC_CPU };
    let tries: [(Can, Try<R>); 9] = [
        (Can::AM_SHORT, |duo, _| duo.a.ep().am_short(0, 1, &[])),
        (Can::AM_BCOPY, |duo, _| duo.a.ep().am_bcopy(0, 4, |to| to.len()).map(drop)),
        (Can::AM_ZCOPY, |duo, _| {
            // SAFETY: the list is empty.
            unsafe { duo.a.ep().am_zcopy(0, b"h", &[], None) }.map(drop)
        }),
        (Can::PUT_SHORT, |duo, key| duo.a.ep().put_short(b"8 bytes!", key.address, key)),
        (Can::PUT_BCOPY, |duo, key| duo.a.ep().put_bcopy(8, |to| to.len(), key.address, key).map(drop)),
        (Can::GET_SHORT, |duo, key| duo.a.ep().get_short(&mut [0; 8], key.address, key)),
        (Can::GET_BCOPY, |duo, key| duo.a.ep().get_bcopy(8, |_| {}, key.address, key, None).map(drop)),
        (atomic, |duo, key| duo.a.ep().atomic_post(AtomicOp::Add, 1u64, key.address, key)),
        (Can::PUT_ZCOPY, |duo, key| {
            // SAFETY: the list is empty.
            unsafe { duo.a.ep().put_zcopy(&[], key.address, key, None) }.map(drop)
        }),
    ];
    for (flag, attempt) in tries {
        let duo = Duo::<R>::new();
        let (memory, key) = duo.remote(64);
        if duo.a.can(flag) {
            duo.insist(|| attempt(&duo, &key));
            duo.flush();
        } else {
            assert!(matches!(attempt(&duo, &key), Err(Error::Unsupported(_))), "{flag:?} is clear");
        }
        drop(memory);
        let duo = Duo::<R>::with(InterfaceOptions { without: flag, ..R::options() });
        let (_memory, key) = duo.remote(64);
        assert!(!duo.a.can(flag));
        assert!(matches!(attempt(&duo, &key), Err(Error::Unsupported(_))), "{flag:?} was taken away");
    }
    let duo = Duo::<R>::with(InterfaceOptions { without: Can::GET_ZCOPY.and(Can::PENDING), ..R::options() });
    let (_memory, key) = duo.remote(64);
    // SAFETY: refused, and the buffer lives on.
    let refused = unsafe { duo.a.ep().get_zcopy(&[Iov::write(&mut source)], key.address, &key, None) };
    assert!(matches!(refused, Err(Error::Unsupported(_))));
    let refused = duo.a.ep().pending_add(Box::new(|| Resume::Done)).expect_err("not offered");
    assert!(matches!(refused.error, Error::Unsupported(_)));
    assert!(duo.a.interface.attributes().emulated.without(duo.a.interface.attributes().capabilities) == Can::NONE);
}

/// U3: bit numbers.
pub fn u03_capability_bits<R: Rig>() {
    use Capabilities as Can;
    // Told at run time, so that a wrong number is a failing test and not a failing build.
    let bits = [
        (0, Can::AM_SHORT),
        (1, Can::AM_BCOPY),
        (2, Can::AM_ZCOPY),
        (3, Can::PENDING),
        (4, Can::PUT_SHORT),
        (5, Can::PUT_BCOPY),
        (6, Can::PUT_ZCOPY),
        (8, Can::GET_SHORT),
        (9, Can::GET_BCOPY),
        (10, Can::GET_ZCOPY),
        (30, Can::ATOMIC_CPU),
        (31, Can::ATOMIC_DEVICE),
        (32, Can::ERRHANDLE_SHORT),
        (33, Can::ERRHANDLE_BCOPY),
        (34, Can::ERRHANDLE_ZCOPY),
        (35, Can::ERRHANDLE_AM_ID),
        (36, Can::ERRHANDLE_REMOTE_MEM),
        (37, Can::ERRHANDLE_BCOPY_LEN),
        (38, Can::ERRHANDLE_PEER_FAILURE),
        (39, Can::EP_CHECK),
        (40, Can::CONNECT_TO_IFACE),
        (41, Can::CONNECT_TO_EP),
        (42, Can::CONNECT_TO_SOCKADDR),
        (43, Can::AM_DUP),
        (44, Can::CB_SYNC),
        (45, Can::CB_ASYNC),
        (46, Can::EP_KEEPALIVE),
        (50, Can::TAG_EAGER_SHORT),
        (51, Can::TAG_EAGER_BCOPY),
        (52, Can::TAG_EAGER_ZCOPY),
        (53, Can::TAG_RNDV_ZCOPY),
        (54, Can::INTER_NODE),
    ];
    for (bit, flag) in bits {
        assert_eq!(flag.0, 1 << bit, "{flag:?}");
    }
    let events = [
        Events::SEND_COMPLETION,
        Events::RECEIVE,
        Events::RECEIVE_SIGNALED,
        Events::DESCRIPTOR,
        Events::ASYNC_CALLBACK,
    ];
    assert_eq!(events.map(|event| event.0), [1, 2, 4, 8, 16]);
    assert_eq!([Flush::LOCAL, Flush::CANCEL, Flush::REMOTE].map(|flag| flag.0), [0, 1, 2]);
    let codes = [
        (-2, Error::NoResource),
        (-5, Error::InvalidParam("")),
        (-15, Error::Busy),
        (-16, Error::Canceled),
        (-22, Error::Unsupported("")),
    ];
    for (code, error) in codes {
        assert_eq!(error.code(), code, "{error:?}");
    }
    assert_eq!(key::INVALID_KEY, u64::MAX);
    assert_eq!(AtomicOp::ALL.map(|op| op as u8), [0, 1, 2, 3, 4, 5]);
    let _ = R::SHORTEN;
}
