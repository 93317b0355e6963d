"""Private releases of series in Spark: digest, charge for good, draw with the digest checked, write once."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from optstream.errors import ConflictError, DataError, OptStreamError, ParameterError, ParameterTypeError
from optstream.keys import VARIABLE, CuratorKey, find_key, read_key
from optstream.ledger import Ledger
from optstream.mechanism.optstream import OptStream
from optstream.names import checked_name
from optstream.spark.blocks import Blocks, Choice, Digests, digests_of, draw_blocks, read_blocks
from optstream.spark.failures import refusal, translated
from optstream.spark.files import Target
from optstream.stream.keyed import plan_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from optstream.privacy.statement import Statement

__all__ = ["Job", "check_secret", "release"]

PROBE = "optstream probe of a key"
MIDDLE = 1 / 2


@dataclass(frozen=True)
class Job:
    """What a release in Spark has charged, what it states, and where its values are."""

    charged: int
    """Periods that were not charged before: 0 if the job ran before."""
    streams: int
    periods: int
    """Periods of all streams together."""
    statement: Statement
    """What the worst window of any of the streams costs, with all that was released before through the ledger."""
    values: str
    """Where the values are: Parquet with ``stream`` (or node), ``period``, ``step``, ``time`` and ``value``."""
    states: str | None
    """Where an estimate's states are, for the job of the periods after these; None without an estimate."""


def release(
    mechanism: OptStream,
    sums: DataFrame,
    *,
    ledger: Ledger,
    target: str | Path,
    where: Literal["driver", "executors"] = "driver",
    key: CuratorKey | str | Path | None = None,
    stream: str = "stream",
    period: int = 0,
    state: str | Path | None = None,
    create: bool | None = None,
) -> Job:
    """Release whole periods of many streams in Spark, each once, however often the job is run.

    The data of every period is digested with the curator's key; all periods are charged by the driver, for good, in
    one transaction for every plan; then they are drawn with the digest of the data at hand checked against what was
    charged, and written. Values are a function of key, stream, period, plan, scales and data, so that retries,
    speculation and lineage repeat the same bits. Data that came out otherwise when it was computed again is refused.
    The same job again charges nothing and writes the same values, or nothing if they are there.

    Args:
        mechanism: How to release. One that tunes itself chooses its plan once for the job, on the driver, from the
            states of the job before.
        sums: Rows of ``stream``, ``step``, ``sum`` and perhaps ``time``, as :func:`aggregate` gives them; for a
            hierarchy the streams are its leaves.
        ledger: Where periods are charged, opened with the same key. Executors never see it.
        target: A folder of this job alone. It gets ``job.json`` and ``values``, and ``states`` for an estimate.
        where: On the ``"driver"`` sums are collected, and the key stays there. On ``"executors"`` every task digests
            and draws the streams that it has.
        key: The curator's key or the path of its file. For executors it must be a path, of a file that every worker
            has and that nobody else can read. By default what the environment of the driver names.
        stream: The name of the stream in the ledger, for a hierarchy.
        period: The number of the period that begins with step 0.
        state: Where the job of the periods before these has put its states, see :attr:`Job.states`.
        create: Whether streams that the ledger does not know are made there; by default as it was opened.

    Raises:
        BudgetError: Some window would cost more than its policy allows. Nothing was charged.
        ConflictError: A period was released or charged from other data or with another plan, the target holds another
            job, or data came out otherwise when it was computed again.
        DataError: Periods are not whole, or the aggregation of ``sums`` has refused its events. Nothing was charged.
        LedgerError: The job failed in Spark. What it charged stays charged; run it again.
        ParameterError: The key is not given, is not the ledger's, or stands in the configuration of Spark.
    """
    spark = _checked(mechanism, sums, ledger, where, stream)
    folder = Target(spark, str(target))
    worker: _Worker
    if where == "driver":
        worker = _OnDriver(mechanism, sums, checked_name(stream), period, _curator(key, ledger, mechanism))
    else:
        worker = _OnExecutors(mechanism, sums, checked_name(stream), period, _path_of(key))
    digests = worker.digests(ledger)
    if not digests:
        raise DataError("sums hold no rows, but must hold whole periods")
    choice = Choice.made(mechanism, digests, {} if state is None else _states(spark, str(state)))
    description = _described(choice, digests)
    finished = folder.check(description["job"])
    charged = sum(
        ledger.charge_many(plan, part, final=True, create=create)
        for plan, part in zip(choice.plans, _parts(choice, digests), strict=True)
    )
    worst = max(ledger.window_price(name, int(own[0][0]), int(own[0][-1])) for name, own in digests.items())
    count = sum(len(own[0]) for own in digests.values())
    scope = (
        f"Holds for every window of each stream by itself that meets any of these {count} periods of {len(digests)} "
        "streams, with all that was released before through the ledger."
    )
    statement = replace(mechanism.statement, epsilon=max(worst, mechanism.steady_epsilon), scope=scope)
    if not finished:
        folder.begin({**description, "statement": json.loads(statement.to_json())})
        worker.write(digests, choice, folder)
    states = None if mechanism.estimator is None else folder.states
    return Job(charged, len(digests), count, statement, folder.values, states)


