"""The evaluation: errors are what they are called, intervals cover, forecasts are those of statsmodels."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from scipy.signal import lfilter

import optstream as ops
from optstream import evaluate
from optstream.baselines import BinaryTree, EachNode, Fourier, Laplace, RescueDP, Sample
from optstream.evaluate import Forecast, Mean, arma_forecast

W = 12
TREE = ops.Hierarchy.nested({"nation": {"north": ["a", "b"], "south": ["c"]}})
TAXI = Path(os.environ.get("OPTSTREAM_DATA", "/nowhere")) / "nyc_taxi_30min.csv.gz"


def laplace(epsilon: float = 1, w: int = W) -> Laplace:
    return Laplace(ops.Guarantee(epsilon=epsilon, w=w), bounds=(0, 1000))


class TestErrors:
    @given(st.integers(1, 4), st.data())
    def test_they_are_those_of_the_definitions(self, periods: int, data: st.DataObject) -> None:
        numbers = st.lists(st.floats(-100, 100), min_size=3 * periods, max_size=3 * periods)
        released, truth = (np.array(data.draw(numbers)) for _ in range(2))
        gaps = [abs(a - b) for a, b in zip(released, truth, strict=True)]
        assert evaluate.point_error(released, truth) == pytest.approx(sum(gaps) / len(gaps))
        by_period = evaluate.period_errors(released, truth, 3)
        assert by_period == pytest.approx([sum(gaps[i : i + 3]) for i in range(0, len(gaps), 3)])
        feature = ops.Feature.cuts(3, 1)
        cells = [
            abs(sum(released[i + low : i + high]) - sum(truth[i + low : i + high]))
            for i in range(0, len(gaps), 3)
            for low, high in ((0, 1), (1, 3))
        ]
        assert evaluate.feature_error(released, truth, feature) == pytest.approx(sum(cells) / len(cells), abs=1e-9)

    def test_levels_and_consistency_of_a_hierarchy(self) -> None:
        assert TREE.nodes == ("nation", "north", "south", "a", "b", "c")
        truth = np.array([[6.0, 3.0, 3.0, 1.0, 2.0, 3.0]])
        assert evaluate.consistency_error(truth, TREE) == 0
        released = truth + np.array([[3.0, 0.0, 2.0, 0.0, 0.0, 3.0]])
        assert evaluate.level_errors(released, truth, TREE) == (3.0, 1.0, 1.0)
        # The nation is 1 from its parts, the north 0, the south 1.
        assert evaluate.consistency_error(released, TREE) == pytest.approx(2 / 3)

    def test_forms_must_agree(self) -> None:
        with pytest.raises(ops.DataError, match="shape"):
            evaluate.point_error(np.zeros(3), np.zeros(4))


class TestEstimate:
    def test_intervals_cover_the_mean_as_often_as_stated(self) -> None:
        """Of 4,000 intervals at level 0.9 between 86 and 94 of 100 cover; five standard errors are 2.4 of 100."""
        generator = np.random.default_rng(5)
        found = [Mean.of(generator.normal(7, 2, 6).tolist(), 0.9) for _ in range(4000)]
        assert 0.876 < np.mean([estimate.low <= 7 <= estimate.high for estimate in found]) < 0.924

    def test_one_trial_has_no_interval(self) -> None:
        single = Mean.of([5.0])
        assert (single.mean, single.low, single.high) == (5.0, -math.inf, math.inf)
        assert str(single) == "5"
        assert str(Mean.of([4.0, 6.0], 0.5)) == "5 ± 1"

    def test_the_logarithm_is_that_of_the_mean(self) -> None:
        assert Mean.of([50.0, 150.0]).log10 == 2
        assert Mean.of([0.0]).log10 == -math.inf

    @pytest.mark.parametrize(("values", "level"), [([], 0.95), ([1.0], 0.0), ([1.0], 1.0)])
    def test_wrong_parameters_are_refused(self, values: list[float], level: float) -> None:
        with pytest.raises(ops.ParameterError):
            Mean.of(values, level)


class TestForecast:
    @staticmethod
    def series(phi: float, theta: float, seed: int, n: int = 1500) -> Any:
        """An ARMA(1,1) series around 50, with its last surprise."""
        surprises = np.random.default_rng(seed).normal(0, 3, n)
        return 50 + lfilter([1, theta], [1, -phi], surprises), surprises[-1]

    @pytest.mark.parametrize("method", ["statsmodels", "conditional"])
    @pytest.mark.parametrize(("phi", "theta"), [(0.95, 0.3), (0.9, -0.6), (0.5, 0.4)])
    def test_it_is_that_of_the_true_model(self, phi: float, theta: float, method: Any) -> None:
        """The forecast of the fitted model is close to that of the model that made the series."""
        x, last = self.series(phi, theta, seed=8)
        found = arma_forecast(x, 30, method=method)
        first = phi * (x[-1] - 50) + theta * last
        expected = 50 + first * phi ** np.arange(30)
        # The mean of the series is known to about 3 (1 + theta) / (1 - phi) / sqrt(1500).
        assert np.abs(found - expected).max() < 4 * 3 * (1 + abs(theta)) / (1 - phi) / np.sqrt(1500)

    @pytest.mark.parametrize("scale", [0, 50, 500])
    def test_both_methods_agree(self, scale: float) -> None:
        generator = np.random.default_rng(9)
        x = 5000 + 1000 * np.sin(np.arange(48 * 28) / 48 * 2 * np.pi) + generator.laplace(0, scale + 1e-9, 48 * 28)
        exact, quick = (arma_forecast(x, 48, method=method) for method in ("statsmodels", "conditional"))
        assert np.abs(exact - quick).mean() < 60

    def test_what_never_moves_is_forecast_to_stay(self) -> None:
        assert (arma_forecast(np.full(100, 7.0), 5) == 7).all()

    def test_the_error_is_that_of_the_next_periods(self) -> None:
        x = self.series(0.9, 0.2, seed=10, n=6 * W)[0]
        forecast = Forecast(periods=4, method="conditional")
        expected = [
            np.abs(
                arma_forecast(x[day * W : (day + 4) * W], W, method="conditional") - x[(day + 4) * W : (day + 5) * W]
            ).mean()
            for day in range(2)
        ]
        assert forecast.error(x, x, W) == pytest.approx(np.mean(expected))

    def test_wrong_parameters_are_refused(self) -> None:
        with pytest.raises(ops.ParameterError, match="periods is 0"):
            Forecast(periods=0)
        with pytest.raises(ops.ParameterError, match="method is 'guess'"):
            Forecast(method="guess")  # type: ignore[arg-type]
        with pytest.raises(ops.DataError, match="more than 28 periods"):
            Forecast().error(np.zeros(28 * W), np.zeros(28 * W), W)
        with pytest.raises(ops.DataError, match="at least 8"):
            arma_forecast(np.zeros(3), 2)
        with pytest.raises(ops.DataError, match="finite"):
            arma_forecast(np.full(100, np.nan), 2)

    def test_without_statsmodels_it_is_said_what_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "statsmodels.tsa.arima.model", None)
        with pytest.raises(ops.OptStreamError, match=r"optstream\[evaluate\]"):
            arma_forecast(np.arange(20.0), 2)


class TestTrials:
    @pytest.mark.parametrize("processes", [1, 2])
    def test_the_error_of_laplace_noise_is_its_scale(self, processes: int) -> None:
        """The mean of 48,000 absolute values of Laplace noise of scale 12 has a standard error of 0.06."""
        found = evaluate.evaluate(laplace(), np.full(400 * W, 500.0), trials=10, processes=processes)
        assert found["point"].mean == pytest.approx(12, abs=0.35)
        assert found["point"].low < found["point"].mean < found["point"].high
        assert found["period"].mean == pytest.approx(W * found["point"].mean)
        assert found.epsilon == found.true_epsilon == 1
        assert found["point"].trials == 10

    def test_processes_do_not_share_their_noise(self) -> None:
        found = evaluate.evaluate(laplace(), np.full(W, 500.0), trials=40, processes=2)
        assert found["point"].high > found["point"].low

    def test_negative_values_are_truncated_if_asked(self) -> None:
        """Noise around zero of which the negative half is cut has half the error."""
        whole, cut = (
            evaluate.evaluate(laplace(), np.zeros(200 * W), trials=5, processes=1, truncate=truncate)["point"].mean
            for truncate in (False, True)
        )
        assert cut == pytest.approx(whole / 2, rel=0.1)

    def test_features_and_forecasts_are_evaluated_if_asked(self) -> None:
        found = evaluate.evaluate(
            laplace(),
            500 + np.random.default_rng(0).normal(0, 10, 31 * W),
            trials=3,
            processes=1,
            features=[ops.Feature.total(W)],
            forecast=Forecast(periods=28, method="conditional"),
        )
        assert list(found.errors) == ["point", "period", "feature 1", "forecast"]
        # The sum of 12 Laplace variables of scale 12 has a standard deviation of 59.
        assert 25 < found["feature 1"].mean < 75
        assert 4 < found["forecast"].mean < 15

    def test_a_hierarchy_has_errors_on_every_level(self) -> None:
        guarantee = ops.Guarantee(epsilon=1, w=W)
        leaves = pd.DataFrame({name: np.full(10 * W, 100.0) for name in TREE.leaves})
        mechanisms = {
            "OptStream": ops.OptStream(guarantee, sample=ops.EqualSampling(k=W), bounds=(0, 200), hierarchy=TREE),
            "Laplace": EachNode(guarantee, mechanism=Laplace, hierarchy=TREE, bounds=(0, 200)),
        }
        found = {e.mechanism: e for e in evaluate.compare(mechanisms, {"x": leaves}, trials=5, processes=1)}
        assert {"level 0", "level 1", "level 2", "consistency"} <= found["Laplace"].errors.keys()
        assert found["OptStream"]["consistency"].mean == 0
        assert found["Laplace"]["consistency"].mean > 10
        assert found["Laplace"].true_epsilon == 1
        # Three levels share the budget: the scale is 36 on each.
        assert found["Laplace"]["level 0"].mean == pytest.approx(36, rel=0.2)

    def test_several_streams_are_compared_column_by_column(self) -> None:
        mechanism = RescueDP(ops.Guarantee(epsilon=10**6, w=W), streams=2, bounds=(0, 1000))
        found = evaluate.evaluate(mechanism, np.full((2 * W, 2), 500.0), trials=2, processes=1)
        assert found["point"].mean < 1
        assert found["period"].mean == pytest.approx(W * found["point"].mean)

    def test_prefix_sums_are_compared_with_prefix_sums(self) -> None:
        mechanism = BinaryTree(ops.Guarantee(epsilon=10**6, w=W), horizon=100, bounds=(0, 1000))
        assert evaluate.evaluate(mechanism, np.full(2 * W, 500.0), trials=1, processes=1)["point"].mean < 1

    def test_tables_are_sorted_and_complete(self) -> None:
        x = np.full(5 * W, 500.0)
        mechanisms = {
            "loud": laplace(),
            "soft": laplace(10),
            "printed": Fourier(ops.Guarantee(epsilon=1, w=W), k=3, bounds=(0, 1000), calibration="paper"),
        }
        found = evaluate.compare(mechanisms, {"one": x, "two": pd.Series(x)}, trials=4, processes=1)
        assert len(found) == 6
        rows = [line.split(" | ") for line in found.to_markdown().splitlines()[2:]]
        assert [row[0].strip("| ") for row in rows] == ["one"] * 3 + ["two"] * 3
        assert rows[0][1] == "10"
        assert found.best_first()[0].mechanism == "soft"
        table = list(csv.DictReader(io.StringIO(found.to_csv())))
        assert len(table) == 12
        assert {row["error"] for row in table} == {"point", "period"}
        content = json.loads(found.to_json())
        assert Fraction(content[2]["true_epsilon"]) > 1
        assert content[2]["calibration"] == "paper"
        assert (
            json.loads(evaluate.compare(mechanisms, {"x": x}, trials=1, processes=1).to_json())[0]["errors"]["point"][
                "low"
            ]
            is None
        )
        with pytest.raises(ops.ParameterError, match="must be one of point, period"):
            found.to_markdown("forecast")

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"trials": 0}, ops.ParameterError),
            ({"trials": 1.5}, ops.ParameterTypeError),
            ({"processes": 0}, ops.ParameterError),
            ({"level": 1.0}, ops.ParameterError),
        ],
    )
    def test_wrong_parameters_are_refused(self, options: dict[str, Any], error: type[Exception]) -> None:
        with pytest.raises(error):
            evaluate.evaluate(laplace(), np.zeros(W), **{"trials": 2, "processes": 1, **options})

    def test_bad_data_is_refused_before_the_first_trial(self) -> None:
        with pytest.raises(ops.DataError, match="multiple of w"):
            evaluate.evaluate(laplace(), np.zeros(W + 1))

    def test_progress_is_shown_on_a_terminal_only(self, capfd: pytest.CaptureFixture[str]) -> None:
        evaluate.evaluate(laplace(), np.zeros(W), trials=2, processes=1)
        assert capfd.readouterr() == ("", "")


class TestEachNode:
    def test_sums_of_leaves_move_no_further_than_a_leaf(self) -> None:
        """Sums are made of integers: many leaves that are no multiples of the grid are rounded one by one."""
        tree = ops.Hierarchy.nested({"all": [str(leaf) for leaf in range(9)]})
        mechanism = EachNode(
            ops.Guarantee(epsilon=10**9, w=2), mechanism=Sample, hierarchy=tree, bounds=(0, 10), options={"k": 2}
        )
        leaves = np.full((2, 9), 0.1)
        expected = np.floor(0.1 * 1024 + 0.5) / 1024
        np.testing.assert_allclose(mechanism.release(leaves).values[0], [9 * expected, *[expected] * 9], atol=1e-12)

    def test_it_has_the_form_of_a_hierarchical_release(self) -> None:
        mechanism = EachNode(ops.Guarantee(epsilon=1, w=W), mechanism=Laplace, hierarchy=TREE, bounds=(0, 100))
        release = mechanism.release({name: np.full(W, 5.0) for name in TREE.leaves})
        assert tuple(release.values) == TREE.nodes
        assert "one leaf" in str(mechanism.statement)
        assert mechanism.statement.epsilon == 1
        assert mechanism.nodes[0].bounds == (0, 300)
        with pytest.raises(ops.DataError, match="finite"):
            mechanism.release(np.full((W, 3), np.nan))
        with pytest.raises(ops.ParameterTypeError, match="hierarchy is of type NoneType"):
            EachNode(ops.Guarantee(epsilon=1, w=W), mechanism=Laplace, hierarchy=None, bounds=(0, 1))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.skipif(not TAXI.exists(), reason="the real streams are not part of the project: set OPTSTREAM_DATA")
class TestAgainstPeers:
    """Mean absolute errors on the taxi stream (w = 48, alpha = 1) that were measured with other implementations."""

    @pytest.mark.parametrize(
        ("name", "epsilon", "published", "tolerance"),
        [
            ("Laplace", 1, 47.9, 0.03),
            ("Laplace", 0.1, 480, 0.03),
            ("Laplace", 0.01, 4802, 0.03),
            ("Sample", 1, 7324, 0.03),
            ("BudgetDistribution", 1, 226, 0.1),
            ("BudgetDistribution", 0.1, 932, 0.1),
            ("BudgetDistribution", 0.01, 5108, 0.1),
            ("BudgetAbsorption", 1, 146, 0.1),
            ("BudgetAbsorption", 0.1, 989, 0.1),
            ("BudgetAbsorption", 0.01, 4680, 0.1),
        ],
    )
    def test_errors_agree(self, name: str, epsilon: float, published: float, tolerance: float) -> None:
        from optstream import baselines  # noqa: PLC0415

        x = pd.read_csv(TAXI)["passengers"].to_numpy(float)
        mechanism = getattr(baselines, name)(ops.Guarantee(epsilon=epsilon, w=48), bounds=(0, 40_000))
        found = evaluate.evaluate(mechanism, x, trials=10)["point"].mean
        assert found == pytest.approx(published, rel=tolerance)
