//! Limits of this process and of its control group, which ranks inherit. Cheap: a few small files and system calls.

use std::fs;
use std::path::{Path, PathBuf};

use bellwether_runtime::membership::MAX_SLOTS;
use bellwether_runtime::transport::verbs;

use super::finding::Finding;

/// Descriptors that the launcher needs for a rank, and for all else, as `bellwether run` counts them.
const PER_RANK: u64 = 3;
const SPARE: u64 = 128;
/// Bytes of memory that a rank should find. Chosen: a rank with the default settings takes this for messages and its program.
const PER_RANK_MEMORY: u64 = 64 << 20;
/// Bytes of the job's file below which no rank starts. Chosen: less than the smallest rings and heap take.
const PER_RANK_FILE: u64 = 64 << 10;
/// Bytes of address space that a rank should find for its own memory and that of each rank of its host. Chosen: where there is less, heaps are small.
const PER_RANK_SPACE: u64 = 1 << 30;
/// Bytes that a rank over RDMA should be able to pin. Chosen: its message memory and a small heap.
const PINNED: u64 = 1 << 30;

/// How many ranks a job has.
#[derive(Debug, Clone, Copy)]
pub struct Ranks {
    /// On this host.
    pub here: usize,
    /// In all.
    pub all: usize,
    /// They are started through an agent: the limits of a shell here do not reach them.
    pub by_agent: bool,
}

/// Everything of this room.
pub fn findings(ranks: Ranks) -> Vec<Finding> {
    if let Some(finding) = too_many(ranks) {
        // No limit of the system helps then.
        return vec![finding, memfd()];
    }
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let groups = Groups::read(Path::new("/sys/fs/cgroup"), &groups);
    vec![
        open_files(limit(libc::RLIMIT_NOFILE), ranks),
        file_size(limit(libc::RLIMIT_FSIZE), ranks),
        address_space(limit(libc::RLIMIT_AS), ranks),
        memlock(limit(libc::RLIMIT_MEMLOCK), verbs::offers(None).is_ok_and(|offers| !offers.is_empty()), ranks),
        memfd(),
        memory(groups.memory.as_ref(), ranks),
        cpus(groups.cpus.as_ref(), ranks),
    ]
}

fn too_many(ranks: Ranks) -> Option<Finding> {
    let found = format!("{} asked on this host; a host can have {MAX_SLOTS}", ranks.here);
    let mend = format!("bellwether run -n {} --hosts ...  # with more hosts", ranks.all);
    (ranks.here > MAX_SLOTS).then(|| Finding::error("ranks", found, mend))
}

/// A resource limit: its soft value, and the hard value up to which this user may raise it. `None`: no limit.
type Limit = (Option<u64>, Option<u64>);

fn limit(resource: libc::__rlimit_resource_t) -> Limit {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes one `rlimit`.
    let known = unsafe { libc::getrlimit(resource, &raw mut limit) } == 0;
    let of = |bytes| (known && bytes != libc::RLIM_INFINITY).then_some(bytes);
    (of(limit.rlim_cur), of(limit.rlim_max))
}

fn words(limit: Option<u64>, show: impl Fn(u64) -> String) -> String {
    limit.map_or("no limit".into(), show)
}

/// Raises a limit: in the shell where this user may, else in the system's table, which holds from the next login on.
fn raise(ranks: Ranks, hard: Option<u64>, option: &str, item: &str, needed: Option<u64>) -> String {
    let value = needed.map_or("unlimited".into(), |needed| needed.to_string());
    if !ranks.by_agent && hard.is_none_or(|hard| needed.is_some_and(|needed| needed <= hard)) {
        return format!("ulimit -S -{option} {value}");
    }
    format!("echo '* - {item} {value}' | sudo tee -a /etc/security/limits.d/bellwether.conf  # then log in anew")
}

fn open_files((soft, hard): Limit, ranks: Ranks) -> Finding {
    let what = "open files";
    let launcher = (ranks.here as u64).saturating_mul(PER_RANK).saturating_add(SPARE);
    let rank = (ranks.all.saturating_sub(ranks.here) as u64).saturating_add(SPARE);
    let found = format!("{}, may be raised to {}", words(soft, |n| n.to_string()), words(hard, |n| n.to_string()));
    if hard.is_some_and(|hard| hard < launcher) {
        let found = format!("{found}; the launcher of {} ranks needs {launcher}", ranks.here);
        return Finding::error(what, found, raise(ranks, hard, "n", "nofile", Some(launcher.max(65536))));
    }
    if ranks.all > ranks.here && soft.is_some_and(|soft| soft < rank) {
        let found = format!("{found}; a rank that is connected by TCP to all ranks of other hosts needs {rank}");
        return Finding::warning(what, found, raise(ranks, hard, "n", "nofile", Some(rank)));
    }
    Finding::ok(what, found)
}

