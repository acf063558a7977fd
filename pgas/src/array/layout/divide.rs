//! Division by a number that stays the same: a multiplication.

/// Divides by a fixed number. Granlund and Montgomery, "Division by invariant integers using multiplication", 1994, with
/// a quotient that may be one too small and is put right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Divisor {
    by: usize,
    /// The largest number that does not exceed 2^64 / `by`, and is below 2^64.
    inverse: u64,
}

impl Divisor {
    /// `by` is at least 1.
    pub fn new(by: usize) -> Divisor {
        Divisor { by, inverse: u64::MAX / by as u64 }
    }

    pub fn by(self) -> usize {
        self.by
    }

    /// Quotient and remainder.
    #[inline(always)]
    pub fn divide(self, number: usize) -> (usize, usize) {
        // With i = (2^64 - e) / by, 1 <= e <= by, the product is too small by number * e / (by * 2^64) < 1.
        let quotient = ((number as u128 * u128::from(self.inverse)) >> 64) as usize;
        let remainder = number - quotient * self.by;
        let more = usize::from(remainder >= self.by);
        (quotient + more, remainder - more * self.by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_the_machine_divides() {
        let mut numbers =
            vec![0, 1, 2, 3, 5, 7, 63, 64, 65, 1000, 4096, usize::MAX, usize::MAX - 1, 1 << 63, (1 << 63) - 1];
        let mut word = 1usize;
        for _ in 0..300 {
            word = word.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            numbers.extend([word, word >> 20, word >> 40, word >> 55]);
        }
        for &by in numbers.iter().filter(|by| **by > 0) {
            let divisor = Divisor::new(by);
            for &number in &numbers {
                for number in [number, number / by * by, (number / by * by).wrapping_sub(1)] {
                    assert_eq!(divisor.divide(number), (number / by, number % by), "{number} / {by}");
                }
            }
        }
    }
}
