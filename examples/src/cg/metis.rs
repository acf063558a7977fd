//! Graph files of METIS (manual of METIS 5.1, section 4.1.1).
//!
//! The first line has the numbers of vertices and edges, then optionally three digits `abc` (vertices have sizes, vertices
//! have weights, edges have weights) and the number of weights of a vertex. Line `i` after it describes vertex `i`.

use anyhow::{Context, Result, bail, ensure};

use super::csr::{Csr, Entry, MAX_ROWS};
use super::matrix_market::shorten;

/// The first line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Header {
    vertices: usize,
    edges: usize,
    /// Numbers before a vertex' first neighbour: its size and weights.
    skip: usize,
    edge_weights: bool,
}

/// Reads a graph: its symmetric adjacency matrix, with the edges' weights (1 if the file has none) as values.
///
/// # Errors
/// The text is not such a graph; the error names the line.
pub fn parse(text: &str) -> Result<Csr> {
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.starts_with('%'));
    let (line, first) = lines.next().context("the file has no line with the numbers of vertices and edges")?;
    let header = parse_header(first, text.len()).with_context(|| format!("line {line}"))?;

    let mut entries: Vec<Entry> = Vec::with_capacity(2 * header.edges);
    let mut line_of: Vec<usize> = Vec::with_capacity(header.vertices);
    for (line, text) in lines {
        if line_of.len() == header.vertices {
            ensure!(text.trim().is_empty(), "line {line}: more lines than the {} vertices announced", header.vertices);
            continue;
        }
        parse_vertex(text, line_of.len(), header, &mut entries).with_context(|| format!("line {line}"))?;
        line_of.push(line);
    }
    ensure!(
        line_of.len() == header.vertices,
        "the file ends after {} of {} vertices (is it truncated?)",
        line_of.len(),
        header.vertices
    );
    let edges = match Csr::from_entries(header.vertices, &entries) {
        Ok(edges) => edges,
        Err((vertex, neighbour)) => {
            bail!("line {}: the neighbour {} is given twice", line_of[vertex as usize], neighbour + 1)
        }
    };
    if let Some((vertex, neighbour, weight, mirrored)) = edges.asymmetry() {
        let (line, other) = (line_of[vertex], line_of[neighbour as usize]);
        let (vertex, neighbour) = (vertex + 1, neighbour + 1);
        match mirrored {
            None => bail!("line {line}: vertex {vertex} has the neighbour {neighbour}, but not so on line {other}"),
            Some(mirrored) => {
                bail!("line {line}: the edge to {neighbour} weighs {weight}, but {mirrored} on line {other}")
            }
        }
    }
    let found = edges.nonzeros() / 2;
    ensure!(found == header.edges, "the graph has {found} edges, but its first line announces {}", header.edges);
    Ok(edges)
}

/// Reads the first line. `bytes` is the length of the file; what it announces must fit into it, so that a wrong number
/// does not take all memory.
fn parse_header(line: &str, bytes: usize) -> Result<Header> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    ensure!(
        (2..=4).contains(&words.len()),
        "expected the numbers of vertices and edges (and perhaps a format), found `{}`",
        shorten(line)
    );
    let count = |word: &str| word.parse::<usize>().with_context(|| format!("`{}` is not a count", shorten(word)));
    let (vertices, edges) = (count(words[0])?, count(words[1])?);
    ensure!(vertices > 0, "the graph has no vertices");
    ensure!(vertices <= MAX_ROWS, "{vertices} vertices are more than {MAX_ROWS}");
    ensure!(vertices <= bytes, "the file is too short for {vertices} vertices (is it truncated?)");
    // Each edge is there twice, and takes a digit and a separator each time.
    ensure!(edges <= bytes / 4 + 1, "the file is too short for {edges} edges (is it truncated?)");

    let format = words.get(2).copied().unwrap_or("0");
    ensure!(
        format.len() <= 3 && format.bytes().all(|digit| matches!(digit, b'0' | b'1')),
        "the format `{}` is not up to three digits 0 or 1",
        shorten(format)
    );
    let flag = |place: usize| format.bytes().rev().nth(place) == Some(b'1');
    let weights = match words.get(3) {
        Some(word) => count(word)?,
        None => 1,
    };
    ensure!(weights <= 1024, "{weights} weights for each vertex are too many");
    let skip = usize::from(flag(2)) + if flag(1) { weights } else { 0 };
    Ok(Header { vertices, edges, skip, edge_weights: flag(0) })
}

/// Reads the line of a vertex.
fn parse_vertex(line: &str, vertex: usize, header: Header, entries: &mut Vec<Entry>) -> Result<()> {
    let mut numbers = line.split_ascii_whitespace().map(|word| {
        word.parse::<u64>().with_context(|| format!("`{}` is not a number without sign or fraction", shorten(word)))
    });
    for _ in 0..header.skip {
        numbers.next().context("a size or weight of the vertex is missing")??;
    }
    while let Some(neighbour) = numbers.next().transpose()? {
        ensure!(
            (1..=header.vertices as u64).contains(&neighbour),
            "the neighbour {neighbour} is not between 1 and {}",
            header.vertices
        );
        let neighbour = (neighbour - 1) as usize;
        ensure!(neighbour != vertex, "vertex {} is its own neighbour", vertex + 1);
        let weight = if header.edge_weights {
            numbers.next().with_context(|| format!("the weight of the edge to {} is missing", neighbour + 1))??
        } else {
            1
        };
        ensure!(weight > 0, "the edge to {} has weight 0", neighbour + 1);
        entries.push((vertex as u32, neighbour as u32, weight as f64));
    }
    Ok(())
}
