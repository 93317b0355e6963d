"""Kill processes that release through a ledger at random moments, and count what must not be there.

Processes release single periods, push observations, release in bulk and charge members of a pool; some work in a child
that they fork after the ledger was opened (a server that loads its application first), some in a daemon that outlives
its parent. After every round of kills an SQLite ledger is also copied by `backup` and restored beside it, with its
witness, and must be what it was. What processes were given is written to a journal before anything else happens.

    python tools/kills.py [--kills N] [--postgres URL]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psycopg

import optstream as ops
from optstream.privacy import accounting

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

W, PERIODS, PROCESSES, ROUND = 8, 400, 4, 50
GUARANTEE = ops.Guarantee(epsilon=1, w=W)
WHOLE = ops.OptStream(GUARANTEE, sample=ops.EqualSampling(k=4), bounds=(0, 1000))
HALF, THIRD = WHOLE.with_epsilon(Fraction(1, 2)), WHOLE.with_epsilon(Fraction(1, 3))
MEMBERS = ("trips", "fares", "zones")


def data(period: int) -> NDArray[np.float64]:
    """Return what every process observes in a period."""
    return 500 + 100 * np.sin(np.arange(W) + period)


def note(journal: int, stream: str, period: int, values: NDArray[np.float64]) -> None:
    """Write down what has left."""
    os.write(journal, f"{stream} {period} {hashlib.sha256(values.tobytes()).hexdigest()}\n".encode())


def single(ledger: ops.Ledger, journal: int, order: random.Random) -> None:
    """Release one period of a stream, sometimes with corrected data."""
    period = order.randrange(PERIODS)
    correction = order.randrange(2)
    values = ledger.release(WHOLE, data(period) + correction, stream="single", period=period).values
    note(journal, "single", period, values)


def pushed(ledger: ops.Ledger, journal: int, order: random.Random) -> None:
    """Push the next observations of a stream, as an engine that delivers at least once."""
    del order
    stream = ops.Stream(WHOLE, ledger=ledger, name="pushed", late="drop", duplicate="keep")
    kept = ledger.kept("pushed")
    step = max([*kept.values, -1 if kept.released is None else kept.released * W + W - 1]) + 1
    for at in range(step, step + 3):
        release = stream.push(at, float(data(at // W)[at % W]))
        if release is not None:
            note(journal, "pushed", release.period, release.values)


def bulk(ledger: ops.Ledger, journal: int, order: random.Random) -> None:
    """Release some periods of several streams at once."""
    first = order.randrange(PERIODS - 3)
    x = np.concatenate([data(period) for period in range(first, first + 3)])
    for name, made in ledger.release_many(WHOLE, dict.fromkeys(("one", "two", "three"), x), period=first).items():
        for index in range(3):
            note(journal, name, first + index, made.values[index * W : (index + 1) * W])


def shared(ledger: ops.Ledger, journal: int, order: random.Random) -> None:
    """Release a period of a member of a pool."""
    period, name = order.randrange(PERIODS), order.choice(MEMBERS)
    made = order.choice((HALF, THIRD))
    note(journal, name, period, ledger.release(made, data(period), stream=name, period=period).values)


PATHS: tuple[Callable[[ops.Ledger, int, random.Random], None], ...] = (single, pushed, bulk, shared)


def work(ledger: ops.Ledger, journal: int) -> None:
    """Release on all paths, for ever."""
    order = random.Random(os.urandom(8))  # noqa: S311
    while True:
        try:
            order.choice(PATHS)(ledger, journal, order)
        except (ops.BudgetError, ops.ConflictError, ops.StreamError):
            continue


def start(url: str, witness: str, journal: int, kind: int) -> int:
    """Start a process: one that works itself, one that forks after opening, or one whose child outlives it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setsid()
            ledger = ops.Ledger(url, witness=witness, timeout=60)
            if kind == 1:
                # The parent uses the ledger before and after the fork; the child is what is killed.
                single_once(ledger, journal)
                inner = os.fork()
                if inner:
                    os.write(writing, f"{inner}\n".encode())
                    os.waitpid(inner, 0)
                    os._exit(0)
            elif kind == 2:
                inner = os.fork()
                if inner:
                    os.write(writing, f"{inner}\n".encode())
                    ledger.close()
                    os._exit(0)
            if kind == 0:
                os.write(writing, f"{os.getpid()}\n".encode())
            work(ledger, journal)
        except BaseException:  # noqa: BLE001
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as told:
        line = told.readline()
    if not line:
        raise SystemExit("a process ended by itself")
    if kind == 2:
        os.waitpid(child, 0)
    return int(line)


def single_once(ledger: ops.Ledger, journal: int) -> None:
    """Release something before a fork, so that connections are open."""
    try:
        single(ledger, journal, random.Random(os.urandom(8)))  # noqa: S311
    except (ops.BudgetError, ops.ConflictError):
        return


def kill(process: int) -> None:
    """Kill a process, which must be alive."""
    os.kill(process, signal.SIGKILL)
    try:
        os.waitpid(process, 0)
    except ChildProcessError:
        # A daemon, or the child of a child: gone as soon as the system has noticed.
        while _alive(process):
            time.sleep(0.001)


