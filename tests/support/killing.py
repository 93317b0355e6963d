"""Release from several processes that are killed at random moments; run as a program by test_crash.py.

    python killing.py URL KILLS JOURNAL

Processes release periods of one stream in random order, without a key, so that every draw is fresh and two draws of
a period would differ. Each writes what it was given to the journal, one line at a time. The parent kills them, with
SIGKILL, after random times, and starts others.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
import time
from typing import TYPE_CHECKING

import numpy as np

import optstream as ops

if TYPE_CHECKING:
    from numpy.typing import NDArray

W, PERIODS, PROCESSES = 8, 1000, 4
MECHANISM = ops.OptStream(ops.Guarantee(epsilon=1, w=W), sample=ops.EqualSampling(k=4), bounds=(0, 1000))
REMEMBERING = MECHANISM.changed(reconstruct=ops.Estimate(season=1))


def data(period: int) -> NDArray[np.float64]:
    """Return what every process observes in a period."""
    return 500 + 100 * np.sin(np.arange(W) + period)


def work(url: str, journal: int) -> None:
    """Release period after period, some of them again, and write down what came out."""
    order = random.Random(os.urandom(8))
    with ops.Ledger(url, create=True, timeout=300) as ledger:
        stream = ops.Stream(REMEMBERING, ledger=ledger, name="pushed", late="drop", duplicate="keep")
        while True:
            period = order.randrange(PERIODS)
            values = ledger.release(MECHANISM, data(period), stream="whole", period=period).values
            _note(journal, f"whole {period}", values)
            # All processes push the same observations to another stream, as an engine that delivers at least once.
            kept = ledger.kept("pushed")
            step = max([*kept.values, -1 if kept.released is None else kept.released * W + W - 1]) + 1
            try:
                release = stream.push(step, float(data(step // W)[step % W]))
            except (ops.StreamError, ops.ConflictError):
                # Another process has pushed the step, and more, since this one has looked.
                continue
            if release is not None:
                _note(journal, f"pushed {release.period}", release.values)


def _note(journal: int, what: str, values: NDArray[np.float64]) -> None:
    line = f"{what} {hashlib.sha256(values.tobytes()).hexdigest()}\n"
    os.write(journal, line.encode())


def start(url: str, journal: int) -> int:
    """Start a process."""
    child = os.fork()
    if child:
        return child
    try:
        work(url, journal)
    except BaseException:  # noqa: BLE001
        sys.excepthook(*sys.exc_info())
    os._exit(1)


def main() -> None:
    """Kill as often as asked."""
    url, kills, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    journal = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    moment = random.Random(os.urandom(8))
    running: list[int] = []
    try:
        running = [start(url, journal) for _ in range(PROCESSES)]
        longest = 0.06
        for done in range(kills):
            # On a busy machine processes need longer until they do something that is worth a kill.
            longest = longest * 1.2 if os.fstat(journal).st_size < 150 * done else max(longest / 1.1, 0.06)
            time.sleep(moment.random() * min(longest, 2))
            victim = running.pop(moment.randrange(PROCESSES))
            if not _killed(victim):
                raise SystemExit("a process ended by itself")
            running.append(start(url, journal))
    finally:
        for process in running:
            _killed(process)


def _killed(process: int) -> bool:
    """Kill a process; whether it was alive until then."""
    os.kill(process, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(process, 0)[1])


if __name__ == "__main__":
    main()
