"""The table of all mechanisms on all streams."""

from __future__ import annotations

import multiprocessing
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm.auto import tqdm

from optstream.evaluate import compare
from optstream.evaluate.trials import take_one_core
from optstream.privacy.guarantee import Guarantee
from optstream.reproduce.drawing import dots
from optstream.reproduce.mechanisms import learners, quick_ones, step_by_step
from optstream.reproduce.study import EPSILONS, Drawn
from optstream.reproduce.tables import Row, best_first, typical

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optstream.reproduce.data import Stream
    from optstream.reproduce.study import Study

    Job = tuple[str, Stream, float, tuple[int, int, int]]

__all__ = ["everything"]


def everything(study: Study, name: str) -> Drawn:
    """Release all streams with all mechanisms, from the first day to the last."""
    streams = study.data.streams()
    if study.quick:
        first = {stream.name.partition("/")[0]: stream.shortened() for stream in reversed(streams)}
        streams = list(reversed(first.values()))
    trials = study.fewer(3), study.fewer(10), study.fewer(30)
    # The longest first, so that no process waits long for another at the end.
    jobs: list[Job] = [
        (name, stream, epsilon, trials)
        for stream in sorted(streams, key=lambda stream: stream.w * stream.x.size, reverse=True)
        for epsilon in EPSILONS
    ]
    found = [row for rows in _done(jobs, study.processes) for row in rows]
    order = {stream.name: place for place, stream in enumerate(streams)}
    rows = best_first(sorted(found, key=lambda row: order[row.stream]))
    ratios = {float(epsilon): typical(rows, epsilon) for epsilon in dict.fromkeys(row.epsilon for row in rows)}
    return Drawn(rows, {name: (dots(ratios), "Mean absolute errors of all mechanisms, relative to Laplace.")})


def _done(jobs: Sequence[Job], processes: int) -> Iterator[list[Row]]:
    bar = tqdm(total=len(jobs), desc="all mechanisms", unit="stream", disable=None, leave=False)
    with bar, ExitStack() as stack:
        if processes == 1:
            found: Iterator[list[Row]] = map(_rows, jobs)
        else:
            pool = stack.enter_context(multiprocessing.get_context("fork").Pool(processes, initializer=_alone))
            found = pool.imap_unordered(_rows, jobs)
        for rows in found:
            bar.update()
            yield rows


def _alone() -> None:
    """Let a process keep to one core, and keep its bars from writing over ours."""
    take_one_core()
    sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  (as long as the process lives)


def _rows(job: Job) -> list[Row]:
    """Release one stream with every mechanism."""
    name, stream, epsilon, trials = job
    guarantee = Guarantee(epsilon=epsilon, w=stream.w)
    kinds = zip((quick_ones, step_by_step, learners), trials, strict=True)
    return [
        Row.of(name, guarantee.alpha, found, "point")
        for made, count in kinds
        for found in compare(made(stream, guarantee), {stream.name: stream.x}, trials=count, processes=1)
    ]
