//! Random numbers that are a function of a seed and a number, so that any rank can make any of them.

/// The finisher of SplitMix64 (Steele, Lea and Flood, 2014): a bijection that looks like chance.
pub fn mix(number: u64) -> u64 {
    let z = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The random number with this number in the sequence of this seed: as evenly spread as SplitMix64's.
pub fn hash(seed: u64, number: u64) -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    mix(mix(seed.wrapping_add(GOLDEN)).wrapping_add(number.wrapping_add(1).wrapping_mul(GOLDEN)))
}

/// A number in (0, 1], of which a logarithm can be taken, from 53 random bits.
pub fn unit(bits: u64) -> f64 {
    ((bits >> 11) + 1) as f64 * (1.0 / (1_u64 << 53) as f64)
}

/// The sequence of one seed, in order.
#[derive(Clone, Debug)]
pub struct Stream {
    seed: u64,
    next: u64,
}

impl Stream {
    /// The sequence for item `number` of a job of this seed; those of two items have nothing in common.
    pub fn new(seed: u64, number: u64) -> Stream {
        Stream { seed: hash(seed, number), next: 0 }
    }

    /// The next number in (0, 1].
    pub fn unit(&mut self) -> f64 {
        self.next += 1;
        unit(hash(self.seed, self.next))
    }
}

/// A digest of numbered values that ranks can make in parts, in any order: the sum of all parts.
pub fn digest(values: impl IntoIterator<Item = (u64, u64)>) -> u64 {
    values.into_iter().fold(0, |sum, (number, value)| sum.wrapping_add(mix(hash(value, number))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_evenly_spread() {
        let count = 100_000;
        let mean = (0..count).map(|number| unit(hash(7, number))).sum::<f64>() / count as f64;
        assert!((mean - 0.5).abs() < 5.0 / (12.0 * count as f64).sqrt(), "{mean}");
        assert!(unit(0) > 0.0 && unit(u64::MAX) == 1.0);
    }

    #[test]
    fn a_digest_sees_order_but_not_how_it_was_split() {
        let numbered = |values: &[u64]| -> Vec<(u64, u64)> { (0..).zip(values.iter().copied()).collect() };
        let all = numbered(&[3, 1, 2]);
        assert_eq!(digest(all.clone()), digest(all[..1].to_vec()).wrapping_add(digest(all[1..].to_vec())));
        assert_ne!(digest(all), digest(numbered(&[1, 3, 2])));
    }
}
