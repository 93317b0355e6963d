"""A bank of Kalman filters over periods: one linear Gaussian model of a stream, under several sets of amplitudes.

The values of period d are, at step t,

    level(d) + shape(d, t) + weekday(d mod season, t) + drift(d w + t) + intraday(d w + t) + white(d, t)

with independent parts:

- the **level** is a random walk from period to period;
- the **shape** of a period, and one deviation from it for each position in the season (the **weekday**), are smooth
  curves: cosines of rising frequency f whose variances fall like ``(1 + (f / 3.5)^2)^-1.75``. Both change slowly and
  keep their variance (auto-regressions of order one), so what is never measured does not grow without bound;
- **drift** and **intraday** are Ornstein-Uhlenbeck processes in continuous time, with a memory of four periods and of
  a quarter of a period; they run through the end of a period;
- **white** is independent from step to step.

Six variances, the *amplitudes*, are what differs between the models of a bank. All models of a bank are updated at
once, from noisy means over sets of steps (single steps, buckets, cells of features) with known variances. The state of
a model is the level, the coefficients of the curves and the two values at the last step; given those, the past does not
matter, so the filter is the exact posterior of the model (the tests hold it against conditioning of one large Gaussian
vector).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.linalg import lapack

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Cells = tuple[tuple[int, ...], ...]

__all__ = ["AMPLITUDES", "Bank", "Geometry", "Layout", "Posterior", "layout_of", "whitening"]

AMPLITUDES = ("shape", "drift", "intraday", "white", "weekday", "evolution")
"""What the columns of a table of amplitudes are: variances of the parts, ``evolution`` being the variance that the
shape gains in one period."""
SHAPE, DRIFT, INTRADAY, WHITE, WEEKDAY, EVOLUTION = range(6)
CURVE, WEEKDAY_CURVE = 48, 8
"""Most cosines of a shape, and of a weekday's deviation from it."""
KNEE, FALL = 3.5, 1.75
"""Frequency, in half waves of a period, from which the variance of a curve's cosines falls, and half the power."""
DRIFT_PERIODS, INTRADAY_PERIODS = 4.0, 0.25
"""Memory of the two processes in continuous time, in periods."""
LEVEL_SHARE = 0.01
"""Variance that the level gains in one period, as a share of the variance of the drift."""
WEEKDAY_SHARE = 0.0004
"""Variance that a weekday's deviation renews in one period, as a share of its variance."""
ROUNDING = 1e-12
"""Least variance in any direction that is told from rounding errors, as a share of the largest."""
SMALLEST = 1e-200
"""What counts as the size of a matrix of zeros."""


class Layout(NamedTuple):
    """What the measurements of one period see of the model."""

    average: Array
    """The matrix that takes the steps to what is measured, means over sets of them."""
    paths: Array
    """The same of the cosines of the shape, of a weekday's, and of the decay of the two last values."""
    carried: Array
    """Covariance of the processes with the means, given their last values: 3 x measurements x steps."""
    between: Array
    """Covariance of the means of the processes, given their last values: 3 x measurements x measurements."""


class Posterior(NamedTuple):
    """What a bank knows of one period after its measurements, one entry for each model."""

    density: Array
    """Logarithm of the density of the measured values given all earlier ones."""
    means: Array
    """Of the steps; empty if they were not wanted, as are the following."""
    variances: Array
    with_ends: Array
    """Covariance of the steps with the states at the end of the period."""
    surprise: Array
    """What was measured and not expected, in independent units."""
    starts: Array
    """Covariance of these units with the states at the start of the period."""
    ends: Array
    """The same with the states at its end."""


@dataclass(frozen=True)
class Geometry:
    """What all models of a stream share: its curves and the processes on the steps of a period.

    >>> Geometry(w=48, season=7, smooth=True).size
    106
    """

    w: int
    season: int
    smooth: bool

    @property
    def curve(self) -> int:
        """Number of cosines of the shape, the level included."""
        return min(self.w, CURVE)

    @property
    def weekday(self) -> int:
        """Number of cosines of a weekday's deviation."""
        return min(self.w, WEEKDAY_CURVE) if self.season > 1 else 0

    @property
    def size(self) -> int:
        """Number of states."""
        return self.curve + self.season * self.weekday + 2

    def active(self, period: int) -> NDArray[np.intp]:
        """Return the states that the values of a period depend on."""
        first = self.curve + (period % self.season) * self.weekday
        return np.concatenate(
            [np.arange(self.curve), np.arange(first, first + self.weekday), np.arange(self.size - 2, self.size)]
        )


