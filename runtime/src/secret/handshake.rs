//! How the two ends of a new connection prove to each other that they know the job's key, without sending it. No socket, no clock.
//!
//! ```text
//! dialer                                       acceptor
//!   Hello: who, to whom, where it is, nonce ─▶
//!   ◀─ Challenge: where it is, nonce, proof over Hello and Challenge
//!   Proof over Hello and Challenge ─▶
//! ```
//!
//! Both nonces are new for each connection: a recording of another handshake proves nothing in this one. Frames follow, under
//! keys that only this exchange gives.

use super::{End, JobKey, PROOF, SessionKeys, same};

/// Changes with the handshake and with the frames that follow it: builds that differ in them do not connect.
const MAGIC: u64 = u64::from_le_bytes(*b"bellwtc3");
/// Random bytes that an end brings.
pub const NONCE: usize = 32;
/// Bytes of a [`Hello`].
pub const HELLO: usize = 56 + NONCE;
/// Bytes of the acceptor's answer before its proof.
pub const CHALLENGE: usize = 16 + NONCE;

/// Where an end of a link is when a connection begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The last connection that this end has used: they are numbered.
    pub epoch: u64,
    /// Frames that it has received in order.
    pub received: u64,
}

/// The first message of a dialer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// The dialer, and what tells it from the next interface with its number.
    pub from: (u32, u64),
    /// The interface that is called.
    pub to: (u32, u64),
    /// Where it is.
    pub position: Position,
    /// Random.
    pub nonce: [u8; NONCE],
}

impl Hello {
    pub fn encode(&self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[0..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.from.0.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.to.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.from.1.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.to.1.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.position.epoch.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.position.received.to_le_bytes());
        bytes[56..].copy_from_slice(&self.nonce);
        bytes
    }

    /// Understands it; `None` for bytes that are none.
    pub fn decode(bytes: &[u8; HELLO]) -> Option<Hello> {
        let half = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let word = |at: usize| u64::from(half(at)) | u64::from(half(at + 4)) << 32;
        let position = Position { epoch: word(32), received: word(40) };
        let nonce = *bytes[56..].first_chunk()?;
        let hello = Hello { from: (half(8), word(16)), to: (half(12), word(24)), position, nonce };
        (word(0) == MAGIC && word(48) == 0).then_some(hello)
    }
}

/// What both ends have when a handshake is over.
#[derive(Debug)]
pub struct Established {
    /// The number of the connection.
    pub epoch: u64,
    /// Frames that the other end has received.
    pub received: u64,
    /// The connection's keys.
    pub keys: SessionKeys,
}

/// How a handshake stands.
#[derive(Debug)]
pub enum Step {
    /// More bytes have to come.
    Waits,
    /// Send these bytes.
    Send(Vec<u8>),
    /// It is over; send these bytes.
    Done(Established, Vec<u8>),
    /// The other end does not know the key, or sends something else.
    Refused,
}

/// The dialer's side.
#[derive(Debug)]
pub struct Dialing {
    key: JobKey,
    hello: Hello,
    heard: Vec<u8>,
}

impl Dialing {
    /// A handshake that begins with `hello`, and the bytes to send.
    pub fn new(key: &JobKey, hello: Hello) -> (Dialing, [u8; HELLO]) {
        (Dialing { key: key.clone(), hello, heard: Vec::new() }, hello.encode())
    }

    /// Bytes that may still come in the handshake.
    pub fn wanted(&self) -> usize {
        CHALLENGE + PROOF - self.heard.len()
    }

    /// Takes at most [`Dialing::wanted`] bytes that came.
    pub fn take(&mut self, bytes: &[u8]) -> Step {
        self.heard.extend_from_slice(bytes);
        let Some((challenge, proof)) = self.heard.split_at_checked(CHALLENGE) else { return Step::Waits };
        if proof.len() < PROOF {
            return Step::Waits;
        }
        let transcript = [&self.hello.encode()[..], challenge].concat();
        if !same(proof, &self.key.proof(End::Acceptor, &transcript)) {
            return Step::Refused;
        }
        let theirs = position(challenge);
        let established = Established {
            epoch: self.hello.position.epoch.max(theirs.epoch).saturating_add(1),
            received: theirs.received,
            keys: self.key.session(End::Dialer, &transcript),
        };
        Step::Done(established, self.key.proof(End::Dialer, &transcript).into())
    }
}

