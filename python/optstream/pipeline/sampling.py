"""Sampling: what is measured of a period, and what choosing it costs.

A sampler that reads raw data has a price of its own (:meth:`L1Sampling.selection_costs`).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING

from optstream.errors import ParameterError, ParameterTypeError
from optstream.privacy.accounting import ChosenCosts, Cost, StepCosts, TouchCost

if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = ["BucketSampling", "EqualSampling", "L1Sampling", "Sampling"]


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

    def runs(self, w: int) -> tuple[tuple[int, int], ...]:
        """Return the first step and the one after the last of everything that is measured: single steps."""
        return tuple((step, step + 1) for step in self.steps(w))

    def selection_costs(self, w: int) -> list[Cost]:
        """Return what choosing the steps costs, per unit of epsilon: nothing."""
        _check_fits(self.k, w)
        return []

    def sample_costs(self, w: int) -> list[Cost]:
        """Return what the measured steps cost if a change of each costs 1."""
        return _run_costs(self.runs(w), w)


@dataclass(frozen=True, init=False)
class BucketSampling:
    """Measure the means of ``k`` buckets, runs of consecutive steps that make up the period. Reads no data.

    No detail between measured steps is missed, and a mean of ``n`` steps carries an ``n``-th of the noise of a sum.
    Whatever the lengths of the buckets, each step lies in one of them, so that with Laplace noise every step costs the
    same: lengths may change from period to period, chosen from what was released before, at no cost.

    Args:
        k: The number of buckets of equal length, or nearly.
        cuts: The first steps of the buckets after the first one, instead of ``k``.

    Example:
        >>> BucketSampling(k=3).runs(7)
        ((0, 2), (2, 5), (5, 7))
        >>> BucketSampling(cuts=(14, 24, 36)).runs(48)
        ((0, 14), (14, 24), (24, 36), (36, 48))
    """

    k: int
    cuts: tuple[int, ...] | None

    def __init__(self, k: int | None = None, *, cuts: Sequence[int] | None = None) -> None:
        if (k is None) == (cuts is None):
            raise ParameterError("k and cuts are both given or both missing, but one of them must be given")
        object.__setattr__(self, "cuts", None if cuts is None else tuple(cuts))
        object.__setattr__(self, "k", len(cuts) + 1 if cuts is not None else k)
        if isinstance(self.k, bool) or not isinstance(self.k, int):
            raise ParameterTypeError(f"k is of type {type(self.k).__name__}, but must be an int")
        if self.k < 1:
            raise ParameterError(f"k is {self.k}, but must be at least 1")
        if not all(isinstance(cut, int) for cut in self.cuts or ()):
            raise ParameterTypeError("cuts hold something else, but must hold ints")

    def runs(self, w: int) -> tuple[tuple[int, int], ...]:
        """Return the first step and the one after the last of each bucket."""
        if self.k > w:
            raise ParameterError(f"k is {self.k}, but must be from 1 to w = {w}")
        cuts = self.cuts
        if cuts is None:
            cuts = tuple((2 * bucket * w + self.k) // (2 * self.k) for bucket in range(1, self.k))
        edges = (0, *cuts, w)
        if not all(low < high for low, high in pairwise(edges)):
            raise ParameterError(f"cuts are {self.cuts}, but must increase strictly between 0 and w = {w}")
        return tuple(pairwise(edges))

    def selection_costs(self, w: int) -> list[Cost]:
        """Return what choosing the buckets costs, per unit of epsilon: nothing."""
        self.runs(w)
        return []

    def sample_costs(self, w: int) -> list[Cost]:
        """Return what the buckets cost if a change of any step costs 1."""
        return _run_costs(self.runs(w), w)


def _run_costs(runs: Sequence[tuple[int, int]], w: int) -> list[Cost]:
    measured = {step for start, stop in runs for step in range(start, stop)}
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
        constant_time: Whether choosing takes the same time whatever the data, as it should wherever others can time a
            release. The work is then w^2 / 2 terms; without it long periods are faster, and their time tells how smooth
            the raw data is.

    Example:
        >>> L1Sampling(k=10, threshold=1000.0)
        L1Sampling(k=10, threshold=1000.0)
    """

    k: int
    threshold: float
    constant_time: bool = field(default=True, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        _check_count(self.k)
        if isinstance(self.threshold, bool) or not isinstance(self.threshold, (int, float)):
            raise ParameterTypeError(f"threshold is of type {type(self.threshold).__name__}, but must be a real number")
        if not 0 <= self.threshold <= sys.float_info.max:
            raise ParameterError(f"threshold is {self.threshold}, but must be finite and not negative")
        if not isinstance(self.constant_time, bool):
            raise ParameterTypeError(
                f"constant_time is of type {type(self.constant_time).__name__}, but must be True or False"
            )

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


Sampling = EqualSampling | L1Sampling | BucketSampling
