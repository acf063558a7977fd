//! Rows about handles, settings, tables and counters.

use std::ptr::{null, null_mut};

use bellwether_runtime::vocabulary::lapi::raw::{self, Handle, Info, query};
use bellwether_runtime::vocabulary::lapi::{Counter, LOC_ADDRTBL_SZ, codes};

use super::handlers::{Header, INLINE, TAKE, THEN, lock, seen, send};
use super::{Task, all, get, gfence, ok, place, query as ask, wait, watchdog};

pub(super) fn l31(task: &Task) {
    let handle = task.init();
    let counter = Counter::new();
    counter.set(5);
    assert_eq!(wait(handle, &counter, 3, "3 of 5"), 2);
    assert_eq!(wait(handle, &counter, 2, "2 of 2"), 0);
    counter.set(1);
    // SAFETY: a valid counter; nothing is stored.
    ok(unsafe { raw::waitcntr(handle, &counter, 1, null_mut()) }, "without a place for what is left");
    assert_eq!(counter.value(), 0);
    task.term(handle);
}

pub(super) fn l33(task: &Task) {
    let handle = task.init();
    let counter = Counter::new();
    assert_eq!(get(handle, &counter), 0);
    counter.set(3);
    assert_eq!((get(handle, &counter), get(handle, &counter)), (3, 3));
    // In polling mode each call polls: nothing else lets the message of the task before in.
    ok(raw::senv(handle, query::INTERRUPT_SET, 0), "polling mode");
    let (me, n) = place(handle);
    let (next, target) = ((me + 1) % n, Counter::new());
    let at_next = all(handle, target.address() as u64)[next] as *const Counter;
    ok(send(handle, next, TAKE, &Header::default(), &[1; 8], [at_next, null(), null()]), "send");
    watchdog::at("getcntr in a loop");
    while get(handle, &target) == 0 {}
    assert_eq!(get(handle, &target), 1, "still");
    gfence(handle);
    task.term(handle);
}

pub(super) fn l34(task: &Task) {
    let handle = task.init();
    let counter = Counter::new();
    // SAFETY: a valid counter.
    ok(unsafe { raw::setcntr(handle, &counter, 7) }, "setcntr");
    assert_eq!(get(handle, &counter), 7);
    task.term(handle);
}

pub(super) fn l35(task: &Task) {
    let handle = task.init();
    let (counter, mut value) = (Counter::new(), -1);
    counter.set(2);
    // SAFETY: null or valid.
    unsafe {
        assert_eq!(raw::setcntr(handle, null(), 1), codes::CNTR_NULL);
        assert_eq!(raw::getcntr(handle, null(), &mut value), codes::CNTR_NULL);
        assert_eq!(raw::waitcntr(handle, null(), 1, &mut value), codes::CNTR_NULL);
        assert_eq!(raw::getcntr(handle, &counter, null_mut()), codes::RET_PTR_NULL);
    }
    assert_eq!((value, counter.value()), (-1, 2), "nothing moved");
    task.term(handle);
}

pub(super) fn l52(task: &Task) {
    let handle = task.init();
    let (me, n) = place(handle);
    for round in 0..3 {
        let expected: Vec<u64> = (0..n as u64).map(|of| of * 1000 + round).collect();
        assert_eq!(all(handle, me as u64 * 1000 + round), expected);
    }
    // SAFETY: null is refused, on every task alike.
    assert_eq!(unsafe { raw::address_init(handle, 1, null_mut()) }, codes::ADDR_TBL_NULL);
    task.term(handle);
}

pub(super) fn l53(task: &Task) {
    let handle = task.init();
    assert_eq!(ask(handle, query::LOC_ADDRTBL_SZ), LOC_ADDRTBL_SZ as i32);
    let address = |index| {
        let mut address = 99;
        // SAFETY: a valid place.
        (unsafe { raw::addr_get(handle, &mut address, index) }, address)
    };
    for index in [-1, 0, LOC_ADDRTBL_SZ as i32, i32::MAX, i32::MIN] {
        // SAFETY: refused.
        assert_eq!(unsafe { raw::addr_set(handle, 1, index) }, codes::ADDR_HNDL_RANGE, "{index}");
        assert_eq!(address(index), (codes::ADDR_HNDL_RANGE, 99), "{index}");
    }
    // The first is taken by the rows of messages.
    for index in [2, LOC_ADDRTBL_SZ as i32 - 1] {
        assert_eq!(address(index), (codes::SUCCESS, 0), "not set yet");
        // SAFETY: no task sends to this index.
        ok(unsafe { raw::addr_set(handle, 0x1234_5678, index) }, "set");
        assert_eq!(address(index), (codes::SUCCESS, 0x1234_5678));
    }
    // SAFETY: null is refused.
    assert_eq!(unsafe { raw::addr_get(handle, null_mut(), 1) }, codes::RET_PTR_NULL);
    task.term(handle);
}

