"""Exact losses under discrete Gaussian noise, against the delta that is stated: single, many, adaptive, whole plans.

All sums run over the integers, so that nothing here knows of normal laws. Rounding is below 1e-15 of a probability.
"""

from __future__ import annotations

import itertools
import math
import operator
from fractions import Fraction
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

import optstream as ops
from optstream.privacy.gaussian import WORTH, delta_of, rho_from, rho_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

ROUNDING = 1e-14
EPSILONS = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)


class Law(NamedTuple):
    """The probabilities of log-ratios of one world to its neighbour, in the one world."""

    ratios: NDArray[np.float64]
    odds: NDArray[np.float64]

    def beside(self, other: Law) -> Law:
        """The law of the sum with an independent one."""
        ratios = np.add.outer(self.ratios, other.ratios).ravel()
        return Law(ratios, np.multiply.outer(self.odds, other.odds).ravel())

    def delta(self, epsilon: float) -> float:
        """The exact delta at an epsilon."""
        return float((self.odds * np.maximum(-np.expm1(np.minimum(epsilon - self.ratios, 0)), 0)).sum())


def pmf(sigma: Fraction) -> NDArray[np.float64]:
    """The discrete Gaussian law, out to where probabilities are below 1e-15."""
    reach = math.ceil(8 * float(sigma))
    odds = np.exp(-(np.arange(-reach, reach + 1.0) ** 2) / (2 * float(sigma) ** 2))
    return np.asarray(odds / odds.sum())


def gaussian(sigma: Fraction, shifts: Iterable[int]) -> Law:
    """The law of measurements with noise of one deviation that move by so many units each.

    The log-ratio of a noise z that moves by d is (d^2 - 2 d z) / (2 sigma^2), so the sum of d z decides.
    """
    shifts = [abs(shift) for shift in shifts if shift]
    odds, reach = np.ones(1), 0
    for shift in shifts:
        one = pmf(sigma)
        spread = np.zeros((len(one) - 1) * shift + 1)
        spread[::shift] = one
        odds, reach = np.convolve(odds, spread), reach + len(one) // 2 * shift
    sums = np.arange(-reach, reach + 1.0)
    return Law((sum(shift**2 for shift in shifts) - 2 * sums) / (2 * float(sigma) ** 2), odds)


def stated(epsilon: float, rho: Fraction) -> float:
    return float(delta_of(Fraction(repr(epsilon)), rho))


# The smallest deviation that is priced is 4; changes are smaller, as large and larger than it.
@pytest.mark.parametrize("sigma", [Fraction(4), Fraction(401, 100), Fraction(13, 3), Fraction(6), Fraction(15)])
@pytest.mark.parametrize("shifts", [(1,), (2,), (5,), (9,), (23,), (1, 1), (3, 1, 2), (7, 7), (1,) * 24, (2, 5) * 3])
def test_products_of_discrete_laws_lose_no_more_than_stated(sigma: Fraction, shifts: tuple[int, ...]) -> None:
    law = gaussian(sigma, shifts)
    assert law.odds.sum() == pytest.approx(1, abs=1e-12)
    rho = sum((rho_of(shift, sigma) for shift in shifts), Fraction(0))
    continuous = sum((Fraction(shift) ** 2 / (2 * sigma**2) for shift in shifts), Fraction(0))
    for epsilon in (*EPSILONS, 0.9 * float(rho), float(rho) + 3 * math.sqrt(2 * float(rho))):
        exact = law.delta(epsilon)
        assert exact <= stated(epsilon, rho) + ROUNDING
        # A price for a third of the cost would be caught.
        if exact > 1e-9:
            assert exact > stated(epsilon, continuous / 3)


def test_without_the_hidden_variance_the_price_would_be_too_low_somewhere() -> None:
    # One unit under deviation 1: the discrete law loses more than the continuous one of the same variance.
    law = gaussian(Fraction(1, 3), [1])
    assert any(law.delta(epsilon) > stated(epsilon, Fraction(9, 2)) + 1e-6 for epsilon in (0.0, 1.0, 2.0, 4.0, 6.0))


def coin(epsilon: Fraction) -> Law:
    """The law of one bit that is told right with odds exp(epsilon) : 1, the worst pure mechanism."""
    right = math.exp(epsilon) / (1 + math.exp(epsilon))
    return Law(np.array([float(epsilon), -float(epsilon)]), np.array([right, 1 - right]))


class Spent(NamedTuple):
    """What a path of measurements costs."""

    pure: Fraction = Fraction(0)
    gaussian: Fraction = Fraction(0)
    rho: Fraction = Fraction(0)


class Step(NamedTuple):
    """A measurement that an adaptive stream may choose, with its cost."""

    law: Law
    cost: Spent

    @classmethod
    def gaussian(cls, sigma: int, shift: int) -> Step:
        rho = rho_of(shift, Fraction(sigma))
        return cls(gaussian(Fraction(sigma), [shift]), Spent(Fraction(0), rho, rho))

    @classmethod
    def pure(cls, law: Law, epsilon: Fraction) -> Step:
        return cls(law, Spent(epsilon, Fraction(0), WORTH * epsilon**2))


def menu(sigma: int, shifts: Iterable[int]) -> list[Step]:
    pure = [Step.pure(coin(Fraction(tenths, 10)), Fraction(tenths, 10)) for tenths in (1, 3, 5, 9, 14, 18, 20)]
    return [*(Step.gaussian(sigma, shift) for shift in shifts), *pure]


