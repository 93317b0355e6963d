"""Aggregation and release in a real Spark: the bits of one machine."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
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

W = 6
SECRET = bytes(range(32))
KEY = ops.CuratorKey(SECRET)
GUARANTEE = ops.Guarantee(epsilon=1, w=W)
TREE = ops.Hierarchy({"all": None, "a": "all", "b": "all", "c": "all"})
ZONES = ["c", "a", "b", "empty"]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    made = session(tmp_path_factory.mktemp("spark"))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "key"
    path.touch(mode=0o600)
    path.write_text(SECRET.hex())
    return path


def events(count: int = 400) -> pl.DataFrame:
    generator = np.random.default_rng(1)
    start = datetime(1969, 12, 31, tzinfo=UTC)
    return pl.DataFrame(
        {
            "who": [f"é{x}" for x in generator.integers(0, 20, count)],
            "number": generator.integers(-5, 5, count) * generator.choice([1.0, -0.0], count),
            "at": [start + timedelta(microseconds=int(x)) for x in generator.integers(0, 2 * 86_400 * 10**6, count)],
            "size": generator.choice([0.5, -0.5, 1.5, -1.5, 2.5, 0.1, 1e300, -3.0, -(2.0**-60)], count),
            "zone": generator.choice(["a", "b", "c"], count),
        }
    )


DAY = {"start": datetime(1969, 12, 31, 6, tzinfo=UTC), "stop": datetime(1970, 1, 2, tzinfo=UTC), "step": "1h"}
FAR = datetime(2260, 1, 1)  # noqa: DTZ001  (2^53 microseconds end in 2255)


def far(count: int = 60) -> pl.DataFrame:
    made = events(count)
    times = [FAR + timedelta(microseconds=number) for number in range(count)]
    return made.with_columns(pl.Series("at", times, dtype=pl.Datetime("us")))


CASES: dict[str, tuple[pl.DataFrame, dict[str, Any]]] = {
    "entities": (events(), {**DAY, "entity": "who"}),
    "half units and negative clips": (
        events(),
        {**DAY, "entity": "number", "value": "size", "alpha": 3.0, "clip": (-1.0, 2.0), "grid": 1.0},
    ),
    "groups": (
        events().with_columns(who=pl.col("who") + pl.col("zone")),
        {**DAY, "entity": "who", "group": "zone", "groups": ZONES, "value": "size", "alpha": 2.0},
    ),
    "at most two groups": (
        events(),
        {**DAY, "entity": "who", "group": "zone", "groups": ZONES, "max_groups": 2, "alpha": 4.0},
    ),
    "one group, clipped": (
        events(),
        {**DAY, "entity": "who", "group": "zone", "max_groups": 1, "alpha": 4.0, "value": "size", "clip": (-1.0, 1.0)},
    ),
    "microseconds beyond 2^53": (
        far(),
        {"entity": "who", "start": FAR, "stop": FAR + timedelta(microseconds=60), "step": timedelta(microseconds=3)},
    ),
    "days, from the data": (
        events().with_columns(at=pl.Series([date(1969, 12, 25) + timedelta(days=n % 14) for n in range(400)])),
        {"entity": "who", "step": "2d"},
    ),
    "step numbers": (
        events().with_columns(at=pl.Series([n % 14 - 7 for n in range(400)])),
        {"entity": "who", "start": -9, "stop": 5},
    ),
}


@pytest.mark.parametrize(("frame", "how"), CASES.values(), ids=CASES)
def test_aggregation_is_that_of_one_machine(here: Any, frame: pl.DataFrame, how: dict[str, Any]) -> None:
    expected = ops.aggregate(frame, time="at", **how)
    given = here.createDataFrame(frame.to_arrow())
    if frame["at"].dtype == pl.Datetime("us"):
        given = given.withColumn("at", given["at"].cast("timestamp_ntz"))
    found = pl.from_arrow(spark.aggregate(given, time="at", **how).toArrow())
    assert isinstance(found, pl.DataFrame)
    wide = found.pivot(on="stream", index=["step", "time"], values="sum").sort("step")
    assert wide["step"].to_list() == list(range(expected.height))
    assert wide["time"].cast(expected["at"].dtype).equals(expected["at"])
    names = expected.columns[1:]
    stored = wide.select(names) if "group" in how else wide.select(pl.col("stream").alias(names[0]))
    assert stored.equals(expected.select(names))


def test_offsets_of_events_are_one_clock(here: Any) -> None:
    """The same moments written with another offset are the same events."""
    frame = events(60)
    zoned = frame.with_columns(pl.col("at").dt.convert_time_zone("America/St_Johns"))
    first, second = (
        spark.aggregate(here.createDataFrame(one.to_arrow()), entity="who", time="at", **DAY).sort("step").toArrow()
        for one in (frame, zoned)
    )
    assert first.equals(second)


BROKEN: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "null": ({"who": pl.lit(None, pl.String)}, {}, "entity 'who' is null"),
    "NaN": ({"size": pl.lit(float("nan"))}, {"value": "size", "alpha": 2.0}, "value 'size' is null, NaN or infinite"),
    "zones": (
        {},
        {"group": "zone", "groups": ["a", "b"], "max_groups": 1, "alpha": 2.0},
        "groups that are not among the 2 given ones",
    ),
}


@pytest.mark.parametrize(("change", "how", "said"), BROKEN.values(), ids=BROKEN)
def test_a_refused_event_charges_nothing(
    here: Any, tmp_path: Path, change: dict[str, Any], how: dict[str, Any], said: str
) -> None:
    frame = events(40).with_columns(**change)
    sums = spark.aggregate(here.createDataFrame(frame.to_arrow()), entity="who", time="at", **DAY, **how)
    with (
        ops.Ledger(tmp_path / "l.db", key=KEY, create=True) as ledger,
        pytest.raises(ops.DataError, match=said),
    ):
        spark.release(mechanism(), sums, ledger=ledger, target=tmp_path / "out", key=KEY)
    with ops.Ledger(tmp_path / "l.db", key=KEY) as ledger:
        assert ledger.streams == ()


def test_columns_that_cannot_be_used_are_refused(here: Any) -> None:
    frame = here.createDataFrame(events(4).to_arrow())
    with pytest.raises(ops.ParameterError, match="entity is 'none', but must be a column"):
        spark.aggregate(frame, entity="none", time="at", **DAY)
    with pytest.raises(ops.ParameterTypeError, match="group 'size' holds double"):
        spark.aggregate(frame, entity="who", time="at", group="size", **DAY)
    moved = frame.unionAll(frame.replace({"a": "b", "b": "c", "c": "a"}, subset="zone"))
    with pytest.raises(ops.DataError, match="entities in more than one group"):
        spark.aggregate(moved, entity="who", time="at", group="zone", **DAY)
    here.conf.set("spark.sql.session.timeZone", "Europe/Paris")
    try:
        with pytest.raises(ops.ParameterError, match="timeZone is 'Europe/Paris', but must be 'UTC'"):
            spark.aggregate(frame, entity="who", time="at", **DAY)
    finally:
        here.conf.set("spark.sql.session.timeZone", "UTC")


def mechanism(sample: Any = None, **more: Any) -> ops.OptStream:
    return ops.OptStream(GUARANTEE, sample=sample or ops.EqualSampling(3), bounds=(0, 100), **more)


MECHANISMS = {
    "batch": mechanism(),
    "features": mechanism(features=[ops.Feature.total(W)], integers=True),
    "tree": mechanism(hierarchy=TREE),
    "estimate": mechanism(reconstruct=ops.Estimate(season=1)),
    "estimated tree": mechanism(hierarchy=TREE, reconstruct=ops.Estimate(season=1)),
}
PERIODS = 3
DATA = {name: np.random.default_rng(number).uniform(0, 100, PERIODS * W) for number, name in enumerate("abc")}


def sums_of(here: Any, data: dict[str, Any] | None = None) -> Any:
    rows = [
        {"stream": name, "step": step, "sum": float(value)}
        for name, own in (data or DATA).items()
        for step, value in enumerate(own)
    ]
    return here.createDataFrame(pl.DataFrame(rows).sample(fraction=1, shuffle=True, seed=1).to_arrow())


def expected(made: ops.OptStream, period: int = 0) -> dict[str, Any]:
    if made.hierarchy is None:
        released = ops.release_many(made, DATA, key=KEY, period=period)
        return {name: one.values for name, one in released.items()}
    released = ops.release_many(made, {"trips": DATA}, key=KEY, period=period)["trips"]
    return {name: np.asarray(released.values[name]) for name in TREE.nodes}


def written(here: Any, job: Any) -> dict[str, Any]:
    table = pl.from_arrow(here.read.parquet(job.values).toArrow())
    assert isinstance(table, pl.DataFrame)
    parts = table.sort("stream", "step").partition_by("stream", as_dict=True)
    return {str(name): part["value"].to_numpy() for (name,), part in parts.items()}


@pytest.mark.parametrize("where", ["driver", "executors"])
@pytest.mark.parametrize("made", MECHANISMS.values(), ids=MECHANISMS)
def test_releases_are_those_of_one_machine(
    here: Any, tmp_path: Path, key_file: Path, made: ops.OptStream, where: str
) -> None:
    with ops.Ledger(tmp_path / "l.db", key=KEY, create=True) as ledger:
        options = {"ledger": ledger, "where": where, "key": str(key_file), "stream": "trips", "period": 2}
        job = spark.release(made, sums_of(here), target=tmp_path / "out", **options)
        streams = 3 if made.hierarchy is None else 1
        assert (job.charged, job.streams, job.periods) == (streams * PERIODS, streams, streams * PERIODS)
        found = written(here, job)
        assert {name: values.tolist() for name, values in found.items()} == {
            name: values.tolist() for name, values in expected(made, 2).items()
        }
        assert job.statement.epsilon == 1
        # Again: nothing is charged, and nothing is written.
        before = (tmp_path / "out" / "values" / "_SUCCESS").stat().st_mtime_ns
        again = spark.release(made, sums_of(here), target=tmp_path / "out", **options)
        assert (again.charged, again.statement) == (0, job.statement)
        assert (tmp_path / "out" / "values" / "_SUCCESS").stat().st_mtime_ns == before
        assert ledger.verify().problems == ()


def test_other_data_and_other_targets_are_refused(here: Any, tmp_path: Path) -> None:
    other = DATA | {"a": DATA["a"] + 1}
    with ops.Ledger(tmp_path / "l.db", key=KEY, create=True) as ledger:
        options = {"ledger": ledger, "key": KEY}
        spark.release(mechanism(), sums_of(here), target=tmp_path / "out", **options)
        with pytest.raises(ops.ConflictError, match="holds another job"):
            spark.release(mechanism(), sums_of(here, other), target=tmp_path / "out", **options)
        with pytest.raises(ops.ConflictError, match="other data"):
            spark.release(mechanism(), sums_of(here, other), target=tmp_path / "else", **options)
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "file").touch()
        with pytest.raises(ops.ConflictError, match="holds something"):
            spark.release(mechanism(), sums_of(here), target=tmp_path / "full", **options)
        with pytest.raises(ops.DataError, match="steps of a period are missing"):
            spark.release(mechanism(), sums_of(here).where("step <> 4"), target=tmp_path / "holes", **options)
        with pytest.raises(ops.ParameterError, match="key is not that of the ledger"):
            spark.release(
                mechanism(), sums_of(here), ledger=ledger, target=tmp_path / "k", key=ops.CuratorKey(bytes(32))
            )
        assert not any((tmp_path / name).exists() for name in ("else", "holes", "k"))


def test_an_estimate_goes_on_and_a_plan_tunes_itself_on_the_driver(here: Any, tmp_path: Path) -> None:
    made = ops.OptStream.auto(ops.Guarantee(epsilon=1, w=W), bounds=(0, 100), season=1)
    parts = [{name: own[at * W : (at + 1) * W] for name, own in DATA.items()} for at in range(PERIODS)]
    by_hand: dict[str, list[float]] = {name: [] for name in DATA}
    states: dict[str, Any] | None = None
    with ops.Ledger(tmp_path / "l.db", key=KEY, create=True) as ledger:
        found: dict[str, list[float]] = {name: [] for name in DATA}
        job = None
        for period, part in enumerate(parts):
            job = spark.release(
                made,
                sums_of(here, part),
                ledger=ledger,
                target=tmp_path / f"out{period}",
                key=KEY,
                period=period,
                state=None if job is None else job.states,
            )
            for name, values in written(here, job).items():
                found[name] += values.tolist()
            released = ops.release_many(made, part, key=KEY, period=period, state=states)
            states = {name: one.state for name, one in released.items()}
            for name, one in released.items():
                by_hand[name] += one.values.tolist()
        assert found == by_hand
        assert ledger.verify().problems == ()


def test_the_key_is_nowhere(
    here: Any, tmp_path: Path, key_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with ops.Ledger(tmp_path / "l.db", key=KEY, create=True) as ledger:
        sums = sums_of(here)
        for where in ("driver", "executors"):
            target = tmp_path / where
            spark.release(mechanism(), sums, ledger=ledger, target=target, key=str(key_file), where=where)
    forms = [SECRET, SECRET.hex().encode(), SECRET.hex().upper().encode(), repr(list(SECRET)).encode()]
    logs = [path for path in tmp_path_factory.getbasetemp().rglob("*") if path.is_file() and path != key_file]
    assert any("events" in path.parts for path in logs)
    for path in logs:
        content = path.read_bytes()
        assert not any(form in content for form in forms), path
    description = json.loads((tmp_path / "driver" / "job.json").read_text())
    assert description["statement"]["epsilon_true"] == "1"


def test_a_key_in_the_configuration_is_refused(here: Any, tmp_path: Path) -> None:
    class Named:
        """The configuration of a session that was given a key: another one cannot be begun beside it."""

        def getAll(self) -> list[tuple[str, str]]:  # noqa: N802
            return [*here.sparkContext._conf.getAll(), ("spark.executorEnv.OPTSTREAM_KEY", "00" * 32)]

    kept = here.sparkContext.getConf
    here.sparkContext.getConf = Named
    try:
        with (
            ops.Ledger(tmp_path / "l.db", key=KEY, create=True) as ledger,
            pytest.raises(ops.ParameterError, match="OPTSTREAM_KEY holds a key") as caught,
        ):
            spark.release(mechanism(), sums_of(here), ledger=ledger, target=tmp_path / "out", key=KEY)
    finally:
        here.sparkContext.getConf = kept
    assert "0000" not in str(caught.value)