def check_secret(spark: SparkSession) -> None:
    """Raise if a key stands in the configuration of Spark, which event logs and the web page show in clear text."""
    for name, value in spark.sparkContext.getConf().getAll():
        if name.upper().endswith(f".{VARIABLE}") or f"{VARIABLE}=" in value:
            raise ParameterError(
                f"{name} holds a key, but must not: Spark writes its configuration into event logs. Give the path of a "
                "file that the workers can read"
            )


def _checked(mechanism: Any, sums: Any, ledger: Any, where: str, stream: str) -> SparkSession:
    if not isinstance(mechanism, OptStream):
        raise ParameterTypeError(f"mechanism is of type {type(mechanism).__name__}, but must be OptStream")
    if not isinstance(ledger, Ledger):
        raise ParameterTypeError(f"ledger is of type {type(ledger).__name__}, but must be Ledger")
    if where not in {"driver", "executors"}:
        raise ParameterError(f"where is {where!r}, but must be 'driver' or 'executors'")
    checked_name(stream)
    fields = {field.name: field.dataType for field in sums.schema.fields}
    wanted = {"stream": T.StringType, "step": T.LongType, "sum": (T.LongType, T.DoubleType)}
    for name, kind in wanted.items():
        if not isinstance(fields.get(name), kind):
            raise ParameterError(f"sums have no column {name!r} as spark.aggregate gives it, but must have one")
    spark: SparkSession = sums.sparkSession
    check_secret(spark)
    return spark


def _curator(key: Any, ledger: Ledger, mechanism: OptStream) -> CuratorKey:
    found = find_key(key)
    if found is None:
        raise ParameterError("key is not given, but must be: without one every retry is another look at the data")
    if digests_of(_probe(mechanism), found)[PROBE][1].tobytes() != _probed(ledger, mechanism):
        raise ParameterError("key is not that of the ledger, but must be")
    return found


def _probe(mechanism: OptStream) -> Blocks:
    """Return a period of no data, whose digest tells one key from another."""
    leaves = 1 if mechanism.hierarchy is None else len(mechanism.hierarchy.leaves)
    x = np.full((mechanism.guarantee.w, leaves), sum(mechanism.bounds) * MIDDLE)
    units = mechanism.read(x.ravel() if mechanism.hierarchy is None else x).units
    return Blocks([PROBE], np.zeros(1, dtype=np.int64), units, pa.array([0] * mechanism.guarantee.w))


def _probed(ledger: Ledger, mechanism: OptStream) -> bytes:
    leaves = 1 if mechanism.hierarchy is None else len(mechanism.hierarchy.leaves)
    x = np.full((mechanism.guarantee.w, leaves), sum(mechanism.bounds) * MIDDLE)
    return ledger.digests(mechanism, x.ravel() if mechanism.hierarchy is None else x, stream=PROBE)[0]


def _path_of(key: Any) -> str:
    if key is None or isinstance(key, CuratorKey):
        raise ParameterError("key is not a path, but must be that of a file on the workers with where='executors'")
    return str(key)


def _states(spark: SparkSession, path: str) -> dict[str, str]:
    with translated("reading states"):
        return {row["stream"]: row["state"] for row in spark.read.parquet(path).collect()}


def _parts(choice: Choice, digests: Digests) -> list[dict[str, dict[int, bytes]]]:
    """Return for every plan the digests of the periods that it measures."""
    parts: list[dict[str, dict[int, bytes]]] = [{} for _ in choice.plans]
    for stream, (periods, rows) in digests.items():
        for at, period in enumerate(periods.tolist()):
            parts[choice.plan(stream, first=at == 0)].setdefault(stream, {})[period] = rows[at].tobytes()
    return parts


def _described(choice: Choice, digests: Digests) -> dict[str, Any]:
    """Return what tells one job from another."""
    content = sha256()
    for plan in choice.plans:
        content.update(plan_id(plan))
    for stream in sorted(digests):
        periods, rows = digests[stream]
        content.update(json.dumps([stream, choice.of.get(stream, (0, 0))]).encode())
        content.update(periods.astype("<i8").tobytes())
        content.update(rows.tobytes())
    return {"job": content.hexdigest(), "plans": [json.loads(plan.description) for plan in choice.plans]}


def _kind(sums: DataFrame) -> str:
    return sums.schema["time"].dataType.simpleString() if "time" in sums.columns else "bigint"


class _OnDriver:
    """Sums are collected, once."""

    def __init__(self, mechanism: OptStream, sums: DataFrame, stream: str, period: int, key: CuratorKey) -> None:
        self._mechanism, self._sums, self._stream, self._period, self._key = mechanism, sums, stream, period, key

    def digests(self, ledger: Ledger) -> Digests:  # noqa: ARG002  (the key was compared already)
        with translated("reading sums"):
            table = _selected(self._sums).toArrow()
        self._blocks = read_blocks(table, self._mechanism, self._stream, self._period)
        return digests_of(self._blocks, self._key)

    def write(self, digests: Digests, choice: Choice, target: Target) -> None:
        rows, states = draw_blocks(self._blocks, self._key, digests, choice)
        spark = self._sums.sparkSession
        if states:
            known = pa.table({"stream": list(states), "state": list(states.values())})
            target.write(spark.createDataFrame(known), "states")
        target.write(_exploded(spark.createDataFrame(rows)), "values")


