"""Raw events to series: what each entity adds to a step, bounded exactly, and summed.

A release protects an entity only as far as the entity moves a step by at most ``alpha``. Here that bound is enforced
in integers, so that neither rounding nor the order of events, chunks and threads can exceed or change it.
"""

from __future__ import annotations

import math
import os
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import narwhals.stable.v2 as nw
import numpy as np

from optstream import _core
from optstream.data.numbers import LARGEST
from optstream.data.time_axis import axis_of
from optstream.errors import DataError, ParameterError, ParameterTypeError
from optstream.progress import progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import date, datetime, timedelta

    import polars as pl

    from optstream.data.time_axis import Axis

__all__ = ["aggregate"]

# About how many events are grouped at once.
PASS_EVENTS = 10_000_000
# The largest number of values of the result: a mistyped year must not take all memory.
MAX_VALUES = 50_000_000
# The largest size of one event in grid units, and the most events of one entity in one step: sums stay below 2^63.
MAX_UNITS, MAX_EVENTS = 2**40, 2**22
# Rows whose messages are hashed at once.
HASHED_ROWS = 1_000_000
# The largest parameter: arithmetic with it does not overflow.
MAX_NUMBER = 2**1000


def aggregate(
    events: Any,
    *,
    entity: str,
    time: str,
    step: timedelta | str | None = None,
    value: str | None = None,
    alpha: float = 1.0,
    clip: tuple[float, float] | None = None,
    start: datetime | date | int | None = None,
    stop: datetime | date | int | None = None,
    grid: float | None = None,
    group: str | None = None,
    groups: Sequence[str] | None = None,
    max_groups: int | None = None,
    change: Literal["any", "presence"] = "any",
) -> pl.DataFrame:
    """Return the series of raw events: distinct entities per step, or the sum of their clipped values.

    Without ``value`` a step holds the number of distinct entities that have an event in it. With ``value`` it holds the
    sum over entities of ``clip(sum of the entity's values in the step)``. The result is dense: a row for every step
    from ``start`` to before ``stop``, zeros where nothing happened.

    **Guarantee.** Whatever one entity does (adds, removes, moves or changes any of its events), no step moves by more
    than ``alpha``. Every event by itself becomes an integer number of grid units, ``floor(value / grid + 1/2)``, cut
    off at 2^40 in size. An entity's integers of one step are added and clipped to
    ``[l, u] = [ceil(lower / grid), floor(upper / grid)]``, or are absent and count 0. So an entity contributes an
    integer from ``min(l, 0)`` to ``max(u, 0)``, whatever its events are, and a change of its events moves the step's
    sum by at most ``max(u, 0) - min(l, 0)`` units. That is at most ``(max(upper, 0) - min(lower, 0)) / grid``, which is
    required to be at most ``alpha / grid``. All sums are integers up to 2^53, so multiplying by the grid, a power of
    two, is exact. Distinct entities count 0 or 1. With ``group`` alone an entity moves one column, that of its group:
    entities in more than one are refused.

    With ``max_groups = M`` entities may be in many groups, and ``alpha`` bounds a step *over all columns together*: of
    every entity and step the M groups with the smallest hash of entity, step and group are kept, and what is clipped is
    the entity's sum in each of them. What is kept at a step depends on that entity's events of that step alone, so a
    change of an entity's events moves the steps of these events and no other. With contributions of size at most c to
    a group, a step moves in sum by M c if all of an entity's events there appear or disappear
    (``change="presence"``), and by min(2 M, number of groups) c if they become any others (``change="any"``).

    Give ``start``, ``stop`` and ``groups``: where they are taken from the data, the range of the result and the set of
    its columns are not protected. An error that reports on the data tells that there is one, so treat it as private.

    Memory does not grow with the number of events beyond about ten million: larger inputs are read in several passes
    over ranges of time. Parquet that is sorted by time is fastest; a LazyFrame is computed once per pass.

    Args:
        events: The path of a Parquet or CSV file (``.parquet``, ``.pq``, ``.csv``, ``.csv.gz``, ``.tsv``), a polars
            DataFrame or LazyFrame, or a frame of pandas or pyarrow.
        entity: The column that says whose event it is.
        time: The column of datetimes, dates, or whole step numbers. Zoned times are cut into steps in UTC, so a change
            of summer time neither drops nor repeats a step, and are returned in their zone.
        step: The length of a step, such as ``"30m"``, ``"1h30m"`` or a timedelta; None if ``time`` holds step numbers.
        value: The column of numbers to add up; None to count distinct entities.
        alpha: How much one entity may move one step; at least 1 for distinct entities.
        clip: The bounds ``(lower, upper)`` of an entity's sum within one step (and group), by default 0 and as much as
            ``alpha`` allows, which is alpha itself without ``max_groups``. Since an absent entity adds 0,
            ``max(upper, 0) - min(lower, 0)`` must be at most ``alpha``.
        start: Where the first step begins. By default the step of the first event, counted from the Unix epoch.
        stop: Where the last step ends, a whole number of steps after ``start``. By default after the last event.
        grid: The public grid of the values, a power of two; by default :func:`optstream.noise.default_grid`.
        group: The column of groups, such as the leaves of a hierarchy. The result has one column per group.
        groups: The names of all groups, such as ``hierarchy.leaves``. By default those that have an event, in order.
        max_groups: How many groups an entity counts in at one step, if entities may be in several.
        change: What ``alpha`` covers: ``"any"`` change of an entity's events, or its ``"presence"`` in steps alone.
            Where it is presence, whether an activity took place is hidden as the guarantee says, and which of two
            activities it was with twice the epsilon.

    Returns:
        A polars frame: the column ``time`` with the beginning of every step, and ``"count"``, or the column ``value``,
        or one column per group.

    Raises:
        ParameterError: A parameter lies outside its bound, a column does not exist, or polars is not installed.
        ParameterTypeError: A parameter or a column has the wrong type.
        DataError: A column holds nulls, NaN or infinities, an entity belongs to more than one group, or there is no
            event and no range.

    Example:
        >>> import polars as pl
        >>> from datetime import datetime
        >>> meters = pl.DataFrame({
        ...     "home": ["a", "a", "b", "a"],
        ...     "at": [datetime(2016, 1, 1, h, m) for h, m in [(0, 5), (0, 20), (0, 25), (1, 10)]],
        ...     "kwh": [0.5, 9.0, 0.25, 0.75],
        ... })
        >>> day = {"start": datetime(2016, 1, 1), "stop": datetime(2016, 1, 1, 2)}
        >>> aggregate(meters, entity="home", time="at", step="30m", **day)["count"].to_list()
        [2, 0, 1, 0]
        >>> aggregate(meters, entity="home", time="at", step="30m", value="kwh", alpha=2.0, **day)["kwh"].to_list()
        [2.25, 0.0, 0.75, 0.0]
    """
    try:
        import polars as pl  # noqa: PLC0415  (an optional dependency)
    except ImportError:
        raise ParameterError("aggregate needs polars: pip install 'optstream[polars]'") from None

    names = _names({"entity": entity, "time": time, "value": value, "group": group})
    if groups is not None and group is None:
        raise ParameterError("groups are given, but must not be without the column of groups")
    reach = _reach(group, groups, max_groups, change)
    bound = _bound(alpha, clip, grid, reach, counting=value is None)
    frame, schema = _typed(_scan(events, names), names, start)
    rows, first, last = _check(frame, schema, names)
    axis = axis_of(schema[time], step=step, start=start, stop=stop, first=first, last=last)
    columns = (
        [value or "count"] if group is None else _groups(frame, names, schema, groups, rows, settled=max_groups is None)
    )
    if time in columns:
        raise ParameterError(f"time is {time!r}, but must not be the name of another column of the result")
    if axis.steps * len(columns) > MAX_VALUES:
        raise ParameterError(
            f"start, stop and step give too many steps for the columns of the result: at most {MAX_VALUES} values are "
            "allowed"
        )
    if rows * max(-bound.lower, bound.upper) > 2**53:
        raise ParameterError(f"grid is {bound.grid}, but must be coarser: the events may add up to over 2^53 units")

    column = pl.lit(0) if group is None else pl.col(group).cast(pl.String).cast(pl.Enum(columns)).to_physical()
    prepared = frame.select(
        pl.col(time).alias("time"),
        _same(entity, schema).alias("entity"),
        (axis.number(time) * len(columns) + column.cast(pl.Int64)).alias("cell"),
        (pl.lit(1) if value is None else _units(value, bound.grid)).alias("units"),
    )
    cells = np.zeros(axis.steps * len(columns), dtype=np.int64)
    # Bounding holds the pairs of a pass in memory.
    passes = _passes(frame, time, axis, rows, PASS_EVENTS if max_groups is None else -(-PASS_EVENTS // 3))
    for begin, end, part, parts in progress(passes, desc="aggregating", unit="pass"):
        part_of = pl.col("entity").hash(0) % parts == part if parts > 1 else pl.lit(value=True)
        chosen = prepared.filter(axis.between("time", begin, end), part_of)
        if value is None and max_groups is None:
            added = _collect(chosen.group_by("cell").agg(pl.col("entity").n_unique().cast(pl.Int64).alias("units")))
        else:
            pairs = chosen.group_by("cell", "entity").agg(pl.col("units").sum(), pl.len().alias("events"))
            clipped = pl.col("units").clip(bound.lower, bound.upper).sum()
            if max_groups is not None and max_groups < len(columns):
                found = _collect(pairs)
                pairs = found.lazy()
                taken = _surplus(found, columns, max_groups).group_by("cell").agg(clipped)
                cells[taken["cell"].to_numpy()] -= taken["units"].to_numpy()
            added = _collect(pairs.group_by("cell").agg(clipped, pl.col("events").max()))
            # The sums are looked at only if none of them can have overflowed.
            if value is not None and (added["events"] > MAX_EVENTS).any():
                raise DataError(f"entity {entity!r} has an entity with more than {MAX_EVENTS} events in one step")
        cells[added["cell"].to_numpy()] += added["units"].to_numpy()
    table = cells.reshape(axis.steps, len(columns))
    series = table if value is None else table * bound.grid
    return pl.DataFrame({time: axis.times(), **{name: series[:, at] for at, name in enumerate(columns)}})


def _names(roles: dict[str, str | None]) -> dict[str, str]:
    """Return the columns that are given, by what they are for."""
    for role, name in roles.items():
        if not isinstance(name, str) and (name is not None or role in {"entity", "time"}):
            raise ParameterTypeError(f"{role} is of type {type(name).__name__}, but must be the name of a column")
    names = {role: name for role, name in roles.items() if name is not None}
    if len(set(names.values())) < len(names):
        raise ParameterError(f"columns are {names}, but must be different")
    return names


class _Reach(NamedTuple):
    """How many groups one entity moves at a step, and in which way."""

    kept: int
    """Groups that an entity counts in."""
    shared: int
    """Of these, the fewest in which it counts before and after a change: there it moves by the width of the clip."""
    change: str

    def needed(self, lower: Fraction, upper: Fraction) -> Fraction:
        """Return how far a step may move in sum, if an entity adds from lower to upper to a group it counts in."""
        size = max(upper, -lower, Fraction(0))
        if self.change == "presence":
            return self.kept * size
        width = max(upper, Fraction(0)) - min(lower, Fraction(0))
        return self.shared * width + 2 * (self.kept - self.shared) * size


def _reach(group: str | None, groups: Sequence[str] | None, max_groups: int | None, change: str) -> _Reach:
    if change not in ("any", "presence"):
        raise ParameterError(f"change is {change!r}, but must be 'any' or 'presence'")
    if max_groups is None:
        # An entity stays in its group.
        return _Reach(1, 1, change)
    if isinstance(max_groups, bool) or not isinstance(max_groups, int):
        raise ParameterTypeError(f"max_groups is of type {type(max_groups).__name__}, but must be an int")
    if max_groups < 1:
        raise ParameterError(f"max_groups is {max_groups}, but must be at least 1")
    if group is None:
        raise ParameterError(f"max_groups is {max_groups}, but must be None without the column of groups")
    if groups is None:
        # How many groups the data has is not public.
        return _Reach(max_groups, 0, change)
    kept = min(max_groups, max(len(groups), 1))
    return _Reach(kept, max(0, 2 * kept - len(groups)), change)


class _Bound(NamedTuple):
    """What an entity with events in a step and group may add to it, in units of the grid."""

    grid: float
    lower: int
    upper: int


def _bound(
    alpha: float, clip: tuple[float, float] | None, grid: float | None, reach: _Reach, *, counting: bool
) -> _Bound:
    _check_number("alpha", alpha)
    if alpha <= 0:
        raise ParameterError(f"alpha is {alpha}, but must be positive and finite")
    unit = reach.needed(Fraction(0), Fraction(1))
    if counting:
        if clip is not None or grid is not None:
            raise ParameterError("clip or grid is given, but must be None without a value to add up")
        if alpha < unit:
            raise ParameterError(f"alpha is {alpha}, but must be at least {unit} for distinct entities")
        return _Bound(1.0, 0, 1)
    lower, upper = (Fraction(0), Fraction(alpha) / unit) if clip is None else _clip(clip, alpha, reach)
    size = _core.default_grid(float(alpha)) if grid is None else grid
    _check_number("grid", size)
    if not alpha / MAX_UNITS <= size <= alpha or math.frexp(size)[0] != 0.5:  # noqa: PLR2004
        raise ParameterError(f"grid is {grid}, but must be a power of two from alpha / 2^40 to alpha = {alpha}")
    bound = _Bound(float(size), math.ceil(lower / Fraction(size)), math.floor(upper / Fraction(size)))
    if bound.lower > bound.upper:
        raise ParameterError(f"clip is {clip}, but must hold a multiple of grid = {size}")
    return bound


def _clip(clip: tuple[float, float], alpha: float, reach: _Reach) -> tuple[Fraction, Fraction]:
    if not isinstance(clip, tuple) or len(clip) != 2:  # noqa: PLR2004
        raise ParameterTypeError(f"clip is {clip!r}, but must be a tuple (lower, upper)")
    _check_number("clip[0]", clip[0])
    _check_number("clip[1]", clip[1])
    lower, upper = Fraction(clip[0]), Fraction(clip[1])
    if lower >= upper:
        raise ParameterError(f"clip is {clip}, but must be (lower, upper) with lower < upper")
    needed = reach.needed(lower, upper)
    if needed > Fraction(alpha):
        raise ParameterError(f"clip is {clip}, which moves a step by {float(needed)}, more than alpha = {alpha}")
    return lower, upper


def _check_number(name: str, number: Any) -> None:
    if isinstance(number, bool) or not isinstance(number, (int, float, Fraction)):
        raise ParameterTypeError(f"{name} is of type {type(number).__name__}, but must be a real number")
    if not -MAX_NUMBER <= number <= MAX_NUMBER:
        raise ParameterError(f"{name} is {number}, but must be finite, and at most 2^1000 in size")


def _scan(events: Any, names: dict[str, str]) -> pl.LazyFrame:
    """Return the events as a frame that is not read yet."""
    import polars as pl  # noqa: PLC0415

    if isinstance(events, (pl.DataFrame, pl.LazyFrame)):
        return events.lazy()
    if not isinstance(events, (str, os.PathLike)):
        try:
            table = nw.from_native(events, eager_only=True)
        except TypeError:
            raise ParameterTypeError(
                f"events is of type {type(events).__name__}, but must be a path or a frame of polars, pandas or pyarrow"
            ) from None
        present = set(names.values()) <= set(table.columns)
        try:
            read = (table.select(list(names.values())) if present else table.head(0)).to_polars()
        except Exception as error:  # noqa: BLE001  (pandas goes by way of Arrow, whose messages quote cells)
            raise DataError(f"events cannot be read: the conversion raised {type(error).__name__}") from None
        return pl.LazyFrame(read)
    path = os.fspath(events)
    # A file that exists is no pattern, whatever brackets are in its name.
    glob = not Path(path).exists()
    if path.endswith((".parquet", ".pq")):
        return pl.scan_parquet(path, glob=glob)
    if path.endswith((".csv", ".csv.gz", ".tsv")):
        # Names are text even where they look like numbers: "007" is not "7".
        types = {name: pl.Float64 if role == "value" else pl.String for role, name in names.items() if role != "time"}
        comma = "\t" if path.endswith(".tsv") else ","
        return pl.scan_csv(path, separator=comma, schema_overrides=types, try_parse_dates=True, glob=glob)
    raise ParameterError(f"events is {path!r}, but must end in .parquet, .pq, .csv, .csv.gz or .tsv")


@contextmanager
def _reading() -> Iterator[None]:
    """Pass on that polars cannot read the data, but not its message, which may quote the data."""
    import polars as pl  # noqa: PLC0415

    try:
        yield
    except pl.exceptions.PolarsError as error:
        raise DataError(f"events cannot be read: polars raised {type(error).__name__}") from None


def _collect(frame: pl.LazyFrame) -> pl.DataFrame:
    with _reading():
        return frame.collect(engine="streaming")


def _typed(frame: pl.LazyFrame, names: dict[str, str], start: Any) -> tuple[pl.LazyFrame, pl.Schema]:
    """Return the frame and the types of its columns, which a file without rows does not tell."""
    import polars as pl  # noqa: PLC0415

    with _reading():
        schema = frame.collect_schema()
    if start is None or schema.get(names["time"]) not in {pl.String, pl.Null} or not _collect(frame.head(1)).is_empty():
        return frame, schema
    times = pl.Int64() if isinstance(start, int) else pl.Datetime("us", getattr(start, "tzinfo", None) and "UTC")
    types = {"entity": pl.String(), "time": times, "value": pl.Float64(), "group": pl.String()}
    schema = pl.Schema({name: types[role] for role, name in names.items()})
    return pl.LazyFrame(schema=schema), schema


def _check(frame: pl.LazyFrame, schema: pl.Schema, names: dict[str, str]) -> tuple[int, int | None, int | None]:
    """Return the number of events and the first and last time; refuse columns and rows that cannot be used."""
    import polars as pl  # noqa: PLC0415

    integers = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64)
    counts = [pl.len().alias("rows")]
    for role, name in names.items():
        if name not in schema:
            raise ParameterError(f"{role} is {name!r}, but must be a column of events: {', '.join(schema)}")
        column, dtype = pl.col(name), schema[name]
        wanted, fits = "names or numbers", not dtype.is_nested() and dtype != pl.Object
        if role == "time":
            steps = dtype in integers and dtype != pl.UInt64
            wanted, fits = "datetimes, dates or integers of at most 63 bits", steps or dtype in (pl.Date, pl.Datetime)
            ends = {"first": column.min(), "last": column.max()}
            counts.extend(end.to_physical().cast(pl.Int64).alias(key) for key, end in ends.items())
        elif role == "value":
            wanted, fits = "numbers of at most 64 bits", dtype.is_float() or dtype in integers
            counts.append(column.cast(pl.Float64).is_infinite().sum().alias("infinite"))
            large = (
                column.is_between(-LARGEST, LARGEST).not_() if dtype in (pl.Int64, pl.UInt64) else pl.lit(value=False)
            )
            counts.append(large.any().alias("large"))
        if not fits:
            raise ParameterTypeError(f"{role} {name!r} holds {dtype}, but must hold {wanted}")
        lost = column.is_null() | column.is_nan() if dtype.is_float() else column.is_null()
        counts.append(lost.sum().alias(role))
    found = _collect(frame.select(counts)).row(0, named=True)
    for role, name in names.items():
        if found[role]:
            raise DataError(f"{role} {name!r} is null or NaN in some rows, but must be known in all")
    if found.get("infinite"):
        raise DataError(f"value {names['value']!r} is infinite in some rows, but must be finite in all")
    if found.get("large"):
        raise DataError(
            f"value {names['value']!r} holds integers beyond 2^53, which a double would round: cast it first"
        )
    return found["rows"], found["first"], found["last"]


def _same(entity: str, schema: pl.Schema) -> pl.Expr:
    """Return the column of entities. They are grouped by themselves: two that share a hash would move twice as much."""
    import polars as pl  # noqa: PLC0415

    column = pl.col(entity)
    # -0.0 equals 0.0 but has another hash, which decides about passes.
    return (
        pl.when(column == 0).then(0.0).otherwise(column).cast(schema[entity]) if schema[entity].is_float() else column
    )


def _groups(
    frame: pl.LazyFrame,
    columns: dict[str, str],
    schema: pl.Schema,
    groups: Sequence[str] | None,
    rows: int,
    *,
    settled: bool,
) -> list[str]:
    """Return the names of the groups; if entities are settled, refuse those that belong to more than one."""
    import polars as pl  # noqa: PLC0415

    entity, group = columns["entity"], columns["group"]
    named = frame.select(_same(entity, schema).alias("entity"), pl.col(group).cast(pl.String).alias("group"))
    found = sorted(_collect(named.select(pl.col("group").unique()))["group"].to_list())
    names = found if groups is None else [str(name) for name in groups]
    if not names:
        raise DataError(f"group {group!r} has no groups, but must have at least one")
    if len(set(names)) < len(names):
        raise ParameterError("groups hold a name twice, but each must be there once")
    if not set(found) <= set(names):
        raise DataError(f"group {group!r} holds groups that are not among the {len(names)} given ones")
    if not settled:
        return names
    number = pl.col("group").cast(pl.Enum(names)).to_physical()
    parts = -(-rows // PASS_EVENTS)
    for part in progress(range(parts), desc="checking groups", unit="pass"):
        chosen = named.filter(pl.col("entity").hash(0) % parts == part) if parts > 1 else named
        mixed = chosen.group_by("entity").agg(mixed=number.min() != number.max())
        if _collect(mixed.select(pl.col("mixed").any())).item():
            raise DataError(
                f"group {group!r} has entities in more than one group, but each must be in one: give max_groups to "
                "bound in how many an entity counts at a step, and an alpha for all of them together"
            )
    return names


def _surplus(pairs: pl.DataFrame, columns: list[str], most: int) -> pl.DataFrame:
    """Return the rows that do not count: of an entity and step all but those of the smallest hashes."""
    import polars as pl  # noqa: PLC0415

    stepped = pairs.lazy().with_columns((pl.col("cell") // len(columns)).alias("step"))
    crowded = _collect(stepped.group_by("step", "entity").len().filter(pl.col("len") > most)).drop("len")
    crowded = crowded.with_row_index("crowd")
    rivals = _collect(stepped.join(crowded.lazy(), on=["step", "entity"], how="inner"))
    if rivals.is_empty():
        return rivals
    group = (pl.col("cell") % len(columns)).cast(pl.UInt32)
    order = rivals.select("crowd", _hashes(rivals, pl.Series(columns), group), "cell", row=pl.int_range(pl.len()))
    order = order.sort("crowd", "hash", "cell")
    crowd = order["crowd"].to_numpy()
    starts = np.flatnonzero(np.diff(crowd, prepend=crowd[0] + np.uint32(1)))
    ranks = np.arange(crowd.size) - np.repeat(starts, np.diff(starts, append=crowd.size))
    return rivals[order["row"].to_numpy()[ranks >= most]]


def _hashes(rivals: pl.DataFrame, names: pl.Series, group: pl.Expr) -> pl.Series:
    """Return a hash of entity, step and group for every row.

    The messages are told apart by the length of the entity's name, and no key is secret: any function of the three
    keeps the guarantee, and this one prefers no group.
    """
    import polars as pl  # noqa: PLC0415

    found = []
    for rows in rivals.iter_slices(HASHED_ROWS):
        text = rows.select(
            pl.format(
                "{}:{}:{}:{}",
                pl.col("entity").cast(pl.String).str.len_bytes(),
                pl.col("entity").cast(pl.String),
                pl.col("step"),
                names.gather(rows.select(group).to_series()),
            )
        ).to_series()
        lengths = text.str.len_bytes().cast(pl.UInt64).to_numpy()
        found.append(_core.choice_hashes(text.str.join("").item(), lengths))
    return pl.Series("hash", np.concatenate(found))


def _units(value: str, grid: float) -> pl.Expr:
    """Return ``floor(x / grid + 1/2)`` of every value, exactly, and at most 2^40 in size.

    Division by a power of two is exact. Adding 1/2 is not, so the fraction is compared with it: the fraction is exact,
    except for small negative numbers, where it is rounded but not across 1/2.
    """
    import polars as pl  # noqa: PLC0415

    scaled = (pl.col(value).cast(pl.Float64) / grid).clip(-float(MAX_UNITS), float(MAX_UNITS))
    return scaled.floor().cast(pl.Int64) + (scaled - scaled.floor() >= 0.5).cast(pl.Int64)  # noqa: PLR2004


def _passes(frame: pl.LazyFrame, time: str, axis: Axis, rows: int, at_once: int) -> list[tuple[int, int, int, int]]:
    """Return (begin, end, part, parts): ranges of steps, and parts of the entities where a range is too full.

    Each event of the range is in one pass, and an entity's events of one step are all in the same.
    """
    import polars as pl  # noqa: PLC0415

    if rows <= at_once:
        return [(0, axis.steps, 0, 1)]
    width = -(-axis.steps // 2**16)
    counts = np.zeros(-(-axis.steps // width), dtype=np.int64)
    slots = frame.filter(axis.between(time, 0, axis.steps)).select(slot=axis.number(time) // width)
    counted = _collect(slots.group_by("slot").agg(pl.len()))
    counts[counted["slot"].to_numpy()] = counted["len"].to_numpy()
    ranges: list[tuple[int, int, int]] = []
    for slot, count in enumerate(counts.tolist()):
        if ranges and ranges[-1][2] + count <= at_once:
            ranges[-1] = (ranges[-1][0], slot + 1, ranges[-1][2] + count)
        else:
            ranges.append((slot, slot + 1, count))
    return [
        (begin * width, min(end * width, axis.steps), part, parts)
        for begin, end, count in ranges
        for parts in [max(1, -(-count // at_once))]
        for part in range(parts)
    ]
