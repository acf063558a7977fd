//! Pairs of links over a network that cuts, delays, splits and repeats, from a seed.

use super::super::frame::{APART, BODY_MAX};
use super::super::handshake::{Accepting, Dialing, Hello, NONCE, Step};
use super::super::secret::JobKey;
use super::*;
use crate::transport::sim;

const LIMITS: Limits = Limits { frames: 8, bytes: 3 * SEGMENT, depth: 4, silent: 3 };

struct Pair {
    links: [Link; 2],
    /// Bytes on their way from each end.
    wires: [Vec<u8>; 2],
    key: JobKey,
    connections: u8,
    /// The numbers that each end received, in order.
    came: [Vec<u64>; 2],
    released: Vec<u64>,
}

impl Pair {
    fn new(limits: Limits) -> Pair {
        Pair {
            links: [Link::new(limits), Link::new(limits)],
            wires: [Vec::new(), Vec::new()],
            key: JobKey::new([9; 32]),
            connections: 0,
            came: [Vec::new(), Vec::new()],
            released: Vec::new(),
        }
    }

    /// As [`Pair::new`]; its frames are encrypted or not.
    fn that(encrypts: bool, limits: Limits) -> Pair {
        let mut pair = Pair::new(limits);
        if encrypts {
            pair.key = pair.key.encrypting();
        }
        pair
    }

    /// Connects the links, by a handshake that end `dialer` begins.
    fn connect(&mut self, dialer: usize) {
        self.connections += 1;
        let [mut ours, mut theirs] = [0, 1].map(|end| self.links[end].position());
        if dialer == 1 {
            std::mem::swap(&mut ours, &mut theirs);
        }
        let hello = Hello { from: (0, 0), to: (1, 0), position: ours, nonce: [self.connections; NONCE] };
        let (mut dialing, first) = Dialing::new(&self.key, hello);
        let mut accepting = Accepting::new([self.connections; NONCE]);
        let Step::Send(challenge) = accepting.take(&self.key, &first, |_| Some(theirs)) else { panic!("challenges") };
        let Step::Done(at_dialer, proof) = dialing.take(&challenge) else { panic!("knows the key") };
        let Step::Done(at_acceptor, _) = accepting.take(&self.key, &proof, |_| None) else { panic!("knows the key") };
        self.wires = [Vec::new(), Vec::new()];
        self.links[dialer].connect(at_dialer).expect("the same link");
        self.links[1 - dialer].connect(at_acceptor).expect("the same link");
    }

    fn cut(&mut self) {
        self.links.iter_mut().for_each(Link::disconnect);
        self.wires = [Vec::new(), Vec::new()];
    }

    /// Moves at most `most` bytes from the link of `end` to its wire.
    fn send(&mut self, end: usize, most: usize) {
        let link = &mut self.links[end];
        link.fill();
        let Some(out) = link.out() else { return };
        let mut bytes = out.gather().iter().flat_map(|slice| slice.iter().copied()).collect::<Vec<u8>>();
        bytes.truncate(most);
        link.sent(bytes.len());
        self.wires[end].extend(bytes);
    }

    /// Hands at most `most` bytes from the wire of `end` to the other link.
    fn receive(&mut self, end: usize, most: usize) -> Result<(), Broken> {
        let len = most.min(self.wires[end].len());
        let came: Vec<u8> = self.wires[end].drain(..len).collect();
        self.hand(1 - end, &came)
    }

