"""Gaussian privacy: what a change is worth under Gaussian noise, in exact rationals rounded to the safe side.

A window whose changes move Gaussian measurements by vectors of lengths ``d_i`` under noise of variances ``v_i`` is as
hard to tell from its neighbour as ``N(0, 1)`` from ``N(m, 1)`` with ``m^2 = sum d_i^2 / v_i``. What is added up is
``rho = m^2 / 2``. For every epsilon the smallest delta with which it is private is known in closed form (Balle and Wang
2018), and :func:`epsilon_from` and :func:`rho_from` invert it. Nothing here is a float: probabilities are bounded in
decimals of more than 60 digits, with errors that are added before anything is compared. See docs/privacy.md.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

from optstream.errors import ParameterError

__all__ = [
    "HIDDEN",
    "LARGEST_EPSILON",
    "SMALLEST_DELTA",
    "WORTH",
    "delta_of",
    "epsilon_from",
    "ratio_of",
    "rho_from",
    "rho_of",
    "root",
]

HIDDEN = 8
"""Variance, in grid units squared, that discrete noise needs more than continuous noise of the same worth."""
WORTH = Fraction(3927, 5000)
"""A little more than pi / 4: what a pure cost of 1 is worth in rho beside Gaussian noise; it grows with the square."""
SLACK = Decimal("1e-45")
"""What is added to epsilon and taken from delta for the difference of discrete and continuous noise: more than what
10^12 measurements in a window need, each a factor of at most 1 + 10^-67."""
SMALLEST_DELTA = Fraction(1, 10**30)
LARGEST_EPSILON = 100
"""Beyond these the digits that are computed with would not suffice."""
DIGITS = 140
ERROR = Decimal("1e-60")
"""More than all errors of :func:`delta_of` together: see there."""
FAR = 30
"""Standard deviations beyond which a normal variable lies with probability below 10^-190."""
PLACES = Decimal("1e-18")
"""What epsilon is rounded up to."""
SIGNIFICANT = 24
"""Digits to which rho is rounded down."""


def rho_of(moved: int | Fraction, sigma: Fraction) -> Fraction:
    """Return what a change by so many grid units costs under discrete Gaussian noise of a standard deviation.

    >>> rho_of(4, Fraction(6))
    Fraction(2, 7)
    """
    if sigma * sigma < 2 * HIDDEN:
        raise ParameterError(
            f"sigma is {float(sigma):.6g} grid steps, but must be at least 4 for exact prices; use a finer grid"
        )
    return Fraction(moved) ** 2 / (2 * (sigma * sigma - HIDDEN))


def root(value: Fraction) -> Fraction:
    """Return the square root, rounded down after 40 bits or more.

    >>> root(Fraction(9, 4)), root(Fraction(2)) ** 2 < 2
    (Fraction(3, 2), True)
    """
    bits = max(40 + (value.denominator.bit_length() - value.numerator.bit_length()) // 2, 0)
    scaled = value * 4**bits
    return Fraction(math.isqrt(scaled.numerator // scaled.denominator), 2**bits)


def ratio_of(sensitivity: int, rho: Fraction) -> Fraction:
    """Return the largest ratio of sensitivity to standard deviation, of 40 bits or more, with which a change costs rho.

    >>> ratio = ratio_of(1024, Fraction(1, 2))
    >>> rho_of(1024, 1024 / ratio) <= Fraction(1, 2), round(float(ratio), 6)
    (True, 0.999996)
    """
    variance = max(Fraction(sensitivity) ** 2 / (2 * rho) + HIDDEN, Fraction(2 * HIDDEN))
    # sigma = ceil(2^k sqrt(variance)) / 2^k, with k so large that rounding up loses nothing to speak of.
    bits = max(45 - math.floor(variance).bit_length() // 2, 0)
    scaled = variance * 4**bits
    whole = math.isqrt(scaled.numerator // scaled.denominator)
    sigma = Fraction(whole if Fraction(whole) ** 2 == scaled else whole + 1, 2**bits)
    return Fraction(sensitivity) / sigma


def _pi() -> Decimal:
    """Return pi to the digits that are computed with, by Machin's formula."""

    def arctan(inverse: int) -> Decimal:
        power = total = Decimal(1) / inverse
        for j in range(1, 2 * DIGITS):
            power /= -inverse * inverse
            total += power / (2 * j + 1)
        return total

    return 4 * (4 * arctan(5) - arctan(239))


