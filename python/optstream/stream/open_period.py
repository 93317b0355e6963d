"""The open period of a stream: what is taken, what is refused, and what closes it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream.data.numbers import finite
from optstream.errors import ParameterError, StreamError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from optstream.data.clock import Clock
    from optstream.mechanism.state import State

    Vector = NDArray[np.float64]

__all__ = ["Closed", "OpenPeriod", "Rules", "finite"]


@dataclass(frozen=True)
class Rules:
    """What to do with observations that do not come in order, and the clock that names them."""

    clock: Clock
    late: str
    duplicate: str
    disorder: str
    missing: str | float

    @classmethod
    def of(cls, clock: Clock, *, late: str, duplicate: str, disorder: str, missing: str | float) -> Rules:
        """Return checked rules."""
        choices = {
            "late": (late, ("refuse", "drop", "stored")),
            "duplicate": (duplicate, ("refuse", "keep", "replace")),
            "disorder": (disorder, ("refuse", "accept")),
        }
        for name, (value, allowed) in choices.items():
            if not isinstance(value, str) or value not in allowed:
                raise ParameterError(f"{name} is {value!r}, but must be {' or '.join(map(repr, allowed))}")
        if not isinstance(missing, str):
            missing = finite("missing", missing)
        elif missing not in {"refuse", "hold", "skip"}:
            raise ParameterError(f"missing is {missing!r}, but must be 'refuse', 'hold', 'skip' or a number")
        return cls(clock, late, duplicate, disorder, missing)


@dataclass(repr=False)
class Closed:
    """A period that is to be released."""

    period: int
    values: dict[int, Vector]
    """Observations, by their step within the period."""
    fill: float | None = None
    """What stands in the place of missing steps, if it is a public number."""
    sources: dict[int, int] = field(default_factory=dict)
    """Steps that repeat an earlier one."""

    @property
    def begins_with_a_hole(self) -> bool:
        """Whether what was released before is held at its start."""
        return self.fill is None and 0 not in self.values

    def rows(self, w: int, width: int, published: Vector | None) -> NDArray[np.float64]:
        """Return one row of numbers for every step."""
        rows = np.empty((w, width))
        for step in range(w):
            value = self.values.get(self.sources.get(step, step))
            if value is None:
                value = published if self.fill is None else np.full(width, self.fill)
            if value is None:
                raise StreamError(
                    f"period {self.period} starts with missing steps, and nothing was released that could be held"
                )
            rows[step] = value
        return rows


@dataclass(repr=False)
class OpenPeriod:
    """What a stream remembers."""

    released: int | None = None
    """The last period that is closed."""
    published: Vector | None = None
    """What was last released, of the last step of a period."""
    values: dict[int, Vector] = field(default_factory=dict)
    """Observations of the open period."""
    revision: int = 0
    known: State | None = None
    """What the released periods cost and what an estimate has learnt of them, if no ledger keeps it."""

    @classmethod
    def read(cls, state: Mapping[str, Any], width: int) -> OpenPeriod:
        """Return what was kept as plain data, with so many numbers a step."""
        try:
            values = {int(step): np.array(value, dtype=np.float64) for step, value in state["observations"].items()}
            published = None if state["published"] is None else np.array(state["published"], dtype=np.float64)
            made = cls(state["released"], published, values)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise ParameterError("state is not what Stream.state gave, but must be") from None
        kept = [*values.values(), *([] if published is None else [published])]
        if any(value.shape != (width,) or not np.isfinite(value).all() for value in kept):
            raise ParameterError(
                f"state holds observations of another form, but must hold {width} finite numbers a step"
            )
        return made

    def check(self, w: int, last: int | None) -> None:
        """Raise unless the observations are of one period after all that is closed.

        Args:
            w: The steps of a period.
            last: The last period that is priced.
        """
        closed = self.released
        if closed is not None and (isinstance(closed, bool) or not isinstance(closed, int)):
            raise ParameterError("state is damaged, but must name the last period that is closed")
        if last is not None and (closed is None or closed < last):
            raise ParameterError("state is damaged, but must have closed all periods that were released")
        periods = {step // w for step in self.values}
        if len(periods) > 1 or any(period < 0 or (closed is not None and period <= closed) for period in periods):
            raise ParameterError("state is damaged, but must hold observations of one open period")

    def copy(self) -> OpenPeriod:
        """Return a copy that can change on its own."""
        return replace(self, values=dict(self.values))

    def number(self, w: int) -> int:
        """Return the number of the period; there must be an observation."""
        return next(iter(self.values)) // w

    def is_late(self, step: int, w: int) -> bool:
        """Whether the period of a step is closed."""
        if self.values:
            return step // w < self.number(w)
        return self.released is not None and step // w <= self.released

    def add(self, rules: Rules, w: int, step: int, value: Vector) -> list[Closed]:
        """Take an observation that is not late; return the periods that it closes."""
        closed: list[Closed] = []
        if self.values and step // w > self.number(w):
            closed = self.close(rules, w, step)
        if step in self.values:
            if rules.duplicate == "refuse":
                raise StreamError(f"{rules.clock.named(step)} has come twice, and duplicate is 'refuse'")
            if rules.duplicate == "keep":
                return closed
        elif self.values and step < max(self.values) and rules.disorder == "refuse":
            later = rules.clock.named(max(self.values))
            raise StreamError(f"{rules.clock.named(step)} comes after {later}, and disorder is 'refuse'")
        elif rules.missing == "refuse" and rules.disorder == "refuse":
            expected = max(self.values) + 1 if self.values else step // w * w
            _check_gap(rules.clock, expected, step)
        if not self.values and rules.missing == "refuse" and self.released is not None:
            _check_gap(rules.clock, (self.released + 1) * w, step // w * w)
        self.values[step] = value
        if len(self.values) == w:
            closed.append(Closed(step // w, self._offsets(w)))
            self.values = {}
            self.released = step // w
        return closed

    def close(self, rules: Rules, w: int, step: int) -> list[Closed]:
        """Close the open period although steps are missing, because a later step has come."""
        period = self.number(w)
        absent = [number for number in range(period * w, period * w + w) if number not in self.values]
        if rules.missing == "refuse":
            raise StreamError(
                f"{rules.clock.named(step)} comes, but {len(absent)} steps of period {period} are missing, the first "
                f"of them {rules.clock.named(absent[0])}, and missing is 'refuse'"
            )
        closed = Closed(period, self._offsets(w))
        if isinstance(rules.missing, float):
            closed.fill = rules.missing
        elif rules.missing == "hold":
            closed.sources = {
                number - period * w: max(source for source in self.values if source < number) - period * w
                for number in absent
                if number > min(self.values)
            }
        self.values = {}
        self.released = period
        return [] if rules.missing == "skip" else [closed]

    def _offsets(self, w: int) -> dict[int, Vector]:
        return {step % w: value for step, value in self.values.items()}


def _check_gap(clock: Clock, expected: int, step: int) -> None:
    if step > expected:
        raise StreamError(f"{clock.named(step)} comes, but {clock.named(expected)} is missing, and missing is 'refuse'")