    fn hand(&mut self, to: usize, bytes: &[u8]) -> Result<(), Broken> {
        let link = &mut self.links[to];
        let mut whole = [link.partial(), bytes].concat();
        let mut rest = &mut whole[..];
        while let Some(body) = link.next(&mut rest)? {
            let number = match body {
                Body::Message(bytes) => u64::from_le_bytes(*bytes.first_chunk().expect("a number")),
                Body::Put { address, bytes, token, .. } => {
                    assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == content(token, address, at)), "{token}");
                    address << 32 | bytes.len() as u64
                }
                Body::Refused { token, .. } => token,
                other => panic!("{other:?} was not sent"),
            };
            self.came[to].push(number);
        }
        link.keep(rest);
        self.released.extend(self.links[to].take_released());
        Ok(())
    }

    fn message(&mut self, end: usize, number: u64, len: usize) {
        let mut bytes = vec![number as u8; 8 + len];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        self.links[end].push(&Body::Message(&bytes), None, number);
    }

    fn settle(&mut self) {
        for _ in 0..10_000 {
            for end in [0, 1] {
                self.send(end, usize::MAX);
                self.receive(end, usize::MAX).expect("whole");
                self.links[end].ask();
            }
            if self.links.iter().all(Link::is_settled) && self.wires.iter().all(Vec::is_empty) {
                return;
            }
        }
        panic!("the links do not come to rest");
    }
}

fn content(token: u64, address: u64, at: usize) -> u8 {
    (token as usize * 31 + address as usize + at) as u8
}

#[test]
fn the_first_frames_of_a_connection_are_acknowledged_at_once() {
    let mut pair = Pair::new(LIMITS);
    let turns = |pair: &mut Pair| {
        // End 1 sends its own frames before it has received any.
        for end in [1, 0, 1, 0] {
            pair.send(end, usize::MAX);
            pair.receive(end, usize::MAX).expect("whole");
        }
    };
    pair.connect(0);
    pair.message(0, 1, 0);
    turns(&mut pair);
    assert!(pair.links[0].is_settled(), "new ones");
    pair.message(0, 2, 0);
    pair.send(0, usize::MAX);
    pair.cut();
    pair.connect(1);
    turns(&mut pair);
    assert!(pair.links[0].is_settled(), "those that are sent again");
    pair.message(0, 3, 0);
    turns(&mut pair);
    assert!(!pair.links[0].is_settled(), "later ones are acknowledged with frames the other way");
    assert_eq!(pair.came[1], [1, 2, 3]);
}

#[test]
fn nothing_is_lost_or_repeated_or_overtaken_however_often_the_connection_breaks() {
    sim::check("nothing_is_lost_or_repeated", 30, |seed| {
        let mut random = sim::Random::new(seed);
        let mut pair = Pair::that(seed % 2 == 1, LIMITS);
        let mut next = [0u64; 2];
        let mut cuts = 0;
        while next.iter().any(|sent| *sent < 300) {
            for end in [0, 1] {
                if next[end] < 300 && pair.links[end].has_room() {
                    let len = [0, 8, 100, 5000][random.below(4) as usize];
                    pair.message(end, next[end], len);
                    next[end] += 1;
                }
                match random.below(40) {
                    0 if pair.links[0].is_connected() => {
                        cuts += 1;
                        pair.cut();
                    }
                    1..=20 if !pair.links[0].is_connected() => pair.connect(random.below(2) as usize),
                    // An end whose connection broke later than the other's reads on, after the handshake has begun.
                    21..=30 => pair.send(end, random.below(9000) as usize),
                    _ => pair.receive(end, random.below(9000) as usize).expect("whole"),
                }
            }
        }
        if !pair.links[0].is_connected() {
            pair.connect(0);
        }
        pair.settle();
        assert!(cuts > 3, "{cuts} cuts");
        for came in &pair.came {
            assert_eq!(*came, Vec::from_iter(0..300));
        }
    });
}

