//! Messages: frames with credits, over sends into buffers that all peers share.

use std::rc::Rc;

use rdma_core_sys::*;

use super::{VerbsWire, lkey, request};
use crate::transport::error::{Error, Result};
use crate::transport::iov::Piece;
use crate::transport::message::Retained;
use crate::transport::stream::{FRAME_HEADER, Frame};
use crate::transport::verbs::connect::PIECES;
use crate::transport::verbs::link::{Flow, Link, RingFrame, Then};
use crate::transport::verbs::ring;
use crate::transport::wire::{Arrival, Channel};

/// A message that was whole, for handlers that keep it.
struct SharedBytes(Rc<Vec<u8>>);

impl std::ops::Deref for SharedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl VerbsWire {
    /// Sends what waits to this peer, as far as there is room; whether something still waits.
    pub(super) fn drain(&self, peer: u32) -> bool {
        let Some(link) = self.link_or_none(peer) else { return false };
        if link.error().is_some() {
            return false;
        }
        if link.raw().is_null() {
            return true;
        }
        if !self.has_room_for(link, 1) {
            return true;
        }
        if self.give_notices_back(peer, link).and_then(|()| self.say_of_rings(peer, link)).is_err() {
            return link.error().is_none();
        }
        let mut waits = false;
        for channel in [Channel::Reply, Channel::Request, Channel::Message] {
            loop {
                if !self.has_room_for(link, 1) {
                    return true;
                }
                let credits = link.flows.borrow_mut()[channel as usize].inward.credits_due(&self.flow);
                let (frame, issue, small) = if let Some(count) = credits {
                    (Frame::Credit { channel, count }.encode(), None, None)
                } else if link.flows.borrow()[channel as usize].out.can_go_on() {
                    let Ok(small) = self.take(&self.buffers.small) else { return true };
                    let mut flows = link.flows.borrow_mut();
                    let flow = &mut flows[channel as usize];
                    let before = flow.out.waiting();
                    let Some((frame, _)) = flow.out.poll(&self.flow) else {
                        self.buffers.small.give_back(small);
                        break;
                    };
                    let issue = if flow.out.waiting() < before {
                        flow.waiting.pop_front()
                    } else {
                        flow.waiting.front().copied()
                    };
                    (frame, issue, Some(small))
                } else {
                    waits |= link.flows.borrow()[channel as usize].out.waiting() > 0;
                    break;
                };
                if self.send_frame(peer, link, &frame, small, issue).is_err() {
                    // The frame has left its flow and cannot go back: better a connection that is lost than a message.
                    self.lose(peer, "posting a message");
                    return false;
                }
            }
        }
        waits
    }

    /// Sends a frame that has been built, by way of the buffer `small` if it does not travel inside a request.
    pub(super) fn send_frame(
        &self,
        peer: u32,
        link: &Link,
        frame: &[u8],
        mut small: Option<u32>,
        issue: Option<u64>,
    ) -> Result<()> {
        // Credits begin anew with the connection.
        let unmissed = if issue.is_some() { Then::Nothing } else { Then::Idle };
        let mut bytes = frame;
        if frame.len() <= self.connector.board.inline {
            small.take().into_iter().for_each(|small| self.buffers.small.give_back(small));
        } else {
            let buffer = small.map_or_else(|| self.take(&self.buffers.small), Ok)?;
            // SAFETY: a buffer of ours with room for a frame.
            let copy = unsafe { std::slice::from_raw_parts_mut(self.buffers.small.at(buffer), frame.len()) };
            copy.copy_from_slice(frame);
            (bytes, small) = (copy, Some(buffer));
        }
        self.post_frame(peer, link, bytes, small, unmissed)?;
        if let Some(issue) = issue {
            link.requests.last_belongs_to(issue);
        }
        Ok(())
    }

    /// Posts a frame that lies in the buffer `small`, or travels inside the request and is then `unmissed`.
    pub(super) fn post_frame(
        &self,
        peer: u32,
        link: &Link,
        frame: &[u8],
        small: Option<u32>,
        unmissed: Then,
    ) -> Result<u64> {
        let key = if small.is_none() { 0 } else { self.buffers.small.key() };
        let mut sge = ibv_sge { addr: frame.as_ptr() as u64, length: frame.len() as u32, lkey: key };
        let mut wr = request(IBV_WR_SEND, std::slice::from_mut(&mut sge));
        wr.send_flags |= IBV_SEND_SOLICITED;
        if small.is_none() {
            wr.send_flags |= IBV_SEND_INLINE;
        }
        let posted = self.post(peer, link, &mut wr, small.map_or(unmissed, Then::Small), false);
        match posted {
            Ok(_) => link.rings.frame_sent(),
            Err(_) => small.into_iter().for_each(|small| self.buffers.small.give_back(small)),
        }
        posted
    }

