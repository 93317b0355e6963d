"""The release loop: the next mechanism from the state, its price, the draw, the estimate, the state again.

Whatever releases periods one after the other walks this loop, so that no window is priced by half.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Generic, TypeVar

from optstream.errors import BudgetError, StreamError
from optstream.mechanism.mechanism import Mechanism
from optstream.privacy import accounting

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from optstream.mechanism.optstream import OptStream
    from optstream.mechanism.release import Parts
    from optstream.mechanism.state import State
    from optstream.privacy.accounting import Cost
    from optstream.privacy.guarantee import Guarantee

__all__ = ["Drawn", "Priced", "draw_period", "draw_periods", "price_next", "window_price"]

FINEST = 2**20
"""Shares of a budget are rounded down to one part in so many, so that scales stay short fractions."""


Made_co = TypeVar("Made_co", bound=Mechanism, covariant=True)


@dataclass(frozen=True)
class Priced(Generic[Made_co]):
    """The mechanism of one period, what the period costs with its holes, and the worst window that meets it."""

    mechanism: Made_co
    costs: tuple[Cost, ...]
    epsilon: Fraction


Draw = Callable[["Priced[OptStream]", "NDArray[np.int64]", int], "Parts"]
"""Draws a priced period, given as integers of the grid, with its number."""


@dataclass(frozen=True)
class Drawn:
    """A released period."""

    priced: Priced[OptStream]
    parts: Parts


def price_next(
    mechanism: OptStream, state: State, period: int, held: Mapping[int, int] | None = None
) -> Priced[OptStream]:
    """Return the mechanism of the next period, with as much of its budget as every window leaves.

    No window that meets the period and the one before costs more than the mechanism states. A period in which steps are
    held costs in no window more than one without, so that any may follow it.

    Raises:
        BudgetError: No budget is left in some window.
        StreamError: A step is held on which no budget lies.
    """
    chosen = mechanism if state.memory is None else mechanism.following(state.memory)
    before = state.costs_before(period)
    steady = before is chosen.costs and not held and mechanism.calibration == "sound"
    made = chosen if steady else _with_room(chosen, before, _sources(held))
    costs = _costs(made, _sources(held))
    # The price of the steady state is known: the mechanism was calibrated to it.
    price = made.steady_epsilon if steady else window_price(before, costs, mechanism.guarantee)
    return Priced(made, costs, max(price, made.steady_epsilon))


def draw_period(
    priced: Priced[OptStream], units: NDArray[np.int64], period: int, state: State, draw: Draw | None = None
) -> Drawn:
    """Draw a priced period and go on to the state after it; with noise of the mechanism's own, or as ``draw`` does.

    The state pays before anything is drawn: whatever fails from here on, the period is spent and never drawn again.
    """
    state.advance(period, priced.costs)
    parts = priced.mechanism.draw(units) if draw is None else draw(priced, units, period)
    if state.memory is not None:
        parts = priced.mechanism.finish(parts, period, state.memory)
    return Drawn(priced, parts)


def draw_periods(mechanism: OptStream, units: NDArray[np.int64], state: State) -> Iterator[Drawn]:
    """Yield consecutive periods as they are released after what a state knows."""
    for rows in units:
        period = state.next
        yield draw_period(price_next(mechanism, state, period), rows, period, state)


@lru_cache(maxsize=512)
def window_price(before: tuple[Cost, ...], costs: tuple[Cost, ...], guarantee: Guarantee) -> Fraction:
    """Return the worst window that meets a period, given what the one right before it cost.

    >>> from optstream import Guarantee
    >>> from optstream.privacy.accounting import TouchCost
    >>> half, guarantee = (TouchCost(0, 4, Fraction(1, 2)),), Guarantee(epsilon=1, w=4)
    >>> window_price(half, half, guarantee), window_price((), half, guarantee)
    (Fraction(1, 1), Fraction(1, 2))
    """
    w, delta = guarantee.w, guarantee.delta
    if guarantee.neighbours == "aligned":
        return accounting.worst_window(costs, w, delta)
    first, windows = accounting.window_costs([*before, *(accounting.moved(cost, w) for cost in costs)], w, delta)
    return max((price for window, price in enumerate(windows, first) if window > 0), default=Fraction(0))


@lru_cache(maxsize=512)
def _with_room(mechanism: OptStream, before: tuple[Cost, ...], held: tuple[tuple[int, int], ...]) -> OptStream:
    """Return a mechanism with the largest budget that the windows over the border and the holes leave."""
    guarantee = mechanism.guarantee.with_epsilon(max(mechanism.guarantee.epsilon, mechanism.steady_epsilon))
    made, share = mechanism, Fraction(1)
    # Scales of noise are rounded up, so what a smaller budget costs is not exactly in proportion: look again.
    while True:
        costs = _costs(made, held)
        rest = accounting.room_after(before, costs, guarantee)
        if held and _slides(mechanism):
            rest = min(rest, accounting.largest_factor(costs, mechanism.costs, guarantee.w))
            if rest <= 0 < accounting.room_after(before, costs, guarantee):
                raise StreamError("steps cannot be held: no budget lies on the step that they repeat")
        if rest >= 1:
            return made
        share *= _short(rest)
        if share <= Fraction(1, FINEST):
            raise BudgetError(
                "what the period before cost leaves nothing for this one, but must leave some of epsilon = "
                f"{float(guarantee.epsilon):g}: leave a period out, or go on with a larger epsilon"
            )
        made = mechanism.with_epsilon(mechanism.guarantee.epsilon * share)


def _short(share: Fraction) -> Fraction:
    """Return the largest fraction of few digits that is at most a share, and not negative."""
    if share.denominator <= FINEST:
        return max(share, Fraction(0))
    return Fraction(max(int(share * FINEST), 0), FINEST)


def _costs(mechanism: OptStream, held: tuple[tuple[int, int], ...]) -> tuple[Cost, ...]:
    return tuple(accounting.held(mechanism.costs, dict(held))) if held else mechanism.costs


def _sources(held: Mapping[int, int] | None) -> tuple[tuple[int, int], ...]:
    return tuple(sorted(held.items())) if held else ()


def _slides(mechanism: OptStream) -> bool:
    return mechanism.guarantee.neighbours == "sliding"