#[test]
fn an_end_that_reads_on_while_the_next_connection_is_made_drops_what_comes_twice() {
    let mut pair = Pair::new(LIMITS);
    pair.connect(0);
    (0..5).for_each(|number| pair.message(0, number, 10));
    pair.send(0, usize::MAX);
    let late = std::mem::take(&mut pair.wires[0]);
    // End 0 has lost the connection and begins another; end 1 says what it has received, and reads the old one to its end.
    let stale = pair.links[1].position();
    pair.hand(1, &late).expect("whole");
    pair.links[0].disconnect();
    let keys = [0, 1].map(|end| {
        pair.key.session([super::super::secret::End::Dialer, super::super::secret::End::Acceptor][end], b"again")
    });
    for (end, keys) in keys.into_iter().enumerate() {
        let received = if end == 0 { stale.received } else { 0 };
        pair.links[end].connect(Established { epoch: 2, received, keys }).expect("the same link");
    }
    pair.message(0, 5, 0);
    pair.settle();
    assert_eq!(pair.came[1], [0, 1, 2, 3, 4, 5], "each once");
}

#[test]
fn puts_of_the_users_memory_are_cut_up_and_sent_again() {
    const LEN: usize = 5 * SEGMENT + 77;
    let mut pair = Pair::new(LIMITS);
    let token = 3;
    // Segments begin at multiples of SEGMENT: what lies where depends on the segment.
    let mut memory: Vec<u8> = (0..LEN).map(|at| content(token, (at - at % SEGMENT) as u64, at % SEGMENT)).collect();
    let pieces = [0..10, 10..SEGMENT + 5, SEGMENT + 5..LEN].map(|range| Piece {
        pointer: memory[range.clone()].as_mut_ptr(),
        len: range.len(),
        descriptor: crate::transport::key::Opaque::NONE,
    });
    // SAFETY: the memory outlives all accesses by the pair.
    unsafe { pair.links[0].push_put(7, 0, Pieces::of(pieces.to_vec()), LEN, token, 0) };
    pair.message(0, 99, 0);
    for round in 0..4 {
        pair.connect(round % 2);
        pair.send(0, 50_000 + round * 1000);
        pair.receive(0, usize::MAX).expect("whole");
        assert!(pair.released.is_empty(), "not all is there");
        pair.cut();
    }
    pair.connect(0);
    pair.settle();
    let mut expected: Vec<u64> = (0..5).map(|segment| (segment * SEGMENT as u64) << 32 | SEGMENT as u64).collect();
    expected.extend([(5 * SEGMENT as u64) << 32 | 77, 99]);
    assert_eq!(pair.came[1], expected);
    assert_eq!(pair.released, [token]);
}

#[test]
fn what_is_abandoned_is_not_touched_any_more_and_what_was_begun_still_arrives_whole() {
    [false, true].into_iter().for_each(abandons);
}

fn abandons(encrypts: bool) {
    let mut pair = Pair::that(encrypts, LIMITS);
    pair.connect(0);
    let token = 4;
    let mut memory: Vec<u8> = (0..SEGMENT).map(|at| content(token, 0, at)).collect();
    let piece = Piece { pointer: memory.as_mut_ptr(), len: SEGMENT, descriptor: crate::transport::key::Opaque::NONE };
    for _ in 0..3 {
        // SAFETY: the memory is there until after the call of `abandon`.
        unsafe { pair.links[0].push_put(7, 0, Pieces::of(vec![piece]), SEGMENT, token, 0) };
    }
    pair.send(0, 1000);
    pair.links[0].abandon(&[token]);
    memory.fill(0xee);
    pair.receive(0, usize::MAX).expect("whole");
    pair.cut();
    pair.connect(1);
    pair.settle();
    assert!(pair.came[1].iter().all(|put| *put == SEGMENT as u64) && !pair.came[1].is_empty());
}