@lru_cache(maxsize=1)
def _root_of_two_pi() -> Decimal:
    with localcontext(Context(prec=DIGITS)):
        return (2 * _pi()).sqrt()


def _normal_below(x: Decimal) -> Decimal:
    """Return P(Z < x) for a standard normal variable, in the current context, with an absolute error of 1e-130.

    P(0 < Z < x) = exp(-x^2/2) / sqrt(2 pi) sum x^(2j+1) / (1 3 5 ... (2j+1)), all terms positive.
    """
    size = abs(x)
    if size > FAR:
        return Decimal(int(x > 0))
    square, term, total, j = size * size, size, size, 1
    while term > total * Decimal("1e-138"):
        term *= square / (2 * j + 1)
        total += term
        j += 1
    half = (-square / 2).exp() / _root_of_two_pi() * total
    return Decimal("0.5") + (half if x > 0 else -half)


@lru_cache(maxsize=65536)
def _delta(epsilon: Decimal, rho: Decimal) -> Decimal:
    """Return Phi(m/2 - epsilon/m) - exp(epsilon) Phi(-m/2 - epsilon/m) with m = sqrt(2 rho), as computed."""
    m = (2 * rho).sqrt()
    return _normal_below(m / 2 - epsilon / m) - epsilon.exp() * _normal_below(-m / 2 - epsilon / m)


def delta_of(epsilon: Fraction, rho: Fraction) -> Fraction:
    """Return the smallest delta with which Gaussian measurements worth rho are (epsilon, delta)-private, rounded up.

    It is computed with 140 digits. Sums of fewer than 10^5 positive terms have relative errors below 10^-134, so that
    probabilities have absolute errors below 10^-130, one of which is multiplied by exp(epsilon) < 10^44; rounding
    epsilon, rho and m changes delta by less than 10^-100. All together stay below 10^-60, which is added.

    >>> round(float(delta_of(Fraction(1), Fraction(1, 8))), 6)
    0.00683
    """
    if rho <= 0:
        return Fraction(0)
    if not 0 <= epsilon <= LARGEST_EPSILON:
        raise ParameterError(f"epsilon is {float(epsilon):.6g}, but must be at most {LARGEST_EPSILON} with a delta")
    with localcontext(Context(prec=DIGITS)) as context:
        # The loss falls with epsilon and grows with rho, so both are rounded to the safe side.
        context.rounding = ROUND_FLOOR
        low = Decimal(epsilon.numerator) / Decimal(epsilon.denominator)
        context.rounding = ROUND_CEILING
        high = Decimal(rho.numerator) / Decimal(rho.denominator)
    with localcontext(Context(prec=DIGITS)):
        return Fraction(max(_delta(low, high), Decimal(0)) + ERROR)


def _keeps(epsilon: Fraction, delta: Fraction, rho: Fraction) -> bool:
    """Whether discrete Gaussian measurements worth rho are certainly (epsilon, delta)-private."""
    slack = Fraction(SLACK)
    return epsilon > slack and delta_of(epsilon - slack, rho) <= delta * (1 - slack)


def _guess(epsilon: float, delta: float) -> float:
    """Return rho about right, from what floats know."""

    def loss(m: float) -> float:
        def below(x: float) -> float:
            return math.erfc(-x / math.sqrt(2)) / 2

        return below(m / 2 - epsilon / m) - math.exp(epsilon) * below(-m / 2 - epsilon / m)

    low, high = 1e-12, 100.0
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if loss(middle) <= delta else (low, middle)
    return low * low / 2


