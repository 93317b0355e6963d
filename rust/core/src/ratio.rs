//! Exact positive rationals, the type of a privacy budget.

use crate::Error;

/// A positive rational in lowest terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ratio {
    numerator: u64,
    denominator: u128,
}

impl Ratio {
    /// `numerator / denominator`, reduced.
    ///
    /// A numerator that then exceeds 64 bits is shortened, and the fraction rounded down by less than one part in 2^60: a
    /// budget is never overspent.
    ///
    /// # Errors
    /// [`Error::Parameter`], naming `parameter`, if either part is zero or the fraction exceeds 2^60.
    pub fn new(parameter: &'static str, numerator: u128, denominator: u128) -> Result<Self, Error> {
        let refused = |bound| Error::parameter(parameter, format!("{numerator}/{denominator}"), bound);
        if numerator == 0 || denominator == 0 {
            return Err(refused("positive and finite"));
        }
        let divisor = gcd(numerator, denominator);
        let reduced = (numerator.checked_div(divisor).unwrap_or(0), denominator.checked_div(divisor).unwrap_or(0));
        if let Ok(numerator) = u64::try_from(reduced.0) {
            return Ok(Self { numerator, denominator: reduced.1 });
        }
        let surplus = 64_u32.saturating_sub(reduced.0.leading_zeros());
        let shortened = u64::try_from(reduced.0 >> surplus).unwrap_or(u64::MAX);
        let denominator = (reduced.1 >> surplus).saturating_add(1);
        if u128::from(shortened) >> 60 >= denominator {
            return Err(refused("at most 2^60"));
        }
        Ok(Self { numerator: shortened, denominator })
    }

    /// The rational that a float *shows*: the shortest decimal that reads back as `value`, so that 0.1 is one tenth.
    ///
    /// Budgets are written by people. Taking the binary value instead would spend 5e-18 more than the 0.1 that was
    /// asked for and stated, and ten of them would not add up to one.
    ///
    /// # Errors
    /// [`Error::Parameter`] if `value` is not finite and positive, or so small that its denominator exceeds 10^38.
    pub fn from_shortest_decimal(parameter: &'static str, value: f64) -> Result<Self, Error> {
        let refused = |bound| Error::parameter(parameter, format!("{value:?}"), bound);
        if !value.is_finite() || value <= 0.0 {
            return Err(refused("positive and finite"));
        }
        // Formatting is the only thing done with the float: no arithmetic, hence no rounding.
        let text = format!("{value:e}");
        let parts = text.split_once('e').and_then(|(mantissa, exponent)| {
            let decimals = mantissa.split_once('.').map_or(0, |(_, fraction)| fraction.len());
            let digits: u128 = mantissa.replace('.', "").parse().ok()?;
            let exponent: i64 = exponent.parse().ok()?;
            Some((digits, exponent.checked_sub(i64::try_from(decimals).ok()?)?))
        });
        let (digits, exponent) = parts.ok_or_else(|| refused("a decimal number"))?;
        let magnitude = u32::try_from(exponent.unsigned_abs()).unwrap_or(u32::MAX);
        let power = 10_u128.checked_pow(magnitude).ok_or_else(|| refused("between 1e-20 and 1e19"))?;
        if exponent < 0 {
            return Self::new(parameter, digits, power);
        }
        let numerator = digits.checked_mul(power).ok_or_else(|| refused("between 1e-20 and 1e19"))?;
        Self::new(parameter, numerator, 1)
    }

    /// The reduced numerator.
    #[must_use]
    pub const fn numerator(&self) -> u64 {
        self.numerator
    }

    /// The reduced denominator.
    #[must_use]
    pub const fn denominator(&self) -> u128 {
        self.denominator
    }
}

/// Greatest common divisor; `gcd(a, 0) = a`.
pub(crate) fn gcd(mut a: u128, mut b: u128) -> u128 {
    while let Some(remainder) = a.checked_rem(b) {
        (a, b) = (b, remainder);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_float_is_read_as_the_decimal_it_shows() {
        let read = |value| Ratio::from_shortest_decimal("epsilon", value).map(|r| (r.numerator, r.denominator));
        assert_eq!(read(0.1), Ok((1, 10)));
        assert_eq!(read(1.0), Ok((1, 1)));
        assert_eq!(read(2.5), Ok((5, 2)));
        assert_eq!(read(0.01), Ok((1, 100)));
        assert_eq!(read(1e15), Ok((1_000_000_000_000_000, 1)));
        assert_eq!(read(1.25e-5), Ok((1, 80_000)));
    }

    #[test]
    fn values_that_are_no_budget_are_refused() {
        for value in [0.0, -0.0, -1.0, f64::NAN, f64::INFINITY, 1e-300, 1e300, f64::MIN_POSITIVE] {
            assert!(Ratio::from_shortest_decimal("epsilon", value).is_err(), "{value}");
        }
        assert!(Ratio::new("epsilon", 0, 1).is_err());
        assert!(Ratio::new("epsilon", 1, 0).is_err());
        assert!(Ratio::new("epsilon", u128::MAX, 1).is_err());
        assert!(Ratio::new("epsilon", u128::MAX, 1 << 50).is_err());
    }

    proptest! {
        #[test]
        fn a_long_fraction_is_rounded_down_and_hardly(numerator in 1_u128.., denominator in 1_u128..) {
            if let Ok(ratio) = Ratio::new("epsilon", numerator, denominator) {
                let big = |value: u128| num_bigint::BigUint::from(value);
                let given = big(ratio.numerator.into()) * big(denominator);
                let wanted = big(numerator) * big(ratio.denominator);
                prop_assert!(given <= wanted);
                // Short denominators lose more: the fraction then is large, beyond any sensible budget.
                if ratio.denominator >> 61 > 0 || given == wanted {
                    prop_assert!((wanted.clone() - given) <= wanted >> 60);
                }
            }
        }

        #[test]
        fn the_decimal_reads_back_as_the_same_float(value in 1e-15_f64..1e15) {
            let ratio = Ratio::from_shortest_decimal("epsilon", value).unwrap();
            let text = format!("{}", num_rational::Ratio::new(
                num_bigint::BigInt::from(ratio.numerator), num_bigint::BigInt::from(ratio.denominator)));
            // Long division to 40 digits, parsed back by the standard library, is an independent way to the float.
            let exact: num_rational::BigRational = text.parse().unwrap();
            let scaled = (exact * num_bigint::BigInt::from(10_u8).pow(60)).round().to_integer();
            prop_assert_eq!(format!("{scaled}e-60").parse::<f64>().unwrap().to_bits(), value.to_bits());
        }
    }
}