#[test]
fn a_refusal_comes_before_the_acknowledgement_of_what_is_refused() {
    let mut pair = Pair::new(Limits { frames: 1, ..LIMITS });
    pair.connect(0);
    pair.links[0].push(&Body::Put { key: 0, address: 0, token: 5, notice: None, bytes: &[] }, Some(5), 0);
    // Something of the other end's stands before the refusal, and one frame may be in flight.
    (0..3).for_each(|number| pair.message(1, number, 0));
    pair.send(0, usize::MAX);
    let mut bytes = std::mem::take(&mut pair.wires[0]);
    let mut rest = &mut bytes[..];
    assert!(pair.links[1].next(&mut rest).expect("whole").is_some());
    pair.links[1].refuse(5, -23);
    while pair.links[1].next(&mut rest).expect("whole").is_some() {}
    for _ in 0..20 {
        (0..2).rev().for_each(|end| pair.send(end, usize::MAX));
        pair.receive(1, usize::MAX).expect("whole");
        assert!(pair.came[0].contains(&5) || pair.released.is_empty(), "acknowledged before it was refused");
        pair.receive(0, usize::MAX).expect("whole");
        pair.links[1].ask();
    }
    assert_eq!((&pair.came[0][..], &pair.released[..]), (&[5, 0, 1, 2][..], &[5][..]));
}

#[test]
fn a_window_is_a_bound_and_acknowledgements_open_it() {
    let mut pair = Pair::new(LIMITS);
    pair.connect(0);
    let mut taken = 0;
    while pair.links[0].has_room() {
        pair.message(0, taken, 0);
        pair.links[0].fill();
        taken += 1;
        assert!(taken < 100, "the peer has received nothing");
    }
    assert_eq!(taken, (LIMITS.frames + LIMITS.depth) as u64);
    assert!(!pair.links[0].is_settled_below(1) && pair.links[0].is_settled_below(0));
    pair.settle();
    assert!(pair.links[0].has_room() && pair.links[0].is_settled_below(taken));
}

#[test]
fn bytes_that_were_changed_replayed_or_left_out_end_the_connection() {
    [false, true].into_iter().for_each(are_refused);
}

/// Bytes that the peer has not sent in this order over this connection.
fn are_refused(encrypts: bool) {
    let sent = |pair: &mut Pair, number| {
        pair.message(0, number, 20);
        pair.send(0, usize::MAX);
        std::mem::take(&mut pair.wires[0])
    };
    for at in 0..100 {
        let mut pair = Pair::that(encrypts, LIMITS);
        pair.connect(0);
        pair.settle();
        let mut bytes = sent(&mut pair, 1);
        let place = at % bytes.len();
        bytes[place] ^= 1 << (at % 8);
        let _refused = pair.hand(1, &bytes);
        assert_eq!(pair.came[1], [], "byte {place} was changed");
    }
    let mut pair = Pair::that(encrypts, LIMITS);
    pair.connect(0);
    let [first, second, third] = [1, 2, 3].map(|number| sent(&mut pair, number));
    pair.hand(1, &first).expect("whole");
    assert!(pair.hand(1, &first).is_err(), "replayed");
    let mut pair = Pair::that(encrypts, LIMITS);
    pair.connect(0);
    let again = [1, 2, 3].map(|number| sent(&mut pair, number));
    assert_eq!(again[0], first, "the same keys, for the test");
    pair.hand(1, &again[0]).expect("whole");
    assert!(pair.hand(1, &third).is_err(), "one is left out");
    assert_eq!(pair.came[1], [1]);
    let mut pair = Pair::that(encrypts, LIMITS);
    pair.connect(0);
    assert!(pair.hand(0, &second).is_err(), "sent back");
    // A frame of an earlier connection.
    pair.cut();
    pair.connect(0);
    assert!(pair.hand(1, &first).is_err(), "the keys are new");
}

