"""Measure some steps and repeat them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from optstream.baselines.baseline import check_count
from optstream.baselines.exact import check_scale, noisy
from optstream.baselines.online import Online, Steps
from optstream.privacy.accounting import StepCosts, epsilon_of
from optstream.privacy.statement import Stage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

__all__ = ["Sample"]


@dataclass(frozen=True, kw_only=True)
class Sample(Online):
    """Measure ``k`` equally spaced steps of a period and repeat each until the next: Sample of Kellaris et al. (2014).

    Theirs measures one step in a window, with all of the budget. Straight lines between measured steps instead of
    repetitions, which take the next measured step to be known, are ``OptStream(sample=EqualSampling(k))``.

    **Guarantee.** The measured steps have the same places in every period, so any ``w`` consecutive steps hold ``k`` of
    them, each of which costs ``epsilon / k``.

    Args:
        guarantee: What is promised.
        k: The number of measured steps in a period.
        bounds: Public lower and upper bound of the values, which are clamped to them.
        calibration: Both are the same.
        grid: Public step of the grid, a power of two. By default the largest that is at most ``alpha / 1024``.

    Example:
        >>> import numpy as np
        >>> from optstream import Guarantee
        >>> values = Sample(Guarantee(epsilon=1, w=4), k=2, bounds=(0, 100)).release(np.full(8, 50.0)).values
        >>> bool(values[0] == values[1])
        True
    """

    k: int = 1

    def _check(self) -> None:
        check_count("k", self.k, 1, self.guarantee.w)
        check_scale(self.sensitivity, self.price)

    @cached_property
    def price(self) -> Fraction:
        """What a measured step costs."""
        return self.guarantee.epsilon / self.k

    @cached_property
    def places(self) -> frozenset[int]:
        """The measured steps of a period.

        >>> from optstream import Guarantee
        >>> sorted(Sample(Guarantee(epsilon=1, w=5), k=2, bounds=(0, 100)).places)
        [0, 2]
        """
        return frozenset(run * self.guarantee.w // self.k for run in range(self.k))

    def _stages(self) -> Sequence[Stage]:
        w = self.guarantee.w
        costs = [StepCosts(0, tuple(self.price * (step in self.places) for step in range(w)))]
        scale = self.guarantee.alpha / float(self.price)
        does = f"measures {self.k} of {w} steps with Laplace noise of scale {scale:.6g} and repeats them"
        return [Stage("perturb", does, epsilon_of(costs, self.guarantee))]

    def steps(self) -> Steps:
        """Return a new stream, to which values are pushed one by one."""
        return _Steps(self)


class _Steps(Steps):
    _mechanism: Sample

    def __init__(self, mechanism: Sample) -> None:
        super().__init__(mechanism)
        self._number, self._last, self._measured = 0, 0, False

    @property
    def cost(self) -> Fraction:
        """What a change of the last step by alpha costs: nothing if it was not measured."""
        return self._mechanism.price * self._measured

    def _next(self, units: int) -> float:
        self._measured = self._number in self._mechanism.places
        if self._measured:
            self._last = noisy(units, self._mechanism.sensitivity, self._mechanism.price)
        self._number = (self._number + 1) % self._mechanism.guarantee.w
        return self._last
