"""What all baselines share: parameters, the statement, and what a release gives."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass, fields
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from optstream import _core
from optstream.errors import ParameterError, ParameterTypeError
from optstream.mechanism import description
from optstream.mechanism.mechanism import Mechanism
from optstream.privacy.guarantee import Guarantee
from optstream.privacy.statement import Statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from numpy.typing import NDArray

    from optstream.mechanism.release import Parts
    from optstream.privacy.statement import Stage

__all__ = ["WHOLE_STREAM", "Baseline", "PrivateSeries", "check_count", "check_positive"]

WHOLE_STREAM = "one call of release, or one object of steps(), takes all steps of the stream from its beginning"
"""What a mechanism assumes whose budget for a step depends on what it has spent before."""


@dataclass(frozen=True, repr=False)
class PrivateSeries:
    """What a baseline releases. It holds private values only, no raw data."""

    values: Any
    """The private values, in the form of the input: an array, or a series with its index."""
    statement: Statement
    features: tuple[NDArray[np.float64], ...] = ()
    """Nothing: baselines measure no sums."""
    start: int | datetime | None = None
    """The first step of the period, as a number or a time, if a stream released it."""
    period: int | None = None
    """The number of the period in its stream, if it was released by one."""

    def __repr__(self) -> str:
        return f"PrivateSeries(values={np.size(self.values)}, epsilon={self.statement.epsilon_shown})"


@dataclass(frozen=True)
class Baseline(Mechanism):
    """A mechanism other than OptStream, with the same guarantee, statement and exact noise.

    Args:
        guarantee: What is promised.
        bounds: Public lower and upper bound of the values, which are clamped to them.
        calibration: ``"sound"`` makes the worst window cost at most epsilon. ``"paper"`` uses the scale that the
            OptStream paper prints, and the statement then carries the true epsilon; where the paper prints the sound
            scale, or none, both are the same.
        grid: Public step of the grid, a power of two. By default the largest that is at most ``alpha / 1024``.
    """

    guarantee: Guarantee
    _: KW_ONLY
    bounds: tuple[float, float]
    calibration: Literal["sound", "paper"] = "sound"
    grid: float | None = None

    hierarchy = None
    retune = integers = False
    streams = 1

    def __post_init__(self) -> None:
        if not isinstance(self.guarantee, Guarantee):
            raise ParameterTypeError(f"guarantee is of type {type(self.guarantee).__name__}, but must be Guarantee")
        if self.calibration not in {"sound", "paper"}:
            raise ParameterError(f"calibration is {self.calibration!r}, but must be 'sound' or 'paper'")
        if self.grid is None:
            object.__setattr__(self, "grid", _core.default_grid(self.guarantee.alpha))
        # Quantising anything checks the bounds and the grid.
        self.quantised(np.zeros(1))
        self._check()
        # Stating the cost now finds what is wrong before there is any data.
        _ = self.statement

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is built from the parameters."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def _check(self) -> None:
        """Raise if a parameter lies outside its bound."""

    @property
    def step(self) -> float:
        """The step of the grid."""
        return self.grid or 0.0

    @cached_property
    def sensitivity(self) -> int:
        """How far one step can move, in grid units: the ceiling of alpha / grid."""
        return _core.sensitivity(self.guarantee.alpha, self.step)

    def quantised(self, values: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return values as integers of the grid.

        Raises:
            DataError: A value is not finite.
        """
        return _core.quantise(values.reshape(1, -1), self.bounds, self.step).reshape(values.shape)

    @abstractmethod
    def _stages(self) -> Sequence[Stage]:
        """Return what the mechanism does to the data and what that costs."""

    def _assumptions(self) -> Sequence[str]:
        """Return what the price assumes beyond what every mechanism assumes."""
        return ()

    @cached_property
    def statement(self) -> Statement:
        """What one window costs, stage by stage. No data is needed."""
        stages = tuple(self._stages())
        return Statement(
            guarantee=self.guarantee,
            epsilon=sum((stage.epsilon for stage in stages), Fraction(0)),
            scope="Holds for one call and one stretch of data: windows that also meet other calls are not priced.",
            stages=stages,
            calibration=self.calibration,
            weights="none",
            grid=self.step,
            bounds=(float(self.bounds[0]), float(self.bounds[1])),
            assumptions=(
                f"one {self.guarantee.entity} changes the value of any one step by at most {self.guarantee.alpha:g}",
                "no step is released twice, and nothing else is released from the same data",
                "all parameters were chosen without looking at the private data",
                *self._assumptions(),
            ),
            version=version("optstream"),
        )

    @cached_property
    def description(self) -> str:
        """Every public parameter, as canonical JSON."""
        guarantee = self.guarantee
        own = {field.name: _plain(getattr(self, field.name)) for field in fields(self) if field.name != "guarantee"}
        own["bounds"] = [float(bound) for bound in self.bounds]
        shared = {"mechanism": description.name_of(type(self)), "epsilon": str(guarantee.epsilon), "w": guarantee.w}
        related = {"alpha": guarantee.alpha, "neighbours": guarantee.neighbours}
        return description.canonical(shared | related | own)

    @cached_property
    def digest(self) -> bytes:
        """What stands for the mechanism in a ledger."""
        return description.digest(self.description)

    def assemble_period(
        self, parts: Parts, period: int, start: int | datetime | None = None, statement: Statement | None = None
    ) -> PrivateSeries:
        """Return the release of one period of a stream."""
        begin = period * self.guarantee.w if start is None else start
        return PrivateSeries(parts.values.ravel(), statement or self.statement, start=begin, period=period)

    @abstractmethod
    def release(self, x: Any) -> PrivateSeries:
        """Release whole periods."""


def _plain(value: Any) -> Any:
    """Return a parameter as plain data for JSON."""
    if isinstance(value, (Fraction, Decimal)):
        return str(Fraction(value))
    return [_plain(entry) for entry in value] if isinstance(value, tuple) else value


def check_count(name: str, value: object, lowest: int, highest: int) -> None:
    """Raise unless a parameter is a whole number within its bounds.

    >>> check_count("k", 0, 1, 9)
    Traceback (most recent call last):
    optstream.errors.ParameterError: k is 0, but must be from 1 to 9
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise ParameterTypeError(f"{name} is of type {type(value).__name__}, but must be an int")
    if not lowest <= value <= highest:
        raise ParameterError(f"{name} is {value}, but must be from {lowest} to {highest}")


def check_positive(name: str, value: object) -> None:
    """Raise unless a parameter is a positive, finite number.

    >>> check_positive("threshold", -1.0)
    Traceback (most recent call last):
    optstream.errors.ParameterError: threshold is -1.0, but must be positive and finite
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ParameterTypeError(f"{name} is of type {type(value).__name__}, but must be a real number")
    if not (value > 0 and np.isfinite(value)):
        raise ParameterError(f"{name} is {value}, but must be positive and finite")
