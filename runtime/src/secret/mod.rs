//! The job's key, and what is derived from it: proofs of who knows it, and the keys of one connection.
//!
//! BLAKE3 in its key derivation mode is a pseudorandom function (BLAKE3 paper, sections 2.2 and 6.2). Each use has a context of its
//! own, so that no value made for one is good for another.
//!
//! Frames have tags of AES-256-GCM over additional data alone, which is GMAC (NIST SP 800-38D): several times as fast as BLAKE3 for
//! what a frame holds. Its nonce must never come twice under one key. The nonce is the number of the frame in its connection and
//! direction, and each connection has new keys.

pub mod handshake;

use std::fmt;
use std::ops::BitXor;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

/// Bytes of a key.
pub const KEY: usize = 32;
/// Bytes of the tag behind each frame.
pub const TAG: usize = 16;
/// Bytes of a proof.
pub const PROOF: usize = 32;

/// What all ranks of a job know, and nobody else.
#[derive(Clone)]
pub struct JobKey([u8; KEY]);

impl fmt::Debug for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobKey(..)")
    }
}

/// Which end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The one that called `connect`.
    Dialer,
    /// The one that called `accept`.
    Acceptor,
}

impl JobKey {
    /// The key with these bytes.
    pub fn new(bytes: [u8; KEY]) -> JobKey {
        JobKey(bytes)
    }

    fn derive(&self, context: &str, transcript: &[u8]) -> [u8; KEY] {
        let mut hasher = blake3::Hasher::new_derive_key(context);
        hasher.update(&self.0);
        hasher.update(transcript);
        *hasher.finalize().as_bytes()
    }

    /// Shows that `end` knows the key and has seen `transcript`, which has fresh random bytes of both ends.
    pub fn proof(&self, end: End, transcript: &[u8]) -> [u8; PROOF] {
        let context = match end {
            End::Dialer => "bellwether tcp 1: the dialer's proof",
            End::Acceptor => "bellwether tcp 1: the acceptor's proof",
        };
        self.derive(context, transcript)
    }

    /// The keys of a connection, as `end` uses them.
    pub fn session(&self, end: End, transcript: &[u8]) -> SessionKeys {
        let [dialer, acceptor] = ["bellwether tcp 1: from the dialer", "bellwether tcp 1: from the acceptor"]
            .map(|context| FrameKey::new(&self.derive(context, transcript)));
        match end {
            End::Dialer => SessionKeys { send: dialer, receive: acceptor },
            End::Acceptor => SessionKeys { send: acceptor, receive: dialer },
        }
    }

    /// The keys of a link that leads to its own interface, whose frames never leave the process.
    pub fn own(&self) -> SessionKeys {
        let key = self.derive("bellwether tcp 1: to itself", &[]);
        SessionKeys { send: FrameKey::new(&key), receive: FrameKey::new(&key) }
    }
}

/// Bytes on the heap of a [`FrameKey`].
pub const FRAME_KEY: usize = size_of::<LessSafeKey>();

/// The key for frames of one connection in one direction.
pub struct FrameKey(Box<LessSafeKey>);

/// The keys of one connection.
pub struct SessionKeys {
    /// For frames that this end sends.
    pub send: FrameKey,
    /// For frames that this end receives.
    pub receive: FrameKey,
}

impl fmt::Debug for SessionKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKeys(..)")
    }
}

impl FrameKey {
    fn new(key: &[u8; KEY]) -> FrameKey {
        let key = UnboundKey::new(&AES_256_GCM, key).expect("a key of this length");
        FrameKey(Box::new(LessSafeKey::new(key)))
    }

    /// The tag of the frame with the number `record` in its connection. `data` is what lies elsewhere than `head`, or nothing.
    pub fn tag(&self, record: u64, head: &[u8], data: &[u8]) -> [u8; TAG] {
        if data.is_empty() {
            return self.mac(record, Part::Head, head);
        }
        // The head has the length of the data and a tag of its own stands for the data, so that neither needs to be copied.
        let mut all = smallvec::SmallVec::<[u8; 128]>::from_slice(head);
        all.extend_from_slice(&self.mac(record, Part::Data, data));
        self.mac(record, Part::Head, &all)
    }