fn file_size((soft, hard): Limit, ranks: Ranks) -> Finding {
    let what = "file size";
    match soft {
        None => Finding::ok(what, "no limit"),
        Some(soft) => {
            let found = format!("files may have {}; the memory of a job is a file", bytes(soft));
            match soft.checked_div(ranks.here.max(1) as u64) {
                Some(..PER_RANK_FILE) => Finding::error(what, found, raise(ranks, hard, "f", "fsize", None)),
                // Whether it is enough depends on the settings: the two ranks below try it.
                Some(..PER_RANK_SPACE) => Finding::warning(what, found, raise(ranks, hard, "f", "fsize", None)),
                _ => Finding::ok(what, found),
            }
        }
    }
}

fn address_space((soft, hard): Limit, ranks: Ranks) -> Finding {
    let what = "address space";
    match soft {
        Some(soft) if soft < PER_RANK_SPACE.saturating_mul(1 + ranks.here as u64) => {
            let found = format!(
                "{} for a process; a rank maps the memory of all {} ranks of its host, so heaps are small, or there is none",
                bytes(soft),
                ranks.here
            );
            Finding::warning(what, found, raise(ranks, hard, "v", "as", None))
        }
        soft => Finding::ok(what, words(soft, bytes)),
    }
}

fn memlock((_, hard): Limit, has_device: bool, ranks: Ranks) -> Finding {
    let what = "memlock";
    // A rank raises its limit as far as it may.
    let found = match hard {
        None => "no limit".into(),
        Some(hard) => format!("{} may be pinned", bytes(hard)),
    };
    match hard {
        Some(hard) if has_device && hard < PINNED => {
            let found = format!("{found}; over RDMA a rank pins the memory that others reach");
            Finding::warning(what, found, raise(ranks, Some(hard), "l", "memlock", None))
        }
        _ if !has_device => Finding::ok(what, format!("{found}; no RDMA device needs it")),
        _ => Finding::ok(what, found),
    }
}

fn memfd() -> Finding {
    let what = "shared memory";
    // SAFETY: the name is a C string literal; the descriptor, if any, is closed below.
    let fd = unsafe { libc::memfd_create(c"bellwether".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        let error = std::io::Error::last_os_error();
        return Finding::error(
            what,
            format!("memfd_create: {error}; ranks of a host share their memory by it"),
            "docker run --security-opt seccomp=unconfined ...",
        );
    }
    // SAFETY: the descriptor was just made, and no other code uses it.
    unsafe { libc::close(fd) };
    Finding::ok(what, "memfd_create works; /dev/shm is not used")
}

/// The tightest limits on the way up from a process's control groups.
#[derive(Debug, Default, PartialEq)]
struct Groups {
    memory: Option<Memory>,
    cpus: Option<Quota>,
}

/// A limit on memory.
#[derive(Debug, PartialEq)]
struct Memory {
    limit: u64,
    used: u64,
    file: PathBuf,
}

/// A limit on processor time.
#[derive(Debug, PartialEq)]
struct Quota {
    cpus: f64,
    file: PathBuf,
    /// The contents of the file if there is no limit.
    none: &'static str,
}

impl Groups {
    /// Reads version 1 and 2 below `root`, for a process whose `/proc/self/cgroup` is `own`.
    fn read(root: &Path, own: &str) -> Groups {
        let mut groups = Groups::default();
        for line in own.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            let has = |name| controllers.split(',').any(|controller| controller == name);
            let top = if controllers.is_empty() { root.to_owned() } else { root.join(controllers) };
            let mut folder = top.join(path.trim_start_matches('/'));
            loop {
                if controllers.is_empty() {
                    groups.enter_memory(&folder, "memory.max", "memory.current");
                    let text = fs::read_to_string(folder.join("cpu.max")).unwrap_or_default();
                    let mut words = text.split_whitespace().map(|word| word.parse::<f64>().ok());
                    if let (Some(Some(quota)), Some(Some(period))) = (words.next(), words.next()) {
                        groups.enter_cpus(Quota { cpus: quota / period, file: folder.join("cpu.max"), none: "max" });
                    }
                }
                if has("memory") {
                    groups.enter_memory(&folder, "memory.limit_in_bytes", "memory.usage_in_bytes");
                }
                if has("cpu") {
                    let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<f64>().ok();
                    if let (Some(quota), Some(period)) = (number("cpu.cfs_quota_us"), number("cpu.cfs_period_us"))
                        && quota > 0.0
                    {
                        let file = folder.join("cpu.cfs_quota_us");
                        groups.enter_cpus(Quota { cpus: quota / period, file, none: "-1" });
                    }
                }
                if folder == top || !folder.pop() {
                    break;
                }
            }
        }
        groups
    }

    fn enter_memory(&mut self, folder: &Path, limit: &str, used: &str) {
        let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
        let (Some(most), Some(used)) = (number(limit), number(used)) else { return };
        // The page cache of files counts as used, but the kernel frees it when ranks need memory.
        let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let of_files = ["total_inactive_file", "inactive_file"].iter().find_map(|name| {
            stat.lines().find_map(|line| line.strip_prefix(*name)?.strip_prefix(' ')?.trim().parse::<u64>().ok())
        });
        let used = used.saturating_sub(of_files.unwrap_or(0));
        let left = most.saturating_sub(used);
        if self.memory.as_ref().is_none_or(|known| left < known.limit.saturating_sub(known.used)) {
            self.memory = Some(Memory { limit: most, used, file: folder.join(limit) });
        }
    }

    fn enter_cpus(&mut self, quota: Quota) {
        if self.cpus.as_ref().is_none_or(|known| quota.cpus < known.cpus) {
            self.cpus = Some(quota);
        }
    }
}

