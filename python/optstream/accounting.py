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
from typing import TYPE_CHECKING, Any, assert_never

from optstream.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optstream.guarantee import Guarantee

__all__ = [
    "ChosenCosts",
    "Cost",
    "StepCosts",
    "TouchCost",
    "epsilon_of",
    "from_data",
    "held",
    "largest_factor",
    "moved",
    "scaled",
    "to_data",
    "window_costs",
    "worst_window",
]


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


def window_costs(costs: Sequence[Cost], w: int) -> tuple[int, list[Fraction]]:
    """Return what every window of ``w`` steps costs that meets any of the costs, and the first step of the first one.

    >>> window_costs([TouchCost(0, 2, Fraction(1))], 2)
    (-1, [Fraction(1, 1), Fraction(1, 1), Fraction(1, 1)])
    """
    if not costs:
        return 0, []
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
    return begin, [base + chosen for base, chosen in zip(accumulate(change), total, strict=False)]


def worst_window(costs: Sequence[Cost], w: int) -> Fraction:
    """Return the largest cost of any ``w`` consecutive steps.

    >>> worst_window([TouchCost(0, 4, Fraction(1)), TouchCost(4, 8, Fraction(1))], 4)
    Fraction(2, 1)
    >>> worst_window([StepCosts(0, (Fraction(1), Fraction(0)) * 4)], 4)
    Fraction(2, 1)
    """
    return max(window_costs(costs, w)[1], default=Fraction(0))


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
    return worst_window([*period, *(moved(cost, guarantee.w) for cost in period)], guarantee.w)


def moved(cost: Cost, by: int) -> Cost:
    """Return a cost that many steps later.

    >>> moved(TouchCost(0, 4, Fraction(1)), 48).start
    48
    """
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


def largest_factor(costs: Sequence[Cost], others: Sequence[Cost], w: int, epsilon: Fraction) -> Fraction:
    """Return the largest factor for some costs such that no window costs more than epsilon, others included.

    >>> largest_factor([TouchCost(0, 4, Fraction(1))], [TouchCost(4, 8, Fraction(1))], 4, Fraction(3, 2))
    Fraction(1, 2)
    """
    first, own = window_costs(costs, w)
    others_first, rest = window_costs(others, w)
    spent = dict(enumerate(rest, others_first))
    return min((epsilon - spent.get(window, Fraction(0))) / cost for window, cost in enumerate(own, first) if cost > 0)


def held(costs: Sequence[Cost], sources: Mapping[int, int]) -> list[Cost]:
    """Return what a period costs in which some steps repeat the value of an earlier one.

    A change of the source is then also a change of the steps that repeat it, and these read nothing of their own. So
    what a step costs moves to its source, and an interval is touched from the source of its first step on. Measured
    steps that are chosen from the data may all be repetitions, which are added at their source.

    Args:
        costs: What the period costs where nothing is missing.
        sources: For every step that repeats another the step that it repeats, which comes before and repeats none.

    Example:
        >>> held([StepCosts(0, (Fraction(1), Fraction(2), Fraction(3)))], {1: 0})
        [StepCosts(start=0, costs=(Fraction(3, 1), Fraction(0, 1), Fraction(3, 1)))]
    """
    result: list[Cost] = []
    for cost in costs:
        match cost:
            case StepCosts(start, values):
                result.append(_at_sources(dict(enumerate(values, start)), sources))
            case TouchCost(start, _, _):
                result.append(replace(cost, start=sources.get(start, start)))
            case ChosenCosts(start, stop, _, value):
                repeated = {step: value if step in sources else Fraction(0) for step in range(start, stop)}
                result += [cost, _at_sources(repeated, sources)]
            case _:
                assert_never(cost)
    return result


def _at_sources(values: Mapping[int, Fraction], sources: Mapping[int, int]) -> StepCosts:
    first = min(sources.get(step, step) for step in values)
    costs = [Fraction(0)] * (max(values) + 1 - first)
    for step, value in values.items():
        costs[sources.get(step, step) - first] += value
    return StepCosts(first, tuple(costs))


def to_data(costs: Sequence[Cost]) -> list[dict[str, Any]]:
    """Return costs as plain data for JSON; rationals are strings.

    >>> to_data([TouchCost(0, 4, Fraction(1, 3))])
    [{'kind': 'touch', 'start': 0, 'stop': 4, 'cost': '1/3'}]
    """
    kinds = {StepCosts: "steps", TouchCost: "touch", ChosenCosts: "chosen"}
    return [
        {"kind": kinds[type(cost)], **{name: _plain(value) for name, value in vars(cost).items()}} for cost in costs
    ]


def from_data(data: Sequence[Mapping[str, Any]]) -> tuple[Cost, ...]:
    """Return the costs that :func:`to_data` wrote; an unknown kind is refused, never guessed.

    >>> from_data(to_data([TouchCost(0, 4, Fraction(1, 3))]))
    (TouchCost(start=0, stop=4, cost=Fraction(1, 3)),)
    """
    costs: list[Cost] = []
    for entry in data:
        match entry:
            case {"kind": "steps", "start": start, "costs": values}:
                costs.append(StepCosts(start, tuple(Fraction(value) for value in values)))
            case {"kind": "touch", "start": start, "stop": stop, "cost": cost}:
                costs.append(TouchCost(start, stop, Fraction(cost)))
            case {"kind": "chosen", "start": start, "stop": stop, "free": free, "cost": cost}:
                costs.append(ChosenCosts(start, stop, free, Fraction(cost)))
            case _:
                raise DataError(f"costs hold {entry!r}, but must be of a kind that this version knows")
    return tuple(costs)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [str(entry) for entry in value]
    return str(value) if isinstance(value, Fraction) else value
