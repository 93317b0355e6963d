"""Exact budgets: every epsilon is a positive rational, from what the user wrote to what the ledger adds up."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from numbers import Rational
from typing import TYPE_CHECKING

from optstream.errors import ParameterError, ParameterTypeError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["exact", "shares", "shown"]


def exact(name: str, value: float | Fraction | Decimal) -> Fraction:
    """Return a positive budget as an exact rational; a float is read as the decimal that it shows.

    >>> exact("epsilon", 0.1)
    Fraction(1, 10)
    >>> exact("epsilon", -1)
    Traceback (most recent call last):
    optstream.errors.ParameterError: epsilon is -1, but must be positive and finite
    """
    if isinstance(value, bool) or not isinstance(value, (float, Rational, Decimal)):
        raise ParameterTypeError(
            f"{name} is of type {type(value).__name__}, but must be a number (int, float, Fraction or Decimal)"
        )
    try:
        size = float(value)
    except (OverflowError, ValueError):
        # Larger than any float, or a signalling NaN.
        size = math.inf
    # What a float takes for 0 is a decimal with a vast exponent, which exact arithmetic would not get done with.
    if not 0 < size < math.inf:
        raise ParameterError(f"{name} is {value}, but must be positive and finite")
    # A numpy float is a float whose own repr is not a number.
    return Fraction(repr(float(value))) if isinstance(value, float) else Fraction(value)


def shares(name: str, split: Sequence[float | Fraction | Decimal]) -> tuple[Fraction, ...]:
    """Return positive shares divided by their sum.

    >>> shares("split", (1, 3))
    (Fraction(1, 4), Fraction(3, 4))
    """
    parts = [exact(name, share) for share in split]
    return tuple(part / sum(parts) for part in parts)


def shown(value: Fraction) -> str:
    """Return an exact rational for people: as a short decimal if it is one, else rounded up to six digits.

    >>> shown(Fraction(1, 10)), shown(Fraction(50, 3)), shown(Fraction(-2, 3))
    ('0.1', '16.6667', '-0.666666')
    """
    for digits in range(7):
        scaled = value * 10**digits
        if scaled.denominator == 1:
            return f"{float(value):.{digits}f}"
    # Rounded up, so that a stated cost never looks smaller than it is.
    magnitude = 5 - math.floor(math.log10(abs(value)))
    return f"{float(Fraction(math.ceil(value * Fraction(10) ** magnitude)) / Fraction(10) ** magnitude):.6g}"
