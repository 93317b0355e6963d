"""Releasing step by step: every measurement is drawn when its last step has come, and every step leaves at once.

The value of a step is made from what has been measured up to it: the last measured value, or the estimate that leaves
out what has not ended. The period's measurements are those of a release of whole periods, with the same costs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream import _core
from optstream.errors import ParameterError, ParameterTypeError
from optstream.mechanism.loop import Priced, price_next
from optstream.mechanism.release import Parts, Release, cube_half_width, half_width
from optstream.mechanism.statements import stated
from optstream.mechanism.tree_release import TreeRelease, assemble_tree, by_step, whole_sums

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from numpy.typing import NDArray

    from optstream.estimate.rotation import Tracks
    from optstream.mechanism.calibration import Calibration
    from optstream.mechanism.optstream import OptStream
    from optstream.mechanism.state import State
    from optstream.privacy.statement import Statement

    Array = NDArray[np.float64]
    Retry = tuple[_core.CuratorKey, Sequence[bytes]]

__all__ = [
    "HeldRelease",
    "HeldTreeRelease",
    "StepNoise",
    "StepRelease",
    "Stepped",
    "Walk",
    "check_stepwise",
    "release_steps",
]


def check_stepwise(mechanism: OptStream) -> None:
    """Raise if what a mechanism measures is not known before a period begins.

    Raises:
        ParameterError: It chooses steps from the data.
    """
    if any(level.runs is None for level in mechanism.levels):
        raise ParameterError(
            "emit is 'step', but must be 'period' with L1Sampling: it decides from later steps which earlier ones were "
            "worth measuring, and would have to keep its noisy threshold between steps. EqualSampling and "
            "BucketSampling go step by step"
        )


@dataclass(frozen=True)
class StepNoise:
    """The noise of a measured value that is held: its number in the period, and the noise of each level."""

    levels: tuple[Calibration, ...]
    sample: int

    def half_widths(self, level: float) -> list[float]:
        """Return what the noise of a node of each level stays within with a given chance."""
        return [self._half_width(noise, level) for noise in self.levels]

    def _half_width(self, noise: Calibration, level: float) -> float:
        start, stop, _ = (noise.runs or ())[self.sample]
        if noise.blocks is not None:
            length = int(np.repeat(noise.blocks, noise.blocks)[self.sample])
            return cube_half_width(length, level) * noise.scale
        unit = NormalDist().inv_cdf((1 + level) / 2) if noise.gaussian else half_width(0, level)
        return unit * noise.scale / (stop - start)


@dataclass(frozen=True, repr=False)
class Stepped:
    """What leaves at a step, as numbers: one for every node, or one."""

    values: Array
    deviations: Array | None
    """Standard deviations, if the values are estimates."""
    noise: StepNoise | None
    """The noise of what is held, else; None if nothing was measured yet."""


@dataclass(frozen=True, repr=False)
class StepRelease:
    """The release of one step of a stream. It holds private values only, no raw data."""

    value: Any
    """The private value, or one for every node, which add up."""
    step: int
    time: int | datetime
    """The number of the step, or its time if the stream has a clock."""
    period: int
    statement: Statement
    revised: Any = None
    """The release of the whole period, with what its measurements say together, if this is its last step."""
    _stepped: Stepped | None = None
    _mechanism: OptStream | None = None

    def __repr__(self) -> str:
        return f"StepRelease(time={self.time}, value={self.value}, epsilon={self.statement.epsilon_shown})"

    def interval(self, level: float) -> Any:
        """Return lower and upper end of the interval of the value, or both for every node; see Release.interval."""
        if isinstance(level, bool) or not isinstance(level, (int, float)):
            raise ParameterTypeError(f"level is of type {type(level).__name__}, but must be a real number")
        if not 0 < level < 1:
            raise ParameterError(f"level is {level}, but must lie between 0 and 1")
        if self._stepped is None or self._mechanism is None:
            raise ParameterError("the release has no values, but must have some for an interval")
        low, high = intervals(self._mechanism, [self._stepped], level)
        if self._mechanism.hierarchy is None:
            return float(low[0, 0]), float(high[0, 0])
        ends = zip(low[:, 0].tolist(), high[:, 0].tolist(), strict=True)
        return dict(zip(self._mechanism.hierarchy.nodes, ends, strict=True))


def intervals(mechanism: OptStream, steps: Sequence[Stepped], level: float) -> tuple[Array, Array]:
    """Return lower and upper ends of the intervals of steps, one row for every node."""
    values = np.stack([step.values for step in steps], axis=1)
    rounding = 0.5 * mechanism.integers
    if steps[0].deviations is not None:
        deviations = np.stack([step.deviations for step in steps if step.deviations is not None], axis=1)
        reach = NormalDist().inv_cdf((1 + level) / 2) * deviations + mechanism.grid + rounding
    else:
        depths = np.zeros(1, dtype=int) if mechanism.hierarchy is None else np.array(mechanism.hierarchy.depths)
        known: dict[StepNoise | None, Array] = {None: np.full(len(mechanism.levels), np.inf)}
        for step in steps:
            if step.noise not in known and step.noise is not None:
                known[step.noise] = np.array(step.noise.half_widths(level))
        reach = np.stack([known[step.noise][depths] for step in steps], axis=1) + mechanism.grid + rounding
    low, high = values - reach, values + reach
    if mechanism.hierarchy is None and (steps[0].deviations is not None or not np.isfinite(reach).all()):
        low, high = np.maximum(low, mechanism.bounds[0]), np.minimum(high, mechanism.bounds[1])
    return low, high


class Walk:
    """One period on its way: what has come of it, what was drawn, and what is pending.

    It holds raw values, and with cube noise the radius of the block that is open: keep it as the data is kept.

    Args:
        priced: The mechanism of the period, with its price.
        period: The number of the period.
        state: What is known before it, which the walk reads.
        held: The last measured value of every node, of an earlier period, and its noise, if any.
    """

    def __init__(self, priced: Priced, period: int, state: State, held: tuple[Array, StepNoise] | None = None) -> None:
        mechanism = priced.mechanism
        self.priced, self.period, self.held = priced, period, held
        self._mechanism = mechanism
        depths = [0] if mechanism.hierarchy is None else mechanism.hierarchy.depths
        self._levels = [np.flatnonzero(np.array(depths) == depth) for depth in range(len(mechanism.engine.plans))]
        nodes = len(depths)
        self.units = np.empty((1 if mechanism.hierarchy is None else len(mechanism.hierarchy.leaves), 0), np.int64)
        """The steps that have come, of every leaf."""
        runs = mechanism.levels[0].runs or ()
        self.samples = np.full((nodes, len(runs)), np.nan)
        self.cells = np.full((nodes, sum(feature.size for feature in mechanism.features)), np.nan)
        self.pending: list[int | None] = [None] * nodes
        self._tracks: Tracks | None = None
        if mechanism.estimator is not None and state.memory is not None:
            self._tracks = mechanism.estimator.tracks(state.memory, period)

    @property
    def step(self) -> int:
        """How many steps have come."""
        return self.units.shape[1]

    @property
    def is_complete(self) -> bool:
        """Whether all steps have come."""
        return self.step == self._mechanism.guarantee.w

    def push(self, leaves: NDArray[np.int64], retry: Retry | None = None) -> Stepped:
        """Take the next step of every leaf, as integers of the grid; draw what ends with it; return what leaves.

        With a curator's key and a context, which must be that of the period's charge, a retry repeats the noise.
        """
        self.units = np.concatenate([self.units, leaves.reshape(-1, 1)], axis=1)
        hierarchy = self._mechanism.hierarchy
        units = self.units if hierarchy is None else hierarchy.sums(self.units)
        if retry is not None:
            retry = retry[0], [*retry[1], self._mechanism.engine.fingerprint]
        sample: int | None = None
        ended: list[int] = []
        for depth, (plan, rows) in enumerate(zip(self._mechanism.engine.plans, self._levels, strict=True)):
            own = retry and (retry[0], [*retry[1], depth.to_bytes(8, "little")])
            pending = [self.pending[row] for row in rows]
            sample, values, ended, sums, pending = _core.measure_step(
                plan, np.ascontiguousarray(units[rows]), pending, own
            )
            if sample is not None:
                self.samples[rows, sample] = values
            self.cells[rows[:, None], np.array(ended, dtype=np.int64)] = sums
            for row, radius in zip(rows, pending, strict=True):
                self.pending[row] = radius
        return self._leaving(sample, ended)

    def replay(self, leaves: NDArray[np.int64], samples: Array, cells: Array) -> Stepped:
        """Take a step again whose measurements were drawn before: those that are not a number have not ended."""
        self.units = np.concatenate([self.units, leaves.reshape(-1, 1)], axis=1)
        fresh = np.flatnonzero(np.isnan(self.samples[0]) & ~np.isnan(samples[0]))
        ended = np.flatnonzero(np.isnan(self.cells[0]) & ~np.isnan(cells[0]))
        self.samples, self.cells = samples.copy(), cells.copy()
        return self._leaving(int(fresh[0]) if fresh.size else None, ended.tolist())

    def _leaving(self, sample: int | None, ended: Sequence[int]) -> Stepped:
        """Return what leaves at the step that has come."""
        mechanism = self._mechanism
        if sample is not None:
            self.held = self.samples[:, sample].copy(), StepNoise(mechanism.levels, sample)
        if self._tracks is not None and mechanism.estimator is not None:
            sizes = [size for feature in mechanism.features for size in np.bincount(feature.labels)]
            rows = [
                [
                    *([] if sample is None else [float(self.samples[node, sample])]),
                    *(float(self.cells[node, cell]) / sizes[cell] for cell in ended),
                ]
                for node in range(len(self.samples))
            ]
            found = self._tracks.push(np.array(rows, dtype=np.float64).reshape(len(rows), -1))
            values = mechanism.estimator.settled(found[:, :1], found[:, 1:])[:, 0]
            return Stepped(self._whole(values), np.sqrt(found[:, 1]), None)
        low, high = mechanism.bounds
        if self.held is None:
            # Nothing is known yet: the middle of the public bounds stands for it.
            leaves = np.full(len(self.units), (low + high) / 2)
            return Stepped(
                self._whole(leaves if mechanism.hierarchy is None else mechanism.hierarchy.sums(leaves)), None, None
            )
        values, noise = self.held
        if mechanism.hierarchy is not None:
            power = 1 if mechanism.levels[0].gaussian else 2
            shares = np.array([float(share) for share in mechanism.level_split])[np.array(mechanism.hierarchy.depths)]
            forest = _core.Forest(mechanism.hierarchy.parents, (shares**power / (shares**power).max()).tolist())
            found = forest.project(values.reshape(1, -1), lower=low, upper=high)[0][mechanism.hierarchy.leaf_positions]
            values = whole_sums(mechanism.hierarchy, found[:, None], mechanism.grid, mechanism.bounds)[:, 0]
        return Stepped(self._whole(values), None, noise)

    def _whole(self, values: Array) -> Array:
        return np.asarray(self._mechanism.assembler.whole(values.reshape(1, -1, 1))[0, :, 0] + 0.0, dtype=np.float64)

    def finish(self, state: State) -> Parts:
        """Return the whole period from all that was measured, and let the state remember it."""
        mechanism = self._mechanism
        parts = [
            _core.finish_steps(plan, self.samples[rows], self.cells[rows])
            for plan, rows in zip(mechanism.engine.plans, self._levels, strict=True)
        ]
        steps, cells = (np.concatenate([part[index] for part in parts]) for index in (0, 1))
        if mechanism.hierarchy is None:
            made = Parts(*mechanism.engine.projected(steps, cells, parts[0][2]))
        elif mechanism.estimator is not None:
            made = Parts(
                steps, cells, np.broadcast_to(parts[0][2], (len(steps), parts[0][2].shape[1])).astype(np.int64)
            )
        else:
            made = Parts(mechanism.engine.settled(steps, cells), np.empty((0, 0)), np.empty((0, 0), dtype=np.int64))
        return made if state.memory is None else mechanism.finish(made, self.period, state.memory)

    def to_data(self) -> dict[str, Any]:
        """Return the walk as plain data for JSON. It holds raw values and what is pending."""
        held = self.held if self.step == 0 or self.held is None else None
        return {
            "period": self.period,
            "plan": self._mechanism.engine.fingerprint.hex(),
            "epsilon": str(self._mechanism.guarantee.epsilon),
            "price": str(self.priced.epsilon),
            "units": self.units.tolist(),
            "samples": [[None if np.isnan(value) else value for value in row] for row in self.samples.tolist()],
            "cells": [[None if np.isnan(value) else value for value in row] for row in self.cells.tolist()],
            "pending": self.pending,
            "held": None if held is None else held[0].tolist(),
        }


@dataclass(frozen=True, repr=False)
class HeldRelease(Release):
    """A release of steps that each hold the last measured value."""

    _mechanism: OptStream | None = None
    _stepped: tuple[Stepped, ...] = ()

    def interval(self, level: float) -> tuple[Array, Array]:
        """Return lower and upper ends of the intervals of what is held, one row per period; see Release.interval."""
        if self._mechanism is None:
            return super().interval(level)
        low, high = intervals(self._mechanism, self._stepped, level)
        return low.reshape(self._rows.shape), high.reshape(self._rows.shape)


@dataclass(frozen=True, repr=False)
class HeldTreeRelease(TreeRelease):
    """A release of the steps of a hierarchy that each hold the last measured values, made to add up."""

    _mechanism: OptStream | None = None
    _stepped: tuple[Stepped, ...] = field(default=())

    def interval(self, level: float) -> tuple[Array, Array]:
        """Return lower and upper ends of the intervals, a row for each step and a column per node."""
        if self._mechanism is None:
            return super().interval(level)
        low, high = intervals(self._mechanism, self._stepped, level)
        return low.T, high.T


def begin(mechanism: OptStream, state: State, period: int, held: tuple[Array, StepNoise] | None) -> Walk:
    """Return the walk of the next period; the state pays for all of it before anything is drawn."""
    priced = price_next(mechanism, state, period)
    walk = Walk(priced, period, state, held)
    state.advance(period, priced.costs)
    return walk


def release_steps(mechanism: OptStream, x: Any, known: State) -> Any:
    """Return whole periods released step by step."""
    check_stepwise(mechanism)
    periods = mechanism.read(x)
    steps: list[Stepped] = []
    drawn: list[tuple[Priced, Parts]] = []
    held = None
    for units in periods.units:
        walk = begin(mechanism, known, known.next, held)
        steps += [walk.push(column) for column in units.T]
        drawn.append((walk.priced, walk.finish(known)))
        held = walk.held
    w, count = mechanism.guarantee.w, len(drawn)
    nodes = np.stack([step.values for step in steps]).reshape(count, w, -1).transpose(0, 2, 1)
    better = mechanism.assembler.whole(np.stack([parts.values for _, parts in drawn]))
    single = mechanism.hierarchy is None
    statement = stated(mechanism, [priced for priced, _ in drawn], known, count)
    extra = {
        "statement": statement,
        "revised": periods.restore(better[:, 0] if single else by_step(better)),
        "state": known.to_data(mechanism.guarantee),
    }
    deviations = None
    if mechanism.estimator is not None:
        found = [step.deviations for step in steps if step.deviations is not None]
        deviations = np.stack(found).reshape(count, w, -1).transpose(0, 2, 1)
    if mechanism.hierarchy is not None:
        made = assemble_tree(
            nodes,
            periods.restore,
            hierarchy=mechanism.hierarchy,
            features=mechanism.features,
            statement=statement,
            noise=[priced.mechanism.assembler.level_noise for priced, _ in drawn],
            deviations=deviations,
            integers=mechanism.integers,
        )
        if deviations is not None:
            return replace(made, **extra)
        fields = {name: getattr(made, name) for name in made.__dataclass_fields__} | extra
        return HeldTreeRelease(**fields, _mechanism=mechanism, _stepped=tuple(steps))
    rows = np.ascontiguousarray(nodes[:, 0])
    fields = {
        "values": periods.restore(rows.astype(np.int64) if mechanism.integers else rows),
        "features": tuple(rows @ np.eye(feature.size)[list(feature.labels)] for feature in mechanism.features),
        "_rows": rows,
        "_knots": np.empty((0, 0), dtype=np.int64),
        "_scales": np.array([priced.mechanism.noise_scale for priced, _ in drawn]),
        "_grid": mechanism.grid + 0.5 * mechanism.integers,
        **extra,
    }
    if deviations is not None:
        return Release(**fields, _deviations=np.ascontiguousarray(deviations[:, 0]))
    return HeldRelease(**fields, _mechanism=mechanism, _stepped=tuple(steps))


def restored(data: Mapping[str, Any], mechanism: OptStream, state: State) -> Walk:
    """Return the walk that :meth:`Walk.to_data` gave.

    Raises:
        ParameterError: It is something else.
    """
    chosen = mechanism if state.memory is None else mechanism.following(state.memory)
    try:
        epsilon, price = Fraction(data["epsilon"]), Fraction(data["price"])
        made = chosen if chosen.guarantee.epsilon == epsilon else chosen.with_epsilon(epsilon)
        begun = data["plan"]
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        raise ParameterError("state is damaged, but must be what Stream.state gave") from None
    if begun != made.engine.fingerprint.hex():
        # The period is paid for as it was begun: parts of two plans may cost more than either.
        raise ParameterError("state is within a period of another mechanism, but must be finished with the same")
    try:
        held = None if data["held"] is None else np.array(data["held"], dtype=np.float64)
        noise = None if held is None else (held, StepNoise(made.levels, len(made.levels[0].runs or ()) - 1))
        walk = Walk(Priced(made, state.costs, price), int(data["period"]), state, noise)
        units = np.array(data["units"], dtype=np.int64).reshape(len(walk.units), -1)
        samples, cells = (
            np.array([[np.nan if value is None else float(value) for value in row] for row in data[name]])
            for name in ("samples", "cells")
        )
        pending = [None if radius is None else int(radius) for radius in data["pending"]]
        if samples.shape != walk.samples.shape or cells.size != walk.cells.size or len(pending) != len(walk.pending):
            raise ParameterError("state is damaged, but must be what Stream.state gave")
        refill(walk, units, samples, cells.reshape(walk.cells.shape))
    except (KeyError, TypeError, ValueError, ZeroDivisionError, IndexError):
        raise ParameterError("state is damaged, but must be what Stream.state gave") from None
    walk.pending = pending
    return walk


def refill(walk: Walk, units: NDArray[np.int64], samples: Array, cells: Array) -> list[Stepped]:
    """Bring a new walk to where it was, from the steps that have come and what was drawn of them."""
    mechanism = walk.priced.mechanism
    runs = mechanism.levels[0].runs or ()
    ends = np.array([stop for _, stop, _ in runs])
    lasts = np.array(
        [
            1 + max(step for step, label in enumerate(feature.labels) if label == cell)
            for feature in mechanism.features
            for cell in range(feature.size)
        ]
    )
    found = []
    for step, column in enumerate(units.T, 1):
        now = np.where(ends <= step, samples, np.nan)
        sums = np.where(lasts <= step, cells, np.nan) if lasts.size else cells
        if np.isnan(now[:, ends <= step]).any():
            raise ParameterError("state is damaged, but must hold what was measured of the steps that have come")
        found.append(walk.replay(column, now, sums))
    return found