fn memory(group: Option<&Memory>, ranks: Ranks) -> Finding {
    let what = "memory";
    // Version 1 writes a number above any memory for no limit.
    let Some(Memory { limit, used, file }) = group.filter(|memory| memory.limit < 1 << 60) else {
        return Finding::ok(what, "no limit by a control group");
    };
    let left = limit.saturating_sub(*used);
    let found = format!("{} left of {} by the control group", bytes(left), bytes(*limit));
    if left >= PER_RANK_MEMORY.saturating_mul(ranks.here as u64) {
        return Finding::ok(what, found);
    }
    let none = if file.ends_with("memory.max") { "max" } else { "-1" };
    let found = format!(
        "{found}: less than {} for each of {} ranks; the kernel kills ranks that take more",
        bytes(PER_RANK_MEMORY),
        ranks.here
    );
    Finding::warning(what, found, format!("echo {none} | sudo tee {}", file.display()))
}

fn cpus(quota: Option<&Quota>, ranks: Ranks) -> Finding {
    let what = "CPUs";
    let allowed = allowed_cpus();
    match quota {
        Some(Quota { cpus, file, none }) if *cpus < allowed.min(ranks.here) as f64 => {
            let found = format!(
                "{allowed} may be used by {} ranks, but the control group gives the time of {cpus:.1}: ranks are stopped \
                 when it is used up, and all others wait for them",
                ranks.here
            );
            Finding::warning(what, found, format!("echo {none} | sudo tee {}", file.display()))
        }
        _ => Finding::ok(what, format!("{allowed}, no quota below what the ranks use")),
    }
}

/// CPUs that the scheduler may use for this process, whatever the quota.
pub fn allowed_cpus() -> usize {
    // SAFETY: a set of bits, for which zeros are valid.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: writes one set of that size.
    let known = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) } == 0;
    // SAFETY: reads the set.
    let count = unsafe { libc::CPU_COUNT(&set) } as usize;
    // More CPUs than the set has room for: the system's count.
    if known { count } else { std::thread::available_parallelism().map_or(1, usize::from) }
}

