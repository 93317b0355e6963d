"""Noise: what is added to measured values, and what they then cost."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Literal

from optstream.errors import ParameterError, ParameterTypeError
from optstream.pipeline.sampling import L1Sampling
from optstream.privacy.accounting import (
    ChosenCosts,
    Cost,
    SpreadCost,
    SquareCosts,
    StepCosts,
    TouchCost,
    epsilon_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optstream.pipeline.sampling import Sampling
    from optstream.privacy.guarantee import Guarantee

__all__ = ["CubeNoise", "GaussianNoise", "LaplaceNoise", "Noise"]


@dataclass(frozen=True)
class LaplaceNoise:
    """Perturb every measured value with independent discrete Laplace noise.

    Example:
        >>> LaplaceNoise()
        LaplaceNoise()
    """

    def blocks(self, sample: Sampling, guarantee: Guarantee, nodes: int = 1) -> None:
        """Return no blocks: every value has noise of its own."""

    def sample_costs(self, sample: Sampling, guarantee: Guarantee, nodes: int = 1) -> list[Cost]:  # noqa: ARG002
        """Return what the measured values cost if a change of each costs 1, of however many nodes."""
        return sample.sample_costs(guarantee.w)


@dataclass(frozen=True)
class CubeNoise:
    """Perturb blocks of measured values with noise in the shape of a cube: less of it for the same guarantee.

    What one entity can change within a window is a cube, every step by at most alpha. Independent noise pays for each
    value by itself, cube noise once for a block (Hardt and Talwar 2010). A window that slides meets the more blocks the
    shorter they are, and long ones need larger noise each; the best length lies between, near the root of the number of
    measured values. For aligned neighbours it is all of them.

    Args:
        block: The number of measured values in a block, or ``"auto"`` for the one with the least noise, as the
            accountant prices it. Blocks of one period differ in length by one at most.

    Example:
        >>> from optstream import EqualSampling, Guarantee
        >>> CubeNoise().blocks(EqualSampling(k=48), Guarantee(epsilon=1, w=48))
        (6, 6, 6, 6, 6, 6, 6, 6)
        >>> CubeNoise().blocks(EqualSampling(k=10), Guarantee(epsilon=1, w=48, neighbours="aligned"))
        (10,)
    """

    block: int | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        if isinstance(self.block, str) and self.block == "auto":
            return
        if isinstance(self.block, bool) or not isinstance(self.block, int):
            raise ParameterTypeError(f"block is of type {type(self.block).__name__}, but must be an int or 'auto'")
        if self.block < 1:
            raise ParameterError(f"block is {self.block}, but must be at least 1")

    def blocks(self, sample: Sampling, guarantee: Guarantee, nodes: int = 1) -> tuple[int, ...]:
        """Return the lengths of the blocks of a period."""
        if self.block != "auto":
            if self.block > sample.k:
                raise ParameterError(f"block is {self.block}, but must be at most k = {sample.k}")
            return _even(sample.k, -(-sample.k // self.block))
        return _quietest(sample, guarantee, nodes)

    def sample_costs(self, sample: Sampling, guarantee: Guarantee, nodes: int = 1) -> list[Cost]:
        """Return what blocks cost if touching one costs 1, of so many nodes as an entity moves between."""
        return _block_costs(self.blocks(sample, guarantee, nodes), sample, guarantee.w, nodes)


@dataclass(frozen=True)
class GaussianNoise:
    """Perturb every measured value with independent discrete Gaussian noise: for a guarantee with a delta.

    What a window of ``w`` measured steps tells grows with the root of ``w``, not with ``w``, so that the noise of a
    long window is far less than with a pure guarantee. With sums of steps a window pays for the square of what it
    covers.

    Example:
        >>> GaussianNoise()
        GaussianNoise()
    """

    def blocks(self, sample: Sampling, guarantee: Guarantee, nodes: int = 1) -> None:
        """Return no blocks: every value has noise of its own."""

    def sample_costs(self, sample: Sampling, guarantee: Guarantee, nodes: int = 1) -> list[Cost]:  # noqa: ARG002
        """Return what the measured values cost, in rho, if a change of each by that of one step costs 1.

        Nodes that share a change have a sum of squares of at most its square.
        """
        w = guarantee.w
        if isinstance(sample, L1Sampling):
            sample.selection_costs(w)
            return [ChosenCosts(0, w, free=sample.positives(), cost=Fraction(1), gaussian=True)]
        return [SquareCosts(start, (1,) * (stop - start), Fraction(1)) for start, stop in sample.runs(w)]


Noise = LaplaceNoise | CubeNoise | GaussianNoise


@lru_cache(maxsize=256)
def _quietest(sample: Sampling, guarantee: Guarantee, nodes: int) -> tuple[int, ...]:
    """Return the lengths of blocks with the least noise."""
    # Numbers of blocks that lead to the same longest block are alike; the fewest are the cheapest of them.
    counts = {-(-sample.k // count): count for count in range(sample.k, 0, -1)}
    candidates = (_even(sample.k, count) for count in counts.values())
    return min(candidates, key=lambda blocks: _noise(blocks, sample, guarantee, nodes))


def _even(k: int, count: int) -> tuple[int, ...]:
    """Return so many lengths that add up to k and differ by one at most.

    >>> _even(10, 3)
    (3, 3, 4)
    """
    return tuple((block + 1) * k // count - block * k // count for block in range(count))


def _block_costs(blocks: Sequence[int], sample: Sampling, w: int, nodes: int) -> list[Cost]:
    if isinstance(sample, L1Sampling):
        # Which steps are in which block is chosen from the data: whoever touches the period may touch all blocks.
        return [TouchCost(0, w, Fraction(sum(min(length, nodes) for length in blocks)))]
    runs, ends = sample.runs(w), list(accumulate(blocks, initial=0))
    return [_block_cost(runs[first:last], nodes) for first, last in pairwise(ends)]


def _block_cost(runs: Sequence[tuple[int, int]], nodes: int) -> Cost:
    """Return what a block costs that so many nodes of a level measure."""
    start, stop = runs[0][0], runs[-1][1]
    if nodes == 1:
        return TouchCost(start, stop, Fraction(1))
    if len(runs) > nodes:
        return SpreadCost(tuple(runs), nodes, Fraction(1))
    # Every run may be moved in a node of its own: each costs what is covered of it.
    share = {step: Fraction(1, last - first) for first, last in runs for step in range(first, last)}
    return StepCosts(start, tuple(share.get(step, Fraction(0)) for step in range(start, stop)))


def _noise(blocks: Sequence[int], sample: Sampling, guarantee: Guarantee, nodes: int) -> Fraction:
    """Return the mean absolute noise of a measured value, up to a constant: (d + 1) / 2 for a block of d."""
    price = epsilon_of(_block_costs(blocks, sample, guarantee.w, nodes), guarantee)
    return price * sum(length * (length + 1) for length in blocks)