pub(super) fn l55(task: &Task) {
    let mut handle = 77;
    let mut odd = Info::default();
    odd.reserved[9] = 1;
    // SAFETY: null or valid.
    unsafe {
        assert_eq!(raw::init(&task.job, &mut handle, null()), codes::INFO_NULL);
        assert_eq!(raw::init(&task.job, &mut handle, &odd), codes::INFO_NONZERO);
        assert_eq!(raw::init(&task.job, null_mut(), &Info::default()), codes::RET_PTR_NULL);
    }
    assert_eq!(handle, 77, "nothing was made");
    let handle = task.init();
    let mut second = 77;
    // SAFETY: valid.
    assert_eq!(unsafe { raw::init(&task.job, &mut second, &Info::default()) }, codes::ALL_HNDL_IN_USE);
    assert_eq!(second, 77);
    assert!(handle != 0);
    task.term(handle);
}

pub(super) fn l56(task: &Task) {
    let mut used: Vec<u32> = Vec::new();
    for _ in 0..3 {
        let handle = task.init();
        assert!(!used.contains(&handle), "{handle} was used before: {used:?}");
        let (me, _) = place(handle);
        let counter = Counter::new();
        for old in used.iter().copied().chain([0, handle + 64_000, u32::MAX]) {
            let (mut value, mut address) = (-1, 5);
            let mut table = [7; 64];
            // SAFETY: all pointers are valid.
            let outcomes = unsafe {
                [
                    raw::term(old),
                    raw::qenv(old, query::TASK_ID, &mut value),
                    raw::senv(old, query::ERROR_CHK, 0),
                    raw::address_init(old, 1, table.as_mut_ptr()),
                    raw::addr_set(old, 1, 1),
                    raw::addr_get(old, &mut address, 1),
                    raw::setcntr(old, &counter, 1),
                    raw::getcntr(old, &counter, &mut value),
                    raw::waitcntr(old, &counter, 0, &mut value),
                    raw::probe(old),
                ]
            };
            assert_eq!(outcomes, [codes::HNDL_INVALID; 10], "{old}");
            assert_eq!((value, address, counter.value(), table), (-1, 5, 0, [7; 64]), "nothing moved");
        }
        assert_eq!(place(handle).0, me);
        task.term(handle);
        used.push(handle);
    }
}

pub(super) fn l57(task: &Task) {
    let handle = task.init();
    let (me, n) = place(handle);
    let numbers = all(handle, me as u64);
    assert_eq!(numbers, (0..n as u64).collect::<Vec<_>>());
    assert!(ask(handle, query::MAX_UHDR_SZ) >= 128 && ask(handle, query::MAX_DATA_SZ) > 1 << 30);
    let (least, most) = (ask(handle, query::MIN_TIMEOUT), ask(handle, query::MAX_TIMEOUT));
    assert!(least <= ask(handle, query::TIMEOUT) && ask(handle, query::TIMEOUT) <= most);
    let mut value = -1;
    for bad in [-1, 21, i32::MAX, i32::MIN] {
        // SAFETY: a valid place.
        assert_eq!(unsafe { raw::qenv(handle, bad, &mut value) }, codes::QUERY_TYPE);
        assert_eq!(raw::senv(handle, bad, 1), codes::QUERY_TYPE);
    }
    assert_eq!(value, -1);
    // SAFETY: null is refused.
    assert_eq!(unsafe { raw::qenv(handle, query::TASK_ID, null_mut()) }, codes::RET_PTR_NULL);
    // All names of the header, and none beyond.
    const SETTABLE: [i32; 4] = [query::ERROR_CHK, query::TIMEOUT, query::INTERRUPT_SET, query::ACK_THRESHOLD];
    for name in query::TASK_ID..=query::ACK_THRESHOLD {
        assert!(ask(handle, name) >= 0, "{name}");
        if !SETTABLE.contains(&name) {
            assert_eq!(raw::senv(handle, name, 1), codes::QUERY_TYPE, "{name}");
        }
    }
    assert_eq!(ask(handle, query::ACK_THRESHOLD), 30);
    for (value, code) in [(0, codes::SET_VAL), (31, codes::SET_VAL), (1, codes::SUCCESS), (30, codes::SUCCESS)] {
        assert_eq!(raw::senv(handle, query::ACK_THRESHOLD, value), code, "{value}");
    }
    ok(raw::senv(handle, query::ACK_THRESHOLD, 7), "a threshold");
    assert_eq!(ask(handle, query::ACK_THRESHOLD), 7);
    assert_eq!(raw::senv(handle, query::TIMEOUT, least - 1), codes::SET_VAL);
    assert_eq!(raw::senv(handle, query::TIMEOUT, most + 1), codes::SET_VAL);
    ok(raw::senv(handle, query::TIMEOUT, least), "the least timeout");
    assert_eq!((ask(handle, query::TIMEOUT), place(handle)), (least, (me, n)));
    task.term(handle);
}

pub(super) fn l58(task: &Task) {
    let handle = task.init();
    assert_eq!(ask(handle, query::ERROR_CHK), 1);
    assert_eq!(raw::senv(handle, query::ERROR_CHK, 2), codes::SET_VAL);
    assert_eq!(ask(handle, query::ERROR_CHK), 1);
    ok(raw::senv(handle, query::ERROR_CHK, 0), "no checks");
    assert_eq!(ask(handle, query::ERROR_CHK), 0);
    task.term(handle);
}

