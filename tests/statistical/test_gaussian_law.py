"""Gaussian noise follows its law at every kind of scale, in the body and in the tail."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest
from distributions import assert_law, assert_rejected, edges_of_bins, gaussian_below, p_value
from scipy import stats

from optstream import _core

if TYPE_CHECKING:
    from numpy.typing import NDArray

N = 4_000_000

# Standard deviations in grid steps: whole, awkward, small, and too wide for a table of the law.
SIGMAS = [
    Fraction(1, 3),
    Fraction(1),
    Fraction(3, 2),
    Fraction(20, 7),
    Fraction(21),
    Fraction(1000),
    Fraction(123456789012345678, 10**14),
    Fraction(2**20 + 7),
    Fraction(2**40 + 9, 3),
]


def draw(sigma: Fraction, n: int) -> NDArray[np.int64]:
    return _core.gaussian(np.zeros(n), 1.0, 1 / sigma, (0.0, 1.0), 1.0).astype(np.int64)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", SIGMAS, ids=str)
def test_the_law_holds_and_a_sigma_off_by_one_per_cent_is_rejected(sigma: Fraction) -> None:
    draws = draw(sigma, N)
    # Bins come from draws of their own, so that they cannot favour the ones they are used on.
    edges = edges_of_bins(draw(sigma, 100_000), 200)
    assert_law(p_value(draws, edges, gaussian_below(sigma, edges)), f"sigma {sigma}", N)
    for wrong in (sigma * 101 / 100, sigma * 99 / 100):
        assert_rejected(p_value(draws, edges, gaussian_below(wrong, edges)), f"sigma {wrong} for {sigma}", N)
    for multiple in (3, 4, 5):
        far = round(multiple * float(sigma))
        expected = float(2 * gaussian_below(sigma, np.array([-far]))[0])
        beyond = int(np.sum(np.abs(draws) > far))
        assert_law(stats.binomtest(beyond, N, expected).pvalue, f"tail beyond {multiple} sigma at {sigma}", N)
    signs = stats.binomtest(int(np.sum(draws > 0)), int(np.sum(draws != 0))).pvalue
    assert_law(signs, f"sign at sigma {sigma}", N)


@pytest.mark.slow
def test_neighbouring_draws_are_uncorrelated() -> None:
    draws = draw(Fraction(1000), N).astype(float) / 1000
    size, sign = (draws**2 - 1) / np.sqrt(2), np.sign(draws)
    for lag in (1, 2, 3, 4096):
        for first, second, name in ((size, size, "sizes"), (sign, sign, "signs"), (size, sign, "size and sign")):
            z = np.mean(first[lag:] * second[:-lag]) * np.sqrt(N - lag)
            assert_law(2 * float(stats.norm.sf(abs(z))), f"correlation of {name} at lag {lag}", N)
