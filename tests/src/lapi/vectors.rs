//! Rows about vectors.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::null;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bellwether_runtime::vocabulary::lapi::raw::{
    self, CompletionHandler, GEN_GENERIC, GEN_IOVECTOR, GEN_STRIDED_XFER, Handle, Vector,
};
use bellwether_runtime::vocabulary::lapi::{Counter, codes};

use super::one_sided::{Shared, pattern, with};
use super::{Task, all, get as value, gfence, ok, place, wait, watchdog};

/// Places in memory that begins at `base`: their distance from it, and their lengths.
#[derive(Debug, Clone, Copy)]
pub(super) enum Places {
    List(i32, &'static [(usize, usize)]),
    /// First place, bytes of each, distance, how many.
    Strided(usize, usize, usize, usize),
}

use Places::{List, Strided};

impl Places {
    pub(super) fn each(self) -> Vec<(usize, usize)> {
        match self {
            List(_, places) => places.to_vec(),
            Strided(first, block, stride, count) => (0..count).map(|i| (first + i * stride, block)).collect(),
        }
    }

    /// Bytes of memory that it needs.
    fn extent(self) -> usize {
        self.each().iter().map(|place| place.0 + place.1).max().unwrap_or(0)
    }

    pub(super) fn at(self, base: u64) -> Described {
        let (kind, count, info, len) = match self {
            List(kind, places) => {
                let info = places.iter().map(|place| base + place.0 as u64).collect();
                (kind, places.len(), info, places.iter().map(|place| place.1 as u64).collect())
            }
            Strided(first, block, stride, count) => {
                (GEN_STRIDED_XFER, count, vec![base + first as u64, block as u64, stride as u64], Vec::new())
            }
        };
        Described { kind, count: count as u32, info, len }
    }
}

/// The memory that a [`Vector`] points to.
#[derive(Debug, Clone)]
pub(super) struct Described {
    pub(super) kind: i32,
    pub(super) count: u32,
    pub(super) info: Vec<u64>,
    pub(super) len: Vec<u64>,
}

impl Described {
    pub(super) fn vector(&mut self) -> Vector {
        let (info, len) = (self.info.as_mut_ptr().cast(), self.len.as_mut_ptr());
        Vector { vec_type: self.kind, num_vecs: self.count, info, len }
    }
}

/// The data of the places of `from` in `source`, stored in those of `to`, as one thread would.
fn moved(source: &[u8], from: Places, to: Places, len: usize) -> Vec<u8> {
    let data: Vec<u8> = from.each().iter().flat_map(|(at, len)| source[*at..at + len].to_vec()).collect();
    let (mut memory, mut rest) = (vec![0; len], &data[..]);
    for (at, len) in to.each() {
        let here = len.min(rest.len());
        memory[at..at + here].copy_from_slice(&rest[..here]);
        rest = &rest[here..];
    }
    assert!(rest.is_empty(), "it fits");
    memory
}

/// Places that suit each other: where the data is, and where it goes.
const SUITABLE: [(Places, Places); 9] = [
    (Strided(3, 8, 32, 16), Strided(0, 8, 24, 16)),
    (Strided(0, 8, 8, 4000), Strided(8, 8, 8, 4000)),
    (Strided(0, 8, 16, 3000), Strided(5, 8, 9, 3000)),
    (Strided(1, 50_000, 50_001, 3), Strided(0, 50_000, 50_010, 3)),
    (
        List(GEN_IOVECTOR, &[(0, 1), (10, 0), (20, 7), (30, 8192), (9000, 8193), (20_000, 60_001), (81_000, 3)]),
        List(GEN_IOVECTOR, &[(70_000, 1), (5, 0), (0, 7), (80_000, 8192), (100, 8193), (9000, 60_001), (69_500, 3)]),
    ),
    (List(GEN_IOVECTOR, &[(0, 8168)]), List(GEN_IOVECTOR, &[(1, 8168)])),
    (List(GEN_IOVECTOR, &[(0, 8169)]), List(GEN_IOVECTOR, &[(1, 8169)])),
    (
        List(GEN_GENERIC, &[(0, 100), (200, 300), (600, 20_000)]),
        List(GEN_GENERIC, &[(0, 15_000), (15_001, 1), (15_010, 0), (15_020, 9000)]),
    ),
    (List(GEN_GENERIC, &[(0, 2)]), List(GEN_GENERIC, &[(0, 1), (2, 1), (4, 1)])),
];

/// Pairs without data.
const EMPTY: [(Places, Places); 3] = [
    (List(GEN_IOVECTOR, &[]), List(GEN_IOVECTOR, &[])),
    (List(GEN_GENERIC, &[(0, 0), (1, 0)]), List(GEN_GENERIC, &[])),
    (Strided(0, 0, 0, 5), Strided(0, 0, 8, 5)),
];

pub(super) fn l46_put_get(task: &Task) {
    with(task, |handle, me, next, before| {
        let [target, origin, completion] = [const { Counter::new() }; 3];
        let at_next = all(handle, target.address() as u64)[next] as *const Counter;
        for (number, (from, to)) in SUITABLE.into_iter().chain(EMPTY).enumerate() {
            let len = from.extent().max(to.extent()) + 1;
            // The memory that others put to, and the memory that this task's gets fill.
            let memories = [(); 2].map(|()| Shared::new(len));
            let mut source = pattern(me + number, len);
            let there = all(handle, memories[0].address())[next];
            let sources = all(handle, source.as_ptr() as u64);
            let (mut own, mut other) = (from.at(source.as_ptr() as u64), to.at(there));
            // SAFETY: places of this task and of the next one, which stay until the counters have moved.
            ok(
                unsafe {
                    raw::putv(handle, next as u32, &other.vector(), &own.vector(), at_next, &origin, &completion)
                },
                "putv",
            );
            // The descriptions are this call's only.
            own.info.fill(1);
            other.info.fill(1);
            wait(handle, &target, 1, "data from the task before");
            let expected = moved(&pattern(before + number, len), from, to, len);
            assert!(memories[0].bytes() == expected, "putv {number}");
            wait(handle, &completion, 1, "in effect at the target");
            wait(handle, &origin, 1, "the source may be changed");
            let (mut own, mut other) = (to.at(memories[1].address()), from.at(sources[next]));
            // SAFETY: as above.
            ok(unsafe { raw::getv(handle, next as u32, &other.vector(), &own.vector(), at_next, &origin) }, "getv");
            wait(handle, &origin, 1, "the data is here");
            assert!(memories[1].bytes() == moved(&pattern(next + number, len), from, to, len), "getv {number}");
            wait(handle, &target, 1, "the memory of this task may be changed");
            source.fill(0xFF);
            std::hint::black_box(&source);
            // The next task puts to it when it has been filled.
            gfence(handle);
            // Without counters a fence waits.
            let there = sources[next];
            let mut source = from.at(memories[1].address());
            // SAFETY: as above; no task reads the next task's source any more.
            ok(
                unsafe {
                    raw::putv(handle, next as u32, &to.at(there).vector(), &source.vector(), null(), null(), null())
                },
                "putv without counters",
            );
            gfence(handle);
            assert_eq!([&target, &origin, &completion].map(|counter| value(handle, counter)), [0; 3], "once each");
        }
    });
}

pub(super) fn l46_order(task: &Task) {
    // Parts of many transfers at a time do not mix.
    with(task, |handle, me, next, before| {
        const EACH: usize = 8;
        let (from, to) = (Strided(0, 700, 701, 40), Strided(0, 700, 800, 40));
        let target = Counter::new();
        let at_next = all(handle, target.address() as u64)[next] as *const Counter;
        let memories: Vec<_> = (0..EACH).map(|_| Shared::new(40 * 800)).collect();
        let sources: Vec<_> = (0..EACH).map(|number| pattern(me + 10 * number, 40 * 701)).collect();
        let there: Vec<_> = memories.iter().map(|memory| all(handle, memory.address())[next]).collect();
        for (source, there) in sources.iter().zip(&there) {
            let (mut own, mut other) = (from.at(source.as_ptr() as u64), to.at(*there));
            // SAFETY: places of both tasks, which stay until the last fence.
            ok(
                unsafe { raw::putv(handle, next as u32, &other.vector(), &own.vector(), at_next, null(), null()) },
                "putv",
            );
        }
        wait(handle, &target, EACH as i32, "one for each transfer");
        for (number, memory) in memories.iter().enumerate() {
            let expected = moved(&pattern(before + 10 * number, 40 * 701), from, to, 40 * 800);
            assert!(memory.bytes() == expected, "{number}");
        }
        gfence(handle);
        assert_eq!(value(handle, &target), 0);
    });
}

/// The answer of a handler for vectors, and its observations.
#[derive(Default)]
struct Prepared {
    places: Option<Described>,
    answer: Option<Vector>,
    then: bool,
    count: usize,
    lens: Vec<Vec<u64>>,
    uhdr: Vec<u8>,
    done: usize,
}

// SAFETY: the answer points to lists of the same value, which the lock protects.
unsafe impl Send for Prepared {}

static PREPARED: Mutex<Option<HashMap<(Handle, u32), Prepared>>> = Mutex::new(None);

fn prepared<'a>() -> MutexGuard<'a, Option<HashMap<(Handle, u32), Prepared>>> {
    if cfg!(bellwether_tsan) {
        loop {
            if let Ok(lock) = PREPARED.try_lock() {
                return lock;
            }
            std::thread::yield_now();
        }
    }
    PREPARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Index of the handler for vectors.
pub(super) const VECTOR: *const c_void = std::ptr::without_provenance(7);

pub(super) unsafe extern "C-unwind" fn take_vector(
    handle: *mut Handle,
    uhdr: *mut c_void,
    uhdr_len: *mut u32,
    lens: *mut u64,
    then: *mut Option<CompletionHandler>,
    parameter: *mut *mut c_void,
) -> *mut Vector {
    // SAFETY: what LAPI passes is valid; every user header begins with a number.
    let (handle, len, tag) = unsafe { (*handle, *uhdr_len as usize, uhdr.cast::<u32>().read()) };
    let mut all = prepared();
    let own = all.get_or_insert_default().get_mut(&(handle, tag)).expect("prepared");
    // SAFETY: as above; there are as many lengths as the row has prepared.
    unsafe {
        own.uhdr = std::slice::from_raw_parts(uhdr.cast::<u8>(), len).to_vec();
        own.lens.push(std::slice::from_raw_parts(lens, own.count).to_vec());
        if own.then {
            *then = Some(vector_done);
            *parameter = Box::into_raw(Box::new((handle, tag))).cast();
        }
    }
    let Some(places) = &mut own.places else { return std::ptr::null_mut() };
    own.answer = Some(places.vector());
    // It is read before this handler runs again.
    own.answer.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut)
}

unsafe extern "C-unwind" fn vector_done(_: *mut Handle, parameter: *mut c_void) {
    // SAFETY: what `take_vector` gave, once.
    let key = *unsafe { Box::from_raw(parameter.cast::<(Handle, u32)>()) };
    prepared().get_or_insert_default().get_mut(&key).expect("prepared").done += 1;
}

/// Lets this task's handler answer messages with `tag` by `places`.
pub(super) fn prepare(handle: Handle, tag: u32, places: Option<Described>, count: usize, then: bool) {
    let own = Prepared { places, then, count, ..Prepared::default() };
    prepared().get_or_insert_default().insert((handle, tag), own);
}

/// Sends a vector message with a user header of `tag` and two words more.
fn send(
    handle: Handle,
    to: usize,
    tag: u32,
    vector: &Vector,
    [target, origin, completion]: [*const Counter; 3],
) -> i32 {
    let uhdr = [tag, 8, 9];
    // SAFETY: the header is copied; rows keep places and counters until the counters have moved.
    unsafe { raw::amsendv(handle, to as u32, VECTOR, uhdr.as_ptr().cast(), 12, vector, target, origin, completion) }
}

fn with_handler(task: &Task, body: impl FnOnce(Handle, usize, usize, usize)) {
    with(task, |handle, me, next, before| {
        // SAFETY: a handler for vectors.
        ok(unsafe { raw::addr_set(handle, take_vector as *const () as usize, 7) }, "addr_set");
        gfence(handle);
        body(handle, me, next, before);
        gfence(handle);
        prepared().get_or_insert_default().retain(|(other, _), _| *other != handle);
    });
}

pub(super) fn l46_amsendv(task: &Task) {
    with_handler(task, |handle, me, next, before| {
        let [target, origin, completion] = [const { Counter::new() }; 3];
        let at_next = all(handle, target.address() as u64)[next] as *const Counter;
        for (number, (from, to)) in SUITABLE.into_iter().chain(EMPTY).enumerate() {
            for (half, then) in [false, true].into_iter().enumerate() {
                let (tag, len) = ((2 * number + half) as u32, from.extent().max(to.extent()) + 1);
                let memory = Shared::new(len);
                prepare(handle, tag, Some(to.at(memory.address())), from.each().len(), then);
                gfence(handle);
                let mut source = pattern(me + number, len);
                let mut own = from.at(source.as_ptr() as u64);
                ok(send(handle, next, tag, &own.vector(), [at_next, &origin, &completion]), "amsendv");
                own.info.fill(1);
                wait(handle, &origin, 1, "the source may be changed");
                source.fill(0xFF);
                std::hint::black_box(&source);
                wait(handle, &target, 1, "data from the task before");
                assert!(memory.bytes() == moved(&pattern(before + number, len), from, to, len), "{number}");
                wait(handle, &completion, 1, "handled");
                let all = prepared();
                let seen = &all.as_ref().expect("prepared")[&(handle, tag)];
                let lens: Vec<u64> = from.each().iter().map(|place| place.1 as u64).collect();
                assert_eq!((&seen.lens[..], seen.done), (&[lens][..], usize::from(then)), "{number}: once");
                assert_eq!(seen.uhdr, [tag, 8, 9].map(u32::to_ne_bytes).concat());
                drop(all);
                gfence(handle);
            }
        }
        // Null: nothing is stored, and all counters move.
        for (tag, places) in [(900, SUITABLE[0].0), (901, SUITABLE[3].0)] {
            prepare(handle, tag, None, places.each().len(), true);
            gfence(handle);
            let source = pattern(me, places.extent());
            let mut own = places.at(source.as_ptr() as u64);
            ok(send(handle, next, tag, &own.vector(), [at_next, &origin, &completion]), "nowhere");
            for counter in [&origin, &target, &completion] {
                wait(handle, counter, 1, "nothing is stored");
            }
            gfence(handle);
        }
        assert_eq!([&target, &origin, &completion].map(|counter| value(handle, counter)), [0; 3], "once each");
    });
}

/// Pairs of vectors of which one is wrong, and the code that both ends get if the header handler answers with the second.
fn unsuitable(base: u64) -> Vec<(Described, Described, i32)> {
    let list = |places| List(GEN_IOVECTOR, places).at(base);
    let generic = |places| List(GEN_GENERIC, places).at(base);
    let strided = |block, stride, count| Strided(0, block, stride, count).at(base);
    let two = || list(&[(0, 8), (8, 8)]);
    let changed = |mut places: Described, change: fn(&mut Described)| {
        change(&mut places);
        places
    };
    vec![
        (two(), list(&[(0, 8)]), codes::VEC_NUM_DIFF),
        (two(), list(&[(0, 8), (8, 9)]), codes::VEC_LEN_DIFF),
        (two(), generic(&[(0, 8), (8, 8)]), codes::VEC_TYPE_DIFF),
        (strided(8, 8, 2), two(), codes::VEC_TYPE_DIFF),
        (strided(8, 8, 2), strided(8, 8, 3), codes::VEC_NUM_DIFF),
        (strided(8, 8, 2), strided(4, 8, 2), codes::VEC_LEN_DIFF),
        (generic(&[(0, 8), (8, 8)]), generic(&[(0, 15)]), codes::VEC_LEN_DIFF),
        (two(), changed(two(), |places| places.kind = 3), codes::TGT_VEC_TYPE),
        (two(), changed(two(), |places| places.info[1] = 0), codes::TGT_VEC_ADDR),
        (two(), changed(two(), |places| places.len[1] = raw::MAX_MSG_SZ), codes::TGT_VEC_LEN),
        (strided(8, 8, 2), changed(strided(8, 8, 2), |places| places.info[0] = 0), codes::STRIDE_TGT_ADDR_NULL),
        (strided(8, 8, 2), strided(8, 7, 2), codes::TGT_STRIDE),
        (strided(8, 8, 2), changed(strided(8, 8, 2), |places| places.info[2] = 1 << 62), codes::TGT_EXTENT),
    ]
}

pub(super) fn l46_rules(task: &Task) {
    with(task, |handle, me, _, _| {
        let counter = Counter::new();
        let memory = Shared::new(64);
        let (base, n, me) = (memory.address(), place(handle).1 as u32, me as u32);
        let two = || List(GEN_IOVECTOR, &[(0, 8), (8, 8)]).at(base);
        let strided = |block, stride| Strided(0, block, stride, 2).at(base);
        // As above, with the sides changed over: what is wrong with the origin's.
        let mirrored = |code| match code {
            codes::TGT_VEC_TYPE => codes::ORG_VEC_TYPE,
            codes::TGT_VEC_ADDR => codes::ORG_VEC_ADDR,
            codes::TGT_VEC_LEN => codes::ORG_VEC_LEN,
            codes::STRIDE_TGT_ADDR_NULL => codes::STRIDE_ORG_ADDR_NULL,
            codes::TGT_STRIDE => codes::ORG_STRIDE,
            codes::TGT_EXTENT => codes::ORG_EXTENT,
            code => code,
        };
        let put = |handle, to, tgt_vec: *const Vector, org_vec: *const Vector| {
            // SAFETY: refused.
            unsafe { raw::putv(handle, to, tgt_vec, org_vec, &counter, &counter, &counter) }
        };
        let get = |handle, to, tgt_vec: *const Vector, org_vec: *const Vector| {
            // SAFETY: refused.
            unsafe { raw::getv(handle, to, tgt_vec, org_vec, &counter, &counter) }
        };
        let send = |handle, to, handler, (uhdr, len): (*const u8, u32), vector: *const Vector| {
            // SAFETY: refused.
            unsafe { raw::amsendv(handle, to, handler, uhdr.cast(), len, vector, &counter, &counter, &counter) }
        };
        for (mut from, mut to, code) in unsuitable(base) {
            let (first, second) = (from.vector(), to.vector());
            assert_eq!(put(handle, me, &second, &first), code, "{from:?} {to:?}");
            // Data goes the other way.
            assert_eq!(get(handle, me, &first, &second), mirrored(code), "{from:?} {to:?}");
            if mirrored(code) != code {
                assert_eq!(put(handle, me, &first, &second), mirrored(code));
                assert_eq!(send(handle, me, VECTOR, (null(), 0), &second), mirrored(code));
            }
        }
        let mut places = two();
        let (own, sent) = (places.vector(), (null(), 0));
        assert_eq!(put(handle, me, null(), &own), codes::TGT_VEC_NULL);
        assert_eq!(put(handle, me, &own, null()), codes::ORG_VEC_NULL);
        assert_eq!(get(handle, me, null(), &own), codes::TGT_VEC_NULL);
        assert_eq!(get(handle, me, &own, null()), codes::ORG_VEC_NULL);
        assert_eq!(send(handle, me, VECTOR, sent, null()), codes::ORG_VEC_NULL);
        let missing = |info, len| Vector { info, len, ..own };
        let nowhere = std::ptr::null_mut();
        assert_eq!(put(handle, me, &own, &missing(nowhere, own.len)), codes::ORG_VEC_ADDR);
        assert_eq!(put(handle, me, &missing(nowhere, own.len), &own), codes::TGT_VEC_ADDR);
        assert_eq!(put(handle, me, &own, &missing(own.info, std::ptr::null_mut())), codes::ORG_VEC_LEN);
        let mut stride = strided(8, 8);
        let stride = stride.vector();
        let no_info = Vector { info: nowhere, ..stride };
        assert_eq!(put(handle, me, &stride, &no_info), codes::STRIDE_ORG_ADDR_NULL);
        assert_eq!(put(handle, me, &no_info, &stride), codes::STRIDE_TGT_ADDR_NULL);
        for call in [put(handle, n, &own, &own), get(handle, n, &own, &own), send(handle, n, VECTOR, sent, &own)] {
            assert_eq!(call, codes::TGT);
        }
        for call in [put(0, me, &own, &own), get(0, me, &own, &own), send(0, me, VECTOR, sent, &own)] {
            assert_eq!(call, codes::HNDL_INVALID);
        }
        assert_eq!(send(handle, me, null(), sent, &own), codes::HDR_HNDLR_NULL);
        assert_eq!(send(handle, me, std::ptr::without_provenance(usize::MAX - 8), sent, &own), codes::HDR_HNDLR_NULL);
        assert_eq!(send(handle, me, VECTOR, (null(), 4), &own), codes::UHDR_NULL);
        assert_eq!(send(handle, me, VECTOR, (own.info.cast_const().cast(), 3), &own), codes::UHDR_LEN);
        ok(raw::purge_totask(handle, me), "purge");
        for call in [put(handle, me, &own, &own), get(handle, me, &own, &own), send(handle, me, VECTOR, sent, &own)] {
            assert_eq!(call, codes::TGT_PURGED);
        }
        ok(raw::resume_totask(handle, me), "resume");
        gfence(handle);
        assert!(memory.bytes().iter().all(|byte| *byte == 0), "nothing was sent");
        assert_eq!(value(handle, &counter), 0, "and no counter moved");
    });
}

pub(super) fn l46_refused(task: &Task) {
    // Both ends hear of an answer that does not suit, of short messages and of long ones.
    let told = std::cell::Cell::new(Vec::new());
    let hear = |code| {
        if code != codes::SUCCESS {
            let mut all = told.take();
            all.push(code);
            told.set(all);
        }
    };
    let count = || {
        let all = told.take();
        let len = all.len();
        told.set(all);
        len
    };
    with_handler(task, |handle, me, next, _| {
        let memory = Shared::new(64);
        let [target, completion] = [const { Counter::new() }; 2];
        let at_next = all(handle, target.address() as u64)[next] as *const Counter;
        let cases = unsuitable(memory.address());
        for (number, (from, to, code)) in cases.iter().enumerate() {
            prepare(handle, number as u32, Some(to.clone()), from.count as usize, true);
            // Another task may be ahead, and its message here already.
            hear(raw::gfence(handle));
            let mut own = from.clone();
            ok(send(handle, next, number as u32, &own.vector(), [at_next, null(), &completion]), "amsendv");
            watchdog::at("an answer that does not suit");
            while count() < 2 {
                hear(raw::probe(handle));
                std::thread::yield_now();
            }
            assert_eq!(told.take(), [*code; 2], "case {number}");
            hear(raw::gfence(handle));
        }
        // A long one: the origin's memory is free again, and nothing is stored.
        let source = pattern(me, 100_000);
        let mut own = List(GEN_IOVECTOR, &[(0, 50_000), (50_000, 50_000)]).at(source.as_ptr() as u64);
        prepare(handle, 50, Some(List(GEN_IOVECTOR, &[(0, 8)]).at(memory.address())), 2, true);
        hear(raw::gfence(handle));
        // Nor does an index without a handler take one.
        let uhdr = [50u32];
        for handler in [VECTOR, std::ptr::without_provenance(99)] {
            // SAFETY: the places stay until the fence below.
            let code = unsafe {
                let (start, to) = (uhdr.as_ptr().cast(), next as u32);
                raw::amsendv(handle, to, handler, start, 4, &own.vector(), at_next, null(), &completion)
            };
            ok(code, "amsendv");
            while count() < 2 {
                hear(raw::probe(handle));
                std::thread::yield_now();
            }
            let expected = if handler == VECTOR { codes::VEC_NUM_DIFF } else { codes::NO_HNDLR_SET };
            assert_eq!(told.take(), [expected; 2]);
            hear(raw::gfence(handle));
        }
        assert!(told.take().is_empty());
        assert!(memory.bytes().iter().all(|byte| *byte == 0), "nothing is stored");
        assert_eq!([value(handle, &target), value(handle, &completion)], [0; 2], "and no counter moves");
        assert!(prepared().as_ref().expect("prepared").iter().all(|((own, _), seen)| *own != handle || seen.done == 0));
    });
}
