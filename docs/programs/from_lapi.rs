//! Each task sends its number to its neighbour, and task 0 adds up what all have got.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bellwether::World;
use bellwether::lapi::{Answer, Counter, Lapi};

fn main() -> Result<(), Box<dyn Error>> {
    let lapi = Lapi::start(World::builder())?;
    let (me, n) = (lapi.rank(), lapi.size());
    let (inbox, sum) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (arrived, added) = (Arc::new(Counter::new()), Arc::new(Counter::new()));

    // Header handlers are closures. What they use is shared: they run on whichever thread makes progress.
    let value = |header: &[u8]| u64::from_ne_bytes(header.try_into().expect("eight bytes"));
    let (to, told) = (Arc::clone(&inbox), Arc::clone(&arrived));
    lapi.handler(1, move |_, message| {
        to.store(value(message.header()), Ordering::Relaxed);
        told.increment();
        Answer::discard()
    })?;
    let to = Arc::clone(&sum);
    lapi.handler(2, move |_, message| {
        to.fetch_add(value(message.header()), Ordering::Relaxed);
        Answer::discard()
    })?;
    lapi.gfence()?;

    lapi.message((me + 1) % n, 1).header(&(me as u64).to_ne_bytes()).send()?;
    lapi.wait(&arrived, 1)?;
    let own = inbox.load(Ordering::Relaxed);
    lapi.message(0, 2).header(&own.to_ne_bytes()).completion(&added).send()?;
    lapi.wait(&added, 1)?;
    lapi.gfence()?;
    if me == 0 {
        println!("sum {}", sum.load(Ordering::Relaxed));
    }
    lapi.finish()?;
    Ok(())
}
