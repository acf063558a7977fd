//! `Msgpoll`, and waiting for counters with the state of each task: `Setcntr_wstatus`, `Nopoll_wait`.

use super::domain::{Domain, Undo, enter_outside, run_own, wait};
use super::port::Entered;
use super::queue::Finish;
use super::types::{DISP_CNTR, Handle, MsgInfo, POLLING_NET, RECV_COMPLETE, SEND_COMPLETE, msg_status};
use super::{Counter, codes, port};

/// The name of a wait for a counter, in errors.
const WAITING: &str = "waiting for a counter";

/// A counter's record of the tasks that it waits for.
pub(super) struct Statuses {
    tasks: Box<[u32]>,
    /// As many states, in the program's memory.
    states: *mut i32,
}

impl Statuses {
    /// Applies `change` to each state of task `task`. With `once`, stops at the first state that `change` changes.
    fn change(&self, task: usize, change: impl Fn(i32) -> Option<i32>, once: bool) {
        for (place, _) in self.tasks.iter().enumerate().filter(|(_, other)| **other as usize == task) {
            // SAFETY: the caller of `setcntr_wstatus` guarantees as many states, until they are given up.
            let state = unsafe { &mut *self.states.add(place) };
            if let Some(now) = change(*state) {
                *state = now;
                if once {
                    return;
                }
            }
        }
    }
}

impl Domain {
    /// Notes that task `from` has caused an increment of the counter at this address.
    #[inline]
    pub(super) fn note_received(&self, counter: u64, from: usize) {
        if !self.statuses.borrow().is_empty() {
            self.find_received(counter, from);
        }
    }

    /// The first task whose message can no longer come, if the counter cannot reach `value` without it: too many of the tasks that
    /// [`setcntr_wstatus`] has named are gone. Messages of theirs that have arrived still count, until they are delivered and their
    /// handlers have run.
    #[cold]
    fn first_missed(&self, counter: &Counter, value: i32, is_gone: &dyn Fn(usize) -> bool) -> Option<usize> {
        let statuses = self.statuses.borrow();
        let Statuses { tasks, states } = statuses.get(&(counter.address() as u64))?;
        let mut missed = None;
        // The message of a task that is gone counts once it is in the queue, since the counter moves after its completion handler.
        let is_coming = |finish: &Finish| is_gone(finish.from) && self.is_target(finish.target, counter);
        let mut most = i64::from(counter.value()) + self.queue.count(is_coming) as i64;
        for (place, task) in tasks.iter().enumerate() {
            let task = *task as usize;
            // SAFETY: the caller of `setcntr_wstatus` guarantees as many states, until they are given up.
            let is_awaited = unsafe { *states.add(place) } == msg_status::INITIAL;
            // The program may have overwritten the state of a number that is no task.
            if is_awaited && task < self.world.size() {
                if is_gone(task) && !self.transfers.has_from(task) {
                    missed.get_or_insert(task);
                } else {
                    most += 1;
                }
            }
        }
        missed.filter(|_| most < i64::from(value))
    }

    #[cold]
    fn find_received(&self, counter: u64, from: usize) {
        if let Some(statuses) = self.statuses.borrow().get(&counter) {
            // A task may stand in the list for several messages.
            statuses.change(from, |state| (state == msg_status::INITIAL).then_some(msg_status::RECVD), true);
        }
    }

    /// `Some(Err(TGT_PURGED))` if a task was purged since `purges` was read.
    #[inline]
    pub(super) fn is_purged_since<R>(&self, purges: u64) -> Option<Result<R, i32>> {
        (self.purges.get() != purges).then_some(Err(codes::TGT_PURGED))
    }

    /// Notes that a task was purged, and ends the waits of this handle.
    pub(super) fn note_purged(&self, task: usize) {
        self.purges.set(self.purges.get() + 1);
        self.last_purges.borrow_mut().insert(task, self.purges.get());
        for statuses in self.statuses.borrow().values() {
            let change = |state| match state {
                msg_status::INITIAL => Some(msg_status::PURGED),
                msg_status::RECVD => Some(msg_status::PURGED_RCVD),
                _ => None,
            };
            statuses.change(task, change, false);
        }
        for counter in &*self.sleepers.borrow() {
            // SAFETY: a `nopoll_wait` is in progress, and its caller guarantees that the counter is valid.
            unsafe { &*(*counter as *const Counter) }.wake();
        }
    }
}

