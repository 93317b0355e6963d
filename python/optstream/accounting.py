"""The accountant: what the worst window of a release costs.

A release is a list of costs on the time axis. An entity that changes the steps of one window pays, in the exponent of
the ratio of probabilities, at most the sum of what the window meets:

* a :class:`StepCosts` for every changed step (a linear measurement ``y = a.x + Lap(b)`` deposits ``|a_t| alpha / b`` on
  step ``t``: the log-ratio is at most ``|a.delta| / b <= sum_t |a_t| alpha / b``);
* a :class:`TouchCost` in full as soon as the window meets its interval (the sparse vector technique on a period, cube
  noise on a block: private as a whole, however many of its steps change);
* a :class:`ChosenCosts` for the worst choice of measured steps, where a sampler that looks at the data chooses them:
  the bound must hold for every choice, since the choice itself is released.

Costs add up by adaptive composition. Everything is an exact rational, and everything that is calibrated, stated or
charged goes through :func:`worst_window`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate
from typing import TYPE_CHECKING, assert_never

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optstream.guarantee import Guarantee

__all__ = ["ChosenCosts", "Cost", "StepCosts", "TouchCost", "epsilon_of", "scaled", "worst_window"]


@dataclass(frozen=True)
class StepCosts:
    """What a change of each step costs, for consecutive steps from ``start``.

    >>> StepCosts(0, (Fraction(1, 4), Fraction(0)))
    StepCosts(start=0, costs=(Fraction(1, 4), Fraction(0, 1)))
    """

    start: int
    costs: tuple[Fraction, ...]


@dataclass(frozen=True)
class TouchCost:
    """What any change of the steps ``start <= t < stop`` costs.

    >>> TouchCost(0, 48, Fraction(1, 6)).cost
    Fraction(1, 6)
    """

    start: int
    stop: int
    cost: Fraction


@dataclass(frozen=True)
class ChosenCosts:
    """What a change costs when ``cost`` lies on both end steps and on ``free`` unknown others of ``start <= t < stop``.

    >>> ChosenCosts(0, 48, free=8, cost=Fraction(1, 18)).free
    8
    """

    start: int
    stop: int
    free: int
    cost: Fraction


Cost = StepCosts | TouchCost | ChosenCosts


def worst_window(costs: Sequence[Cost], w: int) -> Fraction:
    """Return the largest cost of any ``w`` consecutive steps.

    >>> worst_window([TouchCost(0, 4, Fraction(1)), TouchCost(4, 8, Fraction(1))], 4)
    Fraction(2, 1)
    >>> worst_window([StepCosts(0, (Fraction(1), Fraction(0)) * 4)], 4)
    Fraction(2, 1)
    """
    if not costs:
        return Fraction(0)
    begin = min(cost.start for cost in costs) - w + 1
    end = max(cost.start + len(cost.costs) if isinstance(cost, StepCosts) else cost.stop for cost in costs)
    # total[i] is the cost of the window that starts at begin + i; differences of it are cheap to deposit.
    change = [Fraction(0)] * (end - begin + 1)
    total = [Fraction(0)] * (end - begin)
    for cost in costs:
        match cost:
            case StepCosts(start, values):
                for step, value in enumerate(values, start):
                    change[step - w + 1 - begin] += value
                    change[step + 1 - begin] -= value
            case TouchCost(start, stop, value):
                change[start - w + 1 - begin] += value
                change[stop - begin] -= value
            case ChosenCosts(start, stop, free, value):
                for first in range(start - w + 1, stop):
                    total[first - begin] += value * _most_chosen(first, first + w, start, stop, free)
            case _:
                assert_never(cost)
    return max(base + chosen for base, chosen in zip(accumulate(change), total, strict=False))


def _most_chosen(first: int, last: int, start: int, stop: int, free: int) -> int:
    """Return the most measured steps in ``first <= t < last`` if both ends and ``free`` others are measured."""
    first, last = max(first, start), min(last, stop)
    ends = sum(first <= end < last for end in {start, stop - 1})
    return ends + min(free, last - first - ends)


def epsilon_of(period: Sequence[Cost], guarantee: Guarantee) -> Fraction:
    """Return what a stream costs whose every period of ``w`` steps has the given costs.

    A window meets at most two periods, so two of them show the worst. For aligned neighbours one period is all that a
    window can meet.

    >>> from optstream import Guarantee
    >>> svt = [TouchCost(0, 48, Fraction(1, 3))]
    >>> epsilon_of(svt, Guarantee(epsilon=1, w=48)), epsilon_of(svt, Guarantee(epsilon=1, w=48, neighbours="aligned"))
    (Fraction(2, 3), Fraction(1, 3))
    """
    if guarantee.neighbours == "aligned":
        return worst_window(period, guarantee.w)
    return worst_window([*period, *(_moved(cost, guarantee.w) for cost in period)], guarantee.w)


def _moved(cost: Cost, by: int) -> Cost:
    if isinstance(cost, StepCosts):
        return replace(cost, start=cost.start + by)
    return replace(cost, start=cost.start + by, stop=cost.stop + by)


def scaled(cost: Cost, factor: Fraction) -> Cost:
    """Return a cost multiplied by a factor.

    >>> scaled(TouchCost(0, 4, Fraction(1)), Fraction(1, 2)).cost
    Fraction(1, 2)
    """
    if isinstance(cost, StepCosts):
        return replace(cost, costs=tuple(value * factor for value in cost.costs))
    return replace(cost, cost=cost.cost * factor)
