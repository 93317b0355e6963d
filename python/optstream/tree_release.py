"""Releasing a hierarchy: every node measured with its level's budget, then made to add up to the last bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm.auto import tqdm

from optstream import _core
from optstream.errors import DataError
from optstream.frames import read_leaves

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from optstream.features import Feature
    from optstream.hierarchy import Hierarchy
    from optstream.statement import Statement
    from optstream.tree_projection import TreeProjection

__all__ = ["TreeMeasurement", "TreeRelease", "release_tree"]


@dataclass(frozen=True, repr=False)
class TreeRelease:
    """The private series of all nodes. It holds private values only, no raw data.

    At every step the released children of a node add up to the node exactly, and so do the steps of every cell: all
    values are whole grid steps and sums of those of the leaves.
    """

    values: Any
    """One column per node, in the order of ``hierarchy.nodes``: an array, or a frame with the columns' names."""
    hierarchy: Hierarchy
    features: tuple[NDArray[np.float64], ...]
    """For every feature an array of periods, cells and nodes."""
    statement: Statement

    def __repr__(self) -> str:
        return f"TreeRelease(steps={len(self.values)}, {self.hierarchy!r}, epsilon={self.statement.epsilon_shown})"


@dataclass(frozen=True)
class TreeMeasurement:
    """What is built once for a hierarchy: one plan per level, and the projection."""

    hierarchy: Hierarchy
    plans: Sequence[_core.Plan]
    projection: TreeProjection

    def measure(self, leaves: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the noisy steps and cells of all nodes, one row each, from the quantised leaves of one period."""
        units = self.hierarchy.sums(leaves)
        # Nodes are in the order of their levels, so the parts only need to be put one below the other.
        parts = [
            plan.measure(units[level]) for plan, level in zip(self.plans, self.hierarchy.level_positions, strict=True)
        ]
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def release_tree(
    x: Any,
    measurement: TreeMeasurement,
    *,
    features: Sequence[Feature],
    bounds: tuple[float, float],
    grid: float,
    statement: Statement,
) -> TreeRelease:
    """Release whole periods of all leaves."""
    hierarchy, w = measurement.hierarchy, statement.guarantee.w
    data, restore = read_leaves(x, hierarchy, w)
    # Everything is looked at before anything is drawn.
    for row, column in np.argwhere(~np.isfinite(data)):
        name = hierarchy.leaves[column]
        raise DataError(f"x holds {data[row, column]} in row {row} of {name!r}, but must be finite")
    periods = len(data) // w
    values = np.empty((len(data), len(hierarchy.nodes)))
    sums = tuple(np.empty((periods, feature.size, len(hierarchy.nodes))) for feature in features)
    cells_of = [np.eye(feature.size, dtype=np.int64)[:, list(feature.labels)] for feature in features]
    for period in tqdm(range(periods), desc="releasing", unit="period", disable=None, leave=False):
        rows = slice(period * w, (period + 1) * w)
        units = _core.quantise(data[rows], bounds, grid)
        steps, cells = measurement.measure(np.ascontiguousarray(units.T))
        leaves = measurement.projection.project(steps, cells)
        # Whole grid steps, so that every sum of them is exact; no sum leaves 64 bits, however much noise there is.
        nodes = hierarchy.sums(np.round(np.clip(leaves / grid, 0, 2**61 / len(leaves))).astype(np.int64))
        values[rows] = nodes.T * grid
        for cell_sums, membership in zip(sums, cells_of, strict=True):
            cell_sums[period] = (membership @ nodes.T) * grid
    return TreeRelease(values=restore(values), hierarchy=hierarchy, features=sums, statement=statement)
