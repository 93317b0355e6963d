"""Releasing a hierarchy: every node measured with its level's budget, then made to add up to the last bit."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime
    from pathlib import Path

    from numpy.typing import NDArray

    from optstream import _core
    from optstream.mechanism.release import Release
    from optstream.pipeline.features import Feature
    from optstream.pipeline.hierarchy import Hierarchy
    from optstream.pipeline.tree_projection import TreeProjection
    from optstream.privacy.statement import Statement

    Retry = tuple[_core.CuratorKey, Sequence[bytes]]

__all__ = ["TreeMeasurement", "TreeRelease", "assemble_tree", "by_step", "rounded_nodes", "whole_sums"]


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
    period: int | None = None
    """The number of the period in its stream, if it was released by one."""
    start: int | datetime | None = None
    """The first step of that period, as a number or a time."""
    revised: Any = None
    """The values in the light of all periods of the release, if ``Estimate(revise=True)``; in the same form."""
    state: dict[str, Any] | None = None
    """What the next release needs to know: what the last period cost and what an estimate has learnt. Plain data for
    JSON, without raw values; None where a stream or a ledger keeps it."""
    _nodes: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0, 0)))
    _noise: tuple[tuple[Release, ...], ...] = ()
    """For every period the noise of each level, as releases of zeros."""
    _deviations: NDArray[np.float64] | None = None
    """The standard deviation of every step of an estimate, as periods, nodes and steps."""
    _rounding: float = 0.0
    """How far rounding may move the value of a leaf."""

    def leaf_periods(self) -> NDArray[np.float64]:
        """Return what was released as an array of periods, leaves and steps."""
        return self._nodes[:, self.hierarchy.leaf_positions]

    @property
    def is_measured(self) -> bool:
        """Whether the values are what was measured, made to add up, and not an estimate from it."""
        return self._deviations is None

    def interval(self, level: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return lower and upper ends of intervals in the shape of the values: a row for each step, a column per node.

        They are those of :meth:`Release.interval` for each node, before nodes were made to add up; those of an
        estimate stay within the sums of the bounds of a node's leaves. Adding up brings values closer to the truth, so
        they cover somewhat more than ``level``; rounding to whole numbers is allowed for as if the leaves were rounded
        independently.

        Args:
            level: The coverage, between 0 and 1.
        """
        below = self.hierarchy.sums(np.ones(self.hierarchy.leaf_positions.size))
        reach = np.empty(self._nodes.shape)
        for period, noise in zip(reach, self._noise, strict=True):
            widths = [(high - low)[0] / 2 for low, high in (one.interval(level) for one in noise)]
            period[:] = np.array(widths)[self.hierarchy.depths]
        if self._deviations is not None:
            reach = NormalDist().inv_cdf((1 + level) / 2) * self._deviations
        reach += self._rounding * np.sqrt(below)[:, None]
        low, high = self._nodes - reach, self._nodes + reach
        if self._deviations is not None:
            # The true values lie within the bounds, and so do these intervals of theirs.
            bounds = np.multiply.outer(self.statement.bounds, below)[..., None]
            low, high = np.maximum(low, bounds[0]), np.minimum(high, bounds[1])
        return by_step(low), by_step(high)

    def plot(self, path: str | Path | None = None) -> Any:
        """Return a figure of matplotlib with the values and their band, and write it to a file if one is named."""
        from optstream.pictures import release_picture  # noqa: PLC0415  (pictures know releases)

        return release_picture(self, path)

    def report(self, path: str | Path, **names: Any) -> None:
        """Write a page for people who do not know differential privacy: see docs/reports.md.

        Args:
            path: Where to write it.
            names: What things are called: ``title``, ``entity``, ``unit``, ``step`` and ``origin``.
        """
        from optstream.report import write_release  # noqa: PLC0415  (reports know releases)

        write_release(self, path, **names)

    def _repr_html_(self) -> str:
        from optstream.report import release_html  # noqa: PLC0415

        return release_html(self)

    def __repr__(self) -> str:
        periods, _, w = self._nodes.shape
        return f"TreeRelease(steps={periods * w}, {self.hierarchy!r}, epsilon={self.statement.epsilon_shown})"


