"""Faults of a real cluster: what is drawn again comes out the same with a key, and otherwise without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest
from spark_session import cluster, session

import optstream as ops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

spark = pytest.importorskip("optstream.spark")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

W = 4
SECRET = bytes(range(32))
KEY = ops.CuratorKey(SECRET)
MECHANISM = ops.OptStream(ops.Guarantee(epsilon=1, w=W), sample=ops.EqualSampling(W), bounds=(0, 100))
DATA = {f"s{number}": np.full(2 * W, 10.0 * number) for number in range(6)}
EXPECTED = {
    (name, period): one.values[period * W : (period + 1) * W].tolist()
    for name, one in ops.release_many(MECHANISM, DATA, key=KEY).items()
    for period in range(2)
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("cluster")
    with cluster(folder) as master:
        made = session(
            folder,
            master,
            spark_executor_memory="512m",
            spark_cores_max="2",
            spark_executor_extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        )
        yield made
        made.stop()


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "key"
    path.touch(mode=0o600)
    path.write_text(SECRET.hex())
    return path


def sums_of(here: Any, data: dict[str, Any]) -> Any:
    rows = [
        {"stream": name, "step": step, "sum": float(value)}
        for name, own in data.items()
        for step, value in enumerate(own)
    ]
    return here.createDataFrame(pl.DataFrame(rows).to_arrow())


def fault(kind: str, folder: str) -> Callable[[], None]:
    """Return what strikes the first attempt that comes by, after it has drawn; others are counted."""

    def strike() -> None:
        import os  # noqa: PLC0415  (these functions are sent by value)
        import signal  # noqa: PLC0415
        from pathlib import Path  # noqa: PLC0415

        from pyspark import TaskContext  # noqa: PLC0415

        task = str(TaskContext.get().partitionId())
        try:
            with Path(folder, "struck").open("x") as file:
                file.write(task)
        except FileExistsError:
            if Path(folder, "struck").read_text() == task:
                Path(folder, "again").touch()
            return
        if kind == "worker":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "executor":
            # The worker's parent is the daemon of the executor, and its parent the executor.
            fields = Path(f"/proc/{os.getppid()}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
            os.kill(int(fields[1]), signal.SIGKILL)

    return strike


def drawn_under(here: Any, kind: str, folder: Path, key: str | None) -> dict[Any, set[tuple[float, ...]]]:
    """Return all values that tasks drew of every period while a fault struck, with the key or with fresh noise."""
    folder.mkdir()
    strike, made, place = fault(kind, str(folder)), MECHANISM, str(folder)

    def work(batches: Any) -> Any:
        import json  # noqa: PLC0415
        import uuid  # noqa: PLC0415
        from pathlib import Path  # noqa: PLC0415

        import pyarrow as pa  # noqa: PLC0415

        from optstream.keys import read_key  # noqa: PLC0415
        from optstream.spark.blocks import Choice, digests_of, draw_blocks, read_blocks  # noqa: PLC0415

        rows = [batch for batch in batches if batch.num_rows]
        if not rows:
            return
        blocks = read_blocks(pa.Table.from_batches(rows), made, "stream", 0)
        if key is None:
            values = [made.draw(units).values[0].tolist() for units in blocks.units]
        else:
            curator = read_key(key)
            table, _ = draw_blocks(blocks, curator, digests_of(blocks, curator), Choice([made], {}, {}))
            values = table.column("values").to_pylist()
        lines = [
            json.dumps([name, int(period), own])
            for name, period, own in zip(blocks.streams, blocks.periods, values, strict=True)
        ]
        half = Path(place) / f"{uuid.uuid4()}.half"
        half.write_text("\n".join(lines))
        half.replace(half.with_suffix(".drawn"))
        strike()
        yield pa.RecordBatch.from_arrays([pa.array([len(lines)])], names=["count"])

    counted = sums_of(here, DATA).repartition(2, "stream").mapInArrow(work, "count bigint").toArrow()
    assert sum(counted.column("count").to_pylist()) == len(EXPECTED)
    found: dict[Any, set[tuple[float, ...]]] = {}
    for path in folder.glob("*.drawn"):
        for line in path.read_text().splitlines():
            name, period, values = json.loads(line)
            found.setdefault((name, period), set()).add(tuple(values))
    assert set(found) == set(EXPECTED)
    assert (folder / "again").exists()
    return found


@pytest.mark.parametrize("kind", ["worker", "executor"])
def test_what_is_drawn_again_is_the_same_with_a_key_alone(here: Any, tmp_path: Path, key_file: Path, kind: str) -> None:
    keyed = drawn_under(here, kind, tmp_path / "keyed", str(key_file))
    assert keyed == {where: {tuple(values)} for where, values in EXPECTED.items()}
    # The same fault with fresh noise: whoever sees both has two looks.
    fresh = drawn_under(here, kind, tmp_path / "fresh", None)
    assert any(len(values) > 1 for values in fresh.values())


def written(here: Any, job: Any) -> dict[Any, list[float]]:
    found: dict[Any, list[float]] = {}
    for row in here.read.parquet(job.values).sort("stream", "step").collect():
        found.setdefault((row["stream"], row["period"]), []).append(row["value"])
    return found


@pytest.mark.parametrize("kind", ["worker", "executor"])
def test_a_job_survives_a_fault(here: Any, tmp_path: Path, key_file: Path, kind: str) -> None:
    strike = fault(kind, str(tmp_path))

    def work(batches: Any) -> Any:
        for batch in batches:
            strike()
            yield batch

    struck = sums_of(here, DATA).mapInArrow(work, "stream string, step bigint, sum double")
    with ops.Ledger(tmp_path / "l.db", key=KEY, create=True) as ledger:
        job = spark.release(
            MECHANISM, struck, ledger=ledger, target=tmp_path / "out", where="executors", key=str(key_file)
        )
        assert job.charged == len(EXPECTED)
        assert written(here, job) == EXPECTED
        assert ledger.verify().problems == ()


def test_data_that_changes_between_charge_and_draw_is_refused(here: Any, tmp_path: Path, key_file: Path) -> None:
    """What is computed again from a folder that has a file more is other data: nothing of it is drawn."""
    folder = tmp_path / "events"
    folder.mkdir()
    (folder / "first.json").write_text(json.dumps({name: own.tolist() for name, own in DATA.items()}))
    place = str(folder)

    def read(batches: Any) -> Any:
        import json  # noqa: PLC0415
        from pathlib import Path  # noqa: PLC0415

        import pyarrow as pa  # noqa: PLC0415

        for _ in batches:
            sums: dict[tuple[str, int], float] = {}
            for path in Path(place).glob("*.json"):
                for name, own in json.loads(path.read_text()).items():
                    for step, value in enumerate(own):
                        sums[name, step] = sums.get((name, step), 0.0) + value
            yield pa.RecordBatch.from_pylist([{"stream": n, "step": s, "sum": v} for (n, s), v in sums.items()])

    lineage = here.range(1).coalesce(1).mapInArrow(read, "stream string, step bigint, sum double")

    class Late(ops.Ledger):
        def charge_many(self, *given: Any, **more: Any) -> int:
            charged = super().charge_many(*given, **more)
            (folder / "late.json").write_text(json.dumps({"s1": [1.0]}))
            return charged

    with Late(tmp_path / "l.db", key=KEY, create=True) as ledger:
        options = {"where": "executors", "key": str(key_file)}
        with pytest.raises(ops.ConflictError, match="not what was charged"):
            spark.release(MECHANISM, lineage, ledger=ledger, target=tmp_path / "out", **options)
        assert not (tmp_path / "out" / "values" / "_SUCCESS").exists()
        # The late file stays refused: what was charged is final.
        with pytest.raises(ops.ConflictError):
            spark.release(MECHANISM, lineage, ledger=ledger, target=tmp_path / "out", **options)
        with pytest.raises(ops.ConflictError, match="other data"):
            spark.release(MECHANISM, lineage, ledger=ledger, target=tmp_path / "else", **options)


KILLED = """
import os, signal, sys
from pathlib import Path
import optstream as ops, optstream.spark as spark
from optstream.spark.files import Target
from spark_session import session
from test_spark_faults import DATA, KEY, MECHANISM, sums_of

