//! Particles through a slab: transport by Monte Carlo, tallied in an array that is spread over ranks.
//!
//! A particle's fate is a function of its number and the seed, so it does not matter which rank follows it; and tallies
//! are integers, so it does not matter in which order they are added. Hence the same result for any number of ranks,
//! though ranks take particles as they find time.

pub mod plot;
pub mod survive;

use bellwether::random::Stream;
use bellwether::{GlobalArray, Layout, Result, World};

/// A slab of a material, on which particles fall at a right angle.
#[derive(Clone, Copy, Debug)]
pub struct Slab {
    /// Its thickness, in cm.
    pub thickness: f64,
    /// Absorptions per cm of path.
    pub absorption: f64,
    /// Scatterings per cm of path, into any direction alike.
    pub scattering: f64,
}

/// Where a particle ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fate {
    /// Absorbed at this depth.
    Absorbed(f64),
    /// Out where it came in.
    Reflected,
    /// Out on the far side.
    Transmitted,
}

impl Slab {
    /// Follows the particle of this number: its fate, and how often it was scattered.
    pub fn follow(&self, seed: u64, number: u64) -> (Fate, u64) {
        let mut random = Stream::new(seed, number);
        let total = self.absorption + self.scattering;
        let absorbed = self.absorption / total;
        // Depth, and the part of the path that leads deeper.
        let (mut depth, mut cosine) = (0.0, 1.0);
        for scatterings in 0.. {
            depth += random.exponential() / total * cosine;
            if depth < 0.0 {
                return (Fate::Reflected, scatterings);
            }
            if depth >= self.thickness {
                return (Fate::Transmitted, scatterings);
            }
            if random.unit() < absorbed {
                return (Fate::Absorbed(depth), scatterings);
            }
            cosine = random.uniform(-1.0..1.0);
        }
        unreachable!("every particle ends before its collisions cannot be counted")
    }

    /// Follows the particle of this number and counts it: the bins of depth, then reflected, transmitted and scatterings.
    fn count(&self, seed: u64, number: u64, counts: &mut [u64]) {
        let bins = counts.len() - 3;
        let (fate, scatterings) = self.follow(seed, number);
        counts[self.place(fate, bins)] += 1;
        counts[bins + 2] += scatterings;
    }

    /// Where an end is counted, of `bins` bins and what follows them.
    fn place(&self, fate: Fate, bins: usize) -> usize {
        match fate {
            Fate::Absorbed(depth) => ((depth / self.thickness * bins as f64) as usize).min(bins - 1),
            Fate::Reflected => bins,
            Fate::Transmitted => bins + 1,
        }
    }

    /// The part of the particles that have no collision before `depth`.
    pub fn uncollided(&self, depth: f64) -> f64 {
        (-(self.absorption + self.scattering) * depth).exp()
    }
}

/// The counts so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tallies {
    /// Absorptions in each bin of depth, bins of equal thickness.
    pub absorbed: Vec<u64>,
    /// Particles that came out where they came in.
    pub reflected: u64,
    /// Particles that came out on the far side.
    pub transmitted: u64,
    /// Scatterings.
    pub scatterings: u64,
}

impl Tallies {
    /// The bins, then the three other tallies.
    fn of(mut absorbed: Vec<u64>, bins: usize) -> Tallies {
        let rest = absorbed.split_off(bins);
        Tallies { absorbed, reflected: rest[0], transmitted: rest[1], scatterings: rest[2] }
    }

    /// Particles whose end was counted.
    pub fn particles(&self) -> u64 {
        self.absorbed.iter().sum::<u64>() + self.reflected + self.transmitted
    }
}

/// Particles that a rank takes at a time.
const BATCH: u64 = 1000;

/// Follows `particles` particles, and returns the tallies, the same on every rank, and how many particles each rank has
/// followed. `progress` gets the number of particles that have been begun. Collective.
///
/// # Errors
/// Out of memory, or a rank was lost.
pub fn run(
    world: &World,
    slab: &Slab,
    particles: u64,
    bins: usize,
    seed: u64,
    mut progress: impl FnMut(u64),
) -> Result<(Tallies, Vec<u64>)> {
    let scattered = bins + 2;
    let tallies = GlobalArray::<u64, 1>::new(world, Layout::block([bins + 3], world.size())?)?.share(world)?;
    let begun = world.alloc::<u64>(1)?;
    let mut followed = 0;
    loop {
        // Rank 0 keeps the number of the next particle; each rank that is ready takes the next batch.
        let first = begun.fetch_add(0, 0, BATCH)?;
        if first >= particles {
            break;
        }
        progress(first);
        for number in first..particles.min(first + BATCH) {
            let (fate, scatterings) = slab.follow(seed, number);
            tallies.fetch_add(slab.place(fate, bins), 1)?;
            if scatterings > 0 {
                tallies.fetch_add(scattered, scatterings)?;
            }
            followed += 1;
        }
    }
    // Everyone is done adding; now all may read.
    world.barrier()?;
    let found = Tallies::of(tallies.get_patch(0..bins + 3)?, bins);
    Ok((found, world.allgather(&[followed])?))
}