class _Parts(NamedTuple):
    """The arrays that follow from a geometry."""

    paths: Array
    spectrum: Array
    weekday_spectrum: Array
    decay: Array
    kernels: Array
    """Covariances of drift, intraday and white part on the steps of a period, given the last values before it."""


@lru_cache(maxsize=16)
def _parts(geometry: Geometry) -> _Parts:
    w, curve, weekday = geometry.w, geometry.curve, geometry.weekday
    steps = np.arange(w)
    frequencies = np.arange(max(curve, weekday))
    cosines = np.cos(np.pi * frequencies * ((steps[:, None] + 0.5) / w)) * np.where(frequencies == 0, 1.0, np.sqrt(2.0))
    spectrum = (1 + (frequencies / KNEE) ** 2) ** -FALL if geometry.smooth else np.ones(len(frequencies))
    common = spectrum[:curve].copy()
    common[0] = 0.0
    memories = np.array([DRIFT_PERIODS * w, INTRADAY_PERIODS * w if geometry.smooth else 1e-2])
    decay = np.exp(-(steps[:, None] + 1) / memories)
    lags = np.abs(steps[:, None] - steps)
    kernels = np.exp(-lags / memories[:, None, None]) - decay.T[:, :, None] * decay.T[:, None, :]
    return _Parts(
        paths=np.concatenate([cosines[:, :curve], cosines[:, :weekday], decay], axis=1),
        spectrum=common / max(common.sum(), np.finfo(float).tiny),
        weekday_spectrum=spectrum[:weekday] / max(spectrum[:weekday].sum(), np.finfo(float).tiny),
        decay=decay,
        kernels=np.concatenate([kernels, np.eye(w)[None]]),
    )


@lru_cache(maxsize=64)
def layout_of(geometry: Geometry, cells: Cells) -> Layout:
    """Return what means over given sets of steps see.

    >>> layout_of(Geometry(w=4, season=1, smooth=True), ((0,), (1, 2, 3))).average[1].round(2).tolist()
    [0.0, 0.33, 0.33, 0.33]
    """
    parts = _parts(geometry)
    average = np.zeros((len(cells), geometry.w))
    for row, cell in zip(average, cells, strict=True):
        row[list(cell)] = 1 / len(cell)
    carried = average @ parts.kernels
    return Layout(average, average @ parts.paths, carried, carried @ average.T)


