"""Gaussian noise: its price by brute force and exact losses, calibration to (epsilon, delta), and what is refused."""

from __future__ import annotations

import itertools
import math
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from cost_examples import chosen, cost_of_change, costs, steps, touches
from hypothesis import given, settings
from scipy import stats

import optstream as ops
from optstream import noise
from optstream.mechanism import description, plan
from optstream.mechanism.candidates import following
from optstream.privacy.accounting import (
    ChosenCosts,
    Cost,
    SquareCosts,
    from_data,
    held,
    largest_factor,
    moved,
    rho_spent,
    room_after,
    scaled,
    to_data,
    window_costs,
    window_parts,
    worst_window,
)
from optstream.privacy.gaussian import HIDDEN, WORTH, delta_of, epsilon_from, ratio_of, rho_from, rho_of

DELTA = Fraction(1, 10**6)
squares = st.builds(
    SquareCosts, st.integers(-5, 5), st.lists(st.integers(0, 3), min_size=1, max_size=8).map(tuple), costs
)
gaussian_chosen = chosen.map(lambda cost: ChosenCosts(cost.start, cost.stop, cost.free, cost.cost, gaussian=True))


def is_gaussian(cost: Cost) -> bool:
    return isinstance(cost, SquareCosts) or (isinstance(cost, ChosenCosts) and cost.gaussian)


def worth(window: set[int], cost: Cost) -> Fraction:
    """What a pure cost is worth in rho beside Gaussian noise, by definition: its square, for each chosen step."""
    paid = cost_of_change(window, cost)
    return WORTH * paid * (cost.cost if isinstance(cost, ChosenCosts) else paid)


def by_window(all_costs: list[Cost], w: int) -> dict[int, tuple[Fraction, Fraction, Fraction]]:
    """The pure and the Gaussian costs of every window and both in rho, by definition."""
    zero, result = Fraction(0), {}
    for first in range(-20, 36):
        window = set(range(first, first + w))
        pure = [cost for cost in all_costs if not is_gaussian(cost)]
        noise = sum((cost_of_change(window, cost) for cost in all_costs if is_gaussian(cost)), zero)
        paid = sum((cost_of_change(window, cost) for cost in pure), zero)
        result[first] = paid, noise, noise + sum((worth(window, cost) for cost in pure), zero)
    return result


def price_of(window: tuple[Fraction, Fraction, Fraction], delta: Fraction = DELTA) -> Fraction:
    """The epsilon of a window, by definition."""
    pure, noise, rho = window
    return epsilon_from(rho, delta) if noise else pure


@settings(max_examples=150, deadline=None)
@given(st.lists(steps | touches | chosen | squares | gaussian_chosen, max_size=4), st.integers(1, 7))
def test_pure_and_gaussian_costs_are_those_of_brute_force(all_costs: list[Cost], w: int) -> None:
    expected = by_window(all_costs, w)
    parts = window_parts(all_costs, w)
    found = dict(enumerate(parts.windows, parts.begin))
    assert {first: found.get(first, (0, 0, 0)) for first in expected} == expected
    aligned = ops.Guarantee(epsilon=1, w=w, delta=DELTA, neighbours="aligned")
    assert rho_spent(all_costs, aligned) == max(rho for _, _, rho in expected.values())


@settings(max_examples=15, deadline=None)
@given(st.lists(touches | squares, min_size=1, max_size=3), st.integers(1, 5))
def test_the_worst_window_is_that_after_conversion(all_costs: list[Cost], w: int) -> None:
    small = [scaled(cost, Fraction(1, 50)) for cost in all_costs]
    expected = max(map(price_of, by_window(small, w).values()))
    assert worst_window(small, w, DELTA) == expected
    assert max(window_costs(small, w, DELTA)[1]) == expected


@settings(max_examples=60, deadline=None)
@given(*[st.lists(steps | touches | chosen | squares | gaussian_chosen, min_size=1, max_size=2)] * 2)
def test_no_window_over_two_periods_costs_more_than_epsilon(one: list[Cost], other: list[Cost]) -> None:
    w, guarantee = 18, ops.Guarantee(epsilon=1, w=18, delta=DELTA)
    before, new = ([scaled(moved(cost, 5), Fraction(1, 20)) for cost in part] for part in (one, other))
    factor = room_after(before, new, guarantee)
    assert factor <= 1
    if factor > 0:
        both = [*before, *(moved(scaled(cost, factor), w) for cost in new)]
        beside = [price_of(window) for first, window in by_window(both, w).items() if 0 < first < w]
        assert max(beside) <= max(Fraction(1), worst_window(before, w, DELTA))


