"""Post-processing: the closest values that make all private answers consistent and keep to the public bounds.

Variables are the steps and the cells of every feature; a cell is the sum of its steps. Of all such values whose steps
lie between the bounds (and whose cells therefore lie between as many times the bounds) the projection minimises the
weighted squared distance to the private answers. Where the features form a chain the problem is a tree, which Rust
solves exactly; any other partial order goes to Clarabel.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

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
        self,
        w: int,
        features: Sequence[Feature],
        weights: NDArray[np.float64],
        bounds: tuple[float, float],
        iterations: int = 200,
    ) -> None:
        """Build the problem for given weights of the steps and cells, and public bounds of the steps."""
        self._w = w
        self._bounds = bounds
        self._weights = weights / weights.max()
        n = weights.size
        import clarabel  # noqa: PLC0415  (most mechanisms need neither)
        from scipy import sparse  # noqa: PLC0415

        sums = sparse.vstack(
            [
                sparse.csc_array((np.ones(w), (feature.labels, np.arange(w))), shape=(feature.size, w))
                for feature in features
            ]
        )
        self._sums = sparse.csr_array(sums)
        consistency = sparse.hstack([sums, -sparse.eye_array(n - w)])
        above = sparse.hstack([-sparse.eye_array(w), sparse.csc_array((w, n - w))])
        self._lock = threading.Lock()
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        settings.max_iter = iterations
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
        # Data can only be replaced in a problem that was not reduced.
        settings.presolve_enable = False
        settings.chordal_decomposition_enable = False
        self._solved = clarabel.SolverStatus.Solved
        self._solver = clarabel.DefaultSolver(
            sparse.csc_matrix(sparse.diags_array(self._weights)),
            np.zeros(n),
            sparse.csc_matrix(sparse.vstack([consistency, above, -above])),
            np.zeros(n + w),
            [clarabel.ZeroConeT(n - w), clarabel.NonnegativeConeT(2 * w)],
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
        lower, upper = self._reached(targets)
        # In units of the largest answer, or of the bound next to zero, the tolerances of the solver are relative ones.
        unit = max(float(np.abs(targets).max()), lower, -upper, 1.0)
        lower, upper = lower / unit, upper / unit
        room = np.concatenate([np.zeros(targets.size - self._w), np.full(self._w, -lower), np.full(self._w, upper)])
        # The solver keeps the problem that it was last given, so threads take turns.
        with self._lock:
            self._solver.update(q=-self._weights * targets / unit, b=room)
            solution = self._solver.solve()
        if solution.status != self._solved:
            raise SolverError(f"Clarabel ended with status {solution.status}; nothing is released")
        found = np.asarray(solution.x)
        steps = found[: self._w]
        misses = [np.abs(self._sums @ steps - found[self._w :]), lower - steps, steps - upper]
        residual = max(float(miss.max()) for miss in misses)
        if not residual <= RESIDUAL:
            raise SolverError(f"the projection misses its constraints by {residual:.3g}, more than {RESIDUAL:.3g}")
        steps = self._polished(np.clip(steps, lower, upper), targets / unit, lower, upper)
        # Multiplying by the unit may round across a bound.
        steps = np.clip(steps * unit, *self._bounds)
        return steps, np.asarray(self._sums @ steps)

    def _reached(self, targets: NDArray[np.float64]) -> tuple[float, float]:
        """Return bounds that are no wider than the optimum can reach, since a solver that sees far ones is less exact.

        The optimum is no further from the answers than the point of the box that is next to zero.
        """
        lower, upper = self._bounds
        if not np.isfinite(targets).all():
            return lower, upper
        nearest = np.full(self._w, min(max(0.0, lower), upper))
        distances = np.concatenate([nearest, self._sums @ nearest]) - targets
        reach = float(np.sqrt((self._weights * distances**2).sum() / self._weights[: self._w].min()))
        reach += float(np.abs(targets[: self._w]).max())
        return max(lower, -2 * reach - 1), min(upper, 2 * reach + 1)

    def _polished(
        self, steps: NDArray[np.float64], targets: NDArray[np.float64], lower: float, upper: float
    ) -> NDArray[np.float64]:
        """Return the exact optimum if the interior point shows which steps are at a bound, else the interior point.

        An interior point is off by the root of its tolerance where a step is at a bound and its multiplier vanishes.
        Solving for the other steps alone, and exchanging those on the wrong side, ends at the optimum within a few
        rounds.
        """
        w = self._w
        if w > POLISHED:
            return steps
        hessian = np.diag(self._weights[:w]) + self._sums.T @ (self._weights[w:, None] * self._sums.toarray())
        linear = self._weights[:w] * targets[:w] + self._sums.T @ (self._weights[w:] * targets[w:])
        low, high = steps < lower + RESIDUAL, steps > upper - RESIDUAL
        for _ in range(ROUNDS):
            exact = np.where(low, lower, np.where(high, upper, 0.0))
            free = ~(low | high)
            exact[free] = np.linalg.solve(hessian[np.ix_(free, free)], (linear - hessian @ exact)[free])
            gradient = hessian @ exact - linear
            below, above = free & (exact < lower), free & (exact > upper)
            wanted = (low & (gradient < -TOLERANCE)) | (high & ~low & (gradient > TOLERANCE))
            if not (below | above | wanted).any():
                return exact
            low, high = (low & ~wanted) | below, (high & ~wanted) | above
        return steps
