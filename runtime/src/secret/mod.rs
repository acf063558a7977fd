//! The job's key, and the values derived from it: proofs that a process knows the key, and the keys of one connection.
//!
//! BLAKE3 in its key derivation mode is a pseudorandom function (BLAKE3 paper, sections 2.2 and 6.2). Each use has a context of its
//! own, so that no value made for one is good for another.
//!
//! Frames have tags of AES-256-GCM over additional data alone, which is GMAC (NIST SP 800-38D): several times as fast as BLAKE3 for the
//! length of a frame. GMAC is secure only if no nonce is used twice under one key. The nonce holds the record number of the tag in its
//! connection and direction, and each connection has new keys. The same holds for frames that are encrypted, by AES-256-GCM proper.

pub mod handshake;

use std::fmt;
use std::ops::BitXor;

use aes_gcm::aead::AeadInOut;
use aes_gcm::{Aes256Gcm, KeyInit};

/// Bytes of a key.
pub const KEY: usize = 32;
/// Bytes of the tag behind each frame.
pub const TAG: usize = 16;
/// Bytes of a proof.
pub const PROOF: usize = 32;

/// The job's secret: all ranks of the job know it, and nobody else.
#[derive(Clone)]
pub struct JobKey {
    bytes: [u8; KEY],
    /// Frames of its connections are encrypted.
    encrypts: bool,
}

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
        JobKey { bytes, encrypts: false }
    }

    /// The key for connections whose frames are encrypted. Nothing that is made with it fits what is made with the other one: an end that
    /// encrypts and one that does not refuse each other, as ends of two jobs do.
    pub fn encrypting(&self) -> JobKey {
        let bytes = blake3::derive_key("bellwether tcp 1: connections that are encrypted", &self.bytes);
        JobKey { bytes, encrypts: true }
    }

    fn derive(&self, context: &str, transcript: &[u8]) -> [u8; KEY] {
        let mut hasher = blake3::Hasher::new_derive_key(context);
        hasher.update(&self.bytes);
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
        let (send, receive) = match end {
            End::Dialer => (dialer, acceptor),
            End::Acceptor => (acceptor, dialer),
        };
        SessionKeys { send, receive, encrypts: self.encrypts }
    }

    /// The keys of a link that leads to its own interface, whose frames never leave the process.
    pub fn own(&self) -> SessionKeys {
        let key = self.derive("bellwether tcp 1: to itself", &[]);
        SessionKeys { send: FrameKey::new(&key), receive: FrameKey::new(&key), encrypts: false }
    }
}

/// Bytes on the heap of a [`FrameKey`].
pub const FRAME_KEY: usize = size_of::<Aes256Gcm>();

/// The key for frames of one connection in one direction.
pub struct FrameKey(Box<Aes256Gcm>);

/// The keys of one connection.
pub struct SessionKeys {
    /// For frames that this end sends.
    pub send: FrameKey,
    /// For frames that this end receives.
    pub receive: FrameKey,
    /// Frames are encrypted, not only tagged.
    pub encrypts: bool,
}

impl fmt::Debug for SessionKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKeys(..)")
    }
}

impl FrameKey {
    fn new(key: &[u8; KEY]) -> FrameKey {
        FrameKey(Box::new(Aes256Gcm::new(key.into())))
    }

    /// The tag with the number `record` in its connection. `data` is what lies elsewhere than `head`, or nothing. The caller
    /// guarantees that no two different tags with one number leave this process.
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
        self.encrypt(record, part, bytes, &mut [])
    }

    /// Encrypts `body` in place. Returns the tag, over `head` as well. The caller guarantees that nothing else is encrypted with the number
    /// `record`: two plaintexts under one nonce give away their difference and the key of the tags.
    pub fn seal(&self, record: u64, head: &[u8], body: &mut [u8]) -> [u8; TAG] {
        self.encrypt(record, Part::Sealed, head, body)
    }

    /// Decrypts in place what [`FrameKey::seal`] has made of a body. Returns whether the tag fits; otherwise nothing is changed.
    pub fn open(&self, record: u64, head: &[u8], body: &mut [u8], tag: &[u8; TAG]) -> bool {
        self.0.decrypt_inout_detached(&nonce(record, Part::Sealed).into(), head, body.into(), &(*tag).into()).is_ok()
    }

    fn encrypt(&self, record: u64, part: Part, head: &[u8], body: &mut [u8]) -> [u8; TAG] {
        let tag = self.0.encrypt_inout_detached(&nonce(record, part).into(), head, body.into());
        tag.expect("a frame is far below the 64 GiB that GCM allows").into()
    }
}

fn nonce(record: u64, part: Part) -> [u8; 12] {
    let mut nonce = [part as u8; 12];
    nonce[..8].copy_from_slice(&record.to_le_bytes());
    nonce
}

/// The purpose of a tag: no two purposes have the same nonce.
#[derive(Clone, Copy)]
enum Part {
    Head = 1,
    Data = 2,
    Sealed = 3,
}

