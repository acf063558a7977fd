//! The two rings of a peer, as one end sees them: the peer's ring that this rank writes, and this rank's ring that the peer
//! writes. The frames that open and close them, and the order between messages in a ring and frames.

use std::cell::Cell;

use crate::transport::verbs::ring::Remote;

/// Messages from one peer between two sleeps after which this rank lends it a ring. Lower in tests, which send few.
/// Chosen: lending costs one message and a registration.
pub const BUSY: u32 = if cfg!(test) { 4 } else { 64 };
/// Each ring in a row that came back unused doubles [`BUSY`] for that peer, at most this many times.
const UNUSED: u32 = 10;

/// Kinds of frames, in addition to those of [`crate::transport::stream::Frame`].
const OFFER: u8 = 3;
const CLOSE: u8 = 4;
const CLOSED: u8 = 5;

/// A frame about a ring: kind at 0, key at 4, address at 8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RingFrame {
    /// The owner lends this ring.
    Offer(Remote),
    /// The owner wants its ring back.
    Close,
    /// The writer has stopped.
    Closed,
}

impl RingFrame {
    /// Bytes of such a frame.
    pub const LEN: usize = 16;

    pub fn encode(self) -> [u8; RingFrame::LEN] {
        let mut bytes = [0; RingFrame::LEN];
        bytes[0] = match self {
            RingFrame::Offer(ring) => {
                bytes[4..8].copy_from_slice(&ring.key.to_le_bytes());
                bytes[8..].copy_from_slice(&ring.address.to_le_bytes());
                OFFER
            }
            RingFrame::Close => CLOSE,
            RingFrame::Closed => CLOSED,
        };
        bytes
    }

    /// `None`: the frame is not about rings.
    pub fn decode(bytes: &[u8]) -> Option<RingFrame> {
        let [kind, _, _, _, a, b, c, d, address @ ..] = *<&[u8; RingFrame::LEN]>::try_from(bytes).ok()?;
        match kind {
            OFFER => {
                let (key, address) = (u32::from_le_bytes([a, b, c, d]), u64::from_le_bytes(address));
                Some(RingFrame::Offer(Remote { address, key, written: 0 }))
            }
            CLOSE => Some(RingFrame::Close),
            CLOSED => Some(RingFrame::Closed),
            _ => None,
        }
    }

    /// Whether this is [`RingFrame::Close`], on which the writer acts before it handles earlier frames.
    #[inline(always)]
    pub fn is_close(bytes: &[u8]) -> bool {
        bytes.first() == Some(&CLOSE)
    }
}

/// A ring of this rank that the peer writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lent {
    /// Its number among this rank's rings.
    pub ring: u32,
    /// Messages taken out of the ring.
    pub taken: u32,
    pub wanted_back: bool,
    /// A message came since all rings were lent and an idle one was searched.
    pub used: bool,
}

/// Frames that are still to be sent to the peer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct ToSay {
    offer: Option<Remote>,
    close: bool,
    closed: bool,
}

/// The state of an interface for the rings between it and one peer.
#[derive(Debug, Default)]
pub struct RingEnds {
    /// The peer's ring, while this rank may write it.
    remote: Cell<Option<Remote>>,
    lent: Cell<Option<Lent>>,
    to_say: Cell<ToSay>,
    /// Frames sent to the peer, and frames of the peer that were handled.
    sent: Cell<u32>,
    handled: Cell<u32>,
    /// Small messages of the peer since this rank slept.
    small_messages: Cell<u32>,
    /// Rings in a row that came back unused.
    unused: Cell<u32>,
}

impl RingEnds {
    /// The peer's ring, if this rank may write it.
    #[inline(always)]
    pub fn remote(&self) -> Option<Remote> {
        self.remote.get()
    }

    /// The next message was written into the peer's ring.
    #[inline(always)]
    pub fn wrote(&self, to: Remote) {
        self.remote.set(Some(Remote { written: to.written.wrapping_add(1), ..to }));
    }

    /// The peer wants its ring back: nothing may be written from here on.
    pub fn stop_writing(&self) {
        self.remote.set(None);
    }

    #[inline(always)]
    pub fn frame_sent(&self) {
        self.sent.set(self.sent.get().wrapping_add(1));
    }

    /// Frames sent so far; the peer handles them before a message that is written now.
    #[inline(always)]
    pub fn frames_sent(&self) -> u32 {
        self.sent.get()
    }

    #[inline(always)]
    pub fn frame_handled(&self) {
        self.handled.set(self.handled.get().wrapping_add(1));
    }

