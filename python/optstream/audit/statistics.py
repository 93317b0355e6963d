"""Scalar statistics of outputs: what an onlooker might compute to tell two inputs apart.

Each is fitted on outputs of both inputs and then only applied. None of them has to be right: a statistic that fits the
noise badly proves little, but whatever it proves is true, because other runs measure it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from scipy import linalg

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

__all__ = ["Score", "finest_bit", "fitted"]

Score = Callable[["NDArray[np.float64]"], "NDArray[np.float64]"]
"""Returns one number for each row of outputs."""

COORDINATES = 6
"""How many single coordinates are tried."""
FEW = 4
"""A column with at most so many different values is an answer rather than a number."""
RARE = 20
"""A pattern of answers is scored by its frequency if patterns come so often on average."""
POWERS = {2, 4, 8, 16}
"""Block lengths that are tried besides those that divide the number of columns."""
COLUMNS, ROWS, NEWTON = 24, 8000, 7
"""How many columns a logistic regression sees, how many outputs of each input, and its iterations."""


def fitted(first: Array, second: Array) -> dict[str, Score]:
    """Return statistics that tell samples of outputs apart, by name.

    Example:
        >>> generator = np.random.default_rng(1)
        >>> first, second = generator.laplace(1, 1, (2000, 3)), generator.laplace(0, 1, (2000, 3))
        >>> score = fitted(first, second)["blocks of 1"]
        >>> bool(score(first).mean() > score(second).mean())
        True
    """
    both = np.concatenate([first, second])
    varied = np.flatnonzero(both.min(axis=0) < both.max(axis=0))
    if not varied.size:
        return {}
    answers = np.array([column for column in varied if np.unique(both[:2000, column]).size <= FEW], dtype=int)
    numbers = np.setdiff1d(varied, answers)
    made: dict[str, Score] = {
        "sum": lambda outputs: outputs[:, varied].sum(axis=1),
        "largest": lambda outputs: outputs[:, varied].max(axis=1),
        "smallest": lambda outputs: outputs[:, varied].min(axis=1),
        "linear direction": _direction(first, second, varied),
    }
    gaps = np.abs(first.mean(axis=0) - second.mean(axis=0))[varied] / both.std(axis=0)[varied]
    strongest = varied[np.argsort(-gaps)]
    for column in strongest[:COORDINATES]:
        made[f"coordinate {column}"] = partial(_coordinate, column)
    if numbers.size:
        made |= _noise_scores(first, second, numbers)
        for column in numbers[:COORDINATES]:
            made[f"finest bit of {column}"] = partial(_finest_bit_of, column)
    if answers.size and (patterns := _patterns(first, second, answers)) is not None:
        made["pattern of answers"] = patterns
    made["logistic regression"] = _logistic(first, second, strongest[:COLUMNS])
    return made


def finest_bit(values: Array) -> Array:
    """Return the exponent of the lowest set bit of each double: which doubles appear may tell what noise hides.

    >>> finest_bit(np.array([1.0, 0.75, 2.0**-60, 0.0]))
    array([   0.,   -2.,  -60., 1024.])
    """
    mantissa, exponent = np.frexp(values)
    integer = (mantissa * 2.0**53).astype(np.int64)
    lowest = (integer & -integer).astype(float)
    return np.where(values == 0, 1024.0, np.log2(np.maximum(lowest, 1)) + exponent - 53)


def _coordinate(column: int, outputs: Array) -> Array:
    return outputs[:, column]


def _finest_bit_of(column: int, outputs: Array) -> Array:
    return finest_bit(outputs[:, column])


def _direction(first: Array, second: Array, columns: NDArray[np.int64]) -> Score:
    """Return Fisher's linear discriminant, which finds a combination of outputs in which the noise cancels."""
    centred = [(sample - sample.mean(axis=0))[:, columns] for sample in (first, second)]
    scale = np.concatenate(centred).std(axis=0)
    scale[scale == 0] = 1
    scatter = sum(sample.T @ sample for sample in (rows / scale for rows in centred)) / (2 * len(first))
    gap = (first.mean(axis=0) - second.mean(axis=0))[columns] / scale
    weights = np.linalg.solve(scatter + 1e-9 * np.eye(columns.size), gap) / scale
    return lambda outputs: outputs[:, columns] @ weights


