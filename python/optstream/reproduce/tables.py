"""All numbers of a reproduction in one table."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optstream.budget import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from fractions import Fraction

    from optstream.evaluate import Evaluation, Mean

__all__ = ["HEADER", "Row", "best_first", "short", "to_csv", "to_markdown"]

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
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
