"""Releasing step by step: every measurement is drawn when its last step has come, and every step leaves at once.

The value of a step is made from what has been measured up to it: the last measured value, or the estimate that leaves
out what has not ended. The period's measurements are those of a release of whole periods, with the same costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream import _core
from optstream.errors import ParameterError
from optstream.mechanism.loop import Priced, price_next
from optstream.mechanism.release import Parts
from optstream.mechanism.step_release import StepNoise, Stepped
from optstream.mechanism.tree_release import whole_sums
from optstream.pipeline.perturbation import CubeNoise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from optstream.estimate.rotation import Tracks
    from optstream.mechanism.mechanism import Left, Retry, Walk
    from optstream.mechanism.optstream import OptStream
    from optstream.mechanism.state import State

    Array = NDArray[np.float64]
    Held = tuple[Array, StepNoise] | None

__all__ = ["MeasuredWalk", "MeasuredWalks"]


class MeasuredWalk:
    """One period on its way: what has come of it, what was drawn, and what is pending.

    It holds raw values, and with cube noise the radius of the block that is open: keep it as the data is kept.

    Args:
        priced: The mechanism of the period, with its price.
        period: The number of the period.
        state: What is known before it, which the walk reads.
        held: The last measured value of every node, of an earlier period, and its noise, if any.
    """

    def __init__(self, priced: Priced[OptStream], period: int, state: State, held: Held = None) -> None:
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
        self.radii: list[int | None] = [None] * nodes
        self._tracks: Tracks | None = None
        if mechanism.estimator is not None and state.memory is not None:
            self._tracks = mechanism.estimator.tracks(state.memory, period)

    @property
    def pending(self) -> list[int | None] | None:
        """The radii of the blocks of cube noise that are open, one for every node; None if none is."""
        return self.radii if any(radius is not None for radius in self.radii) else None

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
            radii = [self.radii[row] for row in rows]
            sample, values, ended, sums, radii = _core.measure_step(plan, np.ascontiguousarray(units[rows]), radii, own)
            if sample is not None:
                self.samples[rows, sample] = values
            self.cells[rows[:, None], np.array(ended, dtype=np.int64)] = sums
            for row, radius in zip(rows, radii, strict=True):
                self.radii[row] = radius
        return self._leaving(sample, ended)

    def forget(self) -> None:
        """Take a step back of which nothing was drawn."""
        self.units = self.units[:, :-1]

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
            "pending": self.radii,
            "held": None if held is None else held[0].tolist(),
        }


DAMAGED = "state is damaged, but must be what Stream.state gave"


@dataclass(frozen=True, repr=False)
class MeasuredWalks:
    """How the periods of an :class:`OptStream` leave step by step.

    Raises:
        ParameterError: The mechanism chooses steps from the data.
    """

    mechanism: OptStream
    repeats = True

    @property
    def repeats_alone(self) -> bool:
        """Whether a key repeats the noise without a ledger: only that knows whether the radius of a block was used."""
        return not isinstance(self.mechanism.perturb, CubeNoise)

    def __post_init__(self) -> None:
        if any(level.runs is None for level in self.mechanism.levels):
            raise ParameterError(
                "emit is 'step', but must be 'period' with L1Sampling: it decides from later steps which earlier ones "
                "were worth measuring, and would have to keep its noisy threshold between steps. EqualSampling and "
                "BucketSampling go step by step"
            )

    def begin(self, state: State, period: int, held: Held) -> MeasuredWalk:
        """Return the walk of the next period; the state pays for all of it before anything is drawn."""
        priced = price_next(self.mechanism, state, period)
        walk = MeasuredWalk(priced, period, state, held)
        state.advance(period, priced.costs)
        return walk

    def charged(self, priced: Priced[OptStream], period: int, state: State, held: Held) -> MeasuredWalk:
        """Return the walk of a period that a ledger has charged."""
        return MeasuredWalk(priced, period, state, held)

    def again(  # noqa: PLR0917
        self,
        priced: Priced[OptStream],
        period: int,
        state: State,
        held: Held,
        stored: Sequence[Left],
        kept: tuple[Any, Any],
    ) -> MeasuredWalk:
        """Return a walk as it was, from the steps that a ledger has stored, their observations and what is pending."""
        walk = MeasuredWalk(priced, period, state, held)
        units, pending = kept
        _refill(walk, units, stored[-1].samples, stored[-1].cells)
        walk.radii = walk.radii if pending is None else list(pending)
        return walk

    def restored(self, data: Mapping[str, Any], state: State) -> MeasuredWalk:
        """Return the walk that :meth:`MeasuredWalk.to_data` gave."""
        mechanism = self.mechanism
        chosen = mechanism if state.memory is None else mechanism.following(state.memory)
        try:
            epsilon, price = Fraction(data["epsilon"]), Fraction(data["price"])
            made = chosen if chosen.guarantee.epsilon == epsilon else chosen.with_epsilon(epsilon)
            begun = data["plan"]
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            raise ParameterError(DAMAGED) from None
        if begun != made.engine.fingerprint.hex():
            # The period is paid for as it was begun: parts of two plans may cost more than either.
            raise ParameterError("state is within a period of another mechanism, but must be finished with the same")
        try:
            held = None if data["held"] is None else _held(made, np.array(data["held"], dtype=np.float64))
            walk = MeasuredWalk(Priced(made, state.costs, price), int(data["period"]), state, held)
            units = np.array(data["units"], dtype=np.int64).reshape(len(walk.units), -1)
            samples, cells = (
                np.array([[np.nan if value is None else float(value) for value in row] for row in data[name]])
                for name in ("samples", "cells")
            )
            radii = [None if radius is None else int(radius) for radius in data["pending"]]
            if samples.shape != walk.samples.shape or cells.size != walk.cells.size or len(radii) != len(walk.radii):
                raise ParameterError(DAMAGED)
            _refill(walk, units, samples, cells.reshape(walk.cells.shape))
        except (KeyError, TypeError, ValueError, ZeroDivisionError, IndexError):
            raise ParameterError(DAMAGED) from None
        walk.radii = radii
        return walk

    def held_to_data(self, held: Held) -> list[float] | None:
        """Return the last measured values as plain data."""
        return None if held is None else held[0].tolist()

    def held_from_data(self, data: Any) -> Held:
        """Return what :meth:`held_to_data` gave."""
        try:
            return None if data is None else _held(self.mechanism, np.array(data, dtype=np.float64))
        except (TypeError, ValueError):
            raise ParameterError(DAMAGED) from None

    def held_after(self, last: Left | None, pending: Any) -> Held:  # noqa: ARG002  (nothing lasts for longer)
        """Return the last measured values of a period by its last step."""
        if last is None or np.isnan(last.samples[:, -1:]).any() or not last.samples.size:
            # The period is void, or was released by something that measures otherwise.
            return None
        return _held(self.mechanism, last.samples[:, -1])

    def stepped(self, left: Left) -> Stepped:
        """Return what has left at a step that is stored."""
        known = np.flatnonzero(~np.isnan(left.samples[0]))
        sample = int(known[-1]) if known.size else left.samples.shape[1] - 1
        return Stepped(left.values, left.deviations, StepNoise(self.mechanism.levels, sample))

    def before(self, held: Held) -> dict[str, Any]:  # noqa: ARG002
        """Return nothing: what a period costs does not depend on the one before."""
        return {}

    def after(self, walk: Walk) -> dict[str, Any] | None:  # noqa: ARG002
        """Return nothing: a period costs what it was charged."""
        return None


def _held(mechanism: OptStream, values: Array) -> Held:
    return values, StepNoise(mechanism.levels, len(mechanism.levels[0].runs or ()) - 1)


def _refill(walk: MeasuredWalk, units: NDArray[np.int64], samples: Array, cells: Array) -> None:
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
    for step, column in enumerate(units.T, 1):
        now = np.where(ends <= step, samples, np.nan)
        sums = np.where(lasts <= step, cells, np.nan) if lasts.size else cells
        if np.isnan(now[:, ends <= step]).any():
            raise ParameterError("state is damaged, but must hold what was measured of the steps that have come")
        walk.replay(column, now, sums)
