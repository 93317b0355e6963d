//! The grid: where floats become integers and where they leave again.

use crate::Error;

/// Largest exponent, in size, of a grid. Keeps every product with a 63-bit integer finite and exact.
const MAX_EXPONENT: i32 = 900;
/// Clamped values stay within this many grid units, so that they and the way back are exact doubles.
const MAX_UNITS: f64 = 9_007_199_254_740_992.0;

/// A grid of public step `2^exponent` between public bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Grid {
    step: f64,
    inverse: f64,
    lower: f64,
    upper: f64,
    /// The biased exponent of a quarter of the step: what has a smaller one is zero steps.
    smallest: u64,
}

impl Grid {
    /// A grid of the given step, which must be a power of two, between `lower < upper`.
    ///
    /// # Errors
    /// [`Error::Parameter`] if the step is not a power of two from 2^-900 to 2^900, the bounds are not finite or not
    /// in order, or a bound lies more than 2^53 steps from zero.
    pub fn new(step: f64, lower: f64, upper: f64) -> Result<Self, Error> {
        let inverse = power_of_two(step)
            .and_then(i32::checked_neg)
            .map(two_to_the)
            .ok_or_else(|| Error::parameter("grid", format!("{step:?}"), "a power of two from 2^-900 to 2^900"))?;
        for (name, value) in [("bounds[0]", lower), ("bounds[1]", upper)] {
            if !value.is_finite() {
                return Err(Error::parameter(name, format!("{value:?}"), "finite"));
            }
            if scaled(value, inverse).abs() > MAX_UNITS {
                let bound = format!("at most 2^53 grid steps of {step:?} from zero (or use a coarser grid)");
                return Err(Error::parameter(name, format!("{value:?}"), bound));
            }
        }
        if lower >= upper {
            return Err(Error::parameter("bounds[0]", format!("{lower:?}"), format!("below bounds[1] = {upper:?}")));
        }
        let smallest = exponent_bits(step).saturating_sub(2);
        Ok(Self { step, inverse, lower, upper, smallest })
    }

    /// The public bounds that values are clamped to.
    #[must_use]
    pub const fn bounds(&self) -> (f64, f64) {
        (self.lower, self.upper)
    }

    /// The step.
    #[must_use]
    pub const fn step(&self) -> f64 {
        self.step
    }

    /// Clamps every value to the bounds and rounds it to `floor(x/step + 1/2)` grid units.
    ///
    /// # Guarantee
    /// Values that differ by at most `a` become integers that differ by at most [`Grid::sensitivity`] of `a`. Clamping
    /// brings values no further apart, division by a power of two is exact, and `floor(y + 1/2)` moves by at most
    /// `ceil(|y - y'|)`, which rounding half to even or half away from zero does not satisfy.
    ///
    /// # Errors
    /// [`Error::Empty`] or [`Error::NotFinite`], before anything is returned.
    pub fn quantise(&self, values: &[f64]) -> Result<Vec<i64>, Error> {
        check(values)?;
        Ok(values.iter().map(|&value| self.units(value)).collect())
    }

    /// A public number, unclamped, as the nearest number of grid units.
    ///
    /// # Errors
    /// [`Error::Parameter`] if it is not finite or more than 2^53 steps from zero.
    pub fn nearest(&self, threshold: f64) -> Result<i64, Error> {
        let wide = Self { lower: f64::MIN, upper: f64::MAX, ..*self };
        if scaled(threshold, self.inverse).abs() <= MAX_UNITS {
            return Ok(wide.units(threshold));
        }
        let bound = format!("at most 2^53 grid steps of {:?} from zero", self.step);
        Err(Error::parameter("threshold", format!("{threshold:?}"), bound))
    }

    /// The largest size of a quantised value.
    #[must_use]
    pub fn largest(&self) -> u64 {
        self.units(self.lower).unsigned_abs().max(self.units(self.upper).unsigned_abs())
    }

    /// The door where floats enter: `floor(clamped/step + 1/2)`, exactly.
    ///
    /// Nothing branches on the value. What is smaller than a quarter of a step becomes zero by its bits before it is
    /// multiplied, since processors take long over subnormal numbers.
    #[inline]
    #[expect(clippy::float_arithmetic, reason = "the difference of a number and its integer part is exact")]
    #[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "at most 2^53 in size, so exact")]
    #[expect(clippy::cast_precision_loss, reason = "at most 2^53 in size, so exact")]
    #[expect(clippy::arithmetic_side_effects, reason = "at most 2^53 in size")]
    fn units(&self, value: f64) -> i64 {
        let raised = if value < self.lower { self.lower } else { value };
        let clamped = if raised > self.upper { self.upper } else { raised };
        let kept = u64::from(exponent_bits(clamped) >= self.smallest).wrapping_neg();
        let units = scaled(f64::from_bits(clamped.to_bits() & kept), self.inverse);
        let truncated = units as i64;
        let fraction = units - truncated as f64;
        truncated + i64::from(fraction >= 0.5) - i64::from(fraction < -0.5)
    }

