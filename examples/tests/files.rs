//! Files of every kind: good, broken, cut short.

#![forbid(unsafe_code)]

use std::io::Cursor;
use std::path::Path;

use bellwether_examples::cg::{matrix_market, metis, problem, vector};
use bellwether_examples::heat::plate::{Hold, Plate, conducts, is_free};
use bellwether_examples::heat::{floor, picture};
use bellwether_examples::output::Output;

const SMALL: &str = include_str!("../data/small.mtx");
const HOUSE: &str = include_str!("../data/house.graph");

/// The message of an error, with its causes.
fn message<T: std::fmt::Debug>(outcome: anyhow::Result<T>) -> String {
    format!("{:#}", outcome.unwrap_err())
}

#[test]
fn a_small_matrix_is_read() {
    let matrix = matrix_market::parse(SMALL).unwrap();
    assert_eq!((matrix.rows(), matrix.nonzeros()), (6, 16));
    assert_eq!((matrix.get(0, 1), matrix.get(1, 0), matrix.get(5, 5)), (Some(-1.0), Some(-1.0), Some(2.5)));
    assert_eq!(matrix.get(0, 5), None);
}

#[test]
fn matrix_market_takes_its_variants() {
    let parse = |text: &str| matrix_market::parse(text).unwrap();
    let general =
        parse("%%MatrixMarket matrix coordinate integer general\r\n2 2 4\r\n1 1 3\r\n1 2 1\r\n2 1 1\r\n2 2 3\r\n");
    assert_eq!(general.get(0, 1), Some(1.0));
    let fortran = parse("%%matrixmarket MATRIX Coordinate Real Symmetric\n%c\n\n1 1 1\n  1 1 1.5D+01  ");
    assert_eq!(fortran.get(0, 0), Some(15.0));
    // A pattern is a graph: here a path of three vertices.
    let path = parse("%%MatrixMarket matrix coordinate pattern symmetric\n3 3 3\n2 1\n3 2\n1 1\n");
    assert_eq!((path.get(0, 0), path.get(1, 1), path.get(1, 2)), (Some(2.0), Some(3.0), Some(-1.0)));
}

#[test]
fn matrix_market_errors_say_what_and_where() {
    let banner = "%%MatrixMarket matrix coordinate real";
    for (text, part) in [
        ("", "empty"),
        ("hello\n", "line 1: expected `%%MatrixMarket"),
        ("%%MatrixMarket vector coordinate real general\n", "a vector, not a matrix"),
        ("%%MatrixMarket matrix array real general\n2 2\n", "line 1: a dense matrix"),
        ("%%MatrixMarket matrix coordinate complex hermitian\n", "line 1: a complex matrix"),
        ("%%MatrixMarket matrix coordinate real skew-symmetric\n", "line 1: a skew-symmetric"),
        ("%%MatrixMarket matrix coordinate real diagonal\n", "unknown symmetry `diagonal`"),
        (&format!("{banner} symmetric\n% only comments\n"), "ends before the line with the matrix' size"),
        (&format!("{banner} symmetric\n2 2\n"), "line 2: expected three numbers"),
        (&format!("{banner} symmetric\n2 3 1\n1 1 1\n"), "line 2: the matrix has 2 rows and 3 columns"),
        (&format!("{banner} symmetric\n0 0 0\n"), "line 2: the matrix has no rows"),
        (&format!("{banner} symmetric\n2 2 -1\n"), "line 2: `-1` is not a count"),
        (&format!("{banner} symmetric\n2 2 99999999999999\n1 1 1\n"), "line 2: the file is too short for"),
        (&format!("{banner} symmetric\n4000000000 4000000000 1\n1 1 1\n"), "line 2: 4000000000 rows cannot"),
        (&format!("{banner} symmetric\n2 2 2\n1 1 1\n"), "ends after 1 of 2 entries"),
        (&format!("{banner} symmetric\n1 1 1\n1 1 1\n1 1 1\n"), "line 4: more entries than the 1"),
        (&format!("{banner} symmetric\n2 2 2\n1 1 1\n3 1 1\n"), "line 4: the row 3 is not between 1 and 2"),
        (&format!("{banner} symmetric\n2 2 2\n1 1 1\n2 0 1\n"), "line 4: the column 0 is not between 1 and 2"),
        (&format!("{banner} symmetric\n2 2 2\n1 1 1\n2 2 x\n"), "line 4: `x` is not a number"),
        (&format!("{banner} symmetric\n2 2 2\n1 1 1\n2 2 nan\n"), "line 4: `nan` is not a finite number"),
        (&format!("{banner} symmetric\n2 2 2\n1 1 1\n2 2\n"), "line 4: the value is missing"),
        (&format!("{banner} symmetric\n2 2 2\n1 1 1\n2 2 1 1\n"), "line 4: `1` is one word too many"),
        (&format!("{banner} symmetric\n2 2 3\n1 1 1\n2 2 1\n1 1 1\n"), "row 1, column 1 is given twice"),
        (&format!("{banner} symmetric\n2 2 2\n1 1 1\n2 1 1\n"), "row 2 has no diagonal entry"),
        (&format!("{banner} symmetric\n2 2 2\n1 1 1\n2 2 -3\n"), "the diagonal entry of row 2 is -3"),
        (
            &format!("{banner} general\n2 2 3\n1 1 1\n2 2 1\n1 2 5\n"),
            "row 1, column 2 has 5, but row 2, column 1 has nothing",
        ),
    ] {
        let found = message(matrix_market::parse(text));
        assert!(found.contains(part), "{text:?}: {found}");
    }
}

