"""Pictures, where matplotlib is installed."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream.errors import OptStreamError, ParameterError

if TYPE_CHECKING:
    from optstream.ledger import Ledger
    from optstream.mechanism.release import Release
    from optstream.mechanism.tree_release import TreeRelease
    from optstream.privacy.statement import Statement

__all__ = ["budget_picture", "empty_figure", "release_picture", "statement_picture"]

MOST_PANELS = 6
"""Nodes of a hierarchy in one picture, from the root down."""


def empty_figure(kind: str, **options: Any) -> Any:
    """Return a figure of matplotlib that can be written in a format, such as png.

    Raises:
        OptStreamError: Matplotlib is not installed.
        ParameterError: It does not know the format.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  (needed for pictures only)
    except ImportError:
        raise OptStreamError("a picture needs matplotlib: pip install matplotlib") from None
    figure = Figure(**options)
    if kind not in figure.canvas.get_supported_filetypes():
        raise ParameterError(f"a picture cannot be written as {kind!r}, but can as png, pdf or svg")
    return figure


def release_picture(release: Release | TreeRelease, path: str | Path | None = None) -> Any:
    """Return a figure with the values of a release and their bands, of a hierarchy those of its first nodes."""
    from optstream.report.content import Names, release_subject  # noqa: PLC0415  (reports draw pictures of their own)

    subject = release_subject(release, Names())
    lines = subject.lines[:MOST_PANELS]
    figure = empty_figure(_kind(path), figsize=(9, 1.2 + 2.4 * len(lines)), layout="constrained")
    panels = figure.subplots(len(lines), sharex=True, squeeze=False)[:, 0]
    for axes, line in zip(panels, lines, strict=True):
        steps = np.arange(len(line.values))
        axes.fill_between(steps, line.low, line.high, alpha=0.25, linewidth=0, label="95 % band")
        axes.plot(steps, line.values, linewidth=1, label="released")
        axes.set(title=line.name if len(subject.lines) > 1 else None, ylabel="value")
        axes.margins(x=0.01)
    panels[0].legend(loc="upper right")
    ticks = np.unique(np.linspace(0, len(subject.labels) - 1, 7).round().astype(int))
    panels[-1].set_xticks(ticks, [subject.labels[tick] for tick in ticks])
    return _written(figure, path)


def statement_picture(statement: Statement, path: str | Path | None = None) -> Any:
    """Return a figure with what the worst window of each stage costs, beside what was asked for."""
    names = [stage.name for stage in statement.stages]
    figure = empty_figure(_kind(path), figsize=(7, 1.4 + 0.4 * len(names)), layout="constrained")
    axes = figure.subplots()
    axes.barh(names, [float(stage.epsilon) for stage in statement.stages])
    axes.axvline(float(statement.guarantee.epsilon), linestyle="--", color="black", label="asked for, in all")
    axes.set(xlabel="epsilon of the worst window", xlim=(0, None))
    axes.invert_yaxis()
    axes.legend(frameon=False)
    return _written(figure, path)


def budget_picture(ledger: Ledger, stream: str, path: str | Path | None = None) -> Any:
    """Return a figure with what every window of a stream has used, beside what its policy allows."""
    policy, windows = ledger.policy(stream), ledger.remaining(stream).windows
    figure = empty_figure(_kind(path), figsize=(9, 3.4), layout="constrained")
    axes = figure.subplots()
    for window in windows:
        used = float(policy.epsilon - window.epsilon)
        axes.fill_between([window.first, window.last + 1], 0, used, color="C0", alpha=0.4, linewidth=0)
    axes.axhline(float(policy.epsilon), linestyle="--", color="C2", label="allowed; a window that uses it up is normal")
    axes.set(xlabel="first step of the window", ylabel="epsilon used", ylim=(0, None), title=stream)
    axes.legend(loc="lower right", frameon=False)
    return _written(figure, path)


def _kind(path: str | Path | None) -> str:
    return "png" if path is None else Path(path).suffix.lstrip(".") or "png"


def _written(figure: Any, path: str | Path | None) -> Any:
    """Write a figure if a file is named, whole or not at all, and return it."""
    if path is not None:
        target = BytesIO()
        figure.savefig(target, format=_kind(path), dpi=120)
        Path(path).write_bytes(target.getvalue())
    return figure
