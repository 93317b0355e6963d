"""Push steps from several processes that are killed at random moments; run as a program by test_step_ledger.py.

    python step_killing.py URL KILLS JOURNAL MECHANISM

All push the same observations of one stream, step by step, without a key: every draw is fresh, so that two draws of a
step would differ. Each writes what it was given to the journal before it goes on.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import optstream as ops
from optstream import baselines

if TYPE_CHECKING:
    from optstream.mechanism.mechanism import Mechanism

W, PROCESSES = 6, 3
MECHANISM = ops.OptStream(
    ops.Guarantee(epsilon=1, w=W),
    sample=ops.EqualSampling(k=W),
    perturb=ops.CubeNoise(block=3),
    reconstruct=ops.Estimate(season=1),
    bounds=(0, 1000),
)
ADAPTIVE = baselines.BudgetDistribution(ops.Guarantee(epsilon=1, w=W), bounds=(0, 1000))
MECHANISMS: dict[str, Mechanism] = {"estimate": MECHANISM, "adaptive": ADAPTIVE}


def observed(step: int) -> float:
    """Return what every process observes."""
    return 500.0 + step % 97


def work(url: str, journal: int, mechanism: Mechanism) -> None:
    """Push step after step from where the ledger is."""
    with ops.Ledger(url, timeout=300) as ledger:
        stream = ops.Stream(mechanism, ledger=ledger, name="pushed", emit="step")
        while True:
            kept = ledger.kept("pushed")
            step = max([*kept.values, -1 if kept.released is None else kept.released * W + W - 1]) + 1
            for number in (step, step - 1):
                if number >= 0:
                    release = stream.push(number, observed(number))
                    os.write(journal, f"{number} {release.value!r}\n".encode())


def main(url: str, kills: int, path: str, mechanism: Mechanism) -> None:
    """Kill and start processes."""
    journal = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with ops.Ledger(url, create=True, timeout=300) as ledger:
        ops.Stream(mechanism, ledger=ledger, name="pushed", emit="step", create=True)
    moments = random.Random(5)
    children: list[int] = []
    try:
        for _ in range(kills):
            before = last_step(path)
            while len(children) < PROCESSES:
                children.append(start(url, journal, mechanism))
            # However busy the machine is, something is released between two kills.
            while last_step(path) == before:
                if any(os.waitpid(child, os.WNOHANG)[0] for child in children):
                    raise SystemExit("a process ended by itself")
                time.sleep(0.01)
            time.sleep(moments.uniform(0, 0.3))
            kill(children.pop(moments.randrange(len(children))))
    finally:
        for child in children:
            kill(child)


def last_step(path: str) -> int:
    """Return the last step that a process was given."""
    lines = Path(path).read_text(encoding="ascii").splitlines()
    return max((int(line.split()[0]) for line in lines), default=-1)


def start(url: str, journal: int, mechanism: Mechanism) -> int:
    """Start a process that pushes."""
    child = os.fork()
    if child:
        return child
    try:
        work(url, journal, mechanism)
    except BaseException:  # noqa: BLE001
        sys.excepthook(*sys.exc_info())
    os._exit(1)


def kill(child: int) -> None:
    """Kill a process, unless it has ended by itself."""
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], MECHANISMS[sys.argv[4]])
