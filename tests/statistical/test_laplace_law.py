"""Laplace noise follows its law at every kind of scale, in the body and in the tail."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest
from distributions import assert_law, assert_rejected, edges_of_bins, laplace_below, p_value
from scipy import stats

from optstream import noise

if TYPE_CHECKING:
    from numpy.typing import NDArray

N = 4_000_000

# (sensitivity, epsilon) with grid 1, so that the scale is sensitivity / epsilon.
SCALES = [
    (1, Fraction(1)),
    (1, Fraction(2, 3)),
    (1, Fraction(1, 2)),
    (1, Fraction(1, 10)),
    (1, Fraction(1, 1000)),
    (1, Fraction(1, 2**20 + 7)),
    (6, Fraction(4)),
    (21, Fraction(14, 9)),
    (10, Fraction(123456789012345678, 10**18)),
]


def draw(sensitivity: int, epsilon: Fraction, n: int) -> NDArray[np.int64]:
    noisy = noise.laplace(np.zeros(n), sensitivity=sensitivity, epsilon=epsilon, bounds=(0, 1), grid=1.0)
    return noisy.astype(np.int64)


@pytest.mark.slow
@pytest.mark.parametrize(("sensitivity", "epsilon"), SCALES, ids=str)
def test_the_law_holds_and_a_scale_off_by_one_per_cent_is_rejected(sensitivity: int, epsilon: Fraction) -> None:
    scale = sensitivity / epsilon
    draws = draw(sensitivity, epsilon, N)
    # Bins come from draws of their own, so that they cannot favour the ones they are used on.
    edges = edges_of_bins(draw(sensitivity, epsilon, 100_000), 200)
    assert_law(p_value(draws, edges, laplace_below(scale, edges)), f"scale {scale}", N)
    for wrong in (scale * 101 / 100, scale * 99 / 100):
        assert_rejected(p_value(draws, edges, laplace_below(wrong, edges)), f"scale {wrong} for {scale}", N)

    # The table of the sampler ends at 8 scales; the tail beyond starts again from there.
    for multiple in (6, 8, 10):
        far = round(multiple * float(scale))
        expected = float(2 * laplace_below(scale, np.array([-far]))[0])
        beyond = int(np.sum(np.abs(draws) > far))
        p = stats.binomtest(beyond, N, expected).pvalue
        assert_law(p, f"tail beyond {multiple} scales at scale {scale}", N)

    signs = stats.binomtest(int(np.sum(draws > 0)), int(np.sum(draws != 0))).pvalue
    assert_law(signs, f"sign at scale {scale}", N)


@pytest.mark.slow
def test_neighbouring_draws_are_uncorrelated() -> None:
    draws = draw(1, Fraction(1, 1000), N).astype(float) / 1000
    size, sign = np.abs(draws) - 1, np.sign(draws)
    for lag in (1, 2, 3, 4096):
        for first, second, name in ((size, size, "sizes"), (sign, sign, "signs"), (size, sign, "size and sign")):
            z = np.mean(first[lag:] * second[:-lag]) * np.sqrt(N - lag)
            assert_law(2 * float(stats.norm.sf(abs(z))), f"correlation of {name} at lag {lag}", N)
