"""The controller that decides when to measure again."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

__all__ = ["DEFAULT_GAINS", "Controller", "Gains"]


class Gains(NamedTuple):
    """How much the present error, the mean of recent ones and their change count; how many are recent."""

    proportional: float = 0.9
    integral: float = 0.1
    derivative: float = 0.0
    recent: int = 5


DEFAULT_GAINS = Gains()


class Controller:
    """A PID controller over the errors of successive measurements. It reads released values only.

    Example:
        >>> controller = Controller(Gains(0.5, 0.5, 0.0, 2))
        >>> controller.feed(1.0, since=1), controller.feed(3.0, since=2)
        (1.0, 2.5)
    """

    def __init__(self, gains: Gains) -> None:
        self._gains = gains
        self._errors: deque[float] = deque(maxlen=gains.recent)

    def feed(self, error: float, since: int) -> float:
        """Take the error of a measurement so many steps after the one before; return the controlled error."""
        change = (error - self._errors[-1]) / since if self._errors else 0.0
        self._errors.append(error)
        gains = self._gains
        mean = sum(self._errors) / len(self._errors)
        return gains.proportional * error + gains.integral * mean + gains.derivative * change
