"""Raw events in Spark to series, equal bit for bit to :func:`optstream.aggregate`.

Everything that decides is an integer: steps, units of the grid, what an entity adds, sums. Integers do not depend on
the order in which partitions, retries and speculation add them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812  (as everybody calls it)
from pyspark.sql import types as T  # noqa: N812

from optstream import _core
from optstream.data.events import MAX_EVENTS, MAX_UNITS, _bound, _names, _reach
from optstream.data.numbers import LARGEST
from optstream.data.time_axis import axis_of
from optstream.errors import DataError, ParameterError, ParameterTypeError
from optstream.spark.failures import refused, translated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import date, datetime, timedelta

    from pyspark.sql import Column, DataFrame, SparkSession

    from optstream.data.events import _Bound
    from optstream.data.time_axis import Axis

__all__ = ["ALONE", "aggregate", "checked_columns", "quoted", "units_of"]

ALONE = "stream"
"""The name of the one stream of events without groups."""
WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
NESTED = (T.ArrayType, T.MapType, T.StructType, T.VariantType)


def aggregate(
    events: DataFrame,
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
) -> DataFrame:
    """Return the series of raw events in Spark: a row for every stream and step, zeros where nothing happened.

    The sums are those of :func:`optstream.aggregate`, bit for bit, and have its guarantee: whatever one entity does,
    no step moves by more than ``alpha``. Nulls, NaN, infinities and names that are not among ``groups`` fail the job
    that reads the result, so that a release of it charges nothing. Such a failure tells about the data: treat it as
    private.

    Args:
        events: A DataFrame of Spark. Without ``start``, ``stop`` or ``groups``, and for groups of which each entity
            must be in one, it is read once more.
        entity: The column that says whose event it is.
        time: The column of timestamps, dates, or whole step numbers. The time zone of the session must be UTC.
        step: The length of a step, such as ``"30m"``; None if ``time`` holds step numbers.
        value: The column of numbers to add up; None to count distinct entities.
        alpha: How much one entity may move one step; over all groups together if there are ``max_groups``.
        clip: The bounds of an entity's sum within one step and group.
        start: Where the first step begins; by default that of the first event.
        stop: Where the last step ends; by default after the last event.
        grid: The public grid of the values, a power of two.
        group: The column of groups, whose names are those of the streams.
        groups: The names of all groups; by default those that have an event, which is not protected.
        max_groups: How many groups an entity counts in at one step, if entities may be in several.
        change: What ``alpha`` covers: ``"any"`` change of an entity's events, or its ``"presence"``.

    Returns:
        The columns ``stream``, ``step`` (from 0), ``time`` (the beginning of the step) and ``sum``. Without groups
        there is one stream, named "stream".

    Raises:
        ParameterError: A parameter lies outside its bound, a column does not exist, or the session is not in UTC.
        ParameterTypeError: A parameter or a column has the wrong type.
        DataError: An entity belongs to more than one group, or there is no event and no range.
    """
    names = _names({"entity": entity, "time": time, "value": value, "group": group})
    if groups is not None and group is None:
        raise ParameterError("groups are given, but must not be without the column of groups")
    if groups is not None and (isinstance(groups, str) or not isinstance(groups, Sequence)):
        raise ParameterTypeError(f"groups is of type {type(groups).__name__}, but must be a sequence of names")
    reach = _reach(group, groups, max_groups, change)
    bound = _bound(alpha, clip, grid, reach, counting=value is None)
    spark, dtype = events.sparkSession, checked_columns(events, names, whole=max_groups is not None)
    first, last = (None, None) if start is not None and stop is not None else _ends(events, time)
    axis = axis_of(dtype, step=step, start=start, stop=stop, first=first, last=last)
    listed = [ALONE] if group is None else _groups(events, entity, group, groups, settled=max_groups is None)

    at = _number(events, time)
    inside = F.expr(f"{at} >= {axis.origin}L AND {at} <= {axis.origin + axis.steps * axis.length - 1}L")
    known = [_known(events, name, role) for role, name in names.items()]
    prepared = events.where(_demanded(known, inside)).select(
        (F.lit(ALONE) if group is None else F.col(quoted(group)).cast("string")).alias("stream"),
        # Not negative, so that it does not matter that division truncates.
        F.expr(f"({at} - {axis.origin}L) div {axis.length}L").alias("step"),
        F.col(quoted(entity)).alias("entity"),
        (F.lit(1).cast("bigint") if value is None else units_of(value, bound.grid)).alias("units"),
    )
    pairs = prepared.groupBy("stream", "step", "entity").agg(
        F.sum("units").alias("units"), F.count("*").alias("events")
    )
    clipped = F.greatest(F.least(F.col("units"), F.lit(bound.upper)), F.lit(bound.lower)).cast("bigint")
    if value is not None:
        many = refused(f"entity {entity!r} has an entity with more than {MAX_EVENTS} events in one step")
        clipped = F.when(F.col("events") > MAX_EVENTS, many.cast("bigint")).otherwise(clipped)
    added = pairs.select("stream", "step", "entity", clipped.alias("units"))
    if max_groups is not None and max_groups < len(listed):
        added = _bounded(spark, added, listed, max_groups)
    return _dense(
        spark,
        added.select("stream", "step", "units"),
        listed,
        axis=axis,
        bound=bound,
        times=_times(events, time),
        counting=value is None,
    )


def quoted(name: str) -> str:
    """Return a column's name as Spark reads it, whatever dots are in it."""
    return f"`{name.replace('`', '``')}`"


