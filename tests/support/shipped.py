"""What the library ships, in configurations where a loss would show: few measurements and a claim of 1.

The auditor must accuse none of them.
"""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

import optstream as ops
from optstream import noise
from optstream.audit import Pair, window_pairs
from optstream.privacy import accounting

if TYPE_CHECKING:
    from collections.abc import Callable

    from optstream.pipeline.sampling import Sampling

Array = NDArray[np.float64]

SCORES = 6


@dataclass(frozen=True)
class Shipped:
    """A mechanism with what it promises."""

    name: str
    mechanism: ops.OptStream | Callable[[Array], Array]
    claimed: float = 1.0
    neighbours: list[Pair] | None = None
    likelihood: Callable[[Array, Array], Array] | None = None
    slow: bool = False
    """Whether a run takes a tenth of a millisecond or more."""


def laplace(x: Array) -> Array:
    """One value in each row, or several that share the budget."""
    cost = 1 / x.shape[1]
    return noise.laplace(x.ravel(), sensitivity=1, epsilon=cost, bounds=(0, 100)).reshape(x.shape)


def laplace_density(outputs: Array, x: Array) -> Array:
    return np.asarray(-np.abs(outputs - x).sum(axis=1))


def coarse_laplace(x: Array) -> Array:
    """A grid so coarse that one unit too many would double the loss."""
    return noise.laplace(x.ravel(), sensitivity=1, epsilon=1, bounds=(-5, 5), grid=1.0).reshape(x.shape)


def cube(x: Array) -> Array:
    return noise.cube(x, sensitivity=1, epsilon=1, bounds=(0, 100))


def cube_density(outputs: Array, x: Array) -> Array:
    return np.asarray(-np.abs(outputs - x).max(axis=1))


def above_threshold(x: Array) -> Array:
    """Answers as 1 and 0, and -1 after the last one."""
    answers = np.full(x.shape, -1.0)
    for row, scores in zip(answers, x, strict=True):
        found = ops.above_threshold(
            scores, threshold=50, sensitivity=1, epsilon=1, max_positive=2, bounds=(0, 100), grid=2.0**-4
        )
        row[: found.size] = found
    return answers


def _keyed() -> Callable[[Array], Array]:
    """Return a ledger that releases with a curator's key: every run is another period of a stream."""
    mechanism = ops.OptStream(ops.Guarantee(epsilon=1, w=2), sample=ops.EqualSampling(k=2), bounds=(0, 100))
    streams = itertools.count()

    def keyed(x: Array) -> Array:
        with tempfile.TemporaryDirectory() as folder:
            ops.create_key(Path(folder) / "key")
            with ops.Ledger(Path(folder) / "ledger.db", key=ops.read_key(Path(folder) / "key"), create=True) as ledger:
                released = ledger.release(mechanism, x.ravel(), stream=f"stream {next(streams)}")
        return np.asarray(released.values).reshape(x.shape)

    return keyed


def _held() -> Callable[[Array], Array]:
    """Return what a stream does that holds the first of three steps in place of the second: it gets less epsilon."""
    mechanism = ops.OptStream(ops.Guarantee(epsilon=1, w=3), sample=ops.EqualSampling(k=3), bounds=(0, 100))
    factor = accounting.largest_factor(accounting.held(mechanism.costs, {1: 0}), mechanism.costs, 3)
    priced = mechanism.with_epsilon(mechanism.guarantee.epsilon * factor)

    def held(x: Array) -> Array:
        periods = x.reshape(-1, 3).copy()
        periods[:, 1] = periods[:, 0]
        return np.asarray(priced.release(periods).values).reshape(x.shape)

    return held


def _pushed() -> Callable[[Array], Array]:
    """Return a stream to which observations are given step by step."""
    mechanism = ops.OptStream(ops.Guarantee(epsilon=1, w=2), sample=ops.EqualSampling(k=2), bounds=(0, 100))

    def pushed(x: Array) -> Array:
        released = ops.Stream(mechanism).push_many(range(x.size), x.ravel().tolist())
        return np.concatenate([release.values for release in released]).reshape(x.shape)

    return pushed


def _periods(w: int, sample: Sampling, **options: object) -> ops.OptStream:
    promised = {name: options.pop(name) for name in ("neighbours", "entities", "delta") if name in options}
    guarantee = ops.Guarantee(epsilon=1, w=w, **promised)  # type: ignore[arg-type]
    return ops.OptStream(guarantee, sample=sample, **{"bounds": (0, 100), **options})  # type: ignore[arg-type]


def _score_pairs() -> list[Pair]:
    half = np.array([1.0] * (SCORES - 2) + [-1.0] * 2)
    base = np.full(SCORES, 50.0)
    return [
        Pair("some scores rise, others fall", base, base + half),
        Pair("all scores rise", base, base + 1),
        Pair("scores below the threshold rise", base - 4, base - 3),
        Pair("scores above the threshold fall", base + 4, base + 3),
    ]


