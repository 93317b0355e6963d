"""From what was measured of a period to its estimate: the filters of a mechanism's streams, then bounds and sums.

With the posterior means m and variances v of the steps, values are those closest to m, in the norm of 1/v, that lie
within the bounds: each mean put within them. (The full posterior covariance instead of v was tried and is no better.)
In a hierarchy they are the closest that add up at every step and whose leaves lie within the bounds: an exact
projection on a tree with one weight per node. Features are sums of the values, so these are consistent as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from optstream import _core
from optstream.errors import ParameterError
from optstream.estimate.filter import Measured, revised
from optstream.estimate.memory import Memory
from optstream.estimate.rotation import Tracks
from optstream.mechanism.tree_release import whole_sums

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from optstream.estimate import Estimate
    from optstream.mechanism.calibration import Calibration
    from optstream.mechanism.release import Parts
    from optstream.pipeline.hierarchy import Hierarchy

    Array = NDArray[np.float64]

__all__ = ["MOST", "Estimator", "variances_of"]

MOST = 400
"""Most measured values of a period: the work grows with their cube."""
LARGEST = 1e90
"""Far below what a filter refuses, whatever noise is drawn."""


@dataclass(frozen=True)
class Estimator:
    """What a mechanism needs to estimate, built once."""

    estimate: Estimate
    levels: tuple[Calibration, ...]
    """The noise of each level, or of the one stream."""
    hierarchy: Hierarchy | None

    @property
    def _first(self) -> Calibration:
        return self.levels[0]

    def check(self) -> None:
        """Raise if so much is measured that an estimate would take minutes, or values are too large to be squared."""
        count = len(variances_of(self._first))
        if count > MOST:
            raise ParameterError(
                f"{count} values are measured in a period, but must be at most {MOST} for an Estimate; take fewer"
            )
        streams = 1 if self.hierarchy is None else len(self.hierarchy.leaves)
        for level in self.levels:
            largest = max(*map(abs, level.bounds), float(np.sqrt(variances_of(level).max()))) * streams
            if largest > LARGEST:
                raise ParameterError(
                    f"values and noise reach {largest:.3g}, but must stay below {LARGEST:g} to be estimated"
                )

    def fresh(self) -> Memory:
        """Return what is known before anything is released."""
        below, alike = [1], []
        if self.hierarchy is not None:
            below = self.hierarchy.sums(np.ones(self.hierarchy.leaf_positions.size, dtype=np.int64)).tolist()
            alike = [level.tolist() for level in self.hierarchy.level_positions]
        return Memory.fresh(self.estimate, self._first.guarantee.w, self._first.bounds, below, alike)

    def measured(self, parts: Parts, period: int) -> list[Measured]:
        """Return what was measured of each stream, from a drawn period or from a stored estimate of it."""
        values = parts.measured if parts.measured.size else self._extracted(parts)
        knots = np.broadcast_to(parts.knots, (len(values), parts.knots.shape[1]))
        depths = [0] if self.hierarchy is None else self.hierarchy.depths
        noise = [variances_of(level) for level in self.levels]
        return [
            Measured(period, self._first.cells(row), row_values, noise[depth])
            for row, row_values, depth in zip(knots, values, depths, strict=True)
        ]

    def _extracted(self, parts: Parts) -> Array:
        """Return the noisy means of steps and cells: reconstruction runs through what was measured."""
        knots = np.broadcast_to(parts.knots, (len(parts.values), parts.knots.shape[1]))
        sizes = [np.bincount(feature.labels) for feature in self._first.features]
        means = parts.cells / np.concatenate(sizes) if sizes else parts.cells
        return np.concatenate([np.take_along_axis(parts.values, knots, axis=1), means], axis=1)

    def finish(self, parts: Parts, period: int, memory: Memory) -> Parts:
        """Return the estimate of a drawn period, and remember it."""
        measured = self.measured(parts, period)
        means, variances = memory.update(measured)
        values = self.settled(means, variances)
        return replace(
            parts,
            values=values,
            cells=self._sums(values) if self.hierarchy is None else np.empty((0, 0)),
            measured=np.stack([seen.values for seen in measured]),
            deviations=np.sqrt(variances),
        )

    def tracks(self, memory: Memory, period: int) -> Tracks:
        """Return what follows a period of all streams step by step, after what is remembered."""
        depths = [0] if self.hierarchy is None else self.hierarchy.depths
        cells = self._first.cells(np.empty(0, dtype=np.int64))
        noise = [variances_of(level) for level in self.levels]
        alone = [part.track(period, cells, noise[depth]) for part, depth in zip(memory.filters, depths, strict=True)]
        return Tracks(alone, memory.groups, period, cells, [noise[depths[group.places[0]]] for group in memory.groups])

    def revised(self, memory: Memory, history: Sequence[Sequence[Measured]]) -> Array:
        """Return all periods in the light of each other: an array of periods, streams and steps.

        Args:
            memory: What is remembered at the end.
            history: For every period what was measured of each stream, as it was understood.
        """
        found = [
            revised(learnt, [period[stream] for period in history]) for stream, learnt in enumerate(memory.filters)
        ]
        for group in memory.groups:
            for place, moments in zip(group.places, group.revised(history) or (), strict=False):
                found[place] = moments
        return np.stack(
            [
                self.settled(
                    np.stack([means[period] for means, _ in found]),
                    np.stack([variances[period] for _, variances in found]),
                )
                for period in range(len(history))
            ]
        )

    def settled(self, means: Array, variances: Array) -> Array:
        """Return the closest values that are allowed, as whole grid steps."""
        grid, (low, high) = self._first.grid, self._first.bounds
        if self.hierarchy is None:
            # Whole grid steps hide the last bits, in which machines may differ.
            return np.clip(np.round(means / grid) * grid, low, high)
        precision = 1 / np.maximum(variances.mean(axis=1), np.finfo(float).tiny)
        forest = _core.Forest(self.hierarchy.parents, (precision / precision.max()).tolist())
        found = forest.project(np.ascontiguousarray(means.T), lower=low, upper=high).T
        return whole_sums(self.hierarchy, found[self.hierarchy.leaf_positions], grid, (low, high))

    def _sums(self, values: Array) -> Array:
        sums = [values @ np.eye(feature.size)[list(feature.labels)] for feature in self._first.features]
        return np.concatenate([*sums, np.empty((len(values), 0))], axis=1)


def variances_of(level: Calibration) -> Array:
    """Return the variance of the noise on each mean that is measured: of the samples, then of the cells of features."""
    alpha = level.guarantee.alpha
    cells = [level.feature_variance * (alpha / np.bincount(feature.labels)) ** 2 for feature in level.features]
    return np.concatenate([level.variances * alpha**2, *cells])
