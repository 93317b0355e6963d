"""The best estimate of a stream from everything private that is known of it: memory, smoothness, true variances.

Everything here reads private values only, so nothing here costs budget.
"""

from __future__ import annotations

from dataclasses import dataclass

from optstream.errors import ParameterError, ParameterTypeError

__all__ = ["Estimate"]


@dataclass(frozen=True)
class Estimate:
    """Reconstruct and post-process in one: the likeliest values given all that was measured, now and before.

    The model of a stream is a level, a shape of the period, one for each weekday, a slow drift and what happens within
    a period (see :class:`optstream.estimate.filter.Filter`). How strong each part is, is learnt from measured values by
    their marginal likelihood, so there is nothing to choose. Values are then put within the bounds, and with a
    hierarchy or features they add up.

    An estimate is made from what was measured up to its period and never changes. Raw data is not read, so memory and
    smoothness cost no budget.

    Args:
        memory: Whether earlier periods inform later ones.
        smooth: Whether neighbouring steps inform each other.
        season: The number of periods after which weekdays repeat, such as 7 days; 1 for none.
        together: Whether the streams of one level of a hierarchy, or of a panel, are estimated together where their
            releases show that they move together.
        revise: Whether a release of several periods also carries ``revised`` values, which later periods inform too.

    Example:
        >>> Estimate()
        Estimate(memory=True, smooth=True, season=7, revise=False, together=True)
    """

    memory: bool = True
    smooth: bool = True
    season: int = 7
    revise: bool = False
    together: bool = True

    def __post_init__(self) -> None:
        for name in ("memory", "smooth", "revise", "together"):
            if not isinstance(getattr(self, name), bool):
                raise ParameterTypeError(f"{name} is of type {type(getattr(self, name)).__name__}, but must be a bool")
        if isinstance(self.season, bool) or not isinstance(self.season, int):
            raise ParameterTypeError(f"season is of type {type(self.season).__name__}, but must be an int")
        if not 1 <= self.season <= LONGEST:
            raise ParameterError(f"season is {self.season}, but must be from 1 to {LONGEST}")
        if not (self.memory or self.smooth):
            raise ParameterError("memory and smooth are both False, but one of them must be True; use Linear otherwise")
        if self.revise and not self.memory:
            raise ParameterError("revise is True, but must be False without memory")


LONGEST = 64
"""Longest season: each of its periods has a curve of its own in the state, whose size is squared."""
