"""RescueDP of Wang et al. (2016)."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream.baselines.baseline import WHOLE_STREAM, PrivateSeries, check_count, check_positive
from optstream.baselines.exact import check_scale, noisy
from optstream.baselines.kalman import Kalman
from optstream.baselines.online import Online
from optstream.baselines.pid import DEFAULT_GAINS, Controller, Gains
from optstream.baselines.walk import SteppedWalks
from optstream.baselines.window_budget import PARTS, WindowBudget
from optstream.data.frames import read_periods
from optstream.data.numbers import finite
from optstream.errors import DataError, ParameterError, ParameterTypeError
from optstream.privacy.statement import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

__all__ = ["RescueDP"]


@dataclass(frozen=True, kw_only=True)
class RescueDP(Online):
    """Sample, divide the budget, group small streams and filter, all by what was released (Wang et al. 2016).

    A controller decides when each stream is measured, with a share of what its window has left that grows with the time
    since it was measured last. Streams that are measured at the same step, are predicted to be small and have moved
    alike share one noise on their sum, and each gets the mean.

    **Guarantee.** A measured step spends part of what the ``w - 1`` steps before it have left of epsilon, so every
    window of every stream keeps to it; a group spends the least of what its members may. Times, budgets, groups and
    filters are functions of released values only, so nothing else is read (adaptive composition).

    Args:
        guarantee: What is promised, for every stream.
        streams: The number of streams. With one the data is a series, with more an array with a column for each.
        share: The share of the budget left that is spent after an interval of I steps, divided by ``log(I + 1)``.
        most: The largest share of the budget left, and of all of it, that one step may spend.
        small: A stream is small when less is predicted than so many times the scale of its noise.
        alike: The least correlation of the recent releases of two streams that move alike.
        process_variance: How far a value wanders in one step, as a variance: public. None learns it from what was
            measured.
        reaction: How fast the interval between measurements grows or shrinks, in steps.
        gains: The gains of the controller.
        bounds: Public lower and upper bound of the values, which are clamped to them.
        calibration: Both are the same.
        grid: Public step of the grid, a power of two. By default the largest that is at most ``alpha / 1024``.

    Example:
        >>> from optstream import Guarantee
        >>> mechanism = RescueDP(Guarantee(epsilon=1, w=4), streams=3, bounds=(0, 100))
        >>> mechanism.release(np.full((8, 3), 50.0)).values.shape
        (8, 3)
    """

    streams: int = 1
    share: float = 0.2
    most: tuple[float, float] = (0.6, 0.2)
    small: float = 5.0
    alike: float = 0.5
    process_variance: float | None = None
    reaction: float = 1.0
    gains: Gains = DEFAULT_GAINS

    def _check(self) -> None:
        check_count("streams", self.streams, 1, 2**20)
        for name, value in (("share", self.share), ("small", self.small), ("reaction", self.reaction)):
            check_positive(name, value)
        if self.process_variance is not None:
            check_positive("process_variance", self.process_variance)
        for value in self.most:
            check_positive("most", value)
            if value > 1:
                raise ParameterError(f"most is {self.most}, but must hold shares of at most 1")
        if not -1 <= self.alike <= 1:
            raise ParameterError(f"alike is {self.alike}, but must be from -1 to 1")
        object.__setattr__(self, "gains", Gains(*self.gains))
        check_scale(self.sensitivity, self.price(1))

    def price(self, parts: int) -> Fraction:
        """Return what so many parts of the budget are."""
        return self.guarantee.epsilon * Fraction(parts, PARTS)

    def _stages(self) -> Sequence[Stage]:
        does = "measures steps when a controller says so, with part of what the window has left"
        return [Stage("perturb", does, self.guarantee.epsilon)]

    def _assumptions(self) -> Sequence[str]:
        one = "every entity belongs to one stream, and to the same one during a window"
        return (WHOLE_STREAM,) if self.streams == 1 else (WHOLE_STREAM, one)

    @property
    def walks(self) -> SteppedWalks:
        """How the steps of a period are released one by one.

        Raises:
            ParameterError: There are several streams.
        """
        if self.streams != 1:
            raise ParameterError(f"streams is {self.streams}, but must be 1 to go step by step in a stream")
        return SteppedWalks(self)

    def taken(self, steps: RescueSteps, units: int) -> float:
        """Let a stream take the value of the next step as an integer of the grid; return the released one."""
        return float(steps.push_units([units])[0] * self.step)

    def steps(self) -> RescueSteps:
        """Return new streams, to which values are pushed one step after another."""
        return RescueSteps(self)

    def release(self, x: Any) -> PrivateSeries:
        """Release whole periods, from the first step of the streams on.

        Args:
            x: With one stream an array or a series as for the other mechanisms; with more a 2-D array with a row for
                every step and a column for every stream. The result has the same form.

        Raises:
            DataError: The data is empty, not a whole number of periods, or not finite. Nothing was drawn.
        """
        rows, restore = self._read(x)
        steps = self.steps()
        units = self.quantised(rows).reshape(-1, self.streams).tolist()
        released = np.array([steps.push_units(row) for row in units]) * self.step
        return PrivateSeries(restore(released), self.statement)

    def _read(self, x: Any) -> tuple[NDArray[np.float64], Callable[[NDArray[np.float64]], Any]]:
        w = self.guarantee.w
        if self.streams == 1:
            rows, restore = read_periods(x, w)
            return rows, lambda released: restore(released.reshape(rows.shape))
        if not isinstance(x, np.ndarray) or x.dtype.kind not in "fiu":
            raise ParameterTypeError(f"x is of type {type(x).__name__}, but must be an array of real numbers")
        if x.ndim != 2 or x.shape[1] != self.streams:  # noqa: PLR2004
            raise DataError(f"x has shape {x.shape}, but must have a column for each of {self.streams} streams")
        if x.shape[0] == 0 or x.shape[0] % w:
            raise DataError(f"x has {x.shape[0]} rows, but must have a positive multiple of w = {w}")
        return np.ascontiguousarray(x, dtype=np.float64), lambda released: released


class RescueSteps:
    """Streams on their way through the mechanism, one step after another."""

    def __init__(self, mechanism: RescueDP) -> None:
        self._mechanism = mechanism
        self._streams = [_Stream(mechanism) for _ in range(mechanism.streams)]

    def __repr__(self) -> str:
        return "RescueDP.steps()"

    @property
    def cost(self) -> Fraction:
        """What a change of the last step of any one stream by alpha costs at most, given what was released."""
        return max(self.costs)

    @property
    def costs(self) -> tuple[Fraction, ...]:
        """What a change of the last step of each stream by alpha costs, given what was released."""
        return tuple(self._mechanism.price(stream.spent) for stream in self._streams)

    def push(self, value: Any) -> Any:
        """Take the values of the next step, a number or one for every stream, and return the released ones.

        Raises:
            DataError: A value is not finite, or one is missing. Nothing was drawn, and the streams are as they were.
        """
        single = self._mechanism.streams == 1
        entries = [value] if single else list(value) if np.ndim(value) == 1 else []
        if len(entries) != self._mechanism.streams:
            raise DataError(
                f"value has {np.size(value)} numbers, but must have one for each of {self._mechanism.streams}"
            )
        row = np.array([finite("value", entry) for entry in entries])
        released = np.array(self.push_units(self._mechanism.quantised(row).tolist())) * self._mechanism.step
        return float(released[0]) if single else released

    def push_units(self, row: Sequence[int]) -> list[float]:
        """Take the values of the next step as integers of the grid and return the released ones, in grid units."""
        due = [number for number, stream in enumerate(self._streams) if stream.is_due()]
        spent = [0] * len(row)
        for group in self._groups(due):
            parts = min(self._streams[number].offer for number in group)
            price = self._mechanism.price(parts)
            total = noisy(sum(row[number] for number in group), self._mechanism.sensitivity, price)
            for number in group:
                spent[number] = parts
                self._streams[number].measured(total / len(group), float(price), len(group))
        return [stream.finish(parts) for stream, parts in zip(self._streams, spent, strict=True)]

    def _groups(self, due: Sequence[int]) -> list[list[int]]:
        """Return which streams share a noise: small ones that have moved alike, as long as their sum is small."""
        groups: list[list[int]] = []
        open_groups: list[list[int]] = []
        for number in due:
            stream = self._streams[number]
            if not stream.is_small():
                groups.append([number])
                continue
            for group in open_groups:
                total = sum(self._streams[member].estimate for member in group) + stream.estimate
                if total <= stream.smallness and self._alike(group[0], number):
                    group.append(number)
                    break
            else:
                open_groups.append([number])
        return groups + open_groups

    def _alike(self, first: int, second: int) -> bool:
        one, other = (np.array(self._streams[number].history) for number in (first, second))
        if not one.std() or not other.std():
            # One that has not moved has not moved against the other.
            return True
        return bool(np.corrcoef(one, other)[0, 1] >= self._mechanism.alike)


class _Stream:
    """One stream: when it is measured next, with what budget, and what is believed of it."""

    def __init__(self, mechanism: RescueDP) -> None:
        w, variance = mechanism.guarantee.w, mechanism.process_variance
        self._mechanism = mechanism
        self._budget = WindowBudget(PARTS, w)
        self._filter = Kalman(None if variance is None else variance / mechanism.step**2)
        self._controller = Controller(mechanism.gains)
        self._since, self._interval = 0, 1.0
        self._known = False
        self.history: deque[float] = deque([0.0], maxlen=w)
        self.offer, self.spent = 0, 0
        """How many parts of the budget the present step may cost, and the last one did."""

    @property
    def estimate(self) -> float:
        """What is believed of the stream, in grid units."""
        return self._filter.estimate

    @property
    def smallness(self) -> float:
        """Below what a value is small, in grid units."""
        return self._mechanism.small * self._mechanism.sensitivity / float(self._mechanism.price(self.offer))

    def is_due(self) -> bool:
        """Go one step further and return whether it is measured; if so, its budget is on offer."""
        self._filter.predict()
        self._since += 1
        mechanism = self._mechanism
        if self._since < self._interval:
            return False
        of_left, of_all = mechanism.most
        share = min(mechanism.share * math.log(self._interval + 1), of_left)
        self.offer = int(min(share * self._budget.left, of_all * PARTS))
        return self.offer > 0

    def is_small(self) -> bool:
        """Whether what is predicted is small against the noise; before the first measurement nothing is predicted."""
        return self._known and self.estimate < self.smallness

    def measured(self, value: float, price: float, size: int) -> None:
        """Take a measurement that a group of so many shares, made for a price."""
        mechanism, before = self._mechanism, self._filter.estimate
        scale = mechanism.sensitivity / price
        self._filter.correct(value, 2 * (scale / size) ** 2)
        error = self._controller.feed(abs(self._filter.estimate - before), self._since)
        change = mechanism.reaction * (1 - min(error / scale, 1e6) ** 2)
        self._interval = min(max(self._interval + change, 1.0), float(mechanism.guarantee.w))
        self._since, self._known = 0, True

    def finish(self, parts: int) -> float:
        """Spend parts of the budget, or none, on the present step; return what is released of it."""
        self._budget.spend(parts)
        self.spent = parts
        self.history.append(self._filter.estimate)
        return self._filter.estimate
