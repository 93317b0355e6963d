"""FAST of Fan and Xiong (2014), for windows of w steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from optstream.baselines.baseline import check_count, check_positive
from optstream.baselines.exact import check_scale, noisy
from optstream.baselines.kalman import Kalman
from optstream.baselines.online import Online, Steps
from optstream.baselines.pid import DEFAULT_GAINS, Controller, Gains
from optstream.privacy.statement import Stage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

__all__ = ["Fast"]


@dataclass(frozen=True, kw_only=True)
class Fast(Online):
    """Measure when a controller says so, filter the measurements, predict between them (Fan and Xiong 2014).

    FAST shares its budget among at most M measured steps of a series of known length. A stream without end is cut into
    blocks of ``w`` steps with M each, as Kellaris et al. (2014) do.

    **Guarantee.** When to measure is decided by released values only, so only measured steps cost anything. A sliding
    window meets two blocks and so at most 2 M measured steps, or ``w`` if that is less; an aligned one meets M. Each
    costs epsilon divided by that number.

    Args:
        guarantee: What is promised.
        samples: The most measured steps of a block, M. By default a quarter of ``w``.
        process_variance: How far the value wanders in one step, as a variance: public. None learns it from what was
            measured.
        target: The relative error at which the interval between measurements stays as it is.
        reaction: How fast the interval grows or shrinks, in steps.
        gains: The gains of the controller.
        bounds: Public lower and upper bound of the values, which are clamped to them.
        calibration: Both are the same.
        grid: Public step of the grid, a power of two. By default the largest that is at most ``alpha / 1024``.

    Example:
        >>> import numpy as np
        >>> from optstream import Guarantee
        >>> Fast(Guarantee(epsilon=1, w=4), bounds=(0, 100)).release(np.full(8, 50.0)).values.shape
        (8,)
    """

    samples: int | None = None
    process_variance: float | None = None
    target: float = 0.1
    reaction: float = 5.0
    gains: Gains = DEFAULT_GAINS

    def _check(self) -> None:
        w = self.guarantee.w
        if self.samples is None:
            object.__setattr__(self, "samples", max(w // 4, 1))
        check_count("samples", self.samples, 1, w)
        check_positive("target", self.target)
        check_positive("reaction", self.reaction)
        if self.process_variance is not None:
            check_positive("process_variance", self.process_variance)
        object.__setattr__(self, "gains", Gains(*self.gains))
        check_scale(self.sensitivity, self.price)

    @property
    def most(self) -> int:
        """The most measured steps of a block."""
        return self.samples or 1

    @cached_property
    def price(self) -> Fraction:
        """What a measured step costs."""
        w = self.guarantee.w
        met = self.most if self.guarantee.neighbours == "aligned" else min(2 * self.most, w)
        return self.guarantee.epsilon / met

    def _stages(self) -> Sequence[Stage]:
        scale = self.guarantee.alpha / float(self.price)
        does = f"measures up to {self.most} steps of every {self.guarantee.w} with Laplace noise of scale {scale:.6g}"
        return [Stage("perturb", does, self.guarantee.epsilon)]

    def steps(self) -> Steps:
        """Return a new stream, to which values are pushed one by one."""
        return _Steps(self)


class _Steps(Steps):
    _mechanism: Fast

    def __init__(self, mechanism: Fast) -> None:
        super().__init__(mechanism)
        self._filter = Kalman(_in_units(mechanism.process_variance, mechanism.step))
        self._controller = Controller(mechanism.gains)
        self._number, self._used = 0, 0
        self._since, self._interval = 0, 1.0
        self._measured = False

    @property
    def cost(self) -> Fraction:
        """What a change of the last step by alpha costs: nothing if it was not measured."""
        return self._mechanism.price * self._measured

    def _next(self, units: int) -> float:
        mechanism = self._mechanism
        if self._number == 0:
            self._used = 0
        self._number = (self._number + 1) % mechanism.guarantee.w
        self._filter.predict()
        self._since += 1
        self._measured = self._since >= self._interval and self._used < mechanism.most
        if self._measured:
            self._measure(units)
        return self._filter.estimate

    def _measure(self, units: int) -> None:
        mechanism, prior = self._mechanism, self._filter.estimate
        scale = mechanism.sensitivity / float(mechanism.price)
        self._filter.correct(noisy(units, mechanism.sensitivity, mechanism.price), 2 * scale**2)
        posterior = self._filter.estimate
        # An error relative to less than alpha would be noise at any budget.
        error = abs(posterior - prior) / max(abs(posterior), mechanism.sensitivity)
        controlled = self._controller.feed(error, self._since) / mechanism.target - 1
        change = mechanism.reaction * (1 - math.exp(min(controlled, 50.0)))
        self._interval = min(max(self._interval + change, 1.0), float(mechanism.guarantee.w))
        self._used, self._since = self._used + 1, 0


def _in_units(variance: float | None, step: float) -> float | None:
    return None if variance is None else variance / step**2
