//! Aggregation where other ranks' memory is not mapped: items travel to their owners in messages.
//!
//! Requests go through one port, and what comes back through another, made after it. An item begins with the local index;
//! then come the value, if there is one, and, if an answer is expected, the rank that asked and the number of its item.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use bellwether_runtime::memory::copy;
use bellwether_runtime::{Pod, Result, Symmetric, World};

use super::options::Options;
use super::places::Places;
use super::port::{Eager, Form, Merge, Plan, Port, Sink};
use super::verdict::{Call, Verdict, Verdicts};

/// The arguments of a call.
pub(super) struct Ask<'a, T> {
    pub(super) indices: &'a [usize],
    /// The values that are combined into the elements, if any.
    pub(super) values: Option<&'a [T]>,
    /// Where the former values of the elements go, if they are wanted.
    pub(super) old: Option<&'a mut [T]>,
    /// Combines two values for one element, if that is allowed before they are applied.
    pub(super) join: Option<fn(T, T) -> T>,
}

const WORD: usize = size_of::<u64>();

/// The next word of an item.
fn word(item: &mut &[u8]) -> usize {
    let (word, rest) = item.split_first_chunk().expect("items are as long as their port was told");
    *item = rest;
    u64::from_ne_bytes(*word) as usize
}

/// Appends a word.
fn append(item: &mut Vec<u8>, word: usize) {
    item.extend_from_slice(&(word as u64).to_ne_bytes());
}

/// Most bytes of buffers that any call takes, whose ports are open together.
pub(super) fn memory<T: Pod>(world: &World, options: &Options) -> usize {
    // The function that joins items does not change how much memory is held.
    let merge = || Some(Merge { key: WORD, join: Rc::new(|_, _| ()) });
    let of = |width, share| plan(options, width, share).most_memory(world);
    let adds = Plan { merge: merge(), ..plan(options, WORD + size_of::<T>(), 1) }.most_memory(world);
    let updates = of(WORD + size_of::<T>(), 1);
    let answers = of(WORD + size_of::<T>(), 2);
    let reads = of(3 * WORD, 2) + answers;
    let fetches = of(3 * WORD + size_of::<T>(), 2) + answers;
    adds.max(updates).max(reads).max(fetches)
}

fn plan(options: &Options, width: usize, share: usize) -> Plan {
    // Between the ranks of one call nothing is gained by leaving early.
    Plan { age: Duration::MAX, ..options.plan(Form::Fixed(width), share, Eager::Nobody) }
}

