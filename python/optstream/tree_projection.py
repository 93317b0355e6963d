"""Post-processing of a hierarchy: the closest values that add up over nodes and over features, and are not negative.

Unknown is one value per leaf and step; every private answer, of any node, step or cell, is a sum of them. The weight
of an answer is the product of a weight of its level and one of its step or cell, because the noise of a level is that
of a single stream times a constant. The matrix of the least-squares problem is therefore a Kronecker product of one
over the tree and one over time, and its inverse is cheap: a tree solve along the nodes, a small dense matrix along the
steps.

Where the unconstrained optimum is already non-negative it is the answer, which is the common case. Otherwise the steps
that are zero are found by exchanging signs, each time solving for the positive ones by conjugate gradients with that
inverse as preconditioner. The answer is accepted only if it satisfies the optimality conditions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optstream import _core
from optstream.errors import SolverError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from optstream.features import Feature
    from optstream.hierarchy import Hierarchy

__all__ = ["TreeProjection"]

TOLERANCE = 1e-9
"""Largest violation of the optimality conditions, relative to the size of the right-hand side."""
ROUNDS = 60
ITERATIONS = 400


class TreeProjection:
    """The projection for one hierarchy, set of features and weights, used for many periods."""

    def __init__(
        self,
        hierarchy: Hierarchy,
        features: Sequence[Feature],
        node_weights: NDArray[np.float64],
        step_weights: NDArray[np.float64],
        cell_weights: Sequence[float],
    ) -> None:
        """Build the two factors of the matrix."""
        self._hierarchy = hierarchy
        self._node_weights = node_weights / node_weights.max()
        self._step_weights = step_weights
        self._features = [
            (np.array(feature.labels), weight) for feature, weight in zip(features, cell_weights, strict=True)
        ]
        self._forest = _core.Forest(hierarchy.parents, self._node_weights.tolist())
        w = step_weights.size
        self._time = np.diag(step_weights)
        for labels, weight in self._features:
            self._time += weight * (labels[:, None] == labels[None, :])
        self._time_inverse = np.linalg.inv(self._time) if self._features else np.diag(1 / step_weights)
        self._w = w

    def project(self, steps: NDArray[np.float64], cells: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the values of the leaves, one row per leaf, from the answers, one row per node.

        Raises:
            SolverError: The answer does not satisfy the optimality conditions; nothing is released.
        """
        if not self._features:
            return self._along_nodes_only(steps)
        right = self._right_hand_side(steps, cells)
        found = self._inverse(right)
        if (found >= 0).all():
            return found
        return self._exchange(right, found)

    def _along_nodes_only(self, steps: NDArray[np.float64]) -> NDArray[np.float64]:
        """Without features every step is a problem of its own, which the forest solves exactly."""
        found = self._forest.project(np.ascontiguousarray(steps.T), nonnegative=True)
        return np.ascontiguousarray(found.T[self._hierarchy.leaf_positions])

    def _right_hand_side(self, steps: NDArray[np.float64], cells: NDArray[np.float64]) -> NDArray[np.float64]:
        gathered = steps * self._step_weights
        first = 0
        for labels, weight in self._features:
            size = int(labels.max()) + 1
            gathered += weight * cells[:, first : first + size][:, labels]
            first += size
        return self._hierarchy.path_sums(gathered * self._node_weights[:, None])

    def _matrix(self, leaves: NDArray[np.float64]) -> NDArray[np.float64]:
        sums = self._hierarchy.sums(leaves @ self._time)
        return self._hierarchy.path_sums(sums * self._node_weights[:, None])

    def _inverse(self, right: NDArray[np.float64]) -> NDArray[np.float64]:
        leaves = self._hierarchy.leaf_positions
        # Targets at the leaves alone make the right-hand side of the forest's own least squares equal to the given one.
        targets = np.zeros((self._w, len(self._hierarchy.nodes)))
        targets[:, leaves] = (right @ self._time_inverse).T / self._node_weights[leaves]
        return np.ascontiguousarray(self._forest.project(targets, nonnegative=False).T[leaves])

    def _exchange(self, right: NDArray[np.float64], found: NDArray[np.float64]) -> NDArray[np.float64]:
        """Exchange steps between zero and positive until all signs are right."""
        free = found > 0
        scale = float(np.abs(right).max())
        for _ in range(ROUNDS):
            found = self._solve_free(right, np.where(free, np.maximum(found, 0), 0), free, scale)
            gradient = self._matrix(found) - right
            negative = free & (found < 0)
            wanted = ~free & (gradient < -TOLERANCE * scale)
            if not negative.any() and not wanted.any():
                return found
            free = (free & ~negative) | wanted
        raise SolverError(f"the projection did not settle within {ROUNDS} rounds; nothing is released")

    def _solve_free(
        self, right: NDArray[np.float64], start: NDArray[np.float64], free: NDArray[np.bool_], scale: float
    ) -> NDArray[np.float64]:
        """Solve for the free steps, the others being zero, by preconditioned conjugate gradients."""
        found = start
        residual = np.where(free, right - self._matrix(found), 0)
        direction = np.zeros_like(found)
        last = 1.0
        for _ in range(ITERATIONS):
            if np.abs(residual).max() <= TOLERANCE * 1e-2 * scale:
                return found
            conditioned = np.where(free, self._inverse(residual), 0)
            slope = float(np.vdot(residual, conditioned))
            direction = conditioned + (slope / last) * direction
            image = np.where(free, self._matrix(direction), 0)
            length = slope / float(np.vdot(direction, image))
            found = found + length * direction
            residual = residual - length * image
            last = slope
        raise SolverError(f"the projection did not converge within {ITERATIONS} iterations; nothing is released")
