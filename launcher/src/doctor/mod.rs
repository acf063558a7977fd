//! `bellwether doctor`: what would keep a job from starting or running well, and the commands that mend it.

mod agents;
mod compare;
mod finding;
mod launchers;
mod limits;
mod output;
mod reach;
mod side;
mod tried;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use serde_json::json;

use self::agents::Agent;
use self::compare::Host;
use self::finding::{Finding, State};
use self::limits::Ranks;
use self::reach::End;
use self::side::{Address, Down, Examine, Facts, Outcome, Peer, SIDE, Up};
use crate::columns::{self, table};
use crate::hosts::{self, HostOptions, HostSlots};
use crate::print::print;
use crate::run;

/// Most findings between hosts that are shown. A fault of the network concerns many pairs of hosts.
const SHOWN: usize = 8;
/// How often clocks are read. The reading that took the least time counts.
const READINGS: usize = 5;

/// Look for what keeps a job from starting or running well, on this host or on several.
///
/// Each finding that is not `ok` ends in the command that mends it. This command changes nothing itself. It reads limits and control
/// groups, tries whether ranks start and may read each other's memory, and compares the program with the launchers in PATH. Over
/// several hosts it starts itself on each as `bellwether run` does, compares what the hosts are, and has each call all addresses of
/// all others.
#[derive(Args)]
#[command(after_help = "Exit status:
  0    a job can run; there may be warnings
  1    there is an error
  2    wrong use of this command, or the output cannot be written

  bellwether doctor
  bellwether doctor --hosts node1,node2 ./my-program
  bellwether doctor --json | jq '.hosts[].findings[] | select(.state != \"ok\")'")]
pub struct Doctor {
    #[command(flatten)]
    hosts: HostOptions,

    /// Ranks on each host [default: as many as are written behind the host, or its CPUs]
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = run::ranks)]
    ranks: Option<usize>,

    /// How long a host may take to answer: 90s, 500ms, 2m
    #[arg(long, value_name = "TIME", value_parser = run::limit, default_value = "60s")]
    timeout: Duration,

    /// Print everything that was examined as JSON
    #[arg(long)]
    json: bool,

    /// The program that is to run
    #[arg(value_name = "PROGRAM")]
    program: Option<String>,
}

/// Runs a hidden command, if the arguments name one.
pub fn hidden() -> Option<ExitCode> {
    // A name or an argument of a user's command need not be UTF-8.
    let mut arguments = std::env::args_os().skip(1);
    Some(match arguments.next()?.to_str()? {
        SIDE => side::serve(),
        tried::TARGET => tried::target(),
        tried::READER => tried::reader(arguments),
        _ => return None,
    })
}

/// The errors that explain that a job of `ranks` ranks did not start here, as far as they are cheap to find. Each line ends in the
/// command that mends it.
pub fn explanations(ranks: usize) -> Vec<String> {
    let findings = limits::findings(Ranks { here: ranks, all: ranks, by_agent: false });
    findings
        .into_iter()
        .filter(|finding| finding.state == State::Error)
        .filter_map(|finding| Some(format!("{}: {}; mend: {}", finding.what, finding.found, finding.mend?)))
        .collect()
}

/// Findings by host, and between hosts.
#[derive(Default)]
struct Report {
    /// The one host is this one.
    is_here: bool,
    hosts: Vec<(String, Vec<Finding>)>,
    between: Vec<Finding>,
}

