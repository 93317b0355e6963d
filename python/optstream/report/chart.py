"""Charts as SVG, drawn by the library: a line with its band, and a budget over time."""

from __future__ import annotations

import math
import re
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from optstream.report.content import step_labels
from optstream.report.words import figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from optstream.report.content import Budget, Line, Names

    Array = NDArray[np.float64]

__all__ = ["budget_chart", "described", "line_chart", "nice_ticks", "short_label", "step_ticks"]

WIDTH, HEIGHT = 960, 320
LEFT, RIGHT, TOP, BOTTOM = 68, 16, 14, 34
"""Margins; the script of the page uses the same."""
COLUMNS = 480
"""Pieces that a long line is drawn in; the script draws every step again where a reader looks closer."""


def line_chart(line: Line, labels: Sequence[str], w: int, unit: str) -> str:
    """Return a line with its band as SVG."""
    lowest, highest = _range([line.values, line.low, line.high])
    frame = _Frame(len(line.values), lowest, highest)
    positions, values, low, high = _thinned(line)
    ticks = [(step, labels[step]) for step in step_ticks(0, len(labels) - 1, w)]
    parts = [frame.values(unit), frame.steps(ticks)]
    for run in _runs(values):
        top = " ".join(frame.point(*pair) for pair in zip(positions[run], high[run], strict=True))
        bottom = " ".join(frame.point(*pair) for pair in zip(positions[run][::-1], low[run][::-1], strict=True))
        parts.append(f'<path class="band" d="M{top} {bottom}Z"/>')
    for run in _runs(values):
        path = " ".join(frame.point(*pair) for pair in zip(positions[run], values[run], strict=True))
        parts.append(f'<path class="line" d="M{path}"/>')
    return _svg("".join(parts), described(line, labels))


def described(line: Line, labels: Sequence[str]) -> str:
    """Return what a chart shows, for who cannot see it."""
    if not np.isfinite(line.values).any():
        return f"{line.name}: nothing is released yet."
    top, bottom = int(np.nanargmax(line.values)), int(np.nanargmin(line.values))
    return (
        f"{line.name}: a line from {labels[0]} to {labels[-1]} with a band around it. Lowest "
        f"{figure(line.values[bottom])} at {labels[bottom]}, highest {figure(line.values[top])} at {labels[top]}, mean "
        f"{figure(float(np.nanmean(line.values)))}."
    )


def budget_chart(budget: Budget, names: Names) -> str:
    """Return what every window has cost, beside what it may cost, as SVG."""
    policy, windows = budget.policy, budget.windows
    first = min((window.first for window in windows), default=0)
    last = max((window.last for window in windows), default=0)
    allowed = float(policy.epsilon)
    used = [(window.first - first, window.last - first, float(policy.epsilon - window.epsilon)) for window in windows]
    frame = _Frame(last - first + 2, 0.0, max([allowed, *(cost for *_, cost in used)]) * 1.12)
    outline, behind = [frame.point(0, 0)], 0
    for begin, end, cost in used:
        if begin > behind:
            outline += [frame.point(behind, 0), frame.point(begin, 0)]
        outline += [frame.point(begin, cost), frame.point(end + 1, cost)]
        behind = end + 1
    bars = f'<path class="bar" d="M{" ".join([*outline, frame.point(behind, 0)])}Z"/>'
    steps = np.array(step_ticks(first, last, policy.w), dtype=np.int64)
    ticks = list(zip((steps - first).tolist(), step_labels(steps, names), strict=True))
    top = frame.y(allowed)
    line = f'<path class="limit" d="M{LEFT} {top:.1f}H{WIDTH - RIGHT}"/>'
    words = f'<text x="{WIDTH - RIGHT - 4}" y="{top - 6:.1f}" text-anchor="end">allowed</text>'
    worst = figure(max((cost for *_, cost in used), default=0.0))
    about = f"Epsilon used by every window: at most {worst} of the {figure(allowed)} that the policy allows."
    return _svg(frame.values("epsilon") + frame.steps(ticks) + bars + line + words, about)


