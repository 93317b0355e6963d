"""Streams of every kind: no worse than clamped Laplace noise, and intervals that cover.

Few trials here, in the order of minutes; `make accuracy` has more of both.
"""

from __future__ import annotations

import pytest
from streams import Outcome, measure, stream

pytestmark = pytest.mark.slow

TRIALS = 2
WORST = 1.3
"""Most error over any four weeks that begin a week after a change, in units of that of clamped Laplace noise."""
COVERED = 0.8
"""Least share of values within intervals of 90 %; the bar of `make accuracy`, with more trials, is 0.85."""


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("name", ["zeros", "steps", "growth", "a month off", "zeros then a shape", "flipped shape"])
def test_a_stream_that_changes_is_learnt_again_within_a_week(name: str, epsilon: float) -> None:
    found = measure(stream(name), epsilon, TRIALS)
    check(found)


@pytest.mark.parametrize("name", ["constant", "one spike", "constant then a shape", "below zero", "far from zero"])
def test_intervals_cover(name: str) -> None:
    check(measure(stream(name), 10.0, TRIALS))


@pytest.mark.parametrize("name", ["alternating", "leaves of all sizes", "w = 2"])
def test_intervals_cover_what_much_noise_hides(name: str) -> None:
    check(measure(stream(name), 0.1, TRIALS))


def check(found: Outcome) -> None:
    """Hold a stream against the bars, with some room for coverage, which few trials tell to a few hundredths."""
    assert found.worst <= WORST, f"{found.worst:.2f} times clamped Laplace noise"
    assert found.covered >= COVERED, f"covered {found.covered:.2f}"
