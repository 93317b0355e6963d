"""The accountant: what the worst window of a release costs.

A release is a list of costs on the time axis. An entity that changes the steps of one window pays, in the exponent of
the ratio of probabilities, at most the sum of what the window meets:

* a :class:`StepCosts` for every changed step (a linear measurement ``y = a.x + Lap(b)`` deposits ``|a_t| alpha / b`` on
  step ``t``: the log-ratio is at most ``|a.delta| / b <= sum_t |a_t| alpha / b``);
* a :class:`TouchCost` in full as soon as the window meets its interval (the sparse vector technique on a period, cube
  noise on a block: private as a whole, however many of its steps change);
* a :class:`SpreadCost` for as many runs of a block as one entity can be in nodes of a level, where it moves between
  nodes that measure the block each by itself;
* a :class:`ChosenCosts` for the worst choice of measured steps, where a sampler that looks at the data chooses them:
  the bound must hold for every choice, since the choice itself is released.

These are pure costs, in units of epsilon. Under Gaussian noise a window pays in units of rho instead, see
:mod:`optstream.privacy.gaussian`: a :class:`SquareCosts` for the square of how much of a measurement it covers, or a
:class:`ChosenCosts` that says so. Beside Gaussian noise pure costs are in units of rho too: one of ``e`` is worth
``WORTH e^2``. So a window without Gaussian noise costs the sum of its pure costs, and any other what its rho comes to
with the delta of the guarantee.

Costs of a unit add up, whatever later ones depend on. Everything is an exact rational, and everything that is
calibrated, stated or charged goes through :func:`worst_window`.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from math import lcm
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, assert_never

from optstream.errors import DataError, ParameterError
from optstream.privacy.gaussian import LARGEST_EPSILON, WORTH, epsilon_from, rho_from

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optstream.privacy.guarantee import Guarantee

__all__ = [
    "ChosenCosts",
    "Cost",
    "SpreadCost",
    "SquareCosts",
    "StepCosts",
    "TouchCost",
    "epsilon_of",
    "from_data",
    "held",
    "largest_factor",
    "moved",
    "price",
    "rho_spent",
    "room_after",
    "scaled",
    "to_data",
    "window_costs",
    "window_parts",
    "window_units",
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

    Steps that are ``repeated`` hold the value of the last step before them that is not. With ``gaussian`` noise on each
    measured step the cost is in units of rho.

    >>> ChosenCosts(0, 48, free=8, cost=Fraction(1, 18)).free
    8
    """

    start: int
    stop: int
    free: int
    cost: Fraction
    repeated: frozenset[int] = frozenset()
    gaussian: bool = False


@dataclass(frozen=True)
class SquareCosts:
    """What a change costs, in units of rho, of consecutive steps from ``start`` that one Gaussian measurement weighs.

    Steps that change by one unit each move the measurement by the sum of their ``weights``; the cost is that of one
    unit, and grows with the square.

    >>> worst_window([SquareCosts(0, (1, 1, 1), Fraction(1, 100))], 2, delta=Fraction(1, 10**6)) < Fraction(5, 4)
    True
    """

    start: int
    weights: tuple[int, ...]
    cost: Fraction


@dataclass(frozen=True)
class SpreadCost:
    """What a change costs of a block of ``runs`` that each of several ``nodes`` measures with cube noise of its own.

    An entity that moves is in one node during one run and in another during the next. A node pays for the run that
    moves most, and all nodes of a level together change by no more than one entity changes a step. So a window pays
    ``cost`` times the sum of as many of the largest shares of a run that it covers as there are nodes. Steps that are
    ``repeated`` hold the value of the last step before them that is not.

    >>> worst_window([SpreadCost(((0, 1), (1, 2), (2, 3)), 2, Fraction(1))], 3)
    Fraction(2, 1)
    """

    runs: tuple[tuple[int, int], ...]
    nodes: int
    cost: Fraction
    repeated: frozenset[int] = frozenset()


Cost = StepCosts | TouchCost | ChosenCosts | SquareCosts | SpreadCost
Number = TypeVar("Number", int, Fraction)
Window = TypeVar("Window")


