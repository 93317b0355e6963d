"""The baselines: one suite over all of them and over OptStream, and the accounting of each by brute force."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import polars as pl
import pytest
from distributions import assert_law, assert_rejected, edges_of_bins, laplace_below, p_value
from hypothesis import given, settings

import optstream as ops
from optstream import _core
from optstream.audit import Pair, audit, window_pairs
from optstream.baselines import (
    BinaryTree,
    BudgetAbsorption,
    BudgetDistribution,
    Fast,
    Fourier,
    Laplace,
    PeGaSus,
    RescueDP,
    Sample,
)
from optstream.baselines.exact import noisy, noisy_all
from optstream.baselines.fourier import _bounded_changes, _largest_changes
from optstream.baselines.kalman import Kalman
from optstream.baselines.pegasus import multiplied_deviation
from optstream.baselines.republication import RepublicationSteps
from optstream.baselines.window_budget import WindowBudget
from optstream.mechanism.state import sealed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

W = 12
BOUNDS = (0.0, 1000.0)
PERIODS = 4

ONLINE: dict[str, Callable[..., Any]] = {
    "laplace": lambda g, **o: Laplace(g, bounds=BOUNDS, **o),
    "sample": lambda g, **o: Sample(g, k=3, bounds=BOUNDS, **o),
    "sample one": lambda g, **o: Sample(g, bounds=BOUNDS, **o),
    "pegasus": lambda g, **o: PeGaSus(g, bounds=BOUNDS, **o),
    "pegasus mean": lambda g, **o: PeGaSus(g, smooth="mean", bounds=BOUNDS, **o),
    "distribution": lambda g, **o: BudgetDistribution(g, bounds=BOUNDS, **o),
    "absorption": lambda g, **o: BudgetAbsorption(g, bounds=BOUNDS, **o),
    "rescue": lambda g, **o: RescueDP(g, bounds=BOUNDS, **o),
    "fast": lambda g, **o: Fast(g, bounds=BOUNDS, **o),
    "tree": lambda g, **o: BinaryTree(g, horizon=100 * W, bounds=BOUNDS, **o),
}
WHOLE: dict[str, Callable[..., Any]] = {
    "fourier": lambda g, **o: Fourier(g, k=3, bounds=BOUNDS, **o),
    "equal": lambda g, **o: ops.OptStream(g, sample=ops.EqualSampling(k=4), bounds=BOUNDS, **o),
    "l1": lambda g, **o: ops.OptStream(g, sample=ops.L1Sampling(k=4, threshold=50.0), bounds=BOUNDS, **o),
    "features": lambda g, **o: ops.OptStream(
        g, sample=ops.EqualSampling(k=4), features=[ops.Feature.total(g.w)], bounds=BOUNDS, **o
    ),
    "l1 with features": lambda g, **o: ops.OptStream(
        g,
        sample=ops.L1Sampling(k=4, threshold=50.0),
        features=[ops.Feature.cuts(g.w, 5), ops.Feature.cuts(g.w, 7)],
        bounds=BOUNDS,
        **o,
    ),
}
SOUND_ONLY: dict[str, Callable[..., Any]] = {
    "cube": lambda g, **o: ops.OptStream(
        g, sample=ops.EqualSampling(k=g.w), perturb=ops.CubeNoise(), bounds=BOUNDS, **o
    ),
    "l1 with cubes": lambda g, **o: ops.OptStream(
        g, sample=ops.L1Sampling(k=4, threshold=50.0), perturb=ops.CubeNoise(), bounds=BOUNDS, **o
    ),
    "estimate with memory": lambda g, **o: ops.OptStream(
        g, sample=ops.BucketSampling(k=4), reconstruct=ops.Estimate(season=1), bounds=BOUNDS, **o
    ),
    "estimate without memory": lambda g, **o: ops.OptStream(
        g,
        sample=ops.EqualSampling(k=g.w),
        perturb=ops.CubeNoise(),
        reconstruct=ops.Estimate(memory=False),
        bounds=BOUNDS,
        **o,
    ),
    "buckets": lambda g, **o: ops.OptStream(g, sample=ops.BucketSampling(k=3), bounds=BOUNDS, **o),
}
ALL = ONLINE | WHOLE | SOUND_ONLY
BASELINES = ONLINE | {"fourier": WHOLE["fourier"]}
PAPER = ONLINE | WHOLE

every = pytest.mark.parametrize("make", ALL.values(), ids=ALL.keys())
baseline = pytest.mark.parametrize("make", BASELINES.values(), ids=BASELINES.keys())
online = pytest.mark.parametrize("make", ONLINE.values(), ids=ONLINE.keys())


def guarantee(epsilon: float = 1, **options: Any) -> ops.Guarantee:
    return ops.Guarantee(epsilon=epsilon, w=options.pop("w", W), **options)


def wave(periods: int = PERIODS) -> NDArray[np.float64]:
    return np.asarray(500 + 200 * np.sin(np.arange(periods * W) / W * 2 * np.pi))


class TestEveryMechanism:
    @every
    def test_values_have_the_form_of_the_data(self, make: Any) -> None:
        mechanism, x = make(guarantee()), wave()
        flat = mechanism.release(x).values
        assert flat.shape == x.shape
        assert np.isfinite(flat).all()
        assert mechanism.release(x.reshape(-1, W)).values.shape == (PERIODS, W)
        index = pd.date_range("2026-01-01", periods=x.size, freq="30min")
        series = mechanism.release(pd.Series(x, index=index, name="load")).values
        assert isinstance(series, pd.Series)
        assert (series.index == index).all()
        assert isinstance(mechanism.release(pl.Series("load", x)).values, pl.Series)
        assert mechanism.release(x.astype(int)).values.dtype == np.float64

    @every
    @pytest.mark.parametrize(
        ("spoil", "message"),
        [
            (lambda x: np.where(np.arange(x.size) == 7, np.nan, x), "NaN|finite"),
            (lambda x: np.where(np.arange(x.size) == 7, np.inf, x), "inf|finite"),
            (lambda x: x[:-1], "multiple of w"),
            (lambda x: x[:0], "multiple of w"),
            (lambda x: x.reshape(-1, W)[:, :-1], "columns"),
        ],
        ids=["nan", "inf", "short", "empty", "columns"],
    )
    def test_bad_data_is_refused_before_anything_is_drawn(
        self, make: Any, spoil: Any, message: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mechanism = make(guarantee())
        monkeypatch.setattr(_core, "laplace", _not_to_be_called)
        with pytest.raises(ops.DataError, match=message):
            mechanism.release(spoil(wave()))

    @pytest.mark.parametrize("w", [1, 2, 3])
    @pytest.mark.parametrize("neighbours", ["sliding", "aligned"])
    @pytest.mark.parametrize(
        "kind", [Laplace, Sample, Fourier, PeGaSus, BudgetDistribution, BudgetAbsorption, RescueDP, Fast, BinaryTree]
    )
    def test_the_shortest_windows_work(self, kind: Any, neighbours: Any, w: int) -> None:
        more: dict[str, Any] = {"k": 1} if kind is Fourier else {"horizon": 60} if kind is BinaryTree else {}
        mechanism = kind(guarantee(w=w, neighbours=neighbours), bounds=BOUNDS, **more)
        assert mechanism.statement.epsilon == 1
        assert np.isfinite(mechanism.release(np.full(20 * w, 500.0)).values).all()

    @given(
        epsilon=st.fractions(Fraction(1, 1000), 100, max_denominator=10**6) | st.floats(0.001, 100),
        alpha=st.floats(0.001, 1000),
        w=st.integers(1, 20),
        low=st.floats(-1000, 1000),
        name=st.sampled_from(sorted(BASELINES)),
    )
    @settings(max_examples=150, deadline=None)
    def test_no_parameters_make_a_sound_release_cost_more(
        self, epsilon: float, alpha: float, w: int, low: float, name: str
    ) -> None:
        kinds: dict[str, Any] = {
            "sample": lambda g, **o: Sample(g, k=min(3, w), **o),
            "fourier": lambda g, **o: Fourier(g, k=w // 2 + 1, **o),
            "tree": lambda g, **o: BinaryTree(g, horizon=2 * w, **o),
            "rescue": RescueDP,
            "fast": Fast,
            "laplace": Laplace,
            "pegasus": PeGaSus,
            "distribution": BudgetDistribution,
            "absorption": BudgetAbsorption,
        }
        asked = guarantee(epsilon, w=w, alpha=alpha)
        mechanism = kinds[name.split(maxsplit=1)[0]](asked, bounds=(low, low + 1000))
        assert asked.epsilon * (1 - Fraction(1, 2**40)) <= mechanism.statement.epsilon <= asked.epsilon
        assert np.isfinite(mechanism.release(np.linspace(low - 10, low + 1010, 2 * w)).values).all()

    @every
    @pytest.mark.parametrize("neighbours", ["sliding", "aligned"])
    def test_the_statement_needs_no_data_and_keeps_to_epsilon(self, make: Any, neighbours: Any) -> None:
        statement = make(guarantee(0.5, neighbours=neighbours, alpha=10)).statement
        assert Fraction(1, 2) * (1 - Fraction(1, 2**40)) <= statement.epsilon <= Fraction(1, 2)
        content = json.loads(statement.to_json())
        assert content["epsilon_requested"] == "1/2"
        assert content["neighbours"] == neighbours
        assert content["stages"]
        assert sum(Fraction(stage["epsilon"]) for stage in content["stages"]) >= statement.epsilon
        for part in ("up to 10 per step", "grid", "clamped", *(stage.does for stage in statement.stages)):
            assert part in str(statement)

    @every
    def test_a_mechanism_is_immutable_comparable_and_can_be_pickled(self, make: Any) -> None:
        mechanism = make(guarantee())
        with pytest.raises(FrozenInstanceError):
            mechanism.bounds = (0, 1)
        restored = pickle.loads(pickle.dumps(mechanism))
        assert restored == mechanism == make(guarantee())
        assert hash(restored) == hash(mechanism)
        assert restored != make(guarantee(2))
        assert restored.statement == mechanism.statement
        assert restored.release(wave()).values.shape == (PERIODS * W,)

    @every
    def test_a_release_is_immutable_shows_no_values_and_can_be_pickled(self, make: Any) -> None:
        release = make(guarantee()).release(wave())
        with pytest.raises(FrozenInstanceError):
            release.values = None
        assert "epsilon=1" in repr(release)
        assert "[" not in repr(release)
        restored = pickle.loads(pickle.dumps(release))
        assert (restored.values == release.values).all()
        assert restored.statement == release.statement

    @every
    def test_two_releases_of_the_same_data_differ(self, make: Any) -> None:
        mechanism = make(guarantee())
        assert (mechanism.release(wave()).values != mechanism.release(wave()).values).any()

    @every
    def test_values_are_clamped_to_the_bounds(self, make: Any) -> None:
        """With hardly any noise, what lies outside the bounds is released as the bound."""
        mechanism = make(guarantee(1000))
        assert np.abs(mechanism.release(np.full(W, 1e9)).values / _expected(mechanism, W, 1000.0) - 1).max() < 0.01

    @pytest.mark.parametrize("make", PAPER.values(), ids=PAPER.keys())
    def test_the_printed_calibration_states_its_true_price(self, make: Any) -> None:
        statement = make(guarantee(), calibration="paper").statement
        assert statement.calibration == "paper"
        assert statement.epsilon >= 1 - Fraction(1, 2**40)

    @baseline
    @pytest.mark.parametrize(
        ("change", "error"),
        [
            ({"calibration": "loose"}, ops.ParameterError),
            ({"grid": 0.3}, ops.ParameterError),
            ({"grid": -1.0}, ops.ParameterError),
        ],
        ids=["calibration", "grid", "negative grid"],
    )
    def test_wrong_parameters_are_refused(self, make: Any, change: dict[str, Any], error: type[Exception]) -> None:
        with pytest.raises(error, match=next(iter(change))):
            make(guarantee(), **change)

    @baseline
    def test_noise_out_of_reach_is_refused_before_there_is_data(self, make: Any) -> None:
        with pytest.raises(ops.ParameterError, match="epsilon is"):
            make(guarantee(1e-15))

    @baseline
    def test_a_guarantee_is_needed(self, make: Any) -> None:
        with pytest.raises(ops.ParameterTypeError, match="guarantee is of type int"):
            make(1)


def _not_to_be_called(*_: object) -> None:
    raise AssertionError("noise was drawn")


def _expected(mechanism: Any, steps: int, value: float) -> NDArray[np.float64]:
    """What is released of a constant stream without noise."""
    truth = np.full(steps, value)
    return truth.cumsum() if isinstance(mechanism, BinaryTree) else truth


class TestStepByStep:
    @online
    def test_pushed_values_are_released_like_a_series(self, make: Any) -> None:
        """With hardly any noise both are the same but for that noise."""
        mechanism, x = make(guarantee(10**7)), wave()
        pushed = mechanism.steps()
        released = np.array([pushed.push(value) for value in x])
        np.testing.assert_allclose(released, mechanism.release(x).values, rtol=1e-3)

    @online
    def test_pushed_values_have_the_law_of_a_series(self, make: Any) -> None:
        """The mean absolute error of 120 short streams each way; a ratio beyond 1.4 is above six standard errors."""
        mechanism, x = make(guarantee(0.5)), wave(2)
        truth = x.cumsum() if isinstance(mechanism, BinaryTree) else x
        errors = [
            np.abs(np.array([self._pushed(mechanism, x), mechanism.release(x).values]) - truth).mean(axis=1)
            for _ in range(120)
        ]
        first, second = np.array(errors).mean(axis=0)
        assert 1 / 1.4 < first / second < 1.4

    @staticmethod
    def _pushed(mechanism: Any, x: NDArray[np.float64]) -> NDArray[np.float64]:
        steps = mechanism.steps()
        return np.array([steps.push(value) for value in x])

    @online
    @pytest.mark.parametrize("value", [np.nan, np.inf, "1", None, True])
    def test_what_is_no_finite_number_leaves_the_stream_as_it_was(self, make: Any, value: Any) -> None:
        steps = make(guarantee(10**7)).steps()
        steps.push(500.0)
        before = pickle.dumps(steps)
        with pytest.raises((ops.DataError, ops.ParameterTypeError)):
            steps.push(value)
        assert pickle.dumps(steps) == before

    @online
    def test_a_stream_shows_no_raw_values_and_goes_on_after_a_pickle(self, make: Any) -> None:
        steps = make(guarantee(10**7)).steps()
        steps.push(123.0)
        assert "123" not in repr(steps)
        assert np.isfinite(pickle.loads(pickle.dumps(steps)).push(123.0))

    @online
    def test_no_period_is_needed(self, make: Any) -> None:
        steps = make(guarantee()).steps()
        assert np.isfinite([steps.push(500.0) for _ in range(W + 5)]).all()


ADVERSARIAL: dict[str, Callable[[np.random.Generator, int], NDArray[np.float64]]] = {
    "constant": lambda _, n: np.full(n, 500.0),
    "zigzag": lambda _, n: np.where(np.arange(n) % 2, 1000.0, 0.0),
    "random": lambda g, n: g.uniform(0, 1000, n),
    "spikes": lambda g, n: np.where(g.uniform(size=n) < 0.1, 1000.0, 0.0),
    "quiet, then loud": lambda _, n: np.where((np.arange(n) // (2 * W)) % 2, (np.arange(n) % 2) * 1000.0, 500.0),
    "bursts": lambda _, n: np.where(np.arange(n) % (W + 1) < 3, np.arange(n) % 2 * 1000.0, 0.0),
    "growing": lambda _, n: np.linspace(0, 1000, n),
}


class TestStreams:
    @pytest.mark.parametrize("make", ONLINE.values(), ids=ONLINE)
    def test_a_stream_releases_every_step_as_it_comes(self, make: Any) -> None:
        mechanism = make(ops.Guarantee(epsilon=1, w=W))
        stream = ops.Stream(mechanism, missing=5.0)
        if isinstance(mechanism, ops.OptStream):
            # Plain Laplace noise is OptStream, which releases whole periods.
            assert len(stream.push_many(range(2 * W), [500.0] * (2 * W))) == 2
            return
        released = stream.push_many(range(2 * W), [500.0] * (2 * W))
        assert [one.time for one in released] == list(range(2 * W))
        assert all(one.statement.epsilon == mechanism.statement.epsilon for one in released)
        assert released[0].interval(0.9) == tuple(map(float, mechanism.bounds))
        # Missing steps are filled and released.
        assert [one.time for one in stream.push_many([2 * W + 3], [500.0])] == list(range(2 * W, 2 * W + 4))
        assert stream.flush() is None
        assert "step by step" in repr(stream)

    @pytest.mark.parametrize("make", ONLINE.values(), ids=ONLINE)
    def test_a_state_goes_on_where_the_stream_was(self, make: Any) -> None:
        # With next to no noise a stream that is restarted at every step releases what one that is not does.
        mechanism = make(guarantee(10**12))
        if isinstance(mechanism, ops.OptStream):
            return
        values = np.round(500 + 400 * np.sin(np.arange(3 * W)), 1).tolist()
        whole = ops.Stream(mechanism).push_many(range(3 * W), values)
        state, found = None, []
        for step, value in enumerate(values):
            stream = ops.Stream(mechanism, state=None if state is None else json.loads(json.dumps(state)))
            found.append(stream.push(step, value))
            state = stream.state
        assert [one.value for one in found] == [one.value for one in whole]

    def test_a_state_whose_budget_has_grown_is_refused(self) -> None:
        mechanism = BudgetAbsorption(ops.Guarantee(epsilon=1, w=W), bounds=BOUNDS)
        stream = ops.Stream(mechanism)
        stream.push_many(range(W + 2), [500.0] * (W + 2))
        for path in (("walk", "steps", "_budget", "left"), ("walk", "costs", 0)):
            content = copy.deepcopy({name: value for name, value in stream.state.items() if name != "seal"})
            part: Any = content
            for name in path[:-1]:
                part = part[name]
            part[path[-1]] = part[path[-1]] + 1 if isinstance(part[path[-1]], int) else "-1"
            with pytest.raises(ops.ParameterError, match="state is damaged"):
                ops.Stream(mechanism, state=sealed(content))
        with pytest.raises(ops.ParameterError, match="state is damaged"):
            ops.Stream(BudgetDistribution(mechanism.guarantee, bounds=BOUNDS), state=stream.state)

    def test_times_count_and_nothing_is_released_twice(self) -> None:
        mechanism = BudgetAbsorption(ops.Guarantee(epsilon=1, w=W), bounds=BOUNDS)
        origin, hour = datetime(2026, 1, 1, tzinfo=UTC), timedelta(hours=1)
        stream = ops.Stream(mechanism, step=hour, origin=origin)
        first = stream.push(origin, 1.0)
        assert first.time == origin
        assert stream.push(origin, 1.0).value == first.value
        with pytest.raises(ops.StreamError, match=r"00:00:00.00:00 has come twice"):
            stream.push_many([origin + hour, origin], [1.0, 2.0])
        with pytest.raises(ops.StreamError, match=r"01:00:00.00:00 is missing"):
            stream.push(origin + 2 * hour, 1.0)
        with pytest.raises(ops.DataError):
            stream.push_many([origin + hour, origin + 2 * hour], [1.0, np.nan])
        # Nothing of what was refused was taken.
        assert stream.open_steps == 1
        assert stream.push(origin + hour, 1.0).time == origin + hour

    @pytest.mark.parametrize(
        ("mechanism", "options", "match"),
        [
            ("fourier", {}, "mechanism is Fourier, but must be one that streams and ledgers"),
            ("rescue", {}, "streams is 2, but must be 1"),
            ("absorption", {"missing": "skip"}, "missing is 'skip'"),
            ("absorption", {"emit": "period"}, "emit is 'period', but must be 'step' for BudgetAbsorption"),
        ],
    )
    def test_what_a_baseline_cannot_do_is_refused(self, mechanism: str, options: Any, match: str) -> None:
        guarantee = ops.Guarantee(epsilon=1, w=W)
        made = {
            "fourier": Fourier(guarantee, k=3, bounds=BOUNDS),
            "rescue": RescueDP(guarantee, streams=2, bounds=BOUNDS),
            "absorption": BudgetAbsorption(guarantee, bounds=BOUNDS),
        }[mechanism]
        with pytest.raises(ops.ParameterError, match=match):
            ops.Stream(made, **options)


class TestAccounting:
    @online
    @pytest.mark.parametrize("stream", ADVERSARIAL.values(), ids=ADVERSARIAL.keys())
    @pytest.mark.parametrize("epsilon", [0.05, 1, 50])
    def test_no_window_spends_more_than_epsilon(self, make: Any, stream: Any, epsilon: float) -> None:
        mechanism = make(guarantee(epsilon))
        steps, costs = mechanism.steps(), []
        for value in stream(np.random.default_rng(), 20 * W):
            steps.push(value)
            costs.append(steps.cost)
        worst = max(sum(costs[first : first + W]) for first in range(len(costs) - W + 1))
        assert 0 < worst <= mechanism.guarantee.epsilon

    @pytest.mark.parametrize("name", ["laplace", "sample", "distribution", "absorption", "rescue", "fast"])
    @pytest.mark.parametrize("stream", ["random", "quiet, then loud", "constant"])
    def test_a_step_costs_what_was_drawn_for_it(self, name: str, stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Every noise that is added to what reads a step counts, with the scale that is really drawn."""
        drawn: list[Fraction] = []
        mechanism = ONLINE[name](guarantee())
        real = _core.laplace

        def recorded(values: Any, sensitivity: float, epsilon: Fraction, *others: Any) -> Any:
            drawn.append(epsilon * 1024 / Fraction(sensitivity))
            return real(values, sensitivity, epsilon, *others)

        monkeypatch.setattr(_core, "laplace", recorded)
        steps = mechanism.steps()
        for value in ADVERSARIAL[stream](np.random.default_rng(), 20 * W):
            drawn.clear()
            steps.push(value)
            assert sum(drawn) == steps.cost

    @pytest.mark.parametrize("name", ["distribution", "absorption"])
    def test_everything_that_is_asked_is_paid(self, name: str) -> None:
        """A published step pays for the question and for the publication, a repeated one for the question."""
        steps, unit = ONLINE[name](guarantee()).steps(), Fraction(1, 2 * W)
        seen = set()
        for value in np.random.default_rng().uniform(0, 1000, 2000):
            before = steps._published
            released = steps.push(value) / steps._mechanism.step
            if released != before:
                assert steps.cost > unit
            seen.add(steps.cost)
        assert unit in seen
        assert name == "distribution" or Fraction(0) in seen

    def test_a_window_that_is_one_step_short_is_caught(self) -> None:
        """Power: the same brute force finds budgets that are renewed one step too early."""
        worst = []
        for w in (W, W - 1):
            steps, costs = BudgetDistribution(guarantee(), bounds=BOUNDS).steps(), []
            steps._budget = WindowBudget(steps._mechanism.parts, w)
            for value in np.where(np.arange(40 * W) % 2, 1000.0, 0.0):
                steps.push(value)
                costs.append(steps.cost)
            worst.append(max(sum(costs[first : first + W]) for first in range(len(costs) - W + 1)))
        assert worst[0] <= 1 < worst[1]

    @pytest.mark.parametrize("name", ["laplace", "sample", "pegasus", "tree"])
    def test_steps_cost_what_is_stated(self, name: str) -> None:
        mechanism = ONLINE[name](guarantee())
        steps, costs = mechanism.steps(), []
        for _ in range(3 * W):
            steps.push(500.0)
            costs.append(steps.cost)
        windows = {sum(costs[first : first + W]) for first in range(2 * W + 1)}
        assert windows == {Fraction(1)} == {mechanism.statement.epsilon}

    @given(st.data(), st.integers(1, 6))
    @settings(max_examples=100, deadline=None)
    def test_a_window_budget_is_never_exceeded(self, data: st.DataObject, w: int) -> None:
        budget, spent = WindowBudget(100, w), []
        for _ in range(data.draw(st.integers(1, 30))):
            parts = data.draw(st.integers(0, budget.left))
            budget.spend(parts)
            spent.append(parts)
            assert budget.left == 100 - (sum(spent[-(w - 1) :]) if w > 1 else 0)
        assert max(sum(spent[first : first + w]) for first in range(len(spent))) <= 100
        with pytest.raises(ValueError, match="parts are"):
            budget.spend(budget.left + 1)

    def test_absorbed_and_nullified_steps_are_those_of_the_algorithm(self) -> None:
        """After four quiet steps the fifth takes five units, and the next four publish nothing."""
        steps = BudgetAbsorption(guarantee(10**6), bounds=BOUNDS).steps()
        unit = Fraction(10**6, 2 * W)
        costs = []
        for value in [0.0] * 4 + [500.0] * 5 + [900.0]:
            steps.push(value)
            costs.append(steps.cost / unit)
        assert costs == [1] * 4 + [6] + [0] * 4 + [2]

    def test_distributed_budgets_halve(self) -> None:
        steps = BudgetDistribution(guarantee(10**6), bounds=BOUNDS).steps()
        asked, costs = Fraction(10**6, 2 * W), []
        for value in [500.0, 0.0, 500.0, 0.0]:
            steps.push(value)
            costs.append(steps.cost - asked)
        for number, cost in enumerate(costs):
            assert float(cost) == pytest.approx(10**6 / 4 / 2**number, rel=1e-4)

    def test_fast_counts_measured_steps_by_block(self) -> None:
        """Two blocks that are measured at the end and at the beginning: one window holds all of both."""
        for neighbours, price in (("sliding", Fraction(1, 6)), ("aligned", Fraction(1, 3))):
            mechanism = Fast(guarantee(neighbours=neighbours), samples=3, bounds=BOUNDS)
            assert mechanism.price == price
        assert Fast(guarantee(), samples=W, bounds=BOUNDS).price == Fraction(1, W)
        steps, measured = Fast(guarantee(), samples=3, bounds=BOUNDS).steps(), []
        for value in np.random.default_rng().uniform(0, 1000, 40 * W):
            steps.push(value)
            measured.append(bool(steps.cost))
        blocks = np.array(measured).reshape(-1, W).sum(axis=1)
        assert blocks.max() == 3


