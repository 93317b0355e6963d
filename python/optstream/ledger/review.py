"""Looking back at what a ledger holds: what is left in every window."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from optstream.ledger.plans import LOST
from optstream.ledger.records import Window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optstream.ledger.log import View
    from optstream.ledger.plans import Plans

__all__ = ["windows_left"]


def windows_left(view: View, plans: Plans) -> list[Window]:
    """Return what is left, for runs of windows with the same."""
    merged: list[Window] = []
    for window in _windows(view, plans):
        last = merged[-1] if merged else None
        if last is not None and (last.last + 1, last.epsilon) == (window.first, window.epsilon):
            merged[-1] = Window(last.first, window.last, window.epsilon)
        else:
            merged.append(window)
    return merged


def _windows(view: View, plans: Plans) -> Iterator[Window]:
    policy = view.policy
    w, allowed, aligned = policy.w, policy.epsilon, policy.neighbours == "aligned"
    nothing = plans.vector((), w, policy.delta)
    left: dict[Fraction, Fraction] = {}
    before = None
    lost = {period for _, last in view.lost for period in range(last + 1) if view.is_lost(period)}
    for period in sorted({period for period, state in view.states.items() if state.plan} | lost):
        key = plans.key(view, LOST if period in lost else view.states[period].plan)
        vector = plans.vector(key, w, policy.delta)
        if not aligned:
            pairs = [(period - 1, nothing, vector)]
            if before is not None:
                pairs = [(before[0], before[1], vector)]
                if before[0] != period - 1:
                    pairs = [(before[0], before[1], nothing), (period - 1, nothing, vector)]
            for number, one, other in pairs:
                # What may have left was within the policy, together with what is stored; nothing is left.
                forgotten = number in lost or number + 1 in lost
                for first, last, cost in plans.across(one, other):
                    rest = Fraction(0) if forgotten else left.setdefault(cost, allowed - cost)
                    yield Window(number * w + first, number * w + last, rest)
        cost = vector.at(w - 1)
        yield Window(period * w, period * w, allowed - cost)
        before = period, vector
    if before is not None and not aligned:
        for first, last, cost in plans.across(before[1], nothing):
            yield Window(before[0] * w + first, before[0] * w + last, allowed - cost)