/// Sends the requests to their owners, and waits for the answers. Collective.
///
/// # Safety
/// If the call combines values, no other code accesses the table on any rank until this returns.
#[expect(clippy::too_many_arguments, reason = "the one place where all that is asked meets")]
pub(super) unsafe fn ask<T: Pod, P: Places>(
    world: &World,
    verdicts: &mut Verdicts,
    options: &Options,
    call: Call,
    table: &Symmetric<T>,
    places: &P,
    ask: Ask<'_, T>,
    combine: impl Fn(T, T) -> T,
) -> Result<()> {
    let Ask { indices, values, old, join } = ask;
    let (part, len, ranks) = (table.as_ptr_range().start, table.len(), world.size());
    let lengths = [values.map(<[T]>::len), old.as_ref().map(|old| old.len())];
    let mut verdict = Verdict::of_lengths(indices.len(), &lengths);
    if verdict.is_good() {
        verdict = Verdict::of_indices(places, indices, 0);
    }
    if verdict.is_good() {
        let is_there = |(rank, local)| rank < ranks && local < len;
        if let Some(number) = indices.iter().position(|index| !is_there(places.place(*index))) {
            verdict = Verdict::of_index(places, indices, number);
        }
    }
    let (updates, answers) = (values.is_some(), old.is_some());
    // Room to put answers in, and how many have come.
    let found = Rc::new(RefCell::new(vec![T::zeroed(); if answers { indices.len() } else { 0 }]));
    let shares = if answers { 2 } else { 1 };
    let value = if updates { size_of::<T>() } else { 0 };
    let width = WORD + value + if answers { 2 * WORD } else { 0 };

    let feed = Rc::new(RefCell::new(None::<super::port::Feed>));
    let reply_to = Rc::clone(&feed);
    let combine: Box<dyn Fn(T, T) -> T + '_> = Box::new(combine);
    let request = Box::new(move |items: &[u8]| {
        let reply_to = reply_to.borrow();
        let mut taken = 0;
        for mut item in items.chunks_exact(width) {
            let local = word(&mut item);
            if local >= len {
                taken += width;
                continue;
            }
            // SAFETY: an element of this rank's part: the caller guarantees the part, and the index is checked above.
            let at = unsafe { part.add(local) };
            // SAFETY: as above; no other code writes here.
            let before: T = unsafe { copy::load(at) };
            let value = updates.then(|| {
                let (value, rest) = item.split_at(size_of::<T>());
                item = rest;
                bytes_to::<T>(value)
            });
            if answers {
                let (from, number) = (word(&mut item), word(&mut item));
                let mut answer = Vec::with_capacity(WORD + size_of::<T>());
                append(&mut answer, number);
                answer.extend_from_slice(bytemuck::bytes_of(&before));
                if !reply_to.as_ref().is_some_and(|reply| reply.put(from, &answer)) {
                    break;
                }
            }
            if let Some(value) = value {
                // SAFETY: as above.
                unsafe { copy::store(at, combine(before, value)) };
            }
            taken += width;
        }
        taken
    });
    // SAFETY: a port calls its sink only until it is dropped, which happens before this function returns; what the sink
    // borrows lives longer.
    let request = unsafe { std::mem::transmute::<Box<dyn FnMut(&[u8]) -> usize + '_>, Sink>(request) };
    // Items that need an answer are not merged: each asker gets its own.
    let merge = join.filter(|_| updates && !answers).map(|join| Merge {
        key: WORD,
        join: Rc::new(move |first: &mut [u8], second: &[u8]| {
            let both = join(bytes_to(first), bytes_to(second));
            first.copy_from_slice(bytemuck::bytes_of(&both));
        }),
    });
    let plan_of_requests = Plan { merge, ..plan(options, width, shares) };
    // Errors from here on are returned only after the exchange of verdicts, because other ranks wait in it.
    let requests = Port::new(world, call.operation, plan_of_requests, request);
    let replies = answers.then(|| {
        let found = Rc::clone(&found);
        let width = WORD + size_of::<T>();
        let sink: Sink = Box::new(move |items: &[u8]| {
            let mut found = found.borrow_mut();
            for mut item in items.chunks_exact(width) {
                let number = word(&mut item);
                if let Some(found) = found.get_mut(number) {
                    *found = bytes_to(item);
                }
            }
            items.len()
        });
        let port = Port::new(world, call.operation, plan(options, width, shares), sink)?;
        feed.replace(Some(port.feed()));
        Ok(port)
    });
    if !answers {
        Port::skip(world);
    }
    // All have made their ports when this returns.
    verdicts.exchange(world, call, verdict, false)?;
    let (mut requests, mut replies) = (requests?, replies.transpose()?);
    let mut item = Vec::with_capacity(width);
    for (number, &index) in indices.iter().enumerate() {
        let (rank, local) = places.place(index);
        item.clear();
        append(&mut item, local);
        if let Some(values) = values {
            item.extend_from_slice(bytemuck::bytes_of(&values[number]));
        }
        if answers {
            append(&mut item, world.rank());
            append(&mut item, number);
        }
        requests.push(rank, &item)?;
    }
    requests.finish()?;
    if let Some(replies) = &mut replies {
        replies.finish()?;
    }
    if let Some(old) = old {
        old.copy_from_slice(&found.borrow());
    }
    Ok(())
}

/// A value from bytes anywhere.
fn bytes_to<T: Pod>(bytes: &[u8]) -> T {
    bytemuck::pod_read_unaligned(bytes)
}
