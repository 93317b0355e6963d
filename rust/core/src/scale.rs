//! The scale of a noise law: an exact rational number of grid units.

#![expect(clippy::inline_always, reason = "see geometric")]

use crate::Error;
use crate::ratio::{Ratio, gcd};

/// Bits of the largest numerator. With a unit geometric below 2^11 the sampler's products then stay below 2^63.
const NUMERATOR_BITS: u32 = 52;
/// Bits of the largest denominator. Its 64-fold then stays below 2^64.
const DENOMINATOR_BITS: u32 = 57;

/// A scale `b = numerator / denominator` in grid units: the noise law falls by `exp(-1/b)` per grid unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale {
    numerator: u64,
    denominator: u64,
    divisor: Divisor,
}

impl Scale {
    /// The smallest representable scale that is at least `sensitivity / epsilon`.
    ///
    /// # Guarantee
    /// The scale is never below `sensitivity / epsilon`, so the cost per `sensitivity` grid units never exceeds
    /// `epsilon`. It is exact whenever the reduced fraction has at most 52 bits above and 57 below; otherwise it is
    /// rounded up, by less than one part in 2^51 if it is at least 2^-5.
    ///
    /// # Errors
    /// [`Error::Parameter`] if `sensitivity` is zero or the scale would exceed 2^52 grid units.
    pub fn new(sensitivity: u64, epsilon: &Ratio) -> Result<Self, Error> {
        if sensitivity == 0 {
            return Err(Error::parameter("sensitivity", 0, "positive"));
        }
        let too_small = || {
            let given = format!("{}/{}", epsilon.numerator(), epsilon.denominator());
            let bound = format!("at least sensitivity/grid * 2^-52 = {sensitivity} * 2^-52 (or use a coarser grid)");
            Error::parameter("epsilon", given, bound)
        };
        // An overflow here means a scale above 2^64, since the numerator of epsilon has at most 64 bits.
        let numerator = u128::from(sensitivity).checked_mul(epsilon.denominator()).ok_or_else(too_small)?;
        Self::at_least(numerator, epsilon.numerator()).ok_or_else(too_small)
    }

    /// The smallest representable scale that is at least `numerator / denominator`; `None` if that exceeds 2^52.
    fn at_least(numerator: u128, denominator: u64) -> Option<Self> {
        let wide = u128::from(denominator);
        let common = gcd(numerator, wide);
        let reduced = (u64::try_from(numerator.checked_div(common)?), u64::try_from(wide.checked_div(common)?));
        if let (Ok(numerator), Ok(denominator)) = reduced
            && numerator >> NUMERATOR_BITS == 0
            && denominator >> DENOMINATOR_BITS == 0
        {
            return Self::exact(numerator, denominator);
        }
        // Long division in base two, stopped when either part is full, then rounded up.
        let mut quotient = numerator.checked_div(wide)?;
        let mut remainder = numerator.checked_rem(wide)?;
        let mut shift = 0;
        while quotient >> NUMERATOR_BITS.checked_sub(1)? == 0 && shift < DENOMINATOR_BITS.checked_sub(1)? {
            remainder = remainder.checked_mul(2)?;
            let digit = u128::from(remainder >= wide);
            remainder = remainder.checked_sub(digit.checked_mul(wide)?)?;
            quotient = quotient.checked_mul(2)?.checked_add(digit)?;
            shift = shift.checked_add(1)?;
        }
        let quotient = u64::try_from(quotient.checked_add(u128::from(remainder > 0))?).ok()?;
        if quotient > 1 << NUMERATOR_BITS {
            return None;
        }
        Self::exact(quotient, 1_u64.checked_shl(shift)?)
    }

    fn exact(numerator: u64, denominator: u64) -> Option<Self> {
        Some(Self { numerator, denominator, divisor: Divisor::new(denominator.checked_mul(64)?)? })
    }

    /// Numerator of the scale.
    #[must_use]
    pub const fn numerator(&self) -> u64 {
        self.numerator
    }

    /// Denominator of the scale.
    #[must_use]
    pub const fn denominator(&self) -> u64 {
        self.denominator
    }

