//! The same last words of several ranks, shown once. Pure: lines and endings in, lines out.
//!
//! When `main` returns an error on every rank, each prints it, and then ends. The first is passed on at once. Another
//! rank's that begins alike is held back until that rank ends, and is then dropped and counted. It is passed on after all
//! if it turns out to differ, if the rank says or does something else, or if the rank is still there after [`PATIENCE`].

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long words that were shown already, as another rank's, are held back while their rank does not end. Far longer than a
/// process takes from `main` to its end, and no longer than a reader minds.
const PATIENCE: Duration = Duration::from_millis(250);

/// Bytes of last words that are compared; longer ones are passed on.
const LONGEST: usize = 16 << 10;

/// How a line begins that may begin a rank's last words: what the standard library prints of an error that `main`
/// returns, and what many programs and parsers of arguments print themselves.
const BEGINNINGS: [&[u8]; 2] = [b"Error:", b"error:"];

/// The last words of ranks that have failed, and the lines of running ranks that may become last words.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    /// The lines of running ranks.
    open: BTreeMap<usize, Words>,
    /// The last words of ranks that failed.
    ended: Vec<Last>,
}

/// A rank's words from the line that begins with an error.
#[derive(Debug)]
struct Words {
    text: Vec<u8>,
    /// Its last line begins with an error, too.
    beginning: bool,
    /// They have not been passed on since then.
    held: Option<(Instant, Vec<u8>)>,
}

#[derive(Debug)]
struct Last {
    text: Vec<u8>,
    ranks: Vec<usize>,
    /// The lines that were dropped, as they would have been passed on, until the words of one of `ranks` are passed on.
    dropped: Option<Vec<u8>>,
}

impl Repeats {
    /// Takes lines of a rank, each with this tag, and appends what is to be passed on now to `out`.
    pub(super) fn lines(&mut self, rank: usize, lines: &[u8], tag: &[u8], now: Instant, out: &mut Vec<u8>) {
        for line in lines.split_inclusive(|&byte| byte == b'\n') {
            self.line(rank, line, line.strip_prefix(tag).unwrap_or(line), now, out);
        }
    }

    fn line(&mut self, rank: usize, line: &[u8], text: &[u8], now: Instant, out: &mut Vec<u8>) {
        let begins = BEGINNINGS.iter().any(|beginning| text.starts_with(beginning));
        let before = self.open.remove(&rank);
        let mut words = match before {
            // Neighbouring lines that all begin with an error belong together.
            Some(words) if !begins || words.beginning => words,
            before => {
                release(before, out);
                if !begins {
                    return out.extend_from_slice(line);
                }
                let held = Some((now, Vec::new()));
                Words { text: Vec::new(), beginning: true, held }
            }
        };
        words.text.extend_from_slice(text);
        words.beginning = begins;
        if words.text.len() > LONGEST {
            release(Some(words), out);
            return out.extend_from_slice(line);
        }
        match &mut words.held {
            Some((_, held)) => {
                held.extend_from_slice(line);
                if !self.is_known(rank, &words.text) {
                    out.append(&mut words.held.take().expect("they are held").1);
                }
            }
            None => out.extend_from_slice(line),
        }
        self.open.insert(rank, words);
    }

    /// Whether another rank's words, which were passed on, begin with these.
    fn is_known(&self, rank: usize, text: &[u8]) -> bool {
        let others = self.open.iter().filter(|(other, words)| **other != rank && words.held.is_none());
        let mut known = others.map(|(_, words)| &words.text).chain(self.ended.iter().map(|last| &last.text));
        known.any(|known| known.starts_with(text))
    }

    /// A rank has ended, and all that it had to say has been taken.
    pub(super) fn ended(&mut self, rank: usize, failed: bool, out: &mut Vec<u8>) {
        let Some(words) = self.open.remove(&rank) else { return };
        let said = |other: &Words| other.held.is_none() && other.text == words.text;
        let known = self.ended.iter().position(|last| last.text == words.text);
        match (words.held, known) {
            (held, Some(at)) if failed => {
                let last = &mut self.ended[at];
                last.ranks.push(rank);
                if held.is_none() {
                    last.dropped = None;
                }
            }
            (Some((_, held)), None) if failed && self.open.values().any(said) => {
                self.ended.push(Last { text: words.text, ranks: vec![rank], dropped: Some(held) });
            }
            (held, _) => {
                out.extend(held.into_iter().flat_map(|(_, held)| held));
                if failed {
                    self.ended.push(Last { text: words.text, ranks: vec![rank], dropped: None });
                }
            }
        }
    }

