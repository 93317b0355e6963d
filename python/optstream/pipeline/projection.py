"""Post-processing: the closest values that make all private answers consistent and none negative.

Variables are the steps and the cells of every feature; a cell is the sum of its steps. Of all such values with
``x >= 0`` the projection minimises the weighted squared distance to the private answers. Where the features form a
chain the problem is a tree, which Rust solves exactly; any other partial order goes to Clarabel.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import clarabel
import numpy as np
from scipy import sparse

from optstream.errors import SolverError
from optstream.pipeline.features import chain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from optstream.pipeline.features import Feature

__all__ = ["ConvexProjection", "tree_of"]

RESIDUAL = 1e-7
"""Largest residual of a constraint that is accepted, relative to the largest private answer."""
TOLERANCE = 1e-13
"""Largest violation of the sign of a multiplier at the polished optimum, in the same unit."""
POLISHED = 4096
"""Longest period that is polished, since that takes a dense matrix of its length squared."""
ROUNDS = 20
"""Rounds of polishing before the interior point is kept."""


def tree_of(w: int, features: Sequence[Feature]) -> list[int | None] | None:
    """Return the parent of every step and then of every cell if the features form a chain, else None.

    >>> from optstream import Feature
    >>> tree_of(3, [Feature.total(3)])
    [3, 3, 3, None]
    """
    order = chain(features)
    if order is None:
        return None
    first_cell = {index: w + sum(feature.size for feature in features[:index]) for index in order}
    parents: list[int | None] = [None] * (w + sum(feature.size for feature in features))
    below: Sequence[int] = range(w)
    for index in order:
        cells = [first_cell[index] + label for label in features[index].labels]
        for child, parent in zip(below, cells, strict=True):
            parents[child] = parent
        below = cells
    return parents


class ConvexProjection:
    """The projection for any features, by Clarabel. The sparse structure is built once and solved for many periods."""

    def __init__(
        self, w: int, features: Sequence[Feature], weights: NDArray[np.float64], iterations: int = 200
    ) -> None:
        """Build the problem for given weights of the steps and cells."""
        self._w = w
        self._weights = weights / weights.max()
        n = weights.size
        sums = sparse.vstack(
            [
                sparse.csc_array((np.ones(w), (feature.labels, np.arange(w))), shape=(feature.size, w))
                for feature in features
            ]
        )
        self._sums = sparse.csr_array(sums)
        consistency = sparse.hstack([sums, -sparse.eye_array(n - w)])
        positivity = sparse.hstack([-sparse.eye_array(w), sparse.csc_array((w, n - w))])
        self._lock = threading.Lock()
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        settings.max_iter = iterations
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
        # Data can only be replaced in a problem that was not reduced.
        settings.presolve_enable = False
        settings.chordal_decomposition_enable = False
        self._solver = clarabel.DefaultSolver(
            sparse.csc_matrix(sparse.diags_array(self._weights)),
            np.zeros(n),
            sparse.csc_matrix(sparse.vstack([consistency, positivity])),
            np.zeros(n),
            [clarabel.ZeroConeT(n - w), clarabel.NonnegativeConeT(w)],
            settings,
        )

    def project(
        self, steps: NDArray[np.float64], cells: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the projected steps and cells of one period.

        Raises:
            SolverError: Clarabel did not solve the problem, or its answer fails the check.
        """
        targets = np.concatenate([steps, cells])
        # In units of the largest answer the tolerances of the solver are relative ones.
        unit = max(float(np.abs(targets).max()), 1.0)
        # The solver keeps the problem that it was last given, so threads take turns.
        with self._lock:
            self._solver.update(q=-self._weights * targets / unit)
            solution = self._solver.solve()
        if solution.status != clarabel.SolverStatus.Solved:
            raise SolverError(f"Clarabel ended with status {solution.status}; nothing is released")
        found = np.asarray(solution.x)
        steps = found[: self._w]
        residual = max(float(np.abs(self._sums @ steps - found[self._w :]).max()), -float(steps.min()))
        if not residual <= RESIDUAL:
            raise SolverError(f"the projection misses its constraints by {residual:.3g}, more than {RESIDUAL:.3g}")
        steps = self._polished(np.maximum(steps, 0.0), targets / unit)
        return steps * unit, np.asarray(self._sums @ (steps * unit))

    def _polished(self, steps: NDArray[np.float64], targets: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the exact optimum if the interior point shows which steps are zero, else the interior point.

        An interior point is off by the root of its tolerance where a step and its multiplier both vanish. Solving for
        the positive steps alone, and exchanging those with the wrong sign, ends at the optimum within a few rounds.
        """
        w = self._w
        if w > POLISHED:
            return steps
        hessian = np.diag(self._weights[:w]) + self._sums.T @ (self._weights[w:, None] * self._sums.toarray())
        linear = self._weights[:w] * targets[:w] + self._sums.T @ (self._weights[w:] * targets[w:])
        free = steps > RESIDUAL
        for _ in range(ROUNDS):
            exact = np.zeros(w)
            exact[free] = np.linalg.solve(hessian[np.ix_(free, free)], linear[free])
            gradient = hessian @ exact - linear
            negative, wanted = free & (exact < 0), ~free & (gradient < -TOLERANCE)
            if not negative.any() and not wanted.any():
                return exact
            free = (free & ~negative) | wanted
        return steps
