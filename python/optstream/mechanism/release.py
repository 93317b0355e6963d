"""What leaves: private values, with the statement of what they cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream.errors import DataError, ParameterError, ParameterTypeError
from optstream.estimate.filter import Measured

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from pathlib import Path

    from numpy.typing import NDArray

    from optstream.privacy.statement import Statement

__all__ = ["Parts", "Release"]


ESTIMATED = b"\xff\xff\xff\xff"
"""What stored estimates begin with; no release has so many rows, with whose number others begin."""


@dataclass(frozen=True, repr=False)
class Parts:
    """The private numbers of one period, from which a release is put together; what a ledger stores."""

    values: NDArray[np.float64]
    """One row of steps, or one for every node."""
    cells: NDArray[np.float64]
    """The sums of all features in one row; empty for a hierarchy, whose values give them exactly."""
    knots: NDArray[np.int64]
    """The measured steps, one row for every stream, or one for all if they are the same; else empty."""
    measured: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)))
    """The noisy means from which an estimate was made, one row for every stream; empty if it was none."""
    deviations: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)))
    """The standard deviation of every step of an estimate."""

    def to_bytes(self) -> bytes:
        """Return the parts as bytes: the shape of each, then its numbers, all little-endian.

        >>> parts = Parts(np.array([[1.0, 2.0]]), np.empty((1, 0)), np.array([[0, 1]]))
        >>> Parts.from_bytes(parts.to_bytes()).values
        array([[1., 2.]])
        """
        arrays = [self.values.astype("<f8"), self.cells.astype("<f8"), self.knots.astype("<i8")]
        mark = b""
        if self.measured.size:
            arrays += [self.measured.astype("<f8"), self.deviations.astype("<f8")]
            mark = ESTIMATED
        shapes = np.array([array.shape for array in arrays], dtype="<u4")
        return mark + b"".join(part.tobytes() for part in (shapes, *arrays))

    @classmethod
    def from_bytes(cls, data: bytes) -> Parts:
        """Return the parts that :meth:`to_bytes` wrote."""
        estimated = data.startswith(ESTIMATED)
        kinds = ("<f8", "<f8", "<i8", "<f8", "<f8")[: 5 if estimated else 3]
        begin = len(ESTIMATED) if estimated else 0
        position = begin + 8 * len(kinds)
        shapes = np.frombuffer(data[begin:position], "<u4").reshape(-1, 2).astype(int)
        if len(data) != position + 8 * sum(rows * columns for rows, columns in shapes):
            raise DataError(
                f"stored release has {len(data)} bytes, but its shapes {shapes.tolist()} need another number"
            )
        parts = []
        for (rows, columns), kind in zip(shapes, kinds, strict=True):
            part = np.frombuffer(data, kind, count=rows * columns, offset=position).reshape(rows, columns)
            parts.append(part.astype(kind[1:]))
            position += part.nbytes
        return cls(*parts)


@dataclass(frozen=True, repr=False)
class Release:
    """A private series. It holds private values only, no raw data.

    Example:
        >>> import numpy as np
        >>> import optstream as ops
        >>> mechanism = ops.OptStream(ops.Guarantee(epsilon=1, w=4), sample=ops.EqualSampling(k=4), bounds=(0, 100))
        >>> release = mechanism.release(np.array([10.0, 20.0, 30.0, 40.0]))
        >>> release
        Release(periods=1, w=4, epsilon=1)
        >>> release.values.shape
        (4,)
    """

    values: Any
    """The private values, in the form of the input: an array, or a series with its index."""
    features: tuple[NDArray[np.float64], ...]
    """For every feature the private sum of each cell, one row per period; equal to the sums of the values."""
    statement: Statement
    _rows: NDArray[np.float64]
    _knots: NDArray[np.int64]
    _scales: NDArray[np.float64]
    _grid: float
    _blocks: tuple[int, ...] | None = None
    _buckets: tuple[tuple[int, int], ...] | None = None
    _gaussian: bool = False
    period: int | None = None
    """The number of the period in its stream, if it was released by one."""
    start: int | datetime | None = None
    """The first step of that period, as a number or a time."""
    revised: Any = None
    """The values in the light of all periods of the release, if ``Estimate(revise=True)``; in the same form."""
    _deviations: NDArray[np.float64] | None = None
    state: dict[str, Any] | None = None
    """What the next release needs to know: what the last period cost and what an estimate has learnt. Plain data for
    JSON, without raw values; None where a stream or a ledger keeps it."""

    def __repr__(self) -> str:
        periods, w = self._rows.shape
        return f"Release(periods={periods}, w={w}, epsilon={self.statement.epsilon_shown})"

    def _half_widths(self, knots: NDArray[np.int64], w: int, level: float) -> NDArray[np.float64]:
        """Return what the noise of each step stays within, in units of the scale."""
        if self._gaussian:
            # Sums of independent Gaussian variables are Gaussian.
            return NormalDist().inv_cdf((1 + level) / 2) * self._gaussian_deviations(knots, w)
        if self._blocks is None and self._buckets is None:
            width = cache(partial(half_width, level=level))
            return np.array([width(share) for share in shares_of_right_knot(knots, w)])
        if self._buckets is not None:
            lengths = np.array([stop - start for start, stop in self._buckets])
            measured = half_width(0, level) / lengths
        if self._blocks is not None:
            measured = np.repeat([cube_half_width(length, level) for length in self._blocks], self._blocks)
        if self._buckets is not None:
            return np.repeat(measured, lengths)
        # The noise of a step between two measured ones is a mean of theirs, and more peaked than the larger of them.
        steps = np.arange(w)
        left, right = np.searchsorted(knots, steps, side="right") - 1, np.searchsorted(knots, steps, side="left")
        return np.asarray(np.maximum(measured[left], measured[right]))

    @property
    def is_measured(self) -> bool:
        """Whether the values are what was measured, and not an estimate from it."""
        return self._deviations is None

    def leaf_periods(self) -> NDArray[np.float64]:
        """Return what was released as an array of periods, one stream and steps."""
        return self._rows[:, None]

    def _gaussian_deviations(self, knots: NDArray[np.int64], w: int) -> NDArray[np.float64]:
        if self._buckets is not None:
            lengths = np.array([stop - start for start, stop in self._buckets])
            return np.repeat(1 / lengths, lengths)
        share = shares_of_right_knot(knots, w)
        return np.asarray(np.hypot(share, 1 - share))

    def measured(self) -> list[Measured]:
        """Return what was measured of each period, if nothing has changed it since; the last period is -1."""
        periods = len(self._rows)
        runs = self._buckets or [(step, step + 1) for step in self._knots[0]]
        if self._blocks is not None:
            sizes = np.repeat(self._blocks, self._blocks)
            variances = (sizes + 1) * (sizes + 2) / 3
        else:
            factor = 1 if self._gaussian else 2
            variances = np.array([factor / (stop - start) ** 2 for start, stop in runs])
        knots = np.broadcast_to(self._knots, (periods, len(runs)))
        return [
            Measured(
                number - periods,
                tuple(tuple(range(start, stop)) for start, stop in self._buckets)
                if self._buckets
                else tuple((int(step),) for step in steps),
                row[steps],
                variances * scale**2,
            )
            for number, (row, steps, scale) in enumerate(zip(self._rows, knots, self._scales, strict=True))
        ]

    def interval(self, level: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return lower and upper ends of intervals, one row per period, that hold the noise part with a given chance.

        The noise part is the difference between what was released and what the same release would be without noise. An
        interval covers it with probability ``level`` at each step, separately. It does not cover the error of
        reconstructing steps between measured ones, nor clamping.

        Without features it is exact for Laplace and Gaussian noise: a measured step carries that, a step between two of
        them a weighted sum of independent noises, whose law is known in closed form. With cube noise it is exact for
        measured steps and means, and covers somewhat more than ``level`` between measured steps, where noise partly
        cancels. With features the projection has moved the values towards consistency; the interval is then that of
        the values before the projection, and its coverage is approximate.

        With :class:`Estimate` it is the posterior interval of the true value itself, within the bounds: as good as the
        model of the stream that was learnt. docs/accuracy.md has its coverage on real streams.

        Args:
            level: The coverage, between 0 and 1.

        Example:
            >>> import numpy as np
            >>> import optstream as ops
            >>> mechanism = ops.OptStream(ops.Guarantee(epsilon=1, w=4), sample=ops.EqualSampling(k=4), bounds=(0, 99))
            >>> low, high = mechanism.release(np.full(4, 50.0)).interval(0.95)
            >>> np.round((high - low) / 2, 1)
            array([[12., 12., 12., 12.]])
        """
        if isinstance(level, bool) or not isinstance(level, (int, float)):
            raise ParameterTypeError(f"level is of type {type(level).__name__}, but must be a real number")
        if not 0 < level < 1:
            raise ParameterError(f"level is {level}, but must lie between 0 and 1")
        periods, w = self._rows.shape
        if self._deviations is not None:
            half = NormalDist().inv_cdf((1 + level) / 2) * self._deviations + self._grid
            low, high = self.statement.bounds
            return np.maximum(self._rows - half, low), np.minimum(self._rows + half, high)
        # One row per period, or one for all periods if the measured steps are always the same.
        half = np.empty((len(self._knots), w))
        for row, knots in zip(half, self._knots, strict=True):
            row[:] = self._half_widths(knots, w, level)
        # Noise moves in whole grid steps, the closed form does not: one step more covers the difference.
        reach = np.broadcast_to(self._scales[:, None] * half + self._grid, (periods, w))
        return self._rows - reach, self._rows + reach

    def plot(self, path: str | Path | None = None) -> Any:
        """Return a figure of matplotlib with the values and their band, and write it to a file if one is named."""
        from optstream.pictures import release_picture  # noqa: PLC0415  (pictures know releases)

        return release_picture(self, path)

    def report(self, path: str | Path, **names: Any) -> None:
        """Write a page for people who do not know differential privacy: see docs/reports.md.

        Args:
            path: Where to write it.
            names: What things are called: ``title``, ``entity``, ``unit``, ``step`` and ``origin``.
        """
        from optstream.report import write_release  # noqa: PLC0415  (reports know releases)

        write_release(self, path, **names)

    def _repr_html_(self) -> str:
        from optstream.report import release_html  # noqa: PLC0415

        return release_html(self)


