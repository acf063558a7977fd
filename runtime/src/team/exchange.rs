//! Small allgathers: each rank writes what it is in to a buffer in its own slot, its board, and up to [`BOARD`] bytes of its own. Where
//! few ranks are mapped, the bytes go by the places of direct barriers ([`super::meeting`]), and boards are read only if ranks
//! differ. Where more are mapped, ranks read the other ranks' boards. Over a network they tell each other by messages
//! ([`super::dissemination`]), and fetch boards only if they differ. Reductions of many ranks go by messages on mapped memory too.

mod plain;

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::panic::{Location, resume_unwind};
use std::rc::Rc;

use super::dissemination::{Dissemination, GATHERED, is_along_tree};
use super::everyone::Barrier;
use super::see::{See, Wanted};
use super::title::{Asked, Earlier, Facts, Noted, Title, Written, differ, place_number};
use crate::engine::{Engine, HeapRange, Running};
use crate::error::{Error, Result};
use crate::hash::{self, mix};
use crate::memory::copy;
use crate::memory::layout::{EXCHANGE_LEN, LINE};
use crate::message::Messages;

/// The name of the wait, for errors.
const DOING: &str = "a collective call";
/// Bytes one rank can show in one exchange.
pub const BOARD: usize = FACTS - size_of::<Title>();
/// Offset of the [`Facts`] in a board.
const FACTS: usize = EXCHANGE_LEN - size_of::<Facts>();

/// Bytes that another rank has shown. Aligned for most elements.
#[repr(C, align(16))]
struct Buffer(MaybeUninit<[u8; BOARD]>);

impl Buffer {
    /// # Safety
    /// `len` bytes can be read from `from`, and no rank writes there meanwhile.
    #[inline]
    unsafe fn fill(&mut self, from: *const u8, len: usize) -> &[u8] {
        assert!(len <= BOARD, "{len} bytes of a board");
        let to = self.0.as_mut_ptr().cast::<u8>();
        // SAFETY: `to` has room for as many; `from` as the caller guarantees. All that is lent has just been written.
        unsafe {
            copy::copy(to, from, len);
            std::slice::from_raw_parts(to, len)
        }
    }
}

/// This rank's part in all exchanges of its world.
///
/// The number of the barrier chooses one of two boards, so all ranks in one barrier use the same, also after a call that failed.
/// Before a rank writes a board again, it has passed a barrier in between, which every rank enters only after it has read the
/// board's last contents. A rank that a panic or an error took out of that barrier has not passed it:
/// [`Barrier::pass_last`] does before every write.
pub struct Exchange {
    messages: Rc<Messages>,
    earlier: Cell<Earlier>,
    /// First entry in `earlier`, and where the program made that call.
    noted: Cell<(Noted, Option<&'static Location<'static>>)>,
    last_place: Cell<Option<(&'static Location<'static>, u64)>>,
    /// Which [`Facts`] each buffer holds; equal ones are not written again.
    written: [Cell<Option<Written>>; 2],
    /// The exchange whose wait was left by a handler's panic.
    left: Cell<Option<Dissemination>>,
    /// Whether there may be one: there are messages in exchanges.
    may_leave: bool,
}

/// An exchange by messages that this rank is in.
struct UnderWay<'a> {
    exchange: &'a Exchange,
    heard: Option<Dissemination>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.exchange.left.set(self.heard.take());
        }
    }
}

impl Exchange {
    pub fn new(messages: &Rc<Messages>, engine: &Engine) -> Exchange {
        let noted = Cell::new((Noted::Nothing, None));
        let (messages, written) = (Rc::clone(messages), Default::default());
        let may_leave = !engine.routes.all_mapped() || engine.size > GATHERED;
        Exchange {
            messages,
            earlier: Cell::default(),
            noted,
            last_place: Cell::new(None),
            written,
            left: Cell::default(),
            may_leave,
        }
    }

    /// Whether [`Exchange::finish_left`] may have something to do.
    #[inline]
    pub fn may_leave(&self) -> bool {
        self.may_leave
    }

    /// Notes the root, length and type of a broadcast by messages: the next exchange fails with `RanksDiffer` if ranks gave
    /// different ones.
    pub fn note_broadcast(&self, engine: &Engine, head: &[u8]) {
        self.earlier.set(self.earlier.get().broadcast(head));
        self.note(engine, Noted::Broadcast);
    }

    /// Notes the result of a reduction: the next exchange fails with `RanksDiffer` if both the results and the call sites
    /// differ between ranks.
    pub fn note_result(&self, engine: &Engine, result: &[u8]) {
        let place = engine.calls.current().map_or(0, |call| self.number_of(call.place));
        self.earlier.set(self.earlier.get().reduction(result, place));
        self.note(engine, Noted::Result);
    }