class TestNoise:
    @pytest.mark.parametrize("name", ["laplace", "sample", "sample one", "tree", "fourier", "equal", "cube", "buckets"])
    def test_a_constant_stream_is_released_without_bias(self, name: str) -> None:
        """Within 5.5 standard errors of 400 streams: a false alarm in 25 million."""
        mechanism = ALL[name](guarantee())
        truth = _expected(mechanism, 2 * W, 500.0)
        means = np.array([(mechanism.release(np.full(2 * W, 500.0)).values - truth).mean() for _ in range(400)])
        assert abs(means.mean()) < 5.5 * means.std() / np.sqrt(400)

    @pytest.mark.parametrize(
        "name", ["laplace", "sample", "sample one", "pegasus", "tree", "fourier", "equal", "cube", "buckets"]
    )
    def test_the_error_is_inversely_proportional_to_epsilon(self, name: str) -> None:
        """On a constant stream all error is noise: a tenth of the budget makes it ten times as large."""
        errors = []
        for epsilon in (1, 0.1):
            mechanism = ALL[name](guarantee(epsilon), grid=2.0**-10)
            x = np.full(4 * W, 500.0)
            truth = _expected(mechanism, x.size, 500.0)
            errors.append(np.mean([np.abs(mechanism.release(x).values - truth).mean() for _ in range(300)]))
        assert 8 < errors[1] / errors[0] < 12.5

    @pytest.mark.parametrize("name", ["distribution", "absorption", "rescue", "fast"])
    def test_more_budget_means_less_error(self, name: str) -> None:
        errors = [
            np.mean([np.abs(ALL[name](guarantee(epsilon)).release(wave()).values - wave()).mean() for _ in range(20)])
            for epsilon in (10, 0.01)
        ]
        assert errors[0] < errors[1]

    def test_pushed_laplace_has_the_stated_noise(self) -> None:
        mechanism = Laplace(guarantee(2, alpha=3.0), bounds=BOUNDS, grid=1.0)
        steps = mechanism.steps()
        noise = np.array([steps.push(500.0) - 500 for _ in range(40_000)]).astype(np.int64)
        edges = edges_of_bins(noise[:20_000], 50)
        assert_law(p_value(noise[20_000:], edges, laplace_below(18, edges)), "pushed Laplace", 20_000)
        assert_rejected(p_value(noise[20_000:], edges, laplace_below(15, edges)), "a smaller scale", 20_000)

    def test_laplace_is_optstream_that_measures_every_step(self) -> None:
        mechanism = Laplace(guarantee(), bounds=BOUNDS)
        same = ops.OptStream(guarantee(), sample=ops.EqualSampling(k=W), bounds=BOUNDS)
        assert mechanism.statement == same.statement
        assert mechanism.digest == same.digest
        assert ops.Stream(mechanism).push_many(range(W), [500.0] * W)[0].values.shape == (W,)

    def test_sample_repeats_what_it_measured(self) -> None:
        values = Sample(guarantee(10**7), k=3, bounds=BOUNDS).release(wave()).values
        np.testing.assert_allclose(values, np.repeat(wave()[::4], 4), atol=1e-3)


