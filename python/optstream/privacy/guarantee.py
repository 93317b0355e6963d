"""What is promised: w-event privacy, the pair (w, alpha) that neighbours may differ in, and the budget."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from optstream.errors import ParameterError, ParameterTypeError
from optstream.privacy.budget import exact
from optstream.privacy.gaussian import LARGEST_EPSILON, SMALLEST_DELTA

__all__ = ["Entities", "Guarantee", "Neighbours"]

Neighbours = Literal["sliding", "aligned"]
Entities = Literal["settled", "moving"]
LONGEST_NAME = 60
"""A name is a word or two."""
LARGEST_DELTA = Fraction(1, 100)
"""A promise that fails for one entity in a hundred is none."""


@dataclass(frozen=True, init=False)
class Guarantee:
    """w-event privacy with a budget: what an onlooker can learn of one entity within any window of w steps.

    Two streams are neighbours when they differ in the contribution of one entity during ``w`` consecutive steps, by at
    most ``alpha`` at any one step. A release is private with budget ``epsilon`` when no set of outputs is more than
    ``exp(epsilon)`` times as likely for a stream as for its neighbour. ``alpha = 1`` with counts is w-event privacy
    (Kellaris et al. 2014); any ``alpha`` is the (w, alpha)-indistinguishability of the OptStream paper.

    Args:
        epsilon: The budget of any window, positive. A float is read as the decimal that it shows.
        w: The length of a window and of a released period, in steps.
        alpha: How much one entity may change the value of one step, positive.
        delta: The probability with which the promise may fail for one entity and window; 0, the default, is the pure
            promise, which never does. With a delta :class:`GaussianNoise` may be used. It must be well below one over
            the number of entities, and does not add up over time: docs/choosing.md.
        neighbours: ``"sliding"`` protects any ``w`` consecutive steps. ``"aligned"`` protects only windows that lie
            inside one released period: weaker and cheaper.
        entities: ``"settled"`` entities stay in one leaf of a hierarchy. ``"moving"`` ones may be in any leaves, in
            several at once: ``alpha`` then bounds what one of them adds to a step over all leaves together.
        entity: What is protected, in a word of yours such as ``"rider"``. Statements say it.

    Example:
        >>> Guarantee(epsilon=0.1, w=48, alpha=10.0)
        Guarantee(epsilon=0.1, w=48, alpha=10.0, neighbours='sliding')
    """

    epsilon: Fraction = field(repr=False)
    w: int
    alpha: float
    neighbours: Neighbours
    delta: Fraction = field(repr=False, default=Fraction(0))
    entities: Entities = "settled"
    entity: str = "entity"

    def __init__(
        self,
        *,
        epsilon: float | Fraction | Decimal,
        w: int,
        alpha: float = 1.0,
        neighbours: Neighbours = "sliding",
        delta: float | Fraction | Decimal = 0,
        entities: Entities = "settled",
        entity: str = "entity",
    ) -> None:
        if isinstance(w, bool) or not isinstance(w, int):
            raise ParameterTypeError(f"w is of type {type(w).__name__}, but must be an int")
        if not 1 <= w <= 2**20:
            raise ParameterError(f"w is {w}, but must be from 1 to 2^20")
        if isinstance(alpha, bool) or not isinstance(alpha, (int, float, Fraction)):
            raise ParameterTypeError(f"alpha is of type {type(alpha).__name__}, but must be a real number")
        if not 0 < alpha <= sys.float_info.max:
            raise ParameterError(f"alpha is {alpha}, but must be positive and finite")
        if not isinstance(neighbours, str) or neighbours not in {"sliding", "aligned"}:
            raise ParameterError(f"neighbours is {neighbours!r}, but must be 'sliding' or 'aligned'")
        if not isinstance(entities, str) or entities not in {"settled", "moving"}:
            raise ParameterError(f"entities is {entities!r}, but must be 'settled' or 'moving'")
        object.__setattr__(self, "epsilon", exact("epsilon", epsilon))
        object.__setattr__(self, "w", w)
        # Rounded up: a smaller alpha would promise more than it holds.
        rounded = float(alpha)
        object.__setattr__(self, "alpha", rounded if rounded >= alpha else math.nextafter(rounded, math.inf))
        object.__setattr__(self, "neighbours", neighbours)
        object.__setattr__(self, "delta", _delta(delta))
        object.__setattr__(self, "entities", entities)
        object.__setattr__(self, "entity", _name(entity))
        if self.delta and self.epsilon > LARGEST_EPSILON:
            raise ParameterError(f"epsilon is {epsilon}, but must be at most {LARGEST_EPSILON} with a delta")

    def with_epsilon(self, epsilon: Fraction) -> Guarantee:
        """Return the same guarantee with another budget.

        >>> Guarantee(epsilon=1, w=48).with_epsilon(Fraction(1, 2))
        Guarantee(epsilon=0.5, w=48, alpha=1.0, neighbours='sliding')
        """
        return Guarantee(
            epsilon=epsilon,
            w=self.w,
            alpha=self.alpha,
            neighbours=self.neighbours,
            delta=self.delta,
            entities=self.entities,
            entity=self.entity,
        )

    @property
    def protects(self) -> tuple[int, float, Neighbours, Fraction, Entities, str]:
        """Who is protected in which windows: all but the budget. Costs add up only where this is the same."""
        return self.w, self.alpha, self.neighbours, self.delta, self.entities, self.entity

    def __repr__(self) -> str:
        value = self.epsilon
        shown = str(float(value)) if Fraction(repr(float(value))) == value else f"Fraction('{value}')"
        more = f", delta={float(self.delta)!r}" if self.delta else ""
        more += f", entities={self.entities!r}" if self.entities != "settled" else ""
        more += f", entity={self.entity!r}" if self.entity != "entity" else ""
        return f"Guarantee(epsilon={shown}, w={self.w}, alpha={self.alpha}, neighbours={self.neighbours!r}{more})"


def _delta(value: float | Fraction | Decimal) -> Fraction:
    """Return a delta as an exact rational."""
    if isinstance(value, (int, float, Decimal, Fraction)) and not isinstance(value, bool) and value == 0:
        return Fraction(0)
    delta = exact("delta", value)
    if not SMALLEST_DELTA <= delta <= LARGEST_DELTA:
        raise ParameterError(f"delta is {value}, but must be 0 or from {float(SMALLEST_DELTA):g} to {LARGEST_DELTA}")
    return delta


def _name(entity: str) -> str:
    """Return what an entity is called, if it is a word that fits into a sentence."""
    if not isinstance(entity, str):
        raise ParameterTypeError(f"entity is of type {type(entity).__name__}, but must be a str")
    if not entity.isprintable() or entity != entity.strip() or not 1 <= len(entity) <= LONGEST_NAME:
        raise ParameterError(
            f"entity has {len(entity)} characters, but must have from 1 to {LONGEST_NAME} printable ones, without "
            "spaces around them"
        )
    return entity
