"""Whole releases keep their promise on neighbours chosen to hurt, and the harness catches a release that does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest
from scipy import stats

import optstream as ops

if TYPE_CHECKING:
    from numpy.typing import NDArray

RUNS = 200_000
W = 4


def proven_loss(mechanism: ops.OptStream, x: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return a lower bound of the privacy loss between two inputs, wrong with probability below 1e-6.

    The statistic is the sum of the released values where the inputs differ. The first half of the runs chooses its
    threshold, the second half bounds the two probabilities of exceeding it (Clopper-Pearson).
    """
    sums = [mechanism.release(np.tile(data, RUNS)).values.reshape(RUNS, -1) @ (x - other) for data in (x, other)]
    (first, values), (second, others) = (np.split(statistic, 2) for statistic in sums)
    cuts = np.quantile(first, [0.1, 0.5, 0.9, 0.99, 0.999])
    return bound(values, others, max(cuts, key=lambda cut: bound(first, second, cut)))


def bound(values: NDArray[np.float64], others: NDArray[np.float64], cut: float) -> float:
    """Return a lower bound of the log-ratio of the probabilities of reaching the cut."""
    reached, missed = (stats.binomtest(int(np.sum(v >= cut)), v.size).proportion_ci(1 - 1e-6) for v in (values, others))
    return float(np.log(reached.low / missed.high)) if reached.low > 0 else -np.inf


def mechanisms(calibration: Literal["sound", "paper"]) -> list[ops.OptStream]:
    total = [ops.Feature.total(W)]
    steps: list[tuple[ops.EqualSampling | ops.L1Sampling, list[ops.Feature]]] = [
        (ops.EqualSampling(k=W), []),
        (ops.EqualSampling(k=2), total),
        (ops.L1Sampling(k=3, threshold=2.0), total),
    ]
    guarantee = ops.Guarantee(epsilon=1, w=W)
    return [
        ops.OptStream(guarantee, sample=sample, features=features, bounds=(0, 100), calibration=calibration)
        for sample, features in steps
    ]


BASE = np.full(2 * W, 50.0)
SHIFTS = {
    "a whole period": np.array([1.0] * W + [0.0] * W),
    "a window across two periods": np.array([0, 0, 1, 1, 1, 1, 0, 0], dtype=float),
}


@pytest.mark.slow
@pytest.mark.parametrize("shift", SHIFTS.values(), ids=SHIFTS.keys())
@pytest.mark.parametrize("mechanism", mechanisms("sound"), ids=["all steps", "equal", "adaptive"])
def test_no_neighbours_lose_more_than_epsilon(mechanism: ops.OptStream, shift: NDArray[np.float64]) -> None:
    assert proven_loss(mechanism, BASE + shift, BASE) <= float(mechanism.statement.epsilon)


@pytest.mark.slow
def test_the_harness_catches_the_printed_sensitivity_of_features() -> None:
    printed = mechanisms("paper")[1]
    loss = proven_loss(printed, BASE + SHIFTS["a whole period"], BASE)
    assert 1 < loss <= float(printed.statement.epsilon)
