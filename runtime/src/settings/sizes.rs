//! Sizes and times as users write them.

use std::time::Duration;

/// A size such as `4096`, `64KiB`, `2G`.
pub(super) fn parse_size(text: &str) -> Option<usize> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number: usize = text[..digits].parse().ok()?;
    let shift = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

/// A number of seconds above 0 and up to 1e9, so that no clock overflows.
pub(super) fn parse_seconds(text: &str) -> Option<Duration> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| *seconds <= 1e9)?;
    // Less than a nanosecond is 0 here.
    Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero())
}

pub(super) fn parse_switch(text: &str) -> Option<bool> {
    match text {
        "on" | "1" | "true" | "yes" => Some(true),
        "off" | "0" | "false" | "no" => Some(false),
        _ => None,
    }
}

/// A size as [`parse_size`] reads it.
pub(super) fn show_size(bytes: usize) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes != 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_they_are_shown() {
        for bytes in [0, 1, 1023, 1024, 3 << 20, 5 << 30, (1 << 40) + 1] {
            assert_eq!(parse_size(&show_size(bytes)), Some(bytes));
        }
        for bad in ["", "x", "12parsec", "-1", "99999999999999999999", "9999999999TiB"] {
            assert_eq!(parse_size(bad), None, "{bad}");
        }
    }
}
