//! The time of collective calls with more ranks.

use super::folder::Folder;
use super::kind::Kind;
use super::own::{Launch, Starter};
use super::task::{Measured, Task};

/// Ranks of the jobs: a quarter, half, all.
pub const RANKS: [usize; 3] = [64, 128, 256];
/// The same where only asked whether it works.
pub const FEW: [usize; 3] = [4, 8, 16];

/// Each call with all ranks, beside the same call with a quarter of the ranks; an all-to-all beside that with half of them, since each
/// pair of ranks exchanges messages; an allocation beside a barrier of as many ranks.
///
/// # Errors
/// If a job fails.
pub fn measure(launch: Launch, transport: &'static str, folder: &Folder, quick: bool) -> anyhow::Result<Vec<Measured>> {
    // Ranks that share cores take as long for few operations as others for many.
    let task = Task {
        kind: Kind::Growth,
        sizes: vec![0],
        batches: if quick { 2 } else { 9 },
        shorten: 50,
        pin: false,
        quick,
        over_tcp: transport == "tcp",
    };
    let job = |ranks| Starter::new(ranks, launch, transport)?.measure(&task, folder);
    let [quarter, half, all] = if quick { FEW } else { RANKS }.map(job);
    let (quarter, half, all) = (quarter?, half?, all?);
    let beside = |what: &str, of: &[Measured], other: &str| -> anyhow::Result<Measured> {
        let find = |of: &[Measured], name: &str| of.iter().find(|measured| measured.name == name).cloned();
        let both = find(&all, what).zip(find(of, other));
        let (ours, other) = both.ok_or_else(|| anyhow::anyhow!("growth: the ranks did not report {what}"))?;
        // The ranks share cores on purpose, so the share of CPU time is no reason for doubt.
        Ok(Measured { name: format!("growth-{what}"), beside: other.ours, on_cpu: 1.0, ..ours })
    };
    Ok(vec![
        beside("barrier", &quarter, "barrier")?,
        beside("allreduce", &quarter, "allreduce")?,
        beside("alltoall", &half, "alltoall")?,
        beside("alloc", &all, "barrier")?,
    ])
}
