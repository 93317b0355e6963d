"""The replaceable steps of a release: which steps of a period are measured, with what noise, and how the rest follows.

Each step says what it reads. A sampler that reads raw data has a price of its own (:meth:`L1Sampling.selection_costs`);
what reads only private outputs is free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from optstream.accounting import ChosenCosts, Cost, StepCosts, TouchCost
from optstream.errors import ParameterError, ParameterTypeError

__all__ = ["EqualSampling", "L1Sampling", "LaplaceNoise", "Linear"]


def _check_count(k: int) -> None:
    if isinstance(k, bool) or not isinstance(k, int):
        raise ParameterTypeError(f"k is of type {type(k).__name__}, but must be an int")
    if k < 1:
        raise ParameterError(f"k is {k}, but must be at least 2 (or 1 if w is 1)")


def _check_fits(k: int, w: int) -> None:
    if not min(2, w) <= k <= w:
        raise ParameterError(f"k is {k}, but must be from {min(2, w)} to w = {w}")


@dataclass(frozen=True)
class EqualSampling:
    """Measure ``k`` equally spaced steps, the first and the last among them. Reads no data; ``k = w`` measures all.

    Example:
        >>> EqualSampling(k=4).steps(10)
        (0, 3, 6, 9)
    """

    k: int

    def __post_init__(self) -> None:
        _check_count(self.k)

    def steps(self, w: int) -> tuple[int, ...]:
        """Return the measured steps of a period of ``w`` steps."""
        _check_fits(self.k, w)
        gaps = max(self.k - 1, 1)
        return tuple((2 * i * (w - 1) + gaps) // (2 * gaps) for i in range(self.k))

    def selection_costs(self, w: int) -> list[Cost]:
        """Return what choosing the steps costs, per unit of epsilon: nothing."""
        _check_fits(self.k, w)
        return []

    def sample_costs(self, w: int) -> list[Cost]:
        """Return what the measured steps cost if a change of each costs 1."""
        measured = set(self.steps(w))
        return [StepCosts(0, tuple(Fraction(step in measured) for step in range(w)))]


@dataclass(frozen=True)
class L1Sampling:
    """Measure ``k`` steps chosen by the sparse vector technique: the paper's L1-based sampling.

    Walking through the period, a step is measured when a straight line from the last measured one has gathered an L1
    error of ``threshold``, both noisy. The first and the last step are always measured, and the remaining ones are
    taken when only as many are left as are needed. Reads the raw data, so it costs a share of the budget.

    Args:
        k: The number of measured steps.
        threshold: The L1 error, in the units of the data summed over steps. Public: choose it from past releases.

    Example:
        >>> L1Sampling(k=10, threshold=1000.0)
        L1Sampling(k=10, threshold=1000.0)
    """

    k: int
    threshold: float

    def __post_init__(self) -> None:
        _check_count(self.k)
        if isinstance(self.threshold, bool) or not isinstance(self.threshold, (int, float)):
            raise ParameterTypeError(f"threshold is of type {type(self.threshold).__name__}, but must be a real number")
        if not math.isfinite(self.threshold) or self.threshold < 0:
            raise ParameterError(f"threshold is {self.threshold}, but must be finite and not negative")

    def reads(self, w: int) -> bool:
        """Whether there is a choice to make; with ``k = 2`` or ``k = w`` there is none."""
        return 2 < self.k < w  # noqa: PLR2004

    def selection_costs(self, w: int) -> list[Cost]:
        """Return what choosing the steps costs, per unit of epsilon: all of it as soon as the period is touched."""
        _check_fits(self.k, w)
        return [TouchCost(0, w, Fraction(1))] if self.reads(w) else []

    def sample_costs(self, w: int) -> list[Cost]:
        """Return what the measured steps cost, for the worst choice, if a change of each costs 1."""
        _check_fits(self.k, w)
        return [ChosenCosts(0, w, free=max(self.k - 2, 0), cost=Fraction(1))]

    def positives(self) -> int:
        """Return the most positive answers that the sparse vector technique gives."""
        return max(self.k - 2, 0)


@dataclass(frozen=True)
class LaplaceNoise:
    """Perturb every measured value with independent discrete Laplace noise.

    Example:
        >>> LaplaceNoise()
        LaplaceNoise()
    """


@dataclass(frozen=True)
class Linear:
    """Reconstruct the steps between two measured ones on a straight line. Reads private values only.

    Example:
        >>> Linear()
        Linear()
    """
