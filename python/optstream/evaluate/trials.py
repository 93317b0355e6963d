"""Trials: the same data released again and again, in parallel."""

from __future__ import annotations

import multiprocessing
import os
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm.auto import tqdm

from optstream.data.frames import read_leaves, read_periods
from optstream.errors import ParameterError, ParameterTypeError
from optstream.evaluate.comparison import Comparison, Evaluation
from optstream.evaluate.errors import consistency_error, feature_error, level_errors, period_errors, point_error
from optstream.evaluate.mean import Mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from optstream.evaluate.forecast import Forecast
    from optstream.pipeline.features import Feature
    from optstream.pipeline.hierarchy import Hierarchy

    Array = NDArray[np.float64]

__all__ = ["compare", "evaluate"]


def evaluate(
    mechanism: Any,
    x: Any,
    *,
    trials: int = 30,
    level: float = 0.95,
    processes: int | None = None,
    truncate: bool = False,
    features: Sequence[Feature] = (),
    forecast: Forecast | None = None,
) -> Evaluation:
    """Release data again and again and return the errors; see :func:`compare`.

    Example:
        >>> import optstream as ops
        >>> mechanism = ops.OptStream(ops.Guarantee(epsilon=1, w=4), sample=ops.EqualSampling(k=4), bounds=(0, 99))
        >>> found = evaluate(mechanism, np.full(400, 50.0), trials=10, processes=1)
        >>> 3 < found["point"].mean < 5
        True
    """
    return compare(
        {type(mechanism).__name__: mechanism},
        {"x": x},
        trials=trials,
        level=level,
        processes=processes,
        truncate=truncate,
        features=features,
        forecast=forecast,
    ).evaluations[0]


def compare(
    mechanisms: Mapping[str, Any],
    streams: Mapping[str, Any],
    *,
    trials: int = 30,
    level: float = 0.95,
    processes: int | None = None,
    truncate: bool = False,
    features: Sequence[Feature] = (),
    forecast: Forecast | None = None,
) -> Comparison:
    """Release every stream with every mechanism again and again and return the errors.

    Args:
        mechanisms: Mechanisms by name; several budgets are several mechanisms.
        streams: The data by name: whole periods; for mechanisms with a hierarchy the columns of its leaves, and for
            those of several streams a column for each.
        trials: How often each is released.
        level: The coverage of the confidence intervals.
        processes: How many processes share the trials; as many as this one may use cores by default.
        truncate: Whether released values below zero count as zero, as in the paper.
        features: Partitions whose sums are compared with those of the data.
        forecast: What is forecast from released data, if anything.

    Returns:
        One evaluation for every mechanism and stream.

    Raises:
        ParameterError: A parameter lies outside its bound.
        DataError: The data is not a whole number of periods, or not finite.
    """
    for name, value in (("trials", trials), ("processes", 1 if processes is None else processes)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise ParameterTypeError(f"{name} is of type {type(value).__name__}, but must be an int")
        if value < 1:
            raise ParameterError(f"{name} is {value}, but must be at least 1")
    work = [
        _Work(name, stream, mechanism, x, truncate, tuple(features), forecast)
        for stream, x in streams.items()
        for name, mechanism in mechanisms.items()
    ]
    for entry in work:
        # What is wrong with the data shows before the first trial.
        _ = entry.data
    found: dict[int, list[dict[str, float]]] = defaultdict(list)
    total = len(work) * trials
    with tqdm(total=total, desc="evaluating", unit="release", disable=None, leave=False) as progress:
        for index, errors in _errors(work, trials, _cores() if processes is None else processes):
            found[index].append(errors)
            progress.update()
    return Comparison(tuple(entry.evaluation(found[index], level) for index, entry in enumerate(work)))


@dataclass(frozen=True)
class _Work:
    """A mechanism and a stream."""

    name: str
    stream: str
    mechanism: Any
    x: Any
    truncate: bool
    features: tuple[Feature, ...]
    forecast: Forecast | None

    @property
    def hierarchy(self) -> Hierarchy | None:
        found: Hierarchy | None = getattr(self.mechanism, "hierarchy", None)
        return found

    @cached_property
    def data(self) -> tuple[Array, Array]:
        """What is released, and what the released values stand for."""
        w = self.mechanism.guarantee.w
        if self.hierarchy is not None:
            leaves = read_leaves(self.x, self.hierarchy, w)[0]
            return leaves, np.asarray(self.hierarchy.sums(leaves.T).T, dtype=float)
        if getattr(self.mechanism, "streams", 1) > 1:
            columns = np.asarray(self.x, dtype=float)
            return columns, columns
        series = read_periods(self.x, w)[0].ravel()
        truth = getattr(self.mechanism, "truth", None)
        return series, series if truth is None else truth(series)

    def trial(self) -> dict[str, float]:
        """Release once and return the errors by their names."""
        data, truth = self.data
        w, release = self.mechanism.guarantee.w, self.mechanism.release(data)
        values = np.asarray(release.values, dtype=float)
        if self.truncate:
            values = np.maximum(values, 0.0)
        columns = values.reshape(len(truth), -1).T, truth.reshape(len(truth), -1).T
        errors = {
            "point": point_error(values, truth),
            "period": float(np.mean([period_errors(*pair, w) for pair in zip(*columns, strict=True)])),
        }
        for number, feature in enumerate(self.features, 1):
            pairs = zip(*columns, strict=True)
            errors[f"feature {number}"] = float(np.mean([feature_error(*pair, feature) for pair in pairs]))
        if self.hierarchy is not None:
            for depth, error in enumerate(level_errors(values, truth, self.hierarchy)):
                errors[f"level {depth}"] = error
            errors["consistency"] = consistency_error(values, self.hierarchy)
        if self.forecast is not None:
            pairs = zip(*columns, strict=True)
            errors["forecast"] = float(np.mean([self.forecast.error(*pair, w) for pair in pairs]))
        return errors

    def evaluation(self, trials: Sequence[Mapping[str, float]], level: float) -> Evaluation:
        """Return what the trials found."""
        statement = self.mechanism.statement
        return Evaluation(
            mechanism=self.name,
            stream=self.stream,
            epsilon=statement.guarantee.epsilon,
            true_epsilon=statement.epsilon,
            calibration=statement.calibration,
            errors={name: Mean.of([trial[name] for trial in trials], level) for name in trials[0]},
        )


def _cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_inherited: list[Sequence[_Work]] = []


def _errors(work: Sequence[_Work], trials: int, processes: int) -> Iterator[tuple[int, dict[str, float]]]:
    indices = [index for index in range(len(work)) for _ in range(trials)]
    if processes == 1:
        yield from ((index, work[index].trial()) for index in indices)
        return
    # Forked processes inherit the work, which may be large or hold functions that cannot be sent. Each call of the
    # core draws its own key, so no two processes share their noise.
    context = multiprocessing.get_context("fork")
    with context.Pool(processes, initializer=_inherit, initargs=(work,)) as pool:
        yield from pool.imap_unordered(_trial, indices)


def take_one_core() -> None:
    """Keep a process to one core: others work on the others."""
    os.environ["OPTSTREAM_MAX_THREADS"] = "1"


def _inherit(work: Sequence[_Work]) -> None:
    take_one_core()
    _inherited.append(work)


def _trial(index: int) -> tuple[int, dict[str, float]]:
    return index, _inherited[-1][index].trial()