@settings(max_examples=200, deadline=None)
@given(squares, st.sets(st.integers(-4, 8), max_size=4), st.integers(1, 6))
def test_held_steps_move_their_weight_inside_the_square(cost: SquareCosts, repeated: set[int], w: int) -> None:
    sources: dict[int, int] = {}
    for step in sorted(repeated):
        sources[step] = sources.get(step - 1, step - 1)
    # By definition: a window changes its own steps and all that hold one of them, and those that hold another do not.
    expected = Fraction(0)
    for first in range(-30, 30):
        window = range(first, first + w)
        changed = {step for step in range(-20, 30) if sources.get(step, step) in window}
        expected = max(expected, cost_of_change(changed, cost))
    aligned = ops.Guarantee(epsilon=1, w=w, neighbours="aligned")
    assert rho_spent(held([cost], sources), aligned) == expected


@given(st.lists(steps | touches | chosen | squares | gaussian_chosen, max_size=4), st.integers(-50, 50))
def test_costs_are_data_and_move(all_costs: list[Cost], by: int) -> None:
    assert from_data(to_data(all_costs)) == tuple(all_costs)
    assert [moved(moved(cost, by), -by) for cost in all_costs] == all_costs


@pytest.mark.parametrize("rho", [Fraction(1, 10**6), Fraction(1, 37), Fraction(1, 2), Fraction(5)])
@pytest.mark.parametrize("epsilon", [Fraction(1, 100), Fraction(1), Fraction(7)])
def test_delta_is_that_of_the_normal_law(epsilon: Fraction, rho: Fraction) -> None:
    m, e = math.sqrt(2 * rho), float(epsilon)
    expected = stats.norm.cdf(m / 2 - e / m) - math.exp(e) * stats.norm.cdf(-m / 2 - e / m)
    assert float(delta_of(epsilon, rho)) == pytest.approx(expected, rel=1e-6, abs=1e-13)


@pytest.mark.parametrize(
    ("sigma", "moved_by"), [(Fraction(4), 1), (Fraction(9, 2), 3), (Fraction(10), 14), (Fraction(40), 9)]
)
def test_exact_losses_of_discrete_noise_stay_below_their_price_and_near_it(sigma: Fraction, moved_by: int) -> None:
    z = np.arange(-1000, 1001)
    p = np.exp(-0.5 * (z / float(sigma)) ** 2)
    p /= p.sum()
    q = np.roll(p, moved_by)
    one, two = np.multiply.outer(p, p).ravel(), np.multiply.outer(q, q).ravel()
    for epsilon in (0.0, 0.3, 1.0, 3.0):
        for first, second, count in ((p, q, 1), (one, two, 2)):
            exact = float(np.maximum(first - math.exp(epsilon) * second, 0).sum())
            price = float(delta_of(Fraction(repr(epsilon)), count * rho_of(moved_by, sigma)))
            assert exact <= price + 1e-12
            # The price of continuous noise of the whole variance would be exact up to discreteness.
            tight = float(delta_of(Fraction(repr(epsilon)), count * Fraction(moved_by) ** 2 / (2 * sigma**2)))
            assert exact > 0.5 * tight - 1e-9


def test_the_sum_over_integers_hardly_depends_on_the_centre() -> None:
    # What theorem 15 needs: the normaliser of the discrete law of variance 8, centred anywhere, varies by 10^-67.
    with localcontext(Context(prec=110)):
        sums = [
            sum((-((z - centre) ** 2) / (2 * HIDDEN)).exp() for z in map(Decimal, range(-100, 101)))
            for centre in (Decimal(0), Decimal("0.125"), Decimal("0.25"), Decimal("0.5"))
        ]
        assert (max(sums) - min(sums)) / min(sums) < Decimal("1e-67")
        # With less hidden variance it would not do.
        short = [
            sum((-((z - c) ** 2) / 14).exp() for z in map(Decimal, range(-100, 101)))
            for c in map(Decimal, ("0", "0.5"))
        ]
        assert (max(short) - min(short)) / min(short) > Decimal("1e-67")


@settings(max_examples=25, deadline=None)
@given(st.fractions(Fraction(1, 1000), 20, max_denominator=1000), st.sampled_from([3, 6, 9, 20]))
def test_conversions_invert_each_other_on_the_safe_side(epsilon: Fraction, digits: int) -> None:
    delta = Fraction(1, 10**digits)
    rho = rho_from(epsilon, delta)
    back = epsilon_from(rho, delta)
    assert epsilon - Fraction(1, 10**15) <= back <= epsilon
    assert delta_of(epsilon, rho) <= delta < delta_of(epsilon, rho * (1 + Fraction(1, 10**12)))
    ratio = ratio_of(1024, rho)
    assert rho * (1 - Fraction(1, 10**9)) <= rho_of(1024, 1024 / ratio) <= rho


