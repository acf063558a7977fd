//! A put and its bell, there and back.

use std::sync::atomic::{AtomicU64, Ordering};

use bellwether_runtime::Result;

use super::{LINE, address, opaque, spin, spin_until, word};
use crate::bench::session::Session;
use crate::bench::task::Measured;

/// One way of a ping-pong of put and bell, beside a store to a data line and one to a flag line.
///
/// # Errors
/// Those of the runtime.
pub fn put_bell(session: &Session, size: usize) -> Result<Vec<Measured>> {
    Ok(vec![session.in_places(|| put_bell_here(session, size))?])
}

fn put_bell_here(session: &Session, size: usize) -> Result<Measured> {
    let world = &session.world;
    let words = size / 8;
    let data = world.alloc::<u64>(words.max(LINE))?;
    let bell = world.bell()?;
    let bare = world.alloc::<u64>(words.next_multiple_of(LINE) + LINE)?;
    let flag = words.next_multiple_of(LINE);
    let mut source = vec![0u64; words];
    let mut bare_source = vec![0u64; words];
    let own = world.rank();

    let throw = |partner: usize, round: u64| {
        if words == 1 {
            return data.put_bell(partner, 0, round, &bell);
        }
        (source[0], source[words - 1]) = (round, round);
        data.put_slice_bell(partner, 0, &source, &bell)
    };
    let catch = |round: u64| {
        bell.wait(round)?;
        opaque(data.load(0));
        if words > 1 {
            opaque(data.load(words - 1));
        }
        Ok(())
    };
    let bare_throw = |partner: usize, round: u64| {
        let to = address(&bare, partner, 0);
        if words == 1 {
            // SAFETY: the data word at the partner, which reads it after it has seen the flag.
            unsafe { AtomicU64::from_ptr(to) }.store(round, Ordering::Relaxed);
        } else {
            (bare_source[0], bare_source[words - 1]) = (round, round);
            // SAFETY: as above; the flag lies behind these words.
            unsafe { libc::memcpy(to.cast(), bare_source.as_ptr().cast(), size) };
        }
        word(&bare, partner, flag).store(round, Ordering::Release);
    };
    let bare_catch = |round: u64| {
        spin(word(&bare, own, flag), round);
        opaque(bare.load(0));
        if words > 1 {
            opaque(bare.load(words - 1));
        }
    };

    ping_pong(session, size, (throw, catch), (bare_throw, bare_catch))
}

/// One way of a ping-pong of puts, each of which its target polls for in its own memory, beside stores to a data line.
///
/// # Errors
/// Those of the runtime.
pub fn put_poll(session: &Session, size: usize) -> Result<Vec<Measured>> {
    Ok(vec![session.in_places(|| put_poll_here(session, size))?])
}

fn put_poll_here(session: &Session, size: usize) -> Result<Measured> {
    let world = &session.world;
    let words = size / 8;
    let data = world.alloc::<u64>(words.max(LINE))?;
    let bare = world.alloc::<u64>(words.max(LINE))?;
    let (mut source, mut bare_source) = (vec![0u64; words], vec![0u64; words]);
    let own = world.rank();
    let throw = |partner: usize, round: u64| {
        source[words - 1] = round;
        if words == 1 { data.put(partner, 0, round) } else { data.put_slice(partner, 0, &source) }
    };
    // The last word is written last.
    let catch = |round: u64| {
        spin_until(|| data.load(words - 1) == round);
        Ok(())
    };
    let bare_throw = |partner: usize, round: u64| {
        if words > 1 {
            bare_source[words - 1] = round;
            // SAFETY: all but the last word at the partner, which reads them after it has seen that.
            unsafe { libc::memcpy(address(&bare, partner, 0).cast(), bare_source.as_ptr().cast(), size - 8) };
        }
        word(&bare, partner, words - 1).store(round, Ordering::Release);
    };
    let bare_catch = |round: u64| spin(word(&bare, own, words - 1), round);
    ping_pong(session, size, (throw, catch), (bare_throw, bare_catch))
}

/// Ours and the bare one: each throws at a partner, in a round, and catches what is thrown in one.
fn ping_pong(
    session: &Session,
    size: usize,
    (mut throw, mut catch): (impl FnMut(usize, u64) -> Result<()>, impl FnMut(u64) -> Result<()>),
    (mut bare_throw, mut bare_catch): (impl FnMut(usize, u64), impl FnMut(u64)),
) -> Result<Measured> {
    let (own, partner) = (session.world.rank(), session.partner());
    let (mut round, mut bare_round) = (0u64, 0u64);
    let operations = session.operations(2000, 8 << 20, size);
    let measured = session.latency(
        operations,
        size,
        |n| {
            let Some(partner) = partner else { return Ok(()) };
            for _ in 0..n {
                round += 1;
                if own == 0 {
                    throw(partner, round)?;
                    catch(round)?;
                } else {
                    catch(round)?;
                    throw(partner, round)?;
                }
            }
            Ok(())
        },
        |n| {
            let Some(partner) = partner else { return Ok(()) };
            for _ in 0..n {
                bare_round += 1;
                if own == 0 {
                    bare_throw(partner, bare_round);
                    bare_catch(bare_round);
                } else {
                    bare_catch(bare_round);
                    bare_throw(partner, bare_round);
                }
            }
            Ok(())
        },
    )?;
    Ok(one_way(measured))
}

/// Half of each round trip.
pub fn one_way(measured: Measured) -> Measured {
    measured.map(|time| time / 2.0)
}
