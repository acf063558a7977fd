//! From a file's name to a matrix.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};

use super::csr::Csr;
use super::{matrix_market, metis, model, vector};

/// Where Debian's package libmetis-doc puts its graphs.
pub const DEBIAN_GRAPHS: &str = "/usr/share/doc/libmetis-dev/examples/graphs";

/// Bytes of the largest file that is read.
const LARGEST: u64 = 1 << 30;

/// Reads a Matrix Market file, or the Laplacian plus identity of a METIS graph. The first says what it is in its first
/// line; everything else is taken for the second, unless its name ends in `.mtx`.
///
/// # Errors
/// The file is absent or is neither; the error names it, and the line if there is one.
pub fn load_matrix(path: &Path) -> Result<Csr> {
    let text = read_text(path)?;
    let is_market = text.starts_with(matrix_market::BANNER) || path.extension().is_some_and(|end| end == "mtx");
    if is_market {
        matrix_market::parse(&text).with_context(|| format!("cannot use {} as a Matrix Market file", path.display()))
    } else {
        Ok(model::laplacian_plus_identity(&parse_graph(&text, path)?))
    }
}

/// Reads a METIS graph: its symmetric adjacency matrix, with the edges' weights as values.
///
/// # Errors
/// The file is absent or is no such graph; the error names it, and the line if there is one.
pub fn load_graph(path: &Path) -> Result<Csr> {
    parse_graph(&read_text(path)?, path)
}

fn parse_graph(text: &str, path: &Path) -> Result<Csr> {
    metis::parse(text).with_context(|| format!("cannot use {} as a METIS graph", path.display()))
}

/// Reads a vector with an entry for each row of the matrix.
///
/// # Errors
/// The file is absent or is not such a vector; the error names it, and the line if there is one.
pub fn load_vector(path: &Path, length: usize) -> Result<Vec<f64>> {
    vector::parse(&read_text(path)?, length).with_context(|| format!("cannot use {} as a vector", path.display()))
}

fn read_text(path: &Path) -> Result<String> {
    let name = path.display();
    let read = || {
        let mut bytes = Vec::new();
        // A device or a pipe may never end.
        File::open(path)?.take(LARGEST + 1).read_to_end(&mut bytes)?;
        Ok::<_, io::Error>(bytes)
    };
    let bytes = read().map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::NotFound if path.starts_with(DEBIAN_GRAPHS) => {
                " (Debian's package libmetis-doc has it: apt-get install libmetis-doc)"
            }
            _ => "",
        };
        anyhow!("cannot read {name}: {error}{hint}")
    })?;
    if bytes.len() as u64 > LARGEST {
        bail!("{name} has more than {LARGEST} bytes");
    }
    if bytes.is_empty() {
        bail!("{name} is empty");
    }
    String::from_utf8(bytes).map_err(|_| anyhow!("{name} is not a text file (if it is compressed, unpack it first)"))
}