@pytest.mark.parametrize(("rho", "digits"), [("2.38", 30), ("4.72e-6", 29), ("1e-18", 2), ("20", 30), ("1e-9", 30)])
def test_the_epsilon_of_any_rho_is_found(rho: str, digits: int) -> None:
    delta, place = Fraction(1, 10**digits), Fraction(1, 10**18)
    epsilon = epsilon_from(Fraction(rho), delta)
    assert delta_of(epsilon, Fraction(rho)) <= delta
    assert epsilon == place or delta_of(epsilon - 2 * place, Fraction(rho)) > delta * (1 - Fraction(1, 10**15))


@pytest.mark.parametrize(
    ("w", "printed"),
    [(48, (201, 23.4, 6.6)), (168, (376, 43.7, 12.3)), (336, (531, 61.8, 17.5)), (1440, (1099, 128, 36))],
)
def test_the_mean_noise_of_a_step_is_that_of_the_table(w: int, printed: tuple[float, ...]) -> None:
    for epsilon, expected in zip(("0.1", "1", "4"), printed, strict=True):
        sigma = math.sqrt(w / (2 * float(rho_from(Fraction(epsilon), DELTA))))
        assert sigma * math.sqrt(2 / math.pi) == pytest.approx(expected, rel=0.006)


LAPLACE, CUBE = ops.LaplaceNoise(), ops.CubeNoise()
TREE = ops.Hierarchy.nested({"all": {"a": ["b", "c"], "d": ["e"]}})
PLANS: list[dict[str, Any]] = [
    {"sample": ops.EqualSampling(k=8)},
    {"sample": ops.EqualSampling(k=3)},
    {"sample": ops.BucketSampling(k=3)},
    {"sample": ops.BucketSampling(cuts=(1, 6))},
    {"sample": ops.L1Sampling(k=4, threshold=10.0), "split": (1, 3)},
    {"sample": ops.EqualSampling(k=4), "features": [ops.Feature.total(8), ops.Feature.cuts(8, 3)], "split": (3, 1)},
    {"sample": ops.BucketSampling(k=4), "hierarchy": TREE},
    {"sample": ops.L1Sampling(k=4, threshold=10.0), "hierarchy": TREE, "level_split": (1, 2, 3)},
]


def made(guarantee: ops.Guarantee | None = None, **how: Any) -> ops.OptStream:
    guarantee = guarantee or ops.Guarantee(epsilon=1, w=8, delta=1e-6)
    return ops.OptStream(guarantee, bounds=(0, 100), perturb=ops.GaussianNoise(), **how)


@pytest.mark.parametrize("how", PLANS)
@pytest.mark.parametrize("neighbours", ["sliding", "aligned"])
def test_a_release_costs_epsilon_and_no_more(how: dict[str, Any], neighbours: Any) -> None:
    guarantee = ops.Guarantee(epsilon=0.7, w=8, alpha=3.0, delta=1e-7, neighbours=neighbours)
    mechanism = made(guarantee, **how)
    cost = mechanism.statement.epsilon
    assert guarantee.epsilon * (1 - Fraction(1, 10**6)) <= cost <= guarantee.epsilon
    # The same from the noise that is drawn, by definition: every window over three periods.
    periods = [
        moved(part, by * 8) for part in mechanism.costs for by in ((0,) if neighbours == "aligned" else (0, 1, 2))
    ]
    assert max(price_of(window, guarantee.delta) for window in set(by_window(periods, 8).values())) == cost
    assert "delta" in str(mechanism.statement)
    assert plan.build(description.describe(mechanism)) == mechanism


@pytest.mark.parametrize("how", PLANS)
def test_noise_has_the_stated_deviation(how: dict[str, Any]) -> None:
    mechanism = made(**how)
    level = mechanism.levels[-1]
    sigma = Fraction(*level.plan.sample_scale)
    true = level.true_costs()["perturb"][0]
    assert isinstance(true, (SquareCosts, ChosenCosts))
    assert true.cost == rho_of(level.plan.sensitivity, sigma)
    lengths = [stop - start for start, stop, _ in level.runs or [(0, 1, 1)]]
    assert level.variances[0] == pytest.approx((level.scale / lengths[0] / mechanism.guarantee.alpha) ** 2, rel=1e-6)


def test_released_values_have_the_noise_and_its_intervals() -> None:
    guarantee = ops.Guarantee(epsilon=1, w=4, delta=1e-6)
    for sample in (ops.EqualSampling(k=2), ops.BucketSampling(k=2)):
        release = made(guarantee, sample=sample).release(np.full(4 * 20_000, 50.0))
        low, high = release.interval(0.9)
        covered = ((low <= 50) & (high >= 50)).mean(axis=0)
        # Six standard deviations of a mean of 20,000.
        assert np.all(np.abs(covered - 0.9) < 6 * math.sqrt(0.09 / 20_000))
        seen = release.measured()[0]
        assert np.asarray(release.values).reshape(-1, 4)[:, 0].std() == pytest.approx(
            math.sqrt(seen.variances[0]), rel=0.03
        )


