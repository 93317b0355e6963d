"""Processes that release and retry are killed at random moments; what they were given must still hold."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from killing import MECHANISM, REMEMBERING, W, data

import optstream as ops

KILLS = 200
"""For each kind of database."""


@pytest.mark.slow
def test_nothing_is_lost_or_released_twice_when_processes_are_killed(ledger_url: str, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    subprocess.run(
        [sys.executable, Path(__file__).parents[1] / "support" / "killing.py", ledger_url, str(KILLS), journal],
        check=True,
        timeout=500,
    )
    given: dict[tuple[str, int], set[str]] = defaultdict(set)
    for line in journal.read_text().splitlines():
        name, number, digest = line.split()
        given[name, int(number)].add(digest)
    assert len(given) > 100, "too little was released for the test to say anything"
    # No period has left in two forms.
    assert {key: digests for key, digests in given.items() if len(digests) > 1} == {}

    with ops.Ledger(ledger_url, create=True) as ledger:
        # No window is over budget, no row is damaged.
        found = ledger.verify()
        assert found.problems == ()
        for (stream, period), (digest,) in given.items():
            # Everything that has left is stored, and charged.
            stored = ledger.stored(stream, period)
            assert hashlib.sha256(stored.values.tobytes()).hexdigest() == digest
        charged = [entry for entry in ledger.history("whole") if entry.released is None]
        before = ledger.remaining("whole")
        for entry in charged:
            # A charge without a release is taken up again and not charged twice.
            ledger.release(MECHANISM, data(entry.period), stream="whole", period=entry.period)
        assert ledger.remaining("whole") == before
        assert ledger.verify().problems == ()
        # Every pushed period is whole: the observations survived the processes that had brought them.
        last = max((p for s, p in given if s == "pushed"), default=-1)
        for period in range(last):
            assert ledger.stored("pushed", period).values.shape == (W,)
        # What is remembered of them is what all that was stored says.
        replayed = REMEMBERING.remembered()
        assert list(ledger._memories.replay("pushed", last + 1, replayed)) == list(range(last + 1))
        kept = ledger._memories.before("pushed", last + 1, REMEMBERING, None)
        assert json.dumps(kept.state()) == json.dumps(replayed.state())
