"""Streams in Spark that never end: closed steps leave the state, and are charged before anything of them is visible."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from optstream.data.events import MAX_EVENTS, _bound, _names, _reach
from optstream.data.time_axis import axis_of
from optstream.errors import ParameterError, ParameterTypeError
from optstream.ledger import Ledger
from optstream.mechanism.optstream import OptStream
from optstream.spark.events import ALONE, checked_columns, quoted, units_of
from optstream.spark.failures import refusal
from optstream.stream.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime, timedelta
    from pathlib import Path

    from pyspark.sql import DataFrame

    from optstream.data.events import _Bound
    from optstream.data.time_axis import Axis

__all__ = ["closed_steps", "foreach_batch"]

ROWS = "stream string, step bigint, time timestamp, sum double"
STATE = "next bigint, open string"
Open = dict[str, dict[str, list[int]]]
"""Of every open step what every entity has added, and how many events it had."""


def closed_steps(
    events: DataFrame,
    *,
    entity: str,
    time: str,
    step: timedelta | str,
    origin: datetime,
    w: int,
    delay: str = "0 seconds",
    value: str | None = None,
    alpha: float = 1.0,
    clip: tuple[float, float] | None = None,
    grid: float | None = None,
    group: str | None = None,
) -> DataFrame:
    """Return the steps of a streaming DataFrame of raw events as they close, a row for every stream and step.

    A step closes when the watermark has passed its end. The sums are those of :func:`optstream.aggregate`, of all
    events that have come until then; later ones are dropped, and so are events from the future. A stream begins with
    the first step of the period of its first event, and from then on has every step, zeros where nothing happened.

    The state of Spark, and so its checkpoint, holds raw events of the steps that are open: what every entity has done.
    Keep it as the data is kept. Which events are late is taken to be public: the watermark follows the latest event, so
    give a ``delay`` that covers how late events are. Which streams there are is public too.

    Args:
        events: A streaming DataFrame. The time zone of the session must be UTC.
        entity: The column that says whose event it is, of names or integers.
        time: The column of timestamps.
        step: The length of a step, such as ``"30m"``.
        origin: Where step 0 begins, with a time zone.
        w: The steps of a period.
        delay: How late events may be, as Spark writes intervals, such as ``"10 minutes"``.
        value: The column of numbers to add up; None to count distinct entities.
        alpha: How much one entity may move one step.
        clip: The bounds of an entity's sum within one step.
        grid: The public grid of the values, a power of two.
        group: The column of streams, of which each entity must be in one; nothing checks that here.

    Returns:
        The columns ``stream``, ``step`` (counted from the origin), ``time`` and ``sum``.
    """
    names = _names({"entity": entity, "time": time, "value": value, "group": group})
    bound = _bound(alpha, clip, grid, _reach(group, None, None, "any"), counting=value is None)
    dtype = checked_columns(events, names, whole=True)
    if not isinstance(events.schema[time].dataType, T.TimestampType):
        raise ParameterTypeError(f"time {time!r} holds other times, but must hold timestamps")
    if not isinstance(w, int) or isinstance(w, bool) or w < 1:
        raise ParameterError(f"w is {w!r}, but must be a positive int")
    axis = axis_of(dtype, step=step, start=origin, stop=None, first=None, last=2**62)
    at = f"unix_micros({quoted(time)})"
    prepared = events.where(F.col(quoted(time)) <= F.current_timestamp()).withWatermark(time, delay)
    return (
        prepared.where(F.expr(f"{at} >= {axis.origin}L"))
        .select(
            (F.lit(ALONE) if group is None else F.col(quoted(group)).cast("string")).alias("stream"),
            F.expr(f"({at} - {axis.origin}L) div {axis.length}L").alias("step"),
            F.col(quoted(entity)).cast("string").alias("entity"),
            (F.lit(1).cast("bigint") if value is None else units_of(value, bound.grid)).alias("units"),
            quoted(time),
        )
        .groupBy("stream")
        .applyInPandasWithState(_closing(axis, bound, w), ROWS, STATE, "append", "EventTimeTimeout")
    )


def _closing(  # noqa: C901  (three short functions around the same numbers)
    axis: Axis, bound: _Bound, w: int
) -> Callable[[tuple[str], Iterable[Any], Any], Iterator[Any]]:
    """Return what takes the events of a stream and lets closed steps go."""
    first, length, lower, upper, size = axis.origin, axis.length, bound.lower, bound.upper, bound.grid

    def take(opened: Open, following: int | None, batches: Iterable[Any]) -> int | None:
        for batch in batches:
            for number, who, units in zip(batch["step"], batch["entity"], batch["units"], strict=True):
                if following is None:
                    following = int(number) // w * w
                if number < following:
                    # Late, or before the stream began: its period is charged, or will not be.
                    continue
                own = opened.setdefault(str(number), {}).setdefault(who, [0, 0])
                own[0] += int(units)
                own[1] += 1
                if own[1] > MAX_EVENTS:
                    raise RuntimeError(refusal(f"an entity has more than {MAX_EVENTS} events in one step"))
        return following

    def added(step: dict[str, list[int]]) -> int:
        total = sum(min(max(units, lower), upper) for units, _ in step.values())
        if abs(total) > 2**53:
            raise RuntimeError(refusal(f"grid is {size}, but must be coarser: a step adds up to over 2^53 units"))
        return total

    def close(key: tuple[str], batches: Iterable[Any], state: Any) -> Iterator[Any]:
        import pandas as pd  # noqa: PLC0415  (needed by Spark itself)

        following, text = state.get if state.exists else (None, "{}")
        opened: Open = json.loads(text)
        following = take(opened, following, batches)
        if following is None:
            return
        watermark = state.getCurrentWatermarkMs() * 1000
        rows = []
        while first + (following + 1) * length <= watermark:
            total = added(opened.pop(str(following), {}))
            begin = pd.Timestamp(first + following * length, unit="us")
            rows.append((key[0], following, begin, total * size))
            following += 1
        state.update((following, json.dumps(opened)))
        # Milliseconds, and later than the watermark.
        state.setTimeoutTimestamp(max(-(-(first + (following + 1) * length) // 1000) - 1, watermark // 1000 + 1))
        yield pd.DataFrame(rows, columns=["stream", "step", "time", "sum"])

    return close


def foreach_batch(  # noqa: C901  (one check for each parameter)
    mechanism: OptStream,
    *,
    ledger: Ledger,
    target: str | Path,
    emit: Literal["period", "step"] = "period",
) -> Callable[[DataFrame, int], None]:
    """Return a sink for ``writeStream.foreachBatch`` that releases closed steps through a ledger.

    On the driver, every stream of a batch goes on from the ledger, which charges and stores before a value is returned;
    only then the batch is written to ``target/batch=NUMBER``. A batch that is run again, after a restart from the
    checkpoint, finds its values in the ledger and writes the same rows once more in the same place. What has been
    released is never released again, whatever comes later. An estimate's memory, and with ``emit="period"`` the steps
    of the open period, which are raw, are kept in the ledger.

    Args:
        mechanism: How to release; without a hierarchy.
        ledger: The ledger, on the driver alone.
        target: A folder for this query alone.
        emit: ``"period"`` or ``"step"``: whether a step leaves with its period or when it has closed.

    Returns:
        A function of a batch of :func:`closed_steps` and its number.
    """
    if not isinstance(mechanism, OptStream):
        raise ParameterTypeError(f"mechanism is of type {type(mechanism).__name__}, but must be OptStream")
    if mechanism.hierarchy is not None:
        raise ParameterError("mechanism has a hierarchy, but must have none in a sink of streams")
    if not isinstance(ledger, Ledger):
        raise ParameterTypeError(f"ledger is of type {type(ledger).__name__}, but must be Ledger")
    if emit not in {"period", "step"}:
        raise ParameterError(f"emit is {emit!r}, but must be 'period' or 'step'")
    w = mechanism.guarantee.w

    def release(batch: DataFrame, number: int) -> None:
        # As they are stored, and not as this process remembers them: a former attempt may have failed half-way.
        rows: dict[str, list[tuple[int, float]]] = {}
        for row in batch.select("stream", "step", "sum").collect():
            rows.setdefault(row["stream"], []).append((row["step"], row["sum"]))
        left: list[tuple[str, int, int, float]] = []
        for name, own in sorted(rows.items()):
            stream = Stream(
                mechanism, ledger=ledger, name=name, create=True, late="stored", duplicate="keep", emit=emit
            )
            numbers, values = zip(*sorted(own), strict=True)
            for one in stream.push_many(numbers, values):
                if emit == "step":
                    left.append((name, one.step // w, one.step, float(one.value)))
                elif one.period * w + w - 1 in numbers:
                    # A period is in the batch of its last step, also where it was released before.
                    steps = range(one.period * w, one.period * w + w)
                    left += [(name, one.period, at, float(value)) for at, value in zip(steps, one.values, strict=True)]
        schema = "stream string, period bigint, step bigint, value double"
        made = batch.sparkSession.createDataFrame(sorted(set(left)), schema)
        made.coalesce(1).write.mode("overwrite").parquet(f"{str(target).rstrip('/')}/batch={number}")

    return release
