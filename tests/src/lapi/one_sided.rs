//! Rows about puts, gets and atomic operations.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU8, Ordering};

use bellwether_runtime::vocabulary::lapi::raw::{self, Handle, rmw_op};
use bellwether_runtime::vocabulary::lapi::{Counter, codes};

use super::{Task, all, get as value, gfence, ok, place, wait};
use crate::watchdog;

const LENGTHS: [usize; 9] = [1, 7, 8, 24, 200, 4096, 8 << 10, (8 << 10) + 1, 300_001];

pub(super) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 13 + seed * 5 + i / 251) as u8).collect()
}

/// Memory that other tasks write while this one looks.
pub(super) struct Shared(Box<[UnsafeCell<u8>]>);

impl Shared {
    pub(super) fn new(len: usize) -> Shared {
        Shared((0..len).map(|_| UnsafeCell::new(0)).collect())
    }

    pub(super) fn address(&self) -> u64 {
        self.0.as_ptr() as u64
    }

    /// The bytes, at a time when no task writes them.
    pub(super) fn bytes(&self) -> Vec<u8> {
        // SAFETY: the row has waited for the operations that write the bytes.
        self.0.iter().map(|byte| unsafe { *byte.get() }).collect()
    }
}

pub(super) fn put(
    handle: Handle,
    to: usize,
    address: u64,
    data: &[u8],
    [target, origin, completion]: [*const Counter; 3],
) -> i32 {
    let (there, here, len) = (address as *mut c_void, data.as_ptr().cast(), data.len() as u64);
    // SAFETY: rows give memory of the target, and keep data and counters until the counters have moved.
    unsafe { raw::put(handle, to as u32, len, there, here, target, origin, completion) }
}

/// Runs `body` with a handle, the own number, and the next and the previous task.
pub(super) fn with(task: &Task, body: impl FnOnce(Handle, usize, usize, usize)) {
    let handle = task.init();
    let (me, n) = place(handle);
    // Every task has its handlers.
    gfence(handle);
    body(handle, me, (me + 1) % n, (me + n - 1) % n);
    gfence(handle);
    task.term(handle);
}

pub(super) fn l38(task: &Task) {
    with(task, |handle, me, next, before| {
        let [target, origin, completion] = [const { Counter::new() }; 3];
        let at_next = all(handle, target.address() as u64)[next] as *const Counter;
        for len in LENGTHS {
            let memory = Shared::new(len + 1);
            let there = all(handle, memory.address())[next];
            let mut data = pattern(me, len);
            ok(put(handle, next, there, &data, [at_next, &origin, &completion]), "put");
            wait(handle, &origin, 1, "the source may be changed");
            data.fill(0xFF);
            wait(handle, &target, 1, "data from the task before");
            assert!(memory.bytes() == [pattern(before, len), vec![0]].concat(), "{len} bytes");
            wait(handle, &completion, 1, "in effect at the target");
            gfence(handle);
        }
        assert_eq!([&target, &origin, &completion].map(|counter| value(handle, counter)), [0; 3]);
    });
}

pub(super) fn l39(task: &Task) {
    with(task, |handle, me, next, _| {
        let [target, origin] = [const { Counter::new() }; 2];
        let at_next = all(handle, target.address() as u64)[next] as *const Counter;
        for len in LENGTHS {
            let mut own = pattern(me, len);
            let there = all(handle, own.as_mut_ptr() as u64)[next];
            let memory = Shared::new(len + 1);
            let here = memory.address() as *mut c_void;
            // SAFETY: memory of the next task, and our own, until the counters have moved.
            ok(
                unsafe { raw::get(handle, next as u32, len as u64, there as *const c_void, here, at_next, &origin) },
                "get",
            );
            wait(handle, &origin, 1, "the data is here");
            assert!(memory.bytes() == [pattern(next, len), vec![0]].concat(), "{len} bytes");
            wait(handle, &target, 1, "the memory of this task may be changed");
            own.fill(0xFF);
            std::hint::black_box(&own);
            gfence(handle);
        }
        assert_eq!([&target, &origin].map(|counter| value(handle, counter)), [0; 2]);
    });
}