@dataclass(frozen=True)
class TreeMeasurement:
    """What is built once for a hierarchy: one plan per level, and the projection."""

    hierarchy: Hierarchy
    plans: Sequence[_core.Plan]
    projection: TreeProjection
    bounds: tuple[float, float]
    follow: Callable[[int, tuple[int, ...]], _core.Plan] | None = None
    """Gives the plan of a level for steps that the root chose, if it chooses for all."""

    def plan(self, depth: int, chosen: Sequence[int]) -> _core.Plan:
        """Return the plan of a level for a period in which the root measured some steps."""
        if self.follow is None or depth == 0:
            return self.plans[depth]
        return self.follow(depth, tuple(int(step) for step in chosen))

    def measure(
        self, leaves: NDArray[np.int64], retry: Retry | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
        """Return noisy steps, cells and measured steps of all nodes, one row each, from one period's quantised leaves.

        With a curator's key and a context, which must name the data of all leaves, a retry repeats the noise.
        """
        units = self.hierarchy.sums(leaves)
        # Nodes are in the order of their levels, so the parts only need to be put one below the other.
        parts: list[Any] = []
        for depth, level in enumerate(self.hierarchy.level_positions):
            plan = self.plan(depth, parts[0][2][0] if parts else ())
            parts.append(plan.measure(units[level], retry and (retry[0], [*retry[1], depth.to_bytes(8, "little")])))
        knots = [np.broadcast_to(part[2], (len(part[0]), part[2].shape[1])) for part in parts]
        return (
            np.concatenate([part[0] for part in parts]),
            np.concatenate([part[1] for part in parts]),
            np.concatenate(knots).astype(np.int64),
        )

    def draw(self, leaves: NDArray[np.int64], grid: float, retry: Retry | None = None) -> NDArray[np.float64]:
        """Return the released values of one period, one row per node, from its quantised leaves."""
        steps, cells, _ = self.measure(leaves, retry)
        return whole_sums(self.hierarchy, self.projection.project(steps, cells), grid, self.bounds)


def whole_sums(
    hierarchy: Hierarchy, leaves: NDArray[np.float64], grid: float, bounds: tuple[float, float] = (0.0, np.inf)
) -> NDArray[np.float64]:
    """Return the values of all nodes from those of the leaves, as whole grid steps, so that every sum is exact."""
    # No sum leaves 64 bits, however much noise there is.
    limit = 2**61 / len(leaves)
    lower, upper = max(np.ceil(bounds[0] / grid), -limit), min(np.floor(bounds[1] / grid), limit)
    units = np.round(np.clip(leaves / grid, lower, max(lower, upper))).astype(np.int64)
    return np.asarray(hierarchy.sums(units) * grid)


def by_step(nodes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return an array of periods, nodes and steps as one row for each step and one column for each node."""
    return nodes.transpose(0, 2, 1).reshape(-1, nodes.shape[1])


def assemble_tree(
    nodes: NDArray[np.float64],
    restore: Callable[[NDArray[np.float64]], Any],
    *,
    hierarchy: Hierarchy,
    features: Sequence[Feature],
    statement: Statement,
    noise: Sequence[tuple[Release, ...]],
    deviations: NDArray[np.float64] | None,
    integers: bool,
) -> TreeRelease:
    """Return the release of drawn periods, given as an array of periods, nodes and steps.

    Args:
        nodes: The drawn periods.
        restore: Gives released numbers the form of the data.
        hierarchy: The tree.
        features: Partitions whose sums are released too.
        statement: What is promised.
        noise: For every period the noise of each level.
        deviations: Of an estimate its standard deviations.
        integers: Whether leaves are rounded to whole numbers, of which all others are sums.
    """
    if integers:
        nodes = rounded_nodes(hierarchy, nodes)
    periods = nodes.transpose(0, 2, 1)
    # Sums of whole grid steps are exact.
    cells = (np.eye(feature.size)[:, list(feature.labels)] for feature in features)
    return TreeRelease(
        values=restore(by_step(nodes).astype(np.int64) if integers else by_step(nodes)),
        hierarchy=hierarchy,
        features=tuple(membership @ periods for membership in cells),
        statement=statement,
        _nodes=nodes,
        _noise=tuple(noise),
        _deviations=deviations,
        _rounding=0.5 if integers else 0.0,
    )


def rounded_nodes(hierarchy: Hierarchy, nodes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return periods, nodes and steps with leaves rounded to whole numbers, and all others their sums."""
    # Floats hold whole numbers to 2^53 exactly, and so their sums.
    return np.stack([hierarchy.sums(np.rint(period[hierarchy.leaf_positions])) for period in nodes]) + 0.0