class TestExactNoise:
    def test_noise_is_added_to_integers_before_anything_is_rounded(self) -> None:
        """Noise beyond 2^53 that was rounded before it is added would show that the value is odd.

        One of exp(2) draws lies there: of 2000 fewer than 170 have a chance below 1e-10.
        """
        drawn = np.array([noisy(1, 2**20, Fraction(1, 2**32)) for _ in range(2000)])
        beyond = drawn[np.abs(drawn) > 2**53]
        assert beyond.size > 170
        assert (beyond % 2 == 0).all()

    def test_integers_beyond_the_doubles_are_clamped(self) -> None:
        assert noisy(2**60, 1, Fraction(1000)) == 2**53
        assert noisy_all(np.array([[-(2**60)]]), 1, Fraction(1000)).tolist() == [[-(2**53)]]


class TestPeGaSus:
    @given(st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=30))
    def test_the_deviation_is_exact(self, numbers: list[int]) -> None:
        mean = Fraction(sum(numbers), len(numbers))
        expected = len(numbers) * sum(abs(number - mean) for number in numbers)
        assert multiplied_deviation(sorted(numbers)) == expected

    @given(st.lists(st.integers(-50, 50), min_size=1, max_size=8), st.data())
    def test_the_deviation_moves_by_less_than_twice_the_change(self, numbers: list[int], data: st.DataObject) -> None:
        place, change = data.draw(st.integers(0, len(numbers) - 1)), data.draw(st.integers(-7, 7))
        moved = [number + change * (index == place) for index, number in enumerate(numbers)]
        gap = Fraction(multiplied_deviation(sorted(moved)) - multiplied_deviation(sorted(numbers)), len(numbers))
        assert abs(gap) < 2 * abs(change) or gap == change == 0 or len(numbers) == 1

    def test_steps_that_deviate_little_share_a_group(self) -> None:
        """Without noise a constant stream is one group; a jump ends it and is a group by itself."""
        steps = PeGaSus(guarantee(10**7), threshold=5.0, bounds=BOUNDS).steps()
        sizes = []
        for value in [500.0] * 6 + [900.0] + [100.0] * 3:
            steps.push(value)
            sizes.append(len(steps._noisy))  # type: ignore[attr-defined]
        assert sizes == [1, 2, 3, 4, 5, 6, 1, 1, 2, 3]

    def test_long_groups_average_noise_away(self) -> None:
        x = np.full(40 * W, 500.0)
        grouped, alone = (
            np.abs(PeGaSus(guarantee(), threshold=size, bounds=BOUNDS).release(x).values - x).mean()
            for size in (1e6, 1e-6)
        )
        assert grouped < alone / 1.5

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"grouping": 1}, "grouping is 1"),
            ({"grouping": 0}, "grouping is 0"),
            ({"threshold": -1.0}, "threshold is -1.0"),
            ({"smooth": "mode"}, "smooth is 'mode'"),
        ],
    )
    def test_wrong_parameters_are_refused(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ops.ParameterError, match=message):
            PeGaSus(guarantee(), bounds=BOUNDS, **options)


