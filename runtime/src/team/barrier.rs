//! A team's barrier.

use super::by_nodes;
use super::context::Context;
use crate::error::Result;
use crate::settings::{Barrier, TeamBarrier};

/// Nobody leaves before all members have entered. Over a network the flags of this member's last barrier are in effect.
pub(super) async fn enter(context: &Context) -> Result<()> {
    match (choose(context), context.nodes()) {
        (TeamBarrier::Nodes, Some(nodes)) => by_nodes::barrier(nodes).await,
        (by, _) => context.assemble(by == TeamBarrier::Central).await,
    }
}

/// The algorithm, never [`TeamBarrier::Auto`].
#[inline]
pub(super) fn choose(context: &Context) -> TeamBarrier {
    let engine = &context.hub.engine;
    let wanted = match (context.algorithms.get().barrier, engine.settings.barrier) {
        (TeamBarrier::Auto, Barrier::Central) => TeamBarrier::Central,
        (TeamBarrier::Auto, Barrier::Dissemination) => TeamBarrier::Dissemination,
        (wanted, _) => wanted,
    };
    match wanted {
        TeamBarrier::Auto | TeamBarrier::Nodes if context.nodes().is_some() => TeamBarrier::Nodes,
        // The counter wants every member's memory mapped.
        TeamBarrier::Central if context.is_mapped() => TeamBarrier::Central,
        // One wake-up for each member beats log2 n of them when ranks share cores.
        TeamBarrier::Auto if context.is_mapped() && context.size() > 2 && engine.waiting.patience().crowded => {
            TeamBarrier::Central
        }
        _ => TeamBarrier::Dissemination,
    }
}
