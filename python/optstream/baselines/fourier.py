"""The lowest frequencies of a period: the Fourier perturbation of Rastogi and Nath (2010)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream.baselines.baseline import Baseline, PrivateSeries, check_count
from optstream.baselines.exact import check_scale, noisy_all
from optstream.data.frames import read_periods
from optstream.errors import ParameterError
from optstream.privacy.statement import Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["Fourier"]

BITS = 16
"""Digits behind the point of the basis, where there is room for them."""
ENUMERATED = 21
"""Up to so many real coefficients the sensitivity is found by trying all signs."""
CHUNK = 2**14


@dataclass(frozen=True, kw_only=True)
class Fourier(Baseline):
    """Measure the ``k`` lowest frequencies of every period (Rastogi and Nath 2010; DFT in the OptStream paper).

    The basis of sines and cosines is rounded to integers, with which the integers of the grid are multiplied and
    summed exactly. The period is what fits the noisy coefficients best.

    **Guarantee.** All coefficients have the same scale b, so a change d of the window costs ``|B d|_1 / b`` (Laplace
    mechanism), where a sliding window changes the end of one period and the beginning of the next. The largest
    ``|B d|_1`` over all ``|d_t| <= alpha`` is the largest ``sum_t |sum_j s_j B_jt|`` over all signs s, since a convex
    function is largest at a corner. It is found by trying all signs, for the rounded integers, up to 21 real
    coefficients; beyond, Cauchy and Schwarz bound it.

    Args:
        guarantee: What is promised.
        k: The number of frequencies, with frequency zero: ``2 k - 1`` real coefficients.
        bounds: Public lower and upper bound of the values, which are clamped to them.
        calibration: ``"sound"`` takes an orthonormal basis and the scale above. ``"paper"`` takes the transform that is
            not normalised and the scale ``sqrt(k w) alpha / epsilon`` on real and imaginary parts; the statement then
            carries the true epsilon.
        grid: Public step of the grid, a power of two. By default the largest that is at most ``alpha / 1024``.

    Example:
        >>> from optstream import Guarantee
        >>> Fourier(Guarantee(epsilon=1, w=8), k=3, bounds=(0, 100)).release(np.full(16, 50.0)).values.shape
        (16,)
    """

    k: int

    def _check(self) -> None:
        check_count("k", self.k, 1, self.guarantee.w // 2 + 1)
        check_scale(self.change, self.price)

    @cached_property
    def _bits(self) -> int:
        """Digits behind the point of the basis: fewer where sums of products would exceed 2^53."""
        largest = max(abs(bound) for bound in self.bounds) / self.step
        room = 52 - math.ceil(math.log2(max(largest, 1) * self.guarantee.w))
        if room < BITS // 2:
            raise ParameterError(f"grid is {self.grid}, but must be coarser for bounds {self.bounds}")
        return min(room, BITS)

    @cached_property
    def basis(self) -> NDArray[np.int64]:
        """The rounded basis, one row per real coefficient."""
        return _basis(self.guarantee.w, self.k, self._bits, normalised=self.calibration == "sound")

    @cached_property
    def change(self) -> int:
        """How far all coefficients together can move, in units of the rounded basis times the grid."""
        sliding, normalised = self.guarantee.neighbours == "sliding", self.calibration == "sound"
        most = _largest_change(self.guarantee.w, self.k, self._bits, normalised=normalised, sliding=sliding)
        return most * self.sensitivity

    @cached_property
    def price(self) -> Fraction:
        """What the worst window costs."""
        if self.calibration == "sound":
            return self.guarantee.epsilon
        # The root is rounded down, so the scale is at most a billionth smaller than printed and the price larger.
        root = Fraction(math.isqrt(self.k * self.guarantee.w * 10**18), 10**9)
        scale = root * self.sensitivity * (1 << self._bits) / self.guarantee.epsilon
        return self.change / scale

    def _stages(self) -> Sequence[Stage]:
        scale = self.change / float(self.price) * self.step / (1 << self._bits)
        does = f"measures {len(self.basis)} coefficients of every period with Laplace noise of scale {scale:.6g}"
        return [Stage("perturb", does, self.price)]

    @cached_property
    def _inverse(self) -> NDArray[np.float64]:
        return np.linalg.pinv(self.basis.astype(float)).T

    def release(self, x: Any) -> PrivateSeries:
        """Release whole periods.

        Args:
            x: A 1-D array of ``n * w`` values, a 2-D array with ``w`` columns, or a series of pandas, polars or
                pyarrow. The result has the same form and index.

        Raises:
            DataError: The data is empty, not a whole number of periods, or not finite. Nothing was drawn.
        """
        rows, restore = read_periods(x, self.guarantee.w)
        # Sums of products of integers stay below 2^53.
        coefficients = self.quantised(rows).reshape(rows.shape) @ self.basis.T
        noisy = noisy_all(coefficients, self.change, self.price)
        return PrivateSeries(restore(noisy @ self._inverse * self.step), self.statement)


@cache
def _basis(w: int, k: int, bits: int, *, normalised: bool) -> NDArray[np.int64]:
    angles = 2 * np.pi * np.outer(np.arange(k), np.arange(w)) / w
    # The first frequency has no sine, nor has the last one if two steps make up its wave.
    sines = [frequency for frequency in range(1, k) if 2 * frequency != w]
    rows = np.concatenate([np.cos(angles), np.sin(angles[sines])])
    if normalised:
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    basis = np.round(rows * (1 << bits)).astype(np.int64)
    basis.setflags(write=False)
    return np.asarray(basis)


@cache
def _largest_change(w: int, k: int, bits: int, *, normalised: bool, sliding: bool) -> int:
    """Return how far the coefficients can move if the steps of a window change by one unit each."""
    basis = _basis(w, k, bits, normalised=normalised)
    beginnings = _largest_changes(basis)
    if not sliding:
        return beginnings[-1]
    # A window takes the end of one period and, of the next, a beginning that is as long as what the end leaves.
    ends = reversed(_largest_changes(basis[:, ::-1]))
    return max(beginning + end for beginning, end in zip(beginnings, ends, strict=True))


def _largest_changes(basis: NDArray[np.int64]) -> list[int]:
    """Return the largest L1 change of the coefficients if the first 0, 1, ..., w steps change by one unit each.

    >>> _largest_changes(np.array([[1, 1], [1, -1]]))
    [0, 2, 2]
    """
    count, w = basis.shape
    if count > ENUMERATED:
        return _bounded_changes(basis)
    most = np.zeros(w, dtype=np.int64)
    # A change of all signs changes nothing, so the first one is fixed.
    for first in range(0, 2 ** (count - 1), CHUNK):
        codes = np.arange(first, min(first + CHUNK, 2 ** (count - 1)))
        signs = 1 - 2 * (codes[:, None] >> np.arange(count) & 1)
        reached = np.abs(signs @ basis).cumsum(axis=1).max(axis=0)
        most = np.maximum(most, reached)
    return [0, *most.tolist()]


def _bounded_changes(basis: NDArray[np.int64]) -> list[int]:
    """Return bounds of the same: |B d|_1 <= sqrt(count) |B d|_2 <= sqrt(count n) times the largest singular value.

    The square of that is at most the largest sum of absolute values in a row of B B' (Gershgorin).

    >>> _bounded_changes(np.array([[1, 1], [1, -1]]))
    [0, 2, 3]
    """
    count, w = basis.shape
    square = int(np.abs(basis @ basis.T).sum(axis=1).max())
    return [_root_above(count * steps * square) for steps in range(w + 1)]


def _root_above(square: int) -> int:
    root = math.isqrt(square)
    return root + (root * root < square)
