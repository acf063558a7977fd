//! The time of barriers when many ranks share two cores.

use super::cores;
use super::folder::Folder;
use super::kind::Kind;
use super::own::{Launch, Starter};
use super::task::{Measured, Task};

/// Cores that all ranks share.
const CORES: usize = 2;

/// Ranks of the two jobs. Few with `quick`, which only asks whether it works.
pub fn ranks(quick: bool) -> [usize; 2] {
    if quick { [4, 8] } else { [16, 128] }
}

/// The barrier of the small job; the barrier of the large job, beside that of the small one; a loop of the small job in which rank 0
/// computes between barriers.
///
/// # Errors
/// If a job fails.
pub fn measure(launch: Launch, transport: &'static str, folder: &Folder, quick: bool) -> anyhow::Result<Vec<Measured>> {
    let batches = if quick { 2 } else { 9 };
    let task = Task {
        kind: Kind::Crowded,
        sizes: vec![0],
        batches,
        shorten: 50,
        pin: false,
        quick,
        over_tcp: transport == "tcp",
    };
    let job = |ranks| Starter::new(ranks, launch, transport)?.measure(&task, folder);
    let [small, large] = ranks(quick);
    let (small, large) = cores::within(CORES, || anyhow::Ok((job(small)?, job(large)?)))??;
    let find = |of: &[Measured], name: &str| {
        let found = of.iter().find(|measured| measured.name == name).cloned();
        found.ok_or_else(|| anyhow::anyhow!("crowded: the ranks did not report {name}"))
    };
    // The ranks share cores on purpose, so their share of a CPU says nothing about noise.
    let named = |name: &str, measured: Measured| Measured { name: name.into(), on_cpu: 1.0, ..measured };
    let (of_small, of_large) = (find(&small, "barrier")?, find(&large, "barrier")?);
    Ok(vec![
        named("crowded", of_small.clone()),
        named("crowded-many", Measured { beside: of_small.ours, ..of_large }),
        named("crowded-computing", find(&small, "computing")?),
    ])
}
