//! Arrivals that were not handled yet: frames in receive buffers, messages of peers that were lost since, and notices.

use std::cell::RefCell;
use std::collections::VecDeque;

use rdma_core_sys::ibv_wc;

use crate::transport::message::Retained;
use crate::transport::wire::{Arrival, Channel};

/// A message in memory of its own.
#[derive(Debug)]
struct Copied {
    from: u32,
    channel: Channel,
    id: u8,
    data: Box<[u8]>,
}

/// Queues of arrivals, oldest first. No queue is borrowed while a handler runs: the handler may poll, or find a loss.
#[derive(Debug, Default)]
pub struct Arrivals {
    /// Completions of receives.
    frames: RefCell<VecDeque<ibv_wc>>,
    /// Messages of lost peers: they come before all frames.
    kept: RefCell<VecDeque<Copied>>,
    notices: RefCell<Vec<u32>>,
}

impl Arrivals {
    pub fn add(&self, frame: ibv_wc) {
        self.frames.borrow_mut().push_back(frame);
    }

    /// The oldest frame.
    pub fn first(&self) -> Option<ibv_wc> {
        self.frames.borrow().front().copied()
    }

    /// Removes `frame` if it is still the oldest: a handler may have found the loss of its sender, which removed it.
    pub fn remove(&self, frame: &ibv_wc) -> bool {
        let mut frames = self.frames.borrow_mut();
        let is_first = frames.front().is_some_and(|first| (first.wr_id, first.qp_num) == (frame.wr_id, frame.qp_num));
        if is_first {
            frames.pop_front();
        }
        is_first
    }

    /// Removes all frames of one sender; `is_its` knows its queue pairs.
    pub fn remove_all(&self, is_its: impl Fn(u32) -> bool) -> VecDeque<ibv_wc> {
        let mut frames = self.frames.borrow_mut();
        let (its, others) = frames.drain(..).partition(|frame| is_its(frame.qp_num));
        *frames = others;
        its
    }

    /// Keeps a copy of a message whose sender is lost.
    pub fn keep(&self, arrival: Arrival<'_>) {
        let Arrival { from, channel, id, data, .. } = arrival;
        self.kept.borrow_mut().push_back(Copied { from, channel, id, data: data.into() });
    }

    /// Hands over the messages that were kept. Returns how many.
    #[inline]
    pub fn deliver_kept(&self, sink: &mut dyn FnMut(Arrival<'_>)) -> usize {
        let mut count = 0;
        loop {
            let Some(Copied { from, channel, id, data }) = self.kept.borrow_mut().pop_front() else { return count };
            let keep = || Retained::new(data.clone());
            sink(Arrival { from, channel, id, data: &data, keep: Some(&keep) });
            count += 1;
        }
    }

    pub fn note(&self, notice: u32) {
        self.notices.borrow_mut().push(notice);
    }

    /// Hands over the notices. Returns how many.
    pub fn take_notices(&self, sink: &mut dyn FnMut(u32)) -> usize {
        self.notices.borrow_mut().drain(..).map(sink).count()
    }

    pub fn is_empty(&self) -> bool {
        self.frames.borrow().is_empty() && self.kept.borrow().is_empty() && self.notices.borrow().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(number: u64, pair: u32) -> ibv_wc {
        ibv_wc { wr_id: number, qp_num: pair, ..Default::default() }
    }

    #[test]
    fn a_frame_whose_sender_was_lost_meanwhile_is_not_handled_again() {
        let arrivals = Arrivals::default();
        for (number, pair) in [(0, 7), (1, 8), (2, 7), (3, 9)] {
            arrivals.add(frame(number, pair));
        }
        let first = arrivals.first().expect("one has arrived");
        // The handler of a message before it finds that the peer of pairs 7 and 9 is lost.
        let its = arrivals.remove_all(|pair| pair != 8);
        assert!(its.iter().map(|frame| frame.wr_id).eq([0, 2, 3]), "in the order of arrival");
        assert!(!arrivals.remove(&first));
        let next = arrivals.first().expect("one of pair 8");
        assert!(next.wr_id == 1 && arrivals.remove(&next) && arrivals.is_empty());
    }

    #[test]
    fn messages_of_lost_peers_are_handed_over_once_and_in_order() {
        let arrivals = Arrivals::default();
        for id in 0..3 {
            arrivals.keep(Arrival { from: 5, channel: Channel::Message, id, data: &[id; 4], keep: None });
        }
        assert!(!arrivals.is_empty());
        let mut came = Vec::new();
        let mut sink = |arrival: Arrival<'_>| {
            // A handler may find another loss.
            if arrival.id == 0 {
                arrivals.keep(Arrival { from: 6, channel: Channel::Reply, id: 9, data: &[], keep: None });
            }
            let kept = arrival.keep.expect("it can be kept")();
            assert_eq!(&*kept, arrival.data);
            came.push((arrival.from, arrival.id));
        };
        assert_eq!(arrivals.deliver_kept(&mut sink), 4);
        assert_eq!(came, [(5, 0), (5, 1), (5, 2), (6, 9)]);
        assert!(arrivals.is_empty());
    }

    #[test]
    fn notices_are_taken_once() {
        let arrivals = Arrivals::default();
        [4, 4, 1].into_iter().for_each(|notice| arrivals.note(notice));
        assert!(!arrivals.is_empty());
        let mut came = Vec::new();
        assert_eq!((arrivals.take_notices(&mut |notice| came.push(notice)), arrivals.is_empty()), (3, true));
        assert_eq!(came, [4, 4, 1]);
    }
}
