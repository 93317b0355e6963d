"""Publish a step, or repeat the last published one if it is near enough: what both schemes of Kellaris et al. share."""

from __future__ import annotations

from abc import abstractmethod
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from optstream.baselines.baseline import WHOLE_STREAM
from optstream.baselines.exact import check_scale, noisy
from optstream.baselines.online import Online, Steps
from optstream.baselines.window_budget import WindowBudget
from optstream.privacy.accounting import StepCosts, epsilon_of
from optstream.privacy.statement import Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Republication", "RepublicationSteps"]


class Republication(Online):
    """Half of the budget asks how far a step is from what was published last, the other half publishes.

    The distance of a step from a published number moves by at most alpha, so asking for it with Laplace noise of scale
    ``2 w alpha / epsilon`` costs ``epsilon / (2 w)``, and ``epsilon / 2`` in any window. A step is published if its
    noisy distance exceeds the scale of the noise that it would get.
    """

    @cached_property
    def half(self) -> Fraction:
        """What asking, and publishing, may cost in a window."""
        return self.guarantee.epsilon / 2

    @cached_property
    def asked(self) -> Fraction:
        """What asking costs for one step."""
        return self.half / self.guarantee.w

    @property
    @abstractmethod
    def parts(self) -> int:
        """Into how many parts the budget for publishing is divided."""

    def price(self, parts: int) -> Fraction:
        """Return what so many parts of the budget for publishing are."""
        return self.half * Fraction(parts, self.parts)

    def _check(self) -> None:
        check_scale(self.sensitivity, self.price(1))

    @abstractmethod
    def _publishes(self) -> str:
        """Return in words how the budget for publishing is divided."""

    def _assumptions(self) -> Sequence[str]:
        return (WHOLE_STREAM,)

    def _stages(self) -> Sequence[Stage]:
        w = self.guarantee.w
        asked = epsilon_of([StepCosts(0, (self.asked,) * w)], self.guarantee)
        scale = self.guarantee.alpha / float(self.asked)
        does = f"asks how far each step is from the last published one, with Laplace noise of scale {scale:.6g}"
        return [Stage("dissimilarity", does, asked), Stage("publish", self._publishes(), self.half)]


class RepublicationSteps(Steps):
    """A stream of which some steps are published and the others repeat them."""

    _mechanism: Republication

    def __init__(self, mechanism: Republication) -> None:
        super().__init__(mechanism)
        # Before anything is published, what lies nearest to zero stands for it.
        self._published = int(mechanism.quantised(np.zeros(1))[0])
        self._budget = WindowBudget(mechanism.parts, mechanism.guarantee.w)
        self._asked, self._spent = False, 0

    @property
    def cost(self) -> Fraction:
        """What a change of the last step by alpha costs: a step that must not be published is not even asked about."""
        return self._mechanism.asked * self._asked + self._mechanism.price(self._spent)

    @abstractmethod
    def _offer(self) -> int:
        """Return how many parts publishing the next step may cost; none if it must not be published."""

    def _note(self, spent: int) -> None:
        """Take note of the parts that publishing the step has cost, or none."""

    def _next(self, units: int) -> float:
        offer = self._offer()
        self._asked = offer > 0
        self._spent = offer if self._asked and self._is_far(units, offer) else 0
        self._budget.spend(self._spent)
        if self._spent:
            self._published = noisy(units, self._mechanism.sensitivity, self._mechanism.price(self._spent))
        self._note(self._spent)
        return self._published

    def _is_far(self, units: int, offer: int) -> bool:
        """Return whether the noisy distance exceeds the scale of the noise that the step would get."""
        reach, price = self._mechanism.sensitivity, self._mechanism.price(offer)
        distance = noisy(abs(units - self._published), reach, self._mechanism.asked)
        return distance * price.numerator > reach * price.denominator
