"""Does time depend on the data, or on the noise? Welch's t in the style of dudect, over samplers and whole releases.

    python tools/timing.py [--measurements N] [--only TEXT]

Each comparison has two classes of inputs. Calls of both take turns in random order. Inputs are made in advance, lie in
memory in the order of the calls and are copied to one buffer, so that nothing but the class differs, neither addresses
nor what ran before; comparing a class with itself shows whether that is so. The slowest calls are cropped, since
interrupts only ever add time, and Welch's t is computed at several levels of cropping (Reparaz, Balasch and Verbauwhede
2017, "Dude, is my code constant time?"). A comparison is made twice, and differs if the largest t is beyond 5 in size
and the effect has the same sign both times. The effect is the difference between the means of the faster half of each
class.

What a difference tells is said beside it. What reads private answers only may take a time that depends on them, at no
cost; what counts is the raw data, and the noise that hides it.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream import (
    CubeNoise,
    EqualSampling,
    Feature,
    Guarantee,
    Hierarchy,
    L1Sampling,
    OptStream,
    _core,
    above_threshold,
    noise,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Draw = Callable[[], Array]

ALARM = 5.0
"""A larger t is taken for a difference: a chance of 6e-7 at one level of cropping."""
CROPS = (1.0, 0.99, 0.95, 0.9, 0.8, 0.65, 0.5)
"""The shares of all measurements, the fastest first, that are compared."""
CHUNK = 250
"""Inputs that are made in advance."""
EXTREMES = 1000
"""Contexts of each class of noise; with few of them their own times would stand for those of the class."""
RAW, OUTPUT, PRIVATE, DRAWN = "raw data", "the output", "private answers", "drawn noise"
"""What a difference would tell of: the data itself; what the output shows anyway; answers that have their noise
already; or the noise that hides the data."""


@dataclass(frozen=True)
class Comparison:
    """Two classes of inputs to one call."""

    name: str
    classes: tuple[str, str]
    tells: str
    """What a difference would tell of."""
    inputs: Callable[[Sequence[int]], Sequence[Any]]
    """Makes an input for each of some classes, 0 or 1."""
    put: Callable[[Any], object]
    """Puts an input where the call reads it; not timed."""
    call: Callable[[], object]
    share: float = 1.0
    """The share of the usual number of measurements; less for slow calls."""


@dataclass(frozen=True)
class Finding:
    """What the measurements of a comparison say. Positive if class 1 takes longer."""

    largest_t: float
    """In size, of all levels of cropping."""
    base: float
    """What a call of class 0 takes, in nanoseconds: the mean of the faster half."""
    effect: float
    """How much longer one of class 1 takes."""


def measure(
    comparison: Comparison,
    count: int,
    generator: np.random.Generator,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> tuple[NDArray[np.int64], Array]:
    """Return the classes and the times of many calls in random order."""
    labels, times = generator.integers(0, 2, count), np.empty(count)
    put, call = comparison.put, comparison.call
    collecting = gc.isenabled()
    gc.disable()
    try:
        for start in range(0, count, CHUNK):
            inputs = comparison.inputs(labels[start : start + CHUNK].tolist())
            for index, value in enumerate(inputs, start):
                put(value)
                begin = clock()
                call()
                times[index] = clock() - begin
    finally:
        if collecting:
            gc.enable()
    # The first calls warm caches and branch predictors up.
    return labels[count // 50 :], times[count // 50 :]


def welch(first: Array, second: Array) -> float:
    """Return Welch's t; 0 where there is nothing to compare."""
    if min(first.size, second.size) < 2:
        return 0.0
    difference = float(second.mean() - first.mean())
    error = math.sqrt(float(first.var(ddof=1)) / first.size + float(second.var(ddof=1)) / second.size)
    return difference / error if error else math.copysign(math.inf, difference) if difference else 0.0


def analyse(labels: NDArray[np.int64], times: Array) -> Finding:
    """Compare the times of two classes at every level of cropping."""
    first, second = times[labels == 0], times[labels == 1]
    cuts = [np.quantile(times, crop) for crop in CROPS]
    largest = max(abs(welch(first[first <= cut], second[second <= cut])) for cut in cuts)
    base, other = (float(part[part <= np.median(part)].mean()) for part in (first, second))
    return Finding(largest, base, other - base)


def differs(findings: Sequence[Finding]) -> bool:
    """Whether all of them are alarms, and effects have the same sign."""
    alarms = all(found.largest_t > ALARM for found in findings)
    return alarms and len({found.effect > 0 for found in findings}) == 1


# Inputs.


