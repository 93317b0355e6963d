"""What leaves at a step: its values, how far their noise reaches, and the release that says so."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream.errors import ParameterError, ParameterTypeError
from optstream.mechanism.release import Release, cube_half_width, half_width
from optstream.mechanism.tree_release import TreeRelease

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from numpy.typing import NDArray

    from optstream.mechanism.calibration import Calibration
    from optstream.mechanism.mechanism import Mechanism
    from optstream.mechanism.optstream import OptStream
    from optstream.privacy.statement import Statement

    Array = NDArray[np.float64]

__all__ = ["HeldRelease", "HeldTreeRelease", "StepNoise", "StepRelease", "Stepped", "intervals"]


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
    _mechanism: Mechanism | None = None

    def __repr__(self) -> str:
        return f"StepRelease(time={self.time}, value={self.value}, epsilon={self.statement.epsilon_shown})"

    def interval(self, level: float) -> Any:
        """Return lower and upper end of the interval of the value, or both for every node; see Release.interval.

        A mechanism that does not say how far its values are from the truth gives the bounds.
        """
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


def intervals(mechanism: Mechanism, steps: Sequence[Stepped], level: float) -> tuple[Array, Array]:
    """Return lower and upper ends of the intervals of steps, one row for every node."""
    values = np.stack([step.values for step in steps], axis=1)
    rounding = mechanism.spacing + 0.5 * mechanism.integers
    if steps[0].deviations is not None:
        deviations = np.stack([step.deviations for step in steps if step.deviations is not None], axis=1)
        reach = NormalDist().inv_cdf((1 + level) / 2) * deviations + rounding
    else:
        depths = np.zeros(1, dtype=int) if mechanism.hierarchy is None else np.array(mechanism.hierarchy.depths)
        # Where the noise is not known, or nothing was measured yet, only the bounds are.
        known: dict[StepNoise | None, Array] = {None: np.full(len(depths), np.inf)}
        for step in steps:
            if step.noise not in known and step.noise is not None:
                known[step.noise] = np.array(step.noise.half_widths(level))[depths]
        reach = np.stack([known[step.noise] for step in steps], axis=1) + rounding
    low, high = values - reach, values + reach
    if mechanism.hierarchy is None and (steps[0].deviations is not None or not np.isfinite(reach).all()):
        low, high = np.maximum(low, mechanism.bounds[0]), np.minimum(high, mechanism.bounds[1])
    return low, high


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
