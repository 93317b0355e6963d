//! Numbers with twice the digits of a float, for breakpoints whose slopes differ by more than a float can hold.

use std::ops::{Add, Div, Mul, Sub};

/// What the breakpoints are computed with.
pub(super) trait Number:
    Copy + From<f64> + PartialOrd + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// The nearest float.
    fn rounded(self) -> f64;
}

impl Number for f64 {
    fn rounded(self) -> f64 {
        self
    }
}

/// The unevaluated sum of two floats, of which the second is at most half a unit in the last place of the first.
///
/// The operations are those of Dekker (1971); their relative error is a few units of 2^-104.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub(super) struct Twofold(f64, f64);

impl Twofold {
    /// A sum without its rounding error: `high + low = a + b`.
    fn of_sum(a: f64, b: f64) -> Self {
        let high = a + b;
        let from_b = high - a;
        Self(high, (a - (high - from_b)) + (b - from_b))
    }

    fn with(self, low: f64) -> Self {
        Self::of_sum(self.0, self.1 + low)
    }
}

impl From<f64> for Twofold {
    fn from(value: f64) -> Self {
        Self(value, 0.0)
    }
}

impl Number for Twofold {
    fn rounded(self) -> f64 {
        self.0
    }
}

impl Add for Twofold {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let low = Self::of_sum(self.1, other.1);
        Self::of_sum(self.0, other.0).with(low.0).with(low.1)
    }
}

impl Sub for Twofold {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self + Self(-other.0, -other.1)
    }
}

impl Mul for Twofold {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        let high = self.0 * other.0;
        let low = self.0.mul_add(other.0, -high);
        Self(high, low).with(self.0 * other.1 + self.1 * other.0)
    }
}

impl Div for Twofold {
    type Output = Self;

    fn div(self, other: Self) -> Self {
        let first = self.0 / other.0;
        let rest = self - other * Self::from(first);
        let second = rest.0 / other.0;
        let rest = rest - other * Self::from(second);
        Self::of_sum(first, second).with(rest.0 / other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::{Number, Twofold};

    #[test]
    fn what_a_float_forgets_is_kept() {
        let (large, small) = (Twofold::from(1e16), Twofold::from(0.125));
        assert_eq!((large + small - large).rounded().to_bits(), 0.125_f64.to_bits());
        let third = Twofold::from(1.0) / Twofold::from(3.0);
        let rest = Twofold::from(1.0) - third * Twofold::from(3.0);
        assert!(rest.rounded().abs() < 1e-31, "{rest:?}");
        assert!((third.rounded() - 1.0 / 3.0).abs() < 1e-16);
    }
}