class Bank:
    """Filters of one geometry that run side by side; model i has the amplitudes ``amplitudes[i]``.

    Args:
        geometry: The curves and processes.
        amplitudes: Variances, one row for each model, columns as in :data:`AMPLITUDES`.
        level: Mean and variance of the level before anything is measured.
    """

    def __init__(self, geometry: Geometry, amplitudes: Array, level: tuple[float, float]) -> None:
        self.geometry = geometry
        self.amplitudes = np.array(amplitudes, dtype=np.float64)
        self.level = level
        self.last: int | None = None
        """The last period that was measured."""
        models = len(self.amplitudes)
        self.mean = np.zeros((models, geometry.size))
        self.mean[:, 0] = level[0]
        variances = self._stationary()
        variances[:, 0] = level[1]
        self.covariance = np.zeros((models, geometry.size, geometry.size))
        self._diagonal(self.covariance)[:] = variances

    @staticmethod
    def _diagonal(matrices: Array) -> Array:
        """Return a view of the diagonals."""
        view: Array = np.einsum("mii->mi", matrices)
        return view

    def _stationary(self) -> Array:
        """Return the variances of the states before anything is measured, but that of the level as zero."""
        parts, amplitudes = _parts(self.geometry), self.amplitudes
        return np.concatenate(
            [
                amplitudes[:, [SHAPE]] * parts.spectrum,
                amplitudes[:, [WEEKDAY]] * np.tile(parts.weekday_spectrum, self.geometry.season),
                amplitudes[:, [DRIFT, INTRADAY]],
            ],
            axis=1,
        )

    def copy(self, models: list[int] | None = None) -> Bank:
        """Return a bank of some of the models, or of all, in the state that they have here."""
        chosen = slice(None) if models is None else models
        same = Bank(self.geometry, self.amplitudes[chosen], self.level)
        same.mean, same.covariance, same.last = self.mean[chosen].copy(), self.covariance[chosen].copy(), self.last
        return same

    def forget(self) -> None:
        """Return to the state before anything was measured, with the amplitudes of now."""
        fresh = Bank(self.geometry, self.amplitudes, self.level)
        self.mean, self.covariance, self.last = fresh.mean, fresh.covariance, None

    def take(self, models: list[int], amplitudes: Array) -> None:
        """Replace the bank by copies of some of its models, with new amplitudes."""
        self.mean, self.covariance = self.mean[models], self.covariance[models]
        self.amplitudes = np.array(amplitudes, dtype=np.float64)

    @property
    def decay(self) -> Array:
        """What the states at the start of a period are multiplied by on the way to its end."""
        factors = np.ones(self.geometry.size)
        factors[-2:] = _parts(self.geometry).decay[-1]
        return factors

    def factors(self, gap: int) -> Array:
        """Return what the states are multiplied by on the way to a period that is ``gap`` periods after the last."""
        geometry, amplitudes = self.geometry, self.amplitudes
        factors = np.ones_like(self.mean)
        if gap:
            kept = np.maximum(1 - amplitudes[:, EVOLUTION] / amplitudes[:, SHAPE], 0.0) ** (gap / 2)
            factors[:, 1 : geometry.curve] = kept[:, None]
            factors[:, geometry.curve : -2] = (1 - WEEKDAY_SHARE) ** (gap / 2)
            factors[:, -2:] = _parts(geometry).decay[-1] ** (gap - 1)
        return factors

    def advance(self, period: int, jump: float = 0.0) -> None:
        """Predict the state at the start of a later period, but for the last values of the processes.

        Args:
            period: The period, after the last that was measured.
            jump: Variance by which the level may have broken on top of its walk.
        """
        gap = 0 if self.last is None else period - self.last
        if gap:
            # What the states lose of their stationary variance is renewed.
            factors = self.factors(gap)
            self.mean *= factors
            self.covariance *= factors[:, :, None] * factors[:, None, :]
            self._diagonal(self.covariance)[:] += self._stationary() * (1 - factors**2)
            self.covariance[:, 0, 0] += gap * LEVEL_SHARE * self.amplitudes[:, DRIFT]
        self.covariance[:, 0, 0] += jump

    def expected(self, period: int) -> tuple[Array, Array]:
        """Return for each model the mean and covariance of the steps of a period, to which the bank was advanced."""
        parts, active = _parts(self.geometry), self.geometry.active(period)
        known = parts.paths @ self.covariance[:, active[:, None], active] @ parts.paths.T
        fresh = np.tensordot(self.amplitudes[:, [DRIFT, INTRADAY, WHITE]], parts.kernels, 1)
        return self.mean[:, active] @ parts.paths.T, known + fresh

    def innovation(self, period: int, layout: Layout, variances: Array) -> tuple[Array, Array, Array]:
        """Return for each model what it expects of a period's measurements, to which the bank was advanced.

        Args:
            period: The period.
            layout: What is measured.
            variances: Variances of the noise.

        Returns:
            The expected values, their covariances, and the part of these that comes from what the processes and the
            white part do within this period.
        """
        active = self.geometry.active(period)
        fresh = np.tensordot(self.amplitudes[:, [DRIFT, INTRADAY, WHITE]], layout.between, 1)
        covariances = layout.paths @ self.covariance[:, active[:, None], active] @ layout.paths.T + fresh
        covariances = (covariances + covariances.transpose(0, 2, 1)) / 2
        self._diagonal(covariances)[:] += variances
        return self.mean[:, active] @ layout.paths.T, covariances, fresh

    def observe(
        self, period: int, layout: Layout, values: Array, variances: Array, excess: float = 1.0, *, steps: bool = True
    ) -> Posterior:
        """Condition on the measurements of a period, to which the bank was advanced.

        Args:
            period: The period.
            layout: What is measured.
            values: Noisy values.
            variances: Variances of their noise.
            excess: Factor on the variances of what the processes and the white part do within this period.
            steps: Whether the posterior of the steps is wanted, or only the density.
        """
        parts = _parts(self.geometry)
        active = self.geometry.active(period)
        amplitudes = excess * self.amplitudes[:, [DRIFT, INTRADAY, WHITE]]
        decay = parts.decay[-1]
        with_states = layout.paths @ self.covariance[:, active, :]
        with_active = with_states[:, :, active]
        covariance = with_active @ layout.paths.T + np.tensordot(amplitudes, layout.between, 1)
        covariance = (covariance + covariance.transpose(0, 2, 1)) / 2
        self._diagonal(covariance)[:] += variances
        inverse, logarithm = whitening(covariance)
        expected = self.mean[:, active]
        surprise = inverse @ (values - expected @ layout.paths.T)[:, :, None]
        density = -0.5 * (surprise[:, :, 0] ** 2).sum(axis=1) - 0.5 * len(values) * np.log(2 * np.pi)
        density += logarithm
        starts = inverse @ with_states
        # The two last values move to the end of this period, together with what the processes do within it.
        with_states[:, :, -2:] *= decay
        with_states[:, :, -2:] += amplitudes[:, None, :2] * layout.carried[:2, :, -1].T
        ends = inverse @ with_states

        means = spreads = with_ends = np.empty((len(amplitudes), 0))
        if steps:
            with_ends = parts.paths @ self.covariance[:, active, :]
            spreads = (with_ends[:, :, active] * parts.paths).sum(axis=2)
            spreads += amplitudes @ np.einsum("ctt->ct", parts.kernels)
            with_steps = inverse @ (with_active @ parts.paths.T + np.tensordot(amplitudes, layout.carried, 1))
            means = expected @ parts.paths.T + (with_steps.transpose(0, 2, 1) @ surprise)[:, :, 0]
            spreads = np.maximum(spreads - (with_steps**2).sum(axis=1), 0.0)
            with_ends[:, :, -2:] *= decay
            with_ends[:, :, -2:] += amplitudes[:, None, :2] * parts.kernels[:2, :, -1].T
            with_ends -= with_steps.transpose(0, 2, 1) @ ends

        self.mean[:, -2:] *= decay
        self.covariance[:, -2:, :] *= decay[:, None]
        self.covariance[:, :, -2:] *= decay
        diagonal = self._diagonal(self.covariance)
        diagonal[:, -2:] += amplitudes[:, :2] * (1 - decay**2)
        transposed = ends.transpose(0, 2, 1)
        self.mean += (transposed @ surprise)[:, :, 0]
        self.covariance -= transposed @ ends
        self.covariance += self.covariance.transpose(0, 2, 1).copy()
        self.covariance /= 2
        np.maximum(diagonal, 0.0, out=diagonal)
        self.last = period
        return Posterior(density, means, spreads, with_ends, surprise[:, :, 0], starts, ends)


def whitening(covariances: Array) -> tuple[Array, Array]:
    """Return matrices that make vectors of given covariances independent, and the logarithms of their determinants.

    Matrices that rounding left indefinite are taken to be as far from it as their rounding errors.

    >>> inverses, logarithms = whitening(np.array([[[4.0]]]))
    >>> inverses.tolist(), logarithms.tolist() == [-np.log(2)]
    ([[[0.5]]], True)
    """
    try:
        roots = np.linalg.cholesky(covariances)
        inverses = np.stack([lapack.dtrtri(root, lower=1)[0] for root in roots])
        if np.isfinite(inverses).all():
            return inverses, -np.log(np.einsum("mii->mi", roots)).sum(axis=1)
    except np.linalg.LinAlgError:
        pass
    values, vectors = np.linalg.eigh(covariances)
    values = np.maximum(values, np.maximum(ROUNDING * values.max(axis=1, keepdims=True), SMALLEST))
    scales = 1 / np.sqrt(values)
    return scales[:, :, None] * vectors.transpose(0, 2, 1), np.log(scales).sum(axis=1)