fn code(outcome: Result<(), i32>) -> i32 {
    outcome.err().unwrap_or(codes::SUCCESS)
}

/// `LAPI_Setcntr_wstatus`: sets a counter to 0, and names the `num_dest` tasks at `dest` whose messages it waits for. From now on
/// `dest_status[i]` is the state of task `dest[i]`, one of [`msg_status`]: the task has received its message when an increment of the
/// counter has come from it. If a task is in the list twice, two increments from it are expected. With `dest` null, no states are kept.
///
/// If a task of the list leaves before its message has come, and the counter cannot reach the value of a wait without that message, the
/// wait ends with [`codes::PEER_LOST`]. This works only for named tasks: the library does not know which tasks move any other counter, so a
/// wait for such a counter ends only when all other tasks have left.
///
/// LAPI gives the states up, and accesses them no more, at the next call of this or of [`setcntr`](super::raw::setcntr) with the counter,
/// when a [`nopoll_wait`] for the counter succeeds, and in `Term`.
///
/// # Safety
/// - `counter` is null or valid;
/// - `dest` is null or valid for reading `num_dest` values, and `dest_status` is null or valid for reading and writing as many, until the
///   states are given up.
pub unsafe fn setcntr_wstatus(
    handle: Handle,
    counter: *const Counter,
    num_dest: i32,
    dest: *const u32,
    dest_status: *mut i32,
) -> i32 {
    code((|| {
        let domain = port::enter(handle)?;
        // SAFETY: the caller guarantees that it is valid.
        let own = unsafe { counter.as_ref() }.ok_or(codes::CNTR_NULL)?;
        let tasks = if dest.is_null() { 0 } else { usize::try_from(num_dest).map_err(|_| codes::CNTR_VAL)? };
        if tasks != 0 && dest_status.is_null() {
            return Err(codes::RET_PTR_NULL);
        }
        domain.statuses.borrow_mut().remove(&(counter as u64));
        own.set(0);
        if tasks != 0 {
            // SAFETY: the caller guarantees as many tasks, and as many states.
            let (tasks, states) = unsafe {
                let tasks: Box<[u32]> = std::slice::from_raw_parts(dest, tasks).into();
                (tasks, dest_status)
            };
            for (place, task) in tasks.iter().enumerate() {
                let valid = domain.purged.get(*task as usize).is_some_and(|purged| !purged.get());
                let state = if valid { msg_status::INITIAL } else { msg_status::INVALID };
                // SAFETY: as above.
                unsafe { states.add(place).write(state) };
            }
            domain.statuses.borrow_mut().insert(counter as u64, Statuses { tasks, states });
        }
        Ok(())
    })())
}