/// All that goes over the wires of a pair that sends a message, a short put, a long one from its memory, one of two blocks, and the data
/// of a get: the bytes of `secret` in each.
fn wires_with(secret: &[u8; 512], encrypts: bool) -> [Vec<u8>; 2] {
    let mut pair = Pair::that(encrypts, WIDE);
    let mut seen = [Vec::new(), Vec::new()];
    pair.connect(0);
    let mut memory: Vec<u8> = secret.iter().copied().cycle().take(SEGMENT + 2000).collect();
    let block = |from: usize, len: usize, memory: &mut Vec<u8>| {
        let descriptor = crate::transport::key::Opaque::NONE;
        Piece { pointer: memory[from..].as_mut_ptr(), len, descriptor }
    };
    let long = vec![block(0, memory.len(), &mut memory)];
    let two = vec![block(0, 512, &mut memory), block(512, 512, &mut memory)];
    pair.links[0].push(&Body::Message(secret), None, 0);
    let (address, token) = (word(secret, 0), NO_TOKEN);
    pair.links[0].push(&Body::Put { key: 7, address, token, notice: None, bytes: &secret[..40] }, None, 0);
    for pieces in [long, two] {
        let len = pieces.iter().map(|piece| piece.len).sum();
        // SAFETY: the memory outlives all accesses by the pair.
        unsafe { pair.links[0].push_put(7, 0, Pieces::of(pieces), len, 1, 0) };
    }
    pair.links[1].answer(&Body::Data { token: 1, offset: 0, bytes: secret });
    for _ in 0..10 {
        for end in [0, 1] {
            pair.send(end, usize::MAX);
            let bytes = std::mem::take(&mut pair.wires[end]);
            seen[end].extend_from_slice(&bytes);
            let mut all = [pair.links[1 - end].partial(), &bytes].concat();
            let mut rest = &mut all[..];
            while pair.links[1 - end].next(&mut rest).expect("whole").is_some() {}
            pair.links[1 - end].keep(rest);
        }
    }
    assert!(pair.links.iter().all(Link::is_settled), "all has arrived");
    seen
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("a word"))
}

#[test]
fn what_is_encrypted_cannot_be_read_on_the_wire() {
    let mut random = sim::Random::new(11);
    let secret: [u8; 512] = std::array::from_fn(|_| random.number() as u8);
    let finds = |wire: &[u8]| wire.windows(8).any(|some| secret.windows(8).any(|of| of == some));
    for (encrypts, end) in [(false, 0), (false, 1), (true, 0), (true, 1)] {
        let wire = &wires_with(&secret, encrypts)[end];
        assert_eq!(finds(wire), !encrypts, "end {end}");
        // The heads are in clear.
        let mut rest = &wire[..];
        let mut heads = Vec::new();
        while let Some((head, after)) = rest.split_first_chunk::<HEAD>() {
            let head = Head::decode(head).expect("a head");
            rest = &after[head.len as usize + TAG..];
            heads.push((head.kind, head.record));
        }
        assert!(heads.iter().any(|(kind, _)| *kind == if end == 0 { kind::PUT } else { kind::DATA }));
        // The number of a frame is its nonce: none occurs twice.
        assert!(heads.iter().map(|(_, record)| *record).eq(0..heads.len() as u64), "{heads:?}");
    }
}

#[test]
fn what_is_sent_again_is_encrypted_anew() {
    let mut pair = Pair::that(true, LIMITS);
    let sent: Vec<Vec<u8>> = (0..3)
        .map(|_| {
            pair.cut();
            pair.connect(0);
            if pair.links[0].is_settled() {
                pair.message(0, 1, 200);
            }
            pair.send(0, usize::MAX);
            let mut bytes = std::mem::take(&mut pair.wires[0]);
            // The message is the first frame each time: under one key it would have one nonce.
            assert_eq!((bytes[0], word(&bytes, 8)), (kind::MESSAGE, 0));
            bytes.truncate(HEAD + 208);
            bytes.split_off(HEAD)
        })
        .collect();
    assert!(sent[0] != sent[1] && sent[1] != sent[2] && sent[0] != sent[2]);
}

#[test]
fn a_peer_that_has_received_what_was_not_sent_is_another() {
    let mut link = Link::new(LIMITS);
    let keys = JobKey::new([1; 32]).own();
    assert!(link.connect(Established { epoch: 1, received: 1, keys }).is_err());
}

