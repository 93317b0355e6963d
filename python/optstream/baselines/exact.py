"""Exact noise on integers of the grid, one step at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optstream import _core

if TYPE_CHECKING:
    from fractions import Fraction

    from numpy.typing import NDArray

__all__ = ["check_scale", "laplace", "laplaces"]

NOTHING = np.zeros(1)


def laplaces(count: int, sensitivity: int, epsilon: Fraction) -> NDArray[np.int64]:
    """Return independent discrete Laplace integers with scale ``sensitivity / epsilon``, rounded up if need be.

    A sum of integers that moves by at most ``sensitivity`` costs ``epsilon`` when one of these is added to it.

    >>> from fractions import Fraction
    >>> laplaces(3, 1, Fraction(1)).shape
    (3,)
    """
    return _core.laplace(np.zeros(count), float(sensitivity), epsilon, (0.0, 1.0), 1.0).astype(np.int64)


def check_scale(sensitivity: int, epsilon: Fraction) -> None:
    """Raise if noise for so little budget is out of reach: when data has come in, it is too late to find out.

    >>> from fractions import Fraction
    >>> check_scale(1024, Fraction(1, 10**20))
    Traceback (most recent call last):
    optstream.errors.ParameterError: epsilon is 1/100000000000000000000, but must be at least sensitivity/grid * 2^-52 \
= 1024 * 2^-52 (or use a coarser grid)
    """
    laplace(sensitivity, epsilon)


def laplace(sensitivity: int, epsilon: Fraction) -> int:
    """Return one discrete Laplace integer; see :func:`laplaces`.

    >>> from fractions import Fraction
    >>> laplace(1, Fraction(1000))
    0
    """
    return int(_core.laplace(NOTHING, float(sensitivity), epsilon, (0.0, 1.0), 1.0)[0])