    /// [`place_number`], made once for calls in a loop.
    #[inline]
    fn number_of(&self, place: &'static Location<'static>) -> u64 {
        if let Some((last, number)) = self.last_place.get()
            && std::ptr::eq(last, place)
        {
            return number;
        }
        let number = place_number(place);
        self.last_place.set(Some((place, number)));
        number
    }

    /// Writes the title and, unless they are there, the facts of an exchange to this rank's board, which is `at` and number `half`.
    ///
    /// # Safety
    /// All ranks that read the board's last contents have entered a barrier since, which this rank has passed.
    #[inline]
    unsafe fn write(&self, at: *mut u8, half: usize, title: &Title, written: Written) {
        // SAFETY: inside the board, which no other rank reads now.
        unsafe {
            copy::copy(at, (&raw const *title).cast(), size_of::<Title>());
            if !self.written[half].replace(Some(written)).is_some_and(|before| before.is_same(&written)) {
                let facts = written.asked.facts(written.call, written.noted);
                copy::copy(at.add(FACTS), (&raw const facts).cast(), size_of::<Facts>());
            }
        }
    }

    fn note(&self, engine: &Engine, what: Noted) {
        if self.noted.get().0 == Noted::Nothing {
            self.noted.set((what, engine.calls.current().map(|call| call.place)));
        }
    }

    /// Shows what `see` brings, and passes it in rank order at least the contributions that are `wanted`; it may get others
    /// too. Collective. Costs one barrier; over a network also log2 n messages, or as many as hold the bytes of all ranks if all are
    /// wanted; a reduction of more than [`GATHERED`] ranks 2 log2 n messages, of mapped ones too. Where these call it at different places of
    /// the program, all contributions are wanted: over a network after those messages.
    ///
    /// # Errors
    /// [`Error::RanksDiffer`] if a rank is in another call, or shows more or fewer bytes; `see` receives nothing then. As
    /// [`Barrier::enter`]; [`Error::Agreed`] if a rank along a reduction's tree had no result, because of a panic.
    ///
    /// # Panics
    /// If a contribution is longer than [`BOARD`]. If `see` does: after the other ranks were told, in a reduction along a tree.
    pub fn all(
        &self,
        running: &Running<'_>,
        engine: &Engine,
        barrier: &Barrier,
        (asked, wanted): (Asked, Wanted),
        see: &mut dyn See,
    ) -> Result<()> {
        let len = see.mine().len();
        assert!(len <= BOARD, "{len} bytes in one exchange");
        // Mapped boards cost little to read.
        let wanted = if engine.routes.all_mapped() && matches!(wanted, Wanted::First) { Wanted::Equal } else { wanted };
        barrier.pass_last(engine)?;
        let half = (barrier.next_epoch() % 2) as usize;
        let board = engine.layout.exchange + half * EXCHANGE_LEN;
        let title = asked.title(barrier.next_epoch(), len, self.earlier.take());
        let (call, noted) = (engine.calls.current(), self.noted.replace((Noted::Nothing, None)));
        let written = Written { asked, call, noted };
        // SAFETY: `rank` is this rank, or all ranks are mapped: over a network this returns before it uses another rank. Each
        // slot's control area is committed before its rank arrives, and `board` is inside it.
        let at = |rank| unsafe { engine.node.slot(rank).add(board) };
        const DATA: usize = size_of::<Title>();
        // If the contributions must be equal, only digests are compared, unless ranks differ.
        let is_direct = barrier.is_direct() && !matches!(wanted, Wanted::Equal);
        let along_tree = is_along_tree(wanted, engine.size) && !barrier.is_central();
        let is_gathered = matches!(wanted, Wanted::Combined) && barrier.is_central() && len <= LINE;
        let data_of = |rank| match is_gathered {
            // SAFETY: a line in the slot of rank 0, which it has committed before it arrived: barriers by a counter are of one host.
            true => unsafe { engine.node.slot(0).add(engine.layout.gathered(half, rank)) },
            // SAFETY: inside the board.
            false => unsafe { at(rank).add(DATA) },
        };
        // SAFETY: our own board, or line; all ranks that read its last contents have entered a barrier since, which we have passed, at
        // the latest above.
        unsafe {
            self.write(at(engine.rank), half, &title, written);
            if !is_direct {
                copy::copy(data_of(engine.rank), see.mine().as_ptr(), len);
            }
        }
        let place = || call.map_or(0, |call| self.number_of(call.place));
        let digest = match wanted {
            Wanted::Equal => hash::and_bytes(title.digest(), see.mine()),
            // Includes the call site: ranks reduce for others, so all must pass the same function, and calls at one place in
            // the source do. If places differ, each rank reduces all contributions.
            Wanted::Combined if barrier.is_central() || along_tree && engine.routes.all_mapped() => {
                mix(title.digest(), place())
            }
            _ => title.digest(),
        };
        if !engine.routes.all_mapped() {
            let heard = Dissemination::new([engine.rank, engine.size], title.epoch, wanted, digest, see.mine());
            // Beside the digest: a difference of places only needs no boards.
            let heard = if along_tree { heard.called_at(place()) } else { heard };
            return self.all_remote(running, (engine, barrier), (asked.kind(), board, title), heard, see);
        }
        let mut buffer = Buffer(MaybeUninit::uninit());
        let mut show = |rank, see: &mut dyn See| {
            if rank == engine.rank {
                return see.see_mine(rank);
            }
            let from = match is_direct {
                true => barrier.shown(engine, rank),
                false => data_of(rank),
            };
            // SAFETY: the board is committed, and neither it nor the place is written again before this rank enters the next
            // barrier.
            see.see(rank, unsafe { buffer.fill(from, len) });
        };
        let mut combined = false;
        let agreed = if along_tree {
            if self.all_along_tree(running, (engine, barrier), (asked.kind(), digest), title.epoch, see)? {
                return Ok(());
            }
            false
        } else if barrier.is_direct() {
            let lacks = matches!(wanted, Wanted::From(root) if root != engine.rank) || !is_direct;
            barrier.enter_showing(running, engine, digest, if lacks { &[] } else { see.mine() })?
        } else {
            let alone = || {
                if let Wanted::Combined = wanted {
                    (0..engine.size).for_each(|rank| show(rank, see));
                    // SAFETY: all ranks have entered the barrier and none has left, so no other one uses the board of rank 0 now.
                    unsafe { copy::copy(at(0).add(DATA), see.result().as_ptr(), len) };
                    combined = true;
                }
            };
            barrier.enter_with(running, engine, (asked.kind(), digest), alone)?
        };
        if !agreed {
            plain::compare(engine, title.epoch)?;
        }
        match wanted {
            Wanted::Combined if combined => {}
            Wanted::Combined if agreed && barrier.is_central() => {
                // SAFETY: as in `show`; the last rank has written there before this one left the barrier.
                see.combined(unsafe { buffer.fill(at(0).add(DATA), len) });
            }
            Wanted::From(rank) => show(rank, see),
            Wanted::Equal if agreed => see.see_mine(0),
            Wanted::All | Wanted::Combined | Wanted::Sum | Wanted::Equal | Wanted::First => {
                (0..engine.size).for_each(|rank| show(rank, see));
                if let Wanted::Combined = wanted {
                    see.result();
                }
            }
        }
        Ok(())
    }