/// How far the tallies of a pure absorber are from the exponential law.
#[derive(Clone, Copy, Debug)]
pub struct Deviation {
    /// The deviation of the transmitted particles, in standard deviations.
    pub transmitted: f64,
    /// The deviation of all bins together: chi square.
    pub chi_square: f64,
    /// Degrees of freedom of `chi_square`.
    pub freedom: usize,
}

impl Deviation {
    /// How many standard deviations are allowed: chance is beyond them once in a million times.
    pub const ALLOWED: f64 = 5.0;

    /// The most that `chi_square` may be.
    pub fn most(&self) -> f64 {
        let freedom = self.freedom as f64;
        // Its mean, and its standard deviation.
        freedom + Self::ALLOWED * (2.0 * freedom).sqrt().max(2.0)
    }

    /// Whether the tallies can be those of the law.
    pub fn is_chance(&self) -> bool {
        self.transmitted.abs() <= Self::ALLOWED && self.chi_square <= self.most()
    }
}

/// Compares tallies with the exponential law of a slab that only absorbs. Neighbouring bins that expect few particles
/// are taken together, since chi square is for many.
pub fn deviation(slab: &Slab, tallies: &Tallies) -> Deviation {
    const FEW: f64 = 20.0;
    let (particles, bins) = (tallies.particles() as f64, tallies.absorbed.len());
    let expected = slab.uncollided(slab.thickness);
    let spread = (particles * expected * (1.0 - expected)).sqrt();
    let transmitted = (tallies.transmitted as f64 - particles * expected) / spread.max(1.0);
    let edge = |bin: usize| slab.uncollided(slab.thickness * bin as f64 / bins as f64);
    let (mut chi_square, mut freedom) = (0.0, 0);
    let (mut wanted, mut found) = (0.0, 0.0);
    for (bin, absorbed) in tallies.absorbed.iter().enumerate() {
        wanted += particles * (edge(bin) - edge(bin + 1));
        found += *absorbed as f64;
        if wanted >= FEW {
            chi_square += (found - wanted) * (found - wanted) / wanted;
            freedom += 1;
            (wanted, found) = (0.0, 0.0);
        }
    }
    Deviation { transmitted, chi_square, freedom }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tallies(slab: &Slab, particles: u64) -> Tallies {
        let mut tallies = Tallies { absorbed: vec![0; 50], ..Tallies::default() };
        for number in 0..particles {
            match slab.follow(3, number).0 {
                Fate::Absorbed(depth) => tallies.absorbed[(depth / slab.thickness * 50.0) as usize] += 1,
                Fate::Reflected => tallies.reflected += 1,
                Fate::Transmitted => tallies.transmitted += 1,
            }
        }
        tallies
    }

    #[test]
    fn an_absorber_follows_the_law_and_another_one_does_not() {
        let slab = Slab { thickness: 3.0, absorption: 1.0, scattering: 0.0 };
        let found = tallies(&slab, 100_000);
        assert!(deviation(&slab, &found).is_chance(), "{:?}", deviation(&slab, &found));
        let thicker = Slab { absorption: 1.04, ..slab };
        assert!(!deviation(&thicker, &found).is_chance());
        assert_eq!(found.reflected, 0);
    }

    #[test]
    fn a_thin_scatterer_reflects_as_much_as_it_adds_behind() {
        // Few particles are scattered, each once, and half of these go back.
        let slab = Slab { thickness: 0.01, absorption: 0.0, scattering: 1.0 };
        let found = tallies(&slab, 200_000);
        let half = 200_000.0 * (1.0 - slab.uncollided(0.01)) / 2.0;
        assert!((found.reflected as f64 - half).abs() < 0.05 * half + 5.0 * half.sqrt(), "{found:?}");
    }
}
