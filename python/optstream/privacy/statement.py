"""What a release costs, in words and as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from optstream.privacy.budget import shown

if TYPE_CHECKING:
    from fractions import Fraction

    from optstream.privacy.guarantee import Guarantee

__all__ = ["Stage", "Statement"]


@dataclass(frozen=True)
class Stage:
    """What one stage of a release does and what its worst window costs."""

    name: str
    does: str
    epsilon: Fraction


@dataclass(frozen=True)
class Statement:
    """What a release costs and what that assumes: ``print`` it, or take :meth:`to_json`. It holds no data."""

    guarantee: Guarantee
    epsilon: Fraction
    """What the worst window truly costs, as the accountant computes it from the noise that is drawn."""
    scope: str
    """What the statement is about: which periods, released by whom."""
    stages: tuple[Stage, ...]
    calibration: str
    weights: str
    grid: float
    bounds: tuple[float, float]
    assumptions: tuple[str, ...]
    version: str
    series: str = ""
    """What the series are called in which an entity may be: leaves of a hierarchy, streams of a panel; none for one."""

    @property
    def epsilon_shown(self) -> str:
        """The true epsilon as a short decimal, rounded up."""
        return shown(self.epsilon)

    def __str__(self) -> str:
        guarantee = self.guarantee
        window = (
            f"any {guarantee.w} consecutive steps"
            if guarantee.neighbours == "sliding"
            else f"the {guarantee.w} steps of one released period (windows across two periods are not covered)"
        )
        stages = "\n".join(f"  {stage.name:<17} {shown(stage.epsilon):>8}  {stage.does}" for stage in self.stages)
        excess = (
            ""
            if self.epsilon <= guarantee.epsilon
            else f"\nWARNING: this is {shown(self.epsilon / guarantee.epsilon)} times the epsilon that was asked for."
        )
        assumptions = "\n".join(f"  - {assumption}" for assumption in self.assumptions)
        but = f", but with probability {float(guarantee.delta):g}" if guarantee.delta else ""
        return (
            f"Protects one {guarantee.entity}'s contribution during {window}, up to {guarantee.alpha:g} per step"
            f"{self._together}.\n"
            "Someone who watches all that is released cannot tell what that was: nothing they see is more than "
            f"exp({shown(self.epsilon)}) times as likely by what the {guarantee.entity} truly did as by anything "
            f"else{but}.{self._covered}\n"
            f"Epsilon asked for: {shown(guarantee.epsilon)}{self._delta_shown}. "
            f"True epsilon of the worst window: {shown(self.epsilon)} ({self.calibration} calibration).{excess}\n"
            f"{self.scope}\n"
            f"What the worst window of each stage costs:\n{stages}\n"
            f"Values are clamped to [{self.bounds[0]:g}, {self.bounds[1]:g}] and noise moves them on a grid of "
            f"{self.grid:g}.\n"
            f"This assumes that:\n{assumptions}\n"
            f"optstream {self.version}"
        )

    @property
    def _delta_shown(self) -> str:
        """The delta of the guarantee in words, if it has one."""
        delta, entity = float(self.guarantee.delta), self.guarantee.entity
        words = f", and with probability {delta:g} the promise may fail for one {entity} and a window (delta)"
        return words if delta else ""

    @property
    def several(self) -> bool:
        """Whether an entity may be in several series, which alpha bounds together."""
        return bool(self.series) and self.guarantee.entities == "moving"

    @property
    def _together(self) -> str:
        return f" over all {self.series} together" if self.several else ""

    @property
    def _covered(self) -> str:
        """What alpha covers where it bounds a sum: it depends on how whoever prepares the data has bounded it."""
        guarantee = self.guarantee
        if not self.several:
            return ""
        twice = "2 epsilon and (1 + exp(epsilon)) delta" if guarantee.delta else "2 epsilon"
        return (
            f"\nIf {guarantee.alpha:g} bounds what one {guarantee.entity} adds to all {self.series} of a step together "
            f"(presence), this hides whether an activity took place (epsilon), and which of two activities it was "
            f"({twice}); if it bounds any change of that, epsilon covers both."
        )

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def to_json(self) -> str:
        """Return the statement as JSON; exact rationals are strings such as ``"1/3"``."""
        content: dict[str, Any] = {
            "neighbours": self.guarantee.neighbours,
            "entities": self.guarantee.entities,
            "entity": self.guarantee.entity,
            "w": self.guarantee.w,
            "alpha": self.guarantee.alpha,
            "epsilon_requested": str(self.guarantee.epsilon),
            **({"delta": str(self.guarantee.delta)} if self.guarantee.delta else {}),
            "epsilon_true": str(self.epsilon),
            "epsilon_true_decimal": float(shown(self.epsilon)),
            "scope": self.scope,
            "stages": [
                {"name": stage.name, "does": stage.does, "epsilon": str(stage.epsilon)} for stage in self.stages
            ],
            "calibration": self.calibration,
            "weights": self.weights,
            "grid": self.grid,
            "bounds": list(self.bounds),
            "assumptions": list(self.assumptions),
            "version": self.version,
        }
        return json.dumps(content, indent=2)