    /// Whether the frames that the peer sent before a message, so many, are handled.
    #[inline(always)]
    pub fn may_handle_after(&self, frames: u32) -> bool {
        self.handled.get().wrapping_sub(frames) as i32 >= 0
    }

    /// Counts a small message of the peer. Returns whether the peer is busy by now; the count then begins anew.
    #[inline]
    pub fn count_small_message(&self) -> bool {
        let count = self.small_messages.get() + 1;
        let is_busy = count == BUSY << self.unused.get();
        self.small_messages.set(if is_busy { 0 } else { count });
        is_busy
    }

    /// Called when this rank is about to sleep: a peer counts as busy only by the messages that it sends between two sleeps.
    pub fn forget_small_messages(&self) {
        self.small_messages.set(0);
    }

    /// The ring that this rank has lent to the peer.
    #[inline(always)]
    pub fn lent(&self) -> Option<Lent> {
        self.lent.get()
    }

    /// Lends the peer the empty ring number `ring`, which it writes at `remote`.
    pub fn lend(&self, ring: u32, remote: Remote) {
        self.lent.set(Some(Lent { ring, taken: 0, wanted_back: false, used: true }));
        self.to_say.set(ToSay { offer: Some(remote), ..self.to_say.get() });
    }

    /// There is no memory for a ring: tries again after many more messages.
    pub fn lend_later(&self) {
        self.unused.set(UNUSED);
    }

    /// A message was taken out of the ring.
    #[inline(always)]
    pub fn took(&self, lent: Lent) {
        self.lent.set(Some(Lent { taken: lent.taken.wrapping_add(1), used: true, ..lent }));
    }

    /// Asks the ring back, unless it is not lent or was asked back before. Returns whether there is something to say.
    pub fn want_back(&self) -> bool {
        let Some(lent) = self.lent.get().filter(|lent| !lent.wanted_back) else { return false };
        self.lent.set(Some(Lent { wanted_back: true, ..lent }));
        self.to_say.set(ToSay { close: true, ..self.to_say.get() });
        true
    }

    /// Whether the ring is lent, not asked back, and no message came since this was called last.
    pub fn is_idle(&self) -> bool {
        let Some(lent) = self.lent.get().filter(|lent| !lent.wanted_back) else { return false };
        self.lent.set(Some(Lent { used: false, ..lent }));
        !lent.used
    }

    /// The peer writes the ring no longer. Returns its number, if one was lent.
    pub fn take_back(&self) -> Option<u32> {
        let lent = self.lent.take()?;
        self.small_messages.set(0);
        // A peer that puts before each message cannot use a ring: its puts are not acknowledged in time.
        self.unused.set(if lent.taken == 0 { (self.unused.get() + 1).min(UNUSED) } else { 0 });
        Some(lent.ring)
    }

    /// Handles a frame of the peer. CLOSED is left to the caller, which has the ring.
    pub fn hear(&self, frame: RingFrame) {
        match frame {
            RingFrame::Offer(ring) => self.remote.set(Some(ring)),
            RingFrame::Close => {
                self.remote.set(None);
                self.to_say.set(ToSay { closed: true, ..self.to_say.get() });
            }
            RingFrame::Closed => {}
        }
    }

    /// The next frame to send.
    pub fn to_say(&self) -> Option<RingFrame> {
        match self.to_say.get() {
            ToSay { offer: Some(ring), .. } => Some(RingFrame::Offer(ring)),
            ToSay { close: true, .. } => Some(RingFrame::Close),
            ToSay { closed: true, .. } => Some(RingFrame::Closed),
            _ => None,
        }
    }

    /// The frame was sent.
    pub fn said(&self, frame: RingFrame) {
        let to_say = self.to_say.get();
        self.to_say.set(match frame {
            RingFrame::Offer(_) => ToSay { offer: None, ..to_say },
            RingFrame::Close => ToSay { close: false, ..to_say },
            RingFrame::Closed => ToSay { closed: false, ..to_say },
        });
    }

    /// Begins anew on another connection. A ring that was lent has been taken back.
    pub fn restart(&self) {
        self.remote.set(None);
        self.to_say.take();
        self.sent.set(0);
        self.handled.set(0);
        self.small_messages.set(0);
        self.unused.set(0);
    }
}