#[test]
fn a_link_that_leads_to_itself_carries_what_it_sends() {
    let mut link = Link::new(LIMITS);
    let keys = JobKey::new([1; 32]).own();
    link.connect(Established { epoch: 1, received: 0, keys }).expect("a new link");
    let mut came = Vec::new();
    for number in 0..50u64 {
        link.push(&Body::Message(&number.to_le_bytes()), None, number);
        for _ in 0..3 {
            link.fill();
            let Some(out) = link.out() else { break };
            let mut bytes = out.gather().iter().flat_map(|slice| slice.iter().copied()).collect::<Vec<u8>>();
            link.sent(bytes.len());
            let mut rest = &mut bytes[..];
            while let Some(body) = link.next(&mut rest).expect("whole") {
                let Body::Message(bytes) = body else { panic!("a message") };
                came.push(u64::from_le_bytes(bytes.try_into().expect("eight bytes")));
            }
            link.ask();
        }
    }
    assert_eq!(came, Vec::from_iter(0..50));
}

/// A put of one segment, each end of `pair` sending one that the other refuses.
fn refusable(pair: &mut Pair, end: usize, token: u64) {
    pair.links[end].push(&Body::Put { key: 0, address: 0, token, notice: None, bytes: &[] }, Some(token), 0);
}

/// Hands over all bytes from the wire of `end`, and refuses the first put.
fn refuse_first(pair: &mut Pair, end: usize, token: u64) {
    let mut bytes = std::mem::take(&mut pair.wires[end]);
    let (mut rest, mut is_first) = (&mut bytes[..], true);
    while pair.links[1 - end].next(&mut rest).expect("whole").is_some() {
        if std::mem::take(&mut is_first) {
            pair.links[1 - end].refuse(token, -23);
        }
    }
    assert!(rest.is_empty());
}

#[test]
fn full_windows_on_both_sides_do_not_hold_up_refusals() {
    let mut pair = Pair::new(LIMITS);
    pair.connect(0);
    for end in [0, 1] {
        refusable(&mut pair, end, 70 + end as u64);
        for number in 0..20 {
            pair.message(end, number, 0);
        }
        pair.send(end, usize::MAX);
    }
    refuse_first(&mut pair, 0, 70);
    refuse_first(&mut pair, 1, 71);
    pair.settle();
    assert!(pair.came[0].contains(&70) && pair.came[1].contains(&71));
}

#[test]
fn a_refusal_survives_a_cut_before_what_it_refuses_is_acknowledged() {
    for dialer in [0, 1] {
        for was_sealed in [false, true] {
            let mut pair = Pair::new(LIMITS);
            pair.connect(0);
            refusable(&mut pair, 0, 5);
            pair.send(0, usize::MAX);
            refuse_first(&mut pair, 0, 5);
            if was_sealed {
                pair.send(1, usize::MAX);
            }
            pair.cut();
            pair.connect(dialer);
            assert!(pair.links[0].take_released().is_empty(), "acknowledged by the handshake");
            for _ in 0..10 {
                pair.send(1, 40);
                pair.receive(1, usize::MAX).expect("whole");
                assert!(pair.came[0].contains(&5) || pair.released.is_empty(), "acknowledged before it was refused");
            }
            pair.settle();
            assert_eq!((&pair.came[0][..], &pair.released[..]), (&[5][..], &[5][..]));
        }
    }
}

#[test]
fn what_is_acknowledged_while_it_is_sent_again_is_copied_before_it_is_released() {
    [false, true].into_iter().for_each(is_acknowledged_while_sent_again);
}