#[test]
fn a_small_graph_is_read() {
    let edges = metis::parse(HOUSE).unwrap();
    assert_eq!((edges.rows(), edges.nonzeros()), (6, 12));
    assert_eq!((edges.get(3, 4), edges.get(4, 3), edges.get(0, 3)), (Some(7.0), Some(7.0), Some(1.0)));
}

#[test]
fn metis_takes_its_formats() {
    for text in [
        "2 1\n2\n1\n",
        "2 1 0\n2\n1",
        "2 1 000\n2\n1\n\n\n",
        "2 1 001\n2 1\n1 1\n",
        "2 1 010\n9 2\n9 1\n",
        "2 1 011\n9 2 1\n9 1 1\n",
        "2 1 010 3\n9 8 7 2\n9 8 7 1\n",
        "2 1 111\n5 9 2 1\n5 9 1 1\n",
    ] {
        let edges = metis::parse(text).unwrap();
        assert_eq!((edges.nonzeros(), edges.get(0, 1)), (2, Some(1.0)), "{text:?}");
    }
}

#[test]
fn metis_errors_say_what_and_where() {
    for (text, part) in [
        ("", "no line with the numbers"),
        ("% only a comment\n", "no line with the numbers"),
        ("5\n", "line 1: expected the numbers of vertices and edges"),
        ("x y\n", "line 1: `x` is not a count"),
        ("0 0\n", "line 1: the graph has no vertices"),
        ("2 1 002\n2\n1\n", "line 1: the format `002`"),
        ("99999999 1\n2\n1\n", "line 1: the file is too short for 99999999 vertices"),
        ("2 99999999\n2\n1\n", "line 1: the file is too short for 99999999 edges"),
        ("3 1\n2\n1\n", "ends after 2 of 3 vertices"),
        ("2 1\n2\n1\n1\n", "line 4: more lines than the 2 vertices"),
        ("%\n2 1\n3\n1\n", "line 3: the neighbour 3 is not between 1 and 2"),
        ("2 1\n0\n1\n", "line 2: the neighbour 0 is not between 1 and 2"),
        ("2 1\n2\n1.5\n", "line 3: `1.5` is not a number without"),
        ("2 1\n1\n1\n", "line 2: vertex 1 is its own neighbour"),
        ("2 1\n2 2\n1\n", "line 2: the neighbour 2 is given twice"),
        ("2 1\n2\n\n", "line 2: vertex 1 has the neighbour 2, but not so on line 3"),
        ("2 2\n2\n1\n", "has 1 edges, but its first line announces 2"),
        ("2 1 1\n2\n1 1\n", "line 2: the weight of the edge to 2 is missing"),
        ("2 1 1\n2 0\n1 0\n", "line 2: the edge to 2 has weight 0"),
        ("2 1 1\n2 3\n1 4\n", "line 2: the edge to 2 weighs 3, but 4 on line 3"),
        ("2 1 10\n\n1 1\n", "line 2: a size or weight of the vertex is missing"),
    ] {
        let found = message(metis::parse(text));
        assert!(found.contains(part), "{text:?}: {found}");
    }
}

