"""Times of rows: that they are steps of one grid, and which period they begin."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from optstream.data.clock import Clock
from optstream.errors import DataError, ParameterError, StreamError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Grid", "first_period", "length_of", "moment", "read_times"]

MICROSECONDS = {"": 1, "us": 1, "ms": 10**3, "s": 10**6, "m": 60 * 10**6, "h": 3600 * 10**6, "d": 86_400 * 10**6}


@dataclass(frozen=True)
class Grid:
    """Where steps begin, as given on the command line; None is for what the first rows show."""

    origin: str | None
    step: str | None

    def clock(self) -> str:
        """Return which time a step is, as a stream of the library says it.

        >>> Grid("2016-01-01T00:00:00", "30m").clock()
        'steps of 1800 s from 2016-01-01T00:00:00'
        """
        if self.origin is None or self.step is None:
            return str(Clock.of(None, None))
        origin = moment("--origin", self.origin)
        length = length_of(self.step, numbers=isinstance(origin, int))
        if isinstance(origin, int):
            return f"steps of {length} from {origin}"
        return str(Clock.of(timedelta(microseconds=length), origin))


def moment(name: str, text: str) -> datetime | int:
    """Return a time in ISO 8601, or the number of a step.

    >>> moment("--start", "2016-01-01"), moment("--start", "48")
    (datetime.datetime(2016, 1, 1, 0, 0), 48)
    """
    try:
        return int(text) if re.fullmatch(r"-?\d{1,18}", text) else datetime.fromisoformat(text)
    except ValueError:
        raise ParameterError(f"{name} is {text!r}, but must be a time such as 2016-01-01T00:30:00") from None


def read_times(column: pl.Series) -> pl.Series:
    """Return times as polars holds them: datetimes, dates or whole step numbers.

    Times with an offset become times in UTC, where a change of summer time neither drops nor repeats a step.

    >>> read_times(pl.Series("at", ["2016-03-27T01:30+01:00", "2016-03-27T03:00+02:00"])).diff()[1]
    datetime.timedelta(seconds=1800)
    """
    lost = column.is_null().arg_true()
    if len(lost):
        raise DataError(f"row {lost[0] + 1} of {column.name!r} is empty, but must be a time")
    if column.dtype.is_integer() or isinstance(column.dtype, (pl.Date, pl.Datetime)):
        return column
    if column.dtype != pl.String:
        raise DataError(f"column {column.name!r} holds {column.dtype}, but must hold times")
    texts = column.str.strip_chars()
    if texts.str.contains(r"^-?\d{1,18}$").all():
        return texts.cast(pl.Int64)
    parsed: list[datetime] = []
    for row, text in enumerate(texts, start=1):
        try:
            parsed.append(datetime.fromisoformat(text))
        except ValueError:
            raise DataError(f"row {row} of {column.name!r} is no time such as 2016-01-01T00:30:00") from None
        if (parsed[-1].tzinfo is None) != (parsed[0].tzinfo is None):
            raise DataError(f"row {row} of {column.name!r} has an offset from UTC or has none, other than row 1")
    if texts.str.len_chars().max() == len("2016-01-01"):
        return pl.Series(column.name, [time.date() for time in parsed], dtype=pl.Date)
    zone = parsed and parsed[0].tzinfo
    instants = [time.astimezone(UTC) for time in parsed] if zone else parsed
    return pl.Series(column.name, instants, dtype=pl.Datetime("us", "UTC" if zone else None))


def first_period(times: pl.Series, w: int, grid: Grid) -> int:
    """Return the number of the period of ``w`` steps that the first row begins, if all rows are steps of the grid.

    Raises:
        StreamError: A row is early, late, missing or double, or the first one does not begin a period.

    >>> first_period(pl.Series("at", [96, 97, 98]), 48, Grid(origin="0", step="1"))
    2
    """
    numbers = times.dtype.is_integer()
    # Whatever the zone, the integers count from 1970 in UTC.
    moments = times if numbers else times.cast(pl.Datetime("us", getattr(times.dtype, "time_zone", None)))
    at: NDArray[np.int64] = moments.to_physical().cast(pl.Int64).to_numpy()
    if not at.size:
        return 0
    gaps = np.diff(at)
    length = length_of(grid.step, numbers=numbers) if grid.step is not None else int(gaps[0]) if gaps.size else 1
    wrong = np.flatnonzero(gaps != max(length, 1))
    if wrong.size:
        row = int(wrong[0])
        raise StreamError(f"row {row + 2} of {times.name!r} {_fault(int(gaps[row]), length)}")
    offset = int(at[0]) - (int(at[0]) if grid.origin is None else _position(grid.origin, times.dtype))
    steps, rest = divmod(offset, length)
    if rest or steps < 0:
        where = "before" if steps < 0 else "between two steps counted from"
        raise StreamError(f"row 1 of {times.name!r} lies {where} --origin {grid.origin}")
    if steps % w:
        raise StreamError(f"row 1 of {times.name!r} is step {steps % w} of a period, but must be step 0 of {w}")
    return steps // w


def _fault(gap: int, length: int) -> str:
    if gap == 0:
        return "has the time of the row before"
    if gap < 0:
        return "lies before the row before, but times must increase"
    if gap % length:
        return "is not a whole number of steps after the row before"
    return f"comes {gap // length} steps after the row before, but must come one step after it"


def length_of(step: str, *, numbers: bool) -> int:
    """Return the length of a step in microseconds, or in step numbers."""
    if not re.fullmatch(r"\d{1,9}" if numbers else r"(\d{1,9}(us|ms|s|m|h|d))+", step):
        kind = "a whole number, as the times are" if numbers else "like 30m or 1h30m, of d, h, m, s, ms and us"
        raise ParameterError(f"--step is {step!r}, but must be {kind}")
    length = sum(int(number) * MICROSECONDS[unit] for number, unit in re.findall(r"(\d+)([a-z]*)", step))
    if not length:
        raise ParameterError(f"--step is {step!r}, but must be positive")
    return length


def _position(origin: str, dtype: pl.DataType) -> int:
    """Return the origin in microseconds since 1970, or as a step number."""
    found = moment("--origin", origin)
    if isinstance(found, int) != dtype.is_integer():
        raise ParameterError(f"--origin is {origin!r}, but the times are of another kind: {dtype}")
    if isinstance(found, int):
        return found
    zoned = getattr(dtype, "time_zone", None) is not None
    if zoned != (found.tzinfo is not None):
        must = "must have an offset from UTC, such as +00:00" if zoned else "must have no offset from UTC"
        raise ParameterError(f"--origin is {origin!r}, but {must}, as the times are")
    return (found - datetime(1970, 1, 1, tzinfo=UTC if zoned else None)) // timedelta(microseconds=1)
