//! `cg`: solves a sparse linear system with conjugate gradients.

#![forbid(unsafe_code)]

mod arguments;
mod report;

use std::process::ExitCode;
use std::time::Instant;

use arguments::Arguments;
use bellwether::World;
use bellwether_examples::cg::csr::Csr;
use bellwether_examples::cg::parallel::SharedMatrix;
use bellwether_examples::cg::solve::{Ending, Stop, conjugate_gradients, true_residual};
use bellwether_examples::cg::{model, problem};
use bellwether_examples::job::{self, Failure};
use bellwether_examples::output::Output;
use bellwether_examples::progress::Progress;

fn main() -> ExitCode {
    job::main(run)
}

/// How the report judges the results.
pub struct Told {
    /// The exact solution is known; the report compares with it.
    pub known: bool,
    /// The number of iterations is fixed, to measure time; missing the tolerance is no failure.
    pub measured: bool,
}

/// State of rank 0 only: the whole problem and the files to write.
struct Root {
    name: String,
    matrix: Csr,
    b: Vec<f64>,
    plot: Output,
    solution: Option<Output>,
}

fn run(world: &World, arguments: Arguments) -> Result<(), Failure> {
    let mut root = job::on_root(world, || prepare(&arguments).map_err(Failure::Input))?;
    let mut matrix = SharedMatrix::scatter(world, root.as_ref().map(|root| &root.matrix))?;
    let b = matrix.scatter_vector(root.as_ref().map(|root| root.b.as_slice()))?;
    report::begin(world, root.as_ref(), &matrix)?;

    let iterations = arguments.iterations.map_or(arguments.max_iterations, |iterations| iterations as usize);
    let stop = Stop { tolerance: arguments.tolerance, iterations };
    let progress = Progress::new(world, 100, "of the digits asked for, {eta} left");
    let start = Instant::now();
    let solution = conjugate_gradients(&mut matrix, &b, stop, |iteration, residual| {
        if world.rank() == 0 {
            progress.set((100.0 * residual.log10() / stop.tolerance.log10()).clamp(0.0, 100.0) as u64);
            let last = residual <= stop.tolerance || iteration == stop.iterations;
            if last || (iteration as u64).is_multiple_of(arguments.every) {
                progress.say(format_args!("iteration {iteration:>6}  |r|/|b| = {residual:.6e}"));
            }
        }
    })?;
    let time = start.elapsed();
    progress.finish();

    let reached = true_residual(&mut matrix, &b, &solution.x)?;
    let x = matrix.gather_vector(&solution.x)?;
    job::on_root(world, || {
        // Rank 0 has both: it read the problem, and it has gathered the solution.
        let (Some(root), Some(x)) = (root.take(), x) else {
            return Ok(());
        };
        match solution.ending {
            Ending::NotPositiveDefinite(curvature) => {
                return Err(not_definite(&root, solution.iterations(), curvature));
            }
            Ending::NotFinite => return Err(not_finite(&root, solution.iterations())),
            Ending::Converged | Ending::OutOfIterations => {}
        }
        if arguments.check {
            report::check(&root, &x, &solution.residuals, stop, time)?;
        }
        let told = Told { known: arguments.rhs.is_none(), measured: arguments.iterations.is_some() };
        report::finish(world, root, &x, &solution, stop, reached, time, told)
    })?;
    Ok(())
}

/// Reads the problem and makes sure, before anything is computed, that the results can be written.
fn prepare(arguments: &Arguments) -> anyhow::Result<Root> {
    let (name, matrix) = match &arguments.matrix {
        Some(path) => {
            let name = path.file_name().unwrap_or(path.as_os_str());
            (name.to_string_lossy().into_owned(), problem::load_matrix(path)?)
        }
        None => {
            let side = arguments.grid as usize;
            (format!("Poisson {side} x {side}"), model::poisson(side))
        }
    };
    let b = match &arguments.rhs {
        Some(path) => problem::load_vector(path, matrix.rows())?,
        None => {
            let mut b = vec![0.0; matrix.rows()];
            matrix.multiply(&model::known_solution(matrix.rows()), &mut b);
            b
        }
    };
    let plot = Output::claim(&arguments.output)?;
    let solution = arguments.solution.as_deref().map(Output::claim).transpose()?;
    Ok(Root { name, matrix, b, plot, solution })
}

fn not_definite(root: &Root, iterations: usize, curvature: f64) -> Failure {
    Failure::Input(anyhow::anyhow!(
        "{} is not positive definite: in iteration {} a direction p has p'Ap = {curvature:.3e}",
        root.name,
        iterations + 1
    ))
}

fn not_finite(root: &Root, iterations: usize) -> Failure {
    Failure::Input(anyhow::anyhow!(
        "{}: numbers became too large in iteration {}; scale the matrix or the right-hand side",
        root.name,
        iterations + 1
    ))
}