class TestBinaryTree:
    @pytest.mark.parametrize("steps", [1, 2, 7, 8, 100])
    def test_without_noise_prefix_sums_are_exact(self, steps: int) -> None:
        stream = BinaryTree(guarantee(10**7), horizon=128, bounds=BOUNDS, grid=2.0**-20).steps()
        x = np.random.default_rng().uniform(0, 1000, steps)
        released = [stream.push(value) for value in x]
        np.testing.assert_allclose(released, np.cumsum(x), atol=1e-2)

    def test_a_step_lies_in_at_most_one_sum_of_every_length(self) -> None:
        """Every noisy sum is drawn once; by the position of the step that completes it, the runs are counted."""
        horizon = 100
        mechanism = BinaryTree(guarantee(), horizon=horizon, bounds=BOUNDS)
        runs = [(count - (count & -count), count) for count in range(1, horizon + 1)]
        covered = [sum(low <= step < high for low, high in runs) for step in range(horizon)]
        assert max(covered) <= mechanism.lengths == 7

    def test_sums_that_integers_cannot_hold_are_refused(self) -> None:
        with pytest.raises(ops.ParameterError, match="horizon is 1099511627776"):
            BinaryTree(guarantee(), horizon=2**40, bounds=BOUNDS)

    def test_a_stream_ends_at_its_horizon(self) -> None:
        mechanism = BinaryTree(guarantee(), horizon=W, bounds=BOUNDS)
        with pytest.raises(ops.DataError, match="at most horizon = 12"):
            mechanism.release(np.zeros(2 * W))
        steps = mechanism.steps()
        for _ in range(W):
            steps.push(1.0)
        with pytest.raises(ops.DataError, match="horizon"):
            steps.push(1.0)

    def test_the_error_grows_with_the_logarithm_of_the_steps(self) -> None:
        mechanism = BinaryTree(guarantee(), horizon=2**11, bounds=BOUNDS)
        x = np.zeros(170 * W)
        errors = np.mean([np.abs(mechanism.release(x).values) for _ in range(10)], axis=0)
        scale = float(1 / mechanism.price)
        assert errors[-500:].mean() < 4 * scale


