"""The laws that the samplers must follow, and the tests that compare draws with them.

A test that compares draws with a law states the probability that it fails although the law holds. Laws are computed in
double precision from closed forms, which is exact enough to tell 4 million draws apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

if TYPE_CHECKING:
    from fractions import Fraction

    from numpy.typing import NDArray

FALSE_ALARM = 1e-7
"""Probability that one comparison fails although the law holds."""


def laplace_below(scale: Fraction | float, edges: NDArray[np.int64]) -> NDArray[np.float64]:
    """P(z < edge) for discrete Laplace noise."""
    b = float(scale)
    q = np.exp(-1 / b)
    below = np.exp(-np.maximum(1 - edges, 1) / b) / (1 + q)
    above = np.exp(-np.maximum(edges, 1) / b) / (1 + q)
    return np.asarray(np.where(edges <= 0, below, 1 - above))


def gaussian_below(sigma: Fraction | float, edges: NDArray[np.int64]) -> NDArray[np.float64]:
    """P(z < edge) for discrete Gaussian noise."""
    s = float(sigma)
    reach = max(int(40 * s), 40)
    if reach > 4_000_000:
        # The sum over integers is that of the density up to exp(-2 pi^2 sigma^2), at the middle between two of them.
        return np.asarray(stats.norm.cdf((edges - 0.5) / s))
    z = np.arange(-reach, reach + 1)
    mass = np.exp(-0.5 * (z / s) ** 2)
    below = np.concatenate([[0], np.cumsum(mass)]) / mass.sum()
    return np.asarray(below[np.clip(edges + reach, 0, below.size - 1)])


def cube_max_below(scale: float, dimension: int, edges: NDArray[np.int64]) -> NDArray[np.float64]:
    """P(max|z| < edge) for cube noise."""
    largest = int(scale * (dimension + 60) * 3)
    m = np.arange(largest)
    # log of ((2m+1)^d - (2m-1)^d) exp(-m/b), the mass of the points with max|z| = m.
    with np.errstate(divide="ignore", invalid="ignore"):
        shell = dimension * np.log(2 * m + 1) + np.log1p(-np.where(m > 0, ((2 * m - 1) / (2 * m + 1)) ** dimension, 0))
    log_mass = shell - m / scale
    mass = np.exp(log_mass - log_mass.max())
    below = np.concatenate([[0], np.cumsum(mass)]) / mass.sum()
    return np.asarray(below[np.minimum(edges, largest)])


def cube_value_below(scale: float, dimension: int, edges: NDArray[np.int64]) -> NDArray[np.float64]:
    """P(z_1 < edge) for cube noise: a mixture of uniforms on -R..R with R ~ (2R+1)^d exp(-R/b)."""
    radius = np.arange(int(scale * (dimension + 60) * 3))
    log_mass = dimension * np.log(2 * radius + 1) - radius / scale
    mass = np.exp(log_mass - log_mass.max())
    mass /= mass.sum()
    share = np.clip((edges[:, None] + radius) / (2 * radius + 1), 0, 1)
    return np.asarray(share @ mass)


def edges_of_bins(draws: NDArray[np.int64], bins: int) -> NDArray[np.int64]:
    """Bin edges at the quantiles of draws that are used for nothing else."""
    return np.unique(np.quantile(draws, np.linspace(0, 1, bins + 1)[1:-1]).astype(np.int64))


def p_value(draws: NDArray[np.int64], edges: NDArray[np.int64], below: NDArray[np.float64]) -> float:
    """Chi-square p-value of draws in the bins between edges, given P(z < edge)."""
    expected = np.diff(np.concatenate([[0.0], below, [1.0]])) * draws.size
    observed = np.bincount(np.searchsorted(edges, draws, side="right"), minlength=edges.size + 1)
    wide = expected > 20
    pooled_expected = np.append(expected[wide], expected[~wide].sum())
    pooled_observed = np.append(observed[wide], observed[~wide].sum())
    if pooled_expected[-1] < 5:
        pooled_expected = np.append(pooled_expected[:-2], pooled_expected[-2:].sum())
        pooled_observed = np.append(pooled_observed[:-2], pooled_observed[-2:].sum())
    statistic = ((pooled_observed - pooled_expected) ** 2 / pooled_expected).sum()
    return float(stats.chi2.sf(statistic, pooled_expected.size - 1))


def assert_law(p: float, what: str, n: int) -> None:
    """Fail if a p-value is below the false-alarm rate."""
    assert p > FALSE_ALARM, f"{what}: p = {p:.3g} on n = {n:,} draws (false-alarm rate {FALSE_ALARM})"


def assert_rejected(p: float, what: str, n: int) -> None:
    """Fail if a wrong law is *not* rejected: the comparison would then prove nothing."""
    assert p < FALSE_ALARM, f"no power: {what} passes with p = {p:.3g} on n = {n:,} draws"
