//! Comparisons between hosts: properties that must be equal on all hosts, or must differ.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::time::Duration;

use super::finding::Finding;
use super::side::Facts;
use crate::shell::quoted;

/// Clocks that differ by less are in step: `make` and logs are read in seconds.
const IN_STEP: Duration = Duration::from_secs(1);

/// A host, by the user's name for it, with its facts.
pub struct Host<'a> {
    pub name: &'a str,
    pub facts: &'a Facts,
    /// Nanoseconds by which its clock is ahead of ours, and by how much that may be wrong.
    pub ahead: Option<(i64, u64)>,
}

/// Compares all hosts. `own` is the path of this command; each host knows that of the program.
pub fn findings(hosts: &[Host<'_>], own: &str) -> Vec<Finding> {
    let mut all = vec![names(hosts)];
    let own: Vec<_> = hosts.iter().map(|host| (host.name, own, host.facts.own)).collect();
    all.push(equal("this command", "hosts of another version are refused", &own));
    let of_program =
        hosts.iter().filter_map(|host| Some((host.name, host.facts.program_path.as_deref()?, host.facts.program)));
    let program: Vec<_> = of_program.collect();
    if !program.is_empty() {
        all.push(equal("program", "ranks of another build refuse to start", &program));
    }
    all.push(cpus(hosts));
    all.push(clocks(hosts));
    all
}

fn names(hosts: &[Host<'_>]) -> Finding {
    let what = "names of hosts";
    for (number, host) in hosts.iter().enumerate() {
        for other in &hosts[..number] {
            let is_one = host.facts.machine == other.facts.machine;
            if is_one && host.name != other.name {
                return Finding::warning(
                    what,
                    format!("{} and {} are one host", other.name, host.name),
                    format!("bellwether run --hosts {}:N ...  # name it once", other.name),
                );
            }
            if !is_one && host.facts.hostname == other.facts.hostname {
                return Finding::error(
                    what,
                    format!(
                        "{} and {} both call themselves {}: `bellwether run` takes the one for the other, and errors name the wrong one",
                        other.name, host.name, host.facts.hostname
                    ),
                    format!("sudo hostnamectl set-hostname {0}  # on {0}", host.name),
                );
            }
        }
    }
    Finding::ok(what, "all differ")
}

/// Checks files that should be equal; the version that most hosts have counts as right. `files` are host, path and digest. A job may start
/// although they differ: a stripped copy is of the same build.
fn equal(what: &str, why: &str, files: &[(&str, &str, Option<u64>)]) -> Finding {
    let here: Vec<(&str, &str, u64)> =
        files.iter().filter_map(|(name, path, digest)| Some((*name, *path, (*digest)?))).collect();
    let count = |wanted: u64| here.iter().filter(|(_, _, digest)| *digest == wanted).count();
    // If several digests are equally frequent, the first one counts.
    let Some((source, from, most)) = here.iter().copied().rev().max_by_key(|(_, _, digest)| count(*digest)) else {
        // A host reports a missing file itself.
        return Finding::ok(what, "not compared");
    };
    let wrong: Vec<_> = here.iter().filter(|(_, _, digest)| *digest != most).collect();
    if wrong.is_empty() {
        return Finding::ok(what, format!("{from} is equal on all hosts"));
    }
    let at =
        |host: &str, path: &str| String::from_utf8_lossy(&quoted(OsStr::new(&format!("{host}:{path}")))).into_owned();
    let names: Vec<&str> = wrong.iter().map(|(name, ..)| *name).collect();
    let copies: Vec<String> =
        wrong.iter().map(|(name, path, _)| format!("scp {} {}", at(source, from), at(name, path))).collect();
    Finding::warning(
        what,
        format!("{from} is another file on {} than on {source}; {why}", names.join(", ")),
        copies.join(" && "),
    )
}

/// Levels of x86-64 (psABI, section Micro-Architecture Levels), and some of the features that each adds, by their names in the kernel.
const LEVELS: [(&str, &[&str]); 3] = [
    ("x86-64-v2", &["sse4_2", "popcnt", "cx16", "ssse3"]),
    ("x86-64-v3", &["avx2", "bmi1", "bmi2", "fma", "movbe", "f16c"]),
    ("x86-64-v4", &["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"]),
];

/// Other features that a compiler uses with `-march=native`.
const OF_ONE_CPU: [&str; 23] = [
    "aes",
    "pclmulqdq",
    "sha_ni",
    "vaes",
    "vpclmulqdq",
    "gfni",
    "adx",
    "rdrand",
    "rdseed",
    "abm",
    "fsgsbase",
    "clflushopt",
    "clwb",
    "sse4a",
    "xsavec",
    "avx_vnni",
    "avx512_vnni",
    "avx512_bf16",
    "avx512vbmi",
    "avx512_vbmi2",
    "avx512_bitalg",
    "avx512_vpopcntdq",
    "avx512ifma",
];

/// The features of a set that a compiler may use without being asked for each.
fn known<'a>(arch: &str, set: &BTreeSet<&'a str>) -> BTreeSet<&'a str> {
    let of_levels = || LEVELS.iter().flat_map(|(_, features)| features.iter()).chain(&OF_ONE_CPU);
    // On other architectures all features count.
    set.iter().copied().filter(|feature| arch != "x86_64" || of_levels().any(|known| known == feature)).collect()
}

