//! `bellwether info`: what this machine offers a job.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use bellwether_runtime::membership::interfaces;
use bellwether_runtime::transport::{Attributes, Capabilities, Limits, Locality, Resource, survey, verbs};
use bellwether_runtime::{KNOWN_SETTINGS, SettingValues, Settings, Threads, World};
use clap::Args;

use crate::columns::{self, table};
use crate::print::print;

/// Show what this machine offers: CPUs, memory, huge pages, what ranks may do to each other.
#[derive(Args)]
pub struct Info {}

impl Info {
    /// Prints the table.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let rows = [
            ("system", system()),
            ("CPUs allowed", cpus()),
            ("memory", memory()),
            ("huge pages", huge_pages()),
            ("transparent huge pages", transparent_huge_pages()),
            ("memfd", possible("memfd_create", memfd())),
            ("membarrier", possible("global expedited", membarrier())),
            ("cross-memory attach", cross_memory_attach()),
            ("open files", open_files()),
            ("mpirun", in_path("mpirun")),
            ("srun", in_path("srun")),
        ];
        let width = columns::width();
        let mut text = String::from("This machine\n");
        text += &table(2, width, &rows.map(|(what, value)| [what.to_owned(), value]));
        text += "\nA rank alone on it\n";
        let settings = Settings::from_env()?;
        // Here the rank is a thread.
        let mut of_thread = settings.clone();
        of_thread.static_data = false;
        match Threads::new(1).settings(of_thread).run(World::receipt) {
            Ok(receipts) => {
                let rows = receipts.into_iter().flatten().map(|(what, value)| [what.to_string(), value.to_string()]);
                text += &table(2, width, &rows.collect::<Vec<_>>());
            }
            // The rest may tell why.
            Err(error) => text += &format!("  {error}\n"),
        }
        text += "\nTransports, by the contract that all share\n";
        for (resource, attributes) in survey(&settings)? {
            text += &transport(&resource, &attributes, width);
        }
        text += "\nNetwork interfaces, in the order in which other hosts try them for TCP\n";
        let rows = interfaces::here().into_iter().map(|interface| {
            let addresses: Vec<_> = interface.addresses.iter().map(IpAddr::to_string).collect();
            [interface.name, format!("{:.1} Gbit/s", interface.bandwidth / 125e6), addresses.join(" ")]
        });
        text += &table(2, width, &rows.collect::<Vec<_>>());
        text += "\nRDMA devices, best first\n";
        match verbs::offers(settings.verbs_device.as_deref()) {
            Ok(offers) => offers.iter().for_each(|offer| text += &format!("  {offer}\n")),
            Err(why) => text += &format!("  none: {why}\n"),
        }
        text += "\nSettings\n";
        let rows = KNOWN_SETTINGS.iter().filter(|known| known.public).map(|known| {
            let meaning = match known.values {
                SettingValues::Words(_) => format!("{}: {}", known.meaning, known.values),
                SettingValues::Described(_) => known.meaning.to_owned(),
            };
            [known.name.to_owned(), known.value(&settings), known.origin().to_owned(), meaning]
        });
        text += &table(2, width, &rows.collect::<Vec<_>>());
        for (name, near) in Settings::unknown_in_env() {
            text += &format!("  {name} is set, but is not a setting; did you mean {near}?\n");
        }
        print(text)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// A transport's capabilities, as text.