    /// When [`Repeats::expire`] has something to do.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.open.values().filter_map(|words| Some(words.held.as_ref()?.0 + PATIENCE)).min()
    }

    /// Passes on lines that have been held back for long enough.
    pub(super) fn expire(&mut self, now: Instant, out: &mut Vec<u8>) {
        for words in self.open.values_mut() {
            if let Some((_, held)) = words.held.take_if(|(since, _)| now >= *since + PATIENCE) {
                out.extend_from_slice(&held);
            }
        }
    }

    /// Nothing more will come: passes on the lines that no other rank has printed.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        std::mem::take(&mut self.open).into_values().for_each(|words| release(Some(words), out));
        for last in &mut self.ended {
            out.append(&mut last.dropped.take().unwrap_or_default());
        }
    }

    /// Last words that several ranks had in common, with these ranks in their order.
    pub(super) fn common(&self) -> Vec<(&[u8], Vec<usize>)> {
        let several = self.ended.iter().filter(|last| last.ranks.len() > 1);
        let sorted = several.map(|last| {
            let mut ranks = last.ranks.clone();
            ranks.sort_unstable();
            (last.text.as_slice(), ranks)
        });
        sorted.collect()
    }

    /// All ranks that ended with an error had the same one.
    pub(super) fn is_one(&self) -> bool {
        self.ended.len() == 1
    }
}