class TestFourier:
    @pytest.mark.parametrize(("k", "whole", "sliding"), [(3, 13.82, 1.354), (10, 27.43, 1.379)])
    def test_the_sensitivity_is_that_of_the_audit(self, k: int, whole: float, sliding: float) -> None:
        figures = []
        for neighbours in ("aligned", "sliding"):
            mechanism = Fourier(ops.Guarantee(epsilon=1, w=48, neighbours=neighbours), k=k, bounds=BOUNDS)
            figures.append(mechanism.change / mechanism.sensitivity / (1 << mechanism._bits))
        assert figures[0] == pytest.approx(whole, rel=1e-3)
        assert figures[1] / figures[0] == pytest.approx(sliding, rel=1e-3)

    def test_the_printed_scale_costs_what_the_audit_found(self) -> None:
        prices = [
            float(
                Fourier(
                    ops.Guarantee(epsilon=1, w=48, neighbours=neighbours),
                    k=10,
                    bounds=BOUNDS,
                    calibration="paper",
                ).statement.epsilon
            )
            for neighbours in ("aligned", "sliding")
        ]
        assert prices[0] == pytest.approx(6.27, abs=0.01)
        assert prices[1] > prices[0]

    @given(st.integers(1, 4), st.integers(2, 6), st.data())
    @settings(max_examples=50, deadline=None)
    def test_the_sensitivity_is_the_largest_over_all_changes(self, count: int, w: int, data: st.DataObject) -> None:
        row = st.lists(st.integers(-9, 9), min_size=w, max_size=w)
        basis = np.array(data.draw(st.lists(row, min_size=count, max_size=count)))
        found = _largest_changes(basis)
        for steps in range(w + 1):
            corners = itertools.product((-1, 1), repeat=steps)
            expected = max(np.abs(basis[:, :steps] @ np.array(corner, dtype=int)).sum() for corner in corners)
            assert found[steps] == expected
            assert _bounded_changes(basis)[steps] >= expected

    def test_a_window_across_two_periods_is_the_worst_of_both_parts(self) -> None:
        mechanism = Fourier(guarantee(w=6), k=2, bounds=BOUNDS)
        corners = [np.array(corner) for corner in itertools.product((-1, 1), repeat=6)]
        worst = 0
        for start, corner in itertools.product(range(6), corners):
            change = np.zeros(12, dtype=int)
            change[start : start + 6] = corner
            worst = max(worst, int(sum(np.abs(mechanism.basis @ half).sum() for half in np.split(change, 2))))
        assert mechanism.change == worst * mechanism.sensitivity

    @pytest.mark.parametrize("w", [1, 2, 7, 12])
    def test_all_frequencies_give_the_data_back(self, w: int) -> None:
        mechanism = Fourier(guarantee(10**7, w=w), k=w // 2 + 1, bounds=BOUNDS)
        assert len(mechanism.basis) == w
        x = np.random.default_rng().uniform(0, 1000, 3 * w)
        np.testing.assert_allclose(mechanism.release(x).values, x, atol=0.05)

    @pytest.mark.parametrize("calibration", ["sound", "paper"])
    def test_what_the_frequencies_hold_is_kept(self, calibration: Any) -> None:
        mechanism = Fourier(guarantee(10**7), k=2, bounds=BOUNDS, calibration=calibration)
        np.testing.assert_allclose(mechanism.release(wave()).values, wave(), atol=0.05)

    def test_many_frequencies_are_bounded(self) -> None:
        mechanism = Fourier(ops.Guarantee(epsilon=1, w=48), k=25, bounds=BOUNDS)
        figure = mechanism.change / mechanism.sensitivity / (1 << mechanism._bits)
        assert np.sqrt(48 * 48) <= figure <= 1.01 * np.sqrt(2 * 48 * 48)

    def test_a_grid_too_fine_for_the_bounds_is_refused(self) -> None:
        with pytest.raises(ops.ParameterError, match="grid"):
            Fourier(guarantee(), k=2, bounds=(0, 1e12), grid=2.0**-10)


class TestRescueDP:
    def test_small_streams_share_a_noise(self) -> None:
        """Ten streams near zero, and one far above: the noise of a group is smaller than that of a stream alone."""
        x = np.zeros((10 * W, 11))
        x[:, -1] = 900.0
        together, apart = (
            np.mean([np.abs(mechanism.release(x).values - x)[:, :10].mean() for _ in range(5)])
            for mechanism in (
                RescueDP(guarantee(), streams=11, alike=-1.0, bounds=BOUNDS),
                RescueDP(guarantee(), streams=11, small=1e-9, bounds=BOUNDS),
            )
        )
        assert together < apart
        quiet = RescueDP(guarantee(1000), streams=11, alike=-1.0, small=1000.0, bounds=BOUNDS)
        assert self.groups(quiet, x) == [[10], list(range(10))]

    def test_streams_that_move_against_each_other_do_not(self) -> None:
        """With little noise: two streams rise, one falls, all of them small by the measure that is set."""
        rise = np.linspace(100, 200, W)
        x = np.stack([rise, 300 - rise, rise + 5], axis=1)
        mechanism = RescueDP(guarantee(1000), streams=3, small=1e6, bounds=BOUNDS)
        assert self.groups(mechanism, x) == [[0, 2], [1]]

    @staticmethod
    def groups(mechanism: RescueDP, x: NDArray[np.float64]) -> list[list[int]]:
        """Return who would share a noise after a stream."""
        steps = mechanism.steps()
        for row in x:
            steps.push(row)
        for stream in steps._streams:
            stream._interval = 1.0
        due = [number for number, stream in enumerate(steps._streams) if stream.is_due()]
        return steps._groups(due)

    def test_no_window_of_any_stream_spends_more_than_epsilon(self) -> None:
        generator, costs = np.random.default_rng(), []
        steps = RescueDP(guarantee(), streams=4, bounds=BOUNDS).steps()
        for _ in range(30 * W):
            steps.push(generator.uniform(0, 30, 4) ** generator.uniform(0, 2))
            costs.append(steps.costs)
        for stream in zip(*costs, strict=True):
            assert max(sum(stream[first : first + W]) for first in range(len(stream))) <= 1

    def test_streams_come_as_columns(self) -> None:
        mechanism = RescueDP(guarantee(), streams=3, bounds=BOUNDS)
        assert mechanism.release(np.full((W, 3), 5.0)).values.shape == (W, 3)
        assert "same one during a window" in str(mechanism.statement)
        for bad in (np.zeros((W, 2)), np.zeros((W + 1, 3)), np.zeros((0, 3)), np.zeros(W * 3)):
            with pytest.raises(ops.DataError, match="x has"):
                mechanism.release(bad)
        with pytest.raises(ops.ParameterTypeError, match="x is of type list"):
            mechanism.release([[1.0] * 3] * W)
        for wrong in ([1.0, 2.0], 1.0):
            with pytest.raises(ops.DataError, match="one for each of 3"):
                mechanism.steps().push(wrong)
        with pytest.raises(ops.DataError, match="finite"):
            mechanism.steps().push([1.0, 2.0, np.nan])

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"streams": 0}, "streams is 0"),
            ({"share": -1.0}, "share is -1.0"),
            ({"most": (2.0, 0.5)}, "most is"),
            ({"alike": 2.0}, "alike is 2.0"),
            ({"process_variance": 0.0}, "process_variance is 0.0"),
        ],
    )
    def test_wrong_parameters_are_refused(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ops.ParameterError, match=message):
            RescueDP(guarantee(), bounds=BOUNDS, **options)


