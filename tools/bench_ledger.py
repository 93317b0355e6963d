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
from fractions import Fraction
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


def witnessed(database: str, url: str, folder: str) -> dict[str, float]:
    """Return what a release with a witness costs in bare inserts, in turns."""
    other = f"{folder}/witness.db" if database == "SQLite" else url
    with ops.Ledger(url, create=True, witness=other) as ledger:
        name = f"witness {os.getpid()}"
        made, insert = mechanism(), bare_insert(url if database == "PostgreSQL" else f"{url}.peer", name)
        ratios, number = [], 0
        for _ in range(ROUNDS):
            times = []
            for work in (lambda n: ledger.release(made, DATA, stream=name, period=n), insert):
                start = time.perf_counter()
                for index in range(number, number + 60):
                    work(index)
                times.append(time.perf_counter() - start)
            number += 60
            ratios.append(times[0] / times[1])
    return {"with a witness, in inserts": statistics.median(ratios)}


def in_bulk(url: str) -> dict[str, float]:
    """Return how many times as many releases per second bulk makes, in turns with single ones."""
    made, ratios = mechanism(), []
    with ops.Ledger(url, create=True) as ledger:
        for turn in range(ROUNDS):
            start = time.perf_counter()
            for number in range(60):
                ledger.release(made, DATA, stream=f"single {os.getpid()} {turn}", period=number)
            single = (time.perf_counter() - start) / 60
            many = {f"bulk {os.getpid()} {turn} {index}": np.tile(DATA, 20) for index in range(200)}
            start = time.perf_counter()
            ledger.release_many(made, many)
            ratios.append(single / ((time.perf_counter() - start) / 4000))
    return {"bulk, times as many per second": statistics.median(ratios)}


def looking_back(url: str) -> dict[str, float]:
    """Return what ``remaining`` and ``verify`` cost a period beside its release, and whether they are linear."""
    made, found = mechanism(), {}
    with ops.Ledger(url, create=True) as ledger:
        name = f"long {os.getpid()}"
        start = time.perf_counter()
        for number in range(200):
            ledger.release(made, DATA, stream=name, period=number)
        release = (time.perf_counter() - start) / 200
        for periods in (2000, 20_000):
            done = len(ledger.history(name))
            ledger.release_many(made, {name: np.tile(DATA, periods - done)}, period=done)
            start = time.perf_counter()
            ledger.remaining(name)
            found[f"remaining, a period of {periods:,} in releases"] = (time.perf_counter() - start) / periods / release
    return found


def verifying(url: str) -> dict[str, float]:
    """Return what ``verify`` costs a period beside a release, for a ledger of its own."""
    made, found = mechanism(), {}
    with ops.Ledger(url, create=True) as ledger:
        release = 0.0
        for periods in (2000, 20_000):
            done = len(ledger.history("v")) if "v" in ledger.streams else 0
            start = time.perf_counter()
            for number in range(done, done + 200):
                ledger.release(made, DATA, stream="v", period=number)
            release = (time.perf_counter() - start) / 200
            ledger.release_many(made, {"v": np.tile(DATA, periods - done - 200)}, period=done + 200)
            start = time.perf_counter()
            ledger.verify()
            found[f"verify, a period of {periods:,} in releases"] = (time.perf_counter() - start) / periods / release
    return found


def constant(url: str) -> dict[str, float]:
    """Return how much longer a release takes at period 100,000 than at period 10."""
    made, name = mechanism(), f"constant {os.getpid()}"
    with ops.Ledger(url, create=True) as ledger:

        def timed(first: int) -> float:
            start = time.perf_counter()
            for number in range(first, first + 200):
                ledger.release(made, DATA, stream=name, period=number)
            return time.perf_counter() - start

        timed(0)
        early = timed(200)
        for first in range(400, 100_000, 4980):
            ledger.release_many(made, {name: np.tile(DATA, 4980)}, period=first)
        return {"a release at period 100,000 beside one at 200": timed(100_000) / early}


def pooled(url: str) -> dict[str, float]:
    """Return what a release of a member of a pool of 20 costs beside one of a stream of its own, in turns."""
    made, ratios = mechanism().with_epsilon(Fraction(1, 20)), []
    with ops.Ledger(url, create=True) as ledger:
        pool = f"pool {os.getpid()}"
        ledger.create_pool(pool, ops.Guarantee(epsilon=1, w=W))
        for index in range(20):
            ledger.create_stream(f"{pool} {index}", made.guarantee, pool=pool)
            ledger.create_stream(f"alone {pool} {index}", made.guarantee)
        for turn in range(ROUNDS):
            times = []
            for kind in ("", "alone "):
                start = time.perf_counter()
                for number in range(turn * 5, turn * 5 + 5):
                    for index in range(20):
                        ledger.release(made, DATA, stream=f"{kind}{pool} {index}", period=number)
                times.append(time.perf_counter() - start)
            ratios.append(times[0] / times[1])
    return {"a member of a pool of 20, in single releases": statistics.median(ratios)}


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
    # On the disk of the project, which a folder for temporary files need not be on, where nothing is committed from.
    build = Path("build")
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build) as folder:
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
            more = witnessed(database, url, folder) | in_bulk(url) | pooled(url)
            if database == "SQLite":
                more |= looking_back(url) | verifying(f"{folder}/verified.db") | constant(url)
            for what, value in more.items():
                print(f"{database:<14}{what}: {value:.3g}")
            figures[f"{database} more"] = more
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