impl Doctor {
    /// Prints what it finds.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let places = self.hosts.hosts()?.unwrap_or_default();
        let report = if hosts::only_here(&places)?.is_some() { self.here(&places) } else { self.elsewhere(&places)? };
        let all = || report.hosts.iter().flat_map(|(_, findings)| findings).chain(&report.between);
        let worst = all().map(|finding| finding.state).max().unwrap_or(State::Ok);
        let text = if self.json { report.json(worst) } else { report.table(columns::width()) };
        print(text)?;
        Ok(if worst == State::Error { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    fn here(&self, places: &[HostSlots]) -> Report {
        let slots = places.iter().try_fold(0usize, |sum, place| Some(sum.saturating_add(place.slots?)));
        let ranks = self.ranks.or(slots.filter(|slots| *slots > 0));
        let Facts { hostname, findings, .. } = side::examine(self.program.as_deref(), ranks, 0, false);
        Report { is_here: true, hosts: vec![(hostname, findings)], between: Vec::new() }
    }

    fn elsewhere(&self, places: &[HostSlots]) -> anyhow::Result<Report> {
        // A machine file may name a host again later on.
        let mut hosts: Vec<HostSlots> = Vec::new();
        for place in places {
            match hosts.iter_mut().find(|host| host.name == place.name) {
                Some(host) => host.slots = host.slots.zip(place.slots).map(|(one, more)| one.saturating_add(more)),
                None => hosts.push(place.clone()),
            }
        }
        let mut report = Report::default();
        let mut agents = Vec::new();
        for (place, host) in hosts.iter().zip(hosts::commands_of(SIDE, &hosts, &self.hosts.agent)?) {
            report.hosts.push((place.name.clone(), Vec::new()));
            match Agent::start(&place.name, host.command) {
                Ok(agent) => agents.push((report.hosts.len() - 1, agent)),
                Err(finding) => report.hosts.last_mut().expect("it has just come").1.push(finding),
            }
        }
        self.examine(&hosts, &mut agents, &mut report)?;
        Ok(report)
    }

    /// Asks all hosts at the same time, one question after the other. A host that does not answer is left out from then on.
    fn examine(
        &self,
        hosts: &[HostSlots],
        agents: &mut Vec<(usize, Agent)>,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let folder = std::env::current_dir().context("cannot find this folder")?.display().to_string();
        // Lines of JSON hold no other variables.
        let plain =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        let env: Vec<(String, String)> = plain.filter(|(name, _)| is_passed(name)).collect();
        let slots = |place: &HostSlots| self.ranks.or(place.slots);
        let all = hosts.iter().fold(0, |sum: usize, place| sum.saturating_add(slots(place).unwrap_or(1)));
        for (host, agent) in agents.iter_mut() {
            let here = slots(&hosts[*host]);
            let (folder, env, program) = (folder.clone(), env.clone(), self.program.clone());
            let elsewhere = all.saturating_sub(here.unwrap_or(1));
            agent.ask(&Down::Examine(Examine { folder, env, program, here, elsewhere }));
        }
        let mut facts = self.collect(agents, report, |up| if let Up::Facts(facts) = up { Some(*facts) } else { None });
        for (host, facts) in &mut facts {
            report.hosts[*host].1.append(&mut facts.findings);
        }

        let peers: Vec<(usize, Peer)> = facts
            .iter()
            .map(|(host, facts)| {
                let (port, token, addresses) = (facts.port, facts.token.clone(), facts.addresses.clone());
                (*host, Peer { port, token, addresses })
            })
            .collect();
        for (host, agent) in agents.iter_mut() {
            let others = peers.iter().filter(|(other, _)| other != host).map(|(_, peer)| peer.clone());
            agent.ask(&Down::Reach(others.collect()));
        }
        let reached = self.collect(agents, report, |up| if let Up::Reached(all) = up { Some(all) } else { None });
        report.between.extend(network(hosts, &facts, &reached));

        let clocks = self.clocks(agents, report);
        let compared: Vec<Host<'_>> = facts
            .iter()
            .map(|(host, facts)| {
                let ahead = clocks.iter().find(|(other, _)| other == host).map(|(_, ahead)| *ahead);
                Host { name: &hosts[*host].name, facts, ahead }
            })
            .collect();
        if compared.len() > 1 {
            let own = std::env::current_exe().map_or_else(|_| "bellwether".into(), |path| path.display().to_string());
            report.between.extend(compare::findings(&compared, &own));
        }
        Ok(())
    }

    /// The answers of all hosts that give one.
    fn collect<T>(
        &self,
        agents: &mut Vec<(usize, Agent)>,
        report: &mut Report,
        wanted: impl Fn(Up) -> Option<T>,
    ) -> Vec<(usize, T)> {
        let (until, mut all) = (Instant::now() + self.timeout, Vec::new());
        agents.retain_mut(|(host, agent)| {
            let answer = agent.answer(until).and_then(|up| {
                let other = || {
                    let found = "what answers there is another version of this command";
                    Finding::error("agent", found, format!("ssh {} bellwether --version", agent.name))
                };
                wanted(up).ok_or_else(other)
            });
            match answer {
                Ok(answer) => all.push((*host, answer)),
                Err(finding) => {
                    report.hosts[*host].1.push(finding);
                    return false;
                }
            }
            true
        });
        all
    }

    /// How far each host's clock is ahead of ours, in nanoseconds, and the uncertainty of that.
    fn clocks(&self, agents: &mut Vec<(usize, Agent)>, report: &mut Report) -> Vec<(usize, (i64, u64))> {
        let mut all = Vec::new();
        agents.retain_mut(|(host, agent)| {
            let mut best: Option<(i64, u64)> = None;
            for _ in 0..READINGS {
                let (before, began) = (side::now(), Instant::now());
                agent.ask(&Down::Clock);
                match agent.answer(began + self.timeout) {
                    Ok(Up::Clock(theirs)) => {
                        let unsure = (began.elapsed().as_nanos() / 2) as u64;
                        let ahead = theirs.wrapping_sub(before.saturating_add(unsure)) as i64;
                        if best.is_none_or(|(_, known)| unsure < known) {
                            best = Some((ahead, unsure));
                        }
                    }
                    Ok(_) => break,
                    Err(finding) => {
                        report.hosts[*host].1.push(finding);
                        return false;
                    }
                }
            }
            all.extend(best.map(|best| (*host, best)));
            true
        });
        all
    }
}

/// Whether `bellwether run` hands this variable to ranks of other hosts.
fn is_passed(name: &str) -> bool {
    let is_place = ["BELLWETHER_JOB", "BELLWETHER_RANKS", "BELLWETHER_RANK", "BELLWETHER_SIZE"].contains(&name);
    let begins = ["BELLWETHER_", "RUST_"].iter().any(|prefix| name.starts_with(prefix));
    (begins || ["PATH", "LD_LIBRARY_PATH"].contains(&name)) && !is_place
}

/// Findings from the calls between hosts.
fn network(hosts: &[HostSlots], facts: &[(usize, Facts)], reached: &[(usize, Vec<Vec<Outcome>>)]) -> Vec<Finding> {
    let end = |host: usize, addresses| End { name: &hosts[host].name, addresses };
    let known = |host: usize| facts.iter().find(|(other, _)| *other == host).map(|(_, facts)| facts);
    let (mut all, mut pairs) = (Vec::new(), 0);
    for (from, outcomes) in reached {
        let Some(own) = known(*from) else { continue };
        let others = facts.iter().filter(|(other, _)| other != from);
        for ((to, theirs), outcomes) in others.zip(outcomes) {
            if own.addresses == theirs.addresses && is_one_machine(own, theirs) {
                continue;
            }
            pairs += 1;
            let addresses: (&[Address], &[Address]) = (&own.addresses, &theirs.addresses);
            all.extend(reach::pair(end(*from, addresses.0), end(*to, addresses.1), outcomes));
        }
    }
    if pairs == 0 {
        return not_tried(hosts, facts.len(), reached.len());
    }
    if all.is_empty() {
        let silent = facts.iter().find(|(host, _)| reached.iter().all(|(from, _)| from != host));
        return vec![Finding::ok(
            "network",
            match silent {
                None => "each host reaches all others".into(),
                Some((host, _)) => format!("reached where it was tried; {} did not try", hosts[*host].name),
            },
        )];
    }
    // Errors first.
    all.sort_by_key(|finding| std::cmp::Reverse(finding.state));
    let more = all.len().saturating_sub(SHOWN);
    all.truncate(SHOWN);
    if let Some(last) = all.last_mut().filter(|_| more > 0) {
        last.found += &format!("; and {more} more of the kind");
    }
    all
}

/// The finding that no call went from one of `hosts` to another, though `answered` of them have answered, and `called` have reported their
/// calls. One host has no other to call.
fn not_tried(hosts: &[HostSlots], answered: usize, called: usize) -> Vec<Finding> {
    if hosts.len() < 2 {
        return Vec::new();
    }
    let (why, then) = match (answered, called) {
        (0 | 1, _) => ("fewer than two hosts have answered", "again, when they answer"),
        (_, 0) => ("no host has reported its calls in time", "with a longer --timeout"),
        _ => ("the hosts are one machine", "with the names of several machines"),
    };
    let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
    let mend = format!("bellwether doctor --hosts {}  # {then}", names.join(","));
    vec![Finding::warning("network", format!("not tried: {why}"), mend)]
}

/// Whether one kernel runs both, whatever the settings call them (BELLWETHER_HOST).
fn is_one_machine(one: &Facts, other: &Facts) -> bool {
    let boot = |facts: &Facts| facts.machine.split(' ').next().map(str::to_owned);
    boot(one) == boot(other)
}

impl Report {
    fn json(&self, worst: State) -> String {
        let hosts = self.hosts.iter().map(|(host, findings)| json!({ "host": host, "findings": findings }));
        let all = json!({
            "state": worst,
            "hosts": hosts.collect::<Vec<_>>(),
            "between": self.between,
        });
        format!("{all:#}\n")
    }

    fn table(&self, width: usize) -> String {
        let mut text = String::new();
        let is_one = self.hosts.len() == 1;
        for (host, findings) in &self.hosts {
            text += &if self.is_here { format!("This host, {host}\n") } else { format!("{host}\n") };
            // With several hosts, only the findings that are not ok.
            let shown: Vec<&Finding> = findings.iter().filter(|finding| is_one || finding.state != State::Ok).collect();
            text += &rows(&shown, width);
            if shown.is_empty() {
                text += &format!("  all {} that was examined is ok\n", findings.len());
            }
        }
        if !self.between.is_empty() {
            text += "Between the hosts\n";
            text += &rows(&self.between.iter().collect::<Vec<_>>(), width);
        }
        let all = || self.hosts.iter().flat_map(|(_, findings)| findings).chain(&self.between);
        let count = |state| all().filter(|finding| finding.state == state).count();
        text += &match (count(State::Error), count(State::Warning)) {
            (0, 0) => "Nothing to mend.\n".to_owned(),
            (errors, warnings) => format!("Errors: {errors}, warnings: {warnings}.\n"),
        };
        text
    }
}

fn rows(findings: &[&Finding], width: usize) -> String {
    let mut rows = Vec::new();
    for finding in findings {
        rows.push([finding.what.clone(), finding.state.to_string(), finding.found.clone()]);
        rows.extend(finding.mend.iter().map(|mend| [String::new(), String::new(), format!("mend: {mend}")]));
    }
    table(2, width, &rows)
}
