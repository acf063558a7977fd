//! Which transport carries a world, and how it is opened.

use std::sync::Arc;

use super::start::Opened;
use crate::bootstrap::job::JobMemory;
use crate::engine::{Network, Surroundings};
use crate::error::{Error, Result};
use crate::settings::{Settings, Transport};
use crate::transport::{Transport as _, shm, verbs};

/// Opens the network that the settings ask for; none where ranks reach each other by plain loads and stores. Here a
/// device is chosen, and nowhere else.
pub(super) fn open(settings: &Settings, job: &Arc<JobMemory>, surroundings: Surroundings<'_>) -> Result<Opened> {
    let hosts = job.ranks_here() < job.ranks();
    match settings.transport {
        Transport::Auto if !hosts => Ok(Opened::default()),
        Transport::ShmContract if hosts => Err(Error::Start(
            "BELLWETHER_TRANSPORT=shm-contract is shared memory, and ranks are on several hosts; set it to auto".into(),
        )),
        Transport::ShmContract => {
            let Surroundings { rank, node, layout, .. } = surroundings;
            let place = shm::Place {
                rank,
                job: Arc::clone(job),
                node: Arc::clone(node),
                layout,
                message_memory: settings.message_memory,
                cross_memory_attach: settings.cross_memory_attach,
            };
            let domain = shm::SlotDomain::new(place).map_err(|error| error.at("opening the network", rank))?;
            let network = Network::open(0, "shared memory by the contract", domain, surroundings)?;
            Ok(Opened { networks: vec![Box::new(network)], pace: None })
        }
        Transport::Auto | Transport::Verbs => {
            let Surroundings { rank, ranks, .. } = surroundings;
            let off = |why: String| {
                Error::Start(match hosts {
                    true => {
                        let other = (0..ranks).find(|other| !job.is_here(*other)).unwrap_or(0);
                        format!(
                            "ranks {rank} and {other} are on different hosts, which takes an RDMA network, but on that of \
                             rank {rank}: {why}; start all ranks on one host (`mpirun --host`, `srun --nodes=1`), or see \
                             `bellwether info`"
                        )
                    }
                    false => {
                        format!("BELLWETHER_TRANSPORT=verbs, but: {why}; set it to auto, or see `bellwether info`")
                    }
                })
            };
            let offers = verbs::offers(settings.verbs_device.as_deref()).map_err(off)?;
            let offer = offers.first().ok_or_else(|| off("there is no RDMA device".into()))?;
            let device = verbs::Device::new(rank, ranks, offer).map_err(off)?;
            let resource = device.resources().remove(0);
            let domain = device.open(&resource).map_err(|error| error.at("opening the network", rank))?;
            let network = Network::open(0, "verbs", domain, surroundings)?;
            Ok(Opened { networks: vec![Box::new(network)], pace: None })
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use rustix::mm::{MprotectFlags, mprotect};

    use crate::Threads;
    use crate::error::Result;
    use crate::settings::{Settings, Transport};

    /// The processor may not read the source: a copy would end the process. The device reads pages that it has pinned.
    #[test]
    #[ignore = "needs an RDMA device: ci/softroce"]
    fn a_long_put_from_symmetric_memory_is_read_by_the_device_alone() {
        const WORDS: usize = (256 << 10) / size_of::<u64>();
        let page = rustix::param::page_size();
        let settings = Settings { transport: Transport::Verbs, ..Settings::default() };
        let program = |world: &crate::World| -> Result<()> {
            // More by as much as lies outside of whole pages.
            let (source, target) = (world.alloc::<u64>(WORDS + page)?, world.alloc::<u64>(WORDS)?);
            let start = source.as_ptr_range().start;
            let first = start.align_offset(page);
            let values: Vec<u64> = (0..WORDS as u64).map(|word| word * 3 + 1).collect();
            source.write(first, &values);
            world.barrier()?;
            if world.rank() == 0 {
                let allow = |flags| {
                    // SAFETY: whole pages of this array, which nobody touches meanwhile.
                    unsafe { mprotect(start.add(first).cast(), size_of_val(&values[..]), flags) }.expect("whole pages");
                };
                allow(MprotectFlags::empty());
                target.put_from(1, 0, &source, first..first + WORDS)?;
                world.fence();
                allow(MprotectFlags::READ | MprotectFlags::WRITE);
            }
            world.barrier()?;
            if world.rank() == 1 {
                let mut came = vec![0; WORDS];
                target.read(0, &mut came);
                assert!(came == values);
            }
            world.barrier()
        };
        let ranks = Threads::new(2).deadline(Duration::from_secs(60)).settings(settings).run(program);
        ranks.expect("starts").into_iter().collect::<Result<()>>().expect("runs");
    }
}
