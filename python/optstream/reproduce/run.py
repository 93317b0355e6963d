"""A run from the data to the files."""

from __future__ import annotations

import io
import os
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

from optstream.errors import OptStreamError, ParameterError
from optstream.pictures import empty_figure
from optstream.reproduce.data import Folder
from optstream.reproduce.figures import FIGURES
from optstream.reproduce.page import Section, page
from optstream.reproduce.parts import Part, Parts
from optstream.reproduce.study import Study
from optstream.reproduce.tables import pivot, ranking, to_csv, to_markdown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optstream.reproduce.study import Drawn
    from optstream.reproduce.tables import Row

__all__ = ["QUICK_TRIALS", "TRIALS", "Made", "reproduce"]

TRIALS = 30
QUICK_TRIALS = 3
PAGE, CSV, MARKDOWN = "index.html", "results.csv", "results.md"
SUMMARY = "summary.md"
COLOURS = 64
LONG = "errors"
"""The figure whose rows are ranked in the summary."""


@dataclass(frozen=True)
class Made:
    """What a run made: all numbers, and files by their names."""

    rows: tuple[Row, ...]
    files: dict[str, bytes]


def reproduce(
    data: Path | None,
    *,
    figures: Sequence[str] = (),
    trials: int | None = None,
    quick: bool = False,
    processes: int | None = None,
    kept: Path | None = None,
    show: Callable[[Made], None] | None = None,
) -> Made:
    """Run figures and tables of the evaluation again.

    Args:
        data: The folder with the streams; None where no figure reads it.
        figures: Names from :data:`FIGURES`; all of them by default.
        trials: How often a month is released: 30 by default, 3 if quick. Forecasts are tried a third as often; whole
            streams a third, a tenth or a thirtieth as often, the longer they take; each at least once.
        quick: Whether to leave out most streams of the long table, most of their days, and most forecasts.
        processes: How many processes share the work; as many as this one may use cores by default.
        kept: A folder in which figures that are ready are kept: a run that was interrupted goes on from them.
        show: What to do with all that is ready, after every figure.

    Raises:
        ParameterError: A figure is unknown, or a number lies outside its bound.
        DataError: The folder or a file is missing, or holds something else.
        OptStreamError: Matplotlib or statsmodels is not installed.
    """
    chosen = _chosen(figures)
    for name, value in (("trials", trials), ("processes", processes)):
        if value is not None and value < 1:
            raise ParameterError(f"{name} is {value}, but must be at least 1")
    _check_installed()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    reading = [name for name in chosen if FIGURES[name].reads]
    if data is None and reading:
        raise ParameterError(f"data is missing, but {reading[0]} reads it: give the folder with the streams")
    study = Study(
        Folder(data or Path(), read=bool(reading)),
        trials or (QUICK_TRIALS if quick else TRIALS),
        processes or cores,
        quick,
    )
    parts = Parts(kept, study)
    begin = time.monotonic()
    ready: dict[str, Part] = {}
    for name in tqdm(chosen, desc="figures", unit="figure", disable=None):
        found = parts.find(name)
        if found is None:
            found = _part(FIGURES[name].run(study, name))
            parts.keep(name, found)
        ready[name] = found
        if show is not None:
            minutes = (time.monotonic() - begin) / 60
            show(_assembled(ready, _about(study, minutes, len(chosen))))
    return _assembled(ready, _about(study, (time.monotonic() - begin) / 60, len(chosen)))


def _about(study: Study, minutes: float, figures: int) -> str:
    return (
        f"optstream {version('optstream')}; figures: {figures}; trials of a month: {study.trials}"
        f"{' (quick)' if study.quick else ''}; minutes: {minutes:.1f}; processes: {study.processes}."
    )


def _part(drawn: Drawn) -> Part:
    return Part(
        tuple(drawn.rows),
        {
            name: (_saved(figure, "png"), _saved(figure, "svg"), words)
            for name, (figure, words) in drawn.pictures.items()
        },
    )


def _assembled(ready: dict[str, Part], about: str) -> Made:
    """Return the files of figures that are ready."""
    files: dict[str, bytes] = {}
    sections = []
    for name, found in ready.items():
        for picture, (png, svg, _) in found.pictures.items():
            files[f"{picture}.png"], files[f"{picture}.svg"] = png, svg
        shown = {picture: (png, words) for picture, (png, _, words) in found.pictures.items()}
        sections.append(Section(name, FIGURES[name].title, FIGURES[name].claim, shown, found.rows))
    rows = tuple(row for found in ready.values() for row in found.rows)
    files[PAGE] = page(sections, about).encode()
    files[CSV] = to_csv(rows).encode()
    files[MARKDOWN] = to_markdown(rows).encode()
    files[SUMMARY] = "\n".join(
        f"## {FIGURES[name].title}\n\n{(ranking if name == LONG else pivot)(found.rows)}"
        for name, found in ready.items()
    ).encode()
    return Made(rows, files)


def _chosen(figures: Sequence[str]) -> list[str]:
    unknown = [name for name in figures if name not in FIGURES]
    if unknown:
        raise ParameterError(f"figure is {unknown[0]!r}, but must be one of {', '.join(FIGURES)}")
    return [name for name in FIGURES if not figures or name in figures]


def _check_installed() -> None:
    """Find what is missing before the work, not after it."""
    empty_figure("svg")
    try:
        import statsmodels  # noqa: F401, PLC0415
    except ImportError:
        raise OptStreamError("forecasts need statsmodels: pip install 'optstream[reproduce]'") from None


def _saved(figure: Any, kind: str) -> bytes:
    target = io.BytesIO()
    figure.savefig(target, format=kind, dpi=100)
    return _compact(target) if kind == "png" else target.getvalue()


def _compact(picture: io.BytesIO) -> bytes:
    """Return a picture in few colours, which takes a third of the room and looks the same."""
    from PIL import Image  # noqa: PLC0415  (comes with matplotlib)

    target = io.BytesIO()
    with Image.open(picture) as image:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(target, format="png", optimize=True)
    return target.getvalue()
