"""The estimate of a stream from noisy means: a filter with memory that learns its own scales."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optstream.errors import DataError, ParameterError
from optstream.estimate.model import (
    DRIFT,
    EVOLUTION,
    INTRADAY,
    SHAPE,
    WEEKDAY,
    WHITE,
    Bank,
    Geometry,
    Posterior,
    layout_of,
    whitening,
)
from optstream.estimate.threads import one_thread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from optstream.estimate.model import Cells

    Array = NDArray[np.float64]

__all__ = ["Filter", "Measured"]

SHARES = np.zeros(6)
SHARES[[SHAPE, DRIFT, INTRADAY, WHITE, WEEKDAY, EVOLUTION]] = 1.0, 0.15, 0.05, 0.03, 0.2, 0.002
"""Amplitudes that are expected before anything is measured, as shares of the variance of the shape. They matter where
the measurements say nothing, such as for what happens within buckets that are always the same."""
WIDTH = 2.0
"""Standard deviation of the logarithm of an amplitude around what is expected: a factor of 7 is nothing unusual."""
SHAPE_SHARE, SHAPE_WIDTH = 0.04, 4.0
"""The same for the variance of the shape, as a share of the mean square of the values."""
STEP = np.log(4.0)
"""Distance between neighbouring models in the logarithm of an amplitude."""
FLOOR, CEILING = 1e-9, 1e3
"""Least and largest amplitude, as a share of the mean square of the values."""
DIFFUSE = 1e3
"""Variance of the level before anything is measured, as a share of the mean square of the first values."""
REFITS = (1, 2, 3, 5, 8, 13, 21)
"""Numbers of measured periods at which all amplitudes are fitted again to everything so far."""
ROUNDS = 6
"""Most rounds of such a fit."""
FITTED = 0.5
"""Evidence below which a further round is not worth its time."""
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
UNTESTED = 3
"""Number of periods before deviations are judged, since nothing is known yet of what is usual."""
HORIZON = 56
"""Number of periods after which the precision of the filter is taken to be steady."""
LARGEST = 1e100
"""Largest value, and root of the largest variance, whose squares are computed."""
TINY = 1e-150
"""Least mean square that is told from zero."""
FORMAT = 1
"""Version of the saved state."""


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
        self._scale = 0.0
        self._bank: Bank | None = None
        self._evidence = np.zeros(6)
        self._signs = np.ones(5, dtype=np.int64)
        self._surprises: list[float] = []
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

    @one_thread
    def update(self, measured: Measured) -> tuple[Array, Array]:
        """Take the noisy means of one period, and return the posterior means and variances of its steps.

        Raises:
            ParameterError: The period is not later than the last.
            DataError: A value or variance is too large to be squared, or not finite.
        """
        if self.last is not None and measured.period <= self.last:
            raise ParameterError(f"period is {measured.period}, but must be later than {self.last}")
        if not ((np.abs(measured.values) <= LARGEST).all() and (measured.variances <= LARGEST**2).all()):
            raise DataError(f"measured values hold an entry that is not finite or exceeds {LARGEST:g}")
        self.measured += 1
        square = float(np.mean(measured.values**2))
        if self._bank is None:
            self._scale = max(square, float(np.mean(measured.variances)) * FLOOR, TINY)
        else:
            self._scale = max(self._scale + (1 - FORGETTING) * (square - self._scale), TINY)
            measured = self._interpret(self._bank, measured)
        self.understood = measured
        if self.measured <= REFITS[-1]:
            self._log.append(measured)
        if self._bank is None or self.measured in REFITS:
            estimate = self._refit()
        else:
            estimate = self._follow(self._bank, measured)
        if self.measured >= REFITS[-1]:
            self._log.clear()
        return estimate

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

    def _start(self, logs: Array) -> Bank:
        mean, deviation = self._level or (0.0, np.sqrt(DIFFUSE * self._scale))
        return Bank(self._geometry, np.exp(logs), (mean, deviation**2))

    def _step(self, bank: Bank, measured: Measured, *, steps: bool = True) -> Posterior:
        if not self._memory:
            bank.forget()
        bank.advance(measured.period, measured.jump)
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
        bank, evidence = self._start(logs), np.zeros(len(logs))
        for measured in self._log:
            found = self._step(bank, measured, steps=measured is self._log[-1])
            evidence = FORGETTING * evidence + found.density
        return bank, found, evidence

    def _score(self, logs: Array) -> Array:
        return self._replay(logs)[2] + self._prior(logs)

    def _refit(self) -> tuple[Array, Array]:
        """Fit the amplitudes to everything logged, and start the models from there."""
        if self._bank is None:
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

    def _interpret(self, bank: Bank, measured: Measured) -> Measured:
        """Decide from the evidence whether the level broke before this period, and whether the period is odd."""
        if not self._memory or self.measured <= UNTESTED:
            return measured
        ahead = bank.copy([self._best(bank)])
        ahead.advance(measured.period)
        layout = layout_of(self._geometry, measured.cells)
        expected, covariance, fresh = ahead.innovation(measured.period, layout, measured.variances)
        deviations = measured.values - expected[0]
        # The likeliest common shift of all buckets, in units of its standard deviation, is the evidence of a break.
        inverse, _ = whitening(covariance)
        surprise, direction = inverse[0] @ deviations, inverse[0].sum(axis=1)
        precision = float(direction @ direction)
        shift = float(direction @ surprise) / precision
        self._surprises = [*self._surprises, shift * float(np.sqrt(precision))][-max(BREAK_PERIODS) :]
        numbers = [number for number in BREAK_PERIODS if number <= len(self._surprises)]
        square = max(sum(self._surprises[-number:]) ** 2 / number for number in numbers)
        jump, excess = 0.0, 1.0
        if square > 1 and (square - 1 - np.log(square)) / 2 > BREAK:
            jump = max(shift**2, square / precision)
            self._surprises = []
        covariance = covariance + jump
        size = len(deviations)
        (usual,), (square,) = _densities(deviations[None], covariance)
        if square > size + 3 * np.sqrt(5 * size):
            factors = EXCESSES[:, None, None]
            odd = _densities(np.tile(deviations, (len(EXCESSES), 1)), covariance + (factors - 1) * fresh)[0]
            best = int(np.argmax(odd))
            if odd[best] - ODD > usual:
                excess = float(EXCESSES[best])
        return measured._replace(jump=jump, excess=excess)

    def _best(self, bank: Bank) -> int:
        return int(np.argmax(self._evidence + self._prior(np.log(bank.amplitudes))))

    @one_thread
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
        for period in range(first, first + periods):
            if not memory:
                bank.forget()
            measured = Measured(period, cells, np.zeros(len(cells)), variances)
            late = period >= first + periods - season
            found = self._step(bank, measured, steps=late)
            if late:
                error.append(np.sqrt(2 / np.pi * found.variances[0]).mean())
        return float(np.mean(error))

    @one_thread
    def deviation(self, transform: Array, scale: float | None = None) -> Array:
        """Return the mean square of linear transforms of the steps of a period, over a season from now on."""
        squares = []
        for gap in range(1, self._geometry.season + 1):
            bank = self.ahead(scale)
            period = gap if bank.last is None else bank.last + gap
            bank.advance(period)
            mean, spread = bank.expected(period)
            squares.append((transform @ mean[0]) ** 2 + ((transform @ spread[0]) * transform).sum(axis=1))
        return np.asarray(np.mean(squares, axis=0))

    def ahead(self, scale: float | None = None) -> Bank:
        """Return the likeliest model in its present state, or else what is expected of a stream of a scale."""
        if self._bank is not None:
            return self._bank.copy([self._best(self._bank)])
        if scale is None:
            raise ParameterError("scale is None, but must be given while nothing was measured")
        return Bank(self._geometry, SHARES[None] * scale**2, (0.0, DIFFUSE * scale**2))

    def state(self) -> dict[str, Any]:
        """Return everything the filter knows as plain data, from which :meth:`from_state` makes it again bit for bit.

        >>> first = Filter(4)
        >>> _ = first.update(Measured(0, ((0, 1), (2, 3)), np.array([1.0, 3.0]), np.ones(2)))
        >>> again, measured = Filter.from_state(first.state()), Measured(1, ((0,),), np.ones(1), np.ones(1))
        >>> bool((first.update(measured)[0] == again.update(measured)[0]).all())
        True
        """
        bank = self._bank
        layouts = list(dict.fromkeys(measured.cells for measured in self._log))
        lower = np.tril_indices(self._geometry.size)
        return {
            "format": FORMAT,
            "w": self._geometry.w,
            "season": self._season,
            "memory": self._memory,
            "smooth": self._geometry.smooth,
            "level": None if self._level is None else list(self._level),
            "measured": self.measured,
            "mean_square": self._scale,
            "evidence": self._evidence.tolist(),
            "signs": self._signs.tolist(),
            "surprises": list(self._surprises),
            "layouts": [[list(cell) for cell in cells] for cells in layouts],
            "log": [
                {
                    "period": measured.period,
                    "layout": layouts.index(measured.cells),
                    "values": measured.values.tolist(),
                    "variances": measured.variances.tolist(),
                    "jump": measured.jump,
                    "excess": measured.excess,
                }
                for measured in self._log
            ],
            "bank": None
            if bank is None
            else {
                "last": bank.last,
                "level": list(bank.level),
                "amplitudes": _packed(bank.amplitudes),
                "mean": _packed(bank.mean),
                "covariance": _packed(bank.covariance[:, lower[0], lower[1]]),
            },
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Filter:
        """Return the filter that :meth:`state` described.

        Raises:
            ParameterError: The state was written in another format.
        """
        if state.get("format") != FORMAT:
            raise ParameterError(f"format of the state is {state.get('format')}, but must be {FORMAT}")
        level = state["level"]
        made = cls(
            state["w"],
            season=state["season"],
            memory=state["memory"],
            smooth=state["smooth"],
            level=None if level is None else (level[0], level[1]),
        )
        made.measured, made._scale = state["measured"], state["mean_square"]
        made._evidence = np.array(state["evidence"])
        made._signs = np.array(state["signs"], dtype=np.int64)
        made._surprises = list(state["surprises"])
        layouts = [tuple(tuple(cell) for cell in cells) for cells in state["layouts"]]
        made._log = [
            Measured(
                entry["period"],
                layouts[entry["layout"]],
                np.array(entry["values"]),
                np.array(entry["variances"]),
                entry["jump"],
                entry["excess"],
            )
            for entry in state["log"]
        ]
        if state["bank"] is not None:
            made._bank = _restored(made._geometry, state["bank"])
        return made


def _restored(geometry: Geometry, state: Mapping[str, Any]) -> Bank:
    size = geometry.size
    amplitudes = _unpacked(state["amplitudes"]).reshape(-1, 6)
    bank = Bank(geometry, amplitudes, (state["level"][0], state["level"][1]))
    bank.last = state["last"]
    bank.mean = _unpacked(state["mean"]).reshape(-1, size)
    rows, columns = np.tril_indices(size)
    bank.covariance[:, rows, columns] = _unpacked(state["covariance"]).reshape(len(amplitudes), -1)
    bank.covariance[:, columns, rows] = bank.covariance[:, rows, columns]
    return bank


def _packed(array: Array) -> str:
    return base64.b64encode(np.ascontiguousarray(array, dtype="<f8").tobytes()).decode("ascii")


def _unpacked(text: str) -> Array:
    return np.frombuffer(base64.b64decode(text), dtype="<f8").astype(np.float64)


def _densities(deviations: Array, covariances: Array) -> tuple[Array, Array]:
    """Return the logarithms of the densities of deviations, and their squared lengths."""
    inverses, logarithms = whitening(covariances)
    squares = ((inverses @ deviations[:, :, None]) ** 2).sum(axis=(1, 2))
    return -0.5 * (squares + deviations.shape[1] * np.log(2 * np.pi)) + logarithms, squares
