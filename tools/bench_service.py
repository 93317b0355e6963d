"""The service beside one bare durable insert on the same database, beside a flood of strangers, and over ten minutes.

Single observations, batches of 48 and inserts of the peer take turns, because the speed of a disk changes from moment
to moment. All figures are ratios within one run.

    python tools/bench_service.py [--postgres URL] [--minutes 10] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import multiprocessing
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import psycopg
from bench_ledger import bare_insert, prepare

import optstream as ops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[1]
W, ROUNDS, EACH = 48, 60, 3
STRANGERS, FLOOD_SECONDS = 40, 8.0
PAGES = ("/overview", "/streams/shown/periods?limit=100", "/streams/shown/budget", "/", "/openapi.json", "/readyz")
"""What may be asked without a token."""
BOUNDS = {"single": 6.0, "batched": 0.1, "flood": 5.0, "memory": 1.05}


class Client:
    """A client of the service that keeps its connection."""

    def __init__(self, port: int, token: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._next = {"load": 0, "slow": 0, "soak": 0}

    def push(self, stream: str, count: int) -> None:
        """Send the next observations of a stream."""
        first = self._next[stream]
        self._next[stream] += count
        observations = [{"when": step, "value": 5000 + step % W} for step in range(first, first + count)]
        body = json.dumps({"observations": observations})
        self._connection.request("POST", f"/streams/{stream}/observations", body, self._headers)
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{answer.status}: {content.decode()}")

    def get(self, path: str) -> None:
        """Read a page as a stranger does."""
        self._connection.request("GET", path)
        self._connection.getresponse().read()


@contextmanager
def serving(url: str, folder: Path) -> Iterator[tuple[int, str, int]]:
    """Serve streams of a new ledger; give the port, the token and the process."""
    token = secrets.token_urlsafe(32)
    (folder / "plan.toml").write_text(
        'epsilon = 1\nw = 48\nalpha = 10\nbounds = [0, 20_000]\nsample = { kind = "equal", k = 12 }\n'
    )
    with ops.Ledger(url, create=True) as ledger:
        identity = ledger.identity
        shown = ops.read_plan(folder / "plan.toml")
        ledger.release(shown, np.full(100 * W, 5000.0), stream="shown")
    streams = "".join(f'[streams.{name}]\nplan = "plan.toml"\n' for name in ("load", "slow", "soak"))
    (folder / "service.toml").write_text(
        f'[ledger]\nurl = {json.dumps(url)}\nidentity = "{identity}"\n{streams}'
        '[streams.shown]\nplan = "plan.toml"\npublic = true\n'
        f'[tokens.bench]\nsha256 = "{sha256(token.encode()).hexdigest()}"\nwrite = ["*"]\nread = ["*"]\n'
        "per_second = 1_000_000\nburst = 1_000_000\n"
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "optstream",
        "serve",
        "--config",
        str(folder / "service.toml"),
        "--port",
        str(port),
    ]
    with (folder / "service.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        _wait(port, process, folder / "service.log")
        yield port, token, process.pid
    finally:
        process.terminate()
        process.wait(60)


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    while process.poll() is None:
        try:
            Client(port, "").get("/readyz")
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit(log.read_text())


def seconds(work: Callable[[int], object], count: int) -> float:
    """Return the time of one of several calls."""
    begun = time.perf_counter()
    for number in range(count):
        work(number)
    return (time.perf_counter() - begun) / count


def costs(client: Client, insert: Callable[[int], object]) -> dict[str, float]:
    """Return what an observation costs in bare inserts, alone and in a batch."""
    # Batches that complete a period each: their release is part of what they cost.
    client.push("slow", W)
    total = {"insert": 0.0, "single": 0.0, "batched": 0.0}
    for turn in range(ROUNDS):
        total["insert"] += seconds(lambda number, turn=turn: insert(turn * EACH + number), EACH)  # type: ignore[misc]
        total["single"] += seconds(lambda _: client.push("load", 1), EACH)
        total["batched"] += seconds(lambda _: client.push("slow", W), EACH) / W
    print(f"  a bare insert takes {1000 * total['insert'] / ROUNDS:.2f} ms")
    return {name: total[name] / total["insert"] for name in ("single", "batched")}


def flood(port: int, page: str, end: float) -> None:
    """Ask for a page again and again, with many connections."""

    async def stranger() -> None:
        request = f"GET {page} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        while time.time() < end:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                while time.time() < end:
                    writer.write(request)
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                    await reader.readexactly(length)
                writer.close()
            except (OSError, EOFError, IndexError):
                await asyncio.sleep(0.01)

    async def all_of_them() -> None:
        await asyncio.gather(*(stranger() for _ in range(STRANGERS)))

    asyncio.run(all_of_them())


def flooded(client: Client, port: int) -> tuple[str, float]:
    """Return the slowest page, and how much slower a push is while strangers ask for it."""
    stranger = Client(port, "")
    slowest = max(PAGES, key=lambda page: seconds(lambda _: stranger.get(page), 3))
    times: dict[str, list[float]] = {"quiet": [], "loud": []}
    for _ in range(3):
        times["quiet"] += [seconds(lambda _: client.push("load", 1), 1) for _ in range(30)]
        end = time.time() + FLOOD_SECONDS
        crowd = multiprocessing.get_context("spawn").Process(target=flood, args=(port, slowest, end))
        crowd.start()
        time.sleep(2)
        while time.time() < end - 1:
            times["loud"].append(seconds(lambda _: client.push("load", 1), 1))
        crowd.join()
    return slowest, statistics.median(times["loud"]) / statistics.median(times["quiet"])


def resident(process: int) -> float:
    """Return the memory of a process in megabytes."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def soak(client: Client, port: int, process: int, minutes: float) -> dict[str, float]:
    """Return the memory after a fifth of the time and at its end, under writing, reading and refusals."""
    begun, early, turn = time.monotonic(), 0.0, 0
    stranger = Client(port, "")
    while (past := time.monotonic() - begun) < 60 * minutes:
        client.push("soak", W if turn % 4 else 1)
        if turn % 4 == 0:
            client.push("soak", W - 1)
        if turn % 20 == 0:
            stranger.get(PAGES[turn // 20 % len(PAGES)])
        turn += 1
        if not early and past > 12 * minutes:
            early = resident(process)
    return {"early_mb": early, "late_mb": resident(process), "requests": float(turn)}


@contextmanager
def fresh_database(server: str) -> Iterator[str]:
    """Make a database of our own, and take it away again."""
    name = f"bench_{secrets.token_hex(8)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    try:
        yield urlsplit(server)._replace(path=f"/{name}").geturl()
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def measure(database: str, url: str, folder: Path, minutes: float) -> dict[str, Any]:
    """Measure on one database; the long run is for the last one."""
    prepare(url)
    peer = url if database == "PostgreSQL" else f"{url}.peer"
    with serving(url, folder) as (port, token, process):
        client = Client(port, token)
        found: dict[str, Any] = costs(client, bare_insert(peer, "bench"))
        found["slowest"], found["flood"] = flooded(client, port)
        if minutes:
            found |= soak(client, port, process, minutes)
            found["memory"] = found["late_mb"] / found["early_mb"]
    return found


def main() -> None:
    """Measure, print the table, and write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--postgres", help="URL of a PostgreSQL database; by default that of tools/postgres")
    parser.add_argument("--minutes", type=float, default=10.0, help="length of the long run, on SQLite; 0 for none")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    start: list[str] = [str(ROOT / "tools" / "postgres"), "start"]
    server = arguments.postgres or subprocess.run(start, check=True, capture_output=True, text=True).stdout.strip()
    figures: dict[str, Any] = {}
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder, fresh_database(server) as other:
        for database, url in (("PostgreSQL", other), ("SQLite", f"{folder}/ledger.db")):
            minutes = arguments.minutes if database == "SQLite" else 0
            figures[database] = found = measure(database, url, Path(folder), minutes)
            print(f"{database}: one observation costs {found['single']:.2f} bare inserts (at most 6)")
            print(f"  one of a batch of {W} costs {found['batched']:.3f} (at most 0.1), its release included")
            slowest, slower = found["slowest"], found["flood"]
            print(f"  {STRANGERS} strangers at {slowest}: a push takes {slower:.2f} times as long (at most 5)")
            if minutes:
                early, late = found["early_mb"], found["late_mb"]
                print(f"  memory {early:.1f} MB after {minutes / 5:g} min, {late:.1f} MB after {minutes:g} min")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2))
    missed = [
        f"{database} {name}"
        for database, found in figures.items()
        for name, bound in BOUNDS.items()
        if found.get(name, 0) > bound
    ]
    if missed:
        raise SystemExit(f"above its bound: {', '.join(missed)}")


if __name__ == "__main__":
    main()
