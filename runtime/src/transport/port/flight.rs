//! Operations that the wire does by itself and reports later.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::memory::copy::copy;
use crate::transport::GetSink;
use crate::transport::atomic::Width;
use crate::transport::completion::Completion;
use crate::transport::emulate::{Event, Unpack};
use crate::transport::error::{Error, Result};
use crate::transport::iov::{Piece, Pieces};
use crate::transport::key::RemoteKey;
use crate::transport::wire::{Completed, Direction, Wire};

/// Where the data that an operation returns goes.
pub(super) enum Sink {
    /// There is none, or it goes straight into the user's memory.
    Nothing,
    /// There is none: blocks of the user's memory went as a message.
    Message,
    /// This callback takes it, when nothing here is borrowed.
    Unpack(Unpack),
    /// This takes it at once.
    Taker(Arc<dyn GetSink>),
    /// A word of this width at this address.
    Word(*mut u8, Width),
}

/// Blocks of the user's memory that go to or come from the peer, as many at a time as the wire takes.
pub(super) struct Blocks {
    pub(super) pieces: Pieces,
    pub(super) len: usize,
    pub(super) direction: Direction,
    pub(super) remote: u64,
    pub(super) key: RemoteKey,
}

struct Flight {
    /// In the order of their start.
    number: u64,
    endpoint: u32,
    peer: u32,
    sink: Sink,
    blocks: Option<Blocks>,
    /// Bytes of the blocks that are posted.
    posted: usize,
    /// The wire reads or writes the user's own memory.
    straight: bool,
    /// Posts that are not done.
    under_way: u32,
    error: Option<Error>,
    completion: Option<Completion>,
}

impl Flight {
    fn unsent(&self) -> bool {
        self.blocks.as_ref().is_some_and(|blocks| self.posted < blocks.len) && self.error.is_none()
    }
}

#[derive(Default)]
struct Seat {
    /// Tickets with an old generation are ignored.
    generation: u32,
    flight: Option<Flight>,
}

/// All of an interface.
#[derive(Default)]
pub(super) struct Flights {
    seats: Vec<Seat>,
    free: Vec<u32>,
    flying: usize,
    next: u64,
    /// Seats of flights with blocks to post.
    unsent: Vec<u32>,
    /// Endpoints with an operation that has failed, or was in flight when the endpoint failed. The wire's counts do not show these.
    lost: BTreeSet<u32>,
}

impl Flights {
    /// The number that the next one gets.
    pub(super) fn next_number(&self) -> u64 {
        self.next
    }

