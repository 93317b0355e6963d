"""Looking back at what a ledger holds: what is left in every window, and whether the rows are what they say."""

from __future__ import annotations

import json
from itertools import groupby
from typing import TYPE_CHECKING

from optstream.ledger.protocol import PricedPlan
from optstream.ledger.records import Window
from optstream.mechanism import plan
from optstream.privacy import accounting

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optstream.privacy.accounting import Cost
    from optstream.privacy.guarantee import Guarantee

__all__ = ["plan_problems", "windows_left"]


def plan_problems(digest: bytes, description: str, costs: str) -> list[str]:
    """Check that a plan is what its digest says and that its costs are those of its mechanism."""
    content = json.loads(description)
    sources = {int(step): source for step, source in content.pop("held", {}).items()}
    if plan.digest(description) != digest:
        return [f"the plan {digest.hex()[:12]} was altered"]
    if accounting.from_data(json.loads(costs)) != PricedPlan.of(plan.build(content), sources).costs:
        return [f"the costs of the plan {digest.hex()[:12]} were altered"]
    return []


def windows_left(policy: Guarantee, periods: Sequence[tuple[int, Sequence[Cost]]]) -> Iterator[Window]:
    """Return what is left, for runs of windows with the same."""
    if policy.neighbours == "aligned":
        for period, costs in periods:
            first = period * policy.w
            yield Window(first, first, policy.epsilon - accounting.worst_window(costs, policy.w))
        return
    # A gap of a whole period between two released ones parts the windows that meet them.
    groups: list[list[tuple[int, Sequence[Cost]]]] = []
    for period, costs in periods:
        if groups and period - groups[-1][-1][0] <= 1:
            groups[-1].append((period, costs))
        else:
            groups.append([(period, costs)])
    for group in groups:
        spent = [accounting.moved(cost, period * policy.w) for period, costs in group for cost in costs]
        first, windows = accounting.window_costs(spent, policy.w)
        for cost, run in groupby(enumerate(windows, first), key=lambda window: window[1]):
            steps = [step for step, _ in run]
            yield Window(steps[0], steps[-1], policy.epsilon - cost)