@lru_cache(maxsize=4096)
def rho_from(epsilon: Fraction, delta: Fraction) -> Fraction:
    """Return the largest rho, to 24 digits, that Gaussian measurements may be worth under (epsilon, delta).

    >>> round(float(rho_from(Fraction(1), Fraction(1, 10**6))), 6)
    0.028014
    """
    if not SMALLEST_DELTA <= delta < 1:
        raise ParameterError(f"delta is {float(delta):.6g}, but must lie between {float(SMALLEST_DELTA):g} and 1")
    if epsilon > LARGEST_EPSILON:
        raise ParameterError(f"epsilon is {float(epsilon):.6g}, but must be at most {LARGEST_EPSILON} with a delta")
    # What is stated of it later is rounded up, and must not exceed what was asked for.
    epsilon = epsilon // Fraction(PLACES) * Fraction(PLACES)
    guess = Fraction(_guess(float(epsilon), float(delta)))
    low, high = guess * Fraction(9999, 10000), guess * Fraction(10001, 10000)
    while not _keeps(epsilon, delta, low):
        low, high = low / 2, low
        if low < Fraction(1, 10**60):
            raise ParameterError(
                f"epsilon is {float(epsilon):.6g}, but must be larger with a delta of {float(delta):g}"
            )
    while _keeps(epsilon, delta, high):
        low, high = high, high * 2
    while high - low > low / 10**SIGNIFICANT:
        middle = _rounded_down((low + high) / 2, SIGNIFICANT + 4)
        low, high = (middle, high) if _keeps(epsilon, delta, middle) else (low, middle)
    return _rounded_down(low, SIGNIFICANT)


@lru_cache(maxsize=65536)
def epsilon_from(rho: Fraction, delta: Fraction) -> Fraction:
    """Return the smallest epsilon, rounded up to 18 places, with which measurements worth rho are private with delta.

    >>> epsilon_from(Fraction(0), Fraction(1, 10**6))
    Fraction(0, 1)
    >>> round(float(epsilon_from(Fraction(1, 2), Fraction(1, 10**6))), 4)
    4.8866
    """
    if rho <= 0:
        return Fraction(0)
    if delta <= 0:
        raise ParameterError("delta is 0, but must be positive for Gaussian noise")
    low, high = Fraction(PLACES), Fraction(LARGEST_EPSILON)
    if not _keeps(high, delta, rho):
        raise ParameterError(f"Gaussian noise costs more than epsilon = {LARGEST_EPSILON}, but must cost less")
    if _keeps(low, delta, rho):
        return low
    unit = Fraction(PLACES)
    x = _start(float(rho), float(delta))
    target = Decimal(delta.numerator) / Decimal(delta.denominator)
    with localcontext(Context(prec=DIGITS)):
        wide = Decimal(rho.numerator) / Decimal(rho.denominator)
        m = (2 * wide).sqrt()
        # Newton with ln(delta): the derivative of delta in epsilon is -exp(epsilon) Phi(-m/2 - epsilon/m).
        for _ in range(60):
            slope = x.exp() * _normal_below(-m / 2 - x / m)
            now = max(_delta(x, wide), ERROR)
            step = (now / target).ln() * now / slope
            x = max(x + step, PLACES)
            if abs(step) < PLACES / 100:
                break
        place = int((x / PLACES).to_integral_value(ROUND_CEILING))
    for extra in (0, 1, 2, 10):
        if _keeps(found := (place + extra) * unit, delta, rho):
            return found
    # Whatever the errors are, halving ends.
    few, enough = 1, LARGEST_EPSILON * 10**18
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if _keeps(middle * unit, delta, rho) else (middle, enough)
    return enough * unit


def _start(rho: float, delta: float) -> Decimal:
    """Return an epsilon to start from: that of concentrated privacy, which is somewhat too large."""
    return Decimal(min(rho + 2 * math.sqrt(rho * math.log(1 / delta)), float(LARGEST_EPSILON)))


def _rounded_down(value: Fraction, digits: int) -> Fraction:
    """Return a positive rational with so many decimal digits."""
    with localcontext(Context(prec=digits, rounding=ROUND_FLOOR)):
        return Fraction(Decimal(value.numerator) / Decimal(value.denominator))
