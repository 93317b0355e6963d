"""What a mechanism remembers of the periods that it has released: private values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream.errors import ParameterError
from optstream.estimate.filter import Filter, Measured, update_all
from optstream.estimate.rotation import MOST, Rotated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from optstream.estimate import Estimate

    Array = NDArray[np.float64]

__all__ = ["Memory"]


@dataclass(repr=False)
class Memory:
    """A filter for each stream, and what the last period was measured with."""

    filters: list[Filter]
    choice: dict[str, Any] = field(default_factory=dict)
    """The parameters of the last period that a mechanism which tunes itself may change; empty if there was none."""
    groups: list[Rotated] = field(default_factory=list)
    """The streams that are estimated together."""

    @classmethod
    def fresh(
        cls,
        estimate: Estimate,
        w: int,
        bounds: tuple[float, float],
        streams: Sequence[int] = (1,),
        alike: Sequence[Sequence[int]] = (),
    ) -> Memory:
        """Return what is known before anything is released.

        Args:
            estimate: How values follow.
            w: Number of steps of a period.
            bounds: Of one stream.
            streams: How many of these each stream is a sum of.
            alike: The places of streams that are measured with the same noise.
        """
        low, high = bounds
        made = cls(
            [
                Filter(
                    w,
                    season=estimate.season,
                    memory=estimate.memory,
                    smooth=estimate.smooth,
                    level=(count * (low + high) / 2, max(count * (high - low) / 2, np.finfo(float).tiny)),
                )
                for count in streams
            ]
        )
        if estimate.together and estimate.memory:
            parts = (group[first : first + MOST] for group in alike for first in range(0, len(group), MOST))
            made.groups = [Rotated(tuple(part)) for part in parts if len(part) > 1]
        return made

    @property
    def last(self) -> int | None:
        """The last period that is remembered."""
        return self.filters[0].last

    @property
    def measured(self) -> int:
        """How many periods are remembered."""
        return self.filters[0].measured

    @property
    def understood(self) -> list[Measured]:
        """What was measured last of each stream, with what was made of it."""
        return [part.understood for part in self.filters if part.understood is not None]

    def update(self, measured: Sequence[Measured]) -> tuple[Array, Array]:
        """Take what was measured of each stream; return the means and variances of its steps, one row each."""
        found = update_all(self.filters, measured)
        for group in self.groups:
            for place, moments in zip(group.places, group.update(measured, self.filters, found), strict=True):
                found[place] = moments
        return np.stack([means for means, _ in found]), np.stack([variances for _, variances in found])

    def fits(self, other: Memory) -> bool:
        """Whether two memories are of the same kind of estimate and of as many streams."""
        mine, theirs = ([part.kind for part in one.filters] for one in (self, other))
        return mine == theirs and [group.places for group in self.groups] == [group.places for group in other.groups]

    def state(self) -> dict[str, Any]:
        """Return the memory as plain data for JSON."""
        return {
            "filters": [part.state() for part in self.filters],
            "choice": self.choice,
            "groups": [group.state() for group in self.groups],
        }

    def restored(self, state: Mapping[str, Any]) -> Memory:
        """Return the memory that :meth:`state` gave, which must be of the same kind as this one.

        Raises:
            ParameterError: It is not.
        """
        try:
            filters = [Filter.from_state(part) for part in state["filters"]]
            made = Memory(filters, dict(state["choice"]), [Rotated.from_state(part) for part in state["groups"]])
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            raise ParameterError("memory is not what a release or a stream gave, but must be") from None
        if not made.fits(self):
            raise ParameterError("memory is that of another kind of estimate, w or hierarchy, but must be of this one")
        return made