def checked_columns(events: DataFrame, names: dict[str, str], *, whole: bool) -> pl.DataType:
    """Return the type of times; refuse columns that cannot be used."""
    schema = {field.name: field.dataType for field in events.schema.fields}
    found: pl.DataType = pl.Int64()
    for role, name in names.items():
        if name not in schema:
            raise ParameterError(f"{role} is {name!r}, but must be a column of events: {', '.join(schema)}")
        kind = schema[name]
        fits, wanted = not isinstance(kind, NESTED), "names or numbers"
        if role == "time":
            fits, wanted = (
                isinstance(kind, (T.TimestampType, T.TimestampNTZType, T.DateType, *WHOLE)),
                ("timestamps, dates or integers"),
            )
            if isinstance(kind, (T.TimestampType, T.TimestampNTZType)):
                found = pl.Datetime("us", "UTC" if isinstance(kind, T.TimestampType) else None)
            elif isinstance(kind, T.DateType):
                found = pl.Date()
        elif role == "value":
            fits, wanted = isinstance(kind, (T.FloatType, T.DoubleType, *WHOLE)), "numbers of at most 64 bits"
        elif role == "group" or whole:
            # Texts of other types are not the same in Spark as elsewhere.
            fits, wanted = isinstance(kind, (T.StringType, *WHOLE)), "names or integers"
        if not fits:
            raise ParameterTypeError(f"{role} {name!r} holds {kind.simpleString()}, but must hold {wanted}")
    zone = events.sparkSession.conf.get("spark.sql.session.timeZone")
    if not isinstance(found, pl.Int64) and zone not in {"UTC", "Etc/UTC", "GMT", "Z"}:
        raise ParameterError(f"spark.sql.session.timeZone is {zone!r}, but must be 'UTC'")
    return found


def _known(events: DataFrame, name: str, role: str) -> tuple[Column, str]:
    """Return whether a column is known, and what to say where it is not."""
    column, kind = F.col(quoted(name)), events.schema[name].dataType
    lost, said = column.isNull(), f"{role} {name!r} is null or NaN in some rows, but must be known in all"
    if isinstance(kind, (T.FloatType, T.DoubleType)):
        lost = lost | F.isnan(column)
        if role == "value":
            lost = lost | (F.abs(column) == float("inf"))
            said = f"value {name!r} is null, NaN or infinite in some rows, but must be finite in all"
    if role == "value" and isinstance(kind, T.LongType):
        lost = lost | ~column.between(-LARGEST, LARGEST)
        said = f"value {name!r} is null or beyond 2^53 in some rows, which a double would round: cast it first"
    return lost, said


def _demanded(known: Iterable[tuple[Column, str]], inside: Column) -> Column:
    """Return which rows are inside the range, after failing at one that is not known."""
    found = inside
    for lost, said in known:
        found = F.when(lost, refused(said).cast("boolean")).otherwise(found)
    return found


def _number(events: DataFrame, time: str) -> str:
    """Return the whole number that stands for a time: microseconds, days or steps."""
    kind, column = events.schema[time].dataType, quoted(time)
    if isinstance(kind, T.TimestampType):
        return f"unix_micros({column})"
    if isinstance(kind, T.TimestampNTZType):
        # The session is in UTC, so that no hour is missing or twice.
        return f"unix_micros(cast({column} AS timestamp))"
    return f"cast(unix_date({column}) AS bigint)" if isinstance(kind, T.DateType) else f"cast({column} AS bigint)"


def _times(events: DataFrame, time: str) -> str:
    """Return how such a number becomes a time again."""
    kind = events.schema[time].dataType
    if isinstance(kind, T.TimestampType):
        return "timestamp_micros({})"
    if isinstance(kind, T.TimestampNTZType):
        return "cast(timestamp_micros({}) AS timestamp_ntz)"
    return "date_from_unix_date(cast({} AS int))" if isinstance(kind, T.DateType) else "{}"


def _ends(events: DataFrame, time: str) -> tuple[int | None, int | None]:
    at = F.expr(_number(events, time))
    with translated("reading the first and last time"):
        first, last = events.agg(F.min(at), F.max(at)).collect()[0]
    return first, last


def units_of(value: str, grid: float) -> Column:
    """Return ``floor(x / grid + 1/2)`` of every value, exactly, and at most 2^40 in size.

    The fraction is compared with 1/2 instead of adding it, which could round: see :func:`optstream.aggregate`.
    """
    scaled = F.col(quoted(value)).cast("double") / F.lit(grid)
    cut = F.greatest(F.least(scaled, F.lit(float(MAX_UNITS))), F.lit(-float(MAX_UNITS)))
    whole = F.floor(cut)
    return whole + F.when(cut - whole.cast("double") >= 0.5, 1).otherwise(0).cast("bigint")  # noqa: PLR2004