@lru_cache(maxsize=4096)
def cube_half_width(length: int, level: float) -> float:
    """Return h with P(|z| <= h) = level for one value of a block of so many with cube noise of scale 1.

    The radius is Gamma(d + 1) and the value uniform within it, so P(|z| > h) = Q(d + 1, h) - (h / d) Q(d, h), where
    Q(d, h) is the chance that a Poisson variable of mean h is below d.

    >>> round(cube_half_width(1, 0.95), 4), round(cube_half_width(8, 0.95), 2)
    (2.9957, 10.29)
    """

    def tail(h: float) -> float:
        chances = [math.exp(-h + count * math.log(h) - math.lgamma(count + 1)) for count in range(length + 1)]
        below = sum(chances[:length])
        return below + chances[length] - h / length * below

    return _root(tail, level, (length + 50) * (2 - math.log1p(-level)))


def _root(tail: Callable[[float], float], level: float, high: float) -> float:
    """Return the end of the interval whose tail, which falls, is what the level leaves; it lies below a bound."""
    low = 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) > 1 - level else (low, middle)
    return high


def shares_of_right_knot(knots: NDArray[np.int64], w: int) -> NDArray[np.float64]:
    """Return for each step how far it lies on the way from the measured step before to the one after.

    >>> shares_of_right_knot(np.array([0, 2, 3]), 4)
    array([0. , 0.5, 0. , 0. ])
    """
    steps = np.arange(w)
    left = knots[np.searchsorted(knots, steps, side="right") - 1]
    right = knots[np.searchsorted(knots, steps, side="left")]
    return np.asarray((steps - left) / np.maximum(right - left, 1))


@lru_cache(maxsize=65_536)
def half_width(share: float, level: float) -> float:
    """Return h with P(|(1 - s) Z + s Z'| <= h) = level for independent Laplace variables of scale 1.

    With a = max(s, 1 - s) and b the other share the tail is (a^2 exp(-h/a) - b^2 exp(-h/b)) / (a^2 - b^2), which tends
    to (1 + h/(2a)) exp(-h/a) for a = b.

    >>> round(half_width(0.0, 0.95), 4), round(half_width(0.5, 0.95), 4)
    (2.9957, 2.0565)
    """
    a, b = max(share, 1 - share), min(share, 1 - share)

    def tail(h: float) -> float:
        if a - b < 1e-6:  # noqa: PLR2004
            return float((1 + h / (a + b)) * np.exp(-2 * h / (a + b)))
        far = b * b * np.exp(-h / b) if b > 0 else 0.0
        return float((a * a * np.exp(-h / a) - far) / (a * a - b * b))

    return _root(tail, level, -2 * math.log1p(-level) + 2)
