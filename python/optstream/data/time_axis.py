"""Steps of time as whole numbers: the axis on which events are gathered."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from optstream.errors import DataError, ParameterError, ParameterTypeError

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Axis", "axis_of"]

LONGEST_STEP = timedelta(days=36_525)
NANOSECONDS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86_400 * 10**9}


class Axis(NamedTuple):
    """The steps of the result, in the integers that stand for times inside polars."""

    dtype: pl.DataType
    origin: int
    length: int
    steps: int

    def number(self, time: str) -> pl.Expr:
        """Return the number of the step of each time, without the difference of far times, which could overflow."""
        import polars as pl  # noqa: PLC0415

        whole, rest = divmod(self.origin, self.length)
        return (pl.col(time).to_physical().cast(pl.Int64) - rest) // self.length - whole

    def between(self, time: str, begin: int, end: int) -> pl.Expr:
        """Return which times lie in steps [begin, end), said of the column itself so that row groups can be skipped."""
        import polars as pl  # noqa: PLC0415

        at, behind = (pl.lit(self.origin + step * self.length, pl.Int64).cast(self.dtype) for step in (begin, end))
        return (pl.col(time) >= at) & (pl.col(time) < behind)

    def times(self) -> pl.Series:
        """Return where every step begins."""
        import polars as pl  # noqa: PLC0415

        behind = self.origin + self.steps * self.length
        return pl.int_range(self.origin, behind, self.length, eager=True).cast(self.dtype)


def axis_of(
    dtype: pl.DataType,
    *,
    step: timedelta | str | None,
    start: datetime | date | int | None,
    stop: datetime | date | int | None,
    first: int | None,
    last: int | None,
) -> Axis:
    """Return the steps from start to stop, or where these are missing from the first to the last event."""
    import polars as pl  # noqa: PLC0415

    length = _length(dtype, step)
    begin, end = (_moment(name, moment, dtype) for name, moment in (("start", start), ("stop", stop)))
    if begin is not None and end is not None and begin >= end:
        raise ParameterError(f"stop is {stop}, but must lie after start = {start}")
    if begin is None and first is not None:
        begin = first // length * length
    if end is None and last is not None and begin is not None:
        end = begin + ((last - begin) // length + 1) * length
    if begin is None or end is None or begin >= end:
        raise DataError("no event lies in the range: give start and stop for a series of zeros")
    if (end - begin) % length:
        raise ParameterError(f"stop is {stop}, but must lie a whole number of steps after the beginning of the first")
    return Axis(pl.Int64() if dtype.is_integer() else dtype, begin, length, (end - begin) // length)


def _length(dtype: pl.DataType, step: timedelta | str | None) -> int:
    """Return the length of a step in units of the column of times."""
    if dtype.is_integer():
        if step is not None:
            raise ParameterError(f"step is {step!r}, but must be None, since time holds step numbers")
        return 1
    if isinstance(step, str) and re.fullmatch(r"(\d{1,9}(us|ms|s|m|h|d))+", step):
        length = sum(int(number) * NANOSECONDS[unit] for number, unit in re.findall(r"(\d+)([a-z]+)", step))
    elif isinstance(step, str):
        raise ParameterError(f"step is {step!r}, but must be like '30m' or '1h30m', with units us, ms, s, m, h, d")
    elif isinstance(step, timedelta):
        length = step // timedelta(microseconds=1) * NANOSECONDS["us"]
    else:
        raise ParameterTypeError(f"step is of type {type(step).__name__}, but must be a timedelta or like '30m'")
    if not 0 < length <= LONGEST_STEP // timedelta(microseconds=1) * NANOSECONDS["us"]:
        raise ParameterError(f"step is {step}, but must be positive and at most {LONGEST_STEP.days} days")
    if length % _unit(dtype):
        raise ParameterError(f"step is {step}, but must be a whole number of units of time, which holds {dtype}")
    return length // _unit(dtype)


def _moment(name: str, moment: datetime | date | int | None, dtype: pl.DataType) -> int | None:
    """Return the integer that stands for a moment in the column of times."""
    if moment is None:
        return None
    wanted = int if dtype.is_integer() else date
    if isinstance(moment, bool) or not isinstance(moment, wanted):
        raise ParameterTypeError(
            f"{name} is of type {type(moment).__name__}, but must be {wanted.__name__}, as time is"
        )
    if isinstance(moment, int):
        number, rest = moment, 0
    else:
        when = moment if isinstance(moment, datetime) else datetime(moment.year, moment.month, moment.day)  # noqa: DTZ001
        zone = UTC if getattr(dtype, "time_zone", None) else None
        if (when.tzinfo is None) != (zone is None):
            raise ParameterError(f"{name} is {moment}, but must have {'a' if zone else 'no'} time zone, as time has")
        since = (when - datetime(1970, 1, 1, tzinfo=zone)) // timedelta(microseconds=1)
        number, rest = divmod(since * NANOSECONDS["us"], _unit(dtype))
    if rest or not -(2**63) <= number < 2**63:
        raise ParameterError(f"{name} is {moment}, but must be a moment that time can hold, which holds {dtype}")
    return number


def _unit(dtype: pl.DataType) -> int:
    """Return the nanoseconds in one unit of a column of dates or datetimes."""
    return NANOSECONDS[getattr(dtype, "time_unit", "d")]
