"""Neighbouring streams chosen to hurt.

A pair is an attack waiting for a statistic: two inputs that the guarantee must make hard to tell apart, and between
which a careless mechanism tells most. What they have in common is that as much as allowed changes, where it counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optstream.errors import ParameterError, ParameterTypeError
from optstream.mechanism.mechanism import Mechanism, check_mechanism
from optstream.mechanism.optstream import OptStream
from optstream.privacy.accounting import moved, window_costs
from optstream.privacy.guarantee import Guarantee
from optstream.stream.open_period import finite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Vector = NDArray[np.float64]

__all__ = ["Pair", "check_neighbours", "pairs_of", "window_pairs"]


@dataclass(frozen=True, eq=False)
class Pair:
    """Two inputs of one run that must not be told apart.

    Args:
        name: What is special about them.
        x: The input of one run: the steps of one period or of several; with a hierarchy one column per leaf.
        other: Its neighbour.

    Example:
        >>> Pair("one step", np.array([0.0, 0.0]), np.array([1.0, 0.0]))
        Pair(name='one step')
    """

    name: str
    x: Vector
    other: Vector

    def __post_init__(self) -> None:
        for field in ("x", "other"):
            try:
                value = np.array(getattr(self, field), dtype=float)
            except Exception:  # noqa: BLE001  (whatever the library of a series raises)
                raise ParameterTypeError(f"{field} of pair {self.name!r} must be an array of numbers") from None
            if not value.size or not np.isfinite(value).all():
                raise ParameterError(f"{field} of pair {self.name!r} is empty or not finite, but must hold numbers")
            object.__setattr__(self, field, value)
        if self.x.shape != self.other.shape:
            raise ParameterError(
                f"pair {self.name!r} has shapes {self.x.shape} and {self.other.shape}, but must have one"
            )

    def __repr__(self) -> str:
        return f"Pair(name={self.name!r})"


def window_pairs(
    w: int, alpha: float, *, bounds: tuple[float, float], grid: float | None = None, straddling: bool = True
) -> list[Pair]:
    """Return pairs for any mechanism that reads periods of ``w`` steps, each of which may change by ``alpha``.

    Args:
        w: Steps of a window and of a period.
        alpha: How much one step may change.
        bounds: Lower and upper bound of the values.
        grid: The step to which the mechanism rounds, if it does.
        straddling: Whether to shift a window across two periods too; the input of such a run is two periods.

    Example:
        >>> [pair.name for pair in window_pairs(4, 1.0, bounds=(0, 100))]
        ['whole window', 'alternating signs', 'lower bound', 'upper bound', 'straddling window']
    """
    guarantee = Guarantee(epsilon=1, w=w, alpha=alpha)
    w, alpha, bounds = guarantee.w, guarantee.alpha, _checked(bounds)
    if grid is not None and finite("grid", grid) <= 0:
        raise ParameterError(f"grid is {grid}, but must be positive")
    low, high = bounds
    middle = _middle(bounds, grid)
    signs = np.where(np.arange(w) % 2, -1.0, 1.0)
    made = [
        _moved("whole window", np.full(w, middle), np.full(w, alpha), bounds),
        _moved("alternating signs", np.full(w, middle), alpha * signs, bounds),
        _moved("lower bound", np.full(w, low), np.full(w, alpha), bounds),
        _moved("upper bound", np.full(w, high), np.full(w, -alpha), bounds),
    ]
    if grid is not None:
        # Rounding half to even, or away from zero, takes two such ties one unit further apart than they are.
        even = np.ceil(low / grid / 2) * 2 * grid + grid / 2
        made.append(_moved("grid ties", np.full(w, even), np.full(w, alpha), bounds))
        if low <= -grid / 2 and alpha - grid / 2 <= high:
            made.append(_moved("grid ties around zero", np.full(w, -grid / 2), np.full(w, alpha), bounds))
    if straddling and w > 1:
        made.append(_moved("straddling window", np.full(2 * w, middle), alpha * _window(w, w // 2), bounds))
    return made


def pairs_of(mechanism: Mechanism) -> list[Pair]:
    """Return the pairs with which a mechanism of the package is attacked.

    Example:
        >>> import optstream as ops
        >>> mechanism = ops.OptStream(ops.Guarantee(epsilon=1, w=8), sample=ops.EqualSampling(k=8), bounds=(0, 100))
        >>> len(pairs_of(mechanism))
        6
    """
    check_mechanism(mechanism)
    guarantee = mechanism.guarantee
    w, alpha, bounds, grid = guarantee.w, guarantee.alpha, mechanism.bounds, mechanism.spacing
    straddling = guarantee.neighbours == "sliding"
    made = window_pairs(w, alpha, bounds=bounds, grid=grid, straddling=straddling)
    if not isinstance(mechanism, OptStream):
        # Nothing is known of what it measures; a tree of them has as many inputs as leaves.
        made = [pair for pair in made if not np.array_equal(pair.x, pair.other)]
    elif mechanism.sample.selection_costs(w):
        made += _adaptive_pairs(mechanism, straddling=straddling)
    elif straddling:
        made += _costliest_pair(mechanism)
    made = [pair for pair in made if not np.array_equal(pair.x, pair.other)]
    if mechanism.hierarchy is None:
        return made
    # One entity belongs to one leaf. The deepest is measured most often; the last may be a shallow one.
    leaves = len(mechanism.hierarchy.leaves)
    depths = mechanism.hierarchy.depths[mechanism.hierarchy.leaf_positions]
    deepest = int(np.argmax(depths))
    chosen = [(pair, deepest) for pair in made]
    chosen += [(pair, leaves - 1) for pair in made[:1] if deepest != leaves - 1]
    names, middle = mechanism.hierarchy.leaves, _middle(bounds, grid)
    if guarantee.entities == "moving" and leaves > 1:
        return [_among_leaves(pair, names, middle) for pair in made] + [_in_leaf(made[0], deepest, names, middle)]
    return [_in_leaf(pair, leaf, names, middle) for pair, leaf in chosen]


def check_neighbours(pair: Pair, mechanism: Mechanism) -> None:
    """Raise unless a pair is one that the guarantee of a mechanism speaks of: what others prove would be no loss.

    Raises:
        ParameterError: The inputs are no whole periods, or differ too much, for too long or, where entities are
            settled, in several leaves.
    """
    guarantee, hierarchy = mechanism.guarantee, mechanism.hierarchy
    w = guarantee.w
    width = 1 if hierarchy is None else len(hierarchy.leaves)
    if pair.x.size % (w * width) or pair.x.ndim != (1 if hierarchy is None else 2):
        raise ParameterError(f"pair {pair.name!r} has shape {pair.x.shape}, but must have whole periods of {w} steps")
    change = np.abs(pair.x - pair.other).reshape(-1, width)
    steps = np.flatnonzero(change.any(axis=1))
    if not steps.size:
        raise ParameterError(f"pair {pair.name!r} is twice the same input, but must differ")
    most = change.sum(axis=1).max()
    if most > guarantee.alpha and (guarantee.entities == "moving" or change.max() > guarantee.alpha):
        raise ParameterError(f"pair {pair.name!r} differs by {most}, but must by at most {guarantee.alpha}")
    if guarantee.entities == "settled" and np.count_nonzero(change.any(axis=0)) > 1:
        raise ParameterError(f"pair {pair.name!r} differs in several leaves, but must in one")
    first, last = int(steps[0]), int(steps[-1])
    if last - first >= w or (guarantee.neighbours == "aligned" and first // w != last // w):
        raise ParameterError(
            f"pair {pair.name!r} differs from step {first} to {last}, which lie in no protected window"
        )


def _costliest_pair(mechanism: OptStream) -> list[Pair]:
    """Return the straddling window that the accountant fears most, unless the usual windows cost as much."""
    w, bounds = mechanism.guarantee.w, mechanism.bounds
    begin, costs = window_costs(
        [*mechanism.costs, *(moved(cost, w) for cost in mechanism.costs)], w, mechanism.guarantee.delta
    )
    inside = costs[-begin : w - begin]
    start = inside.index(max(inside))
    if inside[start] <= max(inside[0], inside[w // 2]):
        return []
    x = np.full(2 * w, _middle(bounds, mechanism.grid))
    return [_moved("costliest window", x, mechanism.guarantee.alpha * _window(w, start), bounds)]


def _adaptive_pairs(mechanism: OptStream, *, straddling: bool) -> list[Pair]:
    """Return pairs for a sampler that looks at the data: most measured steps change, or most of its scores."""
    w, alpha, bounds = mechanism.guarantee.w, mechanism.guarantee.alpha, mechanism.bounds
    (low, high), middle = bounds, _middle(bounds, mechanism.grid)
    step = np.arange(w)
    # A zigzag whose score meets the threshold half way; even steps up and odd ones down change scores most.
    threshold = float(getattr(mechanism.sample, "threshold", (high - low) / 4))
    height = min(4 * threshold / w, (high - low) / 4)
    signs = np.where(step % 2, -1.0, 1.0)
    made = [_moved("near the threshold", np.asarray(middle + height * (step % 2), dtype=float), alpha * signs, bounds)]
    if straddling:
        # Nothing happens in the first period, so its samples are left for the end; the second begins with a zigzag of
        # full height, so its samples come first.
        k = mechanism.sample.k
        early = np.where((step % 2 == 1) & (step < 2 * k), high - alpha, middle)
        x = np.concatenate([np.full(w, middle), early])
        inside = min(max(k - 1, w - 2 * k + 3), w - 1)
        made.append(_moved("straddling samples", x, alpha * _window(w, w - inside), bounds))
    return made


def _checked(bounds: tuple[float, float]) -> tuple[float, float]:
    if not isinstance(bounds, (tuple, list)) or len(bounds) != 2:  # noqa: PLR2004
        raise ParameterTypeError(f"bounds is of type {type(bounds).__name__}, but must be a pair (lower, upper)")
    low, high = (finite(f"bounds[{index}]", bound) for index, bound in enumerate(bounds))
    if low >= high:
        raise ParameterError(f"bounds are {(low, high)}, but must be (lower, upper) with lower < upper")
    return low, high


def _middle(bounds: tuple[float, float], grid: float | None) -> float:
    middle = (bounds[0] + bounds[1]) / 2
    return middle if grid is None else float(np.clip(np.floor(middle / grid) * grid, *bounds))


def _window(w: int, start: int) -> Vector:
    """Return ones on the window of ``w`` steps from ``start``, within two periods."""
    steps = np.arange(2 * w)
    return ((steps >= start) & (steps < start + w)).astype(float)


def _moved(name: str, x: Vector, change: Vector, bounds: tuple[float, float]) -> Pair:
    x = np.clip(x, *bounds)
    other = np.clip(x + change, *bounds)
    # A sum of floats may round to a little more than the change that is allowed.
    return Pair(name, x, np.where(np.abs(other - x) > np.abs(change), np.nextafter(other, x), other))


def _in_leaf(pair: Pair, leaf: int, names: Sequence[str], rest: float) -> Pair:
    columns = [np.full((pair.x.size, len(names)), rest) for _ in range(2)]
    columns[0][:, leaf], columns[1][:, leaf] = pair.x, pair.other
    return Pair(f"{pair.name} of {names[leaf]!r}", *columns)


def _among_leaves(pair: Pair, names: Sequence[str], rest: float) -> Pair:
    """Return a pair whose entity is in another leaf at every step, and in its first one at the end again."""
    columns = [np.full((pair.x.size, len(names)), rest) for _ in range(2)]
    steps = np.arange(pair.x.size)
    columns[0][steps, steps % len(names)], columns[1][steps, steps % len(names)] = pair.x, pair.other
    return Pair(f"{pair.name} among leaves", *columns)
