//! Whether the machine is quiet enough to believe what was measured on it.

use std::fs;
use std::time::Duration;

use super::cores;
use super::figure::Figure;

/// CPU time of the whole machine, in ticks: busy, and stolen by other machines on the same hardware.
fn ticks() -> Option<(f64, f64)> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let fields: Vec<f64> = text.lines().next()?.split_whitespace().skip(1).filter_map(|f| f.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal
    let [user, nice, system, _, _, irq, softirq, steal, ..] = fields[..] else { return None };
    Some((user + nice + system + irq + softirq + steal, steal))
}

/// Cores that others keep busy, watched for a short time.
pub fn busy_cores() -> f64 {
    const WATCH: Duration = Duration::from_millis(300);
    // SAFETY: asks for a number.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as f64;
    let before = ticks();
    std::thread::sleep(WATCH);
    match (before, ticks()) {
        (Some(before), Some(after)) => ((after.0 - before.0) / per_second / WATCH.as_secs_f64()).max(0.0),
        _ => 0.0,
    }
}

/// Reasons to doubt the figures, in words.
#[derive(Debug, Default)]
pub struct Doubts {
    words: Vec<String>,
    off_cpu: Vec<(String, f64)>,
}

/// How much two cores may slow each other down.
const SLOWDOWN: f64 = 1.3;

impl Doubts {
    /// Measures the machine before anything runs on it.
    pub fn before(ranks: usize) -> Doubts {
        let mut doubts = Doubts::default();
        let cpus = cores::allowed_cpus().len();
        let busy = busy_cores();
        if cpus < ranks {
            doubts.words.push(format!("{ranks} ranks share {cpus} cores"));
        } else if busy > 0.3 && cpus as f64 - busy < ranks as f64 - 0.3 {
            doubts.words.push(format!("others kept {busy:.1} of {cpus} cores busy before the start"));
        }
        doubts.note_slowdown(cores::slowdown());
        doubts
    }

    /// Records how much slower a core computes while another core computes too.
    fn note_slowdown(&mut self, slowdown: f64) {
        if slowdown > SLOWDOWN {
            self.words.push(format!(
                "two cores compute {slowdown:.1} times as long as one: others use them, or they are hardware threads of one core"
            ));
        }
    }

    /// Measures again at the end, because the cores of a virtual machine move.
    pub fn after(&mut self) {
        if self.words.is_empty() {
            self.note_slowdown(cores::slowdown());
        }
    }

    /// Records the share of a benchmark's time in which its rank had a CPU.
    pub fn note_share(&mut self, bench: &str, share: f64) {
        if share < 0.9 {
            self.off_cpu.push((bench.into(), share));
        }
    }

    /// All there is to say, with the figures at hand; empty on a quiet machine.
    pub fn about(mut self, figures: &[Figure]) -> Vec<String> {
        if let Some((bench, share)) = self.off_cpu.iter().min_by(|a, b| a.1.total_cmp(&b.1)) {
            self.words
                .push(format!("in {bench}, the measuring rank had a CPU only {:.0} % of the time", 100.0 * share));
        }
        let scatter = |figure: &Figure| figure.limit.map_or(1.0, |limit| limit.p90 / limit.p10);
        let wild: Vec<String> = figures
            .iter()
            .filter(|figure| scatter(figure) > 2.0)
            .map(|figure| match figure.size {
                0 => figure.name.clone(),
                size => format!("{} of {}", figure.name, super::table::size(size)),
            })
            .collect();
        /// Most names in a warning.
        const NAMED: usize = 4;
        if !wild.is_empty() {
            let mut names = wild[..wild.len().min(NAMED)].join(", ");
            if wild.len() > NAMED {
                names += &format!(" and {} more", wild.len() - NAMED);
            }
            self.words.push(format!("the limit itself scattered by more than a factor of 2 in {names}"));
        }
        self.words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figure::Summary;
    use crate::bench::kind::Kind;

    #[test]
    fn this_machine_has_cpus_and_ticks() {
        assert!(!cores::allowed_cpus().is_empty());
        let slowdown = cores::slowdown();
        println!("two cores compute {slowdown:.2} times as long as one");
        assert!(slowdown > 0.0);
        assert!(ticks().is_some());
    }

    #[test]
    fn doubts_are_told() {
        let limit = Summary { median: 2.0, p10: 1.0, p90: 3.0 };
        let figure = Figure {
            kind: Kind::Am,
            transport: crate::bench::Transport::Shm,
            name: "am".into(),
            ranks: 2,
            size: 8,
            ours: limit,
            limit: Some(limit),
            ratio: Some(1.0),
            beside: None,
            beside_ratio: None,
            rivals: Vec::new(),
            lines: Vec::new(),
        };
        let mut doubts = Doubts::default();
        doubts.note_share("put", 0.95);
        doubts.note_share("am", 0.5);
        let words = doubts.about(&[figure]);
        assert_eq!(words.len(), 2);
        assert!(words[0].contains("50 %") && words[1].contains("am of 8 B"), "{words:?}");
        assert!(Doubts::default().about(&[]).is_empty());
        let mut doubts = Doubts::default();
        doubts.note_slowdown(1.1);
        assert!(doubts.words.is_empty());
        doubts.note_slowdown(1.8);
        assert!(doubts.about(&[])[0].contains("hardware threads"));
    }
}
