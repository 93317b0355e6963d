"""The streams of the evaluation, read from a folder."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

from optstream.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

__all__ = ["DAYS", "LOADS", "MONTHS", "REGION", "Folder", "Load", "Stream"]

DAYS = {
    "rte_regional_load_2016": 48,
    "nyc_taxi_30min": 48,
    "melbourne_pedestrian_hourly": 24,
    "tweets_30min": 48,
    "tweets_5min": 288,
}
"""The files of streams, with the steps of a day."""
LOADS = "rte_regional_load_2016"
BEFORE = {LOADS: "rte_regional_load_2015"}
"""Public history, right before the streams of a file."""
NATION = "france_rte"
"""The published sum of the regions, rounded by itself: a stream, but not the root of the hierarchy."""
REGION = "auvergne_rhone_alpes"
MONTHS = {"January": "01", "February": "02", "June": "06", "October": "10"}
QUICK_DAYS = 28


@dataclass(frozen=True, repr=False)
class Stream:
    """A series of whole days."""

    name: str
    w: int
    x: Array
    history: Array | None

    @property
    def upper(self) -> float:
        """A round bound above everything, as one would guess it: 1, 2 or 5 times a power of ten."""
        largest = max(1.2 * float(self.x.max()), 1.0)
        unit = 10.0 ** np.floor(np.log10(largest))
        return float(next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= largest))

    def shortened(self) -> Stream:
        """Return the first four weeks, after the last four of its history."""
        history = None if self.history is None else self.history[-QUICK_DAYS * self.w :]
        return replace(self, x=self.x[: QUICK_DAYS * self.w], history=history)


@dataclass(frozen=True, repr=False)
class Load:
    """The loads of all regions in one year, half hour by half hour."""

    months: tuple[str, ...]
    regions: dict[str, Array]
    source: str

    @property
    def region(self) -> Array:
        """The region that the paper looks at more closely."""
        if REGION not in self.regions:
            raise DataError(f"{self.source} has no column {REGION!r}, but must have it")
        return self.regions[REGION]

    def days(self, month: str) -> slice:
        """Return the steps of a month.

        Raises:
            DataError: The data does not reach that far.
        """
        steps = [step for step, number in enumerate(self.months) if number == MONTHS[month]]
        if not steps:
            raise DataError(f"{self.source} has no {month}, but must have January, February, June and October")
        return slice(steps[0], steps[-1] + 1)

    def all_regions(self, month: str) -> Array:
        """Return a month of all regions, one region after the other.

        A mechanism that treats every day by itself has on it the mean of its errors on the regions.
        """
        return np.concatenate([x[self.days(month)] for x in self.regions.values()])

    def before(self, month: str, days: int, w: int) -> Array:
        """Return a month of the region that is looked at, with so many days before it.

        Raises:
            DataError: There are not so many days before it.
        """
        found = self.days(month)
        first = found.start - days * w
        if first < 0:
            raise DataError(f"{self.source} has no {days} days before {month}, but must have them for forecasts")
        return self.region[first : found.stop]


@dataclass(frozen=True)
class Folder:
    """A folder with the files of the evaluation: ``NAME.csv.gz``, a column ``timestamp`` and one for every stream.

    Args:
        path: Where it is.
        read: Whether any file is read; a folder that nothing is read from need not exist.

    Raises:
        DataError: The folder, a file or a column is missing, or a file does not hold whole days of numbers.
    """

    path: Path
    read: bool = True
    _read: dict[str, tuple[tuple[str, ...], dict[str, Array]]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.read:
            return
        if not self.path.is_dir():
            raise DataError(f"the data folder {self.path} is missing; give one that holds {', '.join(_wanted())}")
        missing = [name for name in _wanted() if not (self.path / name).is_file()]
        if missing:
            raise DataError(f"the data folder {self.path} lacks {', '.join(missing)}")

    def digest(self) -> str:
        """Return a digest of all files that are read."""
        names = _wanted() if self.read else ()
        return sha256(b"".join(sha256((self.path / name).read_bytes()).digest() for name in names)).hexdigest()

    def columns(self, name: str) -> tuple[tuple[str, ...], dict[str, Array]]:
        """Return the times and the columns of a file."""
        if name not in self._read:
            self._read[name] = _read(self.path / f"{name}.csv.gz", DAYS.get(name, 48))
        return self._read[name]

    @cached_property
    def load(self) -> Load:
        """The loads of the paper's evaluation."""
        times, columns = self.columns(LOADS)
        regions = {name: x for name, x in columns.items() if name != NATION}
        return Load(tuple(time[5:7] for time in times), regions, str(self.path / f"{LOADS}.csv.gz"))

    def streams(self) -> list[Stream]:
        """Return all streams of the folder; the total of a file that has none is one too."""
        found = []
        for name, w in DAYS.items():
            columns = dict(self.columns(name)[1])
            history = self.columns(BEFORE[name])[1] if name in BEFORE else {}
            if len(columns) > 1 and name not in BEFORE:
                columns["total"] = np.sum(list(columns.values()), axis=0)
            found += [Stream(f"{name}/{column}", w, x, history.get(column)) for column, x in columns.items()]
        return found


def _wanted() -> list[str]:
    return [f"{name}.csv.gz" for name in (*DAYS, *BEFORE.values())]


def _read(path: Path, w: int) -> tuple[tuple[str, ...], dict[str, Array]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            names, *rows = csv.reader(file)
        values = np.array([row[1:] for row in rows], dtype=float)
    except (ValueError, EOFError, gzip.BadGzipFile, csv.Error) as error:
        raise DataError(f"{path} is no table of numbers: {error}") from None
    if names[:1] != ["timestamp"] or values.ndim != 2 or values.shape[1] != len(names) - 1:  # noqa: PLR2004
        raise DataError(f"{path} must have a column 'timestamp' first, then one of numbers for every stream")
    if len(rows) % w or not np.isfinite(values).all():
        raise DataError(f"{path} has {len(rows)} rows, but must have whole days of {w}, all of them finite")
    return tuple(row[0] for row in rows), {name: values[:, index].copy() for index, name in enumerate(names[1:])}
