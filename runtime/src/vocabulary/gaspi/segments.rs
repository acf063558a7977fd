//! Segments and their notifications.

use std::collections::BTreeMap;

use super::codes;
use super::collective::Kind;
use super::monitor::{Held, Partner};
use super::notes::{InUse, Layout};
use super::process::Process;
use super::state::{Owned, State, kind};
use super::types::{Code, GroupId, NotificationId, Rank, Result, SegmentId, Timeout};
use crate::world::World;

/// The lowest number that a segment of the world may have: see [`World::segment_at`].
const FIRST: u32 = 2;

/// The number of a segment in the world, which has no others than these and those of notifications.
pub(super) fn number_of(segment: SegmentId) -> u32 {
    FIRST + u32::from(segment)
}

/// The number of the segment in the world that a segment's notifications lie in.
pub(super) fn notes_of(segment: SegmentId) -> u32 {
    number_of(SegmentId::MAX) + 1 + u32::from(segment)
}

impl State {
    /// An own segment that has this range.
    ///
    /// # Errors
    /// [`codes::INV_SEG`]; [`codes::INV_LOC_OFF`].
    pub(super) fn own(&self, segment: SegmentId, offset: u64, size: u64) -> Result<&Owned> {
        let owned = self.segments.get(&segment).ok_or(Code(codes::INV_SEG))?;
        let fits = offset < owned.size && offset.checked_add(size).is_some_and(|end| end <= owned.size);
        if fits { Ok(owned) } else { Err(Code(codes::INV_LOC_OFF)) }
    }

    /// Goes on with the end of a deleted segment. Whether it is over.
    pub(super) fn close(&mut self, segment: SegmentId) -> bool {
        let Some(owned) = self.closing.get_mut(&segment) else { return true };
        let is_closed = owned.memory.try_close();
        let is_over = owned.notes.try_close() && is_closed;
        if is_over {
            self.closing.remove(&segment);
        }
        is_over
    }

    /// The address of a range of an own segment.
    ///
    /// # Errors
    /// As [`State::own`].
    pub(super) fn own_range(&self, segment: SegmentId, offset: u64, size: u64) -> Result<*mut u8> {
        self.own(segment, offset, size).map(|owned| owned.memory.as_ptr().wrapping_add(offset as usize))
    }
}

/// Memory of the program for a segment.
type Memory = Option<(*mut u8, usize)>;

impl Process {
    /// A segment of `size` zeroed bytes of this process. Local.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_SEG`] if the id is in use; [`codes::INV_SEGSIZE`] for no bytes; [`codes::MANY_SEG`];
    /// [`codes::MEMALLOC`].
    pub fn segment_alloc(&self, segment: SegmentId, size: u64) -> Result<()> {
        let Held { state, world } = &mut *self.monitor.enter()?;
        self.make(state, world, (segment, size), None, None)
    }

    /// Makes memory of the program a segment. Local.
    ///
    /// # Errors
    /// As [`Process::segment_alloc`]; [`codes::NULLPTR`].
    ///
    /// # Safety
    /// The bytes are valid for reads and writes until the segment is deleted or the working phase is over. Processes read and write them at any time: the
    /// program keeps its own accesses apart by notifications, barriers and waits.
    pub unsafe fn segment_bind(&self, segment: SegmentId, start: *mut u8, size: u64) -> Result<()> {
        let memory = checked(start, size)?;
        let Held { state, world } = &mut *self.monitor.enter()?;
        self.make(state, world, (segment, size), memory, None)
    }

    /// A segment at each member of a group, which all can reach when this returns. Collective; resumable.
    ///
    /// # Errors
    /// As [`Process::segment_alloc`] and [`Process::barrier`].
    pub fn segment_create(&self, segment: SegmentId, size: u64, group: GroupId, timeout: Timeout) -> Result<()> {
        self.make_together(segment, size, None, group, timeout)
    }

    /// As [`Process::segment_create`], of memory of the program.
    ///
    /// # Errors
    /// As [`Process::segment_create`]; [`codes::NULLPTR`].
    ///
    /// # Safety
    /// As [`Process::segment_bind`].
    pub unsafe fn segment_use(
        &self,
        segment: SegmentId,
        start: *mut u8,
        size: u64,
        group: GroupId,
        timeout: Timeout,
    ) -> Result<()> {
        let memory = checked(start, size)?;
        self.make_together(segment, size, memory, group, timeout)
    }