    /// [`Exchange::all`] over a network, with a call of this kind. `title` is our own, and lies in our board.
    #[cold]
    fn all_remote(
        &self,
        running: &Running<'_>,
        (engine, barrier): (&Engine, &Barrier),
        (kind, board, title): (u8, usize, Title),
        heard: Dissemination,
        see: &mut dyn See,
    ) -> Result<()> {
        let wanted = heard.wanted();
        let mut under_way = UnderWay { exchange: self, heard: Some(heard) };
        // It tells those that are in another call, and those that never come.
        barrier.enter(running, engine, kind)?;
        self.disseminate(engine, &mut under_way, Some(&mut *see))?;
        if let Some(heard) = under_way.heard.take_if(|heard| heard.agreed()) {
            return finish(heard, see);
        }
        let panic = under_way.heard.as_mut().and_then(Dissemination::take_panic);
        // A panic may come out of this too.
        self.fetch(running, (engine, barrier), (board, wanted), title, see)?;
        panic.map_or(Ok(()), |panic| resume_unwind(panic))
    }

    /// The reduction of many ranks, which are mapped, if all make it at one place in the source. Returns whether they do: else all have
    /// entered a barrier, and reduce the contributions on the boards.
    #[cold]
    fn all_along_tree(
        &self,
        running: &Running<'_>,
        (engine, barrier): (&Engine, &Barrier),
        facts: (u8, u64),
        epoch: u64,
        see: &mut dyn See,
    ) -> Result<bool> {
        let heard = Dissemination::new([engine.rank, engine.size], epoch, Wanted::Combined, 0, see.mine());
        let mut under_way = UnderWay { exchange: self, heard: Some(heard) };
        if !barrier.enter_with(running, engine, facts, || ())? {
            return Ok(false);
        }
        self.disseminate(engine, &mut under_way, Some(&mut *see))?;
        finish(under_way.heard.take().expect("taken here only"), see)?;
        Ok(true)
    }

