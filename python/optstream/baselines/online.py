"""Baselines that release every step as it comes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream.baselines.baseline import Baseline, PrivateSeries
from optstream.baselines.walk import SteppedWalks, costs_after, costs_spent
from optstream.data.frames import read_periods
from optstream.data.numbers import finite

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optstream.privacy.accounting import Cost

__all__ = ["Online", "Steps"]


class Steps(ABC):
    """A stream on its way through a mechanism, one step after another.

    It remembers what the mechanism needs, which may be raw values, and shows none of it. A copy that goes on by itself
    spends the budget of its steps a second time.
    """

    def __init__(self, mechanism: Online) -> None:
        self._mechanism = mechanism

    def __repr__(self) -> str:
        return f"{type(self._mechanism).__name__}.steps()"

    def push(self, value: float) -> float:
        """Take the value of the next step and return the released one.

        Raises:
            DataError: The value is not finite. Nothing was drawn, and the stream is as it was.
        """
        number = finite("value", value)
        return self.push_units(int(self._mechanism.quantised(np.array([number]))[0]))

    def push_units(self, units: int) -> float:
        """Take the value of the next step as an integer of the grid and return the released one."""
        return self._next(units) * self._mechanism.step

    @abstractmethod
    def _next(self, units: int) -> float:
        """Return what is released of a step, in grid units."""

    @property
    @abstractmethod
    def cost(self) -> Fraction:
        """What a change of the last step by alpha costs, given what was released."""


class Online(Baseline):
    """A baseline that releases every step as it comes: at once, or step by step."""

    emits = ("step",)

    @abstractmethod
    def steps(self) -> Any:
        """Return a new stream, to which values are pushed one by one."""

    def taken(self, steps: Any, units: int) -> float:
        """Let a stream take the value of the next step as an integer of the grid; return the released one."""
        return float(steps.push_units(units))

    @cached_property
    def walks(self) -> SteppedWalks:
        """How the steps of a period are released one by one."""
        return SteppedWalks(self)

    def costs_when(self, said: Mapping[str, Any]) -> tuple[Cost, ...]:
        """Return what a period costs: what its steps have ``spent``, or what those ``before`` it have left."""
        if "spent" in said:
            return costs_spent(said["spent"])
        return costs_after([Fraction(cost) for cost in said.get("before", [])], self.guarantee.w, self.steady_epsilon)

    def release(self, x: Any) -> PrivateSeries:
        """Release a stream of whole periods, from its first step on.

        Args:
            x: A 1-D array of ``n * w`` values, a 2-D array with ``w`` columns, or a series of pandas, polars or
                pyarrow. The result has the same form and index.

        Raises:
            DataError: The data is empty, not a whole number of periods, or not finite. Nothing was drawn.
        """
        rows, restore = read_periods(x, self.guarantee.w)
        units = self.quantised(rows).ravel().tolist()
        self._check_length(len(units))
        steps = self.steps()
        released = np.array([steps.push_units(unit) for unit in units])
        return PrivateSeries(restore(released.reshape(rows.shape)), self.statement)

    def _check_length(self, steps: int) -> None:
        """Raise if the stream is too long."""