class TestFilter:
    def test_a_wandering_value_is_followed_and_its_wandering_learnt(self) -> None:
        generator = np.random.default_rng(3)
        truth = np.cumsum(generator.normal(0, 2, 4000))
        learner, errors = Kalman(), []
        for value in truth:
            learner.predict()
            learner.correct(value + generator.laplace(0, 5), 50.0)
            errors.append(learner.estimate - value)
        assert learner.wandering > 0
        # The filter that knows the variance 4 has a steady error of variance 12.3; no filter has 50.
        assert 9 < np.mean(np.square(errors[100:])) < 20

    def test_a_value_that_stays_is_averaged(self) -> None:
        learner = Kalman()
        generator = np.random.default_rng(4)
        for _ in range(2000):
            learner.predict()
            learner.correct(100 + generator.laplace(0, 5), 50.0)
        assert abs(learner.estimate - 100) < 3


SMALL: dict[str, Callable[[ops.Guarantee], Any]] = {
    "laplace": lambda g: Laplace(g, bounds=(0, 100)),
    "sample": lambda g: Sample(g, k=1, bounds=(0, 100)),
    "fourier": lambda g: Fourier(g, k=2, bounds=(0, 100)),
    "fourier, printed": lambda g: Fourier(g, k=2, bounds=(0, 100), calibration="paper"),
    "pegasus": lambda g: PeGaSus(g, bounds=(0, 100)),
    "pegasus, budget on groups": lambda g: PeGaSus(g, grouping=0.9, threshold=3.0, bounds=(0, 100)),
    "distribution": lambda g: BudgetDistribution(g, bounds=(0, 100)),
    "absorption": lambda g: BudgetAbsorption(g, bounds=(0, 100)),
    "rescue": lambda g: RescueDP(g, bounds=(0, 100)),
    "fast": lambda g: Fast(g, samples=1, bounds=(0, 100)),
    "tree": lambda g: BinaryTree(g, horizon=8, bounds=(0, 100)),
}