/// Whether two proofs or tags are the same. All bytes are compared, wherever the first difference is: the time tells a
/// stranger nothing about it.
pub fn same<B: Copy + BitXor<Output = u8>>(one: &[B], other: &[B]) -> bool {
    // Hides the value from the compiler, which could otherwise use it to end the loop early.
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
        let [head, data] = [Part::Head, Part::Data].map(|part| dialer.send.mac(7, part, b"bytes"));
        assert_ne!(head, data, "each part has its own nonce");
    }

    #[test]
    fn what_is_sealed_is_opened_by_the_other_end_only_and_as_what_it_was() {
        let key = JobKey::new([7; KEY]).encrypting();
        let (dialer, acceptor) = (key.session(End::Dialer, b"one"), key.session(End::Acceptor, b"one"));
        assert!(dialer.encrypts && acceptor.encrypts && !JobKey::new([7; KEY]).session(End::Dialer, b"one").encrypts);
        let (head, text) = (*b"head", *b"a body of some blocks, and of a part of one more");
        for (from, to) in [(&dialer, &acceptor), (&acceptor, &dialer)] {
            let mut sealed = text;
            let tag = from.send.seal(7, &head, &mut sealed);
            assert!(sealed.windows(4).all(|some| !text.windows(4).any(|of| of == some)), "nothing of it is to be seen");
            let opens = |by: &FrameKey, record, head: &[u8], body: &[u8], tag: &[u8; TAG]| {
                let mut body = body.to_vec();
                let before = body.clone();
                let fits = by.open(record, head, &mut body, tag);
                assert_eq!(body, if fits { text.to_vec() } else { before });
                fits
            };
            assert!(opens(&to.receive, 7, &head, &sealed, &tag));
            let other = key.session(End::Dialer, b"two");
            let plain = JobKey::new([7; KEY]).session(End::Dialer, b"one");
            for by in [&from.receive, &other.send, &other.receive, &plain.send, &plain.receive] {
                assert!(!opens(by, 7, &head, &sealed, &tag), "another key");
            }
            assert!(!opens(&to.receive, 8, &head, &sealed, &tag), "another frame");
            for at in 0..head.len() + sealed.len() + TAG {
                let (mut head, mut sealed, mut tag) = (head, sealed, tag);
                *head.iter_mut().chain(&mut sealed).chain(&mut tag).nth(at).expect("it has so many") ^= 4;
                assert!(!opens(&to.receive, 7, &head, &sealed, &tag), "byte {at} is changed");
            }
            let mut again = text;
            from.send.seal(8, &head, &mut again);
            assert_ne!(again, sealed, "each frame has its own nonce");
        }
    }

    #[test]
    fn frames_are_encrypted_as_the_specification_says() {
        // McGrew and Viega, test case 14: the same key and nonce, and a block of zeros.
        let key = FrameKey::new(&[0; KEY]);
        let mut block = [0; 16];
        let tag: [u8; TAG] =
            key.0.encrypt_inout_detached(&[0; 12].into(), &[], (&mut block[..]).into()).unwrap().into();
        assert_eq!(u128::from_be_bytes(block), 0xcea7_403d_4d60_6b6e_074e_c5d3_baf3_9d18);
        assert_eq!(u128::from_be_bytes(tag), 0xd0d1_c8a7_9999_6bf0_265b_98b5_d48a_b919);
        // And with the nonce that this one has.
        let (mut ours, mut theirs) = ([7; 100], [7; 100]);
        let tag = key.seal(0x0102, b"head", &mut ours);
        let nonce = [2, 1, 0, 0, 0, 0, 0, 0, 3, 3, 3, 3];
        let expected: [u8; TAG] =
            key.0.encrypt_inout_detached(&nonce.into(), b"head", (&mut theirs[..]).into()).unwrap().into();
        assert_eq!((ours, tag), (theirs, expected));
    }

    #[test]
    fn tags_are_those_of_the_specification() {
        // McGrew and Viega, The Galois/Counter Mode of Operation, test case 13: a key and a nonce of zeros, and nothing to authenticate.
        let key = FrameKey::new(&[0; KEY]);
        let nothing: &mut [u8] = &mut [];
        let tag: [u8; TAG] = key.0.encrypt_inout_detached(&[0; 12].into(), &[], nothing.into()).unwrap().into();
        assert_eq!(u128::from_be_bytes(tag), 0x530f_8afb_c745_36b9_a963_b4f1_c4cb_738b);
        // The same with data of many blocks, by the definition: sums and products in the field, bit by bit.
        let field_product = |x: u128, y: u128| {
            let step = |(sum, y): (u128, u128), bit: u32| {
                let sum = if (x >> (127 - bit)) & 1 == 1 { sum ^ y } else { sum };
                (sum, if y & 1 == 1 { (y >> 1) ^ (0xe1 << 120) } else { y >> 1 })
            };
            (0..128).fold((0, y), step).0
        };
        let data: Vec<u8> = (0..32 * 1024 + 40).map(|at: u32| (at * 7 / 8) as u8).collect();
        // E(K, 0), of the same test case.
        let hash_key = 0xdc95_c078_a240_8989_ad48_a214_9284_2087_u128;
        for len in [0, 1, 15, 16, 17, 63, 64, 65, 500, 4096, data.len()] {
            let data = &data[..len];
            let blocks = data.chunks(16).map(|chunk| {
                let mut block = [0; 16];
                block[..chunk.len()].copy_from_slice(chunk);
                u128::from_be_bytes(block)
            });
            let hash =
                blocks.chain([(8 * len as u128) << 64]).fold(0, |hash, block| field_product(hash ^ block, hash_key));
            let expected = u128::from_be_bytes(key.mac(5, Part::Head, &[])) ^ hash;
            assert_eq!(u128::from_be_bytes(key.mac(5, Part::Head, data)), expected, "{len} bytes");
        }
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
