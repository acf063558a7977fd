//! The header of a `.npy` file: NumPy Enhancement Proposal 1, and `numpy.lib.format`, versions 1.0 to 3.0.

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Headers and data begin at multiples of this, in bytes.
const ALIGNMENT: usize = 64;
/// Longest header that is looked at. Those of plain arrays have 118 bytes or little more.
const LONGEST: usize = 1 << 20;

/// The contents of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    /// Type of the elements, in NumPy's letters.
    pub descr: String,
    /// The first index is the fastest.
    pub fortran: bool,
    /// Elements in each dimension.
    pub shape: Vec<u64>,
    /// Where the elements begin.
    pub data: u64,
}

/// How many bytes of a file [`parse`] needs, by its first ones.
pub(super) fn needed(start: &[u8]) -> Result<usize, String> {
    let short = || format!("{} bytes are too few for a .npy file", start.len());
    let magic = start.get(..MAGIC.len()).ok_or_else(short)?;
    if magic != MAGIC {
        return Err("not a .npy file: it does not begin with \\x93NUMPY".into());
    }
    let version = start.get(6..8).ok_or_else(short)?;
    let (at, len) = match version[0] {
        1 => (10, start.get(8..10).map(|b| usize::from(u16::from_le_bytes([b[0], b[1]])))),
        2 | 3 => (12, start.get(8..12).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize)),
        _ => return Err(format!("format version {}.{}; known are 1.0, 2.0 and 3.0", version[0], version[1])),
    };
    let len = len.ok_or_else(short)?;
    if len > LONGEST {
        return Err(format!("a header of {len} bytes; the longest known has {LONGEST}"));
    }
    Ok(at + len)
}

/// Bytes that [`needed`] looks at.
pub(super) const START: usize = 12;

/// Understands the first [`needed`] bytes of a file.
pub(super) fn parse(bytes: &[u8]) -> Result<Header, String> {
    let data = needed(bytes)?;
    let begin = if bytes[6] == 1 { 10 } else { 12 };
    let text =
        bytes.get(begin..data).ok_or_else(|| format!("it ends inside its header, after {} bytes", bytes.len()))?;
    let text = std::str::from_utf8(text).map_err(|_| "its header is not text".to_owned())?;
    let mut parser = Parser { rest: text };
    let (mut descr, mut fortran, mut shape) = (None, None, None);
    parser.expect('{')?;
    while !parser.accept('}') {
        let key = parser.string()?;
        parser.expect(':')?;
        match key {
            "descr" => descr = Some(parser.string().map_err(|why| format!("elements that are not numbers: {why}"))?),
            "fortran_order" => fortran = Some(parser.truth()?),
            "shape" => shape = Some(parser.tuple()?),
            _ => return Err(format!("its header has an unknown key {key:?}")),
        }
        if !parser.accept(',') {
            parser.expect('}')?;
            break;
        }
    }
    if !parser.rest.trim().is_empty() {
        return Err(format!("its header goes on after its end, with {:?}", shortened(parser.rest)));
    }
    let missing = |key| format!("its header has no {key:?}");
    Ok(Header {
        descr: descr.ok_or_else(|| missing("descr"))?.to_owned(),
        fortran: fortran.ok_or_else(|| missing("fortran_order"))?,
        shape: shape.ok_or_else(|| missing("shape"))?,
        data: data as u64,
    })
}

/// A header of version 1.0, in C order.
pub(super) fn write(descr: &str, shape: &[usize]) -> Vec<u8> {
    let sides: String = shape.iter().map(|side| format!("{side}, ")).collect();
    // A tuple of one has a comma, longer ones have none at their end.
    let sides = if shape.len() == 1 { sides.trim_end() } else { sides.trim_end_matches(", ") };
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({sides}), }}");
    let all = (MAGIC.len() + 4 + text.len() + 1).next_multiple_of(ALIGNMENT);
    text.extend(std::iter::repeat_n(' ', all - MAGIC.len() - 4 - text.len() - 1));
    text.push('\n');
    let mut bytes = MAGIC.to_vec();
    bytes.extend([1, 0]);
    bytes.extend(u16::try_from(text.len()).expect("three numbers at most").to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes
}