def _groups(events: DataFrame, entity: str, group: str, groups: Sequence[str] | None, *, settled: bool) -> list[str]:
    """Return the names of the groups; if entities are settled, refuse those that belong to more than one."""
    named = events.select(F.col(quoted(entity)).alias("entity"), F.col(quoted(group)).cast("string").alias("group"))
    if groups is None:
        with translated("reading the names of groups"):
            found = [row[0] for row in named.select("group").distinct().collect()]
        if None in found:
            raise DataError(f"group {group!r} is null or NaN in some rows, but must be known in all")
        names = sorted(found)
    else:
        names = [str(name) for name in groups]
    if not names:
        raise DataError(f"group {group!r} has no groups, but must have at least one")
    if len(set(names)) < len(names):
        raise ParameterError("groups hold a name twice, but each must be there once")
    if settled:
        ends = named.groupBy("entity").agg(F.min("group").alias("low"), F.max("group").alias("high"))
        with translated("checking the groups of entities"):
            mixed = ends.where("low <> high").limit(1).count()
        if mixed:
            raise DataError(
                f"group {group!r} has entities in more than one group, but each must be in one: give max_groups to "
                "bound in how many an entity counts at a step, and an alpha for all of them together"
            )
    return names


def _bounded(spark: SparkSession, added: DataFrame, names: list[str], most: int) -> DataFrame:
    """Return what counts: of an entity and step the groups of the smallest hashes, ties by the order of the groups."""
    parts = F.collect_list(F.struct("stream", "units")).alias("parts")
    crowds = added.groupBy("step", "entity").agg(parts)
    few = crowds.where(F.size("parts") <= most).select("step", F.explode("parts").alias("part"))
    many = crowds.where(F.size("parts") > most).select(F.col("entity").cast("string"), "step", "parts")
    order = spark.sparkContext.broadcast({name: number for number, name in enumerate(names)})
    kept = many.mapInArrow(_choice(order, most), "stream string, step bigint, units bigint")
    return few.select("part.stream", "step", "part.units").unionByName(kept)


def _choice(order: Any, most: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what chooses among the groups of an entity and step, by the hash of :func:`optstream.aggregate`."""

    def choose(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            parts = batch.column("parts")
            if not len(parts):
                continue
            rows = pc.list_parent_indices(parts).to_numpy()
            streams, units = (pc.list_flatten(parts).field(at) for at in (0, 1))
            entities, steps = (batch.column(name).take(pa.array(rows)) for name in ("entity", "step"))
            named = list(zip(entities.to_pylist(), steps.to_pylist(), streams.to_pylist(), strict=True))
            texts = [f"{len(who.encode())}:{who}:{step}:{where}".encode() for who, step, where in named]
            lengths = np.array([len(text) for text in texts], dtype=np.uint64)
            hashes = _core.choice_hashes(b"".join(texts).decode(), lengths)
            numbers = np.array([order.value.get(where, -1) for _, _, where in named])
            sort = np.lexsort((numbers, hashes, rows))
            sorted_rows = rows[sort]
            starts = np.flatnonzero(np.diff(sorted_rows, prepend=-1))
            ranks = np.arange(len(sort)) - np.repeat(starts, np.diff(starts, append=len(sort)))
            chosen = pa.array(np.sort(sort[ranks < most]))
            columns = [streams.take(chosen), steps.take(chosen), units.take(chosen)]
            yield pa.RecordBatch.from_arrays(columns, names=["stream", "step", "units"])

    return choose


def _dense(
    spark: SparkSession, added: DataFrame, names: list[str], *, axis: Axis, bound: _Bound, times: str, counting: bool
) -> DataFrame:
    """Return a row for every name and step: what was added, or zero."""
    listed = spark.createDataFrame(pa.table({"stream": pa.array(names, pa.string())}))
    steps = spark.range(axis.steps).withColumnRenamed("id", "step")
    nothing = listed.crossJoin(steps).select(
        "stream", "step", F.lit(0).cast("bigint").alias("units"), F.lit(1).alias("on")
    )
    together = added.select("stream", "step", "units", F.lit(0).alias("on")).unionByName(nothing)
    sums = together.groupBy("stream", "step").agg(F.sum("units").alias("units"), F.max("on").alias("on"))
    unknown = refused(f"group holds groups that are not among the {len(names)} given ones").cast("bigint")
    large = refused(f"grid is {bound.grid}, but must be coarser: the events add up to over 2^53 units").cast("bigint")
    units = F.when(F.col("on") == 0, unknown).when(F.abs("units") > 2**53, large).otherwise(F.col("units"))
    return sums.select(
        "stream",
        "step",
        F.expr(times.format(f"({axis.origin}L + step * {axis.length}L)")).alias("time"),
        (units if counting else units.cast("double") * F.lit(bound.grid)).alias("sum"),
    )
