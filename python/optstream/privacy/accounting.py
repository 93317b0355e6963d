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

    from optstream.privacy.guarantee import Guarantee

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
    "room_after",
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

    Steps that are ``repeated`` hold the value of the last step before them that is not.

    >>> ChosenCosts(0, 48, free=8, cost=Fraction(1, 18)).free
    8
    """

    start: int
    stop: int
    free: int
    cost: Fraction
    repeated: frozenset[int] = frozenset()


Cost = StepCosts | TouchCost | ChosenCosts


def window_costs(costs: Sequence[Cost], w: int) -> tuple[int, list[Fraction]]:
    """Return what every window of ``w`` steps costs that meets any of the costs, and the first step of the first one.

    >>> window_costs([TouchCost(0, 2, Fraction(1))], 2)
    (-1, [Fraction(1, 1), Fraction(1, 1), Fraction(1, 1)])
    """
    if not costs:
        return 0, []
    begin = min(_first_step(cost) for cost in costs) - w + 1
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
            case ChosenCosts(_, stop, _, value):
                for first in range(_first_step(cost) - w + 1, stop):
                    total[first - begin] += value * _most_chosen(cost, first, first + w)
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


def _most_chosen(cost: ChosenCosts, first: int, last: int) -> int:
    """Return the most measured steps that a change of the steps ``first <= t < last`` changes."""
    # Repetitions at the beginning hold a step before the window; those after its end hold one inside.
    first, last = (_past(cost.repeated, step) for step in (first, last))
    first, last = max(first, cost.start), min(last, cost.stop)
    ends = sum(first <= end < last for end in {cost.start, cost.stop - 1})
    return ends + max(min(cost.free, last - first - ends), 0)


def _first_step(cost: Cost) -> int:
    """Return the first step whose change costs something: that of a repetition is before it."""
    step = cost.start
    while isinstance(cost, ChosenCosts) and step in cost.repeated:
        step -= 1
    return step


def _past(repeated: frozenset[int], step: int) -> int:
    while step in repeated:
        step += 1
    return step


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
    if isinstance(cost, TouchCost):
        return replace(cost, start=cost.start + by, stop=cost.stop + by)
    repeated = frozenset(step + by for step in cost.repeated)
    return replace(cost, start=cost.start + by, stop=cost.stop + by, repeated=repeated)


def scaled(cost: Cost, factor: Fraction) -> Cost:
    """Return a cost multiplied by a factor.

    >>> scaled(TouchCost(0, 4, Fraction(1)), Fraction(1, 2)).cost
    Fraction(1, 2)
    """
    if isinstance(cost, StepCosts):
        return replace(cost, costs=tuple(value * factor for value in cost.costs))
    return replace(cost, cost=cost.cost * factor)


def largest_factor(costs: Sequence[Cost], others: Sequence[Cost], w: int) -> Fraction:
    """Return the largest factor with which some costs are nowhere more than others: in no window of ``w`` steps.

    >>> largest_factor([TouchCost(0, 4, Fraction(2))], [TouchCost(0, 4, Fraction(1))], 4)
    Fraction(1, 2)
    """
    first, own = window_costs(costs, w)
    others_first, rest = window_costs(others, w)
    allowed = dict(enumerate(rest, others_first))
    return min(allowed.get(window, Fraction(0)) / cost for window, cost in enumerate(own, first) if cost > 0)


def room_after(before: Sequence[Cost], costs: Sequence[Cost], guarantee: Guarantee) -> Fraction:
    """Return the largest factor, at most 1, with which a period of some costs may follow one of others.

    No window of both may cost more than epsilon; a period of either kind by itself must not.

    >>> from optstream import Guarantee
    >>> new = [TouchCost(0, 4, Fraction(1, 2))]
    >>> room_after([TouchCost(0, 4, Fraction(3, 4))], new, Guarantee(epsilon=1, w=4))
    Fraction(1, 2)
    """
    if guarantee.neighbours == "aligned":
        return Fraction(1)
    w = guarantee.w
    first, spent = window_costs(before, w)
    spent_at = dict(enumerate(spent, first))
    begin, own = window_costs([moved(cost, w) for cost in costs], w)
    room = [
        (guarantee.epsilon - spent_at.get(window, Fraction(0))) / cost
        for window, cost in enumerate(own, begin)
        if cost > 0
    ]
    return min(Fraction(1), *room)


def held(costs: Sequence[Cost], sources: Mapping[int, int]) -> list[Cost]:
    """Return what a period costs in which some steps hold the value of an earlier one.

    A change of the source is then also a change of the steps that hold it, and these read nothing of their own. So what
    a step costs moves to its source, and an interval is touched from the source of its first step on.

    Args:
        costs: What the period costs where nothing is missing.
        sources: For every step that holds another value the last step before it that does not.

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
            case ChosenCosts():
                result.append(replace(cost, repeated=cost.repeated | frozenset(sources)))
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
            case {"kind": "chosen", "start": start, "stop": stop, "free": free, "cost": cost, "repeated": repeated}:
                costs.append(ChosenCosts(start, stop, free, Fraction(cost), frozenset(repeated)))
            case _:
                raise DataError(f"costs hold {entry!r}, but must be of a kind that this version knows")
    return tuple(costs)


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [str(entry) for entry in value]
    return str(value) if isinstance(value, Fraction) else value
