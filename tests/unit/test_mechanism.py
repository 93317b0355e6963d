"""The four-step release: calibrated by the accountant, stated, checked before anything is drawn, and consistent."""

from __future__ import annotations

import itertools
import json
import pickle
import threading
from dataclasses import FrozenInstanceError
from fractions import Fraction
from typing import Any, Literal

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings

import optstream as ops
from optstream.mechanism.release import half_width

W = 48
PAPER = [ops.Feature.cuts(W, 14, 24, 36), ops.Feature.total(W)]
INCOMPARABLE = [ops.Feature.cuts(W, 14, 24, 36), ops.Feature.cuts(W, 20), ops.Feature.total(W)]
SAMPLERS = [ops.EqualSampling(k=10), ops.L1Sampling(k=10, threshold=1000.0), ops.EqualSampling(k=W)]
LOADS = 5000 + 1000 * np.sin(np.arange(10 * W) / W * 2 * np.pi)


def mechanism(**changes: Any) -> ops.OptStream:
    options: dict[str, Any] = {"sample": ops.EqualSampling(k=10), "bounds": (0, 20_000), **changes}
    guarantee = options.pop("guarantee", ops.Guarantee(epsilon=1.0, w=W))
    return ops.OptStream(guarantee, **options)


def greedy(x: np.ndarray[Any, np.dtype[np.float64]], k: int, threshold: float) -> list[int]:
    """The paper's Sample algorithm without noise and with both ends fixed."""
    chosen, last = [0], 0
    for i in range(1, x.size - 1):
        if x.size - 1 - i == k - 1 - len(chosen):
            chosen.extend(range(i, x.size - 1))
            break
        line = np.linspace(x[last], x[i], i - last + 1)
        if i > last + 1 and np.abs(line - x[last : i + 1]).sum() >= threshold:
            chosen.append(i)
            last = i
        if len(chosen) == k - 1:
            break
    return [*chosen, x.size - 1]


class TestCalibration:
    @pytest.mark.parametrize("neighbours", ["sliding", "aligned"])
    @pytest.mark.parametrize("sample", SAMPLERS, ids=str)
    @pytest.mark.parametrize("features", [[], PAPER, INCOMPARABLE], ids=len)
    def test_a_sound_release_costs_exactly_epsilon(
        self, neighbours: Literal["sliding", "aligned"], sample: Any, features: list[ops.Feature]
    ) -> None:
        guarantee = ops.Guarantee(epsilon=0.5, w=W, alpha=10, neighbours=neighbours)
        statement = mechanism(guarantee=guarantee, sample=sample, features=features).statement
        assert statement.epsilon == Fraction(1, 2)

    @given(
        epsilon=st.fractions(Fraction(1, 100), 10, max_denominator=1000) | st.floats(0.01, 10),
        alpha=st.floats(0.01, 1000),
        split=st.lists(st.integers(1, 9), min_size=3, max_size=3),
        k=st.integers(2, 12),
    )
    @settings(max_examples=60, deadline=None)
    def test_no_parameters_make_a_sound_release_cost_more(
        self, epsilon: float, alpha: float, split: list[int], k: int
    ) -> None:
        guarantee = ops.Guarantee(epsilon=epsilon, w=12, alpha=alpha)
        sample = ops.L1Sampling(k=k, threshold=5)
        shares = split if sample.reads(12) else split[1:]
        made = ops.OptStream(
            guarantee, sample=sample, features=[ops.Feature.total(12)], split=shares, bounds=(0, 10_000)
        )
        spent = made.statement.epsilon
        assert spent <= guarantee.epsilon
        assert spent >= guarantee.epsilon * (1 - Fraction(1, 2**40))

    def test_the_printed_scales_cost_what_the_audit_found(self) -> None:
        aligned = ops.Guarantee(epsilon=1, w=W, neighbours="aligned")
        sliding = ops.Guarantee(epsilon=1, w=W)
        adaptive: dict[str, Any] = {"sample": SAMPLERS[1], "features": PAPER, "calibration": "paper"}
        equal: dict[str, Any] = {"sample": SAMPLERS[0], "features": PAPER, "calibration": "paper"}
        assert mechanism(guarantee=aligned, **adaptive).statement.epsilon == Fraction(50, 3)
        assert mechanism(guarantee=sliding, **adaptive).statement.epsilon == Fraction(50, 3) + Fraction(3, 5)
        assert mechanism(guarantee=aligned, **equal).statement.epsilon == Fraction(49, 2)
        assert "WARNING" in str(mechanism(guarantee=sliding, **equal).statement)

    def test_the_plain_laplace_mechanism_is_the_special_case_without_sampling(self) -> None:
        made = mechanism(sample=ops.EqualSampling(k=W), guarantee=ops.Guarantee(epsilon=0.1, w=W, alpha=2))
        assert made.statement.stages[0].does.endswith("scale 960")
        noise = made.release(np.full(2000 * W, 500.0)).values - 500.0
        assert np.abs(noise).mean() == pytest.approx(960, rel=0.02)

    def test_stages_that_are_absent_get_no_budget(self) -> None:
        names = [stage.name for stage in mechanism(sample=ops.EqualSampling(k=W)).statement.stages]
        assert names == ["perturb"]
        assert [s.name for s in mechanism(features=PAPER).statement.stages] == ["perturb", "features"]