fn cpus(hosts: &[Host<'_>]) -> Finding {
    let what = "CPU features";
    let Some(first) = hosts.first() else { return Finding::ok(what, "not compared") };
    if let Some(other) = hosts.iter().find(|host| host.facts.arch != first.facts.arch) {
        return Finding::error(
            what,
            format!("{} is {}, {} is {}", first.name, first.facts.arch, other.name, other.facts.arch),
            format!("bellwether run --hosts {} ...  # hosts of one kind", first.name),
        );
    }
    let sets: Vec<BTreeSet<&str>> =
        hosts.iter().map(|host| host.facts.features.iter().map(String::as_str).collect()).collect();
    let common = sets.iter().skip(1).fold(sets[0].clone(), |all, set| all.intersection(set).copied().collect());
    let lacking = hosts.iter().zip(&sets).find_map(|(host, set)| {
        let missing: Vec<&str> = sets
            .iter()
            .flat_map(|other| known(&first.facts.arch, other).difference(set).copied().collect::<Vec<_>>())
            .collect();
        let missing: BTreeSet<&str> = missing.into_iter().collect();
        (!missing.is_empty()).then(|| (host.name, missing.into_iter().collect::<Vec<_>>().join(" ")))
    });
    match lacking {
        None => Finding::ok(what, "equal on all hosts"),
        Some((name, missing)) => {
            let level = LEVELS.iter().take_while(|(_, features)| features.iter().all(|one| common.contains(one)));
            let least = if first.facts.arch == "x86_64" { "x86-64" } else { "generic" };
            let level = level.last().map_or(least, |(level, _)| level);
            Finding::warning(
                what,
                format!("{name} lacks {missing}: a program built for the CPU of another host is killed there (SIGILL)"),
                format!("RUSTFLAGS='-C target-cpu={level}' cargo build --release"),
            )
        }
    }
}

fn clocks(hosts: &[Host<'_>]) -> Finding {
    let what = "clocks";
    let known = hosts.iter().filter_map(|host| Some((host.name, host.ahead?)));
    let worst = known.clone().max_by_key(|(_, (ahead, unsure))| ahead.unsigned_abs().saturating_sub(*unsure));
    let Some((name, (ahead, unsure))) = worst else { return Finding::ok(what, "not compared") };
    let off = Duration::from_nanos(ahead.unsigned_abs());
    if off.saturating_sub(Duration::from_nanos(unsure)) <= IN_STEP {
        let most = known.map(|(_, (ahead, unsure))| ahead.unsigned_abs().saturating_add(unsure)).max().unwrap_or(0);
        return Finding::ok(what, format!("within {:.1} ms of this host's", most as f64 / 1e6));
    }
    let way = if ahead > 0 { "ahead of" } else { "behind" };
    Finding::warning(
        what,
        format!("{name} is {:.1} s {way} this host: times of logs and of files cannot be compared", off.as_secs_f64()),
        format!("sudo chronyc makestep  # on {name}"),
    )
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    fn facts(hostname: &str, machine: &str) -> Facts {
        Facts { hostname: hostname.into(), machine: machine.into(), arch: "x86_64".into(), ..Facts::default() }
    }

    fn all(hosts: &[(&'static str, &Facts)]) -> Vec<Finding> {
        let hosts: Vec<Host<'_>> =
            hosts.iter().map(|(name, facts)| Host { name, facts, ahead: Some((0, 1000)) }).collect();
        findings(&hosts, "/bin/bellwether")
    }

    fn only(findings: &[Finding], what: &str) -> (State, String) {
        let wrong: Vec<&Finding> = findings.iter().filter(|finding| finding.state != State::Ok).collect();
        assert!(wrong.iter().all(|finding| finding.what == what), "{findings:?}");
        let mend = wrong.first().and_then(|finding| finding.mend.clone());
        (wrong.first().map_or(State::Ok, |finding| finding.state), mend.unwrap_or_default())
    }

    #[test]
    fn hosts_that_fit_have_nothing_to_mend() {
        assert_eq!(only(&all(&[("a", &facts("a", "1")), ("b", &facts("b", "2"))]), "").0, State::Ok);
    }

    #[test]
    fn two_hosts_of_one_name_and_two_names_of_one_host() {
        let (state, mend) = only(&all(&[("a", &facts("n", "1")), ("b", &facts("n", "2"))]), "names of hosts");
        assert_eq!((state, &*mend), (State::Error, "sudo hostnamectl set-hostname b  # on b"));
        let (state, mend) = only(&all(&[("a", &facts("n", "1")), ("b", &facts("n", "1"))]), "names of hosts");
        assert_eq!((state, &*mend), (State::Warning, "bellwether run --hosts a:N ...  # name it once"));
    }

    #[test]
    fn the_file_that_differs_is_replaced_by_that_of_most() {
        let program = |name: &str, digest| Facts {
            program: Some(digest),
            program_path: Some("/of us/app".into()),
            ..facts(name, name)
        };
        let (a, b, c) = (program("a", 7), program("b", 8), program("c", 8));
        let (state, mend) = only(&all(&[("a", &a), ("b", &b), ("c", &c)]), "program");
        assert_eq!((state, &*mend), (State::Warning, "scp 'b:/of us/app' 'a:/of us/app'"));
        assert_eq!(only(&all(&[("a", &a), ("b", &b)]), "program").1, "scp 'a:/of us/app' 'b:/of us/app'");
        let d = program("d", 9);
        let (_, mend) = only(&all(&[("a", &a), ("b", &b), ("c", &c), ("d", &d)]), "program");
        assert_eq!(mend, "scp 'b:/of us/app' 'a:/of us/app' && scp 'b:/of us/app' 'd:/of us/app'");
    }

    #[test]
    fn features_that_a_host_lacks_lower_the_level_to_build_for() {
        let with = |name: &str, features: &[&str]| Facts {
            features: features.iter().map(|feature| (*feature).to_owned()).collect(),
            ..facts(name, name)
        };
        let second = ["sse4_2", "popcnt", "cx16", "ssse3", "nonsense"];
        let third = [&second[..4], &["avx2", "bmi1", "bmi2", "fma", "movbe", "f16c"]].concat();
        let (a, b) = (with("a", &third), with("b", &second));
        let (state, mend) = only(&all(&[("a", &a), ("b", &b)]), "CPU features");
        assert_eq!((state, &*mend), (State::Warning, "RUSTFLAGS='-C target-cpu=x86-64-v2' cargo build --release"));
        let c = with("c", &[&third[..], &["sha_ni"]].concat());
        let (state, mend) = only(&all(&[("a", &a), ("c", &c)]), "CPU features");
        assert_eq!((state, &*mend), (State::Warning, "RUSTFLAGS='-C target-cpu=x86-64-v3' cargo build --release"));
        let arm = |name: &str, features: &[&str]| Facts { arch: "aarch64".into(), ..with(name, features) };
        let (state, mend) = only(&all(&[("d", &arm("d", &["sve"])), ("e", &arm("e", &[]))]), "CPU features");
        assert_eq!((state, &*mend), (State::Warning, "RUSTFLAGS='-C target-cpu=generic' cargo build --release"));
        let arm = Facts { arch: "aarch64".into(), ..facts("c", "c") };
        assert_eq!(only(&all(&[("a", &a), ("c", &arm)]), "CPU features").0, State::Error);
    }

    #[test]
    fn a_clock_is_wrong_if_it_is_surely_wrong() {
        let facts = facts("a", "1");
        for (ahead, unsure, state) in [
            (2_000_000_000, 1000, State::Warning),
            (-2_000_000_000, 1000, State::Warning),
            (2_000_000_000, 1_500_000_000, State::Ok),
            (900_000_000, 0, State::Ok),
        ] {
            let host = Host { name: "a", facts: &facts, ahead: Some((ahead, unsure)) };
            assert_eq!(clocks(&[host]).state, state, "{ahead} {unsure}");
        }
    }
}