def worst(allowed: Callable[[Spent], bool], steps: Sequence[Step], epsilon: float, length: int) -> float:
    """The exact delta of the worst stream that chooses every measurement by the log-ratio up to then."""

    def best(ratios: NDArray[np.float64], spent: Spent, left: int) -> NDArray[np.float64]:
        found = np.maximum(-np.expm1(np.minimum(epsilon - ratios, 0)), 0)
        for step in steps if left else []:
            after = Spent(*map(operator.add, spent, step.cost))
            if allowed(after):
                sums = np.add.outer(ratios, step.law.ratios)
                found = np.maximum(found, best(sums.ravel(), after, left - 1).reshape(sums.shape) @ step.law.odds)
        return found

    return float(best(np.zeros(1), Spent(), length)[0])


@pytest.mark.parametrize(("epsilon", "delta"), [(Fraction(2), Fraction(1, 100)), (Fraction(1), Fraction(1, 20))])
def test_choosing_each_measurement_by_the_last_loses_no_more_than_stated(epsilon: Fraction, delta: Fraction) -> None:
    limit = rho_from(epsilon, delta)

    def within(spent: Spent) -> bool:
        return spent.rho <= limit or (not spent.gaussian and spent.pure <= epsilon)

    for steps, length in ((menu(20, (3, 14, 17)), 2), (menu(4, (1, 2)), 3)):
        # The delta is made use of, so that the bar is not idle.
        assert 0.02 * float(delta) < worst(within, steps, float(epsilon), length) <= float(delta)


def test_trading_pure_for_gaussian_costs_in_the_light_of_releases_would_lose_more() -> None:
    # On every path by itself pure costs and what Gaussian ones convert to add up to no more than epsilon; a stream that
    # chooses between them by what came out first loses far more than delta. So theorem 17 has one unit.
    epsilon, delta = Fraction(2), Fraction(1, 100)

    def traded(spent: Spent) -> bool:
        rest = epsilon - spent.pure
        return rest >= 0 and spent.gaussian <= (rho_from(rest, delta) if rest > Fraction(1, 10) else 0)

    assert worst(traded, menu(20, (3, 17)), float(epsilon), 2) > 1.2 * float(delta)


PLANS: list[dict[str, Any]] = [
    {"sample": ops.EqualSampling(k=3)},
    {"sample": ops.EqualSampling(k=2)},
    {"sample": ops.BucketSampling(k=2)},
    {"sample": ops.BucketSampling(k=1)},
    {"sample": ops.EqualSampling(k=3), "features": [ops.Feature.total(3)], "split": (1, 1)},
    {"sample": ops.EqualSampling(k=2), "features": [ops.Feature.cuts(3, 1)], "split": (3, 1)},
]


def measured(mechanism: ops.OptStream) -> list[tuple[NDArray[np.int64], Fraction]]:
    """The rows that a period measures, and the deviation of their noise in grid steps, from the plan that draws."""
    (level,) = mechanism.levels
    w, rows = mechanism.guarantee.w, []
    for start, stop, _ in level.runs or []:
        row = np.zeros(w, dtype=np.int64)
        row[start:stop] = 1
        rows.append((row, Fraction(*level.plan.sample_scale)))
    for feature, scale in zip(mechanism.features, level.plan.feature_scales, strict=True):
        labels = np.array(feature.labels)
        rows += [((labels == cell).astype(np.int64), Fraction(*scale)) for cell in range(feature.size)]
    return rows


def exact_delta(periods: Sequence[ops.OptStream], epsilon: float) -> float:
    """The exact delta of the worst window and change, over consecutive periods."""
    w = periods[0].guarantee.w
    largest = periods[0].levels[0].plan.sensitivity
    blocks: list[tuple[NDArray[np.int64], Fraction]] = []
    for number, mechanism in enumerate(periods):
        for row, sigma in measured(mechanism):
            blocks.append((np.concatenate([np.zeros(number * w, np.int64), row]), sigma))
    seen: set[tuple[tuple[Fraction, tuple[int, ...]], ...]] = set()
    for first in range(1 - w, w * len(periods)):
        # Losses are convex in the change, so that the extremes suffice.
        for change in itertools.product((-1, 1), repeat=w):
            moved: dict[Fraction, list[int]] = {}
            for row, sigma in blocks:
                own = [sign * row[step] for step, sign in enumerate(change, first) if 0 <= step < len(row)]
                moved.setdefault(sigma, []).append(abs(int(sum(own))) * largest)
            seen.add(tuple((sigma, tuple(sorted(shifts))) for sigma, shifts in moved.items()))
    laws = (reduce(Law.beside, [gaussian(sigma, shifts) for sigma, shifts in shapes]) for shapes in seen)
    return max(law.delta(epsilon) for law in laws)


@pytest.mark.parametrize("how", PLANS)
def test_whole_plans_lose_no_more_than_their_guarantee(how: dict[str, Any]) -> None:
    # On a coarse grid deviations are a few steps, where discreteness matters most.
    guarantee = ops.Guarantee(epsilon=2, w=3, alpha=4.0, delta=0.01)
    mechanism = ops.OptStream(guarantee, bounds=(0, 64), grid=1.0, perturb=ops.GaussianNoise(), **how)
    found = exact_delta([mechanism, mechanism], 2.0)
    assert found <= 0.01
    # A guarantee with half the epsilon, as from noise that is too small for it, would be caught.
    assert exact_delta([mechanism, mechanism], 1.0) > 0.01
