//! Which machine a rank runs on.

use std::collections::HashMap;

use bytemuck::{Pod, Zeroable};

use crate::error::{Error, Result};
use crate::membership::nodes::Nodes;

/// The facts that must be equal for ranks to share memory and see each other's processes, and the machine's name.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(in crate::bootstrap) struct Machine {
    /// Random number of the running kernel: equal in all containers of one machine, and nowhere else.
    boot: [u8; 40],
    /// What the settings call it: one machine may stand for several. Two machines of one name stay two.
    given: [u8; 40],
    /// Zero-padded.
    name: [u8; 64],
    /// The namespace that process numbers belong to.
    processes: u64,
    pid: u64,
}

impl Machine {
    /// This one, which the settings may give a name of its own.
    pub(in crate::bootstrap) fn here(given: Option<&str>) -> Machine {
        let mut here = Machine::zeroed();
        let name = rustix::system::uname();
        fill(&mut here.name, given.map_or(name.nodename().to_bytes(), str::as_bytes));
        fill(&mut here.given, given.unwrap_or_default().as_bytes());
        match std::fs::read("/proc/sys/kernel/random/boot_id") {
            Ok(boot) => fill(&mut here.boot, boot.trim_ascii()),
            Err(_) => fill(&mut here.boot, name.nodename().to_bytes()),
        }
        here.processes = rustix::fs::stat("/proc/self/ns/pid").map_or(0, |stat| stat.st_ino);
        here.pid = std::process::id().into();
        here
    }

    /// The rank's process.
    pub(in crate::bootstrap) fn pid(&self) -> u32 {
        self.pid as u32
    }

    fn name(&self) -> String {
        let end = self.name.iter().position(|byte| *byte == 0).unwrap_or(self.name.len());
        String::from_utf8_lossy(&self.name[..end]).into_owned()
    }
}

fn fill(field: &mut [u8], value: &[u8]) {
    let shown = value.len().min(field.len());
    field[..shown].copy_from_slice(&value[..shown]);
}

/// Which host each rank is on. Every rank sees the same list, so all fail or none.
///
/// # Errors
/// [`Error::Start`] if ranks of one machine cannot share memory, with the first of them, and both names.
pub(in crate::bootstrap) fn hosts(machines: &[Machine]) -> Result<Nodes> {
    let mut firsts: Vec<usize> = Vec::new();
    let mut hosts = Vec::with_capacity(machines.len());
    let mut known = HashMap::new();
    for (rank, machine) in machines.iter().enumerate() {
        let host = *known.entry((machine.boot, machine.given)).or_insert_with(|| {
            firsts.push(rank);
            firsts.len() - 1
        });
        let first = firsts[host];
        if machine.processes != machines[first].processes {
            return Err(Error::Start(format!(
                "rank {rank} (host name {}) and rank {first} ({}) are in different containers of one machine and cannot \
                 see each other's processes; start all its ranks in one container, or, with an RDMA network, give each \
                 container a BELLWETHER_HOST of its own",
                machine.name(),
                machines[first].name(),
            )));
        }
        hosts.push(host as u32);
    }
    Ok(Nodes::of_each(&hosts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_host_are_found_and_other_containers_named() {
        let here = Machine::here(None);
        assert_ne!(here.boot, [0; 40]);
        assert_ne!(here.processes, 0);
        assert_eq!(hosts(&[here, here, here]).unwrap().count(), 1);

        let mut elsewhere = here;
        elsewhere.boot[3] ^= 1;
        let given = [Machine::here(Some("a")), Machine::here(Some("b"))];
        let nodes = hosts(&[here, elsewhere, here, elsewhere, given[0], given[1], given[0]]).unwrap();
        assert_eq!((0..7).map(|rank| nodes.of(rank)).collect::<Vec<_>>(), [0, 1, 0, 1, 2, 3, 2]);

        // A name that two machines were given by mistake.
        let mut namesake = given[0];
        namesake.boot[3] ^= 1;
        assert_eq!(hosts(&[given[0], namesake]).unwrap().count(), 2);

        let mut contained = here;
        contained.processes += 1;
        let text = hosts(&[elsewhere, here, contained]).unwrap_err().to_string();
        assert!(text.contains("rank 2") && text.contains("rank 1") && text.contains("different containers"), "{text}");
    }
}