folder = Path(sys.argv[1])
write = Target.write

def killed(self, rows, name):
    write(self, rows, name)
    os.kill(os.getpid(), signal.SIGKILL)

Target.write = killed
here = session(folder / "first", "local[1]")
ledger = ops.Ledger(folder / "l.db", key=KEY, create=True)
spark.release(MECHANISM, sums_of(here, DATA), ledger=ledger, target=folder / "out", key=KEY)
"""


def test_a_driver_that_is_killed_after_its_output_is_run_again(here: Any, tmp_path: Path) -> None:
    folders = os.pathsep.join([str(path) for path in map(os.path.abspath, ["tests/support", "tests/system"])])
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], env=os.environ | {"PYTHONPATH": folders}, check=False
    )
    assert done.returncode == -9
    before = (tmp_path / "out" / "values" / "_SUCCESS").stat().st_mtime_ns
    with ops.Ledger(tmp_path / "l.db", key=KEY) as ledger:
        job = spark.release(MECHANISM, sums_of(here, DATA), ledger=ledger, target=tmp_path / "out", key=KEY)
        assert job.charged == 0
        assert (tmp_path / "out" / "values" / "_SUCCESS").stat().st_mtime_ns == before
        assert written(here, job) == EXPECTED
        assert ledger.verify().problems == ()
