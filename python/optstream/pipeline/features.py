"""Features: partitions of a period whose cell sums are released besides the steps."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from optstream.errors import ParameterError, ParameterTypeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Feature"]

LARGEST = 2**20
"""The most steps of a period, as of a guarantee."""


@dataclass(frozen=True, init=False)
class Feature:
    """A partition of the steps of a period; its query is the sum of the values in each cell.

    Args:
        cells: Disjoint sets of steps, counted from 0, that together are all steps of the period.

    Example:
        >>> Feature([[0, 1], [2, 3, 4]])
        Feature(w=5, cells=2)
        >>> Feature([[0, 1], [1, 2]])
        Traceback (most recent call last):
        optstream.errors.ParameterError: cells hold step 1 twice, but must be a partition of the steps 0 to w - 1
    """

    labels: tuple[int, ...]
    """The cell of each step. Cells are numbered in the order of their first steps."""

    def __init__(self, cells: Iterable[Iterable[int]]) -> None:
        labels: dict[int, int] = {}
        for number, cell in enumerate(cells):
            steps = list(cell)
            if not all(isinstance(step, (int, np.integer)) for step in steps):
                raise ParameterTypeError(f"cells[{number}] holds something else, but must hold ints")
            if not steps:
                raise ParameterError(f"cells[{number}] is empty, but must hold a step")
            for step in steps:
                if step in labels:
                    raise ParameterError(
                        f"cells hold step {step} twice, but must be a partition of the steps 0 to w - 1"
                    )
                labels[step] = number
        if sorted(labels) != list(range(len(labels))) or not labels:
            raise ParameterError("cells leave out a step, but must be a partition of the steps 0 to w - 1")
        order: dict[int, int] = {}
        for step in range(len(labels)):
            order.setdefault(labels[step], len(order))
        object.__setattr__(self, "labels", tuple(order[labels[step]] for step in range(len(labels))))

    @classmethod
    def cuts(cls, w: int, *cuts: int) -> Feature:
        """Return the partition of ``w`` steps into runs that start at 0 and at every cut.

        >>> Feature.cuts(48, 14, 24, 36)
        Feature(w=48, cells=4)
        """
        if not all(isinstance(cut, (int, np.integer)) for cut in (w, *cuts)):
            raise ParameterTypeError("w or a cut is something else, but must be an int")
        if w > LARGEST:
            raise ParameterError(f"w is {w}, but must be at most 2^20")
        if not all(low < high for low, high in pairwise((0, *cuts, w))):
            raise ParameterError(f"cuts are {cuts}, but must increase strictly between 0 and w = {w}")
        return cls(range(low, high) for low, high in pairwise((0, *cuts, w)))

    @classmethod
    def total(cls, w: int) -> Feature:
        """Return the partition of ``w`` steps into one cell.

        >>> Feature.total(48)
        Feature(w=48, cells=1)
        """
        return cls.cuts(w)

    @property
    def w(self) -> int:
        """The number of steps."""
        return len(self.labels)

    @property
    def size(self) -> int:
        """The number of cells."""
        return max(self.labels) + 1

    def refines(self, other: Feature) -> bool:
        """Whether every cell lies within a cell of ``other``.

        >>> Feature.cuts(4, 1, 2).refines(Feature.cuts(4, 2)), Feature.cuts(4, 1).refines(Feature.cuts(4, 2))
        (True, False)
        """
        return len(set(zip(self.labels, other.labels, strict=True))) == self.size

    def __repr__(self) -> str:
        return f"Feature(w={self.w}, cells={self.size})"


def chain(features: Sequence[Feature]) -> list[int] | None:
    """Return the order from the finest to the coarsest feature if each refines the next, else None.

    >>> chain([Feature.total(4), Feature.cuts(4, 2)]), chain([Feature.cuts(4, 1), Feature.cuts(4, 2)])
    ([1, 0], None)
    """
    order = sorted(range(len(features)), key=lambda index: -features[index].size)
    ordered = all(features[fine].refines(features[coarse]) for fine, coarse in pairwise(order))
    return order if ordered else None