fn is_acknowledged_while_sent_again(encrypts: bool) {
    let mut pair = Pair::that(encrypts, LIMITS);
    pair.connect(0);
    let token = 3;
    let mut memory: Vec<u8> = (0..SEGMENT).map(|at| content(token, 0, at)).collect();
    let piece = Piece { pointer: memory.as_mut_ptr(), len: SEGMENT, descriptor: crate::transport::key::Opaque::NONE };
    // SAFETY: the memory outlives all accesses by the pair.
    unsafe { pair.links[0].push_put(7, 0, Pieces::of(vec![piece]), SEGMENT, token, 0) };
    pair.send(0, usize::MAX);
    let late = std::mem::take(&mut pair.wires[0]);
    let stale = pair.links[1].position();
    pair.hand(1, &late).expect("whole");
    let keys = [0, 1].map(|end| {
        pair.key.session([super::super::secret::End::Dialer, super::super::secret::End::Acceptor][end], b"again")
    });
    for (end, keys) in keys.into_iter().enumerate() {
        let received = if end == 0 { stale.received } else { 0 };
        pair.links[end].connect(Established { epoch: 2, received, keys }).expect("the same link");
    }
    // The socket takes a part of the frame. Then the acknowledgement comes, and the memory is the user's again.
    pair.send(0, 1000);
    pair.send(1, usize::MAX);
    pair.receive(1, usize::MAX).expect("whole");
    assert_eq!(pair.released, [token]);
    memory.fill(0xee);
    pair.message(0, 9, 0);
    pair.settle();
    assert_eq!(pair.came[1], [SEGMENT as u64, 9]);
}

#[test]
fn gets_without_an_answer_are_bounded_and_hold_up_no_answers() {
    let mut pair = Pair::new(LIMITS);
    pair.connect(0);
    let asked = [8 * SEGMENT, SEGMENT + 1];
    let mut came = [0; 2];
    for end in [0, 1] {
        pair.links[end].push_get(1, 0, asked[end], 40 + end as u64, 0);
    }
    for _ in 0..200 {
        for end in [0, 1] {
            pair.send(end, usize::MAX);
            let mut bytes = [pair.links[1 - end].partial(), &std::mem::take(&mut pair.wires[end])].concat();
            let mut rest = &mut bytes[..];
            let (mut wanted, mut answers) = (0, Vec::new());
            while let Some(body) = pair.links[1 - end].next(&mut rest).expect("whole") {
                match body {
                    Body::Get { token, offset, len, .. } => {
                        wanted += len as usize;
                        answers.push((token, offset, len));
                    }
                    Body::Data { token, bytes, .. } => {
                        came[1 - end] += bytes.len();
                        pair.links[1 - end].answered(token, Some(bytes.len()));
                    }
                    other => panic!("{other:?} was not sent"),
                }
            }
            assert!(wanted <= LIMITS.bytes, "{wanted} bytes at once");
            pair.links[1 - end].keep(rest);
            for (token, offset, len) in answers {
                pair.links[1 - end].answer(&Body::Data { token, offset, bytes: &vec![0; len as usize] });
            }
            pair.links[end].ask();
        }
    }
    assert_eq!(came, asked);
}

/// Limits like those of real links.
const WIDE: Limits = Limits { frames: 256, bytes: 1 << 20, depth: 64, silent: 64 };

/// Bytes on the heap of a link, which must be idle.
fn heap(link: &Link) -> usize {
    let Some(connection) = &link.connection else { panic!("a connection") };
    let queues = [
        (link.queue.capacity(), size_of::<Item>()),
        (link.answers.capacity(), size_of::<Item>()),
        (link.gets.capacity(), size_of::<(u64, u32)>()),
        (link.unacked.capacity(), size_of::<Sent>()),
        (link.refusals.capacity(), size_of::<(u64, u64)>()),
        (link.released.capacity(), size_of::<u64>()),
    ];
    assert!(queues.iter().all(|(entries, _)| *entries <= ENTRIES_KEPT), "{queues:?}");
    let queues: usize = queues.iter().map(|(entries, size)| entries * size).sum();
    queues + connection.partial.capacity() + connection.out.heap() + 2 * super::super::secret::FRAME_KEY
}

