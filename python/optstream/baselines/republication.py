"""Publish a step, or repeat the last published one if it is near enough: what both schemes of Kellaris et al. share."""

from __future__ import annotations

from abc import abstractmethod
from fractions import Fraction
from typing import TYPE_CHECKING

from optstream.accounting import StepCosts, epsilon_of
from optstream.baselines.exact import laplace
from optstream.baselines.online import Online, Steps
from optstream.baselines.window_budget import WindowBudget
from optstream.statement import Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Republication", "RepublicationSteps"]


class Republication(Online):
    """Half of the budget asks how far a step is from what was published last, the other half publishes.

    The distance of a step from a published number moves by at most alpha, so asking for it with Laplace noise of scale
    ``2 w alpha / epsilon`` costs ``epsilon / (2 w)``, and ``epsilon / 2`` in any window. A step is published if its
    noisy distance exceeds the scale of the noise that it would get.
    """

    @property
    def half(self) -> Fraction:
        """What asking, and publishing, may cost in a window."""
        return self.guarantee.epsilon / 2

    def _check(self) -> None:
        # Noise for the least budget must be in reach: later, data would decide whether it is.
        laplace(self.sensitivity, WindowBudget(self.half, self.guarantee.w).smallest)

    @abstractmethod
    def _publishes(self) -> str:
        """Return in words how the budget for publishing is divided."""

    def _stages(self) -> Sequence[Stage]:
        w = self.guarantee.w
        asked = epsilon_of([StepCosts(0, (self.half / w,) * w)], self.guarantee)
        scale = self.guarantee.alpha * w / float(self.half)
        does = f"asks how far each step is from the last published one, with Laplace noise of scale {scale:.6g}"
        return [Stage("dissimilarity", does, asked), Stage("publish", self._publishes(), self.half)]


class RepublicationSteps(Steps):
    """A stream of which some steps are published and the others repeat them."""

    _mechanism: Republication

    def __init__(self, mechanism: Republication) -> None:
        super().__init__(mechanism)
        self._published = 0
        self._budget = WindowBudget(mechanism.half, mechanism.guarantee.w)

    @abstractmethod
    def _offer(self) -> Fraction:
        """Return what publishing the next step may cost; nothing if it must not be published."""

    def _spent(self, amount: Fraction) -> None:
        """Take note of what publishing the step has cost, which may be nothing."""

    def _next(self, units: int) -> float:
        mechanism, offer = self._mechanism, self._offer()
        asked = mechanism.half / mechanism.guarantee.w if offer else Fraction(0)
        amount = Fraction(0)
        if offer:
            distance = abs(units - self._published) + laplace(mechanism.sensitivity, asked)
            if distance > mechanism.sensitivity / offer:
                amount = offer
        self._budget.spend(amount)
        if amount:
            self._published = units + laplace(mechanism.sensitivity, amount)
        self._spent(amount)
        self.cost = asked + amount
        return self._published
