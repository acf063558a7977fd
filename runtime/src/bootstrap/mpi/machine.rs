//! Which machine a rank runs on.

use bytemuck::{Pod, Zeroable};

use crate::error::{Error, Result};

/// What must be equal for ranks to share memory and see each other's processes, and what to call it.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Machine {
    /// Random number of the running kernel: equal in all containers of one machine, and nowhere else.
    boot: [u8; 40],
    /// Zero-padded.
    name: [u8; 64],
    /// The namespace that process numbers belong to.
    processes: u64,
    pid: u64,
}

impl Machine {
    pub(super) fn here() -> Machine {
        let mut here = Machine::zeroed();
        let name = rustix::system::uname();
        fill(&mut here.name, name.nodename().to_bytes());
        match std::fs::read("/proc/sys/kernel/random/boot_id") {
            Ok(boot) => fill(&mut here.boot, boot.trim_ascii()),
            Err(_) => fill(&mut here.boot, name.nodename().to_bytes()),
        }
        here.processes = rustix::fs::stat("/proc/self/ns/pid").map_or(0, |stat| stat.st_ino);
        here.pid = std::process::id().into();
        here
    }

    /// The rank's process.
    pub(super) fn pid(&self) -> u32 {
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

/// Checks that all ranks run on one machine. Every rank sees the same list, so all fail or none.
///
/// # Errors
/// [`Error::Start`] with the first rank that is elsewhere, and both names.
pub(super) fn check_same(machines: &[Machine]) -> Result<()> {
    for (rank, machine) in machines.iter().enumerate() {
        let (here, there) = (machines[0].name(), machine.name());
        if machine.boot != machines[0].boot {
            return Err(Error::Start(format!(
                "rank {rank} is on machine {there} and rank 0 on {here}, but this version reaches the ranks of one \
                 machine only; start them all on one (`mpirun --host {here}:{}`, `srun --nodes=1`)",
                machines.len()
            )));
        }
        if machine.processes != machines[0].processes {
            return Err(Error::Start(format!(
                "rank {rank} (host name {there}) and rank 0 ({here}) are in different containers of one machine and \
                 cannot see each other's processes; start all ranks in one container"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_machine_or_container_is_named() {
        let here = Machine::here();
        assert_ne!(here.boot, [0; 40]);
        assert_ne!(here.processes, 0);
        check_same(&[here, here, here]).unwrap();

        let mut elsewhere = here;
        elsewhere.boot[3] ^= 1;
        elsewhere.name = [0; 64];
        fill(&mut elsewhere.name, b"node17");
        let text = check_same(&[here, here, elsewhere, here]).unwrap_err().to_string();
        assert!(text.contains("rank 2 is on machine node17"), "{text}");
        assert!(text.contains(&format!("rank 0 on {}", here.name())), "{text}");
        assert!(text.contains("one machine only"), "{text}");

        let mut contained = here;
        contained.processes += 1;
        let text = check_same(&[here, contained]).unwrap_err().to_string();
        assert!(text.contains("rank 1") && text.contains("different containers"), "{text}");
    }
}