fn transport(resource: &Resource, attributes: &Attributes, width: usize) -> String {
    let reach = match resource.locality {
        Locality::Process => "ranks of this process",
        Locality::Node => "ranks of this node",
        Locality::Network => "any rank",
    };
    let [gigabytes, nanoseconds, millions] =
        [resource.bandwidth / 1e9, resource.latency * 1e9, resource.message_rate / 1e6];
    let mut rows = Vec::new();
    let mut line = |what: &str, value: String| rows.push([what.to_owned(), value]);
    line("estimated", format!("{gigabytes:.1} GB/s, {nanoseconds:.0} ns, {millions:.0} million messages/s"));
    line("protection", resource.protection.to_string());
    line("native", names(attributes.capabilities.without(attributes.emulated)));
    line("emulated", names(attributes.emulated));
    line("put", limits(&attributes.put));
    line("get", limits(&attributes.get));
    line("messages", limits(&attributes.am));
    line(
        "atomics",
        format!("32 bits: {}, 64 bits: {}", sets(attributes.atomics.fetch32), sets(attributes.atomics.fetch64)),
    );
    line(
        "needs",
        if attributes.needs_target_progress { "the target's progress" } else { "nothing of the target" }.into(),
    );
    let when =
        if resource.locality == Locality::Network { "once it was talked to, 0 before" } else { "at the receiver" };
    line("memory per peer", format!("{} B {when}", attributes.memory_per_peer));
    line(
        "interfaces",
        match attributes.max_interfaces {
            1 => "1 a rank".into(),
            most => format!("{most} a rank at most, each with queues and connections of its own"),
        },
    );
    let head = format!("  {} ({}): reaches {reach}\n", resource.transport, resource.device);
    head + &table(4, width, &rows)
}

fn names(capabilities: Capabilities) -> String {
    let names: Vec<_> = capabilities.names().map(|name| name.to_lowercase().replace('_', "-")).collect();
    if names.is_empty() { "nothing".into() } else { names.join(" ") }
}

fn limits(limits: &Limits) -> String {
    let bytes = |count: usize| size_of_bytes(count as u64);
    let short =
        if limits.max_short == 0 { "none short".into() } else { format!("short to {}", bytes(limits.max_short)) };
    format!(
        "{short}, packed to {}, zero-copy to {} in {} pieces",
        bytes(limits.max_bcopy),
        bytes(limits.max_zcopy),
        limits.max_iov
    )
}

fn sets(operations: u32) -> String {
    format!("{} operations", operations.count_ones())
}

/// Bytes for people.
fn size_of_bytes(bytes: u64) -> String {
    if bytes < 1024 { format!("{bytes} B") } else { size(bytes / 1024) }
}

/// The first line of a small file of the kernel's.
fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn system() -> String {
    let kernel = read("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".into());
    format!("Linux {kernel}, {}", std::env::consts::ARCH)
}

