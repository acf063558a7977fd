//! Words for a shell.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// A word as a shell takes it. One of plain characters stays as it is, for agents that use no shell.
pub fn quoted(word: &OsStr) -> Vec<u8> {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-+=/.,:@%".contains(byte);
    let bytes = word.as_bytes();
    if !bytes.is_empty() && bytes.iter().all(plain) {
        return bytes.to_owned();
    }
    let mut quoted = vec![b'\''];
    for byte in bytes {
        match byte {
            b'\'' => quoted.extend_from_slice(br"'\''"),
            byte => quoted.push(*byte),
        }
    }
    quoted.push(b'\'');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        for (word, quotes) in
            [("-O2", "-O2"), ("", "''"), ("a b", "'a b'"), ("it's", r"'it'\''s'"), ("-DA=\"b\"", "'-DA=\"b\"'")]
        {
            assert_eq!(quoted(OsStr::new(word)), quotes.as_bytes(), "{word}");
        }
    }
}