    /// Posts a message of `header` and `pieces`: one frame, whose head lies in a small buffer and whose rest the device
    /// gathers from the user's memory.
    pub(super) fn post_gathered(&self, peer: u32, id: u8, header: &[u8], pieces: &[Piece], ticket: u64) -> Result<()> {
        let channel = Channel::Message as usize;
        let link = self.ready(peer, 1)?;
        if !link.flows.borrow()[channel].out.can_pass() {
            return Err(Error::NoResource);
        }
        let small = self.take(&self.buffers.small)?;
        let len = header.len() + pieces.iter().map(|piece| piece.len).sum::<usize>();
        let (credits, head) = {
            let Flow { out, inward, .. } = &mut link.flows.borrow_mut()[channel];
            (inward.due(), out.pass(id, len, inward.due()))
        };
        let Some(head) = head else {
            self.buffers.small.give_back(small);
            return Err(Error::NoResource);
        };
        let at = self.buffers.small.at(small);
        // SAFETY: a buffer of ours with room for a frame.
        let buffer = unsafe { std::slice::from_raw_parts_mut(at, FRAME_HEADER + header.len()) };
        buffer[..FRAME_HEADER].copy_from_slice(&head);
        buffer[FRAME_HEADER..].copy_from_slice(header);
        let mut sges = [ibv_sge::default(); PIECES];
        sges[0] = ibv_sge { addr: at as u64, length: buffer.len() as u32, lkey: self.buffers.small.key() };
        for (sge, piece) in sges[1..].iter_mut().zip(pieces) {
            *sge = ibv_sge { addr: piece.pointer as u64, length: piece.len as u32, lkey: lkey(piece.descriptor) };
        }
        let mut wr = request(IBV_WR_SEND, &mut sges[..1 + pieces.len()]);
        wr.send_flags |= IBV_SEND_SOLICITED;
        let posted = self.post(peer, link, &mut wr, Then::Message { small, ticket }, true);
        let Flow { out, inward, .. } = &mut link.flows.borrow_mut()[channel];
        match posted {
            Ok(_) => {
                link.rings.frame_sent();
                inward.gave(credits);
                return Ok(());
            }
            Err(Error::NoResource) => out.unpass(),
            Err(_) => {}
        }
        self.buffers.small.give_back(small);
        posted.map(drop)
    }

    /// Gives a receive buffer that was handled to the device.
    #[inline]
    pub(super) fn offer(&self, wc: &ibv_wc) {
        self.receives.offer(&self.connector.board.shared, wc.wr_id);
    }

    /// Takes the messages that have come from this peer, before the state of its connection is dropped: the peer may have been told
    /// that they arrived.
    pub(super) fn keep_what_came(&self, peer: u32, link: &Link) {
        let its = self.arrivals.remove_all(|pair| self.peers.behind(pair) == Some(peer));
        let mut keep = |arrival: Arrival<'_>| self.arrivals.keep(arrival);
        for wc in its {
            if wc.status == IBV_WC_SUCCESS {
                self.take_from_ring(peer, link, &mut keep);
                self.deliver(peer, link, &wc, &mut keep);
            }
            self.offer(&wc);
        }
        self.take_from_ring(peer, link, &mut keep);
    }

    /// Handles one received frame. Ring messages that were written before the frame was sent have been taken.
    pub(super) fn deliver(&self, peer: u32, link: &Link, wc: &ibv_wc, sink: &mut dyn FnMut(Arrival<'_>)) {
        link.rings.frame_handled();
        let bytes = self.receives.frame(wc);
        match Frame::decode(bytes) {
            Some(Frame::Credit { channel, count }) => {
                link.flows.borrow_mut()[channel as usize].out.grant(count, &self.flow);
                self.backlog.note(peer);
            }
            Some(Frame::Fragment { channel, id, total, credits, bytes, .. }) if bytes.len() == total as usize => {
                self.granted(peer, link, channel, credits);
                if channel == Channel::Message && ring::fits(bytes.len() + ring::HEAD) {
                    self.count_towards_ring(peer, link);
                }
                // The buffer is needed for the next message.
                let keep = || Retained::new(Box::<[u8]>::from(bytes));
                sink(Arrival { from: peer, channel, id, data: bytes, keep: Some(&keep) });
                self.consumed(peer, link, channel);
            }
            Some(Frame::Fragment { channel, id, number, offset, total, bytes, .. }) => {
                let whole =
                    link.flows.borrow_mut()[channel as usize].inward.take(id, number, offset, total, bytes, &self.flow);
                match whole {
                    Ok(Some((id, data))) => {
                        let data = Rc::new(data);
                        let keep = || Retained::new(SharedBytes(Rc::clone(&data)));
                        sink(Arrival { from: peer, channel, id, data: &data, keep: Some(&keep) });
                        self.consumed(peer, link, channel);
                    }
                    Ok(None) => {
                        self.backlog.note(peer);
                    }
                    Err(_) => {
                        self.lose(peer, "a fragment that does not fit its message");
                    }
                }
            }
            None => match RingFrame::decode(bytes) {
                Some(frame) => self.hear_of_rings(peer, link, frame),
                None => self.lose(peer, "bytes that no rank of this job sends"),
            },
        }
    }

    /// The peer returns credits.
    pub(super) fn granted(&self, peer: u32, link: &Link, channel: Channel, credits: u8) {
        let waits = {
            let out = &mut link.flows.borrow_mut()[channel as usize].out;
            out.grant(credits.into(), &self.flow);
            out.waiting() > 0
        };
        if waits {
            self.backlog.note(peer);
        }
    }

    pub(super) fn consumed(&self, peer: u32, link: &Link, channel: Channel) {
        let owes = {
            let inward = &mut link.flows.borrow_mut()[channel as usize].inward;
            inward.consumed();
            inward.owes(&self.flow)
        };
        if owes {
            self.backlog.note(peer);
        }
    }

    pub(super) fn queue(&self, peer: u32, link: &Link, channel: Channel, id: u8, bytes: Vec<u8>) -> Result<usize> {
        let len = bytes.len();
        {
            let mut flows = link.flows.borrow_mut();
            let flow = &mut flows[channel as usize];
            if !flow.out.has_room(&self.flow) {
                return Err(Error::NoResource);
            }
            flow.waiting.push_back(link.requests.issue());
            flow.out.push(id, bytes);
        }
        if self.drain(peer) {
            self.backlog.note(peer);
        }
        Ok(len)
    }
}
