"""All numbers of a reproduction in one table."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from statistics import geometric_mean
from typing import TYPE_CHECKING

from optstream.privacy.budget import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from fractions import Fraction

    from optstream.evaluate import Evaluation, Mean

__all__ = ["HEADER", "Row", "best_first", "pivot", "ranking", "short", "to_csv", "to_markdown", "typical"]

HEADER = (
    "figure",
    "stream",
    "alpha",
    "epsilon",
    "mechanism",
    "calibration",
    "true_epsilon",
    "error",
    "mean",
    "low",
    "high",
    "log10",
    "trials",
)


@dataclass(frozen=True)
class Row:
    """One error of one mechanism on one stream."""

    figure: str
    stream: str
    alpha: float
    epsilon: Fraction
    mechanism: str
    calibration: str
    true_epsilon: Fraction | None
    """What the worst window truly costs; None where nothing is protected."""
    error: str
    """What was measured, as :class:`optstream.evaluate.Evaluation` names it."""
    mean: Mean

    @classmethod
    def of(cls, figure: str, alpha: float, found: Evaluation, error: str) -> Row:
        """Return one error of an evaluation."""
        return cls(
            figure,
            found.stream,
            alpha,
            found.epsilon,
            found.mechanism,
            found.calibration,
            found.true_epsilon,
            error,
            found[error],
        )

    @property
    def true_shown(self) -> str:
        """The true epsilon for people."""
        return "none" if self.true_epsilon is None else shown(self.true_epsilon)

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as text; an interval that has no end is empty."""
        found = self.mean
        low, high = (f"{value:.6g}" if math.isfinite(value) else "" for value in (found.low, found.high))
        return (
            self.figure,
            self.stream,
            f"{self.alpha:g}",
            shown(self.epsilon),
            self.mechanism,
            self.calibration,
            self.true_shown,
            self.error,
            f"{found.mean:.6g}",
            low,
            high,
            f"{found.log10:.3f}",
            str(found.trials),
        )


def short(value: float) -> str:
    """Return an error for people, in three digits or as a whole number.

    >>> short(0.12345), short(4680.4)
    ('0.123', '4,680')
    """
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"  # noqa: PLR2004


def best_first(rows: Iterable[Row]) -> list[Row]:
    """Return rows by stream, growing alpha, falling epsilon, and growing error; streams keep their order."""
    rows = list(rows)
    order = {stream: place for place, stream in enumerate(dict.fromkeys(row.stream for row in rows))}
    return sorted(rows, key=lambda row: (order[row.stream], row.error, row.alpha, -row.epsilon, row.mean.mean))


def typical(rows: Iterable[Row], epsilon: Fraction, reference: str = "Laplace") -> dict[str, float]:
    """Return for every mechanism how many times the error of another one it has, best first.

    It is the geometric mean over the streams of the mechanism; 0 if it has no error at all on one of them.
    """
    own = [row for row in rows if row.epsilon == epsilon]
    plain = {row.stream: row.mean.mean for row in own if row.mechanism == reference}
    ratios: dict[str, list[float]] = {}
    for row in own:
        ratios.setdefault(row.mechanism, []).append(row.mean.mean / plain[row.stream])
    found = {mechanism: geometric_mean(values) if all(values) else 0.0 for mechanism, values in ratios.items()}
    return dict(sorted(found.items(), key=lambda entry: entry[1]))


def ranking(rows: Sequence[Row]) -> str:
    """Return errors in Markdown, a table for every epsilon: a line for every stream, the best mechanism first.

    Columns follow the geometric mean over streams, and what is best for a stream within the epsilon that was asked for
    stands in bold.
    """
    tables = []
    for epsilon in dict.fromkeys(row.epsilon for row in rows):
        order = typical(rows, epsilon)
        errors = {(row.stream, row.mechanism): row for row in rows if row.epsilon == epsilon}
        lines = [["stream", *order], ["---"] + ["--:"] * len(order)]
        for stream in dict.fromkeys(row.stream for row in rows):
            honest = [row for row in errors.values() if row.stream == stream and (row.true_epsilon or 0) <= epsilon]
            best = min(honest, key=lambda row: row.mean.mean)
            cells = [errors.get((stream, mechanism)) for mechanism in order]
            lines.append([stream, *(_ranked(row, best) for row in cells)])
        lines.append(["*times Laplace*", *(f"{ratio:.3g}" for ratio in order.values())])
        tables.append(f"### Epsilon {shown(epsilon)}\n\n{_lines(lines)}")
    return "\n".join(tables)


def _ranked(row: Row | None, best: Row) -> str:
    if row is None:
        return ""
    return f"**{short(row.mean.mean)}**" if row is best else short(row.mean.mean)


def pivot(rows: Sequence[Row]) -> str:
    """Return errors in Markdown: a line for every setting, a column for every mechanism and calibration.

    The true epsilon stands beside an error where it is larger than what was asked for.
    """
    columns = list(dict.fromkeys((row.mechanism, row.calibration) for row in rows))
    settings: dict[tuple[str, ...], dict[tuple[str, str], Row]] = {}
    for row in rows:
        setting = (row.stream, row.error, f"{row.alpha:g}", shown(row.epsilon))
        settings.setdefault(setting, {})[row.mechanism, row.calibration] = row
    titles = [name + (", as printed" if calibration == "paper" else "") for name, calibration in columns]
    lines = [["stream", "error", "alpha", "epsilon", *titles], ["---"] * 2 + ["--:"] * (2 + len(columns))]
    lines += [[*setting, *(_priced(found.get(column)) for column in columns)] for setting, found in settings.items()]
    return _lines(lines)


def _priced(row: Row | None) -> str:
    if row is None:
        return ""
    broken = row.true_epsilon is not None and row.true_epsilon > row.epsilon
    return short(row.mean.mean) + (f" (ε {float(row.true_epsilon or 0):.3g})" if broken else "")


def _lines(lines: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def to_csv(rows: Iterable[Row]) -> str:
    """Return all rows as CSV."""
    buffer = io.StringIO()
    table = csv.writer(buffer, lineterminator="\n")
    table.writerow(HEADER)
    table.writerows(row.cells for row in rows)
    return buffer.getvalue()


def to_markdown(rows: Iterable[Row], columns: Sequence[str] = HEADER) -> str:
    """Return rows as a table in Markdown."""
    chosen = [HEADER.index(column) for column in columns]
    lines = [[HEADER[index].replace("_", " ") for index in chosen], ["---"] * len(chosen)]
    lines += [[row.cells[index] for index in chosen] for row in rows]
    return _lines(lines)