def _noise_scores(first: Array, second: Array, numbers: NDArray[np.int64]) -> dict[str, Score]:
    """Return log-likelihood ratios for Laplace noise (blocks of 1) and for cube noise on blocks of several columns.

    Centres and scales are estimated. Columns that follow from others, as interpolated steps do, are left out: a QR
    decomposition takes those first that vary most, and measured steps vary more than what lies between them.
    """
    centres, others = (np.median(sample[:, numbers], axis=0) for sample in (first, second))
    noise = np.concatenate([first[:, numbers] - centres, second[:, numbers] - others])
    _, triangle, order = linalg.qr(noise[:: max(1, len(noise) // 4000)], mode="economic", pivoting=True)
    pivots = np.abs(np.diag(triangle))
    kept = np.sort(order[: np.count_nonzero(pivots > 1e-6 * pivots[0])])
    columns, centre, other = numbers[kept], centres[kept], others[kept]
    scale = np.maximum(np.abs(noise[:, kept]).mean(axis=0), np.finfo(float).tiny)

    def score(block: int, outputs: Array) -> Array:
        values = outputs[:, columns]
        near, far = np.abs(values - centre) / scale, np.abs(values - other) / scale
        if block > 1:
            starts = np.arange(0, columns.size, block)
            near, far = (np.maximum.reduceat(distance, starts, axis=1) for distance in (near, far))
        return np.asarray((far - near).sum(axis=1))

    size = columns.size
    blocks = [block for block in range(1, size + 1) if size % block == 0 or block in POWERS]
    return {f"blocks of {block}": partial(score, block) for block in blocks}


def _patterns(first: Array, second: Array, answers: NDArray[np.int64]) -> Score | None:
    """Return the log-ratio of how often the row of answers came on either input, if rows come often enough."""
    # A hash stands for a row; rows that share one are taken for the same, which does no harm.
    factors = np.random.default_rng(0).integers(2**62, size=answers.size, dtype=np.uint64) * np.uint64(2) + np.uint64(1)

    def symbols(outputs: Array) -> NDArray[np.uint64]:
        bits = np.ascontiguousarray(outputs[:, answers]).view(np.uint64)
        return np.asarray(((bits ^ (bits >> np.uint64(31))) * factors).sum(axis=1))

    n = len(first)
    known, place = np.unique(np.concatenate([symbols(first), symbols(second)]), return_inverse=True)
    if known.size * RARE > 2 * n:
        return None
    counts = [np.bincount(places, minlength=known.size) for places in (place[:n], place[n:])]
    ratios = np.log(counts[0] + 1) - np.log(counts[1] + 1)

    def score(outputs: Array) -> Array:
        rows = symbols(outputs)
        at = np.minimum(np.searchsorted(known, rows), known.size - 1)
        return np.asarray(np.where(known[at] == rows, ratios[at], 0.0))

    return score


def _logistic(first: Array, second: Array, columns: NDArray[np.int64]) -> Score:
    """Return the log-odds that a logistic regression gives outputs and their distances from both centres."""
    centres, others = (np.median(sample[:, columns], axis=0) for sample in (first, second))
    samples = [sample[:ROWS, columns] for sample in (first, second)]
    spread = np.concatenate(samples).std(axis=0)
    spread[spread == 0] = 1

    def features(values: Array) -> Array:
        gaps = (np.abs(values - others) - np.abs(values - centres)) / spread
        return np.concatenate([np.ones((len(values), 1)), (values - centres) / spread, gaps], axis=1)

    rows = features(np.concatenate(samples))
    labels = np.repeat([1.0, 0.0], [len(sample) for sample in samples])
    weights = np.zeros(rows.shape[1])
    # Newton's method with a small ridge, which also keeps separable samples from running away. These sums are too small
    # to gain from the threads of a matrix library, and on a busy machine they would wait for each other.
    for _ in range(NEWTON):
        chance = 1 / (1 + np.exp(-np.clip(np.einsum("ij,j->i", rows, weights), -30, 30)))
        slope = np.einsum("ij,i->j", rows, labels - chance) - weights
        curve = np.einsum("ij,ik->jk", rows * (chance * (1 - chance))[:, None], rows) + np.eye(weights.size)
        weights += np.linalg.solve(curve, slope)
    return lambda outputs: np.einsum("ij,j->i", features(outputs[:, columns]), weights)