/// Static data: symmetric memory where that is set.
#[repr(align(64))]
struct Static<const N: usize>([UnsafeCell<u8>; N]);
// SAFETY: each row states at its accesses which task writes when.
unsafe impl<const N: usize> Sync for Static<N> {}

static AREA: Static<{ 20 << 10 }> = Static([const { UnsafeCell::new(0) }; 20 << 10]);
static ARRIVED: Counter = Counter::new();
/// The counter of l38_attached alone: where tasks are threads, rows may run at the same time.
static SAID: Counter = Counter::new();
static FREE: Counter = Counter::new();
static WORD: AtomicI64 = AtomicI64::new(0);

/// Spins without a call until `done` holds.
fn spin_until(what: &str, done: impl Fn() -> bool) {
    watchdog::at(format!("without a call: {what}"));
    while !done() {
        std::thread::yield_now();
    }
}

pub(super) fn l38_statics(task: &Task) {
    with(task, |handle, me, _, _| {
        ok(raw::senv(handle, raw::query::INTERRUPT_SET, 0), "polling mode");
        let last = place(handle).1 - 1;
        let area = all(handle, AREA.0.as_ptr() as u64)[last];
        let [arrived, free, word] = [ARRIVED.address(), FREE.address(), WORD.as_ptr() as usize]
            .map(|address| all(handle, address as u64)[last] as usize);
        // With statics that are mapped only the counters need the last task's help.
        let alone = task.maps_statics && me != 0;
        let [origin, completion] = [const { Counter::new() }; 2];
        for (round, len) in (1..).zip([1, 8, 24, 25, 5000, 20 << 10]) {
            let data = pattern(len, len);
            if me == 0 {
                ok(put(handle, last, area, &data, [arrived as *const Counter, &origin, &completion]), "put");
            }
            if me == last {
                if alone {
                    // SAFETY: a byte of a static, which others write atomically or not at all.
                    let end = unsafe { AtomicU8::from_ptr(AREA.0[len - 1].get()) };
                    spin_until("a put to static data", || end.load(Ordering::Acquire) == data[len - 1]);
                }
                wait(handle, &ARRIVED, 1, "the data of the put");
                // SAFETY: the task that puts waits for the task that gets, and that task has waited for the counter.
                let here = unsafe { std::slice::from_raw_parts(AREA.0.as_ptr().cast::<u8>(), len) };
                assert!(here == data, "{len} bytes");
            }
            if me == 0 {
                wait(handle, &origin, 1, "the source may be changed");
                wait(handle, &completion, 1, "in effect at the target");
                let memory = Shared::new(len);
                let (there, here) = (area as *const c_void, memory.address() as *mut c_void);
                // SAFETY: memory of the last task, and our own, until the counters have moved.
                ok(
                    unsafe { raw::get(handle, last as u32, len as u64, there, here, free as *const Counter, &origin) },
                    "get",
                );
                wait(handle, &origin, 1, "the data is here");
                assert!(memory.bytes() == data, "{len} bytes");
                let mut before = -1;
                // SAFETY: a word of the last task, and our own, until the counter has moved.
                ok(
                    unsafe {
                        let (op, word) = (rmw_op::FETCH_AND_ADD, word as *mut i64);
                        raw::rmw64(handle, op, last as u32, word, &3, &mut before, &origin)
                    },
                    "rmw",
                );
                wait(handle, &origin, 1, "the word before");
                assert_eq!(before, 3 * (round - 1));
            }
            if me == last {
                wait(handle, &FREE, 1, "the memory may be changed");
                while WORD.load(Ordering::Acquire) != 3 * round {
                    match alone {
                        true => std::thread::yield_now(),
                        false => ok(raw::probe(handle), "probe"),
                    }
                }
            }
            gfence(handle);
        }
        gfence(handle);
        if me == last {
            WORD.store(0, Ordering::Release);
        }
        gfence(handle);
    });
}