def _alive(process: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return False


def prepare(url: str, witness: str) -> None:
    """Make the ledger with its streams and its pool."""
    with ops.Ledger(url, create=True, witness=witness) as ledger:
        for name in ("single", "pushed", "one", "two", "three"):
            ledger.create_stream(name, GUARANTEE)
        ledger.create_pool("riders", GUARANTEE)
        for name in MEMBERS:
            ledger.create_stream(name, GUARANTEE, pool="riders")


def over_policy(ledger: ops.Ledger, names: tuple[str, ...]) -> int:
    """Return how many windows over some streams cost more than they may, by the accountant alone."""
    costs = [
        accounting.moved(cost, entry.period * W)
        for name in names
        for entry in ledger.history(name)
        for cost in ledger._plans.costs(bytes.fromhex(entry.plan))  # noqa: SLF001
    ]
    return sum(cost > GUARANTEE.epsilon for cost in accounting.window_costs(costs, W)[1])


def examine(url: str, witness: str, journal: Path) -> dict[str, int]:
    """Return how often something is wrong."""
    given: dict[tuple[str, int], set[str]] = defaultdict(set)
    for line in journal.read_text().splitlines():
        name, number, digest = line.split()
        given[name, int(number)].add(digest)
    with ops.Ledger(url, witness=witness) as ledger:
        found = ledger.verify()
        lost = 0
        charged = {name: {entry.period for entry in ledger.history(name)} for name in ledger.streams}
        for (stream, period), digests in given.items():
            stored = ledger.stored(stream, period)
            right = stored is not None and hashlib.sha256(stored.values.tobytes()).hexdigest() in digests
            lost += not right or period not in charged[stream]
        over = sum(over_policy(ledger, (name,)) for name in ledger.streams) + over_policy(ledger, MEMBERS)
    for problem in found.problems:
        print(f"  problem: {problem}")
    return {
        "releases": len(given),
        "second forms": sum(len(digests) > 1 for digests in given.values()),
        "windows over policy": over,
        "lost charges": lost,
        "problems": len(found.problems),
    }


def restored(url: str, witness: str) -> str:
    """Replace a ledger that nobody uses by its restored backup; return where it is."""
    again = f"{url}.again"
    backup = Path(f"{url}.backup")
    with ops.Ledger(url, witness=witness) as ledger:
        ledger.backup(backup)
    ops.restore_ledger(backup, again, witness=witness)
    for end in ("", "-wal", "-shm"):
        Path(f"{url}{end}").unlink(missing_ok=True)
    backup.unlink()
    Path(again).rename(url)
    return url


def run(url: str, witness: str, journal: Path, kills: int) -> dict[str, int]:
    """Kill as often as asked, and examine what is left."""
    prepare(url, witness)
    descriptor = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    moment = random.Random(os.urandom(8))  # noqa: S311
    done = restores = 0
    kinds = [0, 0, 0]
    longest = 0.08
    while done < kills:
        running = [start(url, witness, descriptor, index % 3) for index in range(PROCESSES)]
        for _ in range(min(ROUND, kills - done)):
            # On a busy machine processes need longer until they do something that is worth a kill.
            longest = longest * 1.2 if os.fstat(descriptor).st_size < 100 * done else max(longest / 1.1, 0.08)
            time.sleep(moment.random() * min(longest, 2))
            kill(running.pop(moment.randrange(PROCESSES)))
            kind = done % 3
            kinds[kind] += 1
            running.append(start(url, witness, descriptor, kind))
            done += 1
        for process in running:
            kill(process)
        if not url.startswith("postgresql"):
            restored(url, witness)
            restores += 1
    os.close(descriptor)
    return {"kills": done, "forked": kinds[1], "daemons": kinds[2], "restores": restores} | examine(
        url, witness, journal
    )


def main() -> None:
    """Kill on both databases, print the counts, and fail if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=2000, help="on each kind of database")
    parser.add_argument("--postgres", help="URL of a PostgreSQL server; by default that of tools/postgres")
    arguments = parser.parse_args()
    server = (
        arguments.postgres
        or subprocess.run(
            [Path(__file__).parent / "postgres", "start"], check=True, capture_output=True, text=True
        ).stdout.strip()
    )
    name = f"kills_{os.getpid()}"
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        with psycopg.connect(server, autocommit=True) as made:
            made.execute(f"CREATE DATABASE {name}")
        try:
            places = {
                "SQLite": (f"{folder}/ledger.db", f"{folder}/witness.db"),
                "PostgreSQL": (f"{server.rsplit('/', 1)[0]}/{name}", f"{folder}/other.db"),
            }
            for database, (url, witness) in places.items():
                counts = run(url, witness, Path(folder) / f"{database}.journal", arguments.kills)
                print(f"{database}: " + ", ".join(f"{count} {what}" for what, count in counts.items()))
                wrong += sum(list(counts.values())[5:])
        finally:
            with psycopg.connect(server, autocommit=True) as made:
                made.execute(f"DROP DATABASE {name} WITH (FORCE)")
    if wrong:
        raise SystemExit(f"{wrong} things are wrong")


if __name__ == "__main__":
    main()
