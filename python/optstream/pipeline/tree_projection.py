"""Post-processing of a hierarchy: the closest values that add up over nodes and over features, within the bounds.

Unknown is one value per leaf and step, between the public bounds; every private answer, of any node, step or cell, is a
sum of them. The weight of an answer is the product of a weight of its level and one of its step or cell, because the
noise of a level is that of a single stream times a constant. Without features every step is a problem of its own on the
tree, which Rust solves exactly. With features the problem couples the tree and time, and Rust solves it by block
principal pivoting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optstream import _core

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from optstream.pipeline.features import Feature
    from optstream.pipeline.hierarchy import Hierarchy

__all__ = ["TreeProjection"]


class TreeProjection:
    """The projection for one hierarchy, set of features and weights, used for many periods."""

    def __init__(
        self,
        hierarchy: Hierarchy,
        features: Sequence[Feature],
        node_weights: NDArray[np.float64],
        step_weights: NDArray[np.float64],
        cell_weights: Sequence[float],
        *,
        bounds: tuple[float, float],
    ) -> None:
        """Build the problem once, for leaves between the bounds."""
        self._bounds = bounds
        self._leaves = hierarchy.leaf_positions
        weights = (node_weights / node_weights.max()).tolist()
        self._problem: _core.Forest | _core.Product
        if not features:
            self._problem = _core.Forest(hierarchy.parents, weights)
            return
        labelled = [(list(feature.labels), weight) for feature, weight in zip(features, cell_weights, strict=True)]
        time = np.diag(step_weights)
        for labels, weight in labelled:
            time += weight * np.equal.outer(labels, labels)
        inverse = np.asarray(np.linalg.inv(time), dtype=np.float64)
        self._problem = _core.Product(hierarchy.parents, weights, step_weights.tolist(), labelled, inverse)

    def project(self, steps: NDArray[np.float64], cells: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the values of the leaves, one row per leaf, from the answers, one row per node.

        Raises:
            SolverError: The answer does not satisfy the optimality conditions; nothing is released.
        """
        if isinstance(self._problem, _core.Product):
            return self._problem.project(steps, cells, *self._bounds)
        lower, upper = self._bounds
        return np.ascontiguousarray(self._problem.project(steps.T, lower=lower, upper=upper).T[self._leaves])
