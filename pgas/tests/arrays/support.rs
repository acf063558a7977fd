//! Runs a test's body on many worlds.

use std::time::Duration;

use bellwether::array::{Distribution, Layout, near_square};
use bellwether::{Result, Simulated, World, sim::Config};
use bellwether_tests::watchdog;

pub const LIMIT: Duration = Duration::from_secs(600);

/// Seeds of tests that take long: three with `ROWS_FULL`, which `ci/test full` sets.
pub fn seeds() -> u64 {
    if std::env::var_os("ROWS_FULL").is_some() { 3 } else { 1 }
}

/// Runs `body` on thread ranks and on simulated ones; each run ends within the limit.
#[track_caller]
pub fn everywhere(name: &str, body: impl Fn(&World) -> Result<()> + Sync) {
    // Of six, grids have two sides.
    on_threads(name, &[1, 2, 3, 5, 6, 7], &body);
    simulated(name, &[1, 2, 3, 6], &body);
}

/// Runs `body` on fewer worlds than [`everywhere`], of each kind.
#[track_caller]
pub fn some_worlds(name: &str, body: impl Fn(&World) -> Result<()> + Sync) {
    on_threads(name, &[1, 2, 3, 7], &body);
    simulated(name, &[3, 6], &body);
}

/// Runs `body` on so many thread ranks.
#[track_caller]
pub fn on_threads(name: &str, ranks: &[usize], body: impl Fn(&World) -> Result<()> + Sync) {
    for &ranks in ranks {
        let _guard = watchdog::guard(format!("{name} on {ranks} threads"), LIMIT);
        let outcomes = bellwether::threads(ranks, |world| {
            watchdog::at(format!("rank {} of {ranks}", world.rank()));
            body(world)
        });
        check(name, ranks, outcomes);
    }
}

/// Whether ranks run on a simulated network: one at a time, so that the thread sanitizer has nothing to find there.
pub const SIMULATES: bool = !cfg!(bellwether_tsan);

/// Runs `body` on so many simulated ranks, whose network is late and reorders.
#[track_caller]
pub fn simulated(name: &str, ranks: &[usize], body: impl Fn(&World) -> Result<()> + Sync) {
    for &ranks in ranks.iter().filter(|_| SIMULATES) {
        let _guard = watchdog::guard(format!("{name} on {ranks} simulated ranks"), LIMIT);
        let job = Simulated::new(Config::new(ranks, 0xbe11 + ranks as u64).wild());
        check(name, ranks, job.run(&body));
    }
}

#[track_caller]
fn check(name: &str, ranks: usize, outcomes: Result<Vec<Result<()>>>) {
    for (rank, outcome) in outcomes.expect("the job runs").into_iter().enumerate() {
        outcome.unwrap_or_else(|error| panic!("{name}: rank {rank} of {ranks}: {error}"));
    }
}

/// Every kind of distribution over so many parts.
pub fn distributions(parts: usize) -> Vec<Distribution> {
    use Distribution::*;
    vec![Block, Cyclic, BlockCyclic(3), Uneven((0..parts).map(|part| ((part + 1) % 3) as f64 + 0.25).collect())]
}

/// Layouts of one dimension.
pub fn lines(extent: usize, ranks: usize) -> Vec<Layout<1>> {
    distributions(ranks).into_iter().map(|kind| Layout::new([extent], [kind], ranks).expect("fits")).collect()
}

/// Layouts of two dimensions.
pub fn planes(extents: [usize; 2], ranks: usize) -> Vec<Layout<2>> {
    let grid = near_square(ranks, [0; 2]).expect("a grid");
    let (first, second) = (distributions(grid[0]), distributions(grid[1]).into_iter().rev());
    let pairs = first.into_iter().zip(second).map(|(a, b)| [a, b]);
    let mixed = pairs.map(|pair| Layout::on_grid(extents, pair, grid, ranks).expect("fits"));
    let columns = Layout::rows([extents[1], extents[0]], ranks).expect("fits").reversed();
    mixed.chain([Layout::rows(extents, ranks).expect("fits"), columns]).collect()
}

/// Layouts of three dimensions: each kind in each of them, beside two others.
pub fn boxes(extents: [usize; 3], ranks: usize) -> Vec<Layout<3>> {
    let grid = near_square(ranks, [0; 3]).expect("a grid");
    let kinds = grid.map(distributions);
    let mixed = (0..kinds[0].len()).map(|first| {
        let kind = |axis: usize| kinds[axis][(first + axis) % kinds[axis].len()].clone();
        Layout::on_grid(extents, [kind(0), kind(1), kind(2)], grid, ranks).expect("fits")
    });
    mixed.chain([Layout::block(extents, ranks).expect("fits")]).collect()
}

/// A value for an index that is another one for each.
pub fn value<const D: usize>(index: [usize; D]) -> f64 {
    index.iter().fold(0.5, |all, i| all * 100.0 + *i as f64)
}

/// Asserts that an error says all of this.
#[track_caller]
pub fn says<T>(outcome: Result<T>, parts: &[&str]) {
    let error = outcome.err().expect("an error").to_string();
    parts.iter().for_each(|part| assert!(error.contains(part), "{error:?} does not say {part:?}"));
}