#[test]
fn every_prefix_and_every_changed_byte_is_read_or_refused() {
    let mut refused = 0;
    for text in [SMALL, HOUSE] {
        let mut check = |text: &str| {
            refused += usize::from(matrix_market::parse(text).is_err()) + usize::from(metis::parse(text).is_err());
            let _ = vector::parse(text, 6);
        };
        for end in 0..text.len() {
            check(&text[..end]);
            for byte in [" ", "\n", "9", "-", "%", "x", "\0"] {
                check(&format!("{}{byte}{}", &text[..end], &text[end + 1..]));
            }
        }
    }
    assert!(refused > 1000);
    // Cut before its last entry, a matrix is never taken for whole.
    let last = SMALL.trim_end().rfind('\n').unwrap();
    (0..last).for_each(|end| assert!(matrix_market::parse(&SMALL[..end]).is_err(), "{end}"));
}

#[test]
fn vectors_are_read_as_they_were_written() {
    let numbers = [1.0, -0.1, 1e-300, 1.0 / 3.0];
    assert_eq!(vector::parse(&vector::format(&numbers), 4).unwrap(), numbers);
    assert_eq!(vector::parse("# comment\n1\n\n2\n", 2).unwrap(), [1.0, 2.0]);
    assert!(message(vector::parse("1\n2\n", 3)).contains("has 2 numbers, but the matrix has 3 rows"));
    assert!(message(vector::parse("1\n2\n3\n", 2)).contains("line 3: more numbers"));
    assert!(message(vector::parse("1\ntwo\n", 2)).contains("line 2: `two` is not a number"));
    let wrong = "%%MatrixMarket matrix coordinate real general\n1 1\n";
    assert!(message(vector::parse(wrong, 1)).contains("line 1: expected"));
}

#[test]
fn files_are_named_in_errors() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    for (path, part) in [
        (folder.path().join("absent.mtx"), "absent.mtx: No such file"),
        (folder.path().to_owned(), "Is a directory"),
        (file("empty.graph", b""), "empty.graph is empty"),
        (file("packed.gz", &[0x1f, 0x8b, 0xff]), "packed.gz is not a text file"),
        (file("wrong.mtx", b"2 1\n2\n1\n"), "wrong.mtx as a Matrix Market file: line 1"),
        (file("wrong.graph", b"2 1\n2\n"), "wrong.graph as a METIS graph: the file ends after 1 of 2"),
    ] {
        let found = message(problem::load_matrix(&path));
        assert!(found.contains(part), "{found}");
    }
    let graph = Path::new(problem::DEBIAN_GRAPHS).join("no-such.graph");
    assert!(message(problem::load_matrix(&graph)).contains("libmetis-doc"));
    assert_eq!(problem::load_matrix(&file("good", HOUSE.as_bytes())).unwrap().rows(), 6);
}

fn read(bytes: &[u8]) -> anyhow::Result<Plate> {
    picture::decode_plate(Cursor::new(bytes), Hold::Auto)
}

#[test]
fn a_plate_survives_being_written_and_read() {
    let bytes = picture::encode_pixels(96, &floor::pixels(96, 64)).unwrap();
    assert_eq!(read(&bytes).unwrap(), floor::plate(96, 64, Hold::Auto));
}

/// An image of one row: white, grey, black, and where there are colours, blue.
fn image(colour: png::ColorType, depth: png::BitDepth, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, 4, 1);
    encoder.set_color(colour);
    encoder.set_depth(depth);
    if colour == png::ColorType::Indexed {
        encoder.set_palette([255, 255, 255, 128, 128, 128, 0, 0, 0, 0, 0, 255].as_slice());
    }
    encoder.write_header().unwrap().write_image_data(data).unwrap();
    bytes
}