    /// `ceil(sensitivity/step)`: how far a quantised value can move when the value moves by `sensitivity`.
    ///
    /// # Errors
    /// [`Error::Parameter`] if `sensitivity` is not positive and finite, or exceeds 2^53 steps.
    #[expect(
        clippy::as_conversions,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "from 0 to 2^53"
    )]
    pub fn sensitivity(&self, sensitivity: f64) -> Result<u64, Error> {
        let refused = |bound: String| Error::parameter("sensitivity", format!("{sensitivity:?}"), bound);
        if !sensitivity.is_finite() || sensitivity <= 0.0 {
            return Err(refused("positive and finite".into()));
        }
        let units = scaled(sensitivity, self.inverse);
        if units > MAX_UNITS {
            return Err(refused(format!("at most 2^53 grid steps of {:?}", self.step)));
        }
        // Underflow of the quotient can only happen far below one step, which rounds up to one.
        Ok((units.ceil() as u64).max(1))
    }

    /// The door where values leave: `units * step`, exact up to 2^53 units and the nearest double beyond.
    ///
    /// # Guarantee
    /// A function of the noisy integers alone, so it costs nothing.
    #[must_use]
    #[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "rounds to the nearest double beyond 2^53")]
    pub fn values(&self, units: Vec<i64>) -> Vec<f64> {
        units.into_iter().map(|units| scaled(units as f64, self.step)).collect()
    }
}

/// The largest power of two that is at most `sensitivity / 1024`.
///
/// # Errors
/// [`Error::Parameter`] if `sensitivity` is not finite and positive, or too small or too large for a grid.
pub fn default_step(sensitivity: f64) -> Result<f64, Error> {
    let refused = |bound| Error::parameter("sensitivity", format!("{sensitivity:?}"), bound);
    if !sensitivity.is_finite() || sensitivity <= 0.0 {
        return Err(refused("positive and finite"));
    }
    binary_exponent(sensitivity)
        .and_then(|exponent| exponent.checked_sub(10))
        .filter(|exponent| exponent.unsigned_abs() <= MAX_EXPONENT.unsigned_abs())
        .map(two_to_the)
        .ok_or_else(|| refused("from 2^-890 to 2^910"))
}

/// Refuses data that is empty or not finite.
///
/// # Errors
/// [`Error::Empty`] or [`Error::NotFinite`].
pub fn check(values: &[f64]) -> Result<(), Error> {
    if values.is_empty() {
        return Err(Error::Empty);
    }
    // All values are looked at before the first bad one is searched for: without an early exit the loop is a few vector
    // instructions.
    if values.iter().fold(true, |finite, value| finite & value.is_finite()) {
        return Ok(());
    }
    let found = values.iter().enumerate().find(|(_, value)| !value.is_finite());
    Err(found.map_or(Error::Empty, |(index, &value)| Error::NotFinite { index, value }))
}

/// A product with a power of two, which is exact unless it falls below the normal range, far below half a step.
#[inline]
#[expect(clippy::float_arithmetic, reason = "one factor is a power of two")]
fn scaled(value: f64, power: f64) -> f64 {
    value * power
}

/// The exponent as it stands in the bits, zero for subnormal numbers.
#[inline]
const fn exponent_bits(value: f64) -> u64 {
    (value.to_bits() >> 52) & 0x7ff
}

/// The exponent of a normal double, `None` for subnormal ones.
fn binary_exponent(value: f64) -> Option<i32> {
    let biased = i32::try_from((value.to_bits() >> 52) & 0x7ff).ok()?;
    if biased == 0 { None } else { biased.checked_sub(1023) }
}

/// The exponent of a power of two within the limits of a grid.
fn power_of_two(value: f64) -> Option<i32> {
    let exponent = binary_exponent(value).filter(|e| e.unsigned_abs() <= MAX_EXPONENT.unsigned_abs())?;
    (two_to_the(exponent).to_bits() == value.to_bits()).then_some(exponent)
}

