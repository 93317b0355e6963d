"""Streams that are measured alike, estimated together: what their releases say about each other is free.

The noise of such streams is uncorrelated and of one size, and an orthonormal matrix leaves it so. So the streams are
rotated onto the directions in which they move together, filtered there, where most directions hold next to nothing, and
rotated back. The matrix is learnt from released values alone. Whether the rotation helps, is judged by how likely
either way of looking made what was measured next; as long as it does not, every stream is estimated by itself.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream import _core
from optstream.estimate.filter import Filter, Measured, revised, update_all

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from optstream.estimate.filter import Cells

    Array = NDArray[np.float64]

__all__ = ["MOST", "Rotated", "Tracks"]

MOST = 64
"""Most streams that are rotated together; more of them are taken in parts."""
FIRST, TIMES = 7, 4
"""Number of periods after which directions are first learnt, and how many times as long the next time takes."""
KEPT = FIRST * TIMES
"""Number of last periods from which rotated streams are learnt; directions that help are learnt anew up to then."""
FORGETTING = 0.98
"""Factor by which moments and evidence count less in the next period."""
CLIP = 10.0
"""Most evidence of one period, so that one odd period decides nothing."""
MARGIN = 1.0
"""Evidence for each stream from which they are estimated together."""
REJECTED = -3.0
"""Evidence for each stream below which directions are given up until the next time."""


@dataclass
class Seen:
    """What was measured of a period: one row of values for every stream, with one layout and noise for all."""

    period: int
    cells: Cells
    values: Array
    variances: Array


@dataclass(repr=False)
class Rotated:
    """Some streams of a memory, and how they look from the directions in which they move together."""

    places: tuple[int, ...]
    """Which streams of the memory they are."""
    count: int = 0
    evidence: float = 0.0
    """By how much more likely the rotated streams made what was measured since directions were first known."""
    weight: float = 0.0
    centre: Array = field(default_factory=lambda: np.zeros(0))
    moments: Array = field(default_factory=lambda: np.zeros((0, 0)))
    """Of what was released, around the centre: a row and a column for every stream."""
    log: list[Seen] = field(default_factory=list)
    rotation: Array | None = None
    """A direction in each row."""
    filters: list[Filter] = field(default_factory=list)
    """One for every direction."""

    @property
    def helps(self) -> bool:
        """Whether streams are estimated together."""
        return self.rotation is not None and self.evidence > MARGIN * len(self.places)

    def update(
        self, measured: Sequence[Measured], plain: Sequence[Filter], found: Sequence[tuple[Array, Array]]
    ) -> list[tuple[Array, Array]]:
        """Take what was measured of all streams of a memory; return the means and variances of those in the group.

        Args:
            measured: Of every stream of the memory.
            plain: The filters of the streams by themselves, which have taken it.
            found: What they made of it.
        """
        own = [found[place] for place in self.places]
        first = measured[self.places[0]]
        if any(measured[place].cells != first.cells for place in self.places):
            # Where each stream chooses its own steps there is nothing to rotate.
            return own
        values = np.stack([measured[place].values for place in self.places])
        seen = Seen(first.period, first.cells, values, np.asarray(first.variances, dtype=np.float64))
        self.count += 1
        if self.rotation is not None:
            together = self._rotated(seen)
            gained = sum(part.density for part in self.filters) - sum(plain[place].density for place in self.places)
            self.evidence = FORGETTING * self.evidence + min(max(gained, -CLIP), CLIP)
            if self.helps:
                # A small stream beside large ones may be known better by itself.
                own = [
                    (both if _mean(both[1]) < _mean(alone[1]) else alone)
                    for alone, both in zip(own, together, strict=True)
                ]
            elif self.evidence < REJECTED * len(self.places):
                self.rotation, self.filters = None, []
        self._learn(seen, np.stack([means for means, _ in own]), [plain[place] for place in self.places])
        return own

    def _rotated(self, seen: Seen) -> list[tuple[Array, Array]]:
        """Return the means and variances of the streams, as the directions have them."""
        found = update_all(self.filters, self._turned(seen))
        moments = (np.stack(part) for part in zip(*found, strict=True))
        return list(zip(*back(np.ascontiguousarray(self.rotation), *moments), strict=True))

    def revised(self, history: Sequence[Sequence[Measured]]) -> list[tuple[Array, Array]] | None:
        """Return the streams of the group over all periods in the light of each other, if they are estimated together.

        What was made of earlier periods, breaks and odd ones among them, is seen again from the directions known now.
        """
        if not self.helps or any(period[0].cells != period[place].cells for period in history for place in self.places):
            return None
        fresh = self._fresh(list(self.filters))
        understood: list[list[Measured]] = []
        for period in history:
            mine = [period[place] for place in self.places]
            values = np.stack([one.values for one in mine])
            update_all(fresh, self._turned(Seen(mine[0].period, mine[0].cells, values, mine[0].variances)))
            understood.append([part.understood for part in fresh if part.understood is not None])
        rotation = np.ascontiguousarray(self.rotation)
        found = [revised(part, [row[place] for row in understood]) for place, part in enumerate(fresh)]
        means, variances = (np.stack(part) for part in zip(*found, strict=True))
        shape = means.shape
        flat = back(rotation, means.reshape(shape[0], -1), variances.reshape(shape[0], -1))
        return list(zip(*(part.reshape(shape) for part in flat), strict=True))

    def _turned(self, seen: Seen) -> list[Measured]:
        rows = _core.combined(np.ascontiguousarray(self.rotation), seen.values)
        return [Measured(seen.period, seen.cells, row, seen.variances) for row in rows]

    def _learn(self, seen: Seen, released: Array, plain: Sequence[Filter]) -> None:
        """Take what was released of a period, and now and then learn the directions anew."""
        level = np.array([_mean(row) for row in released])
        if not self.weight:
            self.centre, self.moments = np.zeros(len(level)), np.zeros((len(level), len(level)))
        self.weight = FORGETTING * self.weight + 1
        self.centre = self.centre + (level - self.centre) / self.weight
        apart = released - self.centre[:, None]
        self.moments = FORGETTING * self.moments + _core.combined(apart, np.ascontiguousarray(apart.T))
        self.log = [*self.log[-KEPT + 1 :], seen]
        if self.count <= KEPT or not self.helps:
            at = FIRST
            while at < self.count:
                at *= TIMES
            if at == self.count:
                self._begin(plain)

    def _begin(self, plain: Sequence[Filter]) -> None:
        """Learn the directions, and what the streams look like from there."""
        if self.rotation is None:
            self.evidence = 0.0
        self.rotation = _core.principal(self.moments)
        levels = np.array([part.level or (0.0, 0.0) for part in plain])
        means = _core.combined(self.rotation, np.ascontiguousarray(levels[:, :1]))[:, 0]
        deviations = np.sqrt(_core.combined(self.rotation**2, np.ascontiguousarray(levels[:, 1:] ** 2))[:, 0])
        w, season, memory, smooth = plain[0].kind
        self.filters = [
            Filter(w, season=season, memory=memory, smooth=smooth, level=(float(mean), float(deviation)))
            for mean, deviation in zip(means, deviations, strict=True)
        ]
        for seen in self.log:
            update_all(self.filters, self._turned(seen))

    @staticmethod
    def _fresh(filters: Sequence[Filter]) -> list[Filter]:
        """Return filters of the same kinds and levels that know nothing."""
        made = []
        for part in filters:
            w, season, memory, smooth = part.kind
            made.append(Filter(w, season=season, memory=memory, smooth=smooth, level=part.level))
        return made

    def state(self) -> dict[str, Any]:
        """Return the group as plain data for JSON."""
        return {
            "places": list(self.places),
            "count": self.count,
            "evidence": self.evidence,
            "weight": self.weight,
            "centre": _text(self.centre),
            "moments": _text(self.moments),
            "rotation": None if self.rotation is None else _text(self.rotation),
            "filters": [part.state() for part in self.filters],
            "log": [
                [seen.period, [list(cell) for cell in seen.cells], _text(seen.values), _text(seen.variances)]
                for seen in self.log
            ],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Rotated:
        """Return the group that :meth:`state` described."""
        places = tuple(int(place) for place in state["places"])
        size = len(places)
        weight = float(state["weight"])
        known = size if weight else 0
        made = cls(
            places,
            count=int(state["count"]),
            evidence=float(state["evidence"]),
            weight=weight,
            centre=_array(state["centre"], known),
            moments=_array(state["moments"], known, known),
            rotation=None if state["rotation"] is None else _array(state["rotation"], size, size),
            filters=[Filter.from_state(part) for part in state["filters"]],
        )
        if len(made.filters) != (0 if made.rotation is None else size):
            raise ValueError
        for period, cells, values, variances in state["log"]:
            sets = tuple(tuple(int(step) for step in cell) for cell in cells)
            made.log.append(Seen(int(period), sets, _array(values, size, len(sets)), _array(variances, len(sets))))
        return made


class Tracks:
    """What follows a period of all streams of a memory step by step."""

    def __init__(
        self,
        alone: Sequence[_core.Track],
        groups: Sequence[Rotated],
        period: int,
        cells: Cells,
        variances: Sequence[Array],
    ) -> None:
        """Take what follows each stream by itself, and the groups with the noise of their streams."""
        self._alone = alone
        self._groups = [
            (group, [part.track(period, cells, noise) for part in group.filters])
            for group, noise in zip(groups, variances, strict=True)
            if group.helps
        ]

    def push(self, rows: Array) -> Array:
        """Take the values that end with the next step, a row for every stream; return its means and variances."""
        found = np.array([track.push(row.tolist()) for track, row in zip(self._alone, rows, strict=True)])
        for group, tracks in self._groups:
            places, rotation = list(group.places), np.ascontiguousarray(group.rotation)
            turned = _core.combined(rotation, np.ascontiguousarray(rows[places]))
            moments = np.array([track.push(row.tolist()) for track, row in zip(tracks, turned, strict=True)])
            together = back(rotation, moments[:, :1], moments[:, 1:])
            for place, mean, variance in zip(places, *together, strict=True):
                if variance[0] < found[place, 1]:
                    found[place] = mean[0], variance[0]
        return found


def back(rotation: Array, means: Array, variances: Array) -> tuple[Array, Array]:
    """Return the means and variances of streams from those of directions, which are independent as far as is known."""
    turned = np.ascontiguousarray(rotation.T)
    return _core.combined(turned, means), _core.combined(turned**2, variances)


def _mean(values: Array) -> float:
    return float(_core.combined(values[None], np.full((values.size, 1), 1 / values.size))[0, 0])


def _text(values: Array) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f8").tobytes()).decode("ascii")


def _array(text: str, *shape: int) -> Array:
    values = np.frombuffer(base64.b64decode(text, validate=True), "<f8").reshape(shape).astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError
    return values
