"""Streams of every kind that an estimate must not do badly on, each with where it changes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import optstream as ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

__all__ = ["MONTH", "STREAMS", "WEEK", "Made", "Outcome", "measure", "stream"]

WEEK, MONTH = 7, 28


@dataclass(frozen=True)
class Made:
    """A stream of whole periods, one row each; or the leaves of a tree, one stream of them for each."""

    name: str
    rows: Array
    bounds: tuple[float, float]
    changes: tuple[int, ...] = ()
    """The periods at which it becomes another stream."""
    leaves: tuple[str, ...] = ()
    """Names of the leaves of a tree of one level, whose values follow each other in a row."""

    @property
    def w(self) -> int:
        """The number of steps of a period."""
        return int(self.rows.shape[1]) // max(len(self.leaves), 1)

    @property
    def hierarchy(self) -> ops.Hierarchy | None:
        """The tree, if it is one."""
        return ops.Hierarchy.nested({"all": list(self.leaves)}) if self.leaves else None

    @property
    def data(self) -> Array | dict[str, Array]:
        """What is released."""
        if not self.leaves:
            return self.rows.ravel()
        return {leaf: self.rows[:, at * self.w : (at + 1) * self.w].ravel() for at, leaf in enumerate(self.leaves)}

    def in_rows(self, values: Any) -> Array:
        """Return released values, or one end of their intervals, as rows like those of the data."""
        if not self.leaves:
            return np.asarray(values, dtype=np.float64).reshape(self.rows.shape)
        columns = list(values.values())[1:] if isinstance(values, dict) else list(values.T[1:])
        return np.concatenate([np.reshape(column, (-1, self.w)) for column in columns], axis=1)

    def clamped(self, epsilon: float) -> Array:
        """Return the mean absolute error of each value with Laplace noise of its own that is clamped to the bounds.

        It is scale (1 - (exp(-below / scale) + exp(-above / scale)) / 2) with the distances from the bounds. Each of
        the two levels of a tree has half of epsilon.
        """
        low, high = self.bounds
        scale = self.w * (2 if self.leaves else 1) / epsilon
        return np.asarray(scale * (1 - (np.exp(-(self.rows - low) / scale) + np.exp(-(high - self.rows) / scale)) / 2))

    def windows(self) -> list[slice]:
        """Return all runs of four weeks that begin a week after a change, or all there is where that is less."""
        borders = [0, *self.changes, len(self.rows)]
        found = [
            slice(start, min(start + MONTH, high))
            for low, high in itertools.pairwise(borders)
            # What does not last so long is looked at as a whole.
            for start in range(low + WEEK, max(high - MONTH, low + WEEK) + 1)
            if start < high
        ]
        return found or [slice(0, len(self.rows))]


def _shape(w: int = 24) -> Array:
    """A daily shape between -1 and 1 with two peaks."""
    turn = 2 * np.pi * np.arange(w) / w
    return np.asarray(0.7 * np.sin(turn) - 0.3 * np.cos(2 * turn))


def _counts(name: str, periods: int, mean: Callable[[int], Array | float], upper: float, *changes: int) -> Made:
    """A stream of Poisson counts around a mean for each period."""
    rng = np.random.default_rng(abs(hash_of(name)))
    rows = [np.minimum(rng.poisson(np.broadcast_to(mean(period), 24)), upper) for period in range(periods)]
    return Made(name, np.array(rows, dtype=np.float64), (0.0, upper), changes)


def hash_of(name: str) -> int:
    """Return a number for a name, the same in every process."""
    return int.from_bytes(name.encode()[:8], "big")


def _bursts() -> Array:
    rng = np.random.default_rng(5)
    rows = np.full((160, 24), 5.0)
    for period in range(160):
        if rng.random() < 0.3:
            start = rng.integers(0, 20)
            rows[period, start : start + 4] += rng.integers(100, 600)
    return rows


def _walk() -> Array:
    rng = np.random.default_rng(6)
    return np.asarray(np.clip(5000 + np.cumsum(rng.normal(0, 20, 160 * 24)), 0, 10_000).reshape(160, 24))


def _pareto() -> Array:
    rng = np.random.default_rng(7)
    return np.asarray(np.minimum(np.round(10 * (rng.pareto(1.5, (160, 24)) + 1)), 10_000))


def _growth() -> Array:
    rng = np.random.default_rng(8)
    mean = 10 * 1.1 ** np.arange(91)[:, None] * (1 + 0.5 * _shape())
    return np.asarray(np.minimum(rng.poisson(mean), 100_000), dtype=np.float64)


def _steps() -> Array:
    levels = np.repeat([100.0, 900.0, 300.0, 1500.0], 42)
    return levels[:, None] + 60 * _shape()


def _spike() -> Array:
    rows = np.full((126, 24), 200.0)
    rows[60, 12] = 5000.0
    return rows


def _flipped(period: int) -> Array:
    return 200 + 150 * _shape() * (1 if period < 63 else -1)


def _sundays(period: int) -> Array:
    return np.zeros(24) if period % 7 == 6 else 300 + 200 * _shape()


def _month_off(period: int) -> Array:
    return np.zeros(24) if 56 <= period < 86 else 400 + 250 * _shape()


def _day(w: int, periods: int) -> Array:
    rng = np.random.default_rng(w)
    mean = 100 + 60 * (_shape(w) if w > 1 else np.zeros(1))
    return np.asarray(rng.poisson(np.broadcast_to(mean, (periods, w))), dtype=np.float64)


def _leaves() -> Array:
    """Three leaves whose sizes are as 1 to 100 to 10,000."""
    rng = np.random.default_rng(10)
    means = [5.0 * size * (1 + 0.5 * _shape()) for size in (1, 100, 10_000)]
    return np.asarray(rng.poisson(means, (60, 3, 24)), dtype=np.float64).reshape(60, 72)


def _made() -> list[Made]:
    rng = np.random.default_rng(9)
    shape = _shape()
    constant = np.full((56, 24), 300.0)
    return [
        Made("zeros", np.zeros((126, 24)), (0.0, 1000.0)),
        Made("constant", np.full((126, 24), 300.0), (0.0, 1000.0)),
        Made("one spike", _spike(), (0.0, 5000.0), (60, 61)),
        Made("steps", _steps(), (0.0, 2000.0), (42, 84, 126)),
        Made("trend", np.linspace(100, 4000, 160)[:, None] + 80 * shape, (0.0, 5000.0)),
        Made("growth", _growth(), (0.0, 100_000.0)),
        _counts("closed Sundays", 160, _sundays, 2000.0),
        _counts("a month off", 140, _month_off, 2000.0, 56, 86),
        _counts("zeros then a shape", 150, lambda day: 0.0 if day < 45 else 300 + 200 * shape, 1000.0, 45),
        Made(
            "constant then a shape",
            np.vstack([constant[:28], 300 + np.tile(40 * shape, (100, 1))]),
            (0.0, 1000.0),
            (28,),
        ),
        _counts("flipped shape", 126, _flipped, 1000.0, 63),
        Made("small counts", rng.integers(0, 4, (160, 24)).astype(np.float64), (0.0, 50.0)),
        Made("bursts", _bursts(), (0.0, 1000.0)),
        Made("alternating", np.tile([100.0, 200.0], (126, 12)), (0.0, 1000.0)),
        Made("random walk", _walk(), (0.0, 10_000.0)),
        Made("Pareto", _pareto(), (0.0, 10_000.0)),
        Made("below zero", np.tile(60 * shape, (90, 1)) + rng.normal(0, 5, (90, 24)), (-100.0, 100.0)),
        Made("far from zero", 1e6 + 50 * np.tile(shape, (90, 1)) + rng.normal(0, 5, (90, 24)), (0.0, 2e6)),
        Made("w = 1", _day(1, 3000), (0.0, 1000.0)),
        Made("w = 2", _day(2, 400), (0.0, 1000.0)),
        Made("w = 168", _day(168, 40), (0.0, 1000.0)),
        Made("w = 1440", _day(1440, 40), (0.0, 1000.0)),
        Made("leaves of all sizes", _leaves(), (0.0, 100_000.0), leaves=("small", "middle", "large")),
        Made("one period", _day(24, 1), (0.0, 1000.0)),
        Made("three periods", _day(24, 3), (0.0, 1000.0)),
    ]


STREAMS = tuple(_made())


def stream(name: str) -> Made:
    """Return the stream of a name."""
    return next(one for one in STREAMS if one.name == name)


@dataclass(frozen=True)
class Outcome:
    """What several releases of a stream came to."""

    ours: float
    clamped: float
    worst: float
    """The largest ratio of errors over any four weeks that begin a week after a change."""
    covered: float
    """The share of values within intervals of 90 %."""
    counts: tuple[int, ...]
    """Numbers of measured values in the last period of each trial."""


def measure(made: Made, epsilon: float, trials: int) -> Outcome:
    """Release a stream several times with a mechanism that tunes itself."""
    mechanism = ops.OptStream.auto(
        ops.Guarantee(epsilon=epsilon, w=made.w), bounds=made.bounds, hierarchy=made.hierarchy
    )
    errors, covered, counts = [], [], []
    for _ in range(trials):
        release = mechanism.release(made.data)
        errors.append(np.abs(made.in_rows(release.values) - made.rows).mean(axis=1))
        low, high = (made.in_rows(end) for end in release.interval(0.9))
        covered.append(((low <= made.rows) & (made.rows <= high)).mean())
        counts.append(release.state["memory"]["choice"]["sample"]["k"])
    ours, clamped = np.mean(errors, axis=0), made.clamped(epsilon).mean(axis=1)
    return Outcome(
        float(ours.mean()),
        float(clamped.mean()),
        max(float(ours[part].mean() / clamped[part].mean()) for part in made.windows()),
        float(np.mean(covered)),
        tuple(counts),
    )