/// `2^exponent` for an exponent of a normal double.
fn two_to_the(exponent: i32) -> f64 {
    f64::from_bits(u64::try_from(exponent.saturating_add(1023)).unwrap_or(0) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;
    use num_bigint::BigInt;
    use num_rational::BigRational;
    use proptest::prelude::*;

    fn grid(step: f64) -> Grid {
        Grid::new(step, -1e6, 1e6).unwrap()
    }

    fn exact(value: f64) -> BigRational {
        BigRational::from_float(value).unwrap()
    }

    #[test]
    fn ties_round_up_on_both_sides_of_zero() {
        let units = grid(1.0).quantise(&[-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, -0.0, 2.4, -2.6]).unwrap();
        assert_eq!(units, [-2, -1, 0, 1, 2, 3, 0, 2, -3]);
        assert_eq!(grid(0.25).quantise(&[0.125, -0.125, 0.374]).unwrap(), [1, 0, 1]);
    }

    #[test]
    fn values_beyond_the_bounds_are_clamped() {
        let grid = Grid::new(1.0, -3.0, 10.0).unwrap();
        assert_eq!(grid.quantise(&[-1e300, 1e300, 4.0]).unwrap(), [-3, 10, 4]);
    }

    #[test]
    fn what_is_not_finite_is_refused() {
        assert_eq!(grid(1.0).quantise(&[]), Err(Error::Empty));
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(matches!(grid(1.0).quantise(&[0.0, bad]), Err(Error::NotFinite { index: 1, .. })));
            assert!(Grid::new(1.0, bad, 1.0).is_err() && Grid::new(1.0, 0.0, bad).is_err());
            assert!(Grid::new(bad, 0.0, 1.0).is_err());
            assert!(grid(1.0).sensitivity(bad).is_err() && default_step(bad).is_err());
        }
    }

    #[test]
    fn only_powers_of_two_are_steps() {
        for bad in [0.0, -1.0, 3.0, 0.1, 1.0 + f64::EPSILON, f64::MIN_POSITIVE, 5e-324, 2_f64.powi(901), -0.5] {
            assert!(Grid::new(bad, 0.0, 1.0).is_err(), "{bad}");
        }
        assert!(Grid::new(2_f64.powi(900), 0.0, 1.0).is_ok());
        assert!(Grid::new(2_f64.powi(-900), 0.0, 2_f64.powi(-900)).is_ok());
    }

    #[test]
    fn bounds_must_be_in_order_and_in_reach() {
        assert!(Grid::new(1.0, 1.0, 1.0).is_err());
        assert!(Grid::new(1.0, 2.0, 1.0).is_err());
        assert!(Grid::new(1.0, 0.0, 2_f64.powi(53)).is_ok());
        assert!(Grid::new(1.0, 0.0, 2_f64.powi(53) + 2.0).is_err());
        assert!(Grid::new(2_f64.powi(-900), 0.0, 1e300).is_err());
    }

    #[test]
    fn the_default_step_is_the_largest_power_of_two_that_fits() {
        assert_eq!(default_step(1.0), Ok(2_f64.powi(-10)));
        assert_eq!(default_step(10.0), Ok(2_f64.powi(-7)));
        assert_eq!(default_step(1023.99), Ok(0.5));
        assert_eq!(default_step(1024.0), Ok(1.0));
        assert!(default_step(0.0).is_err() && default_step(-1.0).is_err() && default_step(1e-300).is_err());
    }

    #[test]
    fn values_far_below_a_step_are_zero_steps() {
        for step in [2_f64.powi(-900), 2_f64.powi(-10), 1.0, 2_f64.powi(900)] {
            let grid = Grid::new(step, -step, step).unwrap();
            let small = [5e-324, f64::MIN_POSITIVE, step / 4.0, step / 2.0 - step / 1024.0];
            assert_eq!(grid.quantise(&small).unwrap(), [0; 4]);
            assert_eq!(grid.quantise(&small.map(|value| -value)).unwrap(), [0; 4]);
            assert_eq!(grid.quantise(&[step / 2.0, -step / 2.0, -0.51 * step]).unwrap(), [1, 0, -1]);
        }
    }

    proptest! {
        #[test]
        fn quantisation_is_floor_of_x_over_step_plus_half(value in -1e6_f64..1e6, exponent in -30_i32..20) {
            let step = 2_f64.powi(exponent);
            let units = grid(step).quantise(&[value]).unwrap()[0];
            let half = BigRational::new(1.into(), 2.into());
            prop_assert_eq!(BigInt::from(units), (exact(value) / exact(step) + half).floor().to_integer());
        }

        #[test]
        fn quantisation_never_widens_sensitivity(
            value in -1e6_f64..1e6, change in -100_f64..100.0, exponent in -12_i32..8, tie: bool,
        ) {
            let grid = grid(2_f64.powi(exponent));
            // Half of the cases start on a tie, where other roundings fail.
            let value = if tie { ((value / grid.step()).floor() + 0.5) * grid.step() } else { value };
            let other = value + change;
            let gap = exact(value) - exact(other);
            let units = grid.quantise(&[value, other]).unwrap();
            let moved = BigInt::from(units[0].abs_diff(units[1]));
            let steps = if gap < BigRational::from_integer(0.into()) { -gap } else { gap } / exact(grid.step());
            prop_assert!(moved <= steps.ceil().to_integer());
        }

        #[test]
        fn sensitivity_is_the_ceiling(value in 1e-9_f64..1e6, exponent in -20_i32..8) {
            let grid = grid(2_f64.powi(exponent));
            let expected = (exact(value) / exact(grid.step())).ceil().to_integer();
            prop_assert_eq!(BigInt::from(grid.sensitivity(value).unwrap()), expected);
        }

        #[test]
        fn the_way_back_is_exact(units in -(1_i64 << 53)..1 << 53, exponent in -900_i32..900) {
            let step = 2_f64.powi(exponent);
            let grid = Grid::new(step, 0.0, step).unwrap();
            let value = grid.values(vec![units])[0];
            prop_assert_eq!(exact(value), exact(step) * BigInt::from(units));
        }
    }
}
