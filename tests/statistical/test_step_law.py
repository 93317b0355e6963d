"""Cube noise that is drawn step by step: its law, and what it costs if data depends on what has left."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import product
from math import exp
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optstream import _core

if TYPE_CHECKING:
    from collections.abc import Callable

SPAN = 40
"""Radii and noises beyond this are left out: their weights are below 2^-40."""
HALF = Fraction(1, 2)


def law(block: int, noise: tuple[int, ...]) -> Fraction:
    """Return the chance of noise on the first coordinates of a block, with q = 1/2, as it is drawn: by its radius."""
    return _within(block, len(noise), max(map(abs, noise)))


@cache
def _within(block: int, count: int, reach: int) -> Fraction:
    total = sum((2 * radius + 1) ** block * HALF**radius for radius in range(SPAN))
    rest = ((2 * radius + 1) ** (block - count) * HALF**radius for radius in range(reach, SPAN))
    return sum(rest, Fraction(0)) / Fraction(total)


def anew(block: int, noise: tuple[int, ...]) -> Fraction:
    """Return the same if the radius is drawn anew for every coordinate."""
    chance = Fraction(1)
    for value in noise:
        chance *= law(block, (value,))
    return chance


def losses(chance: Callable[[int, tuple[int, ...]], Fraction]) -> float:
    """Return the largest ratio of transcripts, for data that moves by one at each step and looks at what has left."""
    worst = 1.0
    for first, second in product(range(-4, 5), repeat=2):
        for third in range(-4, 5):
            seen = (first, second, third)
            # The second and third value follow what has left before.
            data = (0, first % 3, (first + second) % 2)
            for moves in product((-1, 0, 1), repeat=3):
                other = tuple(value + move for value, move in zip(data, moves, strict=True))
                one, two = (
                    chance(3, tuple(left - value for left, value in zip(seen, row, strict=True)))
                    for row in (data, other)
                )
                worst = max(worst, float(one / two))
    return worst


def test_a_block_costs_once_whatever_its_data_depends_on_and_a_radius_drawn_anew_is_caught() -> None:
    # q = 1/2: one unit of change costs the logarithm of two, for the block as a whole.
    assert losses(law) <= 2 * (1 + 1e-6)
    assert losses(anew) > 3


@pytest.mark.parametrize("keyed", [False, True])
def test_steps_have_the_law_of_the_block(keyed: bool) -> None:
    """The largest of three noises, drawn one by one, has the law of a block: chi-square with a false alarm of 1e-9."""
    plan = _core.Plan(
        w=3,
        alpha=1.0,
        bounds=(0.0, 10.0),
        grid=1.0,
        sampling=[(0, 1, 1), (1, 2, 1), (2, 3, 1)],
        cost=Fraction(1, 2),
        blocks=[3],
        features=[],
        tree=None,
    )
    key = _core.CuratorKey(bytes(range(32)))
    trials, rows = 20_000, np.zeros((1, 3), dtype=np.int64)
    largest = np.empty(trials, dtype=int)
    for trial in range(trials):
        pending: list[int | None] = [None]
        found = []
        for step in range(1, 4):
            retry = (key, [trial.to_bytes(8, "little")]) if keyed else None
            _, values, _, _, pending = _core.measure_step(plan, np.ascontiguousarray(rows[:, :step]), pending, retry)
            found.append(values[0])
        largest[trial] = int(max(map(abs, found)))
    edges = 25
    weights = np.array([((2 * m + 1) ** 3 - max(2 * m - 1, 0) ** 3) * exp(-m / 2) for m in range(200)])
    chances = np.append(weights[:edges], weights[edges:].sum()) / weights.sum()
    counts = np.bincount(np.minimum(largest, edges), minlength=edges + 1)
    statistic = float(((counts - trials * chances) ** 2 / (trials * chances)).sum())
    # With 25 degrees of freedom 105 is exceeded with a chance below 1e-9.
    assert statistic < 105, f"chi-square {statistic:.1f}, n = {trials}"