    /// Takes a seat for an operation that is about to be posted. Give the seat back with [`Flights::cancel`] if the operation is not posted.
    pub(super) fn book(&mut self, endpoint: u32, peer: u32, sink: Sink, completion: Option<&Completion>) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.seats.push(Seat::default());
            (self.seats.len() - 1) as u32
        });
        let (blocks, completion) = (None, completion.cloned());
        let number = self.next;
        let straight = matches!(sink, Sink::Message);
        let (posted, under_way, error) = (0, 1, None);
        let flight = Flight { number, endpoint, peer, sink, blocks, posted, straight, under_way, error, completion };
        let seat = &mut self.seats[index as usize];
        seat.flight = Some(flight);
        self.next += 1;
        self.flying += 1;
        ticket(seat, index)
    }

    /// Nothing was posted.
    pub(super) fn cancel(&mut self, ticket: u64) {
        self.leave(ticket as u32);
    }

    /// Starts a put or get of blocks; [`Flights::post`] posts them.
    pub(super) fn start(&mut self, endpoint: u32, peer: u32, blocks: Blocks, completion: Option<&Completion>) {
        let ticket = self.book(endpoint, peer, Sink::Nothing, completion);
        let flight = self.seats[ticket as u32 as usize].flight.as_mut().expect("just booked");
        (flight.blocks, flight.straight, flight.under_way) = (Some(blocks), true, 0);
        self.unsent.push(ticket as u32);
    }

    fn leave(&mut self, index: u32) -> Option<Flight> {
        let seat = &mut self.seats[index as usize];
        let flight = seat.flight.take()?;
        seat.generation = seat.generation.wrapping_add(1);
        self.free.push(index);
        self.flying -= 1;
        Some(flight)
    }

    /// Whether blocks wait to be posted.
    #[inline]
    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Whether blocks of `endpoint` wait to be posted: nothing may overtake them.
    #[inline]
    pub(super) fn holds_back(&self, endpoint: u32) -> bool {
        self.has_unsent() && self.flights().any(|flight| flight.endpoint == endpoint && flight.unsent())
    }

    fn flights(&self) -> impl Iterator<Item = &Flight> {
        self.seats.iter().filter_map(|seat| seat.flight.as_ref())
    }

    /// Tickets of the operations of `endpoint` that use the user's own memory. All others use memory of the wire.
    pub(super) fn straight(&self, endpoint: u32) -> Vec<u64> {
        let is_one = |flight: &Flight| flight.endpoint == endpoint && flight.straight && flight.under_way > 0;
        let seats = self.seats.iter().enumerate().filter(|(_, seat)| seat.flight.as_ref().is_some_and(is_one));
        seats.map(|(index, seat)| ticket(seat, index as u32)).collect()
    }

    /// Whether one of `endpoint` with a number below `before` is in flight. All of them use the user's memory.
    pub(super) fn busy(&self, endpoint: u32, before: u64) -> bool {
        self.flying > 0 && self.flights().any(|flight| flight.endpoint == endpoint && flight.number < before)
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.flying == 0
    }

    /// Takes the operations that are done. Returns how many.
    pub(super) fn land<W: Wire>(&mut self, wire: &W, events: &mut Vec<Event>) -> usize {
        wire.completed(&mut |completed| self.take(&completed, events))
    }

    /// Posts blocks as far as there is room. Returns how much was posted.
    pub(super) fn post<W: Wire>(&mut self, wire: &W, max_pieces: usize, events: &mut Vec<Event>) -> usize {
        let mut done = 0;
        if self.has_unsent() {
            let waiting = std::mem::take(&mut self.unsent);
            for index in waiting {
                let seat = &mut self.seats[index as usize];
                let ticket = ticket(seat, index);
                let Some(flight) = &mut seat.flight else { continue };
                match post(wire, flight, ticket, max_pieces) {
                    Ok(posted) => done += posted,
                    Err(error) => {
                        flight.error = Some(error);
                        if flight.under_way == 0 {
                            self.finish(index, events);
                            continue;
                        }
                    }
                }
                if self.seats[index as usize].flight.as_ref().is_some_and(Flight::unsent) {
                    self.unsent.push(index);
                }
            }
        }
        done
    }

    fn take(&mut self, completed: &Completed<'_>, events: &mut Vec<Event>) {
        let index = completed.ticket as u32;
        let Some(seat) = self.seats.get_mut(index as usize) else { return };
        // Among others the late end of a cancelled operation.
        if seat.generation != (completed.ticket >> 32) as u32 {
            return;
        }
        let Some(flight) = &mut seat.flight else { return };
        flight.under_way -= 1;
        match (completed.outcome, &flight.sink) {
            (Err(error), _) => {
                flight.error.get_or_insert(error);
            }
            (Ok(()), Sink::Word(to, width)) => {
                // SAFETY: the user's variable of this width, valid until the operation completes.
                unsafe { copy(*to, completed.data.as_ptr(), *width as usize) };
            }
            (Ok(()), Sink::Taker(sink)) => sink.take(0, completed.data),
            (Ok(()), Sink::Unpack(_)) => {
                if let Sink::Unpack(unpack) = std::mem::replace(&mut flight.sink, Sink::Nothing) {
                    events.push(Event::Unpack(unpack, completed.data.to_vec()));
                }
            }
            (Ok(()), Sink::Nothing | Sink::Message) => {}
        }
        if flight.under_way == 0 && !flight.unsent() {
            self.finish(index, events);
        }
    }

    fn finish(&mut self, index: u32, events: &mut Vec<Event>) {
        let Some(flight) = self.leave(index) else { return };
        let outcome: Result<()> = flight.error.map_or(Ok(()), Err);
        if outcome.is_err() {
            self.lost.insert(flight.endpoint);
        }
        match (flight.completion, outcome) {
            (Some(completion), outcome) => events.push(Event::Complete(completion, outcome)),
            (None, Err(error)) => events.push(Event::Failed { endpoint: flight.endpoint, error }),
            (None, Ok(())) => {}
        }
    }

    /// Whether an operation of `endpoint` has failed, or was in flight when the endpoint failed.
    pub(super) fn has_lost(&self, endpoint: u32) -> bool {
        self.lost.contains(&endpoint)
    }

    /// Called when `endpoint` closes, since the next one may get its index.
    pub(super) fn forget(&mut self, endpoint: u32) {
        self.end(endpoint, drop);
        self.lost.remove(&endpoint);
    }

    /// Ends all of `endpoint`: `each` gets their completions.
    pub(super) fn end(&mut self, endpoint: u32, mut each: impl FnMut(Completion)) {
        if self.flying == 0 {
            return;
        }
        let is_theirs = |seat: &Seat| seat.flight.as_ref().is_some_and(|flight| flight.endpoint == endpoint);
        let ended: Vec<u32> =
            (0..self.seats.len()).filter(|at| is_theirs(&self.seats[*at])).map(|at| at as u32).collect();
        self.unsent.retain(|index| !ended.contains(index));
        if !ended.is_empty() {
            self.lost.insert(endpoint);
        }
        for index in ended {
            self.leave(index).and_then(|flight| flight.completion).into_iter().for_each(&mut each);
        }
    }
}

/// The ticket of the flight in a seat.
fn ticket(seat: &Seat, index: u32) -> u64 {
    u64::from(seat.generation) << 32 | u64::from(index)
}

/// Posts what there is room for of a flight's blocks.
fn post<W: Wire>(wire: &W, flight: &mut Flight, ticket: u64, max_pieces: usize) -> Result<usize> {
    let Some(blocks) = &flight.blocks else { return Ok(0) };
    let mut done = 0;
    while flight.posted < blocks.len {
        let mut pieces: Vec<Piece> = Vec::with_capacity(max_pieces);
        let mut len = 0;
        blocks.pieces.range(flight.posted, blocks.len - flight.posted, |piece, _| {
            if pieces.len() < max_pieces {
                len += piece.len;
                pieces.push(piece);
            }
        });
        let remote = blocks.remote + flight.posted as u64;
        // SAFETY: the user guarantees it until the operation has completed.
        let outcome = unsafe { wire.post_pieces(flight.peer, &blocks.key, remote, &pieces, blocks.direction, ticket) };
        match outcome {
            Ok(()) => {
                flight.posted += len;
                flight.under_way += 1;
                done += 1;
            }
            Err(Error::NoResource) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