def runs_of(mechanism: Any) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    def run(x: NDArray[np.float64]) -> NDArray[np.float64]:
        if isinstance(mechanism, (Laplace, Fourier)):
            # Their periods are independent, so that one call makes many runs.
            return np.asarray(mechanism.release(x.ravel()).values).reshape(x.shape)
        return np.array([mechanism.release(row).values for row in x])

    return run


def jumping_pairs() -> list[Pair]:
    """Streams near the decisions: a jump in the window, and a quiet window that could begin to move."""
    jump = np.array([50.0, 50.0, 50.0, 90.0, 90.0, 90.0])
    window = np.array([0.0, 1.0, 1.0, 1.0, 0.0, 0.0])
    return [
        Pair("a jump, raised", jump, jump + window),
        Pair("a jump, against each other", jump, jump + window * np.array([1, 1, -1, 1, 1, 1])),
        Pair("from nothing", np.zeros(6), window),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_the_auditor_proves_no_more_than_is_stated(name: str) -> None:
    mechanism = SMALL[name](ops.Guarantee(epsilon=1, w=3))
    pairs: Sequence[Pair] = [*window_pairs(3, 1, bounds=(0, 100)), *jumping_pairs()]
    fast = isinstance(mechanism, (Laplace, Fourier))
    found = audit(
        runs_of(mechanism),
        trials=20_000 if fast else 2500,
        confidence=1 - 1e-6,
        claimed=mechanism.statement.epsilon,
        neighbours=pairs,
        name=name,
    )
    assert found.verdict == "consistent", str(found)


@pytest.mark.slow
def test_the_auditor_catches_a_distance_that_is_read_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Power: what budget distribution would be if asking cost nothing, on values at its threshold."""

    def is_far(self: RepublicationSteps, units: int, offer: int) -> bool:
        return abs(units - self._published) > self._mechanism.sensitivity / self._mechanism.price(offer)

    mechanism = BudgetDistribution(ops.Guarantee(epsilon=1, w=2), bounds=(0, 100))
    pairs = [Pair("at the threshold", np.array([4.0, 4.0]), np.array([4.5, 4.5]))]
    options: dict[str, Any] = {"trials": 4000, "claimed": 1, "neighbours": pairs}
    assert audit(runs_of(mechanism), **options).verdict == "consistent"
    monkeypatch.setattr(RepublicationSteps, "_is_far", is_far)
    assert audit(runs_of(mechanism), **options).verdict == "broken"


@pytest.mark.slow
def test_the_auditor_catches_the_printed_fourier_scale() -> None:
    mechanism = Fourier(ops.Guarantee(epsilon=1, w=8), k=4, bounds=(0, 100), calibration="paper")
    found = audit(
        runs_of(mechanism), trials=40_000, claimed=1, neighbours=window_pairs(8, 1, bounds=(0, 100), straddling=False)
    )
    assert found.verdict == "broken", str(found)
