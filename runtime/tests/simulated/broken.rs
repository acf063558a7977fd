//! A context loses its connection to a rank while both live: its rank learns of that, not the context alone.

use bellwether_runtime::transport::Memory;
use bellwether_runtime::transport::sim::{Config, check};
use bellwether_runtime::{Completion, Error, Loss, Result, Simulated, ThreadContext, World};

use super::job;

/// Runs `program` with the job on three ranks of simulated networks, and gives the outcomes of rank 0 and of the others to `judge`.
fn with_a_broken_context(
    name: &str,
    program: impl Fn(&Simulated, World) -> Result<()> + Sync,
    judge: impl Fn(&str, &[Result<()>]),
) {
    check(name, 3, |seed| {
        let plain = Config::new(3, seed);
        let networks = [
            ("plain", plain.clone()),
            ("unserved", Config { served_asleep: false, ..plain.clone().wild() }),
            ("direct", Config { memory: Memory::Direct, ..plain.clone().wild() }),
            ("posted", Config { memory: Memory::Posted, ..plain.wild() }),
        ];
        for (network, config) in networks {
            let job = job(config);
            let outcomes = job.build(|builder| program(&job, builder.start()?)).expect("the job starts");
            judge(network, &outcomes);
        }
    });
}

fn is_lost<T: std::fmt::Debug>(outcome: &Result<T>) -> bool {
    matches!(outcome, Err(Error::PeerLost { rank: 1, cause: Loss::Disconnected, .. }))
}

/// Sends messages of a context to rank 1 that are lost on their way.
fn lose_messages(job: &Simulated, context: &ThreadContext, done: &Completion) -> Result<()> {
    for _ in 0..3 {
        context.operation().handled(done).invoke(1, (), |_, ()| ())?;
    }
    job.network().disconnect_contexts(0, 1);
    Ok(())
}

#[test]
fn a_world_ends_though_a_context_has_lost_its_messages() {
    let program = |job: &Simulated, world: World| {
        if world.rank() == 0 {
            let (context, done) = (world.context()?, Completion::new());
            // The first operation at a rank learns where its memory is.
            context.operation().invoke(1, (), |_, ()| ())?;
            lose_messages(job, &context, &done)?;
        }
        world.finish()
    };
    with_a_broken_context("leaving", program, |network, outcomes| {
        assert!(is_lost(&outcomes[0]), "{network}: {outcomes:?}");
        for other in &outcomes[1..] {
            assert!(
                matches!(other, Err(Error::PeerLost { rank: 0, cause: Loss::Left, .. })),
                "{network}: {outcomes:?}"
            );
        }
    });
}

#[test]
fn the_thread_of_a_world_learns_that_a_context_has_lost_its_messages() {
    let program = |job: &Simulated, world: World| {
        if world.rank() != 0 {
            let waited = world.wait_until(|| false);
            assert!(matches!(waited, Err(Error::PeerLost { rank: 0, .. })), "{waited:?}");
            return Ok(());
        }
        let (context, done) = (world.context()?, Completion::new());
        lose_messages(job, &context, &done)?;
        let waited = world.wait_completion(&done);
        assert!(is_lost(&waited), "{waited:?}");
        // The receipts end too.
        for _ in 0..1000 {
            let polled = world.poll();
            assert!(polled.is_ok() || is_lost(&polled), "{polled:?}");
            if let Some(outcome) = done.outcome() {
                assert!(is_lost(&outcome), "{outcome:?}");
                return Ok(());
            }
        }
        panic!("receipts that never come stay open");
    };
    with_a_broken_context("receipts", program, |network, outcomes| {
        assert!(outcomes.iter().all(Result::is_ok), "{network}: {outcomes:?}");
    });
}

/// The room of lost messages in the window of all contexts does not come back.
#[test]
fn a_context_does_not_wait_for_room_that_another_has_lost() {
    const MANY: usize = 64;
    let program = |job: &Simulated, world: World| {
        if world.rank() != 0 {
            let waited = world.wait_until(|| false);
            assert!(matches!(waited, Err(Error::PeerLost { rank: 0, .. })), "{waited:?}");
            return Ok(());
        }
        let context = world.context()?;
        context.invoke(1, (), |_, ()| ())?;
        job.network().disconnect_contexts(0, 1);
        let other = world.context()?;
        let lost = (0..MANY).find_map(|_| context.invoke(1, (), |_, ()| ()).err());
        let ended = (0..MANY).find_map(|_| other.invoke(1, (), |_, ()| ()).err());
        for error in lost.into_iter().chain(ended) {
            assert!(is_lost::<()>(&Err(error)), "another error");
        }
        // Later calls do not wait either.
        let later = other.invoke(1, (), |_, ()| ());
        assert!(is_lost(&later), "{later:?}");
        Ok(())
    };
    with_a_broken_context("room", program, |network, outcomes| {
        assert!(outcomes.iter().all(Result::is_ok), "{network}: {outcomes:?}");
    });
}
