"""The engine of a mechanism: what is built once from its parameters to draw periods and to finish what was drawn."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream import _core
from optstream.data.frames import read_leaves, read_periods
from optstream.errors import ParameterError
from optstream.estimate import Estimate
from optstream.estimate.estimator import Estimator
from optstream.mechanism.calibration import Calibration
from optstream.mechanism.parameters import scattered
from optstream.mechanism.release import Parts
from optstream.mechanism.tree_release import TreeMeasurement, whole_sums
from optstream.pipeline.perturbation import GaussianNoise
from optstream.pipeline.projection import ConvexProjection, tree_of
from optstream.pipeline.sampling import L1Sampling
from optstream.pipeline.tree_projection import TreeProjection
from optstream.privacy.accounting import epsilon_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from optstream.mechanism.optstream import OptStream
    from optstream.privacy.accounting import Cost
    from optstream.privacy.guarantee import Guarantee

    Arrays = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]

__all__ = ["Engine", "Periods"]

SAMPLERS = 1
"""The version of the samplers: it changes whenever the same key, scales and data would give other noise."""


@dataclass(frozen=True, repr=False)
class Periods:
    """Raw data on its way into a release, as integers of the grid."""

    units: NDArray[np.int64]
    """An array of periods, streams and steps."""
    restore: Callable[[NDArray[np.float64]], Any]
    """Gives released numbers the form of the data."""


@dataclass(frozen=True, repr=False)
class Engine:
    """What draws the periods of a mechanism, from its parameters."""

    mechanism: OptStream

    def calibrated(
        self,
        guarantee: Guarantee,
        split: tuple[Fraction, ...],
        part: Fraction = Fraction(1),
        nodes: int = 1,
        *,
        chooses: bool = True,
    ) -> Calibration:
        """Return the noise of a stream with some guarantee and shares of its stages, or of a level of so many nodes."""
        return Calibration(
            guarantee=guarantee,
            sample=self.mechanism.sample,
            perturb=self.mechanism.perturb,
            features=self.mechanism.features,
            split=split,
            printed=self.mechanism.calibration == "paper",
            weights=self.mechanism.weights,
            grid=self.mechanism.grid,
            bounds=self.mechanism.bounds,
            part=part,
            nodes=nodes,
            leaves=scattered(guarantee, self.mechanism.hierarchy),
            chooses=chooses,
        )

    @cached_property
    def calibration(self) -> Calibration:
        """The noise of a single stream."""
        return self.calibrated(self.mechanism.guarantee, self.mechanism.split)

    @cached_property
    def levels(self) -> tuple[Calibration, ...]:
        """The noise of each level of the hierarchy, with its share of epsilon; of the one stream without one."""
        if self.mechanism.hierarchy is None:
            return (self.calibration,)
        # A settled entity is in one node of a level, one that moves in any of them.
        moves = self.mechanism.guarantee.entities == "moving"
        shares = zip(self.mechanism.level_split, self.mechanism.hierarchy.level_positions, strict=True)
        parts = [(share, level.size if moves else 1) for share, level in shares]
        if self._chooses_once:
            return self._levels_chosen_once(parts)
        return tuple(self._level(share, self.mechanism.split, nodes) for share, nodes in parts)

    @property
    def _chooses_once(self) -> bool:
        """Whether the root chooses steps for all nodes.

        If every node chose its own, one that moves could pay for choosing in many of them.
        """
        sample, moves = self.mechanism.sample, self.mechanism.guarantee.entities == "moving"
        return moves and isinstance(sample, L1Sampling) and sample.reads(self.mechanism.guarantee.w)

    def _levels_chosen_once(self, parts: Sequence[tuple[Fraction, int]]) -> tuple[Calibration, ...]:
        """Return the noise of levels of which the root chooses the steps: at its share of all, the rest is divided."""
        choice, *others = self.mechanism.split
        split, below = tuple(share / (1 - choice) for share in others), [share * (1 - choice) for share, _ in parts]
        whole = choice + below[0]
        of_root = (choice / whole, *(below[0] * share / whole for share in split))
        levels = [
            self._level(share, split, nodes, chooses=False) for share, (_, nodes) in zip(below, parts, strict=True)
        ]
        return self._level(whole, of_root, 1), *levels[1:]

    def _level(self, share: Fraction, split: tuple[Fraction, ...], nodes: int, *, chooses: bool = True) -> Calibration:
        """Return the noise of a level with a share of the budget."""
        guarantee = self.mechanism.guarantee
        if isinstance(self.mechanism.perturb, GaussianNoise):
            return self.calibrated(guarantee, split, share, nodes, chooses=chooses)
        return self.calibrated(guarantee.with_epsilon(guarantee.epsilon * share), split, nodes=nodes, chooses=chooses)

    @property
    def plans(self) -> Sequence[_core.Plan]:
        """What measures each level of the hierarchy, or the one stream."""
        return (self.plan,) if self.mechanism.hierarchy is None else self.tree.plans

    def settled(self, steps: NDArray[np.float64], cells: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the values of all nodes of a hierarchy from what was measured of one period."""
        tree = self.tree
        return whole_sums(
            tree.hierarchy, tree.projection.project(steps, cells), self.mechanism.grid, self.mechanism.bounds
        )

    @cached_property
    def tree(self) -> TreeMeasurement:
        """What measures a hierarchy and makes its nodes add up."""
        hierarchy = self.mechanism.hierarchy
        if hierarchy is None:
            raise ParameterError("hierarchy is None, but must be given to release a tree")
        below = hierarchy.sums(np.ones(hierarchy.leaf_positions.size, dtype=np.int64))
        largest = [int(below[level].max()) for level in hierarchy.level_positions]
        plans = [level.build_plan(None, streams) for level, streams in zip(self.levels, largest, strict=True)]

        def following(depth: int, steps: tuple[int, ...]) -> _core.Plan:
            return self.levels[depth].build_plan(None, largest[depth], steps)

        # How much an answer weighs follows from the noise of its level; the paper weighs by shares.
        power = 1 if isinstance(self.mechanism.perturb, GaussianNoise) else 2
        levels = np.array([float(share) for share in self.mechanism.level_split]) ** power
        if self.mechanism.weights == "variance":
            levels = np.array([1 / level.variances.mean() for level in self.levels])
        weights = self.calibration.answer_weights()
        first = np.cumsum([self.mechanism.guarantee.w, *(feature.size for feature in self.mechanism.features)])[:-1]
        projection = TreeProjection(
            hierarchy,
            self.mechanism.features,
            (levels / levels.max())[hierarchy.depths],
            weights[: self.mechanism.guarantee.w],
            [float(weights[index]) for index in first],
            bounds=self.mechanism.bounds,
        )
        follow = lru_cache(maxsize=256)(following) if self._chooses_once else None
        return TreeMeasurement(hierarchy, plans, projection, self.mechanism.bounds, follow)

    @cached_property
    def estimator(self) -> Estimator | None:
        """What turns measured periods into estimates, if they are."""
        if not isinstance(self.mechanism.reconstruct, Estimate):
            return None
        return Estimator(self.mechanism.reconstruct, self.levels, self.mechanism.hierarchy)

    @cached_property
    def plan(self) -> _core.Plan:
        """The plan of a single stream. An estimate wants what was measured, not what was made consistent."""
        return self.calibration.plan if self.estimator is None else self.calibration.build_plan(None)

    @cached_property
    def _projection(self) -> ConvexProjection | None:
        """Clarabel's problem, where the features form no chain."""
        if (
            self.estimator
            or not self.mechanism.features
            or tree_of(self.mechanism.guarantee.w, self.mechanism.features) is not None
        ):
            return None
        return ConvexProjection(
            self.mechanism.guarantee.w,
            self.mechanism.features,
            self.calibration.answer_weights(),
            self.mechanism.bounds,
        )

    def read(self, x: Any) -> Periods:
        """Return the data of whole periods as integers of the grid. Nothing is drawn.

        Raises:
            DataError: The data is empty, not a whole number of periods, or not finite.
        """
        w = self.mechanism.guarantee.w
        if self.mechanism.hierarchy is None:
            rows, restore = read_periods(x, w)
            return Periods(_core.quantise(rows, self.mechanism.bounds, self.mechanism.grid).reshape(-1, 1, w), restore)
        data, restore = read_leaves(x, self.mechanism.hierarchy, w)
        units = _core.quantise(data, self.mechanism.bounds, self.mechanism.grid).reshape(-1, w, data.shape[1])
        return Periods(np.ascontiguousarray(units.transpose(0, 2, 1)), restore)

    def draw(self, units: NDArray[np.int64], retry: tuple[_core.CuratorKey, Sequence[bytes]] | None = None) -> Parts:
        """Draw the release of one period, given as a row of integers of the grid for every stream.

        With a curator's key and a context the noise is a function of them and of the data, so that a retry repeats it
        bit for bit. The context must tell apart whatever may be released: see :class:`Ledger`.
        """
        if retry is not None:
            # Two builds that calibrate one description differently must not draw the same bits at two scales.
            retry = retry[0], [*retry[1], self.fingerprint]
        if self.mechanism.hierarchy is None:
            return Parts(*self.projected(*self.plan.measure(units, retry)))
        if self.estimator is not None:
            return Parts(*self.tree.measure(units, retry))
        return Parts(
            self.tree.draw(units, self.mechanism.grid, retry), np.empty((0, 0)), np.empty((0, 0), dtype=np.int64)
        )

    def projected(self, steps: NDArray[np.float64], cells: NDArray[np.float64], knots: NDArray[np.uint64]) -> Arrays:
        """Apply the projection that is not part of the plan, in place."""
        if self._projection is not None:
            for step_row, cell_row in zip(steps, cells, strict=True):
                step_row[:], cell_row[:] = self._projection.project(step_row, cell_row)
        return steps, cells, knots.astype(np.int64)

    @property
    def noise_scale(self) -> float:
        """The scale of the noise on measured values of a single stream, in the units of the data."""
        return self.calibration.scale

    @cached_property
    def fingerprint(self) -> bytes:
        """What keyed noise depends on besides the context: samplers, sensitivities, scales, blocks, runs and grid."""
        content = [
            (
                level.sampler_inputs(),
                level.plan.sensitivity,
                level.plan.reach,
                level.plan.selection_scales,
                level.plan.sample_scale,
                level.plan.feature_scales,
                level.blocks,
                level.gaussian,
                level.chooses,
                level.grid,
                # Equal bounds are one pair, whether they were given as ints or floats.
                tuple(map(float, level.bounds)),
            )
            for level in self.levels
        ]
        return sha256(repr((SAMPLERS, content)).encode()).digest()

    @cached_property
    def costs(self) -> tuple[Cost, ...]:
        """What one period costs, on the steps 0 to w - 1."""
        # A settled entity is measured once on every level from the root down to its leaf, and the lowest leaf pays for
        # all. What one that moves changes on a level is no more, and each level is priced for it.
        return tuple(cost for level in self.levels for stage in level.true_costs().values() for cost in stage)

    @cached_property
    def steady_epsilon(self) -> Fraction:
        """What the worst window of an endless stream of such periods costs."""
        return epsilon_of(self.costs, self.mechanism.guarantee)