    /// A number that no member of a group has a segment of: the lowest one. Collective over the members; resumable.
    ///
    /// # Errors
    /// As [`Process::barrier`]; [`codes::MANY_SEG`] at all members if there is none.
    pub(super) fn agree_on_segment(&self, group: GroupId, timeout: Timeout) -> Result<SegmentId> {
        // A bit for each number.
        let mut used = [0u8; 1 << SegmentId::BITS >> 3];
        for id in self.segment_list()? {
            used[usize::from(id / 8)] |= 1 << (id % 8);
        }
        let combine = |mine: &mut [u8], theirs: &[u8]| {
            mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine |= theirs);
            Ok(())
        };
        let used = self.collective(group, Kind::Segment, "segment_create", &used, timeout, combine)?;
        if used.len() != 1 << SegmentId::BITS >> 3 {
            // It went on with another call by number.
            return Err(Code(codes::ERROR));
        }
        let is_free = |id: &SegmentId| used.get(usize::from(id / 8)).is_some_and(|bits| bits & (1 << (id % 8)) == 0);
        (0..SegmentId::MAX).find(is_free).ok_or(Code(codes::MANY_SEG))
    }

    /// [`codes::SUCCESS`] if all members have come with it, else the gravest code, the same at all members. Collective over the members;
    /// resumable.
    ///
    /// # Errors
    /// As [`Process::barrier`].
    pub(super) fn agree_on_outcome(&self, group: GroupId, own: i32, timeout: Timeout) -> Result<i32> {
        let combine = |mine: &mut [u8], theirs: &[u8]| {
            if gravity(theirs) > gravity(mine) {
                mine.copy_from_slice(theirs);
            }
            Ok(())
        };
        let own = own.to_ne_bytes();
        let gravest = self.collective(group, Kind::Segment, "segment_create", &own, timeout, combine)?;
        // Otherwise it went on with another call by number.
        gravest.try_into().map(i32::from_ne_bytes).map_err(|_| Code(codes::ERROR))
    }

    fn make_together(
        &self,
        segment: SegmentId,
        size: u64,
        memory: Memory,
        group: GroupId,
        timeout: Timeout,
    ) -> Result<()> {
        {
            let Held { state, world } = &mut *self.monitor.enter()?;
            state.check_works()?;
            state.committed(group)?;
            let resumes = state.segments.get(&segment).is_some_and(|owned| owned.pending == Some(group));
            if !resumes {
                self.make(state, world, (segment, size), memory, Some(group))?;
            }
        }
        self.collective(group, Kind::Segment, "segment_create", &[], timeout, |_, _| Ok(()))?;
        self.register_members(group, segment)?;
        if let Some(owned) = self.monitor.enter()?.state.segments.get_mut(&segment) {
            owned.pending = None;
        }
        Ok(())
    }

    /// All members of a group have made segments with this id together: this process may reach them.
    ///
    /// # Errors
    /// As [`Process::in_work`].
    pub(super) fn register_members(&self, group: GroupId, segment: SegmentId) -> Result<()> {
        self.in_work(|state| {
            let ranks = state.groups.get(&group).map(|group| &*group.ranks).unwrap_or_default();
            ranks.iter().for_each(|rank| self.shared().register(usize::from(*rank), segment));
        })
    }

    fn make(
        &self,
        state: &mut State,
        world: &World,
        (segment, size): (SegmentId, u64),
        memory: Memory,
        pending: Option<GroupId>,
    ) -> Result<()> {
        state.check_works()?;
        let bytes = usize::try_from(size).ok().filter(|bytes| (1..=isize::MAX as usize).contains(bytes));
        let bytes = bytes.ok_or(Code(codes::INV_SEGSIZE))?;
        if state.segments.contains_key(&segment) || state.closing.contains_key(&segment) {
            return Err(Code(codes::INV_SEG));
        }
        if state.segments.len() as u64 >= u64::from(state.config.segment_max) {
            return Err(Code(codes::MANY_SEG));
        }
        let failed = |error| Code(codes::of_error(&error));
        let layout = Layout::new(state.config.notification_num);
        // First: a process that finds the segment finds its notifications.
        let notes = world.allocate_segment(Some(notes_of(segment)), layout.bytes(), 1).map_err(failed)?;
        let number = Some(number_of(segment));
        let made = match memory {
            None => world.allocate_segment(number, bytes, 1),
            // SAFETY: the caller of `segment_bind` or `segment_use` guarantees it.
            Some((start, len)) => unsafe { world.segment_at(number, start, len) },
        };
        let memory = made.map_err(failed)?;
        // A close waits for reads of queues into the segment.
        let _ = memory.for_threads();
        // SAFETY: memory of this layout, which starts at a page or in a part of the slot that is aligned as one. `end_segment` ends its use
        // before it is closed.
        unsafe { self.shared().board.put(segment, notes.as_ptr(), state.config.notification_num) };
        self.shared().put_segment(segment, memory.as_ptr(), size);
        state.segments.insert(segment, Owned { memory, notes, size, pending, registered: BTreeMap::new() });
        Ok(())
    }

    /// Lets a process reach a segment of this one. Without it, or a call that makes a segment together with that process, what it posts
    /// there is [`codes::INV_SEG`]; it need make no call for this, and gets no notice. Complete when the process can reach the segment;
    /// resumable. It can reach later segments of that id, too, until its working phase ends.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_SEG`]; [`codes::INV_RANK`]; [`codes::TIMEOUT`]; [`codes::ERROR`] if the process is lost.
    pub fn segment_register(&self, segment: SegmentId, rank: Rank, timeout: Timeout) -> Result<()> {
        let to = {
            let Held { state, world } = &mut *self.monitor.enter()?;
            state.check_works()?;
            let State { segments, arrivals, .. } = &mut *state;
            let owned = segments.get_mut(&segment).ok_or(Code(codes::INV_SEG))?;
            let is_new = usize::from(rank) < world.size() && !owned.registered.contains_key(&rank.into());
            let number = is_new.then(|| arrivals.requests.replace(arrivals.requests.get() + 1));
            let to = state.check_partner(world, rank)?;
            if to == world.rank() {
                return Ok(());
            }
            if let Some(number) = number {
                if let Some(owned) = state.segments.get_mut(&segment) {
                    owned.registered.insert(to, Some(number));
                }
                state.tell(world, to, kind::REGISTER, segment, &number.to_ne_bytes());
            }
            to
        };
        self.monitor.wait("registering a segment", timeout, &Partner::Ranks(&[to]), |_, state| {
            // Another thread may delete it meanwhile.
            let request = state.segments.get_mut(&segment).and_then(|owned| owned.registered.get_mut(&to));
            let Some(request) = request else { return Some(Err(Code(codes::INV_SEG))) };
            if let Some(number) = *request {
                state.arrivals.registered.borrow_mut().remove(&number).then_some(())?;
                *request = None;
            }
            Some(Ok(()))
        })
    }

    /// Ends a segment of this process. Its id can be used again; memory of the program stays the program's. Local, but it waits until nothing
    /// of processes that live is in flight to it.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_SEG`]; [`codes::ERROR`] in a forked child, and if that wait fails: memory of the program must
    /// then stay.
    pub fn segment_delete(&self, segment: SegmentId) -> Result<()> {
        // A thread of the parent that used the segment's notifications at the fork never ends its use in the child.
        if self.monitor.process() != std::process::id() {
            return Err(Code(codes::ERROR));
        }
        {
            let Held { state, .. } = &mut *self.monitor.enter()?;
            state.check_works()?;
            let owned = state.segments.remove(&segment).ok_or(Code(codes::INV_SEG))?;
            self.end_segment(state, segment, owned)?;
        }
        // Other threads enter the monitor meanwhile.
        self.monitor.wait("closing a segment", Timeout::Block, &Partner::None, |_, state| {
            state.close(segment).then_some(Ok(()))
        })
    }

    /// Begins the end of a segment that was taken out of the state, by a thread that is in the monitor. A call that waits for the
    /// end calls [`State::close`].
    pub(super) fn end_segment(&self, state: &mut State, segment: SegmentId, mut owned: Owned) -> Result<()> {
        self.shared().end_segment(segment);
        let begun = owned.memory.begin_close().and(owned.notes.begin_close());
        state.closing.insert(segment, owned);
        begun.map_err(|error| Code(codes::of_error(&error)))
    }

    /// The address of a segment of this process. Other processes may write there at any time.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_SEG`].
    pub fn segment_ptr(&self, segment: SegmentId) -> Result<*mut u8> {
        self.of_segment(segment, |owned| owned.memory.as_ptr())
    }

    /// The bytes of a segment of this process.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_SEG`].
    pub fn segment_size(&self, segment: SegmentId) -> Result<u64> {
        self.of_segment(segment, |owned| owned.size)
    }

    /// The segments of this process, in ascending order.
    ///
    /// # Errors
    /// [`codes::NOINIT`].
    pub fn segment_list(&self) -> Result<Vec<SegmentId>> {
        self.in_work(|state| state.segments.keys().copied().collect())
    }

    /// Copies bytes out of a segment of this process. Of bytes that a process writes meanwhile, a part may be copied.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_SEG`]; [`codes::INV_LOC_OFF`].
    pub fn segment_read(&self, segment: SegmentId, offset: u64, into: &mut [u8]) -> Result<()> {
        let entered = self.monitor.enter()?;
        entered.state.check_works()?;
        let owned = entered.state.own(segment, offset, into.len() as u64)?;
        owned.memory.read(offset as usize, into).map_err(|error| Code(codes::of_error(&error)))
    }

    /// Copies bytes into a segment of this process.
    ///
    /// # Errors
    /// As [`Process::segment_read`].
    pub fn segment_write(&self, segment: SegmentId, offset: u64, bytes: &[u8]) -> Result<()> {
        let entered = self.monitor.enter()?;
        entered.state.check_works()?;
        let owned = entered.state.own(segment, offset, bytes.len() as u64)?;
        owned.memory.write(offset as usize, bytes).map_err(|error| Code(codes::of_error(&error)))
    }

    fn of_segment<R>(&self, segment: SegmentId, read: impl FnOnce(&Owned) -> R) -> Result<R> {
        self.in_work(|state| state.segments.get(&segment).map(read))?.ok_or(Code(codes::INV_SEG))
    }

    /// The first notification with a value, of `number` from `begin` on, of a segment of this process. It keeps its value; the next call gives
    /// it again. `None` for no notifications.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_SEG`], also when the segment is deleted meanwhile; [`codes::INV_NOTIF_ID`];
    /// [`codes::TIMEOUT`]; [`codes::ERROR`] without a limit if all other processes are lost.
    pub fn notify_waitsome(
        &self,
        segment: SegmentId,
        begin: NotificationId,
        number: u32,
        timeout: Timeout,
    ) -> Result<Option<NotificationId>> {
        let notes = self.notes(segment)?;
        if !notes.has(begin, number) {
            return Err(Code(codes::INV_NOTIF_ID));
        }
        if number == 0 {
            return Ok(None);
        }
        let end = begin + number;
        if let Some(found) = notes.first(begin, end) {
            return Ok(Some(found));
        }
        let shared = self.shared();
        if timeout != Timeout::Test
            && let Some(found) = shared.spin(|| notes.first(begin, end))
        {
            return Ok(Some(found));
        }
        let generation = notes.generation();
        drop(notes);
        self.monitor.wait("waiting for a notification", timeout, &Partner::Any, |_, _| {
            shared.advance_reads();
            // SAFETY: only a thread that is in the monitor deletes a segment, and this one is.
            let Some(notes) = (unsafe { shared.board.peek(segment, generation) }) else {
                return Some(Err(Code(codes::INV_SEG)));
            };
            notes.first(begin, end).map(|found| Ok(Some(found)))
        })
    }

    /// Sets a notification to 0, and gives the value that it had; 0 if it had none. Of several threads one gets the value. It sees what was
    /// written before the notification, or with it.
    ///
    /// # Errors
    /// [`codes::NOINIT`]; [`codes::INV_SEG`]; [`codes::INV_NOTIF_ID`].
    pub fn notify_reset(&self, segment: SegmentId, id: NotificationId) -> Result<u32> {
        let reset = || self.notes(segment)?.reset(id).ok_or(Code(codes::INV_NOTIF_ID));
        match reset()? {
            0 => {
                // A program may wait by this call alone. Not while its notifications are in use: what a poll does may take its time.
                self.monitor.poll();
                self.shared().advance_reads();
                reset()
            }
            value => Ok(value),
        }
    }

    #[inline]
    fn notes(&self, segment: SegmentId) -> Result<InUse<'_>> {
        match self.shared().board.get(segment) {
            Some(notes) => Ok(notes),
            None => {
                self.monitor.enter()?.state.check_works()?;
                Err(Code(codes::INV_SEG))
            }
        }
    }
}

/// How grave a code is that a member has come with: a number that was taken meanwhile lets all try again.
fn gravity(code: &[u8]) -> u8 {
    match code.try_into().map(i32::from_ne_bytes) {
        Ok(codes::SUCCESS) => 0,
        Ok(codes::INV_SEG) => 1,
        _ => 2,
    }
}

fn checked(start: *mut u8, size: u64) -> Result<Memory> {
    if start.is_null() {
        return Err(Code(codes::NULLPTR));
    }
    // Checked again where the segment is made.
    Ok(Some((start, usize::try_from(size).map_err(|_| Code(codes::INV_SEGSIZE))?)))
}