fn release(words: Option<Words>, out: &mut Vec<u8>) {
    if let Some((_, held)) = words.and_then(|words| words.held) {
        out.extend_from_slice(&held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What has been passed on after each step.
    struct Job {
        repeats: Repeats,
        now: Instant,
        out: Vec<u8>,
    }

    impl Job {
        fn new() -> Job {
            Job { repeats: Repeats::default(), now: Instant::now(), out: Vec::new() }
        }

        fn says(&mut self, rank: usize, lines: &str) -> String {
            let tag = format!("[{rank}] ");
            let tagged: String = lines.split_inclusive('\n').map(|line| format!("{tag}{line}")).collect();
            self.repeats.lines(rank, tagged.as_bytes(), tag.as_bytes(), self.now, &mut self.out);
            self.passed_on()
        }

        fn ends(&mut self, rank: usize, failed: bool) -> String {
            self.repeats.ended(rank, failed, &mut self.out);
            self.passed_on()
        }

        fn after(&mut self, time: Duration) -> String {
            self.now += time;
            self.repeats.expire(self.now, &mut self.out);
            self.passed_on()
        }

        fn finishes(&mut self) -> String {
            self.repeats.finish(&mut self.out);
            self.passed_on()
        }

        fn passed_on(&mut self) -> String {
            String::from_utf8(std::mem::take(&mut self.out)).expect("the tests feed text")
        }

        fn common(&self) -> Vec<(String, Vec<usize>)> {
            let text = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
            self.repeats.common().into_iter().map(|(words, ranks)| (text(words), ranks)).collect()
        }
    }

    #[test]
    fn the_same_error_of_all_is_passed_on_once_and_at_once() {
        let mut job = Job::new();
        assert_eq!(job.says(2, "Error: no\n\nCaused by:\n"), "[2] Error: no\n[2] \n[2] Caused by:\n");
        assert_eq!(job.says(0, "Error: no\n"), "");
        assert_eq!(job.says(2, "    luck\n"), "[2]     luck\n");
        assert_eq!(job.ends(2, true), "");
        assert_eq!(job.says(0, "\nCaused by:\n    luck\n"), "");
        assert_eq!(job.ends(0, true), "");
        assert_eq!(job.says(1, "Error: no\n\nCaused by:\n    luck\n"), "");
        assert_eq!(job.ends(1, true), "");
        assert_eq!(job.finishes(), "");
        assert_eq!(job.common(), [("Error: no\n\nCaused by:\n    luck\n".into(), vec![0, 1, 2])]);
    }

    #[test]
    fn whoever_ends_first_does_not_matter() {
        let mut job = Job::new();
        assert_eq!(job.says(0, "Error: no\n"), "[0] Error: no\n");
        assert_eq!(job.says(1, "Error: no\n") + &job.ends(1, true), "");
        assert_eq!(job.says(2, "Error: no\n") + &job.ends(2, true) + &job.ends(0, true), "");
        assert_eq!(job.finishes(), "");
        assert_eq!(job.common(), [("Error: no\n".into(), vec![0, 1, 2])]);
    }

    #[test]
    fn what_differs_is_passed_on_as_soon_as_it_does() {
        let mut job = Job::new();
        assert_eq!(job.says(0, "Error: no\nrank 0\n"), "[0] Error: no\n[0] rank 0\n");
        assert_eq!(job.says(1, "Error: no\n"), "");
        assert_eq!(job.says(1, "rank 1\n"), "[1] Error: no\n[1] rank 1\n");
        assert_eq!(job.says(2, "Error: other\n"), "[2] Error: other\n");
        assert_eq!(job.says(3, "nothing wrong\nError: no\n"), "[3] nothing wrong\n");
        assert_eq!(job.ends(3, true), "[3] Error: no\n", "it had less to say");
        assert_eq!((0..3).map(|rank| job.ends(rank, true)).collect::<String>() + &job.finishes(), "");
        assert_eq!(job.common(), []);
    }

    #[test]
    fn a_rank_that_goes_on_or_ends_well_has_said_nothing_last() {
        let mut job = Job::new();
        assert_eq!(job.says(0, "Error: no\n"), "[0] Error: no\n");
        assert_eq!(job.says(1, "Error: no\n"), "");
        assert_eq!(job.after(PATIENCE / 2), "");
        assert!(job.repeats.deadline().is_some());
        assert_eq!(job.after(PATIENCE / 2), "[1] Error: no\n");
        assert_eq!(job.repeats.deadline(), None);
        assert_eq!(job.says(2, "Error: no\n") + &job.ends(2, false), "[2] Error: no\n");
        assert_eq!(job.says(3, "Error: no\n"), "");
        assert_eq!(job.says(3, "and more\n"), "[3] Error: no\n[3] and more\n");
        // One that was held for long is counted all the same, when it ends so.
        assert_eq!(job.ends(0, true) + &job.ends(1, true) + &job.ends(3, true), "");
        assert_eq!(job.says(4, "Error: no\n") + &job.ends(4, false), "[4] Error: no\n");
        assert_eq!(job.common(), [("Error: no\n".into(), vec![0, 1])]);
    }

    #[test]
    fn words_are_not_lost_when_the_rank_that_said_them_first_goes_on() {
        let mut job = Job::new();
        assert_eq!(job.says(0, "Error: no\n"), "[0] Error: no\n");
        assert_eq!(job.says(1, "Error: no\n") + &job.ends(1, true), "");
        assert_eq!(job.says(2, "Error: no\n") + &job.ends(2, true), "");
        assert_eq!(job.says(0, "but I go on\n"), "[0] but I go on\n");
        assert_eq!(job.ends(0, false), "");
        assert_eq!(job.finishes(), "[1] Error: no\n");
        assert_eq!(job.common(), [("Error: no\n".into(), vec![1, 2])]);
    }

    #[test]
    fn neighbouring_errors_belong_together_and_others_do_not() {
        let mut job = Job::new();
        assert_eq!(job.says(0, "error: one\nerror: two\n"), "[0] error: one\n[0] error: two\n");
        assert_eq!(job.says(1, "error: one\nerror: two\n") + &job.ends(1, true), "");
        // The first error is not among the last words.
        let said = job.says(2, "error: early\nwork\nerror: one\n");
        assert_eq!(said, "[2] error: early\n[2] work\n");
        assert_eq!(job.says(2, "error: two\n") + &job.ends(2, true) + &job.ends(0, true), "");
        assert_eq!(job.common()[0].1, [0, 1, 2]);
    }

    #[test]
    fn long_words_are_passed_on() {
        let mut job = Job::new();
        let long = "x".repeat(LONGEST);
        job.says(0, &format!("Error: no\n{long}\n"));
        assert_eq!(job.says(1, "Error: no\n"), "[1] Error: no\n", "the first is no longer compared with");
        let all = job.says(2, &format!("Error: no\n{long}\n"));
        assert_eq!(all, format!("[2] Error: no\n[2] {long}\n"));
        assert_eq!((0..3).map(|rank| job.ends(rank, true)).collect::<String>() + &job.finishes(), "");
        assert_eq!(job.common(), []);
    }
}
