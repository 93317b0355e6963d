"""The periods of mechanisms that go step by step, each step with a cost of its own.

Before a period nobody knows what its steps will cost; only that no window over them and those before costs more than
epsilon. So a period is charged what is left: a window over the first n steps of it and the last w - n steps before it
may cost epsilon less what these have cost. When it is complete it is charged what its steps have cost.

**Guarantee.** On every path of released values the charges of a window are at least the sum of the costs of its steps:
for the period that is open by the mechanism's own guarantee, for others by definition. The cost of a step is a function
of what was released before, so that costs add up (fully adaptive composition of pure mechanisms).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream.baselines.keeping import kept, restore
from optstream.errors import BudgetError, ParameterError
from optstream.mechanism.loop import Priced, window_price
from optstream.mechanism.release import Parts
from optstream.mechanism.step_release import Stepped
from optstream.privacy.accounting import StepCosts, TouchCost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from optstream.baselines.online import Online
    from optstream.mechanism.mechanism import Left, Retry
    from optstream.mechanism.state import State
    from optstream.privacy.accounting import Cost

    Array = NDArray[np.float64]

__all__ = ["SteppedWalk", "SteppedWalks", "costs_after", "costs_spent"]

DAMAGED = "state is damaged, but must be what Stream.state gave"


def costs_after(before: Sequence[Fraction], w: int, epsilon: Fraction) -> tuple[Cost, ...]:
    """Return what a period of ``w`` steps may cost after steps that have cost something.

    A window that meets its first n steps alone pays what the last w - n steps before it leave, and every other one
    epsilon. As costs of intervals that end with the period this holds for windows of any length.

    >>> costs_after([Fraction(1, 4)], 2, Fraction(1))
    (TouchCost(start=0, stop=2, cost=Fraction(3, 4)), TouchCost(start=1, stop=2, cost=Fraction(1, 4)))
    """
    spent = ([Fraction(0)] * (w - 1) + list(before))[len(before) :]
    costs, known, left = [], Fraction(0), epsilon - sum(spent, Fraction(0))
    for step in range(w):
        if left > known:
            costs.append(TouchCost(step, w, left - known))
            known = left
        left += spent[step] if step < w - 1 else 0
    return tuple(costs)


@dataclass(repr=False)
class Carried:
    """What the next period goes on from."""

    digest: bytes
    """Whose it is."""
    steps: Any
    costs: tuple[Fraction, ...]
    """What every step of the last period has cost."""


class SteppedWalk:
    """One period on its way through a mechanism with ``steps()``. It may hold raw values."""

    def __init__(self, mechanism: Online, priced: Priced[Online], period: int, held: Carried | None) -> None:
        """Go on from what is carried, or from nothing."""
        self._mechanism, self.priced, self.period = mechanism, priced, period
        self._steps = mechanism.steps() if held is None else held.steps
        self._values: list[float] = []
        self._costs: list[Fraction] = []
        self.samples = self.cells = np.empty((1, 0))

    @property
    def step(self) -> int:
        """How many steps have come."""
        return len(self._values)

    @property
    def is_complete(self) -> bool:
        """Whether all steps have come."""
        return self.step == self._mechanism.guarantee.w

    @property
    def costs(self) -> tuple[Fraction, ...]:
        """What every step that has come has cost."""
        return tuple(self._costs)

    @property
    def held(self) -> Carried:
        """What the next period goes on from."""
        return Carried(self._mechanism.digest, self._steps, self.costs)

    @property
    def pending(self) -> dict[str, Any]:
        """What the mechanism knows."""
        return self.to_data()

    def push(self, leaves: NDArray[np.int64], retry: Retry | None = None) -> Stepped:  # noqa: ARG002
        """Take the next step, as an integer of the grid; return what leaves. Noise is fresh, also with a key."""
        value = self._mechanism.taken(self._steps, int(leaves[0]))
        self._values.append(value)
        self._costs.append(self._steps.cost)
        return Stepped(np.array([value]), None, None)

    def take_up(self, values: list[float], costs: Sequence[Fraction]) -> None:
        """Go on after steps that have left."""
        self._values, self._costs = values, list(costs)

    def forget(self) -> None:
        """Do nothing: what has failed was drawn."""

    def finish(self, state: State) -> Parts:
        """Return the whole period, and let the state know what it has cost."""
        if state.last == self.period:
            state.costs = self._mechanism.costs_when({"spent": [str(cost) for cost in self._costs]})
        return Parts(np.array([self._values]), np.empty((1, 0)), np.empty((1, 0), dtype=np.int64))

    def to_data(self) -> dict[str, Any]:
        """Return the walk as plain data for JSON. It may hold raw values."""
        return {
            "mechanism": self._mechanism.digest.hex(),
            "period": self.period,
            "price": str(self.priced.epsilon),
            "steps": kept(self._steps),
            "values": list(self._values),
            "costs": [str(cost) for cost in self._costs],
        }


@dataclass(frozen=True, repr=False)
class SteppedWalks:
    """How the periods of a mechanism with ``steps()`` leave step by step."""

    mechanism: Online
    repeats = repeats_alone = False

    def begin(self, state: State, period: int, held: Carried | None) -> SteppedWalk:
        """Return the walk of the next period; the state pays for all of it before anything is drawn.

        Raises:
            BudgetError: Something else was released right before.
        """
        guarantee = self.mechanism.guarantee
        costs = self.mechanism.costs_when(self.before(held))
        price = window_price(state.costs_before(period), costs, guarantee)
        if price > max(guarantee.epsilon, self.mechanism.steady_epsilon):
            raise BudgetError(
                f"period {period} would make a window cost up to {price}, but it may cost {guarantee.epsilon}: the "
                "period before was void or released by something else, so leave one period out"
            )
        state.advance(period, costs)
        return SteppedWalk(self.mechanism, Priced(self.mechanism, costs, price), period, self._own(held))

    def charged(self, priced: Priced[Online], period: int, state: State, held: Carried | None) -> SteppedWalk:  # noqa: ARG002
        """Return the walk of a period that a ledger has charged."""
        return SteppedWalk(self.mechanism, priced, period, self._own(held))

    def again(  # noqa: PLR0917
        self,
        priced: Priced[Online],
        period: int,
        state: State,  # noqa: ARG002
        held: Carried | None,  # noqa: ARG002
        stored: Sequence[Left],
        kept: tuple[Any, Any],
    ) -> SteppedWalk:
        """Return a walk as it was, from what is pending."""
        walk = self._read(kept[1], priced, period)
        if walk.step != len(stored):
            raise ParameterError(DAMAGED)
        return walk

    def restored(self, data: Mapping[str, Any], state: State) -> SteppedWalk:
        """Return the walk that :meth:`SteppedWalk.to_data` gave."""
        try:
            price, period = Fraction(data["price"]), int(data["period"])
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            raise ParameterError(DAMAGED) from None
        return self._read(data, Priced(self.mechanism, state.costs, price), period)

    def held_to_data(self, held: Carried | None) -> Any:
        """Return what the next period goes on from as plain data."""
        if held is None:
            return None
        costs = [str(cost) for cost in held.costs]
        return {"mechanism": held.digest.hex(), "steps": kept(held.steps), "costs": costs}

    def held_from_data(self, data: Any) -> Carried | None:
        """Return what :meth:`held_to_data` gave."""
        if data is None:
            return None
        try:
            steps = self.mechanism.steps()
            restore(steps, data["steps"])
            return Carried(bytes.fromhex(data["mechanism"]), steps, tuple(map(_cost, data["costs"])))
        except (KeyError, TypeError, ValueError, ZeroDivisionError, AttributeError):
            raise ParameterError(DAMAGED) from None

    def held_after(self, last: Left | None, pending: Any) -> Carried | None:  # noqa: ARG002
        """Return what the next period goes on from, by what is pending; nothing if that is of another mechanism."""
        return self.held_from_data(pending) if self._is_own(pending) else None

    def stepped(self, left: Left) -> Stepped:
        """Return what has left at a step that is stored."""
        return Stepped(left.values, None, None)

    def before(self, held: Carried | None) -> dict[str, Any]:
        """Return what the steps before a period have cost."""
        own = self._own(held)
        return {} if own is None else {"before": [str(cost) for cost in own.costs[1:]]}

    def after(self, walk: Any) -> dict[str, Any]:
        """Return what the steps of a period have cost."""
        return {"spent": [str(cost) for cost in walk.costs]}

    def _own(self, held: Carried | None) -> Carried | None:
        return held if held is not None and held.digest == self.mechanism.digest else None

    def _is_own(self, data: Any) -> bool:
        return isinstance(data, dict) and data.get("mechanism") == self.mechanism.digest.hex()

    def _read(self, data: Any, priced: Priced[Online], period: int) -> SteppedWalk:
        if not self._is_own(data) or data.get("period") != period:
            raise ParameterError(DAMAGED)
        held = self.held_from_data(data)
        walk = SteppedWalk(self.mechanism, priced, period, held)
        values = data.get("values")
        if held is None or not isinstance(values, list) or len(values) != len(held.costs):
            raise ParameterError(DAMAGED)
        try:
            walk.take_up([float(value) for value in values], held.costs)
        except (TypeError, ValueError):
            raise ParameterError(DAMAGED) from None
        return walk


def costs_spent(spent: Sequence[str]) -> tuple[Cost, ...]:
    """Return what a period costs whose steps have cost something."""
    return (StepCosts(0, tuple(map(_cost, spent))),)


def _cost(text: str) -> Fraction:
    cost = Fraction(text)
    if cost < 0:
        raise ValueError("a cost is negative")
    return cost
