"""Costs by hypothesis, and what a change costs by definition."""

from __future__ import annotations

import itertools
from fractions import Fraction

import hypothesis.strategies as st

from optstream.privacy.accounting import ChosenCosts, Cost, SquareCosts, StepCosts, TouchCost

costs = st.fractions(0, 2, max_denominator=12)
steps = st.builds(StepCosts, st.integers(-5, 5), st.lists(costs, min_size=1, max_size=8).map(tuple))
touches = st.builds(
    lambda start, length, cost: TouchCost(start, start + length, cost), st.integers(-5, 5), st.integers(1, 8), costs
)
chosen = st.integers(1, 6).flatmap(
    lambda length: st.builds(
        lambda start, free, cost: ChosenCosts(start, start + length, free, cost),
        st.integers(-5, 5),
        st.integers(0, max(length - 2, 0)),
        costs,
    )
)


def cost_of_change(changed: set[int], cost: Cost) -> Fraction:
    """What a change of exactly these steps costs, by definition and for the worst choice."""
    if isinstance(cost, StepCosts):
        return sum((value for step, value in enumerate(cost.costs, cost.start) if step in changed), Fraction(0))
    if isinstance(cost, SquareCosts):
        moved = sum(weight for step, weight in enumerate(cost.weights, cost.start) if step in changed)
        return cost.cost * moved**2
    inside = changed & set(range(cost.start, cost.stop))
    if isinstance(cost, TouchCost):
        return cost.cost if inside else Fraction(0)
    ends = {cost.start, cost.stop - 1}
    others = set(range(cost.start, cost.stop)) - ends
    choices = itertools.combinations(sorted(others), cost.free)
    return cost.cost * max(len(inside & (ends | set(choice))) for choice in choices)
