"""Exact noise on integers of the grid, one step at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optstream import _core

if TYPE_CHECKING:
    from fractions import Fraction

    from numpy.typing import NDArray

__all__ = ["laplace", "laplaces"]

NOTHING = np.zeros(1)


def laplaces(count: int, sensitivity: int, epsilon: Fraction) -> NDArray[np.int64]:
    """Return independent discrete Laplace integers with scale ``sensitivity / epsilon``, rounded up if need be.

    A sum of integers that moves by at most ``sensitivity`` costs ``epsilon`` when one of these is added to it.

    >>> from fractions import Fraction
    >>> laplaces(3, 1, Fraction(1)).shape
    (3,)
    """
    return _core.laplace(np.zeros(count), float(sensitivity), epsilon, (0.0, 1.0), 1.0).astype(np.int64)


def laplace(sensitivity: int, epsilon: Fraction) -> int:
    """Return one discrete Laplace integer; see :func:`laplaces`.

    >>> from fractions import Fraction
    >>> laplace(1, Fraction(1000))
    0
    """
    return int(_core.laplace(NOTHING, float(sensitivity), epsilon, (0.0, 1.0), 1.0)[0])