    /// All rounds that are left. Without `see`, which a panic has taken away, this rank combines nothing.
    fn disseminate(&self, engine: &Engine, under_way: &mut UnderWay<'_>, mut see: Option<&mut dyn See>) -> Result<()> {
        let heard = under_way.heard.as_mut().expect("taken at the end only");
        self.messages.forget_told(heard.number);
        while heard.round < heard.rounds() {
            let number = [heard.number, heard.round as u64];
            if let Some(to) = heard.to(heard.round).filter(|_| !heard.told) {
                self.messages.tell(to, number, &heard.message())?;
                heard.told = true;
            }
            let Some(from) = heard.from() else {
                heard.hear_nobody();
                continue;
            };
            engine.wait_together(DOING, || self.messages.was_told(number))?;
            let see = see.as_mut().map(|see| &mut **see as &mut dyn See);
            heard.hear(&self.messages.take_told(number), see).ok_or_else(|| Error::BadMessage {
                from,
                why: "a part of an exchange that is longer or shorter than ours".into(),
            })?;
        }
        // Messages that met backpressure would otherwise stay here until this rank's next call.
        let mut told = (0..heard.rounds()).filter_map(|round| heard.to(round));
        told.try_for_each(|to| self.messages.hand_over(DOING, to))
    }

    /// Goes on with the exchange that a handler's panic came out of, if there is one: the other ranks are waiting in it.
    ///
    /// # Errors
    /// As [`Exchange::all`], but for ranks that differ: the call has failed here.
    #[inline]
    pub fn finish_left(&self, running: &Running<'_>, engine: &Engine, barrier: &Barrier) -> Result<()> {
        let Some(heard) = self.left.take() else { return Ok(()) };
        let number = heard.number;
        let mut under_way = UnderWay { exchange: self, heard: Some(heard) };
        barrier.pass_last(engine)?;
        if engine.routes.all_mapped() && !barrier.agreed() {
            return Ok(());
        }
        self.disseminate(engine, &mut under_way, None)?;
        let agreed = under_way.heard.as_ref().is_none_or(Dissemination::agreed);
        // Where ranks differ, the others fetch boards and wait for this rank in one more barrier, which it may have entered.
        if agreed || barrier.next_epoch() > number + 1 { Ok(()) } else { barrier.enter(running, engine, 0) }
    }

    /// Where ranks over a network brought different things, which may be right: all fetch all boards.
    #[cold]
    fn fetch(
        &self,
        running: &Running<'_>,
        (engine, barrier): (&Engine, &Barrier),
        (board, wanted): (usize, Wanted),
        title: Title,
        see: &mut dyn See,
    ) -> Result<()> {
        let len = size_of::<Title>() + title.len as usize;
        let mut boards = vec![0; len * engine.size];
        // Fetch all boards at once. One at a time, each would cost the network's latency.
        let places = (0..engine.size).map(|rank| HeapRange { rank, offset: board, len });
        engine.remote_gather(DOING, places, &mut boards)?;
        let title_of = |rank: usize| bytemuck::pod_read_unaligned::<Title>(&boards[rank * len..][..size_of::<Title>()]);
        let reference = title_of(0);
        let different = (0..engine.size).find(|rank| !title_of(*rank).agrees(&reference)).map(|rank| {
            let side = |rank| {
                let mut facts: Facts = bytemuck::Zeroable::zeroed();
                // If this fails the error message says less.
                let _ = engine.remote_get(DOING, rank, board + FACTS, bytemuck::bytes_of_mut(&mut facts));
                (rank, title_of(rank), facts)
            };
            differ(side(rank), side(0), title.epoch)
        });
        // A rank may leave right after this exchange, even because of an error found in it, and its memory goes with it. So
        // no rank returns before all have fetched.
        let closed = barrier.enter(running, engine, 0);
        if let Some(error) = different {
            return Err(error);
        }
        closed?;
        boards.chunks_exact(len).enumerate().for_each(|(rank, bytes)| see.see(rank, &bytes[size_of::<Title>()..]));
        if let Wanted::Combined = wanted {
            see.result();
        }
        Ok(())
    }
}

/// Shows the outcome of an exchange whose ranks agree.
fn finish(mut heard: Dissemination, see: &mut dyn See) -> Result<()> {
    if let Some(panic) = heard.take_panic() {
        resume_unwind(panic);
    }
    match heard.failed() {
        Some(rank) => Err(Error::Agreed { rank, why: "a panic came out of a reduction there".into() }),
        None => {
            heard.show(see);
            Ok(())
        }
    }
}
