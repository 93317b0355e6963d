"""Measure the filter of estimates beside the same filter in numpy, in the same run: each figure is a ratio.

The numpy filter is the one that the tests hold the core against. It gets one thread for its linear algebra, which is
fastest for matrices of this size; so does the core.
"""

from __future__ import annotations

import os

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ["OPTSTREAM_MAX_THREADS"] = "1"

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
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def periods_of(module: Any, w: int, k: int, first: int, count: int) -> tuple[float, Any]:
    """Seconds of a period once amplitudes are followed rather than fitted, the median; and the filter."""
    values, cells, variances = measured(w, k, first + count), buckets(w, k), np.full(k, 50.0)
    made = module.Filter(w)
    times = [
        seconds(partial(made.update, module.Measured(period, cells, values[period], variances)))
        for period in range(first + count)
    ]
    return float(np.median(times[first:])), made


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


def year() -> None:
    """A year that tunes itself, in units of 10,000 Cholesky factorisations of 96 x 96 in numpy."""
    rng = np.random.default_rng(3)
    days = np.clip(500 + 200 * np.sin(np.arange(48) / 48 * 2 * np.pi) + rng.normal(0, 20, (365, 48)), 0, 1000)
    made = ops.OptStream.auto(ops.Guarantee(epsilon=Fraction(1, 10), w=48), bounds=(0, 1000))
    root = rng.normal(size=(96, 200))
    matrix = root @ root.T
    unit = seconds(lambda: [np.linalg.cholesky(matrix) for _ in range(10_000)])
    took = seconds(lambda: made.release(days.ravel()))
    print(f"a year of 48 steps a day that tunes itself: {took:.2f} s, {took / unit:.2f} units (at most 0.4 wanted)")


def main() -> None:
    """Print the table."""
    print(f"{'milliseconds':<58}{'numpy':>12}{'core':>12}{'ratio':>9}{'wanted':>8}")
    updates()
    tunings()
    year()


if __name__ == "__main__":
    main()