    fn mac(&self, record: u64, part: Part, bytes: &[u8]) -> [u8; TAG] {
        let mut nonce = [part as u8; 12];
        nonce[..8].copy_from_slice(&record.to_le_bytes());
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self.0.seal_in_place_separate_tag(nonce, Aad::from(bytes), &mut []).expect("a frame is not too long");
        tag.as_ref().try_into().expect("a tag of this length")
    }
}

/// What a tag is for: no two have the same nonce.
#[derive(Clone, Copy)]
enum Part {
    Head = 1,
    Data = 2,
}

/// Whether two proofs or tags are the same. All bytes are compared, wherever the first difference is: the time tells a
/// stranger nothing about it.
pub fn same<B: Copy + BitXor<Output = u8>>(one: &[B], other: &[B]) -> bool {
    // What the compiler does not know it cannot use to end the loop early.
    let differ = |all: u8, (one, other): (&B, &B)| std::hint::black_box(all | (*one ^ *other));
    one.len() == other.len() && one.iter().zip(other).fold(0, differ) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_use_has_its_own_values_and_the_ends_agree() {
        let (key, other) = (JobKey::new([7; KEY]), JobKey::new([8; KEY]));
        let proofs = [
            key.proof(End::Dialer, b"one"),
            key.proof(End::Acceptor, b"one"),
            key.proof(End::Dialer, b"two"),
            other.proof(End::Dialer, b"one"),
        ];
        for (i, proof) in proofs.iter().enumerate() {
            assert!(proofs[..i].iter().all(|earlier| !same(earlier, proof)), "{i}");
        }
        let (dialer, acceptor) = (key.session(End::Dialer, b"one"), key.session(End::Acceptor, b"one"));
        for (head, data) in [(&b"frame"[..], &b""[..]), (b"head", b"data")] {
            for (from, to) in [(&dialer, &acceptor), (&acceptor, &dialer)] {
                let tag = from.send.tag(7, head, data);
                assert_eq!(tag, to.receive.tag(7, head, data));
                assert_ne!(tag, from.receive.tag(7, head, data), "no frame can be sent back");
                assert_ne!(tag, from.send.tag(8, head, data), "nor be another one");
                assert_ne!(tag, key.session(End::Dialer, b"two").send.tag(7, head, data));
            }
        }
        let tag = dialer.send.tag(7, b"head", b"data");
        assert_ne!(tag, dialer.send.tag(7, b"head", b"dato"));
        assert_ne!(tag, dialer.send.tag(7, b"heat", b"data"));
    }

    #[test]
    fn what_differs_in_any_byte_is_not_the_same() {
        let one = [0x5a_u8; TAG];
        assert!(same(&one, &one) && !same(&one, &one[1..]));
        for at in 0..TAG {
            let mut other = one;
            other[at] ^= 0x10;
            assert!(!same(&one, &other), "byte {at}");
        }
    }

    /// A value that tells how often it was compared.
    #[derive(Clone, Copy)]
    struct Watched<'a>(u8, &'a std::cell::Cell<usize>);

    impl BitXor for Watched<'_> {
        type Output = u8;

        fn bitxor(self, other: Self) -> u8 {
            self.1.set(self.1.get() + 1);
            self.0 ^ other.0
        }
    }

    #[test]
    fn all_of_a_secret_is_compared_wherever_it_is_wrong() {
        let compared = std::cell::Cell::new(0);
        let secret = [0x5a; PROOF].map(|byte| Watched(byte, &compared));
        assert!(same(&secret, &secret));
        for wrong in 0..PROOF {
            let mut guess = secret;
            guess[wrong].0 ^= 1;
            compared.set(0);
            assert!(!same(&guess, &secret), "byte {wrong}");
            assert_eq!(compared.get(), PROOF, "byte {wrong}");
        }
    }
}
