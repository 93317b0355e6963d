"""A stream for mechanisms that release every step as it comes: what is late, double or missing is settled first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optstream.baselines.baseline import Baseline, PrivateSeries
from optstream.errors import ParameterError, StreamError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from optstream.data.clock import Clock
    from optstream.stream.open_period import Rules

__all__ = ["Stepwise"]


class Stepwise:
    """Takes observations of a baseline with ``steps()``; releases each of them at once.

    Args:
        mechanism: The baseline.
        clock: Which time a step is.
        rules: What to do with observations that do not come in order.
    """

    def __init__(self, mechanism: Baseline, clock: Clock, rules: Rules) -> None:
        if not hasattr(mechanism, "steps") or getattr(mechanism, "streams", 1) != 1:
            raise ParameterError(
                f"mechanism is {type(mechanism).__name__}, but must release one stream step by step or be OptStream"
            )
        if rules.missing in {"hold", "skip"}:
            raise ParameterError(f"missing is {rules.missing!r}, but must be 'refuse' or a number for a baseline")
        self._steps, self._clock, self._rules = mechanism.steps(), clock, rules
        self._statement = mechanism.statement
        self._next: int | None = None

    def push_many(self, observations: Sequence[tuple[int, NDArray[np.float64]]]) -> list[PrivateSeries]:
        """Take observations in the given order, all or none; return the release of every step."""
        taken: list[tuple[int, float]] = []
        expected = self._next
        for step, value in observations:
            expected = step if expected is None else expected
            if step < expected:
                if "refuse" in {self._rules.late, self._rules.duplicate}:
                    raise StreamError(f"step {step} has come already; step {expected} is next")
                continue
            if step > expected and isinstance(self._rules.missing, str):
                raise StreamError(f"step {step} comes, but step {expected} is missing, and missing is 'refuse'")
            taken += [(absent, float(self._rules.missing)) for absent in range(expected, step)]
            taken.append((step, float(value[0])))
            expected = step + 1
        self._next = expected
        return [
            PrivateSeries(np.array([self._steps.push(value)]), self._statement, start=self._clock.time_of(step))
            for step, value in taken
        ]
