//! Puts of a world that the device does without a copy.

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
                // SAFETY: whole pages of this array, which no other code touches meanwhile.
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