pub(super) fn l38_attached(task: &Task) {
    const LEN: usize = 64 << 10;
    with(task, |handle, me, _, _| {
        ok(raw::senv(handle, raw::query::INTERRUPT_SET, 0), "polling mode");
        let last = place(handle).1 - 1;
        let memory: Box<[AtomicU8]> = (0..LEN).map(|_| AtomicU8::new(7)).collect();
        let there = all(handle, memory.as_ptr() as u64)[last];
        let said = all(handle, (&raw const SAID) as u64)[last] as *const Counter;
        let origin = Counter::new();
        if me == 0 {
            let (got, data) = (Shared::new(LEN), vec![9; LEN]);
            let (from, here) = (there as *const c_void, got.address() as *mut c_void);
            // SAFETY: memory of the last task, which changes it after this task's put.
            ok(unsafe { raw::get(handle, last as u32, LEN as u64, from, here, null(), &origin) }, "get");
            wait(handle, &origin, 1, "the data is here");
            assert!(got.bytes() == vec![7; LEN]);
            ok(put(handle, last, there, &data, [null(), &origin, null()]), "put");
            wait(handle, &origin, 1, "the source may be changed");
            // Where it was put by message, the last task has to make progress, and needs to know.
            ok(put(handle, last, 0, &[], [said, null(), null()]), "the target's counter");
        }
        if me == last {
            if task.attaches && me != 0 {
                spin_until("a long put", || memory[LEN - 1].load(Ordering::Acquire) == 9);
            }
            wait(handle, &SAID, 1, "the target's counter");
        }
        gfence(handle);
        if me == last {
            assert!(memory.iter().all(|byte| byte.load(Ordering::Acquire) == 9));
        }
    });
}

pub(super) fn l40(task: &Task) {
    with(task, |handle, _, next, _| {
        let counters = [const { Counter::new() }; 5];
        let there = all(handle, counters.as_ptr() as u64)[next] as *const Counter;
        let at_next = |i: usize| there.wrapping_add(i);
        // SAFETY: nothing is moved but the counters.
        unsafe {
            let (to, none, null) = (next as u32, null_mut(), null());
            ok(
                raw::put(handle, to, 0, none, null, at_next(0), std::ptr::null(), std::ptr::null()),
                "only the target's",
            );
            ok(raw::put(handle, to, 0, none, null, at_next(0), &counters[1], &counters[2]), "all");
            ok(raw::get(handle, to, 0, null, none, at_next(3), &counters[4]), "get");
        }
        for (counter, times) in counters.iter().zip([2, 1, 1, 1, 1]) {
            assert_eq!(wait(handle, counter, times, "no data"), 0);
        }
        // The counters are others' until their messages are done.
        gfence(handle);
    });
}

pub(super) fn l41(task: &Task) {
    with(task, |handle, me, _, _| {
        let counter = Counter::new();
        let mut byte = 1u8;
        let (n, start): (u32, *mut c_void) = (place(handle).1 as u32, (&raw mut byte).cast());
        let (to, none) = (me as u32, null_mut());
        // SAFETY: all of them are refused.
        let outcomes = unsafe {
            let put = |to, len, there, here: *mut c_void| {
                raw::put(handle, to, len, there, here, &counter, &counter, &counter)
            };
            let get = |to, len, there: *mut c_void, here| raw::get(handle, to, len, there, here, &counter, &counter);
            [
                [put(to, 1, start, none), get(to, 1, start, none)],
                [put(to, 1, none, start), get(to, 1, none, start)],
                [put(to, u64::MAX, start, start), get(to, u64::MAX, start, start)],
                [put(n, 1, start, start), get(n, 1, start, start)],
                [
                    raw::put(0, to, 1, start, start, &counter, &counter, &counter),
                    raw::get(0, to, 1, start, start, &counter, &counter),
                ],
            ]
        };
        let expected = [codes::ORG_ADDR_NULL, codes::TGT_ADDR_NULL, codes::DATA_LEN, codes::TGT, codes::HNDL_INVALID];
        assert_eq!(outcomes, expected.map(|code| [code; 2]));
        gfence(handle);
        assert_eq!((counter.value(), byte), (0, 1), "nothing was sent and no counter moved");
    });
}

