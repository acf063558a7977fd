//! Every decoder of bytes that came from a peer, fed with bytes that no peer of ours sends.
//!
//! Bounded and deterministic, so it runs with the other tests; `runtime/fuzz` feeds the same functions for longer.

use std::sync::Arc;

use super::emulate::{Client, Operation, Reply, RequestHead, Server, Source};
#[cfg(test)]
use super::emulate::{ReplyKind, RequestKind};
use super::memory::Registry;
use super::stream::{FlowLimits, Frame, Inflow};
use super::*;
use crate::memory::layout::SlotLayout;

/// Feeds `bytes` to every decoder. Panics are the finding.
pub fn feed(bytes: &[u8]) {
    let _ = RemoteKey::decode(bytes);
    let _ = shm::decode_address(bytes, 7);
    let _ = sim::decode_address(bytes, 7);
    let mut words = [0u64; 2];
    for (i, byte) in bytes.iter().take(16).enumerate() {
        words[i / 8] |= u64::from(*byte) << (8 * (i % 8));
    }
    let layout = SlotLayout::new(4, 4, 1 << 36, None);
    if let Some((offset, len)) = shm::decode_block(words, &layout) {
        assert!(offset >= layout.arena && offset + len <= layout.arena + layout.arena_len);
    }
    let _ = shm::line::Head::decode(words[0]);
    let limits = FlowLimits { slots: 1, credits: 2, fragment: 8, message: 64 };
    let mut inflow = Inflow::default();
    if let Some(Frame::Fragment { id, number, offset, total, bytes, .. }) = Frame::decode(bytes) {
        for _ in 0..3 {
            let _ = inflow.take(id, number, offset, total, bytes, &limits);
        }
        let _ = inflow.credits_due(&limits);
    }
    let _ = RequestHead::decode(bytes);
    let _ = Reply::decode(bytes);
    tcp::decode(bytes);
}

/// Feeds `bytes` to a server that has registered memory, and to a client that has an operation in flight.
pub fn feed_machines(bytes: &[u8]) {
    let registry = Arc::<Registry>::default();
    let mut memory = [0u8; 64];
    // SAFETY: the buffer outlives the region, and only the server touches it meanwhile.
    let region = unsafe { registry.register(0, key::MemoryKind::Outside, memory.as_mut_ptr(), 64) }.expect("registers");
    let mut server = Server::new(Arc::clone(&registry), 256);
    server.serve(1, bytes);
    // The same bytes again, but for that memory, so that the range checks are reached.
    if let Some((head, payload)) = RequestHead::decode(bytes) {
        let near = RequestHead { key: region.key().id, address: region.key().address + head.address % 80, ..head };
        server.serve(1, &[&near.encode()[..], payload].concat());
    }
    server.poll(|_, reply| {
        assert!(reply.len() <= 256);
        true
    });
    let mut client = Client::new(256, 4);
    let mut events = Vec::new();
    client.start(0, 1, Operation::Put(Source::Own(vec![1; 9])), 0, 0, 9, false);
    let sink = super::emulate::Sink::Unpack(vec![0; 9], Box::new(|_| {}));
    client.start(0, 1, Operation::Get(sink), 0, 0, 9, false);
    client.poll(
        |_, _, len, fill| {
            fill(&mut vec![0; len]);
            true
        },
        &mut events,
    );
    client.answer(1, bytes, &mut events);
    if let Some((reply, payload)) = Reply::decode(bytes) {
        let near = Reply { token: reply.token % 3, ..reply };
        client.answer(1, &[&near.encode()[..], payload].concat(), &mut events);
    }
}

/// Well-formed bytes of every kind, to start from.
#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    let atomic = Atomic { op: AtomicOp::Add, width: Width::Eight, value: 1, compare: 2 };
    let key = RemoteKey {
        owner: 1,
        memory: key::MemoryKind::Allocated,
        id: 2,
        address: 4096,
        len: 64,
        device: key::Opaque::number(5),
    };
    let request =
        |kind, payload: &[u8]| [&RequestHead { kind, token: 1, key: 0, address: 8 }.encode()[..], payload].concat();
    let reply = |kind, payload: &[u8]| [&Reply { kind, token: 1 }.encode()[..], payload].concat();
    let channel = Channel::Request;
    vec![
        Vec::new(),
        key.pack().to_vec(),
        [*b"bwsm", [3, 0, 0, 0]].concat(),
        [*b"bwsi", [3, 0, 0, 0]].concat(),
        request(RequestKind::Put, &[7; 20]),
        request(RequestKind::Get { len: 20, offset: 4 }, &[]),
        request(RequestKind::Atomic(atomic), &[]),
        reply(ReplyKind::Done, &[]),
        reply(ReplyKind::Data { offset: 1 }, &[3; 8]),
        reply(ReplyKind::Value(4), &[]),
        reply(ReplyKind::Failed(-5), &[]),
        Frame::Fragment { channel, id: 1, number: 2, offset: 8, total: 24, credits: 3, bytes: &[1; 8] }.encode(),
        Frame::Credit { channel, count: 3 }.encode(),
    ]
}

#[test]
fn no_bytes_make_a_decoder_panic() {
    sim::check("no_bytes_make_a_decoder_panic", 4, |seed| {
        let mut random = sim::Random::new(seed);
        for seed in seeds() {
            for _ in 0..4000 {
                let mut bytes = seed.clone();
                for _ in 0..random.below(4) {
                    match random.below(5) {
                        0 if !bytes.is_empty() => {
                            let at = random.below(bytes.len() as u64) as usize;
                            bytes[at] ^= 1 << random.below(8);
                        }
                        1 if !bytes.is_empty() => {
                            let at = random.below(bytes.len() as u64) as usize;
                            bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5) as usize];
                        }
                        2 => bytes.truncate(random.below(bytes.len() as u64 + 1) as usize),
                        3 => bytes.extend((0..random.below(40)).map(|_| random.number() as u8)),
                        _ => {
                            let word = [u64::MAX, 1 << 63, 1 << 32, u64::from(u32::MAX), 0][random.below(5) as usize];
                            let at = 8 * random.below(bytes.len() as u64 / 8 + 1) as usize;
                            if let Some(to) = bytes.get_mut(at..at + 8) {
                                to.copy_from_slice(&word.to_le_bytes());
                            }
                        }
                    }
                }
                feed(&bytes);
                feed_machines(&bytes);
            }
        }
    });
}