def reading(buffer: Array, draws: tuple[Draw, Draw]) -> dict[str, Any]:
    """Return how inputs of two kinds are made and put into the buffer that a call reads."""
    rows = np.empty((CHUNK, *buffer.shape))

    def inputs(labels: Sequence[int]) -> Array:
        for row, label in zip(rows, labels, strict=False):
            row[...] = draws[label]()
        return rows[: len(labels)]

    return {"inputs": inputs, "put": partial(np.copyto, buffer)}


def by_noise(
    draw: Callable[[list[bytes]], Array], statistic: Callable[[Array], float], generator: np.random.Generator
) -> dict[str, Any]:
    """Return inputs and a call for noise that is small or large by a statistic.

    With a curator's key the noise is a function of the context, so contexts can be chosen by the noise that they give:
    the lowest and the highest hundredth of 100,000.
    """
    contexts = [generator.bytes(8) for _ in range(100 * EXTREMES)]
    order = np.argsort([statistic(draw([context])) for context in contexts])
    extremes = [[contexts[index] for index in part] for part in (order[:EXTREMES], order[-EXTREMES:])]
    chosen = [b""]

    def inputs(labels: Sequence[int]) -> list[bytes]:
        # Copies, so that contexts too lie in memory in the order of the calls.
        return [bytes(bytearray(extremes[label][int(generator.integers(EXTREMES))])) for label in labels]

    return {"inputs": inputs, "put": partial(chosen.__setitem__, 0), "call": lambda: draw(chosen)}


BOUNDS = (0.0, 20_000.0)
OPTIONS: dict[str, Any] = {"sensitivity": 10.0, "epsilon": 1.0, "bounds": BOUNDS}
GRID = noise.default_grid(10.0)


def kinds_of_values(shape: tuple[int, ...], generator: np.random.Generator) -> dict[tuple[str, str], tuple[Draw, Draw]]:
    """Return pairs of kinds of values for what looks at each value by itself."""

    def uniform(low: float, high: float) -> Draw:
        return lambda: generator.uniform(low, high, shape)

    inside = uniform(*BOUNDS)
    return {
        ("same", "same"): (inside, inside),
        ("zeros", "random"): (partial(np.zeros, shape), inside),
        ("low", "high"): (uniform(0.0, 10.0), uniform(19_990.0, 20_000.0)),
        ("random", "at the bounds"): (inside, lambda: generator.choice(BOUNDS, shape)),
        ("random", "half clamped"): (inside, uniform(-10_000.0, 30_000.0)),
        ("random", "grid ties"): (inside, lambda: np.asarray((generator.integers(0, 2**20, shape) + 0.5) * GRID)),
        ("zeros", "subnormal"): (partial(np.zeros, shape), uniform(1e-310, 1e-308)),
    }


# What is compared.


def planted(_generator: np.random.Generator) -> Iterator[Comparison]:
    """Yield a comparison whose answer is known: a copy of 8 kB that is made if one value is positive."""
    values = np.zeros(960)

    def leaking() -> None:
        noise.laplace(values, **OPTIONS)
        if values[0] > 0:
            values.copy()

    draws = partial(np.zeros, 960), lambda: (np.arange(960) == 0).astype(float)
    yield Comparison("planted: a copy on one value", ("no", "yes"), RAW, **reading(values, draws), call=leaking)


def samplers(generator: np.random.Generator) -> Iterator[Comparison]:
    """Yield comparisons of what reads raw values: quantising, noise, and the sparse vector technique."""
    block, row, scores = np.zeros((20, 48)), np.zeros(960), np.zeros(960)
    wide = OPTIONS | {"bounds": (0.0, 1e9), "max_positive": 1}
    calls: list[tuple[str, Array, Callable[[], object]]] = [
        ("quantise 960", block, lambda: _core.quantise(block, BOUNDS, GRID)),
        ("laplace 960", row, lambda: noise.laplace(row, **OPTIONS)),
        ("cube 20 x 48", block, lambda: noise.cube(block, **OPTIONS)),
        ("above_threshold 960, all no", scores, partial(above_threshold, scores, threshold=1e9, **wide)),
    ]
    for name, buffer, call in calls:
        for classes, draws in kinds_of_values(buffer.shape, generator).items():
            yield Comparison(name, classes, RAW, **reading(buffer, draws), call=call)

    def yes(position: int) -> Draw:
        return lambda: np.where(np.arange(960) == position, 1e9, 0.0)

    call, classes = partial(above_threshold, scores, threshold=5e8, **wide), ("yes at 100", "yes at 800")
    yield Comparison("above_threshold 960", classes, OUTPUT, **reading(scores, (yes(100), yes(800))), call=call)


