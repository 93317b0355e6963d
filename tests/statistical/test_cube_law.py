"""Cube noise follows its law: single points, the max-norm and each coordinate."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest
from distributions import assert_law, assert_rejected, cube_max_below, cube_value_below, edges_of_bins, p_value
from scipy import stats

from optstream import noise

if TYPE_CHECKING:
    from numpy.typing import NDArray


def draw(scale: Fraction | int, rows: int, dimension: int) -> NDArray[np.int64]:
    zeros = np.zeros((rows, dimension))
    noisy = noise.cube(zeros, sensitivity=1, epsilon=1 / Fraction(scale), bounds=(0, 1), grid=1.0)
    return noisy.astype(np.int64)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [Fraction(1), Fraction(2), Fraction(7, 2)], ids=str)
def test_single_points_in_two_dimensions(scale: Fraction) -> None:
    rows, reach = 2_000_000, 6
    draws = draw(scale, rows, 2)
    cells = list(itertools.product(range(-reach, reach + 1), repeat=2))
    observed = [int(np.sum((draws[:, 0] == a) & (draws[:, 1] == b))) for a, b in cells]

    def p(b: float) -> float:
        shells = np.arange(2000)
        count = np.where(shells > 0, 8 * shells, 1)
        total = float(np.sum(count * np.exp(-shells / b)))
        expected = np.array([rows * np.exp(-max(abs(a), abs(c)) / b) / total for a, c in cells])
        rest = rows - expected.sum()
        statistic = np.sum((observed - expected) ** 2 / expected) + (rows - sum(observed) - rest) ** 2 / rest
        return float(stats.chi2.sf(statistic, len(cells)))

    assert_law(p(float(scale)), f"points at scale {scale}", rows)
    assert_rejected(p(float(scale) * 1.01), f"points at scale {scale} taken for 1 % more", rows)


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "dimension"), [(3, 1), (10, 3), (100, 5), (1000, 48), (60, 400)])
def test_the_max_norm_and_each_coordinate(scale: int, dimension: int) -> None:
    rows = max(4_000_000 // dimension, 100_000)
    draws = draw(scale, rows, dimension)
    largest = np.abs(draws).max(axis=1)
    edges = edges_of_bins(np.abs(draw(scale, 20_000, dimension)).max(axis=1), 40)
    assert_law(p_value(largest, edges, cube_max_below(scale, dimension, edges)), f"max at {scale}, {dimension}", rows)
    wrong = cube_max_below(scale * 1.01, dimension, edges)
    assert_rejected(p_value(largest, edges, wrong), f"max at {scale}, {dimension} taken for 1 % more", rows)
    for column in {0, dimension // 2, dimension - 1}:
        values = draws[:, column]
        edges = edges_of_bins(draw(scale, 20_000, dimension)[:, column], 40)
        p = p_value(values, edges, cube_value_below(scale, dimension, edges))
        assert_law(p, f"coordinate {column} at {scale}, {dimension}", rows)


@pytest.mark.slow
def test_one_block_has_less_noise_than_independent_draws_of_the_same_cost() -> None:
    dimension, epsilon = 48, 1.0
    zeros = np.zeros((20_000, dimension))
    block = noise.cube(zeros, sensitivity=1, epsilon=epsilon, bounds=(0, 1))
    single = noise.laplace(zeros.ravel(), sensitivity=1, epsilon=Fraction(1, dimension), bounds=(0, 1))
    # Mean absolute noise (d + 1)/2 against d; the means of 960,000 draws are within 1 % of that.
    assert np.abs(block).mean() == pytest.approx(24.5, rel=0.02)
    assert np.abs(single).mean() == pytest.approx(48, rel=0.02)
