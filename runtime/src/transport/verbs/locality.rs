//! Which devices are near the cores of this process.

use rustix::thread::{CpuSet, sched_getaffinity};

/// Whether a core that this process may use is on the NUMA node that `device` is attached to. Also true for devices whose node the system
/// does not tell, such as those in software.
pub fn shares_numa_node(device: &str) -> bool {
    let told = std::fs::read_to_string(format!("/sys/class/infiniband/{device}/device/local_cpulist"));
    match (told, sched_getaffinity(None)) {
        (Ok(told), Ok(allowed)) => meets(&told, &allowed),
        _ => true,
    }
}

/// Whether the list, such as `0-3,8`, names one of `allowed`. A list that names none, or is none, says nothing.
fn meets(list: &str, allowed: &CpuSet) -> bool {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    };
    let ranges: Vec<_> = list.trim().split(',').filter_map(range).collect();
    let most = CpuSet::MAX_CPU;
    ranges.is_empty() || ranges.into_iter().flatten().take_while(|core| *core < most).any(|core| allowed.is_set(core))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_near_if_it_shares_a_core() {
        let mut allowed = CpuSet::new();
        allowed.set(5);
        allowed.set(17);
        for (list, near) in [
            ("0-7\n", true),
            ("5", true),
            ("0-3,16-31\n", true),
            ("0-4,6", false),
            ("18-4000000000", false),
            ("\n", true),
            ("no list", true),
        ] {
            assert_eq!(meets(list, &allowed), near, "{list:?}");
        }
        assert!(shares_numa_node("no such device"));
    }
}
