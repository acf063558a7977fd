//! The output of `cg`, lines and files, apart from the residuals.

use std::time::{Duration, Instant};

use bellwether::World;
use bellwether_examples::cg::model;
use bellwether_examples::cg::parallel::SharedMatrix;
use bellwether_examples::cg::plot::{self, Convergence};
use bellwether_examples::cg::solve::{Ending, Solution, Stop, Whole, conjugate_gradients, dot};
use bellwether_examples::cg::vector;
use bellwether_examples::job::Failure;
use bellwether_examples::progress::seconds;
use bellwether_examples::say;

use crate::{Root, Told};

/// Prints the problem and how it is split. Collective.
pub fn begin(world: &World, root: Option<&Root>, matrix: &SharedMatrix<'_>) -> Result<(), Failure> {
    let nonzeros = matrix.nonzeros() as u64;
    let [entries, sources] = matrix.traffic().map(|count| count as u64);
    let mut most = [nonzeros, entries, sources];
    world.allreduce(&mut most, |a, b| a.max(b))?;
    if let Some(root) = root {
        let ranks = world.size();
        let mean = root.matrix.nonzeros() as f64 / ranks as f64;
        say!("matrix    {}: {} rows, {} nonzeros", root.name, root.matrix.rows(), root.matrix.nonzeros());
        if ranks > 1 {
            say!("split     {ranks} ranks; the largest share has {:.2} times the mean nonzeros", most[0] as f64 / mean);
            say!("traffic   at most {} remote entries from {} ranks per rank and iteration", most[1], most[2]);
        }
    }
    Ok(())
}

/// Compares with a run on one rank: both solutions may be off by the tolerance, so their images may differ by twice that.
pub fn check(root: &Root, x: &[f64], residuals: &[f64], stop: Stop, time: Duration) -> Result<(), Failure> {
    let start = Instant::now();
    let serial = conjugate_gradients(&mut Whole::new(&root.matrix), &root.b, stop, |_, _| ())?;
    let serial_time = start.elapsed();
    let difference: Vec<f64> = x.iter().zip(&serial.x).map(|(a, b)| a - b).collect();
    let largest = difference.iter().fold(0.0, |most: f64, d| most.max(d.abs()));
    let mut image = vec![0.0; x.len()];
    root.matrix.multiply(&difference, &mut image);
    let norm = dot(&root.b, &root.b).sqrt();
    let apart = if norm > 0.0 { dot(&image, &image).sqrt() / norm } else { largest };
    // A run that gave up early is compared by its residual only.
    let limit = 10.0 * stop.tolerance.max(residuals[residuals.len() - 1]);
    let (own, other) = (residuals.len() - 1, serial.iterations());
    if apart.is_nan() || apart > limit {
        let message =
            format!("check failed: the solution differs from the serial one by {apart:.2e} (allowed {limit:.2e})");
        return Err(Failure::Running(anyhow::anyhow!("{message}; {own} iterations here, {other} there")));
    }
    let gain = serial_time.as_secs_f64() / time.as_secs_f64();
    say!("check     as the serial run: {other} iterations there, entries differ by at most {largest:.1e}");
    say!("          it took {} ({gain:.2} times as long)", seconds(serial_time));
    Ok(())
}

/// Writes the plot, and prints the results.
#[expect(clippy::too_many_arguments, reason = "one caller, which has just computed them all")]
pub fn finish(
    world: &World,
    root: Root,
    x: &[f64],
    solution: &Solution,
    stop: Stop,
    reached: f64,
    time: Duration,
    told: Told,
) -> Result<(), Failure> {
    let (iterations, rows, nonzeros) = (solution.iterations(), root.matrix.rows(), root.matrix.nonzeros());
    let ranks = format!("{} rank{}", world.size(), if world.size() == 1 { "" } else { "s" });
    let title = format!("{}: {rows} rows, {nonzeros} nonzeros, {ranks}", root.name);
    let residuals = &solution.residuals;
    let what = Convergence { title: &title, residuals, tolerance: stop.tolerance, true_residual: reached };
    let plot = root.plot.place();
    plot::convergence(what).and_then(|svg| root.plot.write(svg.as_bytes())).map_err(Failure::Running)?;

    // A multiplication, two scalar products and three vector updates.
    let operations = iterations as f64 * (2.0 * nonzeros as f64 + 10.0 * rows as f64);
    let rate = operations / time.as_secs_f64() / 1e9;
    let each = time.as_secs_f64() * 1e3 / iterations.max(1) as f64;
    say!("solved    {iterations} iterations in {}, {each:.3} ms each, {rate:.2} GFLOP/s, {ranks}", seconds(time));
    say!("residual  |b - A x| / |b| = {reached:.3e}");
    if told.known {
        let expected = model::known_solution(rows);
        let off = x.iter().zip(expected).fold(0.0, |most: f64, (x, e)| most.max((x - e).abs()));
        say!("error     entries between 0 and 1 were to be found; the furthest is off by {off:.1e}");
    }
    if let Some(file) = root.solution {
        let path = file.path().display().to_string();
        file.write(vector::format(x).as_bytes()).map_err(Failure::Running)?;
        say!("solution  {path}");
    }
    say!("plot      {plot}");
    if solution.ending == Ending::OutOfIterations && !told.measured {
        let last = residuals[residuals.len() - 1];
        return Err(Failure::Running(anyhow::anyhow!(
            "not converged: {iterations} iterations brought |r|/|b| to {last:.2e}, not to {:.0e} (see --max-iterations)",
            stop.tolerance
        )));
    }
    Ok(())
}