def noises(generator: np.random.Generator) -> Iterator[Comparison]:
    """Yield comparisons by the noise that is drawn, with a curator's key that makes it repeatable."""
    key, row, wide = _core.CuratorKey(generator.bytes(32)), np.zeros(48), (-1e6, 1e6)

    def laplace(context: list[bytes]) -> Array:
        return _core.laplace(row, 10.0, 1.0, wide, None, (key, context))

    def cube(context: list[bytes]) -> Array:
        return _core.cube(row, 10.0, 1.0, wide, None, (key, context))

    def of(statistic: Callable[[Array], Any]) -> Callable[[Array], float]:
        return lambda found: float(statistic(found))

    size, largest = of(lambda found: np.abs(found).sum()), of(lambda found: np.abs(found).max())
    for name, draw, classes, statistic in (
        ("laplace 48", laplace, ("same", "same"), of(lambda _: generator.random())),
        ("laplace 48", laplace, ("small noise", "large noise"), size),
        ("laplace 48", laplace, ("negative noise", "positive noise"), of(np.sum)),
        ("cube 48", cube, ("same", "same"), of(lambda _: generator.random())),
        ("cube 48", cube, ("small radius", "large radius"), largest),
    ):
        yield Comparison(f"{name}, keyed", classes, DRAWN, **by_noise(draw, statistic, generator))


def releases(generator: np.random.Generator) -> Iterator[Comparison]:
    """Yield comparisons of whole releases."""

    def made(sample: Any, **more: Any) -> OptStream:
        return OptStream(Guarantee(epsilon=1.0, w=48, alpha=10.0), sample=sample, bounds=BOUNDS, **more)

    def compare(name: str, mechanism: OptStream, shape: tuple[int, ...], kinds: dict[Any, Any], **more: Any) -> Any:
        buffer = np.zeros(shape)
        for classes, draws in kinds.items():
            options = {"tells": RAW, **reading(buffer, draws), **more}
            yield Comparison(name, classes, call=partial(mechanism.release, buffer), **options)

    def level(value: float, shape: tuple[int, ...]) -> Draw:
        return lambda: np.full(shape, value)

    def rough(high: float) -> Draw:
        return lambda: generator.uniform(0.0, high, days)

    days, one, leaves = (20, 48), (1, 48), (48, 5)
    values = kinds_of_values(days, generator)
    yield from compare("release, equal, 20 x 48", made(EqualSampling(12)), days, values)
    yield from compare("release, cube, 20 x 48", made(EqualSampling(12), perturb=CubeNoise()), days, values)
    shapes = {
        ("constant", "rough"): (level(10_000.0, days), rough(20_000)),
        ("straight", "rough"): (lambda: np.broadcast_to(np.linspace(*BOUNDS, 48), days), rough(20_000)),
        ("small changes", "large changes"): (rough(10), rough(20_000)),
    }
    first = dict(list(shapes.items())[:1])
    yield from compare("release, L1, 20 x 48", made(L1Sampling(12, 1000.0)), days, first, tells=OUTPUT)
    # No score reaches this threshold, so the released steps are always the same ones and tell nothing.
    yield from compare("release, L1, same steps chosen", made(L1Sampling(12, 1e9)), days, shapes)
    for name, shape, share, more in (
        ("release, chain of features", days, 1.0, {"features": [Feature.cuts(48, 14, 24, 36), Feature.total(48)]}),
        ("release, features, no chain", one, 0.1, {"features": [Feature.cuts(48, 14), Feature.cuts(48, 20)]}),
        ("release, hierarchy of 5 leaves", leaves, 0.3, {"hierarchy": Hierarchy.nested({"all": [*"abcde"]})}),
    ):
        far = {("near zero", "far from zero"): (level(0.0, shape), level(10_000.0, shape))}
        yield from compare(name, made(EqualSampling(12), **more), shape, far, tells=PRIVATE, share=share)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measurements", type=int, default=20_000, help="of each comparison, twice (default 20000)")
    parser.add_argument("--only", default="", help="comparisons whose name holds this text")
    given = parser.parse_args()
    # One core, and one thread on it, for everything.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    generator = np.random.default_rng()
    print("| call | classes | would tell of | ns | t, twice | effect in ns, twice | differs |")
    print("| --- | --- | --- | --: | --: | --: | --- |")
    for source in (planted, samplers, noises, releases):
        for case in source(generator):
            if given.only not in case.name:
                continue
            count = max(int(given.measurements * case.share), 200)
            found = [analyse(*measure(case, count, generator)) for _ in range(2)]
            words = f"{case.name} | {' / '.join(case.classes)} | {case.tells} | {found[0].base:.0f}"
            t = ", ".join(f"{one.largest_t:.1f}" for one in found)
            effects = ", ".join(f"{one.effect:+.0f}" for one in found)
            print(f"| {words} | {t} | {effects} | {'yes' if differs(found) else 'no'} |", flush=True)


if __name__ == "__main__":
    main()
