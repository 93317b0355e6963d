"""Clocks: which step a time is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from optstream.errors import ParameterError, ParameterTypeError, StreamError

__all__ = ["Clock"]

LARGEST = 2**40
"""Steps are below this: a time that is far off is a slip, and would close every period before it."""


@dataclass(frozen=True)
class Clock:
    """Turns times into steps."""

    step: timedelta | None
    origin: datetime | None

    def __str__(self) -> str:
        if self.step is None or self.origin is None:
            return "steps"
        seconds, rest = divmod(self.step // timedelta(microseconds=1), 10**6)
        length = f"{seconds}.{rest:06d}".rstrip("0").rstrip(".") if rest else f"{seconds}"
        return f"steps of {length} s from {_utc(self.origin).isoformat()}"

    @classmethod
    def of(cls, step: timedelta | None, origin: datetime | None) -> Clock:
        """Return the clock of a step and an origin, or that of bare numbers if neither is given."""
        if (step is None) != (origin is None):
            raise ParameterError("step and origin must be given together, or neither for step numbers")
        if step is not None and not isinstance(step, timedelta):
            raise ParameterTypeError(f"step is of type {type(step).__name__}, but must be timedelta")
        if step is not None and step <= timedelta(0):
            raise ParameterError(f"step is {step}, but must be positive")
        if origin is not None and not isinstance(origin, datetime):
            raise ParameterTypeError(f"origin is of type {type(origin).__name__}, but must be datetime")
        return cls(step, origin)

    def step_of(self, when: Any) -> int:
        """Return the number of the step at a time."""
        if self.step is None or self.origin is None:
            if isinstance(when, (bool, np.bool_)) or not isinstance(when, (int, np.integer)):
                raise ParameterTypeError(
                    f"when is of type {type(when).__name__}, but must be an int without step and origin"
                )
            return _checked(int(when))
        moment = when.astype("datetime64[us]").item() if isinstance(when, np.datetime64) else when
        if not isinstance(moment, datetime):
            raise ParameterTypeError(f"when is of type {type(when).__name__}, but must be datetime")
        if (moment.utcoffset() is None) != (self.origin.utcoffset() is None):
            raise ParameterError(f"when is {when}, but must have a time zone if and only if origin has one")
        number, rest = divmod(_utc(moment) - _utc(self.origin), self.step)
        if rest:
            raise StreamError(f"when is {when}, but must be a whole number of steps of {self.step} after {self.origin}")
        if number < 0:
            raise StreamError(f"when is {when}, but must not be before the origin {self.origin}")
        return _checked(number)

    def time_of(self, step: int) -> int | datetime:
        """Return the time of a step, in the zone of the origin."""
        if self.step is None or self.origin is None:
            return step
        zone = self.origin.tzinfo
        return (_utc(self.origin) + step * self.step).astimezone(zone) if zone else self.origin + step * self.step

    def named(self, step: int) -> str:
        """Return what people call a step: its time if there is one.

        >>> Clock(None, None).named(5), Clock(timedelta(hours=1), datetime(2026, 1, 1)).named(5)
        ('step 5', 'the step at 2026-01-01T05:00:00')
        """
        time = self.time_of(step)
        return f"the step at {time.isoformat()}" if isinstance(time, datetime) else f"step {step}"


def _checked(step: int) -> int:
    if not 0 <= step < LARGEST:
        raise StreamError(f"when is step {step}, but must be from 0 to {LARGEST - 1}")
    return step


def _utc(moment: datetime) -> datetime:
    # Between times of one zone Python's difference is that of the clocks on the wall, which jump twice a year.
    return moment if moment.tzinfo is None else moment.astimezone(UTC)
