"""The privacy loss of what was really released, computed from the closed forms of the noise, for the worst neighbour.

Given what leaves, the probability of it factorises over the steps, or over groups of them. So for every transcript the
largest ratio of probabilities over all neighbours of the data can be computed, and no audit needs to guess it.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from distributions import laplace_below

import optstream as ops
from optstream.baselines import BudgetAbsorption, BudgetDistribution, PeGaSus, exact
from optstream.baselines import pegasus as pegasus_module
from optstream.baselines.pegasus import multiplied_deviation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from optstream.baselines.republication import Republication

W = 4
STREAMS: dict[str, Callable[[np.random.Generator, int], NDArray[np.float64]]] = {
    "constant": lambda _, n: np.full(n, 10.0),
    "zigzag": lambda _, n: np.where(np.arange(n) % 2, 20.0, 0.0),
    "random": lambda g, n: g.integers(0, 20, n).astype(float),
    "steps": lambda _, n: (np.arange(n) // 5 % 3 * 6).astype(float),
}
streams = pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS.keys())


def log_mass(noise: int, scale: float) -> float:
    """The log-probability of a discrete Laplace integer."""
    q = np.exp(-1 / scale)
    return float(np.log((1 - q) / (1 + q)) - abs(noise) / scale)


def log_at_least(edge: int, scale: float) -> float:
    """The log-probability that a discrete Laplace integer is at least that; accurate far out too."""
    if edge >= 1:
        return float(-edge / scale - np.log1p(np.exp(-1 / scale)))
    return float(np.log1p(-np.exp(-(1 - edge) / scale) / (1 + np.exp(-1 / scale))))


def log_below(edge: int, scale: float) -> float:
    return log_at_least(1 - edge, scale)


class Transcript:
    """What budget distribution or absorption released of each step, with the value that each step had."""

    def __init__(self, mechanism: Republication, x: NDArray[np.float64]) -> None:
        self.mechanism, self.x = mechanism, x.astype(int).tolist()
        steps, self.seen = mechanism.steps(), []
        for value in x:
            offer, last = steps._offer(), steps._published
            steps.push(value)
            self.seen.append((offer, last, steps._spent, steps._published))

    def log_probability(self, step: int, value: int) -> float:
        """Of what was released of a step, had it had another value."""
        mechanism = self.mechanism
        offer, last, spent, published = self.seen[step]
        if not offer:
            return 0.0
        # Far means: noise at least so large that the noisy distance exceeds the scale.
        edge = int(1 / mechanism.price(offer) // 1) + 1 - abs(value - last)
        scale = 1 / float(mechanism.asked)
        if not spent:
            return log_below(edge, scale)
        return log_at_least(edge, scale) + log_mass(published - value, 1 / float(mechanism.price(spent)))

    def worst_window(self) -> float:
        """The largest log-ratio over all neighbours: each step of the window moves by one, the way that shows most."""
        gains = []
        for step, value in enumerate(self.x):
            here = self.log_probability(step, value)
            gains.append(max(self.log_probability(step, value + change) - here for change in (-1, 0, 1)))
        return max(sum(gains[first : first + W]) for first in range(len(gains) - W + 1))


class TestRepublication:
    @streams
    @pytest.mark.parametrize("kind", [BudgetDistribution, BudgetAbsorption])
    @pytest.mark.parametrize("epsilon", [0.5, 2, 8])
    def test_no_transcript_loses_more_than_epsilon(self, kind: Any, stream: Any, epsilon: float) -> None:
        mechanism = kind(ops.Guarantee(epsilon=epsilon, w=W), bounds=(0, 20), grid=1.0)
        losses = [Transcript(mechanism, stream(np.random.default_rng(), 200)).worst_window() for _ in range(10)]
        assert max(losses) <= epsilon * (1 + 1e-9)

    @pytest.mark.parametrize("kind", [BudgetDistribution, BudgetAbsorption])
    def test_some_transcripts_lose_nearly_as_much(self, kind: Any) -> None:
        """Power: the computed loss is so near to epsilon that a mechanism with half the noise would exceed it."""
        mechanism = kind(ops.Guarantee(epsilon=2, w=W), bounds=(0, 20), grid=1.0)
        zigzag = STREAMS["zigzag"](np.random.default_rng(), 400)
        assert max(Transcript(mechanism, zigzag).worst_window() for _ in range(20)) > 0.5 * 2

    def test_the_probabilities_are_those_of_the_mechanism(self) -> None:
        """The decision on the first step, 4,000 times: five standard errors are 0.04."""
        mechanism = BudgetAbsorption(ops.Guarantee(epsilon=2, w=W), bounds=(0, 20), grid=1.0)
        found = []
        for _ in range(4000):
            steps = mechanism.steps()
            steps.push(5.0)
            found.append(steps._spent > 0)
        edge = int(1 / mechanism.price(1) // 1) + 1 - 5
        assert np.mean(found) == pytest.approx(np.exp(log_at_least(edge, 1 / float(mechanism.asked))), abs=0.04)


class TestPeGaSus:
    """Perturbed steps and groups leave together, which is more than their smoothed values."""

    @staticmethod
    def transcript(
        mechanism: PeGaSus, x: Sequence[int], monkeypatch: pytest.MonkeyPatch
    ) -> tuple[list[int], list[tuple[int, int, bool]]]:
        """Return the perturbed steps, and every run of the technique as first step, last step and whether it ended."""
        drawn: list[int] = []
        real = exact.noisy

        def recorded(value: int, sensitivity: int, epsilon: Fraction) -> int:
            drawn.append(real(value, sensitivity, epsilon))
            return drawn[-1]

        monkeypatch.setattr(pegasus_module, "noisy", recorded)
        steps, noisy, runs, first = mechanism.steps(), [], [], 0
        for step, value in enumerate(x):
            drawn.clear()
            was_open = bool(steps._raw)  # type: ignore[attr-defined]
            steps.push(float(value))
            noisy.append(drawn[0])
            if not was_open:
                first = step
            elif not steps._raw:  # type: ignore[attr-defined]
                runs.append((first, step, True))
        if steps._raw:  # type: ignore[attr-defined]
            runs.append((first, len(x) - 1, False))
        return noisy, runs

    @staticmethod
    def log_run(mechanism: PeGaSus, values: Sequence[int], *, ended: bool) -> float:
        """The log-probability of the answers of a run, summed over the noise of its threshold."""
        price = float(mechanism.group_price)
        threshold = int(Fraction(mechanism.threshold or 0))
        shared = np.arange(-int(160 / price), int(160 / price) + 1)
        log_total = log_mass(0, 4 / price) - np.abs(shared) * price / 4
        for count in range(2, len(values) + 1):
            joins = laplace_below(8 / price, threshold + shared - multiplied_deviation(sorted(values[:count])) // count)
            closes = ended and count == len(values)
            log_total += np.log(np.maximum(1 - joins if closes else joins, 1e-300))
        highest = log_total.max()
        return float(highest + np.log(np.exp(log_total - highest).sum()))

    @streams
    @pytest.mark.parametrize("grouping", [0.2, 0.8])
    def test_no_transcript_loses_more_than_epsilon(
        self, grouping: float, stream: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        w, epsilon = 3, 6
        mechanism = PeGaSus(
            ops.Guarantee(epsilon=epsilon, w=w), grouping=grouping, threshold=6.0, bounds=(0, 20), grid=1.0
        )
        x = stream(np.random.default_rng(), 18).astype(int).tolist()
        noisy, runs = self.transcript(mechanism, x, monkeypatch)

        def log_probability(values: Sequence[int]) -> float:
            perturbed = sum(
                log_mass(there - value, 1 / float(mechanism.perturb_price))
                for there, value in zip(noisy, values, strict=True)
            )
            return perturbed + sum(
                self.log_run(mechanism, values[first : last + 1], ended=ended) for first, last, ended in runs
            )

        here, worst = log_probability(x), 0.0
        for first, change in itertools.product(range(len(x) - w + 1), itertools.product((-1, 0, 1), repeat=w)):
            other = [value + (change[step - first] if first <= step < first + w else 0) for step, value in enumerate(x)]
            worst = max(worst, abs(log_probability(other) - here))
        assert 0.5 * epsilon * (1 - grouping) < worst <= epsilon * (1 + 1e-6)
