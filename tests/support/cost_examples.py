"""Costs by hypothesis, and what a change costs by definition."""

from __future__ import annotations

import itertools
from fractions import Fraction

import hypothesis.strategies as st

from optstream.privacy.accounting import ChosenCosts, Cost, SpreadCost, SquareCosts, StepCosts, TouchCost

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
spreads = st.builds(
    lambda start, lengths, nodes, cost: SpreadCost(
        tuple(itertools.pairwise(itertools.accumulate(lengths, initial=start))), nodes, cost
    ),
    st.integers(-5, 5),
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.integers(1, 4),
    costs,
)


def cost_of_change(changed: set[int], cost: Cost) -> Fraction:
    """What a change of exactly these steps costs, by definition and for the worst choice."""
    if isinstance(cost, StepCosts):
        return sum((value for step, value in enumerate(cost.costs, cost.start) if step in changed), Fraction(0))
    if isinstance(cost, SquareCosts):
        moved = sum(weight for step, weight in enumerate(cost.weights, cost.start) if step in changed)
        return cost.cost * moved**2
    if isinstance(cost, SpreadCost):
        # Every step is changed in one node; a node costs the largest share of a run that is changed in it.
        steps = sorted(changed & set(range(cost.runs[0][0], cost.runs[-1][1])))
        return cost.cost * max(
            sum(
                max(
                    Fraction(sum(where.get(step) == node for step in range(start, stop)), stop - start)
                    for start, stop in cost.runs
                )
                for node in range(cost.nodes)
            )
            for nodes in itertools.product(range(cost.nodes), repeat=len(steps))
            for where in (dict(zip(steps, nodes, strict=True)),)
        )
    inside = changed & set(range(cost.start, cost.stop))
    if isinstance(cost, TouchCost):
        return cost.cost if inside else Fraction(0)
    ends = {cost.start, cost.stop - 1}
    others = set(range(cost.start, cost.stop)) - ends
    choices = itertools.combinations(sorted(others), cost.free)
    return cost.cost * max(len(inside & (ends | set(choice))) for choice in choices)
