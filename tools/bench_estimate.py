"""Measure the filter of estimates beside the same filter in numpy, in the same run: each figure is a ratio.

The numpy filter is the one that the tests hold the core against. It gets one thread for its linear algebra, which is
fastest for matrices of this size; so does the core. Processor time is measured, so that other processes on the machine
matter little. What has no peer is counted in factorisations: how many times as long as a Cholesky factorisation of a
96 x 96 matrix in numpy it takes.
"""

from __future__ import annotations

import os

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ["OPTSTREAM_MAX_THREADS"] = "1"

import subprocess  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from fractions import Fraction  # noqa: E402
from functools import partial  # noqa: E402
from itertools import pairwise  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

import numpy as np  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import numpy_filter  # noqa: E402

import optstream as ops  # noqa: E402
from optstream.estimate import filter as core  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Array = NDArray[np.float64]


W = 48
PERIODS = 2
"""Steps and number of the periods of trees."""


def buckets(w: int, k: int) -> tuple[tuple[int, ...], ...]:
    """Return the steps of buckets."""
    edges = [bucket * w // k for bucket in range(k + 1)]
    return tuple(tuple(range(low, high)) for low, high in pairwise(edges))


def measured(w: int, k: int, periods: int) -> Array:
    """Noisy means of a stream with a daily shape."""
    rng = np.random.default_rng(w + k)
    steps = 100 + 20 * np.sin(np.arange(w) / w * 2 * np.pi) + rng.normal(0, 3, (periods, w))
    means = np.stack([steps[:, list(cell)].mean(axis=1) for cell in buckets(w, k)], axis=1)
    return np.asarray(means + rng.laplace(0, 5, means.shape))


def seconds(work: Callable[[], Any]) -> float:
    """Return how long some work takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


def periods_of(module: Any, w: int, k: int, first: int, count: int, *, total: bool = False) -> tuple[float, Any]:
    """Seconds of a period once amplitudes are followed rather than fitted, the median; or of all; and the filter."""
    values, cells, variances = measured(w, k, first + count), buckets(w, k), np.full(k, 50.0)
    made = module.Filter(w)
    times = [
        seconds(partial(made.update, module.Measured(period, cells, values[period], variances)))
        for period in range(first + count)
    ]
    return float(np.sum(times) if total else np.median(times[first:])), made


def row(name: str, slow: float, fast: float, wanted: float) -> None:
    """Print a row of the table."""
    print(f"{name:<58}{slow * 1e3:>12.3f}{fast * 1e3:>12.3f}{slow / fast:>9.1f}{wanted:>8g}")


def updates() -> None:
    """Compare updates of one period."""
    for w, k, wanted in ((48, 16, 8), (48, 48, 8), (200, 200, 40)):
        slow, _ = periods_of(numpy_filter, w, k, 24, 12)
        fast, _ = periods_of(core, w, k, 24, 60)
        row(f"a period of {w} steps, {k} measured", slow, fast, wanted)
    w = 1440
    cells, variances, values = buckets(w, w), np.full(w, 50.0), measured(w, w, 40)
    # Fitting in numpy would take an hour: its periods are timed in a bank of six with any amplitudes.
    geometry = numpy_filter.Geometry(w=w, season=7, smooth=True)
    bank = numpy_filter.Bank(geometry, np.tile(400 * numpy_filter.SHARES, (6, 1)), (100.0, 1e4))
    layout = numpy_filter.layout_of(geometry, cells)

    def period(number: int) -> None:
        bank.advance(number)
        bank.observe(number, layout, values[number], variances)

    period(0)
    slow = float(np.median([seconds(partial(period, number)) for number in (1, 2, 3)]))
    fast, _ = periods_of(core, w, w, 24, 16)
    row(f"a period of {w} steps, {w} measured", slow, fast, 500)
    fast, made = periods_of(core, 1440, 96, 24, 16)
    print(f"{'a period of 1440 steps, 96 measured':<70}{fast * 1e3:>12.3f}   ({made.measured} periods)")


def tunings() -> None:
    """Compare what re-tuning asks for."""
    for k in (16, 48):
        _, slow = periods_of(numpy_filter, 48, 16, 14, 1)
        _, fast = periods_of(core, 48, 16, 14, 1)
        cells, variances = buckets(48, k), np.full(k, 50.0)
        slow_time = min(seconds(partial(slow.expected_error, cells, variances)) for _ in range(3))
        fast_time = min(seconds(partial(fast.expected_error, cells, variances)) for _ in range(9))
        row(f"expected error of a candidate, 48 steps, {k} measured", slow_time, fast_time, 18)


def factorisation() -> float:
    """Seconds of a Cholesky factorisation of a 96 x 96 matrix in numpy."""
    root = np.random.default_rng(3).normal(size=(96, 200))
    matrix = root @ root.T
    return seconds(lambda: [np.linalg.cholesky(matrix) for _ in range(10_000)]) / 10_000


def year() -> None:
    """A year that tunes itself."""
    rng = np.random.default_rng(3)
    days = np.clip(500 + 200 * np.sin(np.arange(48) / 48 * 2 * np.pi) + rng.normal(0, 20, (365, 48)), 0, 1000)
    made = ops.OptStream.auto(ops.Guarantee(epsilon=Fraction(1, 10), w=48), bounds=(0, 1000))
    took = seconds(lambda: made.release(days.ravel()))
    counted("a year of 48 steps a day that tunes itself", took, 4_000)


def building() -> None:
    """Mechanisms that nothing was computed for before."""
    made = [ops.Guarantee(epsilon=Fraction(1, denominator), w=48) for denominator in range(100, 150)]
    sample = ops.EqualSampling(k=10)
    took = seconds(lambda: [ops.OptStream(guarantee, sample=sample, bounds=(0, 1000)) for guarantee in made])
    counted("a mechanism of 10 equal steps of 48", took / len(made), 10)
    count, features = len(made) // 5, [ops.Feature.cuts(48, 14, 24, 36), ops.Feature.total(48)]
    took = seconds(
        lambda: [
            ops.OptStream(guarantee, sample=ops.L1Sampling(10, 100.0), features=features, bounds=(0, 1000))
            for guarantee in made[:count]
        ]
    )
    counted("a mechanism of 10 chosen steps of 48 and two features", took / count, 10)


def counted(name: str, took: float, wanted: float) -> None:
    """Print a row for what has no peer."""
    print(f"{name:<58}{'':>12}{took * 1e3:>12.3f}{took / factorisation():>9.0f}{wanted:>8g} factorisations at most")


def trees() -> None:
    """Trees of an automatic mechanism, for which the numpy filter is timed on one node."""
    before, nodes = None, 0
    for leaves, wanted in ((100, 10), (1_000, 10)):
        names = [[f"{region}.{leaf}" for leaf in range(100)] for region in range(leaves // 100)]
        tree = ops.Hierarchy.nested({"all": {f"region {region}": row for region, row in enumerate(names)}})
        guarantee = ops.Guarantee(epsilon=1, w=W)
        made = ops.OptStream.auto(guarantee, bounds=(0, 1000), hierarchy=tree)
        rng = np.random.default_rng(5)
        data = np.clip(rng.normal(200, 60, (PERIODS * W, leaves)), 0, 1000)
        took = seconds(partial(made.release, data)) / PERIODS
        nodes = len(tree.nodes)
        one, _ = periods_of(numpy_filter, W, made.sample.k, 0, PERIODS, total=True)
        row(f"a period of an automatic tree of {leaves:,} leaves", one / PERIODS * nodes, took, wanted)
        if before is not None:
            print(f"{'growth for ten times the leaves':<82}{took / before:>9.1f}{11:>8g} at most")
        before = took


IMPORTS = ("import numpy", "import optstream", "import optstream; optstream.OptStream")


def imports() -> None:
    """What it takes to import the package, beside numpy."""
    times = {}
    for statement in ("pass", *IMPORTS):
        code = f"import time; start = time.process_time(); {statement}; print(time.process_time() - start)"
        run = partial(subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, check=True)
        times[statement] = min(float(run().stdout) for _ in range(7))
    least = times["import numpy"]
    for statement in IMPORTS[1:]:
        took = times[statement]
        print(f"{statement:<58}{least * 1e3:>12.3f}{took * 1e3:>12.3f}{took / least:>9.2f}{2:>8g} at most")


def main() -> None:
    """Print the table."""
    print(f"{'milliseconds':<58}{'numpy':>12}{'core':>12}{'ratio':>9}{'wanted':>8}")
    updates()
    tunings()
    year()
    building()
    trees()
    imports()


if __name__ == "__main__":
    main()
