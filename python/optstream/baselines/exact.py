"""Exact noise on integers of the grid, one step at a time.

Values go through the core, which adds the noise to them as integers. Noise that leaves the core by itself is a double:
if it lies beyond 2^53 it was rounded, and added to a value it would no longer hide the last digits of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optstream import _core

if TYPE_CHECKING:
    from fractions import Fraction

    from numpy.typing import NDArray

__all__ = ["LIMIT", "check_scale", "noisy", "noisy_all"]

LIMIT = 2**53
"""Integers are clamped to what doubles hold exactly."""
BOUNDS = (-float(LIMIT), float(LIMIT))


def noisy_all(values: NDArray[np.int64], sensitivity: int, epsilon: Fraction) -> NDArray[np.int64]:
    """Return integers with independent discrete Laplace noise of scale ``sensitivity / epsilon``.

    The scale is rounded up if need be. An integer that moves by at most ``sensitivity`` costs ``epsilon``.

    >>> from fractions import Fraction
    >>> noisy_all(np.array([3, -4]), 1, Fraction(1000))
    array([ 3, -4])
    """
    drawn = _core.laplace(values.ravel().astype(float), float(sensitivity), epsilon, BOUNDS, 1.0)
    return drawn.astype(np.int64).reshape(values.shape)


def noisy(value: int, sensitivity: int, epsilon: Fraction) -> int:
    """Return one integer with discrete Laplace noise; see :func:`noisy_all`.

    >>> from fractions import Fraction
    >>> noisy(7, 1, Fraction(1000))
    7
    """
    return int(_core.laplace(np.array([float(value)]), float(sensitivity), epsilon, BOUNDS, 1.0)[0])


def check_scale(sensitivity: int, epsilon: Fraction) -> None:
    """Raise if noise for so little budget is out of reach: when data has come in, it is too late to find out.

    >>> from fractions import Fraction
    >>> check_scale(1024, Fraction(1, 10**20))
    Traceback (most recent call last):
    optstream.errors.ParameterError: epsilon is 1/100000000000000000000, but must be at least sensitivity/grid * 2^-52 \
= 1024 * 2^-52 (or use a coarser grid)
    """
    noisy(0, sensitivity, epsilon)
