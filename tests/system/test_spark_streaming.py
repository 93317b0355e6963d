"""Streaming queries in a real Spark: charged before they are visible, the same rows once after any restart."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest
from spark_session import session

import optstream as ops

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

spark = pytest.importorskip("optstream.spark")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

W = 4
KEY = ops.CuratorKey(bytes(range(32)))
ORIGIN = datetime(2020, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
MECHANISM = ops.OptStream(
    ops.Guarantee(epsilon=1, w=W), sample=ops.EqualSampling(W), bounds=(0, 100), reconstruct=ops.Estimate(season=1)
)
BY_STEP = ops.OptStream(ops.Guarantee(epsilon=1, w=W), sample=ops.EqualSampling(W), bounds=(0, 100))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    made = session(tmp_path_factory.mktemp("streaming"), spark_sql_shuffle_partitions="1")
    yield made
    made.stop()


def events() -> pl.DataFrame:
    """Return events of 13 hours in two zones; the second zone begins in the second period."""
    generator = np.random.default_rng(3)
    minutes = np.sort(generator.integers(0, 13 * 60, 300))
    zones = np.where((minutes > 5 * 60) & (generator.uniform(size=300) < 0.5), "south", "north")
    who = [f"{zone} {number}" for zone, number in zip(zones, generator.integers(0, 9, 300), strict=True)]
    at = [ORIGIN + timedelta(minutes=int(minute)) for minute in minutes]
    return pl.DataFrame({"who": who, "zone": zones, "at": at})


def steps(folder: Path, here: Any) -> Any:
    source = here.readStream.schema("who string, zone string, at timestamp").option("maxFilesPerTrigger", "1")
    raw = source.parquet(str(folder))
    return spark.closed_steps(raw, entity="who", time="at", step="1h", origin=ORIGIN, w=W, group="zone", delay="1 hour")


def put(folder: Path, name: str, rows: pl.DataFrame, order: int = 0) -> None:
    """Write a file that Spark reads after those of a smaller order."""
    half = folder.parent / f"{name}.half"
    rows.write_parquet(half)
    os.utime(half, (1_600_000_000 + order,) * 2)
    half.rename(folder / f"{name}.parquet")


def run(query: Any, sink: Any, checkpoint: Path) -> None:
    started = query.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    started.trigger(availableNow=True).start().awaitTermination()


def written(target: Path) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for path in sorted(target.rglob("*.parquet")):
        for row in pl.read_parquet(path, hive_partitioning=False).to_dicts():
            # Every row once.
            assert row["step"] not in found.setdefault(row["stream"], {})
            found[row["stream"]][row["step"]] = row["value"]
    return found


def expected(made: ops.OptStream, emit: Any, hours: int, folder: Path) -> dict[str, dict[int, float]]:
    """Return what one machine gives: events to sums, sums to a stream with a ledger of its own."""
    sums = ops.aggregate(
        events(),
        entity="who",
        time="at",
        group="zone",
        groups=["north", "south"],
        start=ORIGIN,
        stop=ORIGIN + hours * HOUR,
        step="1h",
    )
    found: dict[str, dict[int, float]] = {}
    with ops.Ledger(folder / "one.db", key=KEY, create=True) as ledger:
        for zone, begin in {"north": 0, "south": W}.items():
            stream = ops.Stream(made, ledger=ledger, name=zone, create=True, emit=emit)
            released = stream.push_many(range(begin, hours), sums[zone].to_list()[begin:])
            own = found.setdefault(zone, {})
            for one in released:
                if emit == "step":
                    own[one.step] = one.value
                else:
                    own |= dict(enumerate(one.values.tolist(), one.period * W))
    return found


@pytest.mark.parametrize(("made", "emit"), [(MECHANISM, "period"), (BY_STEP, "step")], ids=["period", "step"])
def test_a_query_that_fails_and_goes_on_gives_the_rows_of_one_machine_once(
    here: Any, tmp_path: Path, made: ops.OptStream, emit: Any
) -> None:
    folder, target = tmp_path / "events", tmp_path / "out"
    folder.mkdir()
    rows = events()
    for number, part in enumerate(rows.iter_slices(100)):
        put(folder, f"{number}", part, number)
    with ops.Ledger(tmp_path / "l.db", key=KEY, create=True) as ledger:
        sink = spark.foreach_batch(made, ledger=ledger, target=target, emit=emit)
        failed: list[int] = []

        def fails_once(batch: Any, number: int) -> None:
            sink(batch, number)
            # After it was charged, stored and written, but before Spark knows.
            if not failed and any(target.rglob("*.parquet")):
                failed.append(number)
                raise RuntimeError("killed")

        with pytest.raises(Exception, match="killed"):
            run(steps(folder, here), fails_once, tmp_path / "checkpoint")
        assert failed
        run(steps(folder, here), sink, tmp_path / "checkpoint")
        # The watermark lies an hour before the last event, in the thirteenth hour.
        closed = int((rows["at"].max() - HOUR - ORIGIN) / HOUR)  # type: ignore[operator]
        one_machine = expected(made, emit, closed, tmp_path)
        assert written(target) == one_machine
        # What comes late is dropped: nothing is released again.
        put(folder, "late", rows.head(20).with_columns(who=pl.lit("somebody else")), 9)
        run(steps(folder, here), sink, tmp_path / "checkpoint")
        assert written(target) == one_machine
        assert ledger.verify().problems == ()


def test_a_lost_checkpoint_is_no_second_look(here: Any, tmp_path: Path) -> None:
    """All events again, some changed: what was released stays as it was."""
    folder = tmp_path / "events"
    folder.mkdir()
    rows = events()
    put(folder, "all", rows, 1)
    put(folder, "end", rows.tail(1), 2)
    with ops.Ledger(tmp_path / "l.db", key=KEY, create=True) as ledger:
        run(steps(folder, here), spark.foreach_batch(BY_STEP, ledger=ledger, target=tmp_path / "a"), tmp_path / "c1")
        put(folder, "0", rows.head(50).with_columns(who=pl.lit("somebody else")))
        run(steps(folder, here), spark.foreach_batch(BY_STEP, ledger=ledger, target=tmp_path / "b"), tmp_path / "c2")
        first, second = written(tmp_path / "a"), written(tmp_path / "b")
        assert first
        assert second == first


def test_what_a_sink_cannot_release_is_refused(tmp_path: Path) -> None:
    with ops.Ledger(tmp_path / "l.db", key=KEY, create=True) as ledger:
        tree = ops.Hierarchy({"all": None, "a": "all"})
        made = ops.OptStream(MECHANISM.guarantee, sample=MECHANISM.sample, bounds=(0, 1), hierarchy=tree)
        with pytest.raises(ops.ParameterError, match="mechanism has a hierarchy"):
            spark.foreach_batch(made, ledger=ledger, target=tmp_path)
        with pytest.raises(ops.ParameterError, match="emit is 'day'"):
            spark.foreach_batch(MECHANISM, ledger=ledger, target=tmp_path, emit="day")