fn position(challenge: &[u8]) -> Position {
    let word = |at: usize| challenge.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
    Position { epoch: word(0), received: word(8) }
}

/// The acceptor's side.
#[derive(Debug)]
pub struct Accepting {
    nonce: [u8; NONCE],
    heard: Vec<u8>,
    /// The messages sent, and to whom, once that is known.
    said: Option<(Hello, Vec<u8>, Position)>,
}

impl Accepting {
    /// A handshake with someone who has called. `nonce` is random.
    pub fn new(nonce: [u8; NONCE]) -> Accepting {
        Accepting { nonce, heard: Vec::new(), said: None }
    }

    /// Bytes that may still come in the handshake.
    pub fn wanted(&self) -> usize {
        HELLO + PROOF - self.heard.len()
    }

    /// The caller, as it names itself. Nothing about the caller is proved before [`Step::Done`].
    pub fn caller(&self) -> Option<&Hello> {
        self.said.as_ref().map(|(hello, ..)| hello)
    }

    /// Takes at most [`Accepting::wanted`] bytes that came. `place` tells where this end's link to the caller is, or `None` if
    /// the call is for somebody else.
    pub fn take(&mut self, key: &JobKey, bytes: &[u8], place: impl FnOnce(&Hello) -> Option<Position>) -> Step {
        self.heard.extend_from_slice(bytes);
        let Some((first, proof)) = self.heard.split_first_chunk::<HELLO>() else { return Step::Waits };
        let Some((hello, transcript, ours)) = &self.said else {
            let Some(hello) = Hello::decode(first) else { return Step::Refused };
            // A dialer sends its proof only when it has the challenge.
            let Some(ours) = place(&hello).filter(|_| proof.is_empty()) else { return Step::Refused };
            let mut challenge = Vec::with_capacity(CHALLENGE + PROOF);
            challenge.extend_from_slice(&ours.epoch.to_le_bytes());
            challenge.extend_from_slice(&ours.received.to_le_bytes());
            challenge.extend_from_slice(&self.nonce);
            let transcript = [&first[..], &challenge].concat();
            challenge.extend_from_slice(&key.proof(End::Acceptor, &transcript));
            self.said = Some((hello, transcript, ours));
            return Step::Send(challenge);
        };
        if proof.len() < PROOF {
            return Step::Waits;
        }
        if !same(proof, &key.proof(End::Dialer, transcript)) {
            return Step::Refused;
        }
        let established = Established {
            epoch: hello.position.epoch.max(ours.epoch).saturating_add(1),
            received: hello.position.received,
            keys: key.session(End::Acceptor, transcript),
        };
        Step::Done(established, Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Position = Position { epoch: 4, received: 9 };

    fn hello() -> Hello {
        Hello { from: (1, 11), to: (2, 22), position: Position { epoch: 3, received: 7 }, nonce: [1; NONCE] }
    }

    /// Runs a handshake, `chunk` bytes at a time. Returns what each end has, and all that the dialer sent.
    fn shake(keys: [u8; 2], nonce: u8, chunk: usize) -> (Option<Established>, Option<Established>, Vec<u8>) {
        let [one, other] = keys.map(|byte| JobKey::new([byte; 32]));
        let (mut dialing, first) = Dialing::new(&one, hello());
        let mut accepting = Accepting::new([nonce; NONCE]);
        let (mut to_acceptor, mut sent, mut to_dialer) = (first.to_vec(), first.to_vec(), Vec::new());
        let (mut at_dialer, mut at_acceptor) = (None, None);
        loop {
            let mut moved = false;
            while !to_acceptor.is_empty() && at_acceptor.is_none() {
                moved = true;
                let some: Vec<u8> = to_acceptor.drain(..chunk.min(to_acceptor.len()).min(accepting.wanted())).collect();
                match accepting.take(&other, &some, |hello| (hello.to == (2, 22)).then_some(OURS)) {
                    Step::Send(bytes) => to_dialer.extend(bytes),
                    Step::Done(established, _) => at_acceptor = Some(established),
                    Step::Refused => return (at_dialer, None, sent),
                    Step::Waits => {}
                }
            }
            while !to_dialer.is_empty() && at_dialer.is_none() {
                moved = true;
                let some: Vec<u8> = to_dialer.drain(..chunk.min(to_dialer.len()).min(dialing.wanted())).collect();
                match dialing.take(&some) {
                    Step::Done(established, bytes) => {
                        sent.extend(&bytes);
                        to_acceptor.extend(bytes);
                        at_dialer = Some(established);
                    }
                    Step::Refused => return (None, at_acceptor, sent),
                    _ => {}
                }
            }
            if !moved {
                return (at_dialer, at_acceptor, sent);
            }
        }
    }

    #[test]
    fn ends_that_know_the_key_agree_however_the_bytes_come() {
        for chunk in [1, 7, 1000] {
            let (Some(dialer), Some(acceptor), _) = shake([5, 5], 3, chunk) else { panic!("both are done") };
            assert_eq!((dialer.epoch, acceptor.epoch), (5, 5));
            assert_eq!((dialer.received, acceptor.received), (9, 7));
            assert_eq!(dialer.keys.send.tag(0, b"x", b""), acceptor.keys.receive.tag(0, b"x", b""));
            assert_eq!(acceptor.keys.send.tag(0, b"x", b""), dialer.keys.receive.tag(0, b"x", b""));
        }
    }

    #[test]
    fn an_end_that_does_not_know_the_key_learns_and_proves_nothing() {
        let (dialer, acceptor, _) = shake([5, 6], 3, 1000);
        assert!(dialer.is_none() && acceptor.is_none());
    }

    #[test]
    fn an_end_that_encrypts_and_one_that_does_not_refuse_each_other() {
        let (plain, encrypting) = (JobKey::new([5; 32]), JobKey::new([5; 32]).encrypting());
        for (one, other) in [(&plain, &encrypting), (&encrypting, &plain)] {
            let (mut dialing, first) = Dialing::new(one, hello());
            let mut accepting = Accepting::new([3; NONCE]);
            let Step::Send(challenge) = accepting.take(other, &first, |_| Some(OURS)) else { panic!("challenges") };
            assert!(matches!(dialing.take(&challenge), Step::Refused));
            let transcript = [&first[..], &challenge[..CHALLENGE]].concat();
            let proof = one.proof(End::Dialer, &transcript);
            assert!(matches!(accepting.take(other, &proof, |_| None), Step::Refused));
        }
    }

    #[test]
    fn a_recorded_handshake_proves_nothing_the_next_time() {
        let (_, acceptor, sent) = shake([5, 5], 3, 1000);
        assert!(acceptor.is_some());
        for (nonce, is_good) in [(3, true), (4, false)] {
            let (mut accepting, key) = (Accepting::new([nonce; NONCE]), JobKey::new([5; 32]));
            assert!(matches!(accepting.take(&key, &sent[..HELLO], |_| Some(OURS)), Step::Send(_)));
            let step = accepting.take(&key, &sent[HELLO..], |_| Some(OURS));
            assert_eq!(matches!(step, Step::Done(..)), is_good, "the nonce alone makes the difference");
        }
    }

    #[test]
    fn a_call_for_another_and_bytes_that_are_no_call_are_refused() {
        let key = JobKey::new([5; 32]);
        let step = Accepting::new([3; NONCE]).take(&key, &hello().encode(), |_| None);
        assert!(matches!(step, Step::Refused));
        let step = Accepting::new([3; NONCE]).take(&key, &[0x55; HELLO], |_| Some(OURS));
        assert!(matches!(step, Step::Refused));
        // All at once, before the challenge can have been seen.
        let step =
            Accepting::new([3; NONCE]).take(&key, &[&hello().encode()[..], &[1; PROOF]].concat(), |_| Some(OURS));
        assert!(matches!(step, Step::Refused));
    }
}
