//! The command line of `cg`.

use std::path::PathBuf;

use clap::Parser;

/// Conjugate gradients on a sparse symmetric positive definite matrix.
#[derive(Debug, Parser)]
#[command(name = "cg", version, after_help = HELP)]
pub struct Arguments {
    /// The matrix: a Matrix Market file or a METIS graph; a Poisson problem if absent
    pub matrix: Option<PathBuf>,

    /// Where to write the convergence plot
    #[arg(short, long, value_name = "FILE", default_value = "cg.svg")]
    pub output: PathBuf,

    /// Stop when the norm of the residual, relative to that of the right-hand side, is at most this
    #[arg(short, long, value_name = "X", default_value_t = 1e-8, value_parser = tolerance)]
    pub tolerance: f64,

    /// Fail if this many iterations are not enough
    #[arg(short, long, value_name = "N", default_value_t = 10_000)]
    pub max_iterations: usize,

    /// Stop after this many iterations, without an error if the residual is still larger: to measure time
    #[arg(long, value_name = "N", conflicts_with = "max_iterations", value_parser = clap::value_parser!(u32).range(1..))]
    pub iterations: Option<u32>,

    /// The right-hand side: a file with one number a line, or a Matrix Market array
    /// [default: the matrix times a known vector]
    #[arg(long, value_name = "FILE", verbatim_doc_comment)]
    pub rhs: Option<PathBuf>,

    /// Also write the solution, as a Matrix Market array
    #[arg(long, value_name = "FILE")]
    pub solution: Option<PathBuf>,

    /// Print the residual of every K-th iteration
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub every: u64,

    /// Points on a side of the built-in Poisson problem
    #[arg(long, value_name = "N", default_value_t = 200, conflicts_with = "matrix",
          value_parser = clap::value_parser!(u64).range(1..=8192))]
    pub grid: u64,

    /// Solve the problem again on one rank and compare
    #[arg(long)]
    pub check: bool,
}

const HELP: &str = "\
Files:
  Matrix Market    coordinate format; real or integer; general or symmetric. A pattern
                   has no values and is taken as a graph.
  METIS graph      with or without weights. The matrix is the graph's Laplacian, with
                   edge weights, plus the identity.
Debian's package libmetis-doc has three graphs; after `apt-get install libmetis-doc` they
are in /usr/share/doc/libmetis-dev/examples/graphs: 4elt.graph, copter2.graph, mdual.graph.

Examples:
  bellwether run -n 4 --example cg
  bellwether run -n 4 --example cg /usr/share/doc/libmetis-dev/examples/graphs/4elt.graph --every 10

One number of ranks always gives the same residuals, bit for bit. Another number adds
in another order: its residuals differ by rounding, which a matrix with a few outstanding
eigenvalues can make visible on the way; the solution is the same within the tolerance.

Exit code: 0 success, 1 failure while running, 2 wrong arguments or input.";

fn tolerance(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if value > 0.0 && value < 1.0 { Ok(value) } else { Err("must lie between 0 and 1".to_owned()) }
}
