"""Releases per second with a ledger, beside the bare release and beside one bare durable insert per release.

Every process releases period after period of a stream of its own; the peer inserts one row of the same size per
release, durably. Rounds of ours and of the peer take turns, because the speed of a disk changes from minute to minute.

    python tools/bench_ledger.py [--postgres URL] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sqlite3
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg

import optstream as ops

if TYPE_CHECKING:
    from collections.abc import Callable

W, ROUNDS, SECONDS = 48, 5, 1.0
DATA = 5000 + 1000 * np.sin(np.arange(W) / W * 2 * np.pi)
ROW = os.urandom(24 + 8 * W + 8 * 12 + 150)
"""As large as what a ledger stores for a period."""


def mechanism() -> ops.OptStream:
    """Return what is released."""
    return ops.OptStream(ops.Guarantee(epsilon=1.0, w=W), sample=ops.EqualSampling(k=12), bounds=(0, 20_000))


def bare_insert(url: str, name: str) -> Callable[[int], object]:
    """Return a durable insert of one row."""
    statement = "INSERT INTO bench_rows VALUES ({0}, {0}, {0})"
    if url.startswith("postgresql"):
        server = psycopg.connect(url, autocommit=True)
        text = statement.format("%s")
        return lambda number: server.execute(text, (name, number, ROW))
    file = sqlite3.connect(url, isolation_level=None, timeout=60)
    file.execute("PRAGMA journal_mode = WAL")
    file.execute("PRAGMA synchronous = FULL")
    return lambda number: file.execute(statement.format("?"), (name, number, ROW))


def ledger_release(url: str, name: str) -> Callable[[int], object]:
    """Return a release through the ledger."""
    ledger, made = ops.Ledger(url, create=True), mechanism()
    return lambda number: ledger.release(made, DATA, stream=name, period=number)


def worker(kind: str, url: str, name: str, barrier: Any, results: Any) -> None:
    """Count how often the work is done in one round after the other."""
    work = (ledger_release if kind == "ledger" else bare_insert)(url, name)
    number = 0
    for _ in range(ROUNDS):
        barrier.wait()
        start, before = time.perf_counter(), number
        while time.perf_counter() - start < SECONDS:
            work(number)
            number += 1
        results.put((number - before) / (time.perf_counter() - start))
        barrier.wait()


def per_second(database: str, url: str, processes: int) -> dict[str, list[float]]:
    """Return the rates of all processes together, for ledger and peer in turns."""
    context = multiprocessing.get_context("spawn")
    rates: dict[str, list[float]] = {"ledger": [], "insert": []}
    running = {}
    for kind in rates:
        barrier, results = context.Barrier(processes + 1), context.Queue()
        target = url if kind == "ledger" or database == "PostgreSQL" else f"{url}.peer"
        names = [f"{kind} {os.getpid()} {processes} {index}" for index in range(processes)]
        members = [context.Process(target=worker, args=(kind, target, name, barrier, results)) for name in names]
        for member in members:
            member.start()
        running[kind] = barrier, results, members
    for _ in range(ROUNDS):
        for kind, (barrier, results, _members) in running.items():
            barrier.wait()
            barrier.wait()
            rates[kind].append(sum(results.get() for _ in range(processes)))
    for _, _, members in running.values():
        for member in members:
            member.join()
    return rates


def prepare(url: str) -> None:
    """Make the peer's table."""
    table = "CREATE TABLE IF NOT EXISTS bench_rows (name TEXT, number BIGINT, content {}, PRIMARY KEY (name, number))"
    if url.startswith("postgresql"):
        with psycopg.connect(url, autocommit=True) as server:
            server.execute(table.format("BYTEA"))
    else:
        with sqlite3.connect(f"{url}.peer") as file:
            file.execute(table.format("BLOB"))


def main() -> None:
    """Measure, print the table, and write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--postgres", help="URL of a PostgreSQL database; by default that of tools/postgres")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    server = (
        arguments.postgres
        or subprocess.run(
            [Path(__file__).parent / "postgres", "start"], check=True, capture_output=True, text=True
        ).stdout.strip()
    )

    made, count = mechanism(), 2000
    made.release(DATA)
    start = time.perf_counter()
    for _ in range(count):
        made.release(DATA)
    bare = (time.perf_counter() - start) / count
    print(f"bare release of one period: {bare * 1e6:.0f} µs, {1 / bare:,.0f} per second")
    print("database     processes   releases/s   inserts/s   cost of a release in inserts (median of rounds, range)")
    figures: dict[str, Any] = {"bare_release_us": bare * 1e6}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        for database, url in (("SQLite", f"{folder}/ledger.db"), ("PostgreSQL", server)):
            prepare(url)
            for processes in (1, 4):
                rates = per_second(database, url, processes)
                ratios = [theirs / ours for ours, theirs in zip(rates["ledger"], rates["insert"], strict=True)]
                ours, theirs = (statistics.median(rates[kind]) for kind in ("ledger", "insert"))
                ratio = statistics.median(ratios)
                print(
                    f"{database:<14}{processes:>6}{ours:>14,.0f}{theirs:>12,.0f}{ratio:>12.2f}"
                    f"  ({min(ratios):.2f} to {max(ratios):.2f})"
                )
                figures[f"{database} {processes}"] = {"releases_s": ours, "inserts_s": theirs, "ratio": ratio}
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
