"""PeGaSus of Chen et al. (2017), for windows of w steps."""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass
from decimal import Decimal  # noqa: TC003  (resolved by get_type_hints)
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from optstream.baselines.baseline import check_positive
from optstream.baselines.exact import check_scale, noisy
from optstream.baselines.online import Online, Steps
from optstream.errors import ParameterError
from optstream.privacy.accounting import StepCosts, epsilon_of
from optstream.privacy.budget import exact
from optstream.privacy.statement import Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PeGaSus"]

LARGEST_SCALE = 2**43
"""The largest scale of noise for grouping, in grid units: 2^53 is 1024 times as far, and has a chance of exp(-1024)."""


@dataclass(frozen=True, kw_only=True)
class PeGaSus(Online):
    """Perturb every step, group steps that deviate little, smooth within the group (Chen et al. 2017).

    **Guarantee.** A change of one step is read by one perturbation and by one run of the sparse vector technique, which
    ends with the group: the deviation of a group moves by less than 2 alpha. Both together cost ``epsilon / w``, and a
    change of ``w`` steps is a chain of ``w`` changes of one step (group privacy), so any window costs epsilon.
    Smoothing reads released values only. The OptStream paper divides the budget in the same way.

    Args:
        guarantee: What is promised.
        bounds: Public lower and upper bound of the values, which are clamped to them.
        grouping: The share of the budget for grouping; a fifth, as its authors have it.
        threshold: The deviation, summed over a group, at which the group ends. By default 5 alpha divided by the budget
            of a step for grouping, as its authors have it.
        smooth: Whether a step is the ``"median"`` or the ``"mean"`` of the perturbed steps of its group so far.
        calibration: Both are the same.
        grid: Public step of the grid, a power of two. By default the largest that is at most ``alpha / 1024``.

    Example:
        >>> import numpy as np
        >>> from optstream import Guarantee
        >>> PeGaSus(Guarantee(epsilon=1, w=4), bounds=(0, 100)).release(np.full(8, 50.0)).values.shape
        (8,)
    """

    grouping: float | Fraction | Decimal = Fraction(1, 5)
    threshold: float | None = None
    smooth: Literal["median", "mean"] = "median"

    def _check(self) -> None:
        object.__setattr__(self, "grouping", exact("grouping", self.grouping))
        if not self.grouping < 1:
            raise ParameterError(f"grouping is {self.grouping}, but must be less than 1")
        if self.threshold is None:
            object.__setattr__(self, "threshold", 5 * self.guarantee.alpha / float(self.group_price))
        check_positive("threshold", self.threshold)
        if self.smooth not in {"median", "mean"}:
            raise ParameterError(f"smooth is {self.smooth!r}, but must be 'median' or 'mean'")
        # A threshold beyond 2^53 would be rounded; below this scale no threshold ever comes near.
        if 8 * self.sensitivity / self.group_price > LARGEST_SCALE:
            raise ParameterError(f"epsilon is {self.guarantee.epsilon}, but must be more (or use a coarser grid)")
        check_scale(self.sensitivity, self.perturb_price)

    @cached_property
    def group_price(self) -> Fraction:
        """What grouping costs for one step."""
        return Fraction(self.grouping) * self.guarantee.epsilon / self.guarantee.w

    @cached_property
    def perturb_price(self) -> Fraction:
        """What perturbing costs for one step."""
        return (1 - Fraction(self.grouping)) * self.guarantee.epsilon / self.guarantee.w

    def _stages(self) -> Sequence[Stage]:
        scale = self.guarantee.alpha / float(self.perturb_price)
        return [
            Stage(name, does, epsilon_of([StepCosts(0, (price,) * self.guarantee.w)], self.guarantee))
            for name, does, price in (
                ("perturb", f"measures every step with Laplace noise of scale {scale:.6g}", self.perturb_price),
                ("group", "groups steps by the sparse vector technique on their deviation", self.group_price),
            )
        ]

    def steps(self) -> Steps:
        """Return a new stream, to which values are pushed one by one."""
        return _Steps(self)


class _Steps(Steps):
    _mechanism: PeGaSus

    def __init__(self, mechanism: PeGaSus) -> None:
        super().__init__(mechanism)
        self._raw: list[int] = []
        """The steps of the open group in the order of their size; empty if there is none."""
        self._noisy: list[int] = []
        """The perturbed steps of the last group in the order of their size."""
        self._limit = 0
        self._threshold = int(Fraction(mechanism.threshold or 0) / Fraction(mechanism.step))

    @property
    def cost(self) -> Fraction:
        """What a change of the last step by alpha costs."""
        return self._mechanism.perturb_price + self._mechanism.group_price

    def _next(self, units: int) -> float:
        mechanism = self._mechanism
        perturbed = noisy(units, mechanism.sensitivity, mechanism.perturb_price)
        if not self._joins(units):
            self._noisy = []
        insort(self._noisy, perturbed)
        count = len(self._noisy)
        if mechanism.smooth == "mean":
            return sum(self._noisy) / count
        return (self._noisy[count // 2] + self._noisy[(count - 1) // 2]) / 2

    def _joins(self, units: int) -> bool:
        """Return whether a step belongs to the open group; if not, it closes that or opens a new one.

        The threshold has noise of scale ``4 alpha / epsilon`` and every deviation of scale ``8 alpha / epsilon``, with
        epsilon the price of grouping (Dwork and Roth 2014, AboveThreshold, for a sensitivity of 2 alpha).
        """
        reach = 2 * self._mechanism.sensitivity
        if not self._raw:
            self._raw = [units]
            self._limit = noisy(self._threshold, 2 * reach, self._mechanism.group_price)
            return False
        insort(self._raw, units)
        # Deviations that differ by less than two changes have whole parts that differ by at most as much.
        deviation = multiplied_deviation(self._raw) // len(self._raw)
        if noisy(deviation, 4 * reach, self._mechanism.group_price) < self._limit:
            return True
        # The step that ends a group is a group by itself, which no deviation is asked of again.
        self._raw = []
        return False


def multiplied_deviation(ordered: Sequence[int]) -> int:
    """Return n times the sum of absolute differences from the mean, of n integers in the order of their size.

    >>> multiplied_deviation([0, 1, 5])
    18
    """
    count, total = len(ordered), sum(ordered)
    above = ordered[bisect_right(ordered, total // count) :]
    return 2 * (count * sum(above) - len(above) * total)
