"""Speed and memory of turning raw events into series, beside pandas doing the same.

Ten million events of one million entities over a year of half hours, in a Parquet file ordered by time: the number of
distinct entities per step, and the sum of each entity's values clipped to (0, 2). Each measurement is a process of its
own, from the file to the series. pandas adds floats; it is held to the same result up to rounding.

    python tools/bench_events.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from optstream.data.events import aggregate

ENTITIES = 1_000_000
START, STOP = datetime(2016, 1, 1), datetime(2017, 1, 1)  # noqa: DTZ001  (the file's times have no zone)
ALPHA = 2.0
SIZES = (1_000_000, 10_000_000)
CHUNK = 1_000_000
ROUNDS = 5
ZONES = [str(zone) for zone in range(20)]


def write(path: Path, size: int) -> None:
    """Write the events chunk by chunk."""
    generator = np.random.default_rng(1)
    year = int((STOP - START).total_seconds()) * 10**6
    schema = pa.schema([("home", pa.int64()), ("at", pa.timestamp("us")), ("kwh", pa.float64()), ("zone", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        for begin in range(0, size, CHUNK):
            moments = np.sort(generator.integers(begin * year // size, (begin + CHUNK) * year // size, CHUNK))
            columns = {
                "home": generator.integers(0, ENTITIES, CHUNK),
                "at": np.datetime64(START, "us") + moments.astype("m8[us]"),
                "kwh": generator.exponential(1.0, CHUNK),
                "zone": generator.choice(ZONES, CHUNK),
            }
            writer.write_table(pa.table(columns, schema=schema))


def with_optstream(path: str, *, add: bool) -> Any:
    """Return the series of this library."""
    value: dict[str, Any] = {"value": "kwh", "alpha": ALPHA} if add else {}
    events = pl.scan_parquet(path)
    return aggregate(events, entity="home", time="at", step="30m", start=START, stop=STOP, **value)[:, 1].to_numpy()


def bounded(path: str, *, add: bool) -> Any:
    """Return the series of this library by zone, with each entity in at most two zones a step."""
    value: dict[str, Any] = {"value": "kwh", "alpha": 4 * ALPHA, "clip": (0.0, ALPHA)} if add else {"alpha": 4.0}
    options: dict[str, Any] = {"group": "zone", "groups": ZONES, "max_groups": 2, **value}
    made = aggregate(pl.scan_parquet(path), entity="home", time="at", step="30m", start=START, stop=STOP, **options)
    return made.drop("at").to_numpy().sum(axis=1)


def unbounded(path: str, *, add: bool) -> Any:
    """Return the same without the bound, for entities that are the pairs of home and zone."""
    value: dict[str, Any] = {"value": "kwh", "alpha": ALPHA} if add else {}
    pairs = pl.scan_parquet(path).with_columns(home=pl.col("home") * len(ZONES) + pl.col("zone").cast(pl.Int64))
    options: dict[str, Any] = {"group": "zone", "groups": ZONES, **value}
    made = aggregate(pairs, entity="home", time="at", step="30m", start=START, stop=STOP, **options)
    return made.drop("at").to_numpy().sum(axis=1)


def with_pandas(path: str, *, add: bool) -> Any:
    """Return the series as one would write it with pandas."""
    events = pd.read_parquet(path, columns=["home", "at", "kwh"] if add else ["home", "at"])
    events["step"] = events["at"].dt.floor("30min")
    if add:
        series = events.groupby(["step", "home"])["kwh"].sum().clip(0, ALPHA).groupby("step").sum()
    else:
        series = events.groupby("step")["home"].nunique()
    return series.reindex(pd.date_range(START, STOP, freq="30min", inclusive="left"), fill_value=0).to_numpy()


PEERS = {"optstream": with_optstream, "pandas": with_pandas, "by zone": unbounded, "by zone, bounded": bounded}


def measure_here(peer: str, path: str, *, add: bool) -> None:
    """Measure once in this process, and print the figures as JSON."""
    start = time.perf_counter()
    series = PEERS[peer](path, add=add)
    seconds = time.perf_counter() - start
    # The peak of this process alone: ru_maxrss would count the parent's before the process was replaced.
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    figures = {"seconds": seconds, "mib": int(peak[1]) / 1024 if peak else float("nan"), "total": float(series.sum())}
    print(json.dumps(figures))


def measure(path: Path, *, add: bool) -> dict[str, dict[str, float]]:
    """Return the best time and the largest memory of several processes of each peer, which take turns."""
    runs: dict[str, list[dict[str, float]]] = {peer: [] for peer in PEERS}
    for _ in range(ROUNDS):
        for peer, done in runs.items():
            command = [sys.executable, __file__, "--one", peer, str(path), "sum" if add else "distinct"]
            done.append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
    return {
        peer: min(done, key=lambda run: run["seconds"]) | {"mib": max(run["mib"] for run in done)}
        for peer, done in runs.items()
    }


def main() -> None:
    """Measure, print the table, and write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        peer, path, task = arguments.one
        measure_here(peer, path, add=task == "sum")
        return

    figures: dict[str, dict[str, float]] = {}
    print(f"{ENTITIES:,} entities, a year of half hours      seconds  M events/s  peak MiB  times optstream  growth")
    with tempfile.TemporaryDirectory() as folder:
        for size in SIZES:
            write(Path(folder) / f"{size}.parquet", size)
        for task in ("distinct", "sum"):
            for size in SIZES:
                path = Path(folder) / f"{size}.parquet"
                rows = measure(path, add=task == "sum")
                # Rounding to the grid moves a sum by at most half a grid step per event, and far less on average.
                if abs(rows["pandas"]["total"] / rows["optstream"]["total"] - 1) > 1e-3:
                    sys.exit(f"{task}: the results differ, {rows}")
                for peer, row in rows.items():
                    figures[f"{task}, {size}, {peer}"] = row
                    ratio = row["seconds"] / rows["optstream"]["seconds"]
                    smaller = figures.get(f"{task}, {SIZES[0]}, {peer}", row)
                    growth = "" if size == SIZES[0] else f"x {row['seconds'] / smaller['seconds']:.1f}"
                    speed = size / row["seconds"] / 1e6
                    numbers = f"{row['seconds']:>8.2f} {speed:>11.1f} {row['mib']:>9.0f} {ratio:>16.2f}"
                    print(f"  {f'{task}, {size:,} events, {peer}':<40} {numbers}  {growth}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