class _OnExecutors:
    """Every task digests and draws the streams that it has; the key comes from a file."""

    def __init__(self, mechanism: OptStream, sums: DataFrame, stream: str, period: int, key: str) -> None:
        apart = sums if mechanism.hierarchy is None else sums.withColumn("all", F.lit(0))
        chosen = _selected(apart)
        self._rows = chosen.coalesce(1) if mechanism.hierarchy is not None else chosen.repartition("stream")
        self._mechanism, self._stream, self._period, self._key, self._kind = mechanism, stream, period, key, _kind(sums)

    def digests(self, ledger: Ledger) -> Digests:
        mechanism, stream, period, key = self._mechanism, self._stream, self._period, self._key

        def digest(table: pa.Table) -> Iterator[pa.RecordBatch]:
            curator = read_key(key)
            probe = digests_of(_probe(mechanism), curator)[PROBE][1].tobytes()
            found = digests_of(read_blocks(table, mechanism, stream, period), curator)
            for name, (periods, rows) in found.items():
                columns = [[name], [periods.astype("<i8").tobytes()], [rows.tobytes()], [probe]]
                yield pa.RecordBatch.from_arrays(
                    [pa.array(column) for column in columns], names=["stream", "periods", "digests", "probe"]
                )

        with translated("digesting"):
            schema = "stream string, periods binary, digests binary, probe binary"
            table = self._rows.mapInArrow(_whole(digest), schema).toArrow()
        made: Digests = {}
        expected = _probed(ledger, mechanism)
        for row in table.to_pylist():
            if row["probe"] != expected:
                raise ParameterError("key of the workers is not that of the ledger, but must be")
            made[row["stream"]] = (
                np.frombuffer(row["periods"], "<i8").astype(np.int64),
                np.frombuffer(row["digests"], np.uint8).reshape(-1, 32),
            )
        return dict(sorted(made.items()))

    def write(self, digests: Digests, choice: Choice, target: Target) -> None:
        mechanism, stream, period, key = self._mechanism, self._stream, self._period, self._key
        shared = self._rows.sparkSession.sparkContext.broadcast((digests, choice))

        def draw(table: pa.Table) -> Iterator[pa.RecordBatch]:
            charged, chosen = shared.value
            blocks = read_blocks(table, mechanism, stream, period)
            rows, states = draw_blocks(blocks, read_key(key), charged, chosen)
            if mechanism.estimator is not None:
                last = [name != after for name, after in zip(blocks.streams, [*blocks.streams[1:], None], strict=True)]
                own = [states[name] if end else None for name, end in zip(blocks.streams, last, strict=True)]
                nodes = rows.num_rows // max(len(blocks.streams), 1)
                wide = [one if node == 0 else None for one in own for node in range(nodes)]
                rows = rows.append_column(
                    "name", pa.array([n for n in blocks.streams for _ in range(nodes)], pa.string())
                )
                rows = rows.append_column("state", pa.array(wide, pa.string()))
            yield from rows.to_batches()

        value = "bigint" if mechanism.integers else "double"
        schema = f"stream string, period bigint, steps array<bigint>, times array<{self._kind}>, values array<{value}>"
        if mechanism.estimator is not None:
            schema += ", deviations array<double>, name string, state string"
        drawn = self._rows.mapInArrow(_whole(draw), schema)
        if mechanism.estimator is None:
            target.write(_exploded(drawn), "values")
            return
        # Whatever is computed twice comes out the same.
        states = drawn.where("state IS NOT NULL").select(F.col("name").alias("stream"), "state")
        target.write(states, "states")
        target.write(_exploded(drawn.drop("name", "state")), "values")


_Worker = _OnDriver | _OnExecutors


def _selected(sums: DataFrame) -> DataFrame:
    return sums.select(*[name for name in ("stream", "step", "time", "sum") if name in sums.columns])


def _exploded(rows: DataFrame) -> DataFrame:
    """Return a row for every step."""
    names = {"steps": "step", "times": "time", "values": "value", "deviations": "deviation"}
    there = [name for name in names if name in rows.columns]
    flat = rows.select("stream", "period", F.explode(F.arrays_zip(*there)).alias("at"))
    return flat.select("stream", "period", *[F.col(f"at.{name}").alias(names[name]) for name in there])


def _whole(
    work: Callable[[pa.Table], Iterator[pa.RecordBatch]],
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what works on all rows of a task together."""

    def worked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        every = [batch for batch in batches if batch.num_rows]
        if not every:
            return
        try:
            yield from work(pa.Table.from_batches(every))
        except OptStreamError as error:
            kind = "conflict" if isinstance(error, ConflictError) else "data"
            raise RuntimeError(refusal(str(error), kind)) from None

    return worked
