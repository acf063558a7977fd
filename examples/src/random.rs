//! Hashes, and digests made of hashes. Random numbers come from [`bellwether::random`].

/// The finisher of SplitMix64 (Steele, Lea and Flood, 2014): a bijection that looks like chance.
pub fn mix(number: u64) -> u64 {
    let z = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The hash with this number in the sequence of this seed: as evenly spread as SplitMix64's.
pub fn hash(seed: u64, number: u64) -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    mix(mix(seed.wrapping_add(GOLDEN)).wrapping_add(number.wrapping_add(1).wrapping_mul(GOLDEN)))
}

/// A digest of numbered values that ranks can make in parts, in any order: the sum of all parts.
pub fn digest(values: impl IntoIterator<Item = (u64, u64)>) -> u64 {
    values.into_iter().fold(0, |sum, (number, value)| sum.wrapping_add(mix(hash(value, number))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_sees_order_but_not_how_it_was_split() {
        let numbered = |values: &[u64]| -> Vec<(u64, u64)> { (0..).zip(values.iter().copied()).collect() };
        let all = numbered(&[3, 1, 2]);
        assert_eq!(digest(all.clone()), digest(all[..1].to_vec()).wrapping_add(digest(all[1..].to_vec())));
        assert_ne!(digest(all), digest(numbered(&[1, 3, 2])));
    }
}
