"""The state between two releases of a stream: what the last period cost, and what an estimate has learnt.

A window of w steps meets at most two consecutive periods. So whoever releases a period needs to know what the one right
before it cost, step by step, and nothing older. Without that the windows over the border would not be priced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from optstream.errors import OptStreamError, ParameterError, ParameterTypeError
from optstream.privacy import accounting

if TYPE_CHECKING:
    from optstream.estimate.memory import Memory
    from optstream.mechanism.optstream import OptStream
    from optstream.privacy.accounting import Cost
    from optstream.privacy.guarantee import Guarantee

__all__ = ["State", "public_memory"]

VERSION = 1
"""The version of the form in which states are kept."""
LAST = 2**40
"""Periods are numbered below this."""


@dataclass(repr=False)
class State:
    """What is known of a stream before its next period. It holds private values and public costs only."""

    last: int | None = None
    """The last period that was released or passed over."""
    costs: tuple[Cost, ...] = ()
    """What that period cost, on its steps 0 to w - 1; nothing if it was not released."""
    memory: Memory | None = None
    """What an estimate has learnt."""
    handed_over: bool = False
    """Whether it came from an earlier release."""

    @property
    def next(self) -> int:
        """The number of the next period."""
        return 0 if self.last is None else self.last + 1

    def costs_before(self, period: int) -> tuple[Cost, ...]:
        """Return what the period right before one cost; a gap of a period parts all windows."""
        return self.costs if self.last == period - 1 else ()

    def advance(self, period: int, costs: tuple[Cost, ...]) -> None:
        """Take a period as released, or as charged and void."""
        self.last, self.costs = period, costs

    def skip_to(self, period: int | None) -> None:
        """Pass over periods that are not released, up to the given one.

        Raises:
            ParameterError: It was released or passed over already.
        """
        if period is None:
            return
        if isinstance(period, bool) or not isinstance(period, int):
            raise ParameterTypeError(f"period is of type {type(period).__name__}, but must be an int")
        if not (0 if self.last is None else self.next) <= period < LAST:
            raise ParameterError(
                f"period is {period}, but must be at least {self.next}: what comes before was released or passed over"
            )
        if period != self.next:
            self.last, self.costs = period - 1, ()

    def to_data(self, guarantee: Guarantee) -> dict[str, Any]:
        """Return the state as plain data for JSON, with the relation of neighbours that its costs are about."""
        return {
            "version": VERSION,
            "w": guarantee.w,
            "alpha": guarantee.alpha,
            "neighbours": guarantee.neighbours,
            "delta": str(guarantee.delta),
            "last": self.last,
            "costs": accounting.to_data(self.costs),
            "memory": None if self.memory is None else self.memory.state(),
        }

    @classmethod
    def read(cls, data: Mapping[str, Any] | None, mechanism: OptStream) -> State:
        """Return the state that :meth:`to_data` gave, for a mechanism that is to go on from it.

        Raises:
            ParameterError: It is something else, or of another relation of neighbours, so that costs do not add up.
        """
        if data is None:
            return cls(memory=mechanism.remembered() if mechanism.estimator else None)
        if not isinstance(data, Mapping):
            raise ParameterTypeError(f"state is of type {type(data).__name__}, but must be a mapping")
        if data.get("version") != VERSION:
            raise ParameterError("state is not what a release, a stream or a tuning of this version gave, but must be")
        guarantee = mechanism.guarantee
        try:
            last, costs = data["last"], accounting.from_data(data["costs"])
            relation = data["w"], data["alpha"], data["neighbours"], Fraction(data["delta"])
            learnt = data["memory"]
        except (KeyError, TypeError, ValueError, ZeroDivisionError, OptStreamError):
            raise ParameterError("state is damaged, but must be what a release, a stream or a tuning gave") from None
        if last is not None and (isinstance(last, bool) or not isinstance(last, int) or not -LAST < last < LAST):
            raise ParameterError("state is damaged, but must name the last period")
        if relation != (guarantee.w, guarantee.alpha, guarantee.neighbours, guarantee.delta):
            raise ParameterError(
                f"state is of releases with w = {relation[0]}, alpha = {relation[1]}, {relation[2]} neighbours and "
                f"delta = {float(relation[3]):g}, but must have w = {guarantee.w}, alpha = {guarantee.alpha:g}, "
                f"{guarantee.neighbours} neighbours and delta = {float(guarantee.delta):g}"
            )
        memory = None
        if mechanism.estimator is not None:
            memory = mechanism.remembered(learnt)
        # What history says without its costs does not price what came before.
        return cls(last, costs, memory, handed_over=last is not None)


def public_memory(data: Mapping[str, Any], mechanism: OptStream) -> Mapping[str, Any] | None:
    """Return what public history says, for a stream whose costs a ledger keeps.

    Raises:
        ParameterError: The state is of releases, whose costs the ledger does not know.
    """
    if State.read(data, mechanism).last is not None:
        raise ParameterError("state is of releases outside the ledger, but must be of public history")
    learnt: Mapping[str, Any] | None = data["memory"]
    return learnt