/// Reads the few forms of a Python literal that a header has.
struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn accept(&mut self, wanted: char) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(wanted) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, wanted: char) -> Result<(), String> {
        if self.accept(wanted) {
            return Ok(());
        }
        Err(format!("its header has {:?} where {wanted:?} belongs", shortened(self.rest)))
    }

    fn string(&mut self) -> Result<&'a str, String> {
        self.rest = self.rest.trim_start();
        let quote = self.rest.chars().next().filter(|quote| matches!(quote, '\'' | '"'));
        let found = quote.and_then(|quote| self.rest[1..].split_once(quote));
        let (string, rest) = found.ok_or_else(|| format!("{:?} where a string belongs", shortened(self.rest)))?;
        self.rest = rest;
        Ok(string)
    }

    fn truth(&mut self) -> Result<bool, String> {
        self.rest = self.rest.trim_start();
        for (word, truth) in [("True", true), ("False", false)] {
            if let Some(rest) = self.rest.strip_prefix(word) {
                self.rest = rest;
                return Ok(truth);
            }
        }
        Err(format!("its header has {:?} where True or False belongs", shortened(self.rest)))
    }

    fn tuple(&mut self) -> Result<Vec<u64>, String> {
        let mut sides = Vec::new();
        self.expect('(')?;
        while !self.accept(')') {
            self.rest = self.rest.trim_start();
            let digits = self.rest.len() - self.rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let (number, rest) = self.rest.split_at(digits);
            let number = number.parse().map_err(|_| format!("its shape has {:?}", shortened(self.rest)))?;
            sides.push(number);
            // As Python 2 wrote long numbers.
            self.rest = rest.strip_prefix('L').unwrap_or(rest);
            if !self.accept(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(sides)
    }
}

fn shortened(text: &str) -> &str {
    &text[..text.floor_char_boundary(20)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(version: u8, text: &str) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([version, 0]);
        match version {
            1 => bytes.extend((text.len() as u16).to_le_bytes()),
            _ => bytes.extend((text.len() as u32).to_le_bytes()),
        }
        bytes.extend(text.as_bytes());
        bytes
    }

    #[test]
    fn what_is_written_is_understood() {
        for shape in [vec![5], vec![3, 4], vec![1, 20, 300_000_000_000]] {
            let bytes = write("<f8", &shape);
            assert_eq!(bytes.len() % ALIGNMENT, 0);
            let header = parse(&bytes).expect("our own");
            assert_eq!(header.shape, shape.iter().map(|side| *side as u64).collect::<Vec<_>>());
            assert_eq!((header.descr.as_str(), header.fortran, header.data), ("<f8", false, bytes.len() as u64));
        }
        assert!(String::from_utf8_lossy(&write("<f8", &[5])).contains("(5,), }"));
        assert!(String::from_utf8_lossy(&write("<f8", &[5, 6])).contains("(5, 6), }"));
    }

    #[test]
    fn all_versions_and_ways_of_writing() {
        for version in 1..=3 {
            let text = "{\"shape\":( 2L , 3 ,),  'fortran_order':True , 'descr' : '>i4'}  \n";
            let header = parse(&with(version, text)).expect("understood");
            assert_eq!((header.shape, header.fortran, header.descr.as_str()), (vec![2, 3], true, ">i4"));
        }
        let scalar = parse(&with(1, "{'descr': '<f8', 'fortran_order': False, 'shape': (), }\n")).expect("understood");
        assert_eq!(scalar.shape, [0; 0]);
    }

    #[test]
    fn what_is_foreign_is_told_and_nothing_panics() {
        let told = |bytes: &[u8], part: &str| {
            let why = parse(bytes).expect_err("foreign");
            assert!(why.contains(part), "{why:?} does not say {part:?}");
        };
        told(b"", "too few");
        told(b"PK\x03\x04 and more of a zip", "does not begin");
        told(&with(4, "{}"), "version 4.0");
        told(&with(1, "{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (3,), }"), "not numbers");
        told(&with(1, "{'descr': '<f8', 'shape': (3,), }"), "no \"fortran_order\"");
        told(&with(1, "{'descr': '<f8', 'fortran_order': False, 'shape': (-3,), }"), "its shape has \"-3");
        told(&with(1, "{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999999999,), }"), "its shape");
        told(&with(1, "{'descr': '<f8', 'fortran_order': Maybe, 'shape': (3,), }"), "True or False");
        told(&with(1, "{'x': 1}"), "unknown key \"x\"");
        told(&with(1, "{} and more"), "goes on");
        told(&with(2, &" ".repeat(LONGEST + 1)), "header of 1048577 bytes");
        let good = with(2, "{'descr': '<f8', 'fortran_order': False, 'shape': (3, 4), }\n");
        for end in 0..good.len() {
            assert!(parse(&good[..end]).is_err(), "{end} bytes of it");
            for byte in [0, b'\'', b'(', 0xff, good[end] ^ 1] {
                let mut bad = good.clone();
                bad[end] = byte;
                let _ = parse(&bad);
            }
        }
    }
}
