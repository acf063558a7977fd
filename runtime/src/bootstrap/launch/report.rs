//! The report of a job that has failed: the first cause, then a line for each rank.

use std::fmt::Write;
use std::io;

use super::signals::signal_name;
use super::spec::{Cause, RankEnd};

/// Up to this many ranks, each has a line of its own; beyond it, neighbours that ended alike share
/// one.
const LINES: usize = 64;

/// The whole report. `last_lines` is what to repeat of the first cause's standard error.
pub(super) fn words(name: &str, cause: &Cause, ranks: &[RankEnd], last_lines: &[&[u8]]) -> String {
    let mut text = String::new();
    let (head, first) = headline(cause, ranks);
    if head.is_empty() {
        return text;
    }
    line(&mut text, format_args!("{name}: {head}"));
    if !last_lines.is_empty() {
        line(&mut text, format_args!("{name}: the last lines of its standard error:"));
        for last in last_lines {
            line(&mut text, format_args!("    {}", String::from_utf8_lossy(last)));
        }
    }
    // Print no statuses for a job that the user has ended, nor for a single rank: the cause says all.
    if ranks.len() > 1 && !matches!(cause, Cause::Signaled { .. } | Cause::OutputFailed { .. }) {
        statuses(&mut text, ranks, first);
    }
    text
}

/// Whose the errors are that were shown once: of each, its text and the ranks of `all` that ended with it. `only`: no rank has shown
/// another error.
pub(super) fn common(name: &str, errors: &[(&[u8], Vec<usize>)], only: bool, all: usize) -> String {
    let mut text = String::new();
    for (words, ranks) in errors {
        let which = match only {
            true => "the error above".to_string(),
            // Another rank's own may stand between that and this line.
            false => {
                let first = words.split(|&byte| byte == b'\n').next().unwrap_or_default();
                format!("the error above that begins \"{}\"", String::from_utf8_lossy(first).trim_end())
            }
        };
        match ranks.len() == all {
            true => line(&mut text, format_args!("{name}: {which} came on all ranks")),
            false => line(&mut text, format_args!("{name}: {which} came on ranks {}", ranges(ranks))),
        }
    }
    text
}

/// What happened, and to which rank first.
fn headline(cause: &Cause, ranks: &[RankEnd]) -> (String, Option<usize>) {
    let after = |rank: usize| ranks[rank].after.as_secs_f64();
    match cause {
        Cause::Failed { rank, pid, ended } => {
            let words = format!("rank {rank} (pid {pid}) failed first: {ended} after {:.2} s", after(*rank));
            (words, Some(*rank))
        }
        Cause::LeftEarly { rank, pid, joined } => {
            let missing = if *joined { "" } else { "without joining the world " };
            let words = format!(
                "rank {rank} (pid {pid}) ended with exit 0 {missing}after {:.2} s, while other ranks waited for it",
                after(*rank)
            );
            (words, Some(*rank))
        }
        Cause::TimedOut { limit, running } => {
            let running = match running.len() {
                0 => "no rank was running".into(),
                1 => format!("still running: rank {}", ranges(running)),
                _ => format!("still running: ranks {}", ranges(running)),
            };
            (format!("the job was ended: it ran longer than the {limit:?} it was allowed; {running}"), None)
        }
        Cause::Signaled { signal, .. } => (format!("ended by {}", signal_name(*signal)), None),
        Cause::HostLost { host, why } => {
            (format!("the job was ended: the connection to host {host} is lost: {why}"), None)
        }
        Cause::MemoryLost { why } => (format!("the job was ended: {why}"), None),
        Cause::OutputFailed { errno: libc::EPIPE } => (String::new(), None),
        Cause::OutputFailed { errno } => {
            let error = io::Error::from_raw_os_error(*errno);
            (format!("the job was ended: cannot write to standard output: {error}"), None)
        }
    }
}

fn statuses(text: &mut String, ranks: &[RankEnd], first: Option<usize>) {
    let mut from = 0;
    while from < ranks.len() {
        let alike = |rank: usize| {
            Some(rank) != first
                && ranks[rank].ended == ranks[from].ended
                && ranks[rank].told_to_end == ranks[from].told_to_end
        };
        let mut to = from + 1;
        while ranks.len() > LINES && Some(from) != first && to < ranks.len() && alike(to) {
            to += 1;
        }
        let what = status(&ranks[from]);
        if to - from > 1 {
            line(text, format_args!("  ranks {from}-{}: {}", to - 1, what.0));
        } else {
            let mark = if Some(from) == first { "  [first]" } else { "" };
            line(text, format_args!("  rank {from}: {}{}{mark}", what.0, what.1));
        }
        from = to;
    }
}

