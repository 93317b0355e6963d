"""The accountant agrees with brute force over every window, every change and every choice of samples."""

from __future__ import annotations

import itertools
from fractions import Fraction

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import optstream as ops
from optstream.privacy.accounting import ChosenCosts, Cost, SquareCosts, StepCosts, TouchCost, epsilon_of, worst_window

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


def brute_force(all_costs: list[Cost], w: int) -> Fraction:
    windows = (set(range(first, first + w)) for first in range(-30, 30))
    # Costs grow with the set of changed steps, so the whole window is its worst change; choices are independent.
    return max(sum((cost_of_change(window, cost) for cost in all_costs), Fraction(0)) for window in windows)


@settings(max_examples=400, deadline=None)
@given(st.lists(steps | touches | chosen, max_size=4), st.integers(1, 7))
def test_the_worst_window_is_that_of_brute_force(all_costs: list[Cost], w: int) -> None:
    assert worst_window(all_costs, w) == brute_force(all_costs, w)


@pytest.mark.parametrize("w", range(2, 9))
def test_adaptive_samples_cost_what_the_worst_pair_of_choices_costs(w: int) -> None:
    for k in range(2, w + 1):
        cost = ops.L1Sampling(k=k, threshold=0).sample_costs(w)
        others = range(1, w - 1)
        choices = [{0, w - 1, *choice} for choice in itertools.combinations(others, k - 2)]
        straddling = max(
            len([s for s in first if s >= offset]) + len([s for s in second if s < offset])
            for offset in range(w)
            for first in choices
            for second in choices
        )
        assert epsilon_of(cost, ops.Guarantee(epsilon=1, w=w)) == straddling
        assert epsilon_of(cost, ops.Guarantee(epsilon=1, w=w, neighbours="aligned")) == k
        if w >= 2 * k - 2 and k > 2:
            assert straddling == 2 * k - 2


def test_equal_samples_and_features_cost_no_more_when_windows_slide() -> None:
    for k in (2, 5, 10, 48):
        cost = ops.EqualSampling(k=k).sample_costs(48)
        assert epsilon_of(cost, ops.Guarantee(epsilon=1, w=48)) == k
        assert epsilon_of(cost, ops.Guarantee(epsilon=1, w=48, neighbours="aligned")) == k


def test_a_touched_period_is_paid_for_twice_when_windows_slide() -> None:
    cost = ops.L1Sampling(k=5, threshold=0).selection_costs(48)
    assert epsilon_of(cost, ops.Guarantee(epsilon=1, w=48)) == 2
    assert epsilon_of(cost, ops.Guarantee(epsilon=1, w=48, neighbours="aligned")) == 1