class TestStatement:
    def test_it_needs_no_data_and_says_everything(self) -> None:
        guarantee = ops.Guarantee(epsilon=1, w=W, alpha=10, neighbours="aligned")
        statement = mechanism(guarantee=guarantee, sample=SAMPLERS[1], features=PAPER).statement
        text = str(statement)
        for part in ("48 steps of one released period", "not covered", "up to 10 per step", "sparse vector", "grid"):
            assert part in text
        content = json.loads(statement.to_json())
        assert content["epsilon_requested"] == content["epsilon_true"] == "1"
        assert content["neighbours"] == "aligned"
        assert [stage["name"] for stage in content["stages"]] == ["sample", "perturb", "features"]
        assert content["version"] == ops.__version__
        assert {"w", "alpha", "grid", "bounds", "calibration", "weights", "assumptions"} <= content.keys()


class TestRelease:
    @pytest.mark.parametrize("sample", SAMPLERS, ids=str)
    @pytest.mark.parametrize("features", [[], PAPER, INCOMPARABLE], ids=len)
    def test_values_and_features_are_consistent_and_not_negative(
        self, sample: Any, features: list[ops.Feature]
    ) -> None:
        # Values near zero make the noise bind the constraint.
        release = mechanism(sample=sample, features=features).release(np.full((20, W), 3.0))
        assert release.values.shape == (20, W)
        assert np.isfinite(release.values).all()
        if features:
            assert (release.values >= 0).all()
        for feature, sums in zip(features, release.features, strict=True):
            cells = np.array(feature.labels)
            expected = np.stack([release.values[:, cells == cell].sum(axis=1) for cell in range(feature.size)], axis=1)
            np.testing.assert_allclose(sums, expected, rtol=1e-12)

    def test_the_steps_between_samples_lie_on_straight_lines(self) -> None:
        values = mechanism(sample=ops.EqualSampling(k=4)).release(LOADS[:W]).values
        knots = ops.EqualSampling(k=4).steps(W)
        np.testing.assert_allclose(values, np.interp(np.arange(W), knots, values[list(knots)]), rtol=1e-12)

    def test_with_a_large_budget_the_release_is_the_data(self) -> None:
        generous = ops.Guarantee(epsilon=10**6, w=W)
        for features in ([], PAPER, INCOMPARABLE):
            made = mechanism(guarantee=generous, sample=ops.EqualSampling(k=W), features=features)
            np.testing.assert_allclose(made.release(LOADS).values, LOADS, atol=0.1)

    def test_with_a_large_budget_adaptive_samples_are_those_of_the_noiseless_algorithm(self) -> None:
        generator = np.random.default_rng(11)
        made = mechanism(guarantee=ops.Guarantee(epsilon=10**7, w=W), sample=ops.L1Sampling(k=7, threshold=1500.0))
        data = np.cumsum(generator.integers(-300, 300, size=(50, W)), axis=1) + 8000.0
        for row, knots in zip(data, made.release(data)._knots, strict=True):
            assert knots.tolist() == greedy(row, 7, 1500.0)

    def test_clamping_is_the_only_way_bounds_act(self) -> None:
        made = mechanism(guarantee=ops.Guarantee(epsilon=10**6, w=4), sample=ops.EqualSampling(k=4), bounds=(0, 10))
        np.testing.assert_allclose(made.release([-5.0, 5.0, 15.0, 9.0]).values, [0, 5, 10, 9], atol=0.01)

    def test_two_releases_differ(self) -> None:
        made = mechanism()
        assert not np.array_equal(made.release(LOADS).values, made.release(LOADS).values)

    def test_threads_share_a_mechanism(self) -> None:
        made = mechanism(features=INCOMPARABLE)
        consistent: list[bool] = []

        def work() -> None:
            for _ in range(20):
                release = made.release(np.full((3, W), 5.0))
                consistent.append(np.allclose(release.features[2][:, 0], release.values.sum(axis=1)))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert consistent == [True] * 80

    def test_every_period_has_noise_of_its_own_across_threads(self) -> None:
        values = mechanism().release(np.full((5000, W), 500.0)).values
        assert np.unique(values, axis=0).shape == (5000, W)