def test_arrays_have_the_noise_that_a_window_needs() -> None:
    values = noise.gaussian(np.zeros(100_000), sensitivity=1.0, epsilon=1, delta=1e-6, changes=48, bounds=(0, 1))
    expected = math.sqrt(48 / (2 * float(rho_from(Fraction(1), DELTA))))
    assert values.std() == pytest.approx(expected, rel=0.02)
    assert np.all(values % noise.default_grid(1.0) == 0)
    with pytest.raises(ops.ParameterError, match="changes is 0"):
        noise.gaussian(np.zeros(2), sensitivity=1.0, epsilon=1, delta=1e-6, changes=0, bounds=(0, 1))
    with pytest.raises(ops.ParameterError, match="delta"):
        noise.gaussian(np.zeros(2), sensitivity=1.0, epsilon=1, delta=1, bounds=(0, 1))


def test_every_window_over_a_change_of_plan_costs_at_most_epsilon() -> None:
    guarantee = ops.Guarantee(epsilon=1, w=8, delta=1e-6)
    fixed = [made(guarantee, **how) for how in PLANS[:5]]
    pure = [ops.OptStream(guarantee, bounds=(0, 100), perturb=noise, **PLANS[0]) for noise in (LAPLACE, CUBE)]
    for before, new in itertools.product(fixed + pure, fixed + pure):
        factor = room_after(before.costs, new.costs, guarantee)
        assert factor <= 1
        if factor > 0:
            after = [moved(scaled(cost, factor), 8) for cost in new.costs]
            later = [moved(cost, 16) for cost in new.costs]
            worst = max(map(price_of, by_window([*before.costs, *after, *later], 8).values()))
            assert worst <= guarantee.epsilon
    # Pure noise fills a window that Gaussian noise would have to share.
    assert room_after(pure[0].costs, fixed[0].costs, guarantee) <= 0
    # Whole buckets and steps that cost the same on every step change freely.
    assert room_after(fixed[0].costs, fixed[0].costs, guarantee) == 1
    assert largest_factor(fixed[0].costs, fixed[0].costs, 8) == 1


def test_tuning_takes_gaussian_noise_with_a_delta_only_and_keeps_to_its_kind() -> None:
    bounds, delta = (0, 20_000), ops.Guarantee(epsilon=1, w=24, delta=1e-6)
    found = ops.tune(delta, bounds=bounds)
    assert isinstance(found.mechanism.perturb, ops.GaussianNoise)
    assert {type(row.perturb) for row in found.table} == {ops.LaplaceNoise, ops.CubeNoise, ops.GaussianNoise}
    pure = ops.tune(ops.Guarantee(epsilon=1, w=24), bounds=bounds)
    assert all(not isinstance(row.perturb, ops.GaussianNoise) for row in pure.table)
    assert found.expected_error < pure.expected_error
    mechanism = ops.OptStream.auto(delta, bounds=bounds)
    release = mechanism.release(np.random.default_rng(1).uniform(4000, 6000, 24 * 8))
    memory = mechanism.remembered(release.state["memory"])
    assert isinstance(following(mechanism, memory).perturb, ops.GaussianNoise)


def test_without_a_delta_it_is_refused() -> None:
    with pytest.raises(ops.ParameterError, match="delta is 0"):
        made(ops.Guarantee(epsilon=1, w=8), sample=ops.EqualSampling(k=8))
    for wrong in (-1e-6, 0.5, 1e-40, float("nan")):
        with pytest.raises(ops.ParameterError, match="delta is"):
            ops.Guarantee(epsilon=1, w=8, delta=wrong)
    with pytest.raises(ops.ParameterTypeError, match="delta is of type str"):
        ops.Guarantee(epsilon=1, w=8, delta="1e-6")  # type: ignore[arg-type]
    with pytest.raises(ops.ParameterError, match="epsilon is 200"):
        ops.Guarantee(epsilon=200, w=8, delta=1e-6)
    with pytest.raises(ops.ParameterError, match=r"sigma is .* finer grid"):
        rho_of(1, Fraction(3))


def test_a_pure_mechanism_costs_the_same_with_a_delta() -> None:
    for noise_kind in (ops.LaplaceNoise(), ops.CubeNoise()):
        mechanism = ops.OptStream(
            ops.Guarantee(epsilon=1, w=8, delta=1e-6), sample=ops.EqualSampling(k=8), bounds=(0, 9), perturb=noise_kind
        )
        assert mechanism.statement.epsilon == 1
