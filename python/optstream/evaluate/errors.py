"""Errors of one release."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optstream.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from optstream.pipeline.features import Feature
    from optstream.pipeline.hierarchy import Hierarchy

    Array = NDArray[np.float64]

__all__ = ["consistency_error", "feature_error", "level_errors", "period_errors", "point_error"]


def point_error(released: Array, truth: Array) -> float:
    """Return the mean absolute error of a step: the paper's average L1 error.

    >>> point_error(np.array([1.0, 4.0]), np.array([2.0, 2.0]))
    1.5
    """
    return float(np.abs(_alike(released, truth) - truth).mean())


def period_errors(released: Array, truth: Array, w: int) -> Array:
    """Return the L1 error of every period: the sum over its ``w`` steps.

    >>> period_errors(np.array([1.0, 4.0, 2.0, 2.0]), np.full(4, 2.0), w=2)
    array([3., 0.])
    """
    return np.asarray(np.abs(_alike(released, truth) - truth).reshape(-1, w).sum(axis=1))


def feature_error(released: Array, truth: Array, feature: Feature) -> float:
    """Return the mean absolute error of the sum of a cell, over all cells and periods.

    >>> from optstream import Feature
    >>> feature_error(np.array([1.0, 4.0, 2.0, 2.0]), np.full(4, 2.0), Feature.total(2))
    0.5
    """
    cells = np.eye(feature.size)[list(feature.labels)]
    return float(np.abs((_alike(released, truth) - truth).reshape(-1, feature.w) @ cells).mean())


def level_errors(released: Array, truth: Array, hierarchy: Hierarchy) -> tuple[float, ...]:
    """Return the mean absolute error of a step on every level, from the root down; nodes are columns.

    >>> from optstream import Hierarchy
    >>> tree = Hierarchy.nested({"nation": ["north", "south"]})
    >>> level_errors(np.array([[9.0, 3.0, 4.0]]), np.array([[6.0, 3.0, 3.0]]), tree)
    (3.0, 0.5)
    """
    gaps = np.abs(_alike(released, truth) - truth)
    return tuple(float(gaps[:, positions].mean()) for positions in hierarchy.level_positions)


def consistency_error(released: Array, hierarchy: Hierarchy) -> float:
    """Return how far a node is from the sum of its children, on average over steps and nodes; nodes are columns.

    >>> from optstream import Hierarchy
    >>> consistency_error(np.array([[9.0, 3.0, 4.0]]), Hierarchy.nested({"nation": ["north", "south"]}))
    2.0
    """
    sums = np.zeros_like(released)
    for node, parent in enumerate(hierarchy.parents):
        if parent is not None:
            sums[:, parent] += released[:, node]
    inner = sorted({parent for parent in hierarchy.parents if parent is not None})
    return float(np.abs(released - sums)[:, inner].mean()) if inner else 0.0


def _alike(released: Array, truth: Array) -> Array:
    if released.shape != truth.shape:
        raise DataError(f"released has shape {released.shape}, but must have that of the truth, {truth.shape}")
    return released
