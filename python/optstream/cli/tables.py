"""Tables in files: CSV and Parquet, told apart by the suffix."""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path
from typing import IO

import polars as pl

from optstream.cli.exits import UsageError
from optstream.data.numbers import LARGEST
from optstream.errors import DataError, ParameterError

__all__ = ["encode", "format_of", "numbers", "read_table", "value_column"]

FORMATS = {".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}
EXACT = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64, pl.Float32, pl.Float64)
"""Types whose numbers are doubles, up to 2^53."""
ISO = "%Y-%m-%dT%H:%M:%S%.f"


def format_of(path: str | Path) -> str:
    """Return ``"csv"`` or ``"parquet"``; standard input and output, and devices, are CSV.

    >>> format_of("loads.parquet"), format_of("-")
    ('parquet', 'csv')
    """
    found = FORMATS.get(Path(path).suffix.lower())
    if found is None and str(path) != "-" and (Path(path).is_file() or not Path(path).exists()):
        raise UsageError(f"{path} has the suffix {Path(path).suffix!r}, but must end in {', '.join(FORMATS)}")
    return found or "csv"


def read_table(source: str, time: str | None) -> pl.DataFrame:
    """Return a table from a path, or from standard input for ``-``. Times of a CSV file stay texts."""
    kind = format_of(source)
    if source == "-":
        return _parse(source, sys.stdin.buffer, kind, time)
    with Path(source).open("rb") as file:
        return _parse(source, file, kind, time)


def _parse(source: str, file: IO[bytes], kind: str, time: str | None) -> pl.DataFrame:
    name = "standard input" if source == "-" else source
    try:
        if kind == "parquet":
            return pl.read_parquet(file)
        texts = {} if time is None else {time: pl.String}
        # Every row counts for the types: a column that is whole numbers at first may hold fractions later.
        return pl.read_csv(file.read(), schema_overrides=texts, infer_schema_length=None)
    except pl.exceptions.PolarsError as error:
        # What polars says may quote the data.
        raise DataError(f"{name} cannot be read as {kind}: polars raised {type(error).__name__}") from None


def value_column(frame: pl.DataFrame, value: str | None, time: str | None) -> str:
    """Return the column to release: the one that is named, else the only one that holds numbers."""
    if value is not None:
        if value not in frame.columns or value == time:
            raise ParameterError(f"--value is {value!r}, but must be a column other than --time: {frame.columns}")
        return value
    numeric = [name for name in frame.columns if name != time and frame.schema[name].is_numeric()]
    if len(numeric) != 1:
        raise ParameterError(f"--value is not given and {len(numeric)} columns hold numbers: choose of {frame.columns}")
    return numeric[0]


def numbers(frame: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
    """Return the columns as floats; refuse what is missing or not finite, by its row, counted from 1."""
    for name in columns:
        if name not in frame.columns:
            raise DataError(f"the input has no column {name!r}, but must have one for every leaf of the hierarchy")
        if frame.schema[name] not in EXACT:
            raise DataError(f"column {name!r} holds {frame.schema[name]}, but must hold numbers of at most 64 bits")
        # Beyond 2^53 integers are rounded, also those that stand among fractions in a text.
        column = frame[name]
        sizes = (column.cast(pl.Int128) if column.dtype.is_integer() else column).abs()
        if (sizes > LARGEST).filter(column.cast(pl.Float64).is_finite()).any():
            raise DataError(f"column {name!r} holds a number beyond 2^53 in size, but must hold none: use another unit")
    chosen = frame.select(pl.col(columns).cast(pl.Float64))
    for series in chosen:
        lost = (~series.is_finite()).fill_null(value=True).arg_true()
        if len(lost):
            raise DataError(f"row {lost[0] + 1} of {series.name!r} is empty or not finite, but must be a number")
    return chosen


def encode(frame: pl.DataFrame, kind: str) -> bytes:
    """Return a table as the bytes of a file; times in CSV are as in ISO 8601."""
    target = BytesIO()
    if kind == "parquet":
        frame.write_parquet(target)
    else:
        iso_times(frame).write_csv(target)
    return target.getvalue()


def iso_times(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the table with its datetimes as texts, with their offset from UTC if they have a zone.

    >>> from datetime import datetime
    >>> iso_times(pl.DataFrame({"at": [datetime(2016, 1, 1, 0, 30)]}))["at"].to_list()
    ['2016-01-01T00:30:00']
    """
    return frame.with_columns(
        pl.col(name).dt.to_string(ISO + ("%:z" if dtype.time_zone else ""))
        for name, dtype in frame.schema.items()
        if isinstance(dtype, pl.Datetime)
    )