fn cpus() -> String {
    let status = read("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let list = list.unwrap_or_default().trim();
    let count: usize = list.split(',').filter_map(cpus_in).sum();
    let online = read("/sys/devices/system/cpu/online").unwrap_or_default();
    let online: usize = online.split(',').filter_map(cpus_in).sum();
    format!("{count} of {online} ({list})")
}

/// How many CPUs `2-5` or `7` stands for.
fn cpus_in(range: &str) -> Option<usize> {
    let (from, to) = range.split_once('-').unwrap_or((range, range));
    let (from, to): (usize, usize) = (from.parse().ok()?, to.parse().ok()?);
    Some(to.checked_sub(from)? + 1)
}

/// A value in kB from /proc/meminfo, or a count for those without a unit.
fn meminfo(key: &str) -> Option<u64> {
    let text = read("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

fn memory() -> String {
    let (Some(total), Some(free)) = (meminfo("MemTotal"), meminfo("MemAvailable")) else {
        return "unknown".into();
    };
    let mut text = format!("{}, {} available", size(total), size(free));
    if let Some(limit) = cgroup_limit() {
        text += &format!(", limited to {} by the control group", size(limit / 1024));
    }
    text
}

/// The memory limit of the control group this process is in, in bytes.
fn cgroup_limit() -> Option<u64> {
    let groups = read("/proc/self/cgroup")?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let path = format!("/sys/fs/cgroup{}/memory.max", group.trim_end_matches('/'));
    read(&path)?.parse().ok()
}

/// kB for people.
fn size(kb: u64) -> String {
    match kb as f64 {
        kb if kb >= 1024.0 * 1024.0 * 1024.0 => format!("{:.1} TiB", kb / 1024.0 / 1024.0 / 1024.0),
        kb if kb >= 1024.0 * 1024.0 => format!("{:.1} GiB", kb / 1024.0 / 1024.0),
        kb if kb >= 1024.0 => format!("{:.0} MiB", kb / 1024.0),
        kb => format!("{kb:.0} KiB"),
    }
}

fn huge_pages() -> String {
    let mut pools = Vec::new();
    for pool in fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten() {
        let name = pool.file_name().to_string_lossy().into_owned();
        let kb = name.strip_prefix("hugepages-").and_then(|n| n.strip_suffix("kB")?.parse().ok());
        let count = |file| fs::read_to_string(pool.path().join(file)).ok()?.trim().parse::<u64>().ok();
        if let (Some(kb), Some(all), Some(free)) = (kb, count("nr_hugepages"), count("free_hugepages")) {
            pools.push((kb, all, free));
        }
    }
    pools.sort_unstable();
    if pools.is_empty() {
        return "none: the kernel has no pool".into();
    }
    let words = pools.iter().map(|&(kb, all, free)| format!("{} pages: {free} of {all} free", size(kb)));
    words.collect::<Vec<_>>().join(", ")
}

/// The chosen one of `always [madvise] never`.
fn chosen(path: &str) -> String {
    let text = read(path).unwrap_or_default();
    let chosen = text.split_whitespace().find_map(|w| w.strip_prefix('[')?.strip_suffix(']'));
    chosen.unwrap_or("unknown").to_owned()
}

fn transparent_huge_pages() -> String {
    let private = chosen("/sys/kernel/mm/transparent_hugepage/enabled");
    let shared = chosen("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    format!("{private} for private memory, {shared} for shared memory")
}

fn possible(how: &str, result: std::io::Result<()>) -> String {
    match result {
        Ok(()) => format!("yes ({how})"),
        Err(error) => format!("no ({how}: {error})"),
    }
}

fn memfd() -> std::io::Result<()> {
    // SAFETY: the name is a C string literal; the descriptor, if any, is closed below.
    let fd = unsafe { libc::memfd_create(c"bellwether".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made, and no other code uses it.
    unsafe { libc::close(fd) };
    Ok(())
}

fn membarrier() -> std::io::Result<()> {
    const QUERY: i32 = 0;
    const GLOBAL_EXPEDITED: i64 = 1 << 1;
    // SAFETY: the query takes plain numbers and changes nothing.
    let commands = unsafe { libc::syscall(libc::SYS_membarrier, QUERY, 0, 0) };
    match commands {
        ..0 => Err(std::io::Error::last_os_error()),
        bits if bits & GLOBAL_EXPEDITED != 0 => Ok(()),
        _ => Err(std::io::ErrorKind::Unsupported.into()),
    }
}

fn cross_memory_attach() -> String {
    let scope = read("/proc/sys/kernel/yama/ptrace_scope");
    match scope.as_deref() {
        None => "yes, between processes of one user (no Yama in this kernel)".into(),
        Some("0") => "yes, between processes of one user (Yama ptrace_scope 0)".into(),
        Some("1") => {
            "only of a process's own children, so not between ranks without CAP_SYS_PTRACE (Yama ptrace_scope 1)".into()
        }
        Some(n) => format!("only with CAP_SYS_PTRACE (Yama ptrace_scope {n})"),
    }
}

fn open_files() -> String {
    let limits = read("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let mut words = line.unwrap_or_default().split_whitespace();
    match (words.next(), words.next()) {
        (Some(soft), Some(hard)) => format!("{soft}, may be raised to {hard}"),
        _ => "unknown".into(),
    }
}

fn in_path(program: &str) -> String {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found: Option<PathBuf> =
        std::env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| path.is_file());
    found.map_or_else(|| "not in PATH".into(), |path| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists() {
        assert_eq!("0-3,7,10-11".split(',').filter_map(cpus_in).sum::<usize>(), 7);
        assert_eq!(cpus_in(""), None);
    }

    #[test]
    fn sizes() {
        assert_eq!(size(4), "4 KiB");
        assert_eq!(size(2048), "2 MiB");
        assert_eq!(size(3 << 19), "1.5 GiB");
        assert_eq!(size(1 << 30), "1.0 TiB");
    }
}
