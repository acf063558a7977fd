//! Ranks that speak other systems' languages.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bellwether::World;
use bellwether::cheetah::{Bell, Controller};
use bellwether::gaspi::{self, Config, Gaspi, Process, State, Timeout};
use bellwether::lapi::{Answer, Counter, Lapi};

use super::kinds::Step;
use super::{APART, Run, Told};

/// What other contexts write. It outlives every context, so no late write meets other memory.
static PLACE: AtomicU64 = AtomicU64::new(0);
static BELL: Bell = Bell::new();

/// Makes what a round of Cheetah's calls needs. Collective.
pub fn cheetah<'w>(controller: &'w Controller, world: &'w World) -> bellwether::Result<Step<'w>> {
    let (rank, size) = (controller.mycontext()?, controller.ncontexts()?);
    let next = (rank + 1) % size;
    let called = controller.register_function(|_, _, _, buffer| assert_eq!(buffer.len(), 8))?;
    let place = world.exchange_addresses(PLACE.as_ptr())?[next];
    let bell = world.exchange_addresses(&raw const BELL)?[next];
    Ok(Box::new(move |round| {
        let bytes = round.to_ne_bytes();
        controller.ainvoke((rank + 1 + round as usize % size) % size, called, &bytes, None)?;
        // SAFETY: both are statics of the program, which every context has, and are touched atomically only.
        unsafe { controller.put(next, place, &bytes, None, Some(bell))? };
        controller.wait(&BELL, round as i32 + 1)?;
        if round % APART == 0 { controller.barrier() } else { Ok(()) }
    }))
}

/// A job of LAPI.
pub fn lapi(run: &Run<'_>) -> Result<bool, Told> {
    let lapi = Lapi::start(World::builder())?;
    run.note("started", "");
    let code = |code: bellwether::lapi::Code| code.failure().map_or_else(|| code.to_string(), |failure| failure.text);
    let (rank, size) = (lapi.rank(), lapi.size());
    let taken = Arc::new(AtomicU64::new(0));
    let counts = Arc::clone(&taken);
    let set = lapi.handler(1, move |_, _| {
        counts.fetch_add(1, Ordering::Relaxed);
        Answer::vec(Vec::new())
    });
    set.map_err(code)?;
    lapi.gfence().map_err(code)?;
    let (sent, handled) = (Arc::new(Counter::new()), Arc::new(Counter::new()));
    let leaves = run.rounds(|round| -> Result<(), String> {
        let length = if round % 3 == 0 { 100_000 } else { 100 };
        let (to, header) = ((rank + 1 + round as usize % size) % size, round.to_ne_bytes());
        let message = lapi.message(to, 1).header(&header);
        message.data(vec![1; length]).origin(&sent).completion(&handled).send().map_err(code)?;
        lapi.wait(&sent, 1).map_err(code)?;
        lapi.wait(&handled, 1).map_err(code)?;
        if round % APART == 0 {
            lapi.gfence().map_err(code)?;
        }
        Ok(())
    })?;
    if leaves {
        return Ok(true);
    }
    lapi.gfence().map_err(code)?;
    if run.strikes(super::When::Finish) {
        return Ok(true);
    }
    lapi.finish()?;
    Ok(false)
}

/// A job of GASPI. Its waits for a notification would go on while another process lives, so it waits for queues and for groups.
pub fn gaspi(run: &Run<'_>) -> Result<bool, Told> {
    let process = Process::start(World::builder())?;
    run.note("started", "");
    let leaves = gaspi_phase(run, &process).map_err(|error| {
        // A call outside of the phase has no states.
        let states = process.state_vec_get().unwrap_or_default();
        let lost = states.iter().enumerate().filter(|(_, state)| **state == State::Corrupt);
        let lost: Vec<String> = lost.map(|(rank, _)| format!("rank {rank} is gone")).collect();
        format!("{error}; {}", lost.join(", "))
    })?;
    if !leaves {
        process.finish()?;
    }
    Ok(leaves)
}

fn gaspi_phase(run: &Run<'_>, process: &Process) -> Result<bool, Told> {
    let gaspi = Gaspi::begin(process, Config::default()).block()?;
    // A rank that is hit takes its phase with it, so that the states are there to be asked for.
    let gaspi = std::mem::ManuallyDrop::new(gaspi);
    if gaspi_rounds(run, &gaspi)? || run.strikes(super::When::Finish) {
        return Ok(true);
    }
    std::mem::ManuallyDrop::into_inner(gaspi).finish().block()?;
    Ok(false)
}

fn gaspi_rounds(run: &Run<'_>, gaspi: &Gaspi<'_>) -> Result<bool, Told> {
    let (rank, size) = (gaspi.rank(), gaspi.size());
    let next = (rank + 1) % size;
    // A rank that is hit does not close it first: the others would find no segment, and no rank that is gone.
    let segment = std::mem::ManuallyDrop::new(gaspi.segment(4096).block()?);
    let queue = gaspi.queue(Timeout::Block)?;
    let mut arrived = segment.notification(7)?;
    let leaves = run.rounds(|round| -> gaspi::Result<()> {
        let to = (rank + 1 + round as gaspi::Rank % size) % size;
        queue.write_notify(segment.here(0..8), segment.there(next, 512), arrived.signal(), round as u32 + 1)?;
        queue.read(segment.here(1024..2048), segment.there(to, 0))?;
        queue.wait(Timeout::Block)?;
        segment.fetch_add(to, 2048, 1).block()?;
        if round % 2 == 0 {
            gaspi.all().barrier(Timeout::Block)?;
        } else {
            let count = gaspi.all().allreduce(&[1u64], gaspi::Operation::Sum).block()?;
            assert_eq!(count, [u64::from(size)]);
        }
        match arrived.wait(Timeout::Test) {
            Err(code) if !code.is_timeout() => Err(code),
            _ => Ok(()),
        }
    })?;
    if !leaves {
        gaspi.all().barrier(Timeout::Block)?;
        drop((queue, arrived));
        std::mem::ManuallyDrop::into_inner(segment).close()?;
    }
    Ok(leaves)
}