    /// `floor(value / (64 * denominator))`, for `value < 2^63`.
    #[inline(always)]
    pub(crate) fn quotient(&self, value: u64) -> u64 {
        self.divisor.divide(value)
    }

    /// `64 * denominator`.
    pub(crate) fn divisor(&self) -> u128 {
        u128::from(self.divisor.divisor)
    }
}

/// Exact division by a fixed number through its rounded reciprocal, about five times as fast as the instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Divisor {
    divisor: u64,
    reciprocal: u64,
}

impl Divisor {
    fn new(divisor: u64) -> Option<Self> {
        Some(Self { divisor, reciprocal: u64::MAX.checked_div(divisor)? })
    }

    /// `floor(value / divisor)` for `value < 2^63` and `divisor >= 2`.
    ///
    /// The estimate `value * reciprocal / 2^64` never exceeds the quotient, and since the reciprocal is short by less
    /// than one part in itself plus `1/divisor`, it falls short by less than two: one correction is enough.
    #[inline(always)]
    #[expect(clippy::arithmetic_side_effects, reason = "the estimate is at most the quotient, so nothing overflows")]
    fn divide(&self, value: u64) -> u64 {
        let estimate = high_product(value, self.reciprocal);
        let remainder = value - estimate * self.divisor;
        estimate + u64::from(remainder >= self.divisor)
    }
}

/// The upper 64 bits of a product.
#[inline(always)]
#[expect(clippy::as_conversions, reason = "the shifted product has 64 bits")]
fn high_product(a: u64, b: u64) -> u64 {
    (u128::from(a).wrapping_mul(u128::from(b)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn scale(sensitivity: u64, numerator: u128, denominator: u128) -> Result<Scale, Error> {
        Scale::new(sensitivity, &Ratio::new("epsilon", numerator, denominator)?)
    }

    #[test]
    fn a_fraction_that_fits_is_kept_exactly() {
        let tenth = scale(1024, 1, 10).unwrap();
        assert_eq!((tenth.numerator(), tenth.denominator()), (10_240, 1));
        let reduced = scale(6, 4, 1).unwrap();
        assert_eq!((reduced.numerator(), reduced.denominator()), (3, 2));
    }

    #[test]
    fn a_scale_beyond_two_to_the_52_is_refused() {
        assert!(scale(1, 1, 1 << 52).is_ok());
        assert!(scale(1, 1, (1 << 52) + 1).is_err());
        assert!(scale(u64::MAX, 1, u128::MAX).is_err());
        assert!(scale(0, 1, 1).is_err());
    }

    proptest! {
        #[test]
        fn a_rounded_scale_is_never_below_and_hardly_above(
            sensitivity in 1_u64..1 << 50, numerator in 1_u64.., denominator in 1_u64..
        ) {
            if let Ok(scale) = scale(sensitivity, numerator.into(), denominator.into()) {
                let big = |value: u64| num_bigint::BigUint::from(value);
                // scale >= wanted, and (scale - wanted) <= wanted * 2^-51 + 2^-56.
                let given = big(scale.numerator()) * big(numerator);
                let wanted = big(sensitivity) * big(denominator) * big(scale.denominator());
                prop_assert!(given >= wanted);
                let slack = (&wanted >> 51) + ((big(numerator) * big(scale.denominator())) >> 56) + 1_u8;
                prop_assert!(given - wanted <= slack);
            }
        }

        #[test]
        fn division_by_the_reciprocal_is_division(value in 0_u64..1 << 63, divisor in 2_u64..) {
            prop_assert_eq!(Divisor::new(divisor).unwrap().divide(value), value / divisor);
        }

        #[test]
        fn division_is_right_around_multiples(divisor in 2_u64..1 << 40, multiple in 0_u64..1 << 22, off in -1_i64..2) {
            let value = (divisor * multiple).saturating_add_signed(off).min((1 << 63) - 1);
            prop_assert_eq!(Divisor::new(divisor).unwrap().divide(value), value / divisor);
        }
    }
}