/// What became of a rank, and when.
fn status(end: &RankEnd) -> (String, String) {
    let after = format!(" after {:.2} s", end.after.as_secs_f64());
    let Some(ended) = end.ended else {
        return ("not started".into(), String::new());
    };
    let words = match end.told_to_end {
        Some(signal) if ended == super::Ended::Signaled(signal) => {
            format!("ended by the launcher ({})", signal_name(signal))
        }
        Some(signal) => format!("{ended}, told to end by the launcher ({})", signal_name(signal)),
        None => ended.to_string(),
    };
    (words, after)
}

/// `0, 2-5` for 0, 2, 3, 4, 5.
fn ranges(ranks: &[usize]) -> String {
    let mut text = String::new();
    let mut rest = ranks;
    while let [from, ..] = *rest {
        let run = rest.iter().enumerate().take_while(|&(i, &rank)| rank == from + i).count();
        let comma = if text.is_empty() { "" } else { ", " };
        let _ = match run {
            1 => write!(text, "{comma}{from}"),
            _ => write!(text, "{comma}{from}-{}", from + run - 1),
        };
        rest = &rest[run..];
    }
    text
}

fn line(text: &mut String, words: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{words}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::launch::Ended;
    use std::time::Duration;

    fn end(ended: Ended, told_to_end: Option<i32>) -> RankEnd {
        RankEnd { ended: Some(ended), after: Duration::from_millis(310), told_to_end }
    }

    #[test]
    fn names_the_first_once_and_every_rank() {
        let ranks = [end(Ended::Exited(1), None), end(Ended::Signaled(9), None), end(Ended::Signaled(15), Some(15))];
        let cause = Cause::Failed { rank: 1, pid: 77, ended: Ended::Signaled(9) };
        let expected = "\
bw: rank 1 (pid 77) failed first: killed by signal 9 (SIGKILL) after 0.31 s
bw: the last lines of its standard error:
    oh no
  rank 0: exit 1 after 0.31 s
  rank 1: killed by signal 9 (SIGKILL) after 0.31 s  [first]
  rank 2: ended by the launcher (SIGTERM) after 0.31 s
";
        assert_eq!(words("bw", &cause, &ranks, &[b"oh no"]), expected);
    }

    #[test]
    fn of_many_ranks_neighbours_share_a_line() {
        let mut ranks = vec![end(Ended::Signaled(15), Some(15)); 1000];
        ranks[500] = end(Ended::Exited(3), None);
        let cause = Cause::Failed { rank: 500, pid: 77, ended: Ended::Exited(3) };
        let text = words("bw", &cause, &ranks, &[]);
        assert!(text.contains("  ranks 0-499: ended by the launcher (SIGTERM)\n"), "{text}");
        assert!(text.contains("  rank 500: exit 3 after 0.31 s  [first]\n"), "{text}");
        assert_eq!(text.lines().count(), 4, "{text}");
    }

    #[test]
    fn errors_in_common_are_those_of_all_or_of_some() {
        assert_eq!(common("bw", &[], true, 4), "");
        let all = (b"Error: no\n".as_slice(), vec![0, 1, 2, 3]);
        assert_eq!(common("bw", std::slice::from_ref(&all), true, 4), "bw: the error above came on all ranks\n");
        let some = (b"error: other\r\nmore\n".as_slice(), vec![0, 1, 3]);
        assert_eq!(common("bw", std::slice::from_ref(&some), true, 5), "bw: the error above came on ranks 0-1, 3\n");
        let beside_another = common("bw", std::slice::from_ref(&some), false, 5);
        assert_eq!(beside_another, "bw: the error above that begins \"error: other\" came on ranks 0-1, 3\n");
        let two = common("bw", &[(all.0, vec![2, 4]), some], false, 5);
        assert!(two.contains("that begins \"Error: no\" came on ranks 2, 4\n"), "{two}");
        assert!(two.contains("that begins \"error: other\" came on ranks 0-1, 3\n"), "{two}");
    }

    #[test]
    fn ranges_are_short() {
        assert_eq!(ranges(&[0, 2, 3, 4, 7]), "0, 2-4, 7");
        assert_eq!(ranges(&[]), "");
    }
}