#[test]
fn a_link_that_is_idle_again_keeps_little() {
    [false, true].into_iter().for_each(is_idle_again);
}

fn is_idle_again(encrypts: bool) {
    const COUNT: usize = 200;
    let mut pair = Pair::that(encrypts, WIDE);
    pair.connect(0);
    // Each fills another queue: the peer answers nothing before it has all.
    (0..COUNT).for_each(|_| pair.links[0].push_get(1, 0, 8, 0, NO_POST));
    pair.send(0, usize::MAX);
    let mut bytes = std::mem::take(&mut pair.wires[0]);
    let mut rest = &mut bytes[..];
    while let Some(body) = pair.links[1].next(&mut rest).expect("whole") {
        let Body::Get { token, offset, .. } = body else { panic!("{body:?} was not sent") };
        pair.links[1].answer(&Body::Data { token, offset, bytes: &[0; 8] });
    }
    assert!(pair.links[1].answers.len() == COUNT && pair.links[0].gets.len() == COUNT);
    pair.send(1, usize::MAX);
    let mut bytes = std::mem::take(&mut pair.wires[1]);
    let mut rest = &mut bytes[..];
    while let Some(body) = pair.links[0].next(&mut rest).expect("whole") {
        let Body::Data { token, bytes, .. } = body else { panic!("{body:?} was not sent") };
        pair.links[0].answered(token, Some(bytes.len()));
    }
    pair.settle();
    for number in 0..COUNT as u64 {
        pair.message(0, number, 0);
        pair.send(0, usize::MAX);
        pair.receive(0, usize::MAX).expect("whole");
        pair.links[1].refuse(number, -1);
    }
    assert!(pair.links[1].refusals.len() == COUNT && pair.links[0].unacked.len() == COUNT);
    pair.settle();
    // Data that is sent from where it lies: the most blocks at once.
    let token = 5;
    let mut memory: Vec<u8> = (0..APART).map(|at| content(token, 0, at)).collect();
    let piece = Piece { pointer: memory.as_mut_ptr(), len: APART, descriptor: crate::transport::key::Opaque::NONE };
    for _ in 0..COUNT {
        // SAFETY: the memory outlives the pair.
        unsafe { pair.links[0].push_put(7, 0, Pieces::of(vec![piece]), APART, token, NO_POST) };
    }
    pair.links[0].fill();
    assert!(pair.links[0].out().is_some_and(|out| out.heap() > outbox::IDLE));
    pair.settle();
    for link in &pair.links {
        let bytes = heap(link);
        assert!(bytes <= IDLE, "{bytes} bytes");
    }
    // The figure that the transport reports has to stay within 64 KiB.
    assert!(super::super::bytes_per_peer() <= 64 << 10, "{} bytes", super::super::bytes_per_peer());
}

#[test]
fn a_receiver_acknowledges_by_a_quarter_of_the_window() {
    let limits = Limits { silent: u64::MAX, ..WIDE };
    let mut pair = Pair::new(limits);
    pair.connect(0);
    let turn = |pair: &mut Pair| {
        for end in [0, 1] {
            pair.send(end, usize::MAX);
            pair.receive(end, usize::MAX).expect("whole");
        }
    };
    pair.message(0, 0, 0);
    (0..3).for_each(|_| turn(&mut pair));
    assert!(pair.links[0].is_settled(), "the first asks for it");
    // No flush waits for these, and the peer sends nothing of its own.
    for number in 1..=(limits.bytes / SEGMENT / 4) as u64 {
        assert!(pair.links[0].unacked.len() as u64 == number - 1, "nothing is acknowledged before");
        pair.message(0, number, SEGMENT - 8);
        turn(&mut pair);
    }
    assert!(pair.links[0].is_settled(), "long before the window is full");
}

const _: () = assert!(BODY_MAX > SEGMENT);
