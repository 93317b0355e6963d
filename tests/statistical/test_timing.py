"""The timing tool itself: it finds a difference that was planted, and none between equal classes.

What it can find is shown on a simulated clock, so that nothing depends on how fast or how busy a machine is; on the
real clock the planted difference is gross.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy import stats

if TYPE_CHECKING:
    from collections.abc import Callable

sys.path.append(str(Path(__file__).parents[2] / "tools"))

from timing import ALARM, RAW, Comparison, Finding, analyse, differs, measure, reading, welch


class Simulated:
    """A machine on which a call takes a time that is drawn, and time stands still otherwise."""

    def __init__(self, seed: int, cost: Callable[[np.random.Generator, int], float]) -> None:
        self.generator = np.random.default_rng(seed)
        self._cost, self._label, self._now = cost, 0, 0

    def measured(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        case = Comparison("simulated", ("one", "other"), RAW, list, self._put, self._call)
        return measure(case, count, self.generator, lambda: self._now)

    def finding(self, count: int) -> Finding:
        return analyse(*self.measured(count))

    def _put(self, label: int) -> None:
        self._label = label

    def _call(self) -> None:
        self._now += round(self._cost(self.generator, self._label))


def busy(effect: float) -> Callable[[np.random.Generator, int], float]:
    """Return the time of a call on a busy machine, which takes so many nanoseconds longer in class 1."""

    def cost(generator: np.random.Generator, label: int) -> float:
        time = 10_000 * generator.normal(1, 0.03) + effect * label
        # One call in twenty is interrupted, for much longer than it takes.
        return time + (generator.exponential(500_000) if generator.random() < 0.05 else 0)

    return cost


def test_equal_classes_are_not_told_apart() -> None:
    findings = [Simulated(seed, busy(0.0)).finding(1000) for seed in range(60)]
    assert max(abs(found.largest_t) for found in findings) < ALARM
    assert max(abs(found.effect) for found in findings) < 100


def test_one_percent_is_found_under_interrupts_that_hide_it() -> None:
    for seed in range(10):
        labels, times = Simulated(seed, busy(100.0)).measured(4000)
        found = analyse(labels, times)
        assert found.largest_t > ALARM
        assert found.effect == pytest.approx(100, abs=50)
        # Without cropping nothing shows.
        assert abs(welch(times[labels == 0], times[labels == 1])) < ALARM


def test_two_findings_must_agree() -> None:
    slower, faster = (Simulated(1, busy(effect)).finding(2000) for effect in (500.0, -500.0))
    assert differs([slower, slower])
    assert differs([faster, faster])
    assert not differs([slower, faster])


def test_a_slow_path_that_is_rare_is_found() -> None:
    def cost(generator: np.random.Generator, label: int) -> float:
        return float(10_000 * generator.normal(1, 0.01) + (2000 if label and generator.random() < 0.02 else 0))

    assert Simulated(3, cost).finding(20_000).largest_t > ALARM


def test_welch_agrees_with_its_definition() -> None:
    first, second = np.array([1.0, 2.0, 3.0]), np.array([4.0, 6.0, 8.0, 10.0])
    assert welch(first, second) == pytest.approx(5 / (1 / 3 + (20 / 3) / 4) ** 0.5)
    assert welch(first, second) == pytest.approx(stats.ttest_ind(second, first, equal_var=False).statistic)
    assert welch(np.array([1.0]), np.array([2.0, 3.0])) == 0.0
    assert welch(np.array([1.0, 1.0]), np.array([2.0, 2.0])) == np.inf


def test_an_early_exit_is_found_on_a_real_clock() -> None:
    generator, values = np.random.default_rng(5), np.zeros(960)

    def first(position: int) -> Callable[[], np.ndarray]:
        return lambda: (np.arange(960) == position).astype(float)

    inputs = reading(values, (first(10), first(900)))
    leaking = Comparison("any", ("early", "late"), RAW, **inputs, call=lambda: any(x > 0 for x in values.tolist()))
    # The late exit takes twice as long; on the busiest machine one of five attempts shows it.
    assert any(analyse(*measure(leaking, 400, generator)).largest_t > ALARM for _ in range(5))