def window_costs(costs: Sequence[Cost], w: int, delta: Fraction = Fraction(0)) -> tuple[int, list[Fraction]]:
    """Return what every window of ``w`` steps costs that meets any of the costs, and the first step of the first one.

    Windows with Gaussian noise cost the epsilon that they have with a positive ``delta``.

    >>> window_costs([TouchCost(0, 2, Fraction(1))], 2)
    (-1, [Fraction(1, 1), Fraction(1, 1), Fraction(1, 1)])
    """
    if not any(map(_is_gaussian, costs)):
        begin, end = _span(costs, w)
        return begin, _part(costs, w, begin, end).fractions()
    parts = window_parts(costs, w)
    return parts.begin, [epsilon_from(rho, delta) if noisy else epsilon for epsilon, noisy, rho in parts.windows]


class _Part(NamedTuple):
    """What windows cost, one after the other, in whole numbers of some part of a unit, which add up quickly."""

    counts: list[int]
    denominator: int

    def fraction(self, count: int) -> Fraction:
        """Return a number of parts as a share of the unit."""
        return Fraction(count, self.denominator)

    def fractions(self) -> list[Fraction]:
        """Return what all windows cost."""
        return [self.fraction(count) for count in self.counts]

    def most(self) -> Fraction:
        """Return the most that any window costs."""
        return self.fraction(max(self.counts, default=0))


def window_units(costs: Sequence[Cost], w: int, delta: Fraction) -> tuple[int, list[list[Fraction]]]:
    """Return the first window, and what windows cost in every unit that adds up over whatever else they meet.

    That is pure epsilon; with a delta also rho, and then a window with Gaussian noise costs more in the first unit than
    any guarantee allows. See :func:`price`.

    >>> window_units([SquareCosts(0, (1,), Fraction(1, 9))], 1, Fraction(1, 10**6))
    (0, [[Fraction(101, 1)], [Fraction(1, 9)]])
    """
    if not delta:
        begin, pure = window_costs(costs, w)
        return begin, [pure]
    parts = window_parts(costs, w)
    pure = [Fraction(LARGEST_EPSILON + 1) if noisy else epsilon for epsilon, noisy, _ in parts.windows]
    return parts.begin, [pure, parts.rho.fractions()]


def price(units: Sequence[Fraction], delta: Fraction) -> Fraction:
    """Return the epsilon of a window from its sums in every unit; one above all guarantees if it is beyond them.

    >>> price([Fraction(1, 3)], Fraction(0)), price([Fraction(102), Fraction(10**6)], Fraction(1, 10**6))
    (Fraction(1, 3), Fraction(101, 1))
    """
    pure, *rest = units
    if not rest or pure <= LARGEST_EPSILON:
        return pure
    try:
        return epsilon_from(rest[0], delta)
    except ParameterError:
        return Fraction(LARGEST_EPSILON + 1)


class Parts(NamedTuple):
    """What windows of one length cost."""

    begin: int
    """The first step of the first window that meets anything."""
    pure: _Part
    """Their costs in pure epsilon."""
    gaussian: _Part
    """Their costs in rho, of Gaussian noise alone."""
    rho: _Part
    """Their costs in rho, with what pure costs are worth."""

    @property
    def windows(self) -> list[tuple[Fraction, Fraction, Fraction]]:
        """The three of every window."""
        return list(zip(self.pure.fractions(), self.gaussian.fractions(), self.rho.fractions(), strict=True))


def window_parts(costs: Sequence[Cost], w: int) -> Parts:
    """Return what every window of ``w`` steps costs that meets any of the costs, by its parts.

    >>> window_parts([TouchCost(0, 1, Fraction(1, 2)), SquareCosts(0, (3,), Fraction(1, 9))], 1).windows
    [(Fraction(1, 2), Fraction(1, 1), Fraction(23927, 20000))]
    """
    begin, end = _span(costs, w)
    pure = [cost for cost in costs if not _is_gaussian(cost)]
    gaussian = [cost for cost in costs if _is_gaussian(cost)]
    both = [*gaussian, *map(_worth, pure)]
    return Parts(begin, *(_part(part, w, begin, end) for part in (pure, gaussian, both)))


