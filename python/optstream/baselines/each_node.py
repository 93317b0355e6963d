"""A hierarchy whose nodes are released one by one."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream import _core
from optstream.data.frames import read_leaves
from optstream.errors import ParameterError, ParameterTypeError
from optstream.mechanism.mechanism import Mechanism
from optstream.mechanism.tree_release import TreeRelease
from optstream.pipeline.hierarchy import Hierarchy
from optstream.privacy.guarantee import Guarantee
from optstream.privacy.statement import Stage, Statement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["EachNode"]


@dataclass(frozen=True)
class EachNode(Mechanism):
    """Release every node of a hierarchy by itself, each level with an equal share of the budget.

    What the paper compares the hierarchical release of OptStream with. Parents are not the sums of their children.

    **Guarantee.** An entity belongs to one leaf throughout a window, so it changes one node of every level by at most
    alpha at a step, and the costs of the levels add up to epsilon.

    Args:
        guarantee: What is promised.
        mechanism: What releases a node: a baseline, such as ``Laplace``, or any function of a guarantee and ``bounds``.
        hierarchy: The tree of groups whose leaves are the streams.
        bounds: Public lower and upper bound of the values of a leaf. A node has the sum of those of its leaves.
        options: Further parameters of the mechanism.

    Raises:
        ParameterError: The guarantee has entities that move.

    Example:
        >>> from optstream.baselines import Laplace
        >>> tree = Hierarchy.nested({"nation": ["north", "south"]})
        >>> mechanism = EachNode(Guarantee(epsilon=1, w=4), mechanism=Laplace, hierarchy=tree, bounds=(0, 100))
        >>> mechanism.release(np.full((8, 2), 50.0)).values.shape
        (8, 3)
    """

    guarantee: Guarantee
    _: KW_ONLY
    mechanism: Callable[..., Any]
    hierarchy: Hierarchy
    bounds: tuple[float, float]
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    retune = integers = False
    streams = 1

    def __post_init__(self) -> None:
        for name, kind in (("guarantee", Guarantee), ("hierarchy", Hierarchy)):
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise ParameterTypeError(f"{name} is of type {type(value).__name__}, but must be {kind.__name__}")
        if self.guarantee.entities == "moving":
            raise ParameterError(
                "guarantee has moving entities, but must have settled ones: EachNode prices every node by itself"
            )
        _ = self.statement

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is built from the parameters."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @cached_property
    def nodes(self) -> tuple[Any, ...]:
        """The mechanism of every node."""
        guarantee, (low, high) = self.guarantee, self.bounds
        share = guarantee.with_epsilon(guarantee.epsilon / self.hierarchy.levels)
        below = self.hierarchy.sums(np.ones(len(self.hierarchy.leaves), dtype=np.int64)).tolist()
        made = {
            count: self.mechanism(share, bounds=(low * count, high * count), **self.options) for count in set(below)
        }
        return tuple(made[count] for count in below)

    @cached_property
    def statement(self) -> Statement:
        """What one window costs, level by level. No data is needed."""
        node, entity = self.nodes[0].statement, self.guarantee.entity
        stages = tuple(
            Stage(f"{stage.name} level {depth}", stage.does, stage.epsilon)
            for depth in range(self.hierarchy.levels)
            for stage in node.stages
        )
        return Statement(
            guarantee=self.guarantee,
            epsilon=node.epsilon * self.hierarchy.levels,
            scope=node.scope,
            stages=stages,
            calibration=node.calibration,
            weights="none",
            grid=node.grid,
            bounds=(float(self.bounds[0]), float(self.bounds[1])),
            assumptions=(
                *node.assumptions,
                f"every {entity} belongs to one leaf of the hierarchy, and to the same one during a window",
            ),
            version=node.version,
        )

    def release(self, x: Any) -> TreeRelease:
        """Release whole periods.

        Args:
            x: A frame, a mapping or an array with one column per leaf.

        Raises:
            DataError: The data is empty, not a whole number of periods, or not finite. Nothing was drawn.
        """
        leaves, restore = read_leaves(x, self.hierarchy, self.guarantee.w)
        # Sums of integers of the grid are exact, and so are the numbers that stand for them.
        grid = self.statement.grid
        sums = self.hierarchy.sums(_core.quantise(leaves, self.bounds, grid).reshape(leaves.shape).T) * grid
        released = [node.release(series).values for node, series in zip(self.nodes, sums, strict=True)]
        return TreeRelease(restore(np.stack(released, axis=1)), self.hierarchy, (), self.statement)