class TestForms:
    def test_arrays_keep_their_shape(self) -> None:
        made = mechanism()
        assert made.release(LOADS).values.shape == LOADS.shape
        assert made.release(LOADS.reshape(-1, W)).values.shape == (10, W)
        assert made.release(LOADS.astype(np.float32)).values.dtype == np.float64
        assert made.release(LOADS.astype(int).tolist()).values.shape == LOADS.shape
        backwards = np.asfortranarray(LOADS.reshape(-1, W))
        assert made.release(backwards).values.shape == (10, W)

    def test_series_keep_their_kind_name_and_index(self) -> None:
        made = mechanism()
        index = pd.date_range("2016-01-01", periods=LOADS.size, freq="30min")
        frame = made.release(pd.Series(LOADS, index=index, name="load")).values
        assert isinstance(frame, pd.Series)
        assert frame.name == "load"
        pd.testing.assert_index_equal(frame.index, index)
        assert frame.index.freq == index.freq
        polar = made.release(pl.Series("load", LOADS)).values
        assert isinstance(polar, pl.Series)
        assert polar.name == "load"
        arrow = made.release(pa.chunked_array([pa.array(LOADS[:W]), pa.array(LOADS[W:])])).values
        assert isinstance(arrow, pa.ChunkedArray)
        assert isinstance(made.release(pa.array(LOADS)).values, pa.Array)
        assert len(arrow) == LOADS.size

    def test_objects_are_frozen_and_picklable_and_hold_no_raw_data(self) -> None:
        for features in ([], PAPER, INCOMPARABLE):
            made = mechanism(features=features)
            release = made.release(LOADS)
            copy = pickle.loads(pickle.dumps(made))
            assert copy == made
            assert copy.statement.to_json() == made.statement.to_json()
            assert copy.release(LOADS).values.shape == LOADS.shape
            again = pickle.loads(pickle.dumps(release))
            np.testing.assert_array_equal(again.values, release.values)
            assert LOADS[:4].tobytes() not in pickle.dumps(release)
            assert str(LOADS[0]) not in repr(release)
            with pytest.raises(FrozenInstanceError):
                made.bounds = (0, 1)  # type: ignore[misc]


