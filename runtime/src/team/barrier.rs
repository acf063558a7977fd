//! A team's barrier.

use crate::error::Result;
use crate::settings::{Barrier, TeamBarrier};

use super::by_nodes;
use super::context::Context;
use super::hub::{ARRIVALS, BARRIER};

/// Nobody leaves before all members have entered.
pub(super) async fn enter(context: &Context) -> Result<()> {
    let wanted = match (context.algorithms.get().barrier, context.hub.engine.settings.barrier) {
        (TeamBarrier::Auto, Barrier::Central) => TeamBarrier::Central,
        (TeamBarrier::Auto, Barrier::Dissemination) => TeamBarrier::Dissemination,
        (wanted, _) => wanted,
    };
    // One wake-up for each member beats log2 n of them when ranks share cores.
    let crowded = || context.hub.engine.patience().crowded && context.size() > 2;
    match (wanted, context.nodes()) {
        (TeamBarrier::Auto | TeamBarrier::Nodes, Some(nodes)) => by_nodes::barrier(nodes).await,
        // Its one word wants every member within a pointer's reach.
        (TeamBarrier::Central, _) if context.is_mapped() => counted(context).await,
        (TeamBarrier::Auto, None) if context.is_mapped() && crowded() => counted(context).await,
        _ => dissemination(context).await,
    }
}

/// In round k, member r tells member r + 2^k that all it has heard of, and itself, have entered (Hensgen, Finkel and
/// Manber 1988). Each word has one sender, so a mate that is a barrier ahead does no harm.
async fn dissemination(context: &Context) -> Result<()> {
    let (rank, size) = (context.rank, context.size());
    let mut round = 0;
    while 1 << round < size {
        context.signal_word((rank + (1 << round)) % size, BARRIER + round)?;
        context.heard_word(BARRIER + round, 1).await?;
        round += 1;
    }
    Ok(())
}

/// Everyone counts up one word at member 0; the last one tells the others.
async fn counted(context: &Context) -> Result<()> {
    if count(context, ARRIVALS) {
        (0..context.size())
            .filter(|member| *member != context.rank)
            .try_for_each(|member| context.signal_word(member, BARRIER))
    } else {
        context.heard_word(BARRIER, 1).await
    }
}

/// Counts up a word at member 0, which is mapped. Whether this member is the last; then the word is 0 again.
pub(super) fn count(context: &Context, word: usize) -> bool {
    let (hub, first) = (&context.hub, context.world(0));
    let word = hub.signal(hub.word(context.slot, word));
    let last = hub.memory.count_up(first, word) + 1 == context.size() as u64;
    if last {
        hub.memory.clear(first, word);
    }
    last
}