#[test]
fn every_kind_of_png_gives_the_same_plate() {
    use png::{BitDepth::*, ColorType::*};
    let rgb = [255, 255, 255, 128, 128, 128, 0, 0, 0, 0, 0, 255];
    let rgba = [255, 255, 255, 255, 128, 128, 128, 255, 0, 0, 0, 255, 9, 9, 9, 0];
    let wide = |bytes: &[u8]| -> Vec<u8> { bytes.iter().flat_map(|byte| [*byte, *byte]).collect() };
    let expected = read(&image(Rgb, Eight, &rgb)).unwrap();
    assert_eq!(expected.cells.iter().map(|&cell| conducts(cell)).collect::<Vec<_>>(), [true, true, true, false]);
    assert_eq!(expected.cells.iter().map(|&cell| is_free(cell)).collect::<Vec<_>>(), [false, true, false, false]);
    for bytes in [
        image(Rgb, Sixteen, &wide(&rgb)),
        image(Rgba, Eight, &rgba),
        image(Rgba, Sixteen, &wide(&rgba)),
        image(Indexed, Eight, &[0, 1, 2, 3]),
        image(Indexed, Two, &[0b00_01_10_11]),
        image(GrayscaleAlpha, Eight, &[255, 255, 128, 255, 0, 255, 7, 0]),
    ] {
        assert_eq!(read(&bytes).unwrap(), expected);
    }
    let grey = read(&image(Grayscale, Eight, &[255, 128, 0, 0])).unwrap();
    assert_eq!(grey.cells[..3], expected.cells[..3]);
    assert_eq!(read(&image(Grayscale, Four, &[0xf8, 0x00])).unwrap().cells[0], expected.cells[0]);
}

#[test]
fn a_broken_png_is_refused() {
    let good = picture::encode_pixels(12, &floor::pixels(12, 8)).unwrap();
    for end in 0..good.len() {
        let found = message(read(&good[..end]));
        assert!(found.contains("ends too early") || found.contains("broken"), "{end}: {found}");
    }
    // Every chunk has a check sum, so no changed byte goes unseen, but those in the tail that carries no data.
    for place in 0..good.len() - 12 {
        let mut bad = good.clone();
        bad[place] ^= 0x55;
        assert!(read(&bad).is_err(), "byte {place}");
    }
    assert!(message(read(b"this is not a picture")).contains("not a PNG"));
}

#[test]
fn a_huge_png_is_refused_before_memory_is_taken() {
    // Only a header: 60000 x 60000 pixels that are not there.
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, 60_000, 60_000);
    encoder.set_color(png::ColorType::Rgba);
    drop(encoder.write_header().unwrap());
    assert!(message(read(&bytes)).contains("60000 x 60000 cells are too many"));
}

#[test]
fn plates_that_cannot_be_opened_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plate.png");
    assert!(message(picture::read_plate(&path, Hold::Auto)).contains("cannot open"));
    std::fs::write(&path, b"").unwrap();
    assert!(message(picture::read_plate(&path, Hold::Auto)).contains("plate.png is empty"));
    std::fs::write(&path, b"abc").unwrap();
    assert!(message(picture::read_plate(&path, Hold::Auto)).contains("cannot use"));
    assert!(message(picture::read_plate(folder.path(), Hold::Auto)).contains("is a folder"));
}

#[test]
fn an_output_is_claimed_early_and_left_alone_until_written() {
    let folder = tempfile::tempdir().unwrap();
    let new = folder.path().join("new.png");
    drop(Output::claim(&new).unwrap());
    assert!(!new.exists(), "nothing was written, so nothing is left");
    let old = folder.path().join("old.png");
    std::fs::write(&old, "what was there before").unwrap();
    drop(Output::claim(&old).unwrap());
    assert_eq!(std::fs::read(&old).unwrap(), b"what was there before");
    Output::claim(&old).unwrap().write(b"new").unwrap();
    assert_eq!(std::fs::read(&old).unwrap(), b"new");
    assert!(message(Output::claim(&folder.path().join("no/such/folder.png"))).contains("no/such/folder.png"));
    assert!(message(Output::claim(folder.path())).contains("cannot write"));
}