pub(super) fn l60(task: &Task) {
    let handle = task.init();
    for _ in 0..10 {
        ok(raw::probe(handle), "nothing to do");
    }
    ok(raw::senv(handle, query::INTERRUPT_SET, 0), "polling mode");
    // Every task has its handler, and makes no progress but by probes.
    gfence(handle);
    let (me, n) = place(handle);
    let data = vec![me as u8; 20_000];
    for (tag, len) in [(1, 8), (2, 20_000)] {
        let header = Header { tag, ..Header::default() };
        ok(send(handle, (me + 1) % n, TAKE, &header, &data[..len], [null(); 3]), "send");
        watchdog::at("probes in a loop");
        let seen = seen(handle);
        while !lock(&seen).calls.iter().any(|call| call.header.tag == tag) {
            ok(raw::probe(handle), "probe");
        }
    }
    gfence(handle);
    task.term(handle);
    assert_eq!(raw::probe(handle), codes::HNDL_INVALID);
}

pub(super) fn l64(task: &Task) {
    let mut text = [1u8; 200];
    let mut tell = |code, room: usize| {
        text.fill(1);
        // SAFETY: `text` has at least `room` bytes.
        let outcome = unsafe { raw::msg_string(code, text.as_mut_ptr(), room) };
        let len = text.iter().position(|byte| *byte == 0);
        (outcome, len.map(|len| String::from_utf8(text[..len].to_vec()).expect("text")))
    };
    // Before Init.
    for (number, name, known) in codes::CODES {
        assert_eq!(tell(*number, 200), (codes::SUCCESS, Some((*known).into())), "{name}");
        assert_eq!(tell(*number, 5), (codes::SUCCESS, Some(known[..4].into())), "{name}");
    }
    for number in [-1, 1, 400, 520, i32::MAX] {
        assert_eq!(tell(number, 200), (codes::CODE_UNKNOWN, None));
    }
    assert_eq!(tell(0, 0), (codes::RET_PTR_NULL, None));
    // SAFETY: null is refused.
    assert_eq!(unsafe { raw::msg_string(0, null_mut(), 9) }, codes::RET_PTR_NULL);
    task.term(task.init());
}

pub(super) fn l65(task: &Task) {
    let handle = task.init();
    let (me, _) = place(handle);
    let from_elsewhere = std::thread::spawn(move || {
        let mut value = -1;
        // SAFETY: a valid place.
        (unsafe { raw::qenv(handle, query::TASK_ID, &mut value) }, value)
    });
    let from_elsewhere = from_elsewhere.join().expect("does not panic");
    if task.virtual_time {
        assert_eq!(from_elsewhere, (codes::HNDL_INVALID, -1), "ranks take turns on a simulated network");
        return task.term(handle);
    }
    assert_eq!(from_elsewhere, (codes::SUCCESS, me as i32));
    // Each thread waits for the one before it, while the others wait too.
    let counters = [const { Counter::new() }; 4];
    let count = 200;
    std::thread::scope(|scope| {
        for i in 0..4 {
            let (mine, next) = (&counters[i], &counters[(i + 1) % 4]);
            scope.spawn(move || {
                for round in 0..count {
                    if i != 0 || round != 0 {
                        // SAFETY: a valid counter.
                        ok(unsafe { raw::waitcntr(handle, mine, 1, null_mut()) }, "my turn");
                    }
                    // SAFETY: a valid counter; no other thread changes it now.
                    ok(unsafe { raw::setcntr(handle, next, 1) }, "the next one's turn");
                }
            });
        }
    });
    assert_eq!(counters.each_ref().map(Counter::value), [1, 0, 0, 0]);
    messages_of_threads(handle);
    task.term(handle);
}

/// Four threads of each task send to all tasks: every message is handled once, with its own data.
fn messages_of_threads(handle: Handle) {
    const EACH: usize = 60;
    let (me, n) = place(handle);
    let data = |tag: usize| vec![tag as u8; [8, 300, 20_000][tag % 3]];
    gfence(handle);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let completion = Counter::new();
                let tags = (0..EACH).map(|number| (4 * me + thread) * EACH + number);
                let kept: Vec<_> = tags.map(|tag| (tag, data(tag))).collect();
                for (tag, data) in &kept {
                    let mode = THEN | if tag % 2 == 0 { INLINE } else { 0 };
                    let header = Header { mode, tag: *tag as u32, address: 0 };
                    ok(send(handle, tag % n, TAKE, &header, data, [null(), null(), &completion]), "send");
                }
                assert_eq!(wait(handle, &completion, EACH as i32, "this thread's messages"), 0);
            });
        }
    });
    gfence(handle);
    let seen = seen(handle);
    let seen = lock(&seen);
    let mut came = seen.done.clone();
    came.sort();
    let expected: Vec<_> = (0..4 * n * EACH).filter(|tag| tag % n == me).map(|tag| (tag as u32, data(tag))).collect();
    assert!(came == expected, "{} messages of {}", came.len(), expected.len());
    assert!(seen.calls.iter().all(|call| call.depth == 1), "handlers do not nest");
}