#[cfg(test)]
impl RingEnds {
    /// Lets both ends of a ring go on as if `by` more messages, and as many frames, had passed.
    pub fn pass(writer: &RingEnds, owner: &RingEnds, by: u32) {
        assert_eq!(writer.sent.get(), owner.handled.get(), "no frame is on its way");
        writer.sent.set(writer.sent.get().wrapping_add(by));
        owner.handled.set(owner.handled.get().wrapping_add(by));
        writer.remote.set(writer.remote.get().map(|ring| Remote { written: ring.written.wrapping_add(by), ..ring }));
        owner.lent.set(owner.lent.get().map(|lent| Lent { taken: lent.taken.wrapping_add(by), ..lent }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: Remote = Remote { address: 0x1234_5678_9abc, key: 77, written: 0 };

    /// Delivers the frames of each end to the other.
    fn exchange(ends: [&RingEnds; 2]) {
        for (from, to) in [(ends[0], ends[1]), (ends[1], ends[0]), (ends[0], ends[1])] {
            while let Some(frame) = from.to_say() {
                from.said(frame);
                to.hear(RingFrame::decode(&frame.encode()).expect("about a ring"));
            }
        }
    }

    #[test]
    fn frames_come_as_they_were_sent_and_others_are_not_about_rings() {
        for frame in [RingFrame::Offer(RING), RingFrame::Close, RingFrame::Closed] {
            let bytes = frame.encode();
            assert_eq!(RingFrame::decode(&bytes), Some(frame));
            assert_eq!(RingFrame::decode(&bytes[1..]), None);
            assert_eq!(RingFrame::is_close(&bytes), frame == RingFrame::Close);
        }
        assert_eq!(RingFrame::decode(&[0; RingFrame::LEN]), None);
    }

    #[test]
    fn a_ring_is_offered_written_asked_back_and_given_up() {
        let (owner, writer) = (RingEnds::default(), RingEnds::default());
        owner.lend(5, RING);
        exchange([&owner, &writer]);
        assert_eq!(writer.remote(), Some(RING));
        writer.wrote(RING);
        assert_eq!(writer.remote().map(|ring| ring.written), Some(1));
        assert!(owner.want_back() && !owner.want_back(), "one question is enough");
        exchange([&owner, &writer]);
        assert_eq!((writer.remote(), writer.to_say()), (None, None));
        assert_eq!((owner.take_back(), owner.take_back()), (Some(5), None));
        assert!(!owner.want_back());
    }

    #[test]
    fn a_writer_that_hears_early_stops_before_it_answers() {
        let writer = RingEnds::default();
        writer.hear(RingFrame::Offer(RING));
        writer.stop_writing();
        assert_eq!((writer.remote(), writer.to_say()), (None, None));
        writer.hear(RingFrame::Close);
        assert_eq!(writer.to_say(), Some(RingFrame::Closed));
    }

    #[test]
    fn a_message_waits_for_the_frames_before_it() {
        let (sender, receiver) = (RingEnds::default(), RingEnds::default());
        // Both counts wrap.
        sender.sent.set(u32::MAX);
        receiver.handled.set(u32::MAX);
        assert!(receiver.may_handle_after(sender.frames_sent()));
        sender.frame_sent();
        assert!(!receiver.may_handle_after(sender.frames_sent()));
        receiver.frame_handled();
        assert!(receiver.may_handle_after(sender.frames_sent()));
    }

    #[test]
    fn a_peer_that_leaves_its_rings_unused_gets_the_next_one_later() {
        let ends = RingEnds::default();
        let busy_after = || (1..).find(|_| ends.count_small_message());
        for unused in 0..UNUSED + 3 {
            assert_eq!(busy_after(), Some(BUSY << unused.min(UNUSED)));
            ends.lend(0, RING);
            ends.take_back();
        }
        ends.lend(0, RING);
        ends.took(ends.lent().expect("lent"));
        ends.take_back();
        assert_eq!(busy_after(), Some(BUSY));
        ends.count_small_message();
        ends.forget_small_messages();
        assert_eq!(busy_after(), Some(BUSY), "a sleep begins a new count");
    }

    #[test]
    fn a_ring_is_idle_if_nothing_came_since_the_last_search() {
        let ends = RingEnds::default();
        assert!(!ends.is_idle());
        ends.lend(0, RING);
        assert!(!ends.is_idle(), "it was just lent");
        assert!(ends.is_idle());
        ends.took(ends.lent().expect("lent"));
        assert!(!ends.is_idle());
        assert!(ends.is_idle() && ends.want_back() && !ends.is_idle());
    }

    #[test]
    fn a_new_connection_has_no_ring_and_nothing_to_say() {
        let ends = RingEnds::default();
        ends.hear(RingFrame::Offer(RING));
        ends.hear(RingFrame::Close);
        ends.hear(RingFrame::Offer(RING));
        ends.frame_sent();
        ends.frame_handled();
        ends.restart();
        assert_eq!((ends.remote(), ends.to_say(), ends.frames_sent()), (None, None, 0));
        assert!(ends.may_handle_after(0) && !ends.may_handle_after(1));
    }
}
