"""The filter is the exact posterior of its model, learns its scales from what was measured, and never breaks."""

from __future__ import annotations

import json
from copy import deepcopy
from itertools import pairwise
from typing import TYPE_CHECKING

import hypothesis.strategies as st
import numpy as np
import numpy_filter as oracle
import pytest
from hypothesis import Phase, given, settings
from hypothesis.extra.numpy import arrays
from numpy_filter import (
    DRIFT_PERIODS,
    FALL,
    INTRADAY_PERIODS,
    KNEE,
    LEVEL_SHARE,
    SHARES,
    WEEKDAY_CURVE,
    WEEKDAY_SHARE,
    Bank,
    Geometry,
    layout_of,
)

from optstream.errors import DataError, ParameterError
from optstream.estimate.filter import Filter, Measured, revised

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from optstream.estimate.filter import Cells

    Array = NDArray[np.float64]

LEVEL = 50.0


def buckets(w: int, k: int) -> Cells:
    edges = [bucket * w // k for bucket in range(k + 1)]
    return tuple(tuple(range(low, high)) for low, high in pairwise(edges))


def dense_covariance(w: int, season: int, periods: list[int], amplitudes: Array, level: float) -> Array:
    """The covariance of all steps of some periods, written down from the description of the model alone."""
    shape, drift, intraday, white, weekday, evolution = amplitudes
    days, steps = np.repeat(periods, w), np.tile(np.arange(w), len(periods))
    lag, gap = np.abs(np.subtract.outer(days * w + steps, days * w + steps)), np.abs(np.subtract.outer(days, days))
    since = np.minimum.outer(days, days) - periods[0]

    def curve(first: int, count: int) -> Array:
        frequencies = np.arange(first, count)
        waves = np.sqrt(np.where(frequencies == 0, 1, 2)) * np.cos(np.outer(steps + 0.5, frequencies) * np.pi / w)
        falling = (1 + (frequencies / KNEE) ** 2) ** -FALL
        return np.asarray(waves * falling / falling.sum() @ waves.T)

    total = level + LEVEL_SHARE * drift * since
    if w > 1:
        total = total + shape * (1 - evolution / shape) ** (gap / 2) * curve(1, w)
    if season > 1:
        same = np.equal.outer(days % season, days % season)
        total = total + same * weekday * (1 - WEEKDAY_SHARE) ** (gap / 2) * curve(0, min(w, WEEKDAY_CURVE))
    total = total + drift * np.exp(-lag / (DRIFT_PERIODS * w)) + intraday * np.exp(-lag / (INTRADAY_PERIODS * w))
    return np.asarray(total + white * (lag == 0))


def gaussian(deviations: Array, covariance: Array, count: int | None = None) -> float:
    """The logarithm of the density of the first deviations."""
    first, part = deviations[:count], covariance[:count, :count]
    square = first @ np.linalg.solve(part, first)
    return float(-0.5 * (square + np.linalg.slogdet(part)[1] + len(first) * np.log(2 * np.pi)))


def overlapping(rng: np.random.Generator, w: int, count: int) -> Cells:
    """Steps, buckets and any other sets of steps, which may overlap as those of features do."""
    return tuple(tuple(np.flatnonzero(rng.random(w) < 0.5).tolist()) or (0,) for _ in range(count))


class Conditioned:
    """What some measured periods say of all steps, by conditioning one large Gaussian vector."""

    def __init__(self, w: int, season: int, measured: list[Measured], amplitudes: Array) -> None:
        periods = [seen.period for seen in measured]
        self.prior = dense_covariance(w, season, periods, amplitudes, LEVEL)
        rows = []
        for index, seen in enumerate(measured):
            here = np.zeros((len(seen.cells), len(periods) * w))
            for row, cell in zip(here, seen.cells, strict=True):
                row[[index * w + step for step in cell]] = 1 / len(cell)
            rows.append(here)
        self.rows = np.concatenate(rows)
        self.values = np.concatenate([seen.values for seen in measured]) - 2
        self.noise = np.diag(np.concatenate([seen.variances for seen in measured]))
        self.w = w

    def given(self, count: int) -> tuple[Array, Array, Array, Array]:
        """Means and variances of all steps given the first measurements; these and their covariance."""
        seen, values = self.rows[:count], self.values[:count]
        covariance = seen @ self.prior @ seen.T + self.noise[:count, :count]
        gain = np.linalg.solve(covariance, seen @ self.prior).T
        means = (2 + gain @ values).reshape(-1, self.w)
        return means, np.diag(self.prior - gain @ seen @ self.prior).reshape(-1, self.w), values, covariance


@pytest.mark.parametrize(("w", "season", "periods"), [(6, 3, [0, 1, 2, 3, 5, 9]), (1, 2, [4, 5, 6]), (12, 1, [-7, 7])])
def test_the_oracle_conditions_one_large_gaussian(w: int, season: int, periods: list[int]) -> None:
    rng = np.random.default_rng(4)
    table = np.array([[3.0, 1.0, 0.5, 0.1, 2.0, 0.05], [1.0, 5.0, 0.2, 0.01, 0.1, 0.5]])
    geometry = Geometry(w=w, season=season, smooth=True)
    measured = [
        Measured(period, overlapping(rng, w, size), rng.normal(2, 3, size), rng.uniform(0.01, 2, size))
        for period, size in zip(periods, rng.integers(1, w + 2, len(periods)).tolist(), strict=True)
    ]
    exact = [Conditioned(w, season, measured, amplitudes) for amplitudes in table]
    bank, count = Bank(geometry, table, (2.0, LEVEL)), 0
    for index, seen in enumerate(measured):
        bank.advance(seen.period)
        found = bank.observe(seen.period, layout_of(geometry, seen.cells), seen.values, seen.variances)
        before, count = count, count + len(seen.cells)
        for model in range(len(table)):
            means, variances, values, covariance = exact[model].given(count)
            np.testing.assert_allclose(found.means[model], means[index], rtol=1e-8, atol=1e-8)
            np.testing.assert_allclose(found.variances[model], variances[index], rtol=1e-8, atol=1e-8)
            density = gaussian(values, covariance) - gaussian(values, covariance, before)
            assert found.density[model] == pytest.approx(density, abs=1e-8)

    class Learnt(oracle.Filter):
        def ahead(self, scale: float | None = None) -> Bank:  # noqa: ARG002
            return Bank(geometry, table[:1], (2.0, LEVEL))

        def _start(self, measured: oracle.Measured) -> tuple[float, float]:  # noqa: ARG002
            return 2.0, LEVEL

    means, variances, _, _ = exact[0].given(count)
    smooth_means, smooth_variances = oracle.revised(Learnt(w), [oracle.Measured(*seen) for seen in measured])
    np.testing.assert_allclose(smooth_means, means, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(smooth_variances, variances, rtol=1e-8, atol=1e-8)


def run(estimator: Filter, truth: Array, k: int, scale: float, seed: int = 0, first: int = 0) -> tuple[Array, Array]:
    """Means and standard deviations of all periods from equal buckets with Laplace noise of the given scale."""
    rng = np.random.default_rng(seed)
    cells = buckets(truth.shape[1], k)
    results = []
    for period, values in enumerate(truth, start=first):
        noise = rng.laplace(0, scale, size=k) if scale else np.zeros(k)
        noisy = np.array([values[list(cell)].mean() for cell in cells]) + noise
        results.append(estimator.update(Measured(period, cells, noisy, np.full(k, 2 * scale**2))))
    return np.array([means for means, _ in results]), np.sqrt([variances for _, variances in results])


def daily(periods: int, w: int = 24, seed: int = 1) -> Array:
    """A stream with a level that drifts, a daily shape, a weekday part and an intraday part."""
    rng = np.random.default_rng(seed)
    hours = np.arange(w) / w * 2 * np.pi
    shape = 20 * np.sin(hours) + 8 * np.cos(2 * hours)
    weekdays = rng.normal(0, 8, size=7)[np.arange(periods) % 7]
    level = 200 + np.cumsum(rng.normal(0, 1, size=periods))
    rest = np.zeros(periods * w)
    for step in range(1, periods * w):
        rest[step] = 0.8 * rest[step - 1] + rng.normal(0, 2)
    return np.asarray((level + weekdays)[:, None] + shape + rest.reshape(periods, w))


def error(estimates: Array, truth: Array) -> float:
    return float(np.abs(estimates - truth).mean())


def test_memory_and_smoothness_pay() -> None:
    truth = daily(70)
    errors = {
        (memory, smooth): error(run(Filter(24, memory=memory, smooth=smooth), truth, 24, 40.0)[0][28:], truth[28:])
        for memory, smooth in ((True, True), (True, False), (False, True))
    }
    assert errors[True, True] < 0.3 * 40
    assert errors[True, True] < 0.8 * errors[False, True] < 0.8 * 0.6 * 40
    assert errors[True, True] < errors[True, False]


@pytest.fixture(scope="module")
def drawn() -> Array:
    """A stream that is drawn from the model, with the amplitudes that are expected of a stream."""
    covariance = dense_covariance(24, 7, list(range(80)), 900 * SHARES, 1e4)
    normal = np.random.default_rng(8).normal(size=len(covariance))
    return np.asarray((300 + np.linalg.cholesky(covariance) @ normal).reshape(80, 24))


@pytest.mark.parametrize(("k", "scale"), [(24, 3.0), (24, 20.0), (12, 10.0), (4, 40.0)])
def test_intervals_of_90_percent_cover_at_least_85_percent(drawn: Array, k: int, scale: float) -> None:
    means, deviations = run(Filter(24), drawn, k, scale)
    covered = float((np.abs(means - drawn) <= 1.645 * deviations).mean())
    # Where steps are measured there is nothing that means could hide.
    assert 0.85 <= covered <= (0.95 if k == 24 else 0.995), f"covered {covered:.3f} of 1920 values"


def test_intervals_of_a_smoother_stream_are_too_wide_rather_than_too_narrow() -> None:
    truth = daily(80)
    for k, scale in ((24, 30.0), (12, 10.0), (8, 60.0)):
        means, deviations = run(Filter(24), truth, k, scale)
        assert float((np.abs(means - truth) <= 1.645 * deviations).mean()) > 0.87


def test_what_comes_later_never_changes_an_estimate() -> None:
    truth = daily(30)
    other = truth.copy()
    other[25:] *= 7
    first, second = run(Filter(24), truth, 12, 5.0), run(Filter(24), other, 12, 5.0)
    for one, two in zip(first, second, strict=True):
        np.testing.assert_array_equal(one[:25], two[:25])


@pytest.mark.parametrize("stop", [1, 10, 30])
def test_a_restored_filter_goes_on_bit_for_bit(stop: int) -> None:
    truth = daily(34)
    whole = Filter(24)
    run(whole, truth[:stop], 12, 5.0)
    text = json.dumps(whole.state())
    again = Filter.from_state(json.loads(text))
    assert json.dumps(again.state()) == text
    for one, two in zip(
        run(whole, truth[stop:], 12, 5.0, first=stop), run(again, truth[stop:], 12, 5.0, first=stop), strict=True
    ):
        np.testing.assert_array_equal(one, two)
    assert json.dumps(again.state()) == json.dumps(whole.state())


def test_the_largest_state_is_small() -> None:
    estimator = Filter(288)
    run(estimator, daily(4, w=288), 144, 5.0)
    assert len(json.dumps(estimator.state())) < 500_000


@pytest.mark.parametrize("scale", [0.5, 10.0])
@pytest.mark.parametrize("start", [12, 45])
def test_a_level_break_is_forgotten_within_five_periods(scale: float, start: int) -> None:
    truth = daily(70)
    broken = truth.copy()
    broken[start:] += 10 * truth.std()
    calm, _ = run(Filter(24), truth, 12, scale)
    means, _ = run(Filter(24), broken, 12, scale)
    usual = error(calm[start + 5 :], truth[start + 5 :])
    assert error(means[start + 5 :], broken[start + 5 :]) < 1.25 * usual


def test_a_break_of_a_constant_stream_is_forgotten_too() -> None:
    truth = np.full((80, 8), 100.0)
    truth[60:] = 160.0
    means, _ = run(Filter(8), truth, 8, 4.0)
    assert error(means[50:60], truth[50:60]) < 1.0
    assert error(means[64:], truth[64:]) < 2.0


def test_a_shape_that_never_stands_out_in_one_period_is_learnt_within_a_week() -> None:
    hours = np.arange(24) / 24 * 2 * np.pi
    truth = np.vstack([np.zeros((45, 24)), np.tile(120 * np.sin(hours), (15, 1))])
    for seed in range(3):
        estimator = Filter(24)
        # Three means of eight hours, with noise of a third of what they deviate by.
        means, deviations = run(estimator, truth, 3, 30.0, seed=seed)
        assert estimator.renewed is not None
        assert error(means[52:], truth[52:]) < 45
        assert (np.abs(means - truth) <= 1.645 * deviations)[52:].mean() > 0.8


@pytest.mark.parametrize("scale", [5.0, 60.0])
def test_a_stream_that_stays_what_it_is_is_not_learnt_anew(drawn: Array, scale: float) -> None:
    for truth in (drawn, daily(80)):
        estimator = Filter(24)
        run(estimator, truth, 12, scale)
        assert estimator.renewed is None
    assert Filter.from_state(estimator.state()).renewed is None


def test_periods_left_out_are_predicted_through() -> None:
    truth = daily(80)
    estimator = Filter(24)
    run(estimator, truth[:50], 12, 5.0)
    nothing = np.array([1e12])
    _, before = estimator.update(Measured(50, buckets(24, 1), truth[50].mean(keepdims=True), nothing))
    later = Filter.from_state(estimator.state())
    means, after = later.update(Measured(77, buckets(24, 1), truth[77].mean(keepdims=True), nothing))
    assert (after > before).mean() > 0.9
    assert error(means, truth[77]) < 3 * truth[:, 0].std()
    again, _ = later.update(Measured(78, buckets(24, 24), truth[78], np.full(24, 1e-4)))
    assert error(again, truth[78]) < 0.1


def test_without_noise_the_data_comes_back() -> None:
    truth = daily(30)
    means, deviations = run(Filter(24), truth, 24, 0.0)
    np.testing.assert_allclose(means, truth, rtol=1e-6)
    assert (deviations < 1e-2).all()


def test_noise_without_signal_is_shrunk_to_the_learnt_mean() -> None:
    truth = np.full((120, 24), 50.0)
    means, _ = run(Filter(24), truth, 24, 500.0)
    assert error(means[60:], truth[60:]) < 0.08 * 500


def test_a_season_that_is_not_there_costs_little() -> None:
    rng = np.random.default_rng(5)
    truth = 100 + np.cumsum(rng.normal(0, 1, size=90 * 12)).reshape(90, 12)
    seasonal = error(run(Filter(12), truth, 6, 4.0)[0], truth)
    plain = error(run(Filter(12, season=1), truth, 6, 4.0)[0], truth)
    forgetful = error(run(Filter(12, memory=False), truth, 6, 4.0)[0], truth)
    assert seasonal < 1.05 * plain
    assert seasonal < forgetful


def test_a_trend_is_followed() -> None:
    truth = np.linspace(0, 3000, 100 * 12).reshape(100, 12)
    means, _ = run(Filter(12), truth, 12, 20.0)
    assert error(means[30:], truth[30:]) < 15


@pytest.mark.parametrize("unit", [1e-6, 1e9])
def test_units_do_not_matter(unit: float) -> None:
    truth = daily(40)
    one, _ = run(Filter(24), truth, 12, 5.0)
    other, _ = run(Filter(24), truth * unit, 12, 5.0 * unit)
    np.testing.assert_allclose(other / unit, one, rtol=1e-3)


def test_revised_history_is_closer_to_the_truth() -> None:
    truth, rng = daily(60), np.random.default_rng(2)
    cells, estimator, understood, means = buckets(24, 6), Filter(24), [], []
    for period, values in enumerate(truth):
        noisy = np.array([values[list(cell)].mean() for cell in cells]) + rng.laplace(0, 20.0, 6)
        means.append(estimator.update(Measured(period, cells, noisy, np.full(6, 800.0)))[0])
        assert estimator.understood is not None
        understood.append(estimator.understood)
    again, variances = revised(estimator, understood)
    assert error(again, truth) < 0.9 * error(np.array(means), truth)
    assert 0.8 < float((np.abs(again - truth) <= 1.645 * np.sqrt(variances)).mean()) < 0.99


def test_the_expected_error_is_near_the_true_one() -> None:
    truth = daily(180)
    learnt = Filter(24)
    run(learnt, truth[:80], 24, 2.0)
    for k, scale in ((24, 5.0), (24, 40.0), (12, 20.0)):
        means, _ = run(deepcopy(learnt), truth[80:], k, scale, seed=3, first=80)
        expected = learnt.expected_error(buckets(24, k), np.full(k, 2 * scale**2))
        assert expected == pytest.approx(error(means, truth[80:]), rel=0.3)
        assert expected < learnt.expected_error(buckets(24, k), np.full(k, 2 * scale**2), memory=False)


def test_misuse_is_refused_and_changes_nothing() -> None:
    estimator = Filter(4)
    with pytest.raises(ParameterError, match="scale is None"):
        estimator.expected_error(((0,),), np.ones(1))
    estimator.update(Measured(3, ((0,),), np.ones(1), np.ones(1)))
    before = json.dumps(estimator.state())
    with pytest.raises(ParameterError, match="must be later than 3"):
        estimator.update(Measured(3, ((0,),), np.ones(1), np.ones(1)))
    for value, variance in ((np.nan, 1.0), (np.inf, 1.0), (1e200, 1.0), (1.0, np.inf), (1.0, np.nan)):
        with pytest.raises(DataError, match="measured values hold"):
            estimator.update(Measured(4, ((0,),), np.array([value]), np.array([variance])))
    assert json.dumps(estimator.state()) == before
    with pytest.raises(ParameterError, match="format"):
        Filter.from_state({"format": 0})


extreme = st.one_of(
    st.just(0.0), st.floats(-1e9, 1e9), st.floats(-1e-6, 1e-6), st.sampled_from([1e9, -1e9, 1e-6, 1e60, -1e60])
)
variance = st.one_of(st.just(0.0), st.floats(0, 1e12), st.sampled_from([1e-12, 1e18, 1e100]))


@given(data=st.data(), w=st.integers(1, 6), season=st.integers(1, 2), memory=st.booleans(), smooth=st.booleans())
@settings(derandomize=True, max_examples=40, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_nothing_that_is_finite_breaks_it(data: st.DataObject, w: int, season: int, memory: bool, smooth: bool) -> None:
    estimator = Filter(w, season=season, memory=memory, smooth=smooth)
    period = 0
    for _ in range(data.draw(st.sampled_from([1, 4, 9]))):
        cells = buckets(w, data.draw(st.integers(1, w)))
        values = data.draw(arrays(np.float64, len(cells), elements=extreme))
        spread = data.draw(arrays(np.float64, len(cells), elements=variance))
        means, variances = estimator.update(Measured(period, cells, values, spread))
        assert means.shape == variances.shape == (w,)
        assert np.isfinite(means).all()
        assert np.isfinite(variances).all()
        assert (variances >= 0).all()
        period += data.draw(st.sampled_from([1, 1, 1, 2, 40]))
