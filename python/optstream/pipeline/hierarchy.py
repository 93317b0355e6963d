"""Hierarchies: trees of groups in which every entity belongs to one leaf."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import narwhals.stable.v2 as nw
import numpy as np

from optstream.errors import ParameterError, ParameterTypeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from scipy import sparse

__all__ = ["Hierarchy"]


@dataclass(frozen=True, init=False)
class Hierarchy:
    """A tree of named groups, such as regions of a nation; any height and shape, leaves at any depth.

    Args:
        parents: The parent of every node, by name; None for the root, of which there is one.

    Example:
        >>> tree = Hierarchy({"nation": None, "north": "nation", "south": "nation"})
        >>> tree.leaves
        ('north', 'south')
        >>> Hierarchy.nested({"nation": ["north", "south"]}) == tree
        True
    """

    nodes: tuple[str, ...]
    """All nodes, level after level from the root."""
    parents: tuple[int | None, ...]
    """The position of each node's parent."""

    def __init__(self, parents: Mapping[str, str | None]) -> None:
        if not isinstance(parents, Mapping):
            raise ParameterTypeError(f"parents is of type {type(parents).__name__}, but must be a mapping")
        for name, parent in parents.items():
            if not isinstance(name, str) or not (parent is None or isinstance(parent, str)):
                raise ParameterTypeError(f"parents map {name!r} to {parent!r}, but must map a str to a str or None")
        roots = [name for name, parent in parents.items() if parent is None]
        if len(roots) != 1:
            raise ParameterError(f"parents have {len(roots)} roots, but must have one: {', '.join(map(repr, roots))}")
        children: dict[str, list[str]] = {name: [] for name in parents}
        for name, parent in parents.items():
            if parent is not None:
                if parent not in children:
                    raise ParameterError(f"parents[{name!r}] is {parent!r}, but must be a node")
                children[parent].append(name)
        nodes, level = list(roots), list(roots)
        while level:
            level = [child for name in level for child in children[name]]
            nodes.extend(level)
        if len(nodes) != len(parents):
            lost = next(name for name in parents if name not in set(nodes))
            raise ParameterError(f"parents of {lost!r} form a cycle, but must lead to the root")
        position = {name: index for index, name in enumerate(nodes)}
        object.__setattr__(self, "nodes", tuple(nodes))
        links = (parents[name] for name in nodes)
        object.__setattr__(self, "parents", tuple(None if link is None else position[link] for link in links))

    @classmethod
    def nested(cls, tree: Mapping[str, Any]) -> Hierarchy:
        """Return the hierarchy of nested mappings; leaves stand in a list, or map to None.

        >>> Hierarchy.nested({"nation": {"north": ["a", "b"], "south": None}}).leaves
        ('south', 'a', 'b')
        """
        if not isinstance(tree, Mapping):
            raise ParameterTypeError(f"tree is of type {type(tree).__name__}, but must be a mapping")
        parents: dict[str, str | None] = {}
        # Level by level, so that no depth is too much for the stack.
        level: list[tuple[Any, Any, str | None]] = [(name, below, None) for name, below in tree.items()]
        for name, below, parent in level:
            if not isinstance(name, str):
                raise ParameterTypeError(f"tree holds a node of type {type(name).__name__}, but nodes must be str")
            if name in parents:
                raise ParameterError(f"tree holds {name!r} twice, but names must be unique")
            parents[name] = parent
            if isinstance(below, Mapping):
                level += [(child, under, name) for child, under in below.items()]
            elif isinstance(below, Iterable) and not isinstance(below, str):
                level += [(leaf, None, name) for leaf in below]
            elif below is not None:
                raise ParameterTypeError(
                    f"tree maps {name!r} to {type(below).__name__}, but must map it to nodes, a list of leaves or None"
                )
        return cls(parents)

    @classmethod
    def from_frame(cls, frame: Any, levels: Sequence[str]) -> Hierarchy:
        """Return the hierarchy of a frame with one row per leaf and one column per level, from the root down.

        A leaf above the lowest level has nulls below it. Any frame that narwhals reads will do.
        """
        try:
            table = nw.from_native(frame, eager_only=True)
        except TypeError:
            raise ParameterTypeError(f"frame is of type {type(frame).__name__}, but must be a frame") from None
        if not all(isinstance(level, str) for level in levels):
            raise ParameterTypeError("levels hold something else, but must hold names of columns")
        missing = [level for level in levels if level not in table.columns]
        if missing:
            raise ParameterError(f"levels hold {missing[0]!r}, but must be columns of the frame: {table.columns}")
        parents: dict[str, str | None] = {}
        for row in table.select(list(levels)).iter_rows():
            parent: str | None = None
            for name in _until_null(row):
                if parents.setdefault(str(name), parent) != parent:
                    raise ParameterError(f"frame gives {name!r} two parents, {parents[str(name)]!r} and {parent!r}")
                parent = str(name)
        return cls(parents)

    @cached_property
    def depths(self) -> NDArray[np.int64]:
        """The number of steps from the root to each node."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent is None else depths[parent] + 1)
        return np.array(depths)

    @property
    def levels(self) -> int:
        """The number of levels, the root's and the lowest leaf's among them."""
        return int(self.depths.max()) + 1

    @cached_property
    def level_positions(self) -> tuple[NDArray[np.int64], ...]:
        """The positions of the nodes of each level."""
        return tuple(np.flatnonzero(self.depths == depth) for depth in range(self.levels))

    @cached_property
    def leaf_positions(self) -> NDArray[np.int64]:
        """The positions of the leaves among the nodes."""
        inner = {parent for parent in self.parents if parent is not None}
        return np.array([index for index in range(len(self.nodes)) if index not in inner])

    @property
    def leaves(self) -> tuple[str, ...]:
        """The leaves, in the order of the nodes."""
        return tuple(self.nodes[index] for index in self.leaf_positions)

    def sums(self, leaves: NDArray[Any]) -> NDArray[Any]:
        """Return the values of all nodes, along the first axis, from those of the leaves.

        >>> Hierarchy({"nation": None, "north": "nation", "south": "nation"}).sums(np.array([2, 3]))
        array([5, 2, 3])
        """
        return np.asarray(self._membership @ leaves)

    @cached_property
    def _membership(self) -> sparse.csr_array:
        """A row for every node and a column for every leaf, with a one where the leaf lies in the node."""
        from scipy import sparse  # noqa: PLC0415  (loads longer than numpy)

        leaves = self.leaf_positions
        parents = np.array([-1 if parent is None else parent for parent in self.parents])
        rows, columns = [], []
        at, column = leaves, np.arange(leaves.size)
        while at.size:
            rows.append(at)
            columns.append(column)
            above = parents[at]
            at, column = above[above >= 0], column[above >= 0]
        entries = np.concatenate(rows), np.concatenate(columns)
        shape = (len(self.nodes), leaves.size)
        return sparse.csr_array((np.ones(entries[0].size, dtype=np.int64), entries), shape=shape)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is computed from nodes and parents."""
        return {"nodes": self.nodes, "parents": self.parents}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"Hierarchy(nodes={len(self.nodes)}, leaves={self.leaf_positions.size}, levels={self.levels})"


def _until_null(row: Iterable[Any]) -> Iterable[Any]:
    for name in row:
        if name is None or name != name:  # noqa: PLR0124  (NaN is how pandas says null)
            return
        yield name
