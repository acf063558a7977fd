//! How much memory this process may still take: the machine's, and its control group's.

use std::fs;

/// Bytes of a page. Asked of libc: the look-up in rustix reads the vDSO image, which is not mapped everywhere.
pub fn page_size() -> usize {
    // SAFETY: takes a number, touches no memory.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// Bytes that can still be had without swapping or being killed, as far as the system tells.
pub fn available() -> usize {
    machine().min(control_group().unwrap_or(usize::MAX))
}

/// Bytes of address space that this process may still map, and those that it may have in all.
pub fn address_space() -> (usize, usize) {
    let limit =
        rustix::process::getrlimit(rustix::process::Resource::As).current.map_or(usize::MAX, |limit| limit as usize);
    // Its first number is the size of the address space in pages.
    let pages = fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split(' ').next()?.parse::<usize>().ok()).unwrap_or(0);
    (limit.saturating_sub(pages * page_size()), limit)
}

fn machine() -> usize {
    let Ok(text) = fs::read_to_string("/proc/meminfo") else { return usize::MAX };
    text.lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<usize>().ok())
        .map_or(usize::MAX, |kib| kib << 10)
}

/// Bytes left below the tightest limit of this process's control group and its parents (version 2 or 1).
fn control_group() -> Option<usize> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mut least = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let (root, limit, usage) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max", "memory.current"),
            "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
            _ => continue,
        };
        let mut folder = format!("{root}{}", path.trim_end_matches('/'));
        while folder.len() >= root.len() {
            let read = |name| fs::read_to_string(format!("{folder}/{name}")).ok()?.trim().parse::<usize>().ok();
            if let (Some(limit), Some(usage)) = (read(limit), read(usage)) {
                let left = limit.saturating_sub(usage);
                least = Some(least.map_or(left, |l: usize| l.min(left)));
            }
            match folder.rfind('/') {
                Some(end) => folder.truncate(end),
                None => break,
            }
        }
    }
    least
}
