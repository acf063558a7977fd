//! The job's key, and what is derived from it: proofs of who knows it, and the keys of one connection.
//!
//! BLAKE3 in its keyed mode is a pseudorandom function and a message authentication code (BLAKE3 paper, sections 2.2 and 6.2).
//! Each use has a context of its own, so that no value made for one is good for another.

pub mod handshake;

use std::fmt;
use std::ops::BitXor;

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
            .map(|context| FrameKey(self.derive(context, transcript)));
        match end {
            End::Dialer => SessionKeys { send: dialer, receive: acceptor },
            End::Acceptor => SessionKeys { send: acceptor, receive: dialer },
        }
    }

    /// The keys of a link that leads to its own interface.
    pub fn own(&self) -> SessionKeys {
        let key = self.derive("bellwether tcp 1: to itself", &[]);
        SessionKeys { send: FrameKey(key), receive: FrameKey(key) }
    }
}

/// The key for frames of one connection in one direction.
pub struct FrameKey([u8; KEY]);

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
    /// The tag of a frame that lies in one piece.
    pub fn tag(&self, frame: &[u8]) -> [u8; TAG] {
        truncate(blake3::keyed_hash(&self.0, frame))
    }

    /// The tag of a frame that lies in several.
    pub fn tag_of<'a>(&self, pieces: impl Iterator<Item = &'a [u8]>) -> [u8; TAG] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for piece in pieces {
            hasher.update(piece);
        }
        truncate(hasher.finalize())
    }
}

fn truncate(hash: blake3::Hash) -> [u8; TAG] {
    *hash.as_bytes().first_chunk().expect("a hash is longer than a tag")
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
        assert_eq!(dialer.send.tag(b"frame"), acceptor.receive.tag(b"frame"));
        assert_eq!(acceptor.send.tag(b"frame"), dialer.receive.tag(b"frame"));
        assert_ne!(dialer.send.tag(b"frame"), dialer.receive.tag(b"frame"), "no frame can be sent back");
        assert_ne!(dialer.send.tag(b"frame"), key.session(End::Dialer, b"two").send.tag(b"frame"));
        assert_eq!(dialer.send.tag(b"frame"), dialer.send.tag_of([&b"fr"[..], b"ame"].into_iter()));
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