pub(super) fn l42(task: &Task) {
    // Where a message has to leave before the next has room, each takes as long as tasks take turns.
    let each = task.times(100, if task.attaches { 100_000 } else { 2000 });
    with(task, |handle, me, _, _| {
        let (short, long) = (UnsafeCell::new(0i32), UnsafeCell::new(i64::from(u32::MAX)));
        let shorts = all(handle, short.get() as u64)[0] as *mut i32;
        let longs = all(handle, long.get() as u64)[0] as *mut i64;
        let origin = Counter::new();
        // The operand is read before the call returns.
        for number in 0..each {
            let (one, two) = (1, 2);
            // SAFETY: words of task 0, which it leaves alone until all are done.
            unsafe {
                ok(raw::rmw(handle, rmw_op::FETCH_AND_ADD, 0, shorts, &one, null_mut(), &origin), "rmw");
                ok(raw::rmw64(handle, rmw_op::FETCH_AND_ADD, 0, longs, &two, null_mut(), null()), "rmw64");
            }
            std::hint::black_box(number);
        }
        wait(handle, &origin, each, "all of this task's");
        gfence(handle);
        if me == 0 {
            let n = place(handle).1 as i32;
            // SAFETY: all are done.
            let (short, long) = unsafe { (*short.get(), *long.get()) };
            assert_eq!((short, long), (each * n, i64::from(u32::MAX) + i64::from(2 * each * n)));
        }
        gfence(handle);
    });
}

/// Words that every task changes at the same time, each mapped by the others where that is set.
static NARROW_SUM: AtomicI32 = AtomicI32::new(0);
static WIDE_SUM: AtomicI64 = AtomicI64::new(0);

pub(super) fn l42_statics(task: &Task) {
    // Where the words are mapped, each writer changes them itself: long enough for the writers to meet.
    let each = if task.maps_statics { 2_000_000 } else { task.times(50, 2000) };
    with(task, |handle, me, _, _| {
        let last = place(handle).1 - 1;
        let [narrow, wide] = [NARROW_SUM.as_ptr() as u64, WIDE_SUM.as_ptr() as u64].map(|word| all(handle, word)[last]);
        for _ in 0..each {
            // SAFETY: words of the last task, which are changed atomically only.
            unsafe {
                let (op, none) = (rmw_op::FETCH_AND_ADD, null());
                ok(raw::rmw(handle, op, last as u32, narrow as *mut i32, &1, null_mut(), none), "rmw");
                ok(raw::rmw64(handle, op, last as u32, wide as *mut i64, &(1 << 20), null_mut(), none), "rmw64");
            }
        }
        gfence(handle);
        if me == last {
            let sum = each * place(handle).1 as i32;
            let found = (NARROW_SUM.swap(0, Ordering::AcqRel), WIDE_SUM.swap(0, Ordering::AcqRel));
            assert_eq!(found, (sum, i64::from(sum) << 20), "no addition is lost");
        }
        gfence(handle);
    });
}

/// One operation, waited for: what it returned.
fn change(handle: Handle, op: i32, to: usize, variable: u64, operands: [i64; 2], wide: bool) -> i64 {
    let (origin, mut narrow, mut previous) = (Counter::new(), -5, -5);
    let operands_narrow = operands.map(|operand| operand as i32);
    // SAFETY: a word of task `to`; all else is valid until the wait has ended.
    unsafe {
        let to = to as u32;
        let (start, start_narrow) = (operands.as_ptr(), operands_narrow.as_ptr());
        match wide {
            true => ok(raw::rmw64(handle, op, to, variable as *mut i64, start, &mut previous, &origin), "rmw64"),
            false => ok(raw::rmw(handle, op, to, variable as *mut i32, start_narrow, &mut narrow, &origin), "rmw"),
        }
    }
    wait(handle, &origin, 1, "an atomic operation");
    if wide { previous } else { narrow.into() }
}

