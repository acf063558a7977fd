//! The decoders of peers' bytes above the transports, fed with bytes that no peer of ours sends: the handlers of
//! messages, the lanes of shared memory, the roster of a job, the output of ranks. `runtime/fuzz` runs these for long.

use std::cell::RefCell;
use std::os::fd::AsFd;
use std::sync::Arc;

use crate::bootstrap::launch::cut_lines;
use crate::membership::agreement::{Agreement, Word};
use crate::membership::{Arrival, JobMemory};
use crate::memory::layout::{LINE, SlotLayout};
use crate::memory::node::{NodeMemory, Slots};
use crate::message::{feed_closures, id, name_code};
use crate::settings::Settings;
use crate::transport::Message;
use crate::transport::shm::{Interface, NodeRank, set_line};
use crate::vocabulary::cheetah::{Controller, MatchingHandler};

type Value = (u64, String, Vec<u16>, Option<Box<i8>>);

/// A rank alone, and memory that peers may name.
struct Alone {
    controller: Controller,
    matching: MatchingHandler,
    memory: Box<[u8]>,
    fed: u32,
}

impl Alone {
    fn new() -> Alone {
        let controller = Controller::setup(&mut vec!["decoders".into()]).expect("one rank alone");
        let matching = MatchingHandler::new(&controller).expect("one rank alone");
        Alone { controller, matching, memory: vec![0; 64 << 10].into(), fed: 0 }
    }

    /// An address that a peer may name without harm: good, absent, misaligned, around the end of everything.
    fn address(&self, word: u64) -> u64 {
        let near = word >> 3 & 0xfff;
        match word & 7 {
            0 => 0,
            1 => u64::MAX - near,
            2 => (1 << 46) + near,
            3 => i64::MAX as u64 - near,
            _ => self.memory.as_ptr() as u64 + near,
        }
    }
}

/// Feeds a message to the handler that its first byte names. Panics are the finding.
pub fn feed_messages(bytes: &[u8]) {
    thread_local!(static ALONE: RefCell<Option<Alone>> = const { RefCell::new(None) });
    ALONE.with_borrow_mut(|alone| {
        // What nobody asked for is kept, so that now and then all begins anew.
        if alone.as_ref().is_some_and(|alone| alone.fed == 1000) {
            *alone = None;
        }
        feed_message(alone.get_or_insert_with(Alone::new), bytes);
    });
    feed_closures(bytes);
    feed_agreement(bytes);
}

/// Feeds a message to a rank that agrees with others on which ranks are gone.
fn feed_agreement(bytes: &[u8]) {
    const RANKS: usize = 4;
    if let Some(word) = Word::decode(bytes, RANKS) {
        let mut agreement = Agreement::new(1, RANKS);
        agreement.enter(1, false);
        (0..RANKS).for_each(|from| agreement.receive(from, word.clone()));
        std::hint::black_box(agreement.take_out());
    }
}

fn feed_message(alone: &mut Alone, bytes: &[u8]) {
    alone.fed += 1;
    let Some((kind, bytes)) = bytes.split_first() else { return };
    let (kind, mut bytes) = (kind % 11, bytes.to_vec());
    let change = |bytes: &mut [u8], at: usize, to: &dyn Fn(u64) -> u64| {
        if let Some(word) = bytes.get_mut(8 * at..8 * at + 8) {
            let old = u64::from_ne_bytes(word.try_into().expect("eight bytes"));
            word.copy_from_slice(&to(old).to_ne_bytes());
        }
    };
    // Peers may name any memory and any code, and are believed.
    let addresses: &[usize] = match kind {
        id::WRITE | id::READ_DONE => &[0, 1],
        id::READ => &[0, 2, 4, 5],
        id::RING => &[0],
        id::REFUSED => &[3],
        _ => &[],
    };
    addresses.iter().for_each(|at| change(&mut bytes, *at, &|word| alone.address(word)));
    if kind == id::READ {
        change(&mut bytes, 1, &|len| if len & 1 == 0 { len } else { len & 0xfff });
        change(&mut bytes, 1, &|len| if len <= 1 << 20 { len & 0xfff } else { len });
    }
    if matches!(kind, id::INVOKE | id::CALL) {
        change(&mut bytes, 0, &|word| name_code::<Value>(word));
    }
    if kind == id::MATCHING {
        change(&mut bytes, 0, &|word| word & 1);
        change(&mut bytes, 1, &|word| word & 1);
    }
    let world = alone.controller.as_world().expect("set up");
    let _ = alone.matching.request::<Value, _>(0, 0, |value| drop(std::mem::take(&mut value.1)));
    world.engine().deliver(0, kind, &Message::new(&bytes, None));
    // Answers and errors.
    for _ in 0..3 {
        let _ = world.poll();
    }
}

