"""The sparse vector technique for Python users: right answers, right order, right price, and typed errors."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

import optstream as ops
from optstream.pipeline.sparse_vector import shares

GOOD: dict[str, Any] = {"threshold": 50.0, "sensitivity": 1.0, "epsilon": 1.0, "max_positive": 2, "bounds": (0, 100)}


def test_the_call_ends_with_the_last_positive_answer_that_was_allowed() -> None:
    scores = np.array([0.0, 100.0, 0.0, 100.0, 100.0, 0.0])
    generous = {**GOOD, "epsilon": 1000}
    assert ops.above_threshold(scores, **generous).tolist() == [False, True, False, True]
    assert ops.above_threshold(scores, **{**generous, "max_positive": 5}).tolist() == [s > 50 for s in scores]


def test_many_negative_answers_cost_no_accuracy() -> None:
    # 100,000 scores far below and one far above: noise of scale 2c/e2 rarely reaches 500.
    scores = np.zeros(100_000)
    scores[70_000] = 1000.0
    options = {**GOOD, "bounds": (0, 1000), "threshold": 500, "max_positive": 1}
    answers = ops.above_threshold(scores, **options)
    assert answers.size == 70_001
    assert answers.sum() == 1


def test_the_first_answer_has_its_closed_form() -> None:
    # P(nu - rho >= t) for independent Laplace variables of scales 2/e2 and 1/e1, as in the tail of their sum.
    first, second = (float(share) for share in shares(1))
    a, b, t, runs = 1 / first, 2 / second, 3.0, 40_000
    expected = (a * a * np.exp(-t / a) - b * b * np.exp(-t / b)) / (a * a - b * b) / 2
    scores = np.array([50.0 - t])
    positive = sum(bool(ops.above_threshold(scores, **{**GOOD, "max_positive": 1})[0]) for _ in range(runs))
    # False-alarm rate 1e-6. A query noise that is 5 % off in scale moves the probability by 8 standard errors.
    assert stats.binomtest(positive, runs, expected).pvalue > 1e-6


def test_the_budget_is_divided_as_lyu_su_and_li_advise() -> None:
    for positives in (1, 4, 8, 100):
        first, second = shares(positives)
        assert first + second == 1
        assert float(second / first) == pytest.approx((2 * positives) ** (2 / 3), rel=1e-3)
    assert shares(4) == (Fraction(1, 5), Fraction(4, 5))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"scores": np.array([])}, ValueError, "empty"),
        ({"scores": np.array([np.nan])}, ValueError, r"values\[0\] is NaN"),
        ({"scores": np.zeros((2, 2))}, ValueError, "2 dimensions"),
        ({"scores": [1.0]}, TypeError, "of type list"),
        ({"threshold": np.nan}, ValueError, "threshold is NaN"),
        ({"threshold": "high"}, TypeError, "threshold is of type str"),
        ({"max_positive": 0}, ValueError, "max_positive is 0"),
        ({"max_positive": 1.0}, TypeError, "max_positive is of type float"),
        ({"epsilon": 0}, ValueError, "epsilon is 0"),
        ({"epsilon": 1e-16}, ValueError, "epsilon is"),
        ({"sensitivity": -1.0}, ValueError, "sensitivity is -1.0"),
        ({"bounds": (1, 0)}, ValueError, r"bounds\[0\]"),
    ],
    ids=str,
)
def test_bad_input_is_named(change: dict[str, Any], error: type, message: str) -> None:
    arguments = {"scores": np.array([1.0]), **GOOD, **change}
    with pytest.raises(ops.OptStreamError, match=message) as caught:
        ops.above_threshold(arguments.pop("scores"), **arguments)
    assert isinstance(caught.value, error)