pub(super) fn l43(task: &Task) {
    with(task, |handle, _, next, _| {
        for (wide, big) in [(false, 1 << 20), (true, 1 << 40)] {
            let variable = UnsafeCell::new([5i64, 0x7777]);
            let there = all(handle, variable.get() as u64)[next];
            let at = |op, operands| change(handle, op, next, there, operands, wide);
            assert_eq!(at(rmw_op::FETCH_AND_ADD, [big, 0]), 5, "the old value");
            assert_eq!(at(rmw_op::FETCH_AND_OR, [2, 0]), 5 + big);
            assert_eq!(at(rmw_op::SWAP, [-9, 0]), 7 + big);
            assert_eq!(at(rmw_op::COMPARE_AND_SWAP, [3, 4]), 0, "a miss");
            assert_eq!(at(rmw_op::FETCH_AND_OR, [0, 0]), -9, "unchanged");
            assert_eq!(at(rmw_op::COMPARE_AND_SWAP, [-9, 11]), 1, "a hit");
            gfence(handle);
            // SAFETY: all are done.
            let now = unsafe { *variable.get() };
            assert_eq!((if wide { now[0] } else { i64::from(now[0] as i32) }, now[1]), (11, 0x7777));
        }
    });
}

pub(super) fn l44(task: &Task) {
    with(task, |handle, me, _, _| {
        let (origin, mut previous, variable, operand) = (Counter::new(), -5i32, UnsafeCell::new(8i64), 1i32);
        let (to, n) = (me as u32, place(handle).1 as u32);
        let start = variable.get().cast::<i32>();
        let mut rmw = |handle, op, to, variable: *mut i32, operand: *const i32| {
            // SAFETY: all of them are refused.
            unsafe { raw::rmw(handle, op, to, variable, operand, &mut previous, &origin) }
        };
        assert_eq!(rmw(handle, 0, to, start, null()), codes::IN_VAL_NULL);
        assert_eq!(rmw(handle, 0, to, null_mut(), &operand), codes::TGT_VAR_NULL);
        assert_eq!(rmw(handle, -1, to, start, &operand), codes::RMW_OP);
        assert_eq!(rmw(handle, 4, to, start, &operand), codes::RMW_OP);
        assert_eq!(rmw(handle, 0, n, start, &operand), codes::TGT);
        assert_eq!(rmw(0, 0, to, start, &operand), codes::HNDL_INVALID);
        assert_eq!(rmw(handle, 0, to, start.wrapping_byte_add(2), &operand), codes::OP_SZ);
        let long = i64::from(operand);
        // SAFETY: refused.
        let narrow = unsafe { raw::rmw64(handle, 0, to, start.wrapping_add(1).cast(), &long, null_mut(), &origin) };
        assert_eq!(narrow, codes::OP_SZ, "four bytes off");
        gfence(handle);
        // SAFETY: nothing is under way.
        assert_eq!((origin.value(), previous, unsafe { *variable.get() }), (0, -5, 8), "nothing was sent");
    });
}

pub(super) fn l45(task: &Task) {
    with(task, |handle, me, next, _| {
        let word = UnsafeCell::new(0i64);
        let words = all(handle, word.get() as u64);
        let each = task.times(50, 500);
        for _ in 0..each {
            for to in [me, next] {
                change(handle, rmw_op::FETCH_AND_ADD, to, words[to], [1, 0], true);
            }
        }
        gfence(handle);
        // SAFETY: all are done.
        assert_eq!(unsafe { *word.get() }, 2 * each, "its own and the task's before it");
        gfence(handle);
    });
}

pub(super) fn l49(task: &Task) {
    with(task, |handle, me, next, before| {
        let memory = Shared::new(100_000);
        let there = all(handle, memory.address())[next];
        let data = pattern(me, 100_000);
        ok(put(handle, next, there, &data, [null(); 3]), "put");
        ok(raw::fence(handle), "fence");
        // In place at the target: what a get brings back is what was put.
        let back = Shared::new(100_000);
        let here = back.address() as *mut c_void;
        // SAFETY: memory of the next task and our own; the fence waits for the get.
        ok(unsafe { raw::get(handle, next as u32, 100_000, there as *const c_void, here, null(), null()) }, "get");
        ok(raw::fence(handle), "fence");
        assert!(back.bytes() == data, "a fence waits for gets too");
        gfence(handle);
        assert!(memory.bytes() == pattern(before, 100_000));
        gfence(handle);
    });
}