class TestMisuse:
    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            ({"sample": ops.EqualSampling(k=49)}, ValueError, "k is 49, but must be from 2 to w = 48"),
            ({"sample": ops.EqualSampling(k=1)}, ValueError, "k is 1"),
            ({"sample": ops.L1Sampling(k=49, threshold=1)}, ValueError, "k is 49"),
            ({"sample": 10}, TypeError, "sample is of type int"),
            ({"features": [ops.Feature.total(47)]}, ValueError, "a partition of 47 steps, but must have w = 48"),
            ({"features": ["day"]}, TypeError, "features is of type str"),
            ({"split": (1, 1)}, ValueError, "split has 2 shares, but must have 1, .*: perturb"),
            ({"split": (1,), "features": PAPER}, ValueError, "split has 1 shares, but must have 2"),
            ({"split": (1, 0), "features": PAPER}, ValueError, "split is 0, but must be positive"),
            ({"bounds": (5, 1)}, ValueError, r"bounds\[0\] is 5.0, but must be below"),
            ({"bounds": (0, 1e300)}, ValueError, r"bounds\[1\]"),
            ({"bounds": None}, TypeError, "bounds is None"),
            ({"grid": 0.3}, ValueError, "grid is 0.3"),
            ({"calibration": "hopeful"}, ValueError, "calibration is 'hopeful'"),
            ({"weights": "mine"}, ValueError, "weights is 'mine'"),
            ({"guarantee": "strong"}, TypeError, "guarantee is of type str"),
            ({"guarantee": ops.Guarantee(epsilon=1e-14, w=W)}, ValueError, "epsilon"),
        ],
        ids=str,
    )
    def test_a_wrong_mechanism_is_named_at_construction(
        self, change: dict[str, Any], error: type, message: str
    ) -> None:
        with pytest.raises(ops.OptStreamError, match=message) as caught:
            mechanism(**change)
        assert isinstance(caught.value, error)

    def test_bounds_must_be_given(self) -> None:
        with pytest.raises(TypeError, match="bounds"):
            ops.OptStream(ops.Guarantee(epsilon=1, w=4), sample=ops.EqualSampling(k=2))  # type: ignore[call-arg]

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({"epsilon": 0}, ValueError, "epsilon is 0"),
            ({"epsilon": "1"}, TypeError, "epsilon"),
            ({"w": 0}, ValueError, "w is 0"),
            ({"w": 4.0}, TypeError, "w is of type float"),
            ({"alpha": float("nan")}, ValueError, "alpha is nan"),
            ({"alpha": -1}, ValueError, "alpha is -1"),
            ({"alpha": "1"}, TypeError, "alpha"),
            ({"neighbours": "close"}, ValueError, "neighbours is 'close'"),
        ],
        ids=str,
    )
    def test_a_wrong_guarantee_is_named(self, arguments: dict[str, Any], error: type, message: str) -> None:
        with pytest.raises(ops.OptStreamError, match=message) as caught:
            ops.Guarantee(**{"epsilon": 1, "w": 4, **arguments})
        assert isinstance(caught.value, error)

    @pytest.mark.parametrize(
        ("x", "message"),
        [
            (np.zeros(W + 1), "49 values, but must have a positive multiple of w = 48"),
            (np.zeros(0), "0 values"),
            (np.zeros((3, W - 1)), r"shape \(3, 47\)"),
            (np.zeros((2, 2, W)), "shape"),
            (np.full(W, np.nan), r"values\[0\] is NaN"),
            (np.append(np.zeros(W - 1), np.inf), r"values\[47\] is inf"),
            (pd.Series([5.0] * (W - 1) + [None]), r"values\[47\] is NaN"),
            (pl.Series([None] + [5.0] * (W - 1)), r"values\[0\] is NaN"),
            (np.array(["a"] * W), "x holds <U1"),
            (np.zeros(W, dtype=complex), "x holds complex128"),
            (np.zeros(W, dtype=bool), "x holds bool"),
            ({"a": 1}, "x is of type dict"),
        ],
        ids=range(12),
    )
    def test_wrong_data_is_named_before_anything_is_drawn(self, x: Any, message: str) -> None:
        with pytest.raises(ops.OptStreamError, match=message):
            mechanism().release(x)

    def test_wrong_features_are_named(self) -> None:
        wrong: list[list[list[int]]] = [[[0, 1], [1, 2]], [[0], [2]], [[1, 2]], [[]], []]
        for cells in wrong:
            with pytest.raises(ops.ParameterError, match="cells"):
                ops.Feature(cells)
        with pytest.raises(ops.ParameterError, match="cuts"):
            ops.Feature.cuts(10, 5, 3)


class TestIntervals:
    def test_they_cover_the_noise_of_samples_and_of_the_steps_between(self) -> None:
        periods = 4000
        truth = np.full(W, 500.0)
        for sample in (ops.EqualSampling(k=4), ops.L1Sampling(k=6, threshold=100.0)):
            release = mechanism(sample=sample).release(np.tile(truth, (periods, 1)))
            for level in (0.5, 0.9, 0.99):
                low, high = release.interval(level)
                covered = ((low <= truth) & (truth <= high)).mean(axis=0)
                # A constant has no reconstruction error, so all error is noise. The standard error of a step's coverage
                # is at most 0.008; 5 of them are a false alarm about once in 10,000 runs over all steps.
                assert (np.abs(covered - level) < 0.04).all()

    def test_the_closed_form_agrees_with_simulation(self) -> None:
        generator = np.random.default_rng(5)
        first, second = generator.laplace(size=(2, 400_000))
        for share, level in itertools.product((0.0, 0.1, 0.3, 0.4999, 0.5, 0.8), (0.5, 0.9, 0.99)):
            inside = np.abs((1 - share) * first + share * second) <= half_width(share, level)
            assert inside.mean() == pytest.approx(level, abs=0.004)

    def test_a_level_must_be_a_probability(self) -> None:
        with pytest.raises(ops.ParameterError, match=r"level is 1\.5"):
            mechanism().release(LOADS).interval(1.5)


def test_masked_entries_are_refused_and_none_of_them_counts() -> None:
    mechanism = ops.OptStream(ops.Guarantee(epsilon=1, w=2), sample=ops.EqualSampling(k=2), bounds=(0, 9))
    x = np.ma.masked_array([1.0, 2.0], mask=[False, True])
    with pytest.raises(ops.DataError, match="masked entries"):
        mechanism.release(x)
    assert mechanism.release(np.ma.masked_array([1.0, 2.0])).values.shape == (2,)
