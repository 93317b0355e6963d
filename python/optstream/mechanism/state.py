"""The state between two releases of a stream: what the last period cost, and what an estimate has learnt.

A window of w steps meets at most two consecutive periods. So whoever releases a period needs to know what the one right
before it cost, step by step, and nothing older. Without that the windows over the border would not be priced.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from optstream.errors import OptStreamError, ParameterError, ParameterTypeError
from optstream.privacy import accounting

if TYPE_CHECKING:
    from optstream.estimate.memory import Memory
    from optstream.mechanism.mechanism import Mechanism
    from optstream.privacy.accounting import Cost
    from optstream.privacy.guarantee import Guarantee

__all__ = ["State", "public_memory", "sealed", "unsealed"]

VERSION = 2
"""The version of the form in which states are kept."""
LAST = 2**40
"""Periods are numbered below this."""
STEPS = "steps"
"""The clock of periods that are numbered and have no times."""
SEAL = "seal"


def sealed(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain data with a digest of it, so that half a file or a slip of the pen is not taken for a state.

    >>> unsealed(sealed({"last": 3}))
    {'last': 3}
    """
    content = {name: value for name, value in data.items() if name != SEAL}
    return {**content, SEAL: _digest(content)}


def unsealed(data: Any) -> dict[str, Any]:
    """Return sealed data without its seal.

    Raises:
        ParameterError: It is not as it was when it was sealed.
    """
    if not isinstance(data, Mapping):
        raise ParameterTypeError(f"state is of type {type(data).__name__}, but must be a mapping")
    content = {name: value for name, value in data.items() if name != SEAL}
    if data.get(SEAL) != _digest(content):
        raise ParameterError("state is damaged, but must be what a release, a stream or a tuning of this version gave")
    return content


def _digest(content: Mapping[str, Any]) -> str | None:
    try:
        text = json.dumps(content, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return ""
    return sha256(text.encode()).hexdigest()


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
    clock: str = STEPS
    """Which times the steps of the periods are."""

    @property
    def next(self) -> int:
        """The number of the next period."""
        return 0 if self.last is None else self.last + 1

    def costs_before(self, period: int) -> tuple[Cost, ...]:
        """Return what the period right before one cost; a gap of a period parts all windows."""
        return self.costs if self.last == period - 1 else ()

    def advance(self, period: int, costs: tuple[Cost, ...]) -> None:
        """Take a period as released, or as charged and void.

        Raises:
            ParameterError: It was released or passed over already.
        """
        if self.last is not None and period <= self.last:
            raise ParameterError(f"period is {period}, but must come after {self.last}, which was released")
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
        return sealed(
            {
                "version": VERSION,
                "w": guarantee.w,
                "alpha": guarantee.alpha,
                "neighbours": guarantee.neighbours,
                "delta": str(guarantee.delta),
                "entities": guarantee.entities,
                "entity": guarantee.entity,
                "clock": self.clock,
                "last": self.last,
                "costs": accounting.to_data(self.costs),
                "memory": None if self.memory is None else self.memory.state(),
            }
        )

    @classmethod
    def read(
        cls, data: Mapping[str, Any] | None, mechanism: Mechanism, clock: str | None = None, *, forget: bool = False
    ) -> State:
        """Return the state that :meth:`to_data` gave, for a mechanism that is to go on from it.

        Args:
            data: The state, or None to begin.
            mechanism: What goes on from it.
            clock: Which times the steps are; by default those of the state.
            forget: Whether to leave out what an estimate has learnt. What was spent is never left out.

        Raises:
            ParameterError: It is something else, or of another relation of neighbours or clock, so that costs do not
                add up.
        """
        fresh = mechanism.remembered() if mechanism.estimator else None
        if data is None:
            return cls(memory=fresh, clock=clock or STEPS)
        content, guarantee = unsealed(data), mechanism.guarantee
        if content.get("version") != VERSION:
            raise ParameterError("state is not what a release, a stream or a tuning of this version gave, but must be")
        try:
            last, costs = content["last"], accounting.from_data(content["costs"])
            relation = tuple(content[name] for name in ("w", "alpha", "neighbours", "delta", "entities", "entity"))
            relation = (*relation[:3], Fraction(relation[3]), *relation[4:])
            learnt, times = content["memory"], content["clock"]
        except (KeyError, TypeError, ValueError, ZeroDivisionError, OptStreamError):
            raise ParameterError("state is damaged, but must be what a release, a stream or a tuning gave") from None
        if relation != guarantee.protects:
            raise ParameterError(
                f"state is of releases with {_relation(relation)}, but must be of some with "
                f"{_relation(guarantee.protects)}"
            )
        _check_numbers(last, costs, guarantee.w)
        if last is not None and clock is not None and clock != times:
            # On another clock the same hours would be released again as other periods.
            raise ParameterError(f"state is of a stream with {times}, but must be of one with {clock}")
        memory = fresh if forget or mechanism.estimator is None else mechanism.remembered(learnt)
        # What history says without its costs does not price what came before.
        return cls(last, costs, memory, handed_over=last is not None, clock=clock or times)


def _relation(protects: tuple[Any, ...]) -> str:
    """Return in words what :attr:`Guarantee.protects` says."""
    w, alpha, neighbours, delta, entities, entity = protects
    return (
        f"w = {w}, alpha = {float(alpha):g}, {neighbours} neighbours, delta = {float(delta):g} and {entities} entities "
        f"({entity})"
    )


def _check_numbers(last: Any, costs: tuple[Cost, ...], w: int) -> None:
    """Raise unless the last period has a number, and its costs lie on its steps."""
    named = last is None or (isinstance(last, int) and not isinstance(last, bool) and -LAST < last < LAST)
    if not named or (last is None and costs):
        raise ParameterError("state is damaged, but must name the last period")
    first, pure, gaussian, _ = accounting.window_parts(costs, w)
    if costs and (first <= -w or first + len(pure.counts) > w or min(*pure.counts, *gaussian.counts) < 0):
        raise ParameterError(f"state is damaged, but must have costs on the {w} steps of the last period")


def public_memory(data: Mapping[str, Any], mechanism: Mechanism) -> Mapping[str, Any] | None:
    """Return what public history says, for a stream whose costs a ledger keeps.

    Raises:
        ParameterError: The state is of releases, whose costs the ledger does not know.
    """
    if State.read(data, mechanism).last is not None:
        raise ParameterError("state is of releases outside the ledger, but must be of public history")
    learnt: Mapping[str, Any] | None = data["memory"]
    return learnt
