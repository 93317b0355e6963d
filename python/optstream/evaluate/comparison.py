"""What trials found: for one mechanism on one stream, and for all of them in a table."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from optstream.errors import ParameterError
from optstream.privacy.budget import shown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from fractions import Fraction

    from optstream.evaluate.mean import Mean

__all__ = ["Comparison", "Evaluation"]


@dataclass(frozen=True)
class Evaluation:
    """The errors of one mechanism on one stream, over many trials."""

    mechanism: str
    stream: str
    epsilon: Fraction
    """The epsilon that was asked for."""
    true_epsilon: Fraction
    """What the worst window truly costs."""
    calibration: str
    errors: dict[str, Mean]
    """``point``: mean absolute error of a step. ``period``: L1 error of a period. ``feature 1``, ...: error of the sum
    of a cell. ``level 0``, ...: error of a step on a level of a hierarchy. ``consistency``: how far parents are from
    the sums of their children. ``forecast``: error of a forecast of the next period."""

    def __getitem__(self, error: str) -> Mean:
        """Return an error by its name."""
        if error not in self.errors:
            raise ParameterError(f"error is {error!r}, but must be one of {', '.join(self.errors)}")
        return self.errors[error]


@dataclass(frozen=True)
class Comparison:
    """The errors of several mechanisms on several streams."""

    evaluations: tuple[Evaluation, ...]

    def __iter__(self) -> Iterator[Evaluation]:
        """Go through the evaluations in the order in which they were asked for."""
        return iter(self.evaluations)

    def __len__(self) -> int:
        return len(self.evaluations)

    def best_first(self, error: str = "point") -> list[Evaluation]:
        """Return the evaluations by stream, falling epsilon, and growing error."""
        return sorted(self, key=lambda found: (found.stream, -found.epsilon, found[error].mean))

    def to_markdown(self, error: str = "point") -> str:
        """Return a table of one error, best first."""
        lines = [
            "| stream | epsilon | mechanism | true epsilon | error | log10 |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        lines += [
            f"| {found.stream} | {shown(found.epsilon)} | {found.mechanism} | {shown(found.true_epsilon)} "
            f"| {found[error]} | {found[error].log10:.2f} |"
            for found in self.best_first(error)
        ]
        return "\n".join(lines)

    def to_csv(self) -> str:
        """Return all errors, one in a row."""
        buffer = io.StringIO()
        table = csv.writer(buffer, lineterminator="\n")
        table.writerow(
            ["stream", "mechanism", "epsilon", "true_epsilon", "calibration", "error", "mean", "low", "high", "trials"]
        )
        for found in self:
            about = [found.stream, found.mechanism, float(found.epsilon), shown(found.true_epsilon), found.calibration]
            for name, value in found.errors.items():
                table.writerow([*about, name, value.mean, value.low, value.high, value.trials])
        return buffer.getvalue()

    def to_json(self) -> str:
        """Return everything as JSON; exact rationals are strings, and an interval that has no end is null."""
        rows = []
        for found in self:
            row = {**asdict(found), "epsilon": str(found.epsilon), "true_epsilon": str(found.true_epsilon)}
            for value in row["errors"].values():
                if value["trials"] == 1:
                    value["low"] = value["high"] = None
            rows.append(row)
        return json.dumps(rows, allow_nan=False)