fn bytes(count: u64) -> String {
    match count {
        ..0x400 => format!("{count} B"),
        0x400..0x10_0000 => format!("{} KiB", count >> 10),
        0x10_0000..0x4000_0000 => format!("{} MiB", count >> 20),
        _ => format!("{:.1} GiB", count as f64 / (1u64 << 30) as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    const RANKS: Ranks = Ranks { here: 4, all: 8, by_agent: false };

    #[test]
    fn a_limit_is_raised_by_who_may() {
        let finding = open_files((Some(100), Some(100)), RANKS);
        assert_eq!(finding.state, State::Error);
        assert!(finding.mend.unwrap().contains("nofile 65536"));
        let finding = open_files((Some(130), Some(4096)), RANKS);
        assert_eq!((finding.state, finding.mend.as_deref()), (State::Warning, Some("ulimit -S -n 132")));
        assert_eq!(open_files((Some(140), Some(4096)), RANKS).state, State::Ok);
        let finding = open_files((Some(130), Some(4096)), Ranks { by_agent: true, ..RANKS });
        assert!(finding.mend.unwrap().contains("limits.d"), "a shell's limit does not go to another host");
        assert_eq!(open_files((Some(130), Some(4096)), Ranks { all: 4, ..RANKS }).state, State::Ok, "no other host");
    }

    #[test]
    fn more_ranks_than_a_host_can_have_are_no_matter_of_limits() {
        let finding = |ranks| too_many(Ranks { here: ranks, all: ranks, by_agent: false });
        assert_eq!(finding(MAX_SLOTS), None);
        let finding = finding(MAX_SLOTS + 1).expect("it is one too many");
        assert!(finding.state == State::Error && finding.found.contains("a host can have 65536"), "{finding:?}");
        let all = findings(Ranks { here: 1 << 20, ..RANKS });
        assert!(all.iter().all(|finding| finding.what != "open files"), "{all:?}");
    }

    #[test]
    fn pinned_memory_matters_where_there_is_a_device() {
        let finding = memlock((Some(65536), Some(65536)), true, RANKS);
        assert_eq!(finding.state, State::Warning);
        assert!(finding.mend.unwrap().contains("memlock unlimited"));
        assert_eq!(memlock((Some(65536), Some(65536)), false, RANKS).state, State::Ok);
        assert_eq!(memlock((Some(65536), None), true, RANKS).state, State::Ok, "a rank raises it itself");
    }

    /// A control group is made of files. Real ones cannot be made by every user, nor in every container.
    fn groups(files: &[(&str, &str)], own: &str) -> (tempfile::TempDir, Groups) {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = root.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let groups = Groups::read(root.path(), own);
        (root, groups)
    }

    #[test]
    fn the_tightest_control_group_on_the_way_up_counts() {
        let second = [
            ("job/memory.max", "max\n"),
            ("job/memory.current", "1000\n"),
            ("memory.max", "104857600\n"),
            ("memory.current", "4857600\n"),
            // Files that were read fill the group of the job.
            ("job/memory.stat", "anon 500\ninactive_file 400\n"),
            ("job/cpu.max", "50000 100000\n"),
            ("cpu.max", "max 100000\n"),
        ];
        let first = [
            ("memory/job/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/job/memory.usage_in_bytes", "1000\n"),
            ("memory/memory.limit_in_bytes", "104857600\n"),
            ("memory/memory.usage_in_bytes", "4857600\n"),
            ("cpu,cpuacct/job/cpu.cfs_quota_us", "50000\n"),
            ("cpu,cpuacct/job/cpu.cfs_period_us", "100000\n"),
            ("cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
            ("cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
        ];
        let cases = [
            (&second[..], "0::/job\n", ["memory.max", "job/cpu.max"], "max"),
            (
                &first,
                "4:memory:/job\n3:cpu,cpuacct:/job\n0::/\n",
                ["memory/memory.limit_in_bytes", "cpu,cpuacct/job/cpu.cfs_quota_us"],
                "-1",
            ),
        ];
        for (files, own, [of_memory, of_cpus], none) in cases {
            let (root, groups) = groups(files, own);
            let mend = |file| format!("echo {none} | sudo tee {}", root.path().join(file).display());
            let finding = memory(groups.memory.as_ref(), RANKS);
            assert_eq!((finding.state, finding.mend), (State::Warning, Some(mend(of_memory))));
            let finding = memory(groups.memory.as_ref(), Ranks { here: 1, all: 1, by_agent: false });
            assert_eq!(finding.state, State::Ok, "95 MiB are enough for one: {finding:?}");
            let finding = cpus(groups.cpus.as_ref(), RANKS);
            assert_eq!((finding.state, finding.mend), (State::Warning, Some(mend(of_cpus))));
        }
        // The memory is used up by the page cache, which the kernel frees.
        let full = [
            ("memory.max", "1073741824\n"),
            ("memory.current", "1073741824\n"),
            ("memory.stat", "inactive_file 1000000000\n"),
        ];
        assert_eq!(memory(groups(&full, "0::/\n").1.memory.as_ref(), RANKS).state, State::Ok);
        let quota = Quota { cpus: 0.5, file: "cpu.max".into(), none: "max" };
        assert_eq!(cpus(Some(&quota), Ranks { here: 0, ..RANKS }).state, State::Ok, "they do not use so much");
        let (_, none) = groups(&[("memory.max", "max\n"), ("memory.current", "7\n")], "0::/\n");
        assert_eq!(none, Groups::default());
        assert_eq!(memory(None, RANKS).state, State::Ok);
    }
}
