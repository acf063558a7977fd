//! Logarithmic axes.

/// An axis from one value to another, drawn between two places of the picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// An axis from `low` to `high`, drawn from place `from` to place `to`.
    pub fn new(low: f64, high: f64, from: f64, to: f64) -> Axis {
        Axis { low, high, from, to }
    }

    /// Where a value lies.
    pub fn place(&self, value: f64) -> f64 {
        let share = (value / self.low).ln() / (self.high / self.low).ln();
        self.from + share * (self.to - self.from)
    }

    /// 1, 2 and 5 times the powers of ten on the axis, or the powers alone if it is long.
    pub fn decimal_ticks(&self) -> Vec<f64> {
        let decades = (self.high / self.low).log10();
        let steps: &[f64] = if decades > 3.5 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let powers = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
        let ticks = powers.flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
        ticks.filter(|tick| (self.low * 0.999..=self.high * 1.001).contains(tick)).collect()
    }
}

/// The smallest range of 1, 2, 5 times powers of ten that holds all values.
pub fn range(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let low = values.clone().fold(f64::INFINITY, f64::min);
    let high = values.fold(f64::NEG_INFINITY, f64::max);
    let steps = |value: f64| {
        let power = 10f64.powf(value.log10().floor());
        [1.0, 2.0, 5.0, 10.0].map(|step| step * power)
    };
    let below = steps(low).into_iter().rfind(|step| *step <= low * 1.0001).unwrap_or(low);
    let above = steps(high).into_iter().find(|step| *step >= high * 0.9999).unwrap_or(high);
    if above > below { (below, above) } else { (below / 2.0, above * 2.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_hold_their_values() {
        assert_eq!(range([3.0, 40.0].into_iter()), (2.0, 50.0));
        assert_eq!(range([1.0].into_iter()), (0.5, 2.0));
        let axis = Axis::new(1.0, 100.0, 0.0, 10.0);
        assert_eq!(axis.place(10.0), 5.0);
        assert_eq!(axis.decimal_ticks(), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
    }
}