class _Frame:
    """Where steps and values lie in the picture."""

    def __init__(self, steps: int, low: float, high: float) -> None:
        """Take the number of steps and the range of the values."""
        self._steps, self._low, self._high = max(steps - 1, 1), low, high

    def x(self, step: float) -> float:
        """Return the place of a step."""
        return LEFT + (WIDTH - LEFT - RIGHT) * step / self._steps

    def y(self, value: float) -> float:
        """Return the place of a value."""
        return TOP + (HEIGHT - TOP - BOTTOM) * (self._high - value) / (self._high - self._low)

    def point(self, step: float, value: float) -> str:
        """Return a point of a path."""
        return f"{self.x(step):.1f},{self.y(value):.1f}"

    def values(self, unit: str) -> str:
        """Return the lines and words of the axis of values."""
        parts = []
        for value in nice_ticks(self._low, self._high):
            at = f"{self.y(value):.1f}"
            parts.append(f'<path class="grid" d="M{LEFT} {at}H{WIDTH - RIGHT}"/>')
            parts.append(f'<text x="{LEFT - 8}" y="{at}" dy=".35em" text-anchor="end">{figure(value)}</text>')
        if unit:
            parts.append(f'<text class="unit" x="{LEFT + 6}" y="{TOP + 8}">{escape(unit)}</text>')
        return "".join(parts)

    def steps(self, ticks: Sequence[tuple[int, str]]) -> str:
        """Return the lines and words of the axis of steps."""
        parts = []
        for step, label in ticks:
            at = f"{self.x(step):.1f}"
            parts.append(f'<path class="tick" d="M{at} {HEIGHT - BOTTOM}v5"/>')
            parts.append(f'<text x="{at}" y="{HEIGHT - 10}" text-anchor="middle">{escape(short_label(label))}</text>')
        parts.append(f'<path class="axis" d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
        return "".join(parts)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round numbers within a range.

    >>> nice_ticks(0, 97), nice_ticks(-3, 3)
    ([0.0, 20.0, 40.0, 60.0, 80.0], [-2.0, 0.0, 2.0])
    """
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step)
    return [number * step for number in range(first, math.floor(high / step) + 1)]


def step_ticks(first: int, last: int, w: int, count: int = 6) -> list[int]:
    """Return steps for the axis: starts of periods if there are several, else round numbers of steps.

    >>> step_ticks(0, 47, 48), step_ticks(0, 335, 48)
    ([0, 8, 16, 24, 32, 40], [0, 48, 96, 144, 192, 240, 288])
    """
    length = last - first
    if length < 0:
        return []
    if length >= 2 * w:
        periods = length / w / count
        gap = w * next(
            factor * 10**power for power in range(9) for factor in (1, 2, 5) if factor * 10**power >= periods * 0.8
        )
    else:
        gap = next((gap for gap in range(1, w + 1) if w % gap == 0 and gap * count >= length), w)
    return list(range(-(-first // gap) * gap, last + 1, gap))


def short_label(label: str) -> str:
    """Return a label that fits below an axis: a date at midnight, else day and time.

    >>> short_label("2024-01-03 00:00"), short_label("2024-01-03 14:30"), short_label("step 7")
    ('2024-01-03', '01-03 14:30', 'step 7')
    """
    found = re.match(r"\d{4}-(\d\d-\d\d)[ T](\d\d:\d\d)", label)
    if found is None:
        return label if len(label) <= 16 else f"{label[:15]}…"  # noqa: PLR2004
    return label[:10] if found[2] == "00:00" else f"{found[1]} {found[2]}"


def _range(arrays: Sequence[Array]) -> tuple[float, float]:
    """Return the range of an axis, with some room, and 0 if that is not far."""
    known = np.concatenate(arrays)
    known = known[np.isfinite(known)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    if 0 < low < (high - low) * 0.6:
        low = 0.0
    room = (high - low) * 0.04 or max(abs(high), 1.0) * 0.1
    return low if low == 0 else low - room, high + room


def _thinned(line: Line) -> tuple[Array, Array, Array, Array]:
    """Return positions, values, lower and upper ends; of a long line the extremes of each piece."""
    count = len(line.values)
    if count <= 2 * COLUMNS:
        return np.arange(count, dtype=np.float64), line.values, line.low, line.high
    positions, values, low, high = [], [], [], []
    for piece in np.array_split(np.arange(count), COLUMNS):
        part = line.values[piece]
        if not np.isfinite(part).all():
            ends = [(float(piece[0]), np.nan)]
        else:
            places = sorted((int(part.argmin()), int(part.argmax())))
            ends = [(float(piece[place]), float(part[place])) for place in places]
        for position, value in ends:
            positions.append(position)
            values.append(value)
            low.append(float(np.nanmin(line.low[piece])) if np.isfinite(value) else np.nan)
            high.append(float(np.nanmax(line.high[piece])) if np.isfinite(value) else np.nan)
    return np.array(positions), np.array(values), np.array(low), np.array(high)


def _runs(values: Array) -> list[slice]:
    """Return the stretches without a gap."""
    known = np.concatenate([[False], np.isfinite(values), [False]])
    edges = np.flatnonzero(known[1:] != known[:-1])
    return [slice(begin, end) for begin, end in zip(edges[::2], edges[1::2], strict=True)]


def _svg(content: str, about: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(about)}">{content}</svg>'
