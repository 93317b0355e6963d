"""What counts prove: exact bounds of probabilities, and of the log-ratio of two of them.

Nothing here is asymptotic. A Clopper-Pearson bound fails with at most the stated probability for every sample size and
every true probability, so a small count only makes a proof weak, never wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy import special

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Event", "choose", "higher", "loss", "lower"]

CUTS = 160
"""How many thresholds of a statistic are compared when an event is chosen."""


def lower(count: Any, n: int, error: float) -> Any:
    """Return a lower bound of a probability from a count of n trials, too high with probability at most ``error``.

    >>> round(float(lower(10, 100, 0.025)), 4)
    0.049
    """
    count = np.asarray(count, dtype=float)
    return np.where(count > 0, special.betaincinv(np.maximum(count, 1), n - count + 1, error), 0.0)


def higher(count: Any, n: int, error: float) -> Any:
    """Return an upper bound of a probability from a count of n trials, too low with probability at most ``error``.

    >>> round(float(higher(10, 100, 0.025)), 4), round(float(higher(0, 100, 0.05)), 4)
    (0.1762, 0.0295)
    """
    return 1 - lower(n - np.asarray(count, dtype=float), n, error)


def loss(likely: Any, unlikely: Any, n: int, error: float, delta: float = 0.0) -> Any:
    """Return a lower bound of log((p - delta) / q) from the counts of an event in n trials each.

    An (epsilon, delta)-private mechanism has an epsilon of at least that. It is too high with probability at most
    ``error``, half of which goes to each of the two probabilities.

    >>> round(float(loss(5000, 1839, 10_000, 1e-3)), 3), float(loss(0, 0, 10_000, 1e-3))
    (0.898, -inf)
    >>> round(float(loss(5000, 1839, 10_000, 1e-3, 0.1)), 3)
    0.666
    """
    with np.errstate(divide="ignore"):
        above = np.maximum(lower(likely, n, error / 2) - delta, 0)
        return np.log(above) - np.log(higher(unlikely, n, error / 2))


@dataclass(frozen=True)
class Event:
    """That a statistic reaches a threshold, or stays below one.

    >>> Event(2.0, "at least", "first").counts(np.array([1.0, 2.0, 3.0]), np.array([1.0, 1.0, 2.0]))
    (2, 1)
    """

    cut: float
    tail: Literal["at least", "at most"]
    favours: Literal["first", "second"]
    """Which of the two streams makes the event more likely."""

    def counts(self, first: NDArray[np.float64], second: NDArray[np.float64]) -> tuple[int, int]:
        """Return how often the event happens on the stream that makes it likely, and on the other."""
        hits = [
            int(np.sum(scores >= self.cut if self.tail == "at least" else scores <= self.cut))
            for scores in (first, second)
        ]
        return (hits[0], hits[1]) if self.favours == "first" else (hits[1], hits[0])


def choose(
    first: NDArray[np.float64], second: NDArray[np.float64], error: float, delta: float = 0.0
) -> tuple[float, Event]:
    """Return the event of a statistic that proves most on these samples of equal size, and how much.

    The samples that choose an event must not be the ones that measure it.

    >>> proven, event = choose(np.arange(1000.0), np.arange(1000.0) - 900, 1e-3)
    >>> event.tail, event.favours, proven > 3
    ('at least', 'first', True)
    """
    n = first.size
    first, second = np.sort(first), np.sort(second)
    # Many thresholds in both tails, where the ratio of probabilities is largest.
    tail = np.geomspace(4, n / 2, CUTS // 4).astype(int)
    ranks = np.unique(np.clip(np.concatenate([tail, n - tail, [0, n - 1]]), 0, n - 1))
    cuts = np.unique(np.concatenate([first[ranks], second[ranks]]))
    above = [n - np.searchsorted(scores, cuts, side="left") for scores in (first, second)]
    below = [np.searchsorted(scores, cuts, side="right") for scores in (first, second)]
    found: list[tuple[float, Event]] = []
    for tail_name, counts in (("at least", above), ("at most", below)):
        for favours, likely, unlikely in (("first", *counts), ("second", *counts[::-1])):
            proven = loss(likely, unlikely, n, error, delta)
            best = int(np.argmax(proven))
            found.append((float(proven[best]), Event(float(cuts[best]), tail_name, favours)))  # type: ignore[arg-type]
    return max(found, key=lambda entry: entry[0])