/// `LAPI_Nopoll_wait`: waits until the counter is at least `value`, subtracts `value`, and stores what is left in `left`, if that is not
/// null. In interrupt mode it sleeps, makes no progress itself, and uses no processor; in polling mode it makes progress as
/// [`waitcntr`](super::raw::waitcntr) does, since no other call might. It works on every handle, whatever library version the program set.
///
/// [`codes::CNTR_VAL`]: `value` is not above 0. [`codes::MULTIPLE_WAITERS`]: another thread is in this call with the same counter.
/// [`codes::TGT_PURGED`]: a task was purged meanwhile; the counter is as it was. The code of a message that failed, and
/// [`codes::PEER_LOST`], are returned within a second, or within two seconds for a task that [`setcntr_wstatus`] has named.
///
/// # Safety
/// `counter` and `left` are null or valid, and the counter stays so during the call.
pub unsafe fn nopoll_wait(handle: Handle, counter: *const Counter, value: i32, left: *mut i32) -> i32 {
    code((|| {
        let domain = enter_outside(handle)?;
        // SAFETY: the caller guarantees that it is valid.
        let own = unsafe { counter.as_ref() }.ok_or(codes::CNTR_NULL)?;
        if value <= 0 {
            return Err(codes::CNTR_VAL);
        }
        if !domain.sleepers.borrow_mut().insert(counter as usize) {
            return Err(codes::MULTIPLE_WAITERS);
        }
        let asleep = Undo(handle, |domain| {
            domain.sleepers.borrow_mut().remove(&(counter as usize));
        });
        let purges = domain.purges.get();
        let sleeps = domain.has_interrupts();
        drop(domain);
        let mut missed = None;
        let outcome = if sleeps {
            own.sleep_until(value, |is_late| {
                let domain = enter_outside(handle)?;
                if domain.purges.get() != purges {
                    return Err(codes::TGT_PURGED);
                }
                domain.take_fault()?;
                if is_late {
                    // Finds peers that failed.
                    domain.poll()?;
                    if own.value() < value {
                        domain.check_not_alone(WAITING)?;
                        let engine = domain.world.engine();
                        let now = if engine.failures.any_gone() {
                            domain.first_missed(own, value, &|task| engine.failures.is_gone(task))
                        } else {
                            None
                        };
                        // Between two checks everything that the task had sent is delivered.
                        if let Some(task) = now
                            && missed == now
                        {
                            return Err(codes::of_error(&engine.gone(task, WAITING)));
                        }
                        missed = now;
                    }
                }
                Ok(())
            })
        } else {
            wait_or_purged(enter_outside(handle)?, own, value, purges)
        };
        // Both lists change in one stay in the port: the next thread that waits for this counter may name other tasks.
        let domain = port::enter(handle)?;
        drop(asleep);
        let now = outcome?;
        domain.statuses.borrow_mut().remove(&(counter as u64));
        if !left.is_null() {
            // SAFETY: the caller guarantees that it is valid.
            unsafe { *left = now };
        }
        Ok(())
    })())
}

/// Makes progress until the counter is at least `value`, subtracts `value`, and returns the rest.
///
/// # Errors
/// [`codes::TGT_PURGED`] if a task was purged since `purges` was read; as [`wait`].
#[inline]
pub(super) fn wait_or_purged(domain: Entered, counter: &Counter, value: i32, purges: u64) -> Result<i32, i32> {
    let is_named = domain.statuses.borrow().contains_key(&(counter.address() as u64));
    let mut seen = None;
    wait(domain, WAITING, |domain| match counter.take(value) {
        Some(left) => Some(Ok(left)),
        None if domain.purges.get() != purges => Some(Err(codes::TGT_PURGED)),
        None if is_named => {
            domain.is_left_alone(WAITING, &mut seen, |is_gone| domain.first_missed(counter, value, is_gone))
        }
        None => None,
    })?
}

/// `LAPI_Msgpoll`: makes progress up to `rounds` times, until something is done, and stores in `info` what was done. [`SEND_COMPLETE`]: a
/// target has answered a message or a request of this task. [`RECV_COMPLETE`]: a message has arrived, and its data is in place. Both may be
/// set. [`DISP_CNTR`]: nothing was done in any round. [`POLLING_NET`]: another thread of the task makes progress, so this call made none.
///
/// # Safety
/// `info` is null or valid for writing.
pub unsafe fn msgpoll(handle: Handle, rounds: u32, info: *mut MsgInfo) -> i32 {
    code((|| {
        let domain = port::enter_unless_busy(handle)?;
        if domain.as_ref().is_some_and(|domain| domain.is_nested()) {
            return Err(codes::IN_HANDLER);
        }
        // SAFETY: the caller guarantees that it is valid.
        let info = unsafe { info.as_mut() }.ok_or(codes::MSG_INFO_NULL)?;
        info.status = POLLING_NET;
        let Some(domain) = domain else { return Ok(()) };
        let before = [&domain.done.sends, &domain.done.receives].map(|done| done.get());
        let mut outcome = Ok(());
        info.status = DISP_CNTR;
        for _ in 0..rounds {
            outcome = domain.poll().map(|_| ());
            let now = [&domain.done.sends, &domain.done.receives].map(|done| done.get());
            if now != before || outcome.is_err() {
                let flag = |which: usize, flag| if now[which] != before[which] { flag } else { 0 };
                info.status = flag(0, SEND_COMPLETE) | flag(1, RECV_COMPLETE);
                break;
            }
        }
        drop(domain);
        run_own(handle);
        outcome
    })())
}
