"""The filter of estimates in numpy, as its description says and without any structure: what the core is held against.

A bank of Kalman filters over periods: one linear Gaussian model of a stream, under several sets of amplitudes.

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

from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.linalg import lapack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Cells = tuple[tuple[int, ...], ...]

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

    def advance(self, period: int, jump: float = 0.0, shift: float = 0.0) -> None:
        """Predict the state at the start of a later period, but for the last values of the processes.

        Args:
            period: The period, after the last that was measured.
            jump: Variance by which the level may have broken on top of its walk.
            shift: By how much it is moved before that.
        """
        gap = 0 if self.last is None else period - self.last
        if gap:
            # What the states lose of their stationary variance is renewed.
            factors = self.factors(gap)
            self.mean *= factors
            self.covariance *= factors[:, :, None] * factors[:, None, :]
            self._diagonal(self.covariance)[:] += self._stationary() * (1 - factors**2)
            self.covariance[:, 0, 0] += gap * LEVEL_SHARE * self.amplitudes[:, DRIFT]
        self.mean[:, 0] += shift
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


SHARES = np.zeros(6)
SHARES[[SHAPE, DRIFT, INTRADAY, WHITE, WEEKDAY, EVOLUTION]] = 1.0, 0.15, 0.05, 0.03, 0.2, 0.002
"""Amplitudes that are expected before anything is measured, as shares of the variance of the shape. They matter where
the measurements say nothing, such as for what happens within buckets that are always the same."""
WIDTH = 2.0
"""Standard deviation of the logarithm of an amplitude around what is expected: a factor of 7 is nothing unusual."""
SHAPE_SHARE, SHAPE_WIDTH = 0.5, 4.0
"""The same for the variance of the shape, as a share of the mean square of deviations from the level."""
STEP = np.log(4.0)
"""Distance between neighbouring models in the logarithm of an amplitude."""
FLOOR, CEILING = 1e-9, 1e3
"""Least and largest amplitude, as a share of the mean square of deviations."""
DIFFUSE = 1e3
"""Variance of a level of which nothing is known, as a share of the mean square of deviations."""
REFITS = (1, 2, 3, 5, 8, 13, 21)
"""Numbers of measured periods at which all amplitudes are fitted again to everything so far."""
ROUNDS = 6
"""Most rounds of such a fit."""
FITTED = 0.5
"""Evidence below which a further round is not worth its time."""
GROWTH = 16.0
"""Growth of the mean square of deviations from which a fit looks at amplitudes of all sizes again."""
FORGETTING = 0.98
"""Factor by which the evidence of a period counts less in the next."""
MOST = 5.0
"""Most evidence for or against a challenger that one period may give, so that one odd period decides nothing."""
MARGIN = 1.0
"""Evidence by which a challenger must lead before it becomes the centre."""
REJECTED = 4.0
"""Evidence by which a challenger must be behind before its opposite is tried."""
HANDICAP = 2.0
"""Evidence that a new challenger starts behind the centre."""
BREAK = 10.0
"""Evidence that a level must have before it is taken to have broken: about five standard deviations."""
BREAK_PERIODS = (1, 2, 3, 5)
"""Numbers of consecutive periods over which a break may show."""
ODD = 5.0
"""Evidence that a period must have before its own variance is taken to be larger than usual."""
EXCESSES = 4.0 ** np.arange(1, 11)
"""Factors by which it may be larger."""
STALE_PERIODS, STALE, PATIENCE = (5, 8, 13), 10.0, 3
"""Numbers of periods over which a stream that has become another one may show, the evidence that it takes, and the
least number of periods between two comparisons."""
LOGGED = 21
"""Number of periods that are kept."""
HIDDEN, HIDDEN_MOST, SEEN = 1.28, 4.0, 0.6
"""Standard errors by which the variance of independent steps may be larger, how many times what is expected where
nothing is known, and the part that counts for measured steps."""
LARGEST = 1e100
"""Most that one mean may say of the variance of independent steps."""
UNTESTED = 3
"""Number of periods before deviations are judged, since nothing is known yet of what is usual."""
HORIZON = 56
"""Number of periods after which the precision of the filter is taken to be steady."""
TINY = 1e-150
"""Least mean square that is told from zero."""
PRECISION = 1e-14
"""The same as a share of the square of the level."""


class Measured(NamedTuple):
    """The measurements of one period, and how they were understood."""

    period: int
    cells: Cells
    """The steps whose mean each value is."""
    values: Array
    variances: Array
    """Of the noise on the values."""
    jump: float = 0.0
    """Variance by which the level may have broken before this period."""
    excess: float = 1.0
    """Factor on the variances of what is new within this period."""
    shift: float = 0.0
    """By how much the level was moved when it broke."""


class Filter:
    """Estimate the steps of a stream, period by period, from noisy means with known variances.

    The posterior of the model of :mod:`optstream.estimate.model`, averaged over several sets of amplitudes by their
    marginal likelihood. Everything is learnt from the values given to :meth:`update`, which are private already, so
    nothing here costs budget. An estimate depends only on what was measured up to its period and never changes.

    The amplitudes are fitted to all measurements of the first weeks at periods 1, 2, 3, 5, 8, 13 and 21. Later one
    challenger for each amplitude runs beside the centre, a factor of four away; evidence fades with a half-life of 34
    periods, a challenger that leads becomes the centre, one that falls behind is replaced by its opposite. A level
    that deviates by about five standard deviations, over one to five periods, is taken to have broken and is learnt
    anew; a period that deviates otherwise is given more variance of its own.

    Args:
        w: Number of steps of a period.
        season: Number of periods after which weekdays repeat; 1 is no season.
        memory: Whether earlier periods inform later ones. Without, only the amplitudes are learnt.
        smooth: Whether neighbouring steps inform each other.
        level: Mean and standard deviation of the level before anything is measured, if something public is known.

    Example:
        >>> rng = np.random.default_rng(1)
        >>> truth = 100 + 20 * np.sin(np.arange(24) / 24 * 2 * np.pi)
        >>> cells = tuple((step, step + 1) for step in range(0, 24, 2))
        >>> estimator = Filter(24)
        >>> for day in range(28):
        ...     values = truth.reshape(12, 2).mean(axis=1) + rng.laplace(0, 20, size=12)
        ...     means, variances = estimator.update(Measured(day, cells, values, np.full(12, 800.0)))
        >>> bool(np.abs(means - truth).mean() < 7)
        True
    """

    def __init__(
        self,
        w: int,
        *,
        season: int = 7,
        memory: bool = True,
        smooth: bool = True,
        level: tuple[float, float] | None = None,
    ) -> None:
        self._geometry = Geometry(w=w, season=season if memory else 1, smooth=smooth)
        self._memory, self._season = memory, season
        self._level = level
        self._log: list[Measured] = []
        self.measured = 0
        """How many periods have been measured."""
        self._origin = self._centre = self._spread = self._scale = self._scanned = 0.0
        self._bank: Bank | None = None
        self._evidence = np.zeros(6)
        self._signs = np.ones(5, dtype=np.int64)
        self._surprises: list[float] = []
        self._since = self._asked = 0
        self._tests: list[tuple[float, float]] = []
        self._information = 0.0
        self.understood: Measured | None = None
        """The last measurements, with what was made of them: whether the level broke, whether the period was odd."""

    @property
    def kind(self) -> tuple[int, int, bool, bool]:
        """What does not change: w, season, memory and smooth."""
        return self._geometry.w, self._season, self._memory, self._geometry.smooth

    @property
    def last(self) -> int | None:
        """The last period that was measured."""
        return None if self._bank is None else self._bank.last

    def update(self, measured: Measured) -> tuple[Array, Array]:
        """Take the noisy means of one period, and return the posterior means and variances of its steps."""
        self.measured += 1
        self._since += 1
        mean, square, noise = _moments(measured)
        if self.measured == 1:
            self._origin, self._spread = mean, square
        else:
            weight = max(1 - FORGETTING, 1 / self.measured)
            apart = mean - self._origin - self._centre
            self._centre += weight * apart
            self._spread = (1 - weight) * (self._spread + weight * apart**2) + weight * square
        self._scale = max(self._spread, noise, PRECISION * (self._origin + self._centre) ** 2, TINY)
        white = 0.0 if self._bank is None else float(self._bank.amplitudes[0, WHITE])
        self._information = FORGETTING * self._information + _information(measured, white)
        test = (0.0, 0.0)
        if self._bank is not None:
            measured, test = self._interpret(self._bank, measured)
        self.understood = measured
        self._log, self._tests = [*self._log, measured][-LOGGED:], [*self._tests, test][-LOGGED:]
        periods = self._stale()
        if periods is not None:
            self._keep_last(periods)
            self._since, self._asked, self._surprises, self._bank = periods, self.measured, [], None
        estimate = self._refit() if self._bank is None or self._since in REFITS else self._follow(self._bank, measured)
        return estimate[0] + self._origin, estimate[1] + self._hidden(measured)

    def _keep_last(self, periods: int) -> None:
        """Keep the last logged periods, as they were measured, and the scale that they have."""
        self._log = [seen._replace(jump=0.0, excess=1.0, shift=0.0) for seen in self._log[-periods:]]
        self._tests = [(0.0, 0.0)] * periods
        found = np.array([_moments(seen) for seen in self._log])
        self._centre, self._spread = float((found[:, 0] - self._origin).mean()), float(found[:, 1].mean())
        self._scale = max(self._spread, found[-1, 2], PRECISION * (self._origin + self._centre) ** 2, TINY)

    def _stale(self) -> int | None:
        """Return for how many periods a filter that learns them anew explains them better, if for any."""
        if self.measured < self._asked + PATIENCE:
            return None
        tested = 0
        while tested < len(self._tests) and self._tests[-1 - tested][0] > 0:
            tested += 1
        sizes = np.array([len(seen.values) for seen in self._log])
        numbers = [number for number in STALE_PERIODS if number <= tested]
        lengths = np.array([length for length, _ in self._tests])
        if not any(lengths[-n:].sum() > sizes[-n:].sum() + 3 * np.sqrt(5 * sizes[-n:].sum()) for n in numbers):
            return None
        self._asked = self.measured
        leads = []
        for number in numbers:
            usual = 0.0
            for _, density in self._tests[-number:]:
                usual = FORGETTING * usual + density
            anew = copy(self)
            anew._keep_last(number)
            logs = anew._clip(anew._expected(np.log(anew._scale) + 2 * STEP - STEP * np.arange(10)))
            leads.append(float(anew._score(logs).max()) - usual)
        return numbers[int(np.argmax(leads))] if max(leads) > STALE else None

    def _hidden(self, measured: Measured) -> Array:
        """Return what the measured means cannot know of the variance of independent steps."""
        white = 0.0 if self._bank is None else float(self._bank.amplitudes[0, WHITE])
        hidden = HIDDEN / np.sqrt(self._information) if self._information > 0 else HIDDEN_MOST * white
        if self._level is not None:
            hidden = min(hidden, max(self._level[1] - abs(self._origin + self._centre - self._level[0]), 0.0) ** 2)
        found = np.full(self._geometry.w, hidden)
        for cell, noise in zip(measured.cells, measured.variances, strict=True):
            blurred = noise / max(noise + white / len(cell), TINY)
            kept = hidden * (1 - (1 - SEEN * blurred**2) / len(cell))
            found[list(cell)] = np.minimum(found[list(cell)], kept)
        return found

    def _expected(self, shape: Array) -> Array:
        return shape[..., None] + np.log(SHARES)

    def _prior(self, logs: Array) -> Array:
        """Return the logarithm of the prior density of amplitudes, up to a constant."""
        shape = logs[..., SHAPE]
        distance = (logs - self._expected(shape)) / WIDTH
        scale = (shape - np.log(SHAPE_SHARE * self._scale)) / SHAPE_WIDTH
        return np.asarray(-0.5 * ((distance**2).sum(axis=-1) + scale**2))

    def _clip(self, logs: Array) -> Array:
        return np.clip(logs, np.log(FLOOR * self._scale), np.log(CEILING * self._scale))

    def _start(self, measured: Measured) -> tuple[float, float]:
        """Return the mean and variance of the level before a period is measured, relative to the origin."""
        diffuse = DIFFUSE * self._scale
        if self._level is not None and self._level[1] ** 2 <= diffuse:
            return self._level[0] - self._origin, self._level[1] ** 2
        return _moments(measured)[0] - self._origin, diffuse

    def _step(self, bank: Bank, measured: Measured, *, steps: bool = True) -> Posterior:
        if not self._memory:
            bank.level = self._start(measured)
            bank.forget()
        bank.advance(measured.period, measured.jump, measured.shift)
        measured = measured._replace(values=measured.values - self._origin)
        layout = layout_of(self._geometry, measured.cells)
        usual = None
        if measured.excess > 1:
            # An odd period counts as what it is when amplitudes are compared: else they stay too small for ever.
            expected, covariances, _ = bank.innovation(measured.period, layout, measured.variances)
            usual = _densities(measured.values - expected, covariances)[0]
        found = bank.observe(measured.period, layout, measured.values, measured.variances, measured.excess, steps=steps)
        return found if usual is None else found._replace(density=usual)

    def _replay(self, logs: Array) -> tuple[Bank, Posterior, Array]:
        """Run models over everything logged; return the bank, the last estimates and the evidence."""
        bank, evidence = Bank(self._geometry, np.exp(logs), self._start(self._log[0])), np.zeros(len(logs))
        for measured in self._log:
            found = self._step(bank, measured, steps=measured is self._log[-1])
            evidence = FORGETTING * evidence + found.density
        return bank, found, evidence

    def _score(self, logs: Array) -> Array:
        return self._replay(logs)[2] + self._prior(logs)

    def _refit(self) -> tuple[Array, Array]:
        """Fit the amplitudes to everything logged, and start the models from there."""
        if self._bank is None or self._scale > GROWTH * self._scanned:
            self._scanned = self._scale
            base = np.log(CEILING * self._scale) - STEP * np.arange(20)
            candidates = self._clip(self._expected(base))
            centre = candidates[np.argmax(self._score(candidates))]
        else:
            centre = self._clip(np.log(self._bank.amplitudes[0]))
        step, moves = STEP, np.eye(6)
        for _ in range(ROUNDS):
            near = self._clip(centre + step * np.concatenate([np.zeros((1, 6)), moves, -moves]))
            scores = self._score(near)
            up, down = scores[1:7] - scores[0], scores[7:] - scores[0]
            curvature = up + down
            slope = (up - down) / 2
            newton = np.where(curvature < 0, -slope / np.where(curvature < 0, curvature, 1.0), np.sign(slope))
            jointly = self._clip(centre + step * np.clip(newton, -1.5, 1.5))
            score = self._score(jointly[None])[0]
            best = int(np.argmax(scores))
            gain = max(score, scores[best]) - scores[0]
            if score > scores[best]:
                centre = jointly
            elif best:
                centre = near[best]
            else:
                step /= 2
            if gain < FITTED and step < STEP:
                break
        logs = np.concatenate([centre[None], self._challengers(centre)])
        self._bank, found, self._evidence = self._replay(logs)
        return self._average(found, logs)

    def _challengers(self, centre: Array) -> Array:
        return self._clip(centre + STEP * self._signs[:, None] * np.eye(6)[1:])

    def _average(self, found: Posterior, logs: Array) -> tuple[Array, Array]:
        score = self._evidence + self._prior(logs)
        weights = np.exp(score - score.max())
        weights /= weights.sum()
        mean = weights @ found.means
        apart = found.means - mean
        return mean, weights @ (found.variances + apart**2)

    def _follow(self, bank: Bank, measured: Measured) -> tuple[Array, Array]:
        """Take one period after another, and let the challengers compete."""
        found = self._step(bank, measured)
        self._evidence = FORGETTING * self._evidence + np.clip(found.density - found.density[0], -MOST, MOST)
        logs = np.log(bank.amplitudes)
        estimate = self._average(found, logs)
        score = self._evidence + self._prior(logs)
        lead = score - score[0]
        best = int(np.argmax(lead))
        sources = list(range(6))
        evidence = self._evidence.copy()
        centre = logs[0]
        if lead[best] > MARGIN:
            # The others stay where they are relative to the centre, and so does their evidence.
            centre = logs[best]
            evidence = evidence + (evidence[best] - evidence[0])
            evidence[0] = self._evidence[best]
            evidence[best] = evidence[0] - HANDICAP
            sources[0] = best
        for challenger in range(1, 6):
            if lead[challenger] < -REJECTED:
                self._signs[challenger - 1] *= -1
                sources[challenger] = sources[0]
                evidence[challenger] = evidence[0] - HANDICAP
        self._evidence = evidence - evidence[0]
        if sources == list(range(6)):
            return estimate
        bank.take(sources, np.exp(np.concatenate([centre[None], self._challengers(centre)])))
        return estimate

    def _interpret(self, bank: Bank, measured: Measured) -> tuple[Measured, tuple[float, float]]:
        """Decide from the evidence whether the level broke before this period, and whether the period is odd."""
        if not self._memory or self.measured <= UNTESTED:
            return measured, (0.0, 0.0)
        ahead = bank.copy([self._best(bank)])
        ahead.advance(measured.period)
        layout = layout_of(self._geometry, measured.cells)
        expected, covariance, fresh = ahead.innovation(measured.period, layout, measured.variances)
        deviations = measured.values - self._origin - expected[0]
        # The likeliest common shift of all buckets, in units of its standard deviation, is the evidence of a break.
        inverse, _ = whitening(covariance)
        surprise, direction = inverse[0] @ deviations, inverse[0].sum(axis=1)
        precision = float(direction @ direction)
        shift = float(direction @ surprise) / precision
        self._surprises = [*self._surprises, shift * float(np.sqrt(precision))][-max(BREAK_PERIODS) :]
        numbers = [number for number in BREAK_PERIODS if number <= len(self._surprises)]
        square = max(sum(self._surprises[-number:]) ** 2 / number for number in numbers)
        jump, moved, excess = 0.0, 0.0, 1.0
        if square > 1 and (square - 1 - np.log(square)) / 2 > BREAK:
            jump = max(shift**2, square / precision)
            if jump > DIFFUSE / precision:
                jump, moved = DIFFUSE / precision, shift
            self._surprises = []
            self._centre = _moments(measured)[0] - self._origin
        covariance, deviations = covariance + jump, deviations - moved
        size = len(deviations)
        (usual,), (square,) = _densities(deviations[None], covariance)
        density = float(usual)
        if square > size + 3 * np.sqrt(5 * size):
            factors = EXCESSES[:, None, None]
            odd = _densities(np.tile(deviations, (len(EXCESSES), 1)), covariance + (factors - 1) * fresh)[0]
            best = int(np.argmax(odd))
            if odd[best] - ODD > usual:
                excess, density = float(EXCESSES[best]), float(odd[best] - ODD)
        test = (float(square), density - (BREAK if jump > 0 else 0.0))
        return measured._replace(jump=jump, excess=excess, shift=moved), test

    def _best(self, bank: Bank) -> int:
        return int(np.argmax(self._evidence + self._prior(np.log(bank.amplitudes))))

    def expected_error(
        self, cells: Cells, variances: Array, scale: float | None = None, *, memory: bool = True
    ) -> float:
        """Return the mean absolute error that the filter expects of itself some weeks from now.

        No data is needed beyond what was learnt: the precision of a linear filter depends on what is measured and its
        variances alone. Compare candidates with it before anything is measured. Without anything learnt it stands on
        ``scale``, a guess of the standard deviation of values within a period.

        Example:
            >>> for k in (4, 12, 48):
            ...     cells = tuple(tuple(range(step, step + 48 // k)) for step in range(0, 48, 48 // k))
            ...     print(k, round(Filter(48).expected_error(cells, np.full(k, 2 * (10.0 * k) ** 2), scale=1000.0)))
            4 471
            12 215
            48 214
        """
        bank = self.ahead(scale)
        season = self._geometry.season
        periods = max(HORIZON, 2 * season) if memory and self._memory else season
        first = 0 if bank.last is None else bank.last + 1
        error = []
        layout = layout_of(self._geometry, cells)
        if self._bank is not None:
            known = np.inf if self._level is None else self._level[1] ** 2
            bank.level = (0.0, min(DIFFUSE * self._scale, known))
        for period in range(first, first + periods):
            if not (memory and self._memory):
                bank.forget()
            bank.advance(period)
            late = period >= first + periods - season
            found = bank.observe(period, layout, np.zeros(len(cells)), variances, steps=late)
            if late:
                error.append(np.sqrt(2 / np.pi * found.variances[0]).mean())
        return float(np.mean(error))

    def deviation(self, transform: Array, scale: float | None = None) -> Array:
        """Return the mean square of linear transforms of the steps of a period, over a season from now on."""
        squares = []
        for gap in range(1, self._geometry.season + 1):
            bank = self.ahead(scale)
            period = gap if bank.last is None else bank.last + gap
            bank.advance(period)
            mean, spread = bank.expected(period)
            mean = mean + self._origin
            squares.append((transform @ mean[0]) ** 2 + ((transform @ spread[0]) * transform).sum(axis=1))
        return np.asarray(np.mean(squares, axis=0))

    def ahead(self, scale: float | None = None) -> Bank:
        """Return the likeliest model in its present state, or else what is expected of a stream of a scale."""
        if self._bank is not None:
            return self._bank.copy([self._best(self._bank)])
        if scale is None:
            raise ValueError("scale is None, but must be given while nothing was measured")
        return Bank(self._geometry, SHARES[None] * scale**2, (0.0, DIFFUSE * scale**2))


def _information(measured: Measured, white: float) -> float:
    """Return what the single steps of a period say of the variance of independent steps."""
    singles = np.array([len(cell) == 1 for cell in measured.cells])
    ratios = 1 / np.maximum(measured.variances[singles] + white, TINY)
    return float(0.5 * np.minimum(ratios**2, LARGEST).sum())


def _moments(measured: Measured) -> tuple[float, float, float]:
    """Return a mean of the values, the mean square of what deviates from it, and a typical variance of noise."""
    least = measured.variances.min() + TINY
    weights = least / (measured.variances + least)
    weights = weights / weights.sum()
    mean = float(weights @ measured.values)
    return mean, float(weights @ (measured.values - mean) ** 2), float(weights @ measured.variances)


def _densities(deviations: Array, covariances: Array) -> tuple[Array, Array]:
    """Return the logarithms of the densities of deviations, and their squared lengths."""
    inverses, logarithms = whitening(covariances)
    squares = ((inverses @ deviations[:, :, None]) ** 2).sum(axis=(1, 2))
    return -0.5 * (squares + deviations.shape[1] * np.log(2 * np.pi)) + logarithms, squares


class _Passed(NamedTuple):
    """What the pass forward left of a period."""

    found: Posterior
    factors: Array
    """What the states at the end of the period before were multiplied by."""
    starts: Array
    """Covariance of the states at the start of the period, given all periods before."""


def revised(learnt: Filter, measured: Sequence[Measured]) -> tuple[Array, Array]:
    """Return the means and variances of the steps of all measured periods, given all of them.

    Args:
        learnt: A filter that has seen them.
        measured: What was measured of each period, in their order, as the filter understood it.
    """
    bank = learnt.ahead()
    bank.level = learnt._start(measured[0])
    bank.forget()
    passed = []
    for seen in measured:
        factors = bank.factors(0 if bank.last is None else seen.period - bank.last)[0]
        bank.advance(seen.period, seen.jump, seen.shift)
        starts = bank.covariance[0].copy()
        layout = layout_of(bank.geometry, seen.cells)
        found = bank.observe(seen.period, layout, seen.values - learnt._origin, seen.variances, seen.excess)
        passed.append(_Passed(found, factors, starts))

    means = np.stack([period.found.means[0] for period in passed])
    variances = np.stack([period.found.variances[0] for period in passed])
    size = bank.geometry.size
    # What later periods add to the mean and to the covariance of the states at the start of the next.
    mean, covariance = np.zeros(size), np.zeros((size, size))
    after: _Passed | None = None
    for index, period in reversed(list(enumerate(passed))):
        found = period.found
        own = found.starts[0].T
        change, spread = own @ found.surprise[0], -own @ own.T
        if after is not None:
            inverse, _ = whitening(after.starts[None])
            to_next = after.factors[:, None] * (inverse[0].T @ inverse[0])
            steps = found.with_ends[0] @ to_next
            means[index] += steps @ mean
            variances[index] += ((steps @ covariance) * steps).sum(axis=1)
            states = (period.starts * bank.decay - own @ found.ends[0]) @ to_next
            change, spread = change + states @ mean, spread + states @ covariance @ states.T
        mean, covariance, after = change, spread, period
    return means + learnt._origin, np.maximum(variances, 0.0)