/// Feeds lines to a lane of a receiver, 64 bytes each: id, kind, length and body as given, and looks at what comes out.
pub fn feed_lane(bytes: &[u8]) {
    struct Receiver {
        interface: Interface,
        lane: *mut u8,
        number: u64,
        depth: u64,
    }
    thread_local!(static RECEIVER: RefCell<Option<Receiver>> = const { RefCell::new(None) });
    let receiver = || {
        // Small slots: what is looked at takes memory.
        let settings = Settings { heap_limit: Some(1 << 20), ..Settings::default() };
        let job = Arc::new(JobMemory::create(2, &settings).expect("a job"));
        let stride_log2 = job.stride_log2();
        let slots = Slots::of(&job, false);
        let node = Arc::new(NodeMemory::map(job.fd(), slots).expect("mapped"));
        let layout = SlotLayout::new(2, 2, 1 << stride_log2, Some(4));
        node.commit(0, 0, layout.control_len.next_multiple_of(node.granule(0)), 2, "lanes", "").expect("memory");
        job.arrive(0, Arrival { base: node.origin() as usize, build: 0, shape: 0 }).expect("arrives");
        // SAFETY: inside the slot.
        let lane = unsafe { node.slot(0).add(layout.lane(1)) };
        let place = NodeRank { rank: 0, job, node, layout, message_memory: 1 << 20, cross_memory_attach: false };
        let interface = Interface::new(place, 0..2, true);
        Receiver { interface, lane, number: 0, depth: 4 }
    };
    RECEIVER.with_borrow_mut(|known| {
        let receiver = known.get_or_insert_with(receiver);
        for line in bytes.chunks(LINE).take(receiver.depth as usize) {
            let mut whole = [0; LINE];
            whole[..line.len()].copy_from_slice(line);
            // SAFETY: a lane of the receiver that nobody else writes, with room, since all was taken.
            unsafe { set_line(receiver.lane, receiver.number, receiver.depth, whole) };
            receiver.number += 1;
        }
        // No peer has rung for the line.
        receiver.interface.any_waiting();
        receiver.interface.receive(0, |_, _, message| {
            let payload = message.data();
            let some = payload.iter().step_by(64 << 10).chain(payload.last());
            if some.fold(0u8, |sum, byte| sum ^ byte) & 1 == 1 && message.retainable() {
                drop(message.retain());
            }
        });
        let _ = receiver.interface.take_error();
    });
}

/// Feeds a job's memory file to a process that joins the job, and output to the launcher's code that passes it on.
pub fn feed_start(bytes: &[u8]) {
    cut_lines(bytes);
    let job = JobMemory::create(3, &Settings::default()).expect("a job");
    // Somewhere in the header or the first record.
    let (at, word) = bytes.split_first().map_or((0, bytes), |(at, word)| (4 * u64::from(at % 80), word));
    let _ = rustix::io::pwrite(job.fd(), &word[..word.len().min(512)], at);
    let fd = job.fd().try_clone_to_owned().expect("one more");
    let Ok(joined) = JobMemory::from_fd(fd.as_fd().try_clone_to_owned().expect("one more"), 3) else { return };
    for rank in 0..3 {
        std::hint::black_box((joined.rank_state(rank), joined.loss(rank), joined.pid(rank), joined.base(rank)));
    }
    let slots = Slots::of(&joined, false);
    let _ = NodeMemory::map(joined.fd(), slots);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::sim::Random;

    /// Short and long runs of bytes, of which many are alike, behind each of a few first ones.
    fn storm(firsts: std::ops::Range<u8>, rounds: usize, feed: fn(&[u8])) {
        let mut random = Random::new(7);
        for first in firsts {
            for _ in 0..rounds {
                let mut bytes = vec![first];
                for _ in 0..random.below(12) {
                    let word = [0, 1, 8, 63, 1 << 16, 1 << 24, u64::MAX, random.number()][random.below(8) as usize];
                    let shown = 1 + random.below(8) as usize;
                    bytes.extend_from_slice(&word.to_le_bytes()[..shown]);
                }
                feed(&bytes);
            }
        }
    }

    #[test]
    fn no_message_makes_a_handler_panic() {
        storm(0..11, 300, feed_messages);
    }

    #[test]
    fn no_line_makes_a_receiver_panic() {
        storm(0..2, 5000, |bytes| feed_lane(&bytes[1..]));
    }

    #[test]
    fn no_roster_or_output_makes_who_reads_it_panic() {
        storm(0..4, 500, feed_start);
    }
}