def _span(costs: Sequence[Cost], w: int) -> tuple[int, int]:
    """Return the first step of the first window that meets any of the costs, and the step after that of the last."""
    begin = min((_first_step(cost) for cost in costs), default=w - 1) - w + 1
    return begin, max((_stop(cost) for cost in costs), default=begin)


def _is_gaussian(cost: Cost) -> bool:
    """Whether a cost is in units of rho."""
    return isinstance(cost, SquareCosts) or (isinstance(cost, ChosenCosts) and cost.gaussian)


def _worth(cost: Cost) -> Cost:
    """Return in units of rho what a pure cost is worth beside Gaussian noise: its square, as a whole."""
    if isinstance(cost, StepCosts):
        # One measurement may lie on several steps.
        common = lcm(*(value.denominator for value in cost.costs))
        return SquareCosts(cost.start, tuple(int(value * common) for value in cost.costs), WORTH / common**2)
    # Chosen steps have a measurement of their own each, as nodes have, of which none pays more than the cost.
    return replace(cost, cost=WORTH * cost.cost**2)


def _part(costs: Sequence[Cost], w: int, begin: int, end: int) -> _Part:
    """Return what the windows from one to another cost of some costs of one unit."""
    denominator = lcm(*(value.denominator for cost in costs for value in _values(cost)))

    def counted(value: Fraction) -> int:
        return value.numerator * (denominator // value.denominator)

    # Differences from one window to the next are cheap to deposit; sums over windows of choices are not.
    change = [0] * (end - begin + 1)
    chosen = [0] * (end - begin)
    for cost in costs:
        match cost:
            case StepCosts(start, values):
                for place, value in enumerate(values, start - begin):
                    count = counted(value)
                    change[place - w + 1] += count
                    change[place + 1] -= count
            case TouchCost(start, stop, value):
                change[start - w + 1 - begin] += counted(value)
                change[stop - begin] -= counted(value)
            case ChosenCosts(_, stop, _, value):
                count = counted(value)
                for first in range(_first_step(cost) - w + 1, stop):
                    chosen[first - begin] += count * _most_chosen(cost, first, first + w)
            case SquareCosts() | SpreadCost():
                changes = _square_changes(cost, w) if isinstance(cost, SquareCosts) else _spread_changes(cost, w)
                (share,) = _values(cost)
                count = counted(share)
                for first, difference in changes:
                    change[first - begin] += count * difference
            case _:
                assert_never(cost)
    return _Part([base + more for base, more in zip(accumulate(change), chosen, strict=False)], denominator)


def _values(cost: Cost) -> Sequence[Fraction]:
    """Return what a window pays whole multiples of."""
    match cost:
        case StepCosts(_, values):
            return values
        case SpreadCost(runs, _, value):
            return (value / _common_length(runs),)
        case _:
            return (cost.cost,)


def _square_changes(cost: SquareCosts, w: int) -> list[tuple[int, int]]:
    """Return the first steps of the windows whose squared weight is another than before, and the difference."""
    below = list(accumulate(cost.weights, initial=0))
    count = len(cost.weights)
    # A window gains a step of the measurement at its end, and loses one at its beginning.
    places = {first for i in range(count) for first in (cost.start + i - w + 1, cost.start + i + 1)}
    changes, before = [], 0
    for first in sorted(places):
        low, high = max(first - cost.start, 0), min(first - cost.start + w, count)
        now = (below[high] - below[low]) ** 2 if low < high else 0
        changes.append((first, now - before))
        before = now
    return changes


def _common_length(runs: Sequence[tuple[int, int]]) -> int:
    """Return into how many parts runs are divided so that each of their steps is a whole number of these."""
    return lcm(*(stop - start for start, stop in runs))


def _spread_changes(cost: SpreadCost, w: int) -> list[tuple[int, int]]:
    """Return the first steps of the windows that may cover more or less than the one before, and by how many parts."""
    sources = [[_source(step, cost.repeated) for step in range(start, stop)] for start, stop in cost.runs]
    whole = _common_length(cost.runs)
    places = {first for steps in sources for step in steps for first in (step - w + 1, step + 1)}
    changes, before = [], 0
    for first in sorted(places):
        # Sources never decrease from step to step.
        covered = (
            (bisect_left(steps, first + w) - bisect_left(steps, first)) * (whole // len(steps)) for steps in sources
        )
        now = sum(sorted(covered, reverse=True)[: cost.nodes])
        changes.append((first, now - before))
        before = now
    return changes


def _source(step: int, repeated: frozenset[int]) -> int:
    """Return the step whose value a step holds: its own, or that of the last one before it that is not repeated."""
    while step in repeated:
        step -= 1
    return step


def worst_window(costs: Sequence[Cost], w: int, delta: Fraction = Fraction(0)) -> Fraction:
    """Return the largest cost of any ``w`` consecutive steps, where Gaussian noise has a positive ``delta``.

    >>> worst_window([TouchCost(0, 4, Fraction(1)), TouchCost(4, 8, Fraction(1))], 4)
    Fraction(2, 1)
    >>> worst_window([StepCosts(0, (Fraction(1), Fraction(0)) * 4)], 4)
    Fraction(2, 1)
    """
    if not any(map(_is_gaussian, costs)):
        return _part(costs, w, *_span(costs, w)).most()
    windows = window_parts(costs, w).windows
    pure = max((epsilon for epsilon, noisy, _ in windows if not noisy), default=Fraction(0))
    # The largest rho has the largest epsilon.
    return max(pure, epsilon_from(max((rho for _, noisy, rho in windows if noisy), default=Fraction(0)), delta))


def _most_chosen(cost: ChosenCosts, first: int, last: int) -> int:
    """Return the most measured steps that a change of the steps ``first <= t < last`` changes."""
    # Repetitions at the beginning hold a step before the window; those after its end hold one inside.
    ends_of = _ends(cost.repeated)
    first, last = (ends_of.get(step, step) for step in (first, last))
    first, last = max(first, cost.start), min(last, cost.stop)
    ends = sum(first <= end < last for end in {cost.start, cost.stop - 1})
    return ends + max(min(cost.free, last - first - ends), 0)


def _first_step(cost: Cost) -> int:
    """Return the first step whose change costs something: that of a repetition is before it."""
    match cost:
        case SpreadCost(runs, _, _, repeated):
            return _source(runs[0][0], repeated)
        case ChosenCosts(start):
            return _source(start, cost.repeated)
        case _:
            return cost.start


def _stop(cost: Cost) -> int:
    """Return the step after the last."""
    match cost:
        case StepCosts(start, values):
            return start + len(values)
        case SquareCosts(start, weights):
            return start + len(weights)
        case SpreadCost(runs):
            return runs[-1][1]
        case _:
            return cost.stop


@lru_cache(maxsize=64)
def _ends(repeated: frozenset[int]) -> dict[int, int]:
    """Return for every repeated step the first one after it that is not."""
    ends: dict[int, int] = {}
    for step in sorted(repeated, reverse=True):
        ends[step] = ends.get(step + 1, step + 1)
    return ends


def epsilon_of(period: Sequence[Cost], guarantee: Guarantee) -> Fraction:
    """Return what a stream costs whose every period of ``w`` steps has the given costs.

    A window meets at most two periods, so two of them show the worst. For aligned neighbours one period is all that a
    window can meet.

    >>> from optstream import Guarantee
    >>> svt = [TouchCost(0, 48, Fraction(1, 3))]
    >>> epsilon_of(svt, Guarantee(epsilon=1, w=48)), epsilon_of(svt, Guarantee(epsilon=1, w=48, neighbours="aligned"))
    (Fraction(2, 3), Fraction(1, 3))
    """
    return worst_window(_met(period, guarantee), guarantee.w, guarantee.delta)


def rho_spent(period: Sequence[Cost], guarantee: Guarantee) -> Fraction:
    """Return the most that any window of such a stream costs in rho, with what its pure costs are worth.

    >>> from optstream import Guarantee
    >>> rho_spent([SquareCosts(1, (1, 1), Fraction(1, 8))], Guarantee(epsilon=1, w=4, delta=1e-6))
    Fraction(1, 2)
    """
    return window_parts(_met(period, guarantee), guarantee.w).rho.most()


def _met(period: Sequence[Cost], guarantee: Guarantee) -> list[Cost]:
    """Return all that one window can meet of a stream whose every period has the given costs."""
    if guarantee.neighbours == "aligned":
        return list(period)
    return [*period, *(moved(cost, guarantee.w) for cost in period)]


def moved(cost: Cost, by: int) -> Cost:
    """Return a cost that many steps later.

    >>> moved(TouchCost(0, 4, Fraction(1)), 48).start
    48
    """
    if isinstance(cost, (StepCosts, SquareCosts)):
        return replace(cost, start=cost.start + by)
    if isinstance(cost, TouchCost):
        return replace(cost, start=cost.start + by, stop=cost.stop + by)
    repeated = frozenset(step + by for step in cost.repeated)
    if isinstance(cost, SpreadCost):
        return replace(cost, runs=tuple((start + by, stop + by) for start, stop in cost.runs), repeated=repeated)
    return replace(cost, start=cost.start + by, stop=cost.stop + by, repeated=repeated)


def scaled(cost: Cost, factor: Fraction) -> Cost:
    """Return a cost multiplied by a factor.

    >>> scaled(TouchCost(0, 4, Fraction(1)), Fraction(1, 2)).cost
    Fraction(1, 2)
    """
    if isinstance(cost, StepCosts):
        return replace(cost, costs=tuple(value * factor if value else value for value in cost.costs))
    return replace(cost, cost=cost.cost * factor)


def largest_factor(costs: Sequence[Cost], others: Sequence[Cost], w: int) -> Fraction:
    """Return a factor with which some costs are nowhere more than others: in no window of ``w`` steps.

    It is the largest one without Gaussian noise, and beside Gaussian noise at least as small as it must be.

    >>> largest_factor([TouchCost(0, 4, Fraction(2))], [TouchCost(0, 4, Fraction(1))], 4)
    Fraction(1, 2)
    """
    own, rest = window_parts(costs, w), window_parts(others, w)
    pairs = [(own.pure, rest.pure)]
    if any(map(_is_gaussian, (*costs, *others))):
        pairs += [(own.gaussian, rest.gaussian), (own.rho, rest.rho)]
    return min(
        allowed / cost
        for mine, other in pairs
        for cost, allowed in _together(mine.fractions(), other.fractions(), own.begin - rest.begin, Fraction(0))
        if cost > 0
    )


def _together(mine: Sequence[Window], other: Sequence[Window], by: int, nothing: Window) -> set[tuple[Window, Window]]:
    """Return the windows of the one, each with the same window of the other, which begins that much earlier."""
    met = (other[place] if 0 <= place < len(other) else nothing for place in range(by, by + len(mine)))
    return set(zip(mine, met, strict=True))


def room_after(before: Sequence[Cost], costs: Sequence[Cost], guarantee: Guarantee) -> Fraction:
    """Return a factor, at most 1, with which a period of some costs may follow one of others.

    No window of both may cost more than epsilon; a period of either kind by itself must not. Without Gaussian noise it
    is the largest such factor.

    >>> from optstream import Guarantee
    >>> new = [TouchCost(0, 4, Fraction(1, 2))]
    >>> room_after([TouchCost(0, 4, Fraction(3, 4))], new, Guarantee(epsilon=1, w=4))
    Fraction(1, 2)
    """
    if guarantee.neighbours == "aligned":
        return Fraction(1)
    w, after = guarantee.w, [moved(cost, guarantee.w) for cost in costs]
    room, nothing = [Fraction(1)], Fraction(0)
    if not any(map(_is_gaussian, (*before, *after))):
        (first, spent), (begin, own) = window_costs(before, w), window_costs(after, w)
        room += [
            (guarantee.epsilon - used) / cost for cost, used in _together(own, spent, begin - first, nothing) if cost
        ]
        return min(room)
    limit, (one, other) = (
        rho_from(guarantee.epsilon, guarantee.delta),
        (window_parts(part, w) for part in (before, after)),
    )
    for (pure, noise, rho), (pure_before, noise_before, rho_before) in _together(
        other.windows, one.windows, other.begin - one.begin, (nothing, nothing, nothing)
    ):
        if rho and (noise or noise_before):
            # A factor below 1 makes rho smaller at least in proportion.
            room.append((limit - rho_before) / rho)
        elif pure:
            room.append((guarantee.epsilon - pure_before) / pure)
    return min(room)


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
                first, moved_values = _at_sources(dict(enumerate(values, start)), sources)
                result.append(StepCosts(first, tuple(moved_values)))
            case TouchCost(start, _, _):
                result.append(replace(cost, start=sources.get(start, start)))
            case ChosenCosts() | SpreadCost():
                result.append(replace(cost, repeated=cost.repeated | frozenset(sources)))
            case SquareCosts(start, weights):
                # A change of the source moves the measurement by the weights of all steps that hold it.
                first, moved_weights = _at_sources(dict(enumerate(weights, start)), sources)
                result.append(replace(cost, start=first, weights=tuple(moved_weights)))
            case _:
                assert_never(cost)
    return result


def _at_sources(values: Mapping[int, Number], sources: Mapping[int, int]) -> tuple[int, list[Number]]:
    first = min(sources.get(step, step) for step in values)
    zero = next(iter(values.values())) * 0
    moved_values = [zero] * (max(values) + 1 - first)
    for step, value in values.items():
        moved_values[sources.get(step, step) - first] += value
    return first, moved_values


def to_data(costs: Sequence[Cost]) -> list[dict[str, Any]]:
    """Return costs as plain data for JSON; rationals are strings.

    >>> to_data([TouchCost(0, 4, Fraction(1, 3))])
    [{'kind': 'touch', 'start': 0, 'stop': 4, 'cost': '1/3'}]
    """
    kinds = {
        StepCosts: "steps",
        TouchCost: "touch",
        ChosenCosts: "chosen",
        SquareCosts: "squares",
        SpreadCost: "spread",
    }
    return [
        {"kind": kinds[type(cost)], **{name: _plain(value) for name, value in vars(cost).items()}} for cost in costs
    ]


def from_data(data: Sequence[Mapping[str, Any]]) -> tuple[Cost, ...]:
    """Return the costs that :func:`to_data` wrote; what is not of this form is refused, never guessed.

    >>> from_data(to_data([TouchCost(0, 4, Fraction(1, 3))]))
    (TouchCost(start=0, stop=4, cost=Fraction(1, 3)),)
    """
    if not isinstance(data, (list, tuple)):
        raise DataError(f"costs are of type {type(data).__name__}, but must be a list")
    try:
        costs = _costs_in(data)
    except (TypeError, ValueError, KeyError, ArithmeticError):
        raise DataError("costs hold something else than numbers, but must be what this version wrote") from None
    if list(data) != to_data(costs):
        raise DataError("costs are not in the form in which this version writes them, but must be")
    return costs


def _costs_in(data: Sequence[Mapping[str, Any]]) -> tuple[Cost, ...]:
    costs: list[Cost] = []
    for entry in data:
        match entry:
            case {"kind": "steps", "start": start, "costs": values}:
                costs.append(StepCosts(start, tuple(Fraction(value) for value in values)))
            case {"kind": "touch", "start": start, "stop": stop, "cost": cost}:
                costs.append(TouchCost(start, stop, Fraction(cost)))
            case {"kind": "chosen", "start": start, "stop": stop, "free": free, "cost": cost}:
                repeated, gaussian = frozenset(entry["repeated"]), bool(entry["gaussian"])
                costs.append(ChosenCosts(start, stop, free, Fraction(cost), repeated, gaussian))
            case {"kind": "squares", "start": start, "weights": weights, "cost": cost}:
                costs.append(SquareCosts(start, tuple(int(weight) for weight in weights), Fraction(cost)))
            case {"kind": "spread", "runs": runs, "nodes": nodes, "cost": cost}:
                pairs = tuple((int(start), int(stop)) for start, stop in runs)
                costs.append(SpreadCost(pairs, int(nodes), Fraction(cost), frozenset(entry["repeated"])))
            case _:
                raise DataError(f"costs hold {entry!r}, but must be of a kind that this version knows")
    return tuple(costs)


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [list(entry) if isinstance(entry, tuple) else str(entry) for entry in value]
    return str(value) if isinstance(value, Fraction) else value