TREE = ops.Hierarchy({"city": None, "north": "city", "south": "city"})

PRIMITIVES = [
    Shipped("noise.laplace, one value", laplace, 1.0, window_pairs(1, 1, bounds=(0, 100)), laplace_density),
    Shipped("noise.laplace, window of 3", laplace, 1.0, window_pairs(3, 1, bounds=(0, 100), straddling=False)),
    Shipped(
        "noise.laplace, coarse grid",
        coarse_laplace,
        1.0,
        window_pairs(1, 1, bounds=(-5, 5), grid=1.0),
    ),
    Shipped("noise.cube, block of 3", cube, 1.0, window_pairs(3, 1, bounds=(0, 100), straddling=False), cube_density),
    Shipped("above_threshold, 2 positives", above_threshold, 1.0, _score_pairs(), slow=True),
]

PERIODS = [
    Shipped("every step, w = 4", _periods(4, ops.EqualSampling(k=4))),
    Shipped("equal sampling, k = 2 of 4", _periods(4, ops.EqualSampling(k=2))),
    Shipped("equal sampling, k = 12 of 48", _periods(48, ops.EqualSampling(k=12))),
    Shipped("equal sampling, aligned", _periods(4, ops.EqualSampling(k=3), neighbours="aligned")),
    Shipped("coarse grid, w = 2", _periods(2, ops.EqualSampling(k=2), bounds=(-5, 5), grid=1.0)),
    Shipped("cube noise, two blocks", _periods(4, ops.EqualSampling(k=4), perturb=ops.CubeNoise(block=2))),
    Shipped(
        "cube noise, aligned",
        _periods(4, ops.EqualSampling(k=4), perturb=ops.CubeNoise(), neighbours="aligned"),
    ),
    Shipped("Gaussian noise", _periods(4, ops.EqualSampling(k=4), perturb=ops.GaussianNoise(), delta=0.01)),
    Shipped("Gaussian noise, buckets", _periods(4, ops.BucketSampling(k=2), perturb=ops.GaussianNoise(), delta=0.01)),
    Shipped(
        "Gaussian noise, coarse grid",
        _periods(2, ops.EqualSampling(k=2), perturb=ops.GaussianNoise(), delta=0.01, grid=0.5),
    ),
    Shipped("buckets, k = 2 of 4", _periods(4, ops.BucketSampling(k=2))),
    Shipped("buckets of 1, 3 and 2 steps", _periods(6, ops.BucketSampling(cuts=(1, 4)), grid=1.0)),
    Shipped("buckets with cube noise", _periods(4, ops.BucketSampling(k=2), perturb=ops.CubeNoise(block=2))),
    Shipped(
        "L1 sampling, k = 3 of 7",
        _periods(7, ops.L1Sampling(k=3, threshold=10_000.0), split=(1, 19), bounds=(0, 1_000_000)),
    ),
    Shipped("L1 sampling, budget on the choice", _periods(6, ops.L1Sampling(k=3, threshold=10.0), split=(9, 1))),
    Shipped("L1 sampling, cube noise", _periods(4, ops.L1Sampling(k=3, threshold=10.0), perturb=ops.CubeNoise())),
    Shipped("L1 sampling, aligned", _periods(4, ops.L1Sampling(k=3, threshold=10.0), neighbours="aligned")),
    Shipped("features, a chain", _periods(4, ops.EqualSampling(k=2), features=[ops.Feature.total(4)])),
    Shipped(
        "L1 sampling with features",
        _periods(4, ops.L1Sampling(k=3, threshold=10.0), features=[ops.Feature.total(4)]),
    ),
    Shipped(
        "features, no chain",
        _periods(4, ops.EqualSampling(k=2), features=[ops.Feature.cuts(4, 1), ops.Feature.cuts(4, 2)]),
        slow=True,
    ),
    Shipped("hierarchy of two levels", _periods(2, ops.EqualSampling(k=2), hierarchy=TREE), slow=True),
    Shipped(
        "hierarchy of people who move",
        _periods(2, ops.EqualSampling(k=2), hierarchy=TREE, entities="moving", perturb=ops.CubeNoise(block=2)),
        slow=True,
    ),
    Shipped(
        "steps chosen for people who move",
        _periods(3, ops.L1Sampling(k=3, threshold=10.0), hierarchy=TREE, entities="moving", grid=2.0**-10),
        slow=True,
    ),
    Shipped("held steps", _held(), 1.0, window_pairs(3, 1, bounds=(0, 100))),
    Shipped("stream, step by step", _pushed(), 1.0, window_pairs(2, 1, bounds=(0, 100)), slow=True),
    Shipped("ledger with a curator's key", _keyed(), 1.0, window_pairs(2, 1, bounds=(0, 100)), slow=True),
]
