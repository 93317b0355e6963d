//! Binary digits of `1 - exp(-v/64)`, as many as anyone asks for, each one certain.
//!
//! Only a draw that agrees with the 25 tabulated bits of a threshold comes here, about once in 60,000 draws. Numbers are
//! fixed-point, most significant limb first: one limb of integer part, then the fraction.

/// Word number `index` (from 0) of the binary expansion of `2^shift * (1 - exp(-v/64))` after the binary point.
///
/// # Guarantee
/// The word is exact. The value is computed between two bounds, and with more limbs until both share the word and all
/// before it; as `exp(-v/64)` is irrational for `v >= 1`, they do in the end. Needs `1 <= v <= 512` and `shift <= 32`.
pub(crate) fn word(v: u32, shift: u32, index: usize) -> u64 {
    let mut limbs = index.saturating_add(3);
    loop {
        let (low, high) = bounds(v, shift, limbs);
        let wanted = index.saturating_add(2);
        if low.get(..wanted) == high.get(..wanted) {
            return low.get(wanted.saturating_sub(1)).copied().unwrap_or(0);
        }
        limbs = limbs.saturating_add(1);
    }
}

/// Lower and upper bounds of `2^shift * (1 - exp(-v/64))` that are 2^33 units of the last limb apart.
///
/// With `x = v/64 <= 8` the terms `2^shift x^j / j!` come from each other by one multiplication and one division that
/// rounds down, so the error `e_j` of term `j` is at most `e_{j-1} x/j + 1` units, and all errors together at most
/// `exp(8) < 2^12` units per term. The terms left out after the first that vanishes add at most twice its error. With
/// fewer than 2^19 terms the total stays below 2^32 units.
fn bounds(v: u32, shift: u32, limbs: usize) -> (Vec<u64>, Vec<u64>) {
    let mut term = vec![0; limbs];
    if let Some(integer) = term.first_mut() {
        *integer = 1 << shift;
    }
    let (mut odd, mut even) = (vec![0; limbs], vec![0; limbs]);
    for j in 1_u32.. {
        multiply(&mut term, u64::from(v));
        divide(&mut term, u64::from(j).saturating_mul(64));
        if term.iter().all(|&limb| limb == 0) {
            break;
        }
        add(if j % 2 == 1 { &mut odd } else { &mut even }, &term);
    }
    // 1 - exp(-x) is the sum of the odd terms less that of the even ones from j = 2.
    subtract(&mut odd, &even);
    let mut error = vec![0; limbs];
    if let Some(last) = error.last_mut() {
        *last = 1 << 32;
    }
    let mut low = odd.clone();
    subtract(&mut low, &error);
    add(&mut odd, &error);
    (low, odd)
}

/// The lower and the upper half.
#[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "splits 128 bits into two halves")]
const fn halves(value: u128) -> (u64, u64) {
    (value as u64, (value >> 64) as u64)
}

#[expect(clippy::arithmetic_side_effects, reason = "limb * factor + carry is below 2^128")]
fn multiply(number: &mut [u64], factor: u64) {
    let mut carry = 0;
    for limb in number.iter_mut().rev() {
        (*limb, carry) = halves(u128::from(*limb) * u128::from(factor) + u128::from(carry));
    }
}

#[expect(clippy::arithmetic_side_effects, reason = "the divisor is positive and the remainder below it")]
fn divide(number: &mut [u64], divisor: u64) {
    let mut remainder = 0;
    for limb in number {
        let value = (u128::from(remainder) << 64) | u128::from(*limb);
        (*limb, _) = halves(value / u128::from(divisor));
        (remainder, _) = halves(value % u128::from(divisor));
    }
}

fn add(number: &mut [u64], other: &[u64]) {
    let mut carry = false;
    for (limb, &addend) in number.iter_mut().zip(other).rev() {
        (*limb, carry) = carrying(u64::overflowing_add, *limb, addend, carry);
    }
}

fn subtract(number: &mut [u64], other: &[u64]) {
    let mut borrow = false;
    for (limb, &subtrahend) in number.iter_mut().zip(other).rev() {
        (*limb, borrow) = carrying(u64::overflowing_sub, *limb, subtrahend, borrow);
    }
}

fn carrying(operation: fn(u64, u64) -> (u64, bool), a: u64, b: u64, carry: bool) -> (u64, bool) {
    let (first, overflow) = operation(a, b);
    let (second, again) = operation(first, u64::from(carry));
    (second, overflow || again)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::word;
    use num_bigint::BigUint;
    use num_traits::{One, Zero};

    /// `floor(2^bits * exp(-a/b))` by another road: the reciprocal of the positive series, in big integers.
    pub(crate) fn exp_minus(a: u32, b: u32, bits: u32) -> BigUint {
        if a == 0 {
            return BigUint::one() << bits;
        }
        let guard = bits + 64;
        let (mut sum, mut term) = (BigUint::zero(), BigUint::one() << guard);
        for j in 1_u32.. {
            sum += &term;
            term = term * a / (u64::from(b) * u64::from(j));
            if term.is_zero() {
                break;
            }
        }
        let low = (BigUint::one() << (guard + bits)) / (&sum + 4096_u32);
        assert_eq!(low, (BigUint::one() << (guard + bits)) / &sum, "more guard bits are needed");
        low
    }

    #[test]
    fn words_agree_with_an_independent_series() {
        for v in (1..=512).step_by(7).chain([1, 2, 511, 512]) {
            for index in 0..4 {
                let bits = 25 + 64 * (u32::try_from(index).unwrap() + 1);
                // floor(2^bits (1 - e)) = 2^bits - floor(2^bits e) - 1, as e is irrational.
                let value = (BigUint::one() << bits) - exp_minus(v, 64, bits) - 1_u8;
                assert_eq!(BigUint::from(word(v, 25, index)), value % (BigUint::one() << 64), "v {v}, word {index}");
            }
        }
    }
}
