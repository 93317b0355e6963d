"""The counter of Chan et al. (2011): prefix sums from a binary tree of noisy sums."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from optstream.baselines.baseline import check_count
from optstream.baselines.exact import LIMIT, check_scale, noisy
from optstream.baselines.online import Online, Steps
from optstream.errors import DataError, ParameterError
from optstream.privacy.accounting import StepCosts, epsilon_of
from optstream.privacy.statement import Stage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from numpy.typing import NDArray

__all__ = ["BinaryTree"]


@dataclass(frozen=True, kw_only=True)
class BinaryTree(Online):
    """Release the sum of all steps so far, from noisy sums of runs of 1, 2, 4, ... steps (Chan et al. 2011).

    A prefix sum adds up at most one noisy sum of every length, so its error grows with the logarithm of the number of
    steps only. The released values are prefix sums, to be compared with ``numpy.cumsum`` of the data.

    **Guarantee.** A step lies in one run of every length, so with L lengths and Laplace noise of scale
    ``w L alpha / epsilon`` on every sum a step costs ``epsilon / w``, and any ``w`` consecutive steps cost epsilon.

    Args:
        guarantee: What is promised.
        horizon: The most steps that a stream may have.
        bounds: Public lower and upper bound of the values, which are clamped to them.
        calibration: Both are the same.
        grid: Public step of the grid, a power of two. By default the largest that is at most ``alpha / 1024``.

    Example:
        >>> import numpy as np
        >>> from optstream import Guarantee
        >>> mechanism = BinaryTree(Guarantee(epsilon=1, w=4), horizon=8, bounds=(0, 100))
        >>> mechanism.release(np.full(8, 50.0)).values.shape
        (8,)
    """

    horizon: int

    def _check(self) -> None:
        check_count("horizon", self.horizon, 1, 2**40)
        check_scale(self.sensitivity, self.price)
        if self.horizon * int(np.abs(self.quantised(np.array(self.bounds, dtype=float))).max()) > LIMIT:
            raise ParameterError(f"horizon is {self.horizon}, but must be less for bounds {self.bounds} and this grid")

    @cached_property
    def lengths(self) -> int:
        """The number of lengths of runs."""
        return self.horizon.bit_length()

    @cached_property
    def price(self) -> Fraction:
        """What a change of one step costs in one noisy sum."""
        return self.guarantee.epsilon / (self.guarantee.w * self.lengths)

    def _stages(self) -> Sequence[Stage]:
        costs = [StepCosts(0, (self.price * self.lengths,) * self.guarantee.w)]
        scale = self.guarantee.alpha / float(self.price)
        does = f"measures sums of runs of {self.lengths} lengths with Laplace noise of scale {scale:.6g}"
        return [Stage("perturb", does, epsilon_of(costs, self.guarantee))]

    def truth(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what the released values of a series stand for: its prefix sums."""
        return x.cumsum()

    def _check_length(self, steps: int) -> None:
        if steps > self.horizon:
            raise DataError(f"x has {steps} values, but must have at most horizon = {self.horizon}")

    def steps(self) -> Steps:
        """Return a new stream, to which values are pushed one by one."""
        return _Steps(self)


class _Steps(Steps):
    _mechanism: BinaryTree

    def __init__(self, mechanism: BinaryTree) -> None:
        super().__init__(mechanism)
        self._count = 0
        self._sums = [0] * mechanism.lengths
        self._noisy = [0] * mechanism.lengths
        """The noisy sums of which the prefix is made: one for every digit 1 of the number of steps."""

    @property
    def cost(self) -> Fraction:
        """What a change of the last step by alpha costs, in all sums that it will be part of."""
        return self._mechanism.price * self._mechanism.lengths

    def _next(self, units: int) -> float:
        mechanism = self._mechanism
        mechanism._check_length(self._count + 1)  # noqa: SLF001  (one idea in two objects)
        self._count += 1
        level = (self._count & -self._count).bit_length() - 1
        # The step completes a run of 2^level steps, which takes the place of the shorter ones.
        self._sums[level] = sum(self._sums[:level]) + units
        self._noisy[level] = noisy(self._sums[level], mechanism.sensitivity, mechanism.price)
        self._sums[:level] = self._noisy[:level] = [0] * level
        return sum(self._noisy)
