"""What streams remember for their estimates, as it follows from the releases that are stored.

A period is estimated from what was measured in all stored periods before it. What is remembered is kept with the
stream when a release is stored, so that nobody has to go through all releases again; it can always be made again from
them. It holds private values only.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream.errors import LedgerError, ParameterError
from optstream.ledger.database import raw
from optstream.ledger.releases import stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from optstream.estimate.memory import Memory
    from optstream.ledger.database import Database, Transaction
    from optstream.ledger.entries import Seals
    from optstream.mechanism.mechanism import Mechanism
    from optstream.mechanism.release import Parts

__all__ = ["Memories"]

KEEP = (
    "INSERT INTO optstream_memories (stream, period, state, seal) VALUES (?, ?, ?, ?) ON CONFLICT (stream) DO UPDATE"
    " SET period = excluded.period, state = excluded.state, seal = excluded.seal"
    " WHERE optstream_memories.period < excluded.period"
)
PLANS = "SELECT period, plan FROM optstream_entries WHERE stream = ? AND period BETWEEN ? AND ? AND kind = 'release'"
KEPT = "SELECT period, state, seal FROM optstream_memories WHERE stream = ?"


class Memories:
    """What this process knows of what streams remember."""

    def __init__(self, database: Database[Any], seals: Seals, mechanism_of: Callable[[bytes], Mechanism]) -> None:
        """Take the database, what seals, and what makes the mechanism of a plan."""
        self._database, self._seals, self._mechanism_of = database, seals, mechanism_of
        self._known: dict[str, Memory] = {}

    def before(self, stream: str, period: int, mechanism: Mechanism, start: Mapping[str, Any] | None) -> Memory:
        """Return what is remembered of all periods before one; the caller may change it, and give it back.

        Args:
            stream: The name of the stream.
            period: The period.
            mechanism: What will estimate it.
            start: What is remembered before the first period, if anything.
        """
        memory = self._known.pop(stream, None)
        fresh = mechanism.remembered(start)
        if memory is None or not memory.fits(fresh) or not _is_before(memory, period):
            memory = self._kept(stream, period, fresh)
        if memory.last != period - 1:
            for _ in self.replay(stream, period, memory):
                pass
        return memory

    def give_back(self, stream: str, memory: Memory, period: int, parts: Parts) -> None:
        """Keep what was changed by the release of a period, if that is what was stored."""
        measured = parts.measured[: len(memory.filters)]
        mine = [seen.values for seen in memory.understood]
        if memory.last == period and len(mine) == len(measured) and np.array_equal(mine, measured):
            self._known[stream] = memory

    def keep(self, change: Transaction, stream: str, memory: Memory) -> None:
        """Write down what is remembered at the end of a period, as part of a transaction."""
        state = json.dumps(memory.state()).encode()
        change.write(KEEP, (stream, memory.last, state, self._seal(stream, memory.last, state)))

    def check(self, reading: Transaction, stream: str) -> tuple[int, bytes] | None:
        """Return the last period that is kept of a stream, and the state after it.

        Raises:
            LedgerError: It is not what was written.
        """
        for last, state, sealed in reading.rows(KEPT, (stream,)):
            if raw(sealed) != self._seal(stream, last, raw(state)):
                raise LedgerError(f"what is remembered of {stream!r} was altered")
            return last, raw(state)
        return None

    def _seal(self, stream: str, last: int | None, state: bytes) -> bytes:
        return self._seals.code(b"memory", stream.encode(), str(last).encode(), state)

    def _kept(self, stream: str, period: int, fresh: Memory) -> Memory:
        with self._database.transaction(write=False) as reading:
            found = self.check(reading, stream)
        if found is None or found[0] >= period:
            return fresh
        try:
            return fresh.restored(json.loads(found[1]))
        except ParameterError:
            # Of another kind of estimate: what was measured is read again.
            return fresh

    def replay(self, stream: str, period: int, memory: Memory) -> Iterator[int]:
        """Remember one by one the stored periods before one that are missing, but for those that were not estimated."""
        first = 0 if memory.last is None else max(memory.last + 1, 0)
        with self._database.transaction(write=False) as reading:
            parts = stored(reading, self._seals, stream, first, period - 1)
            plans = {number: raw(made) for number, made in reading.rows(PLANS, (stream, first, period - 1))}
        made = {number: self._mechanism_of(plans[number]) for number in parts}
        for number, part in parts.items():
            if part.measured.size and len(part.measured) == len(memory.filters):
                made[number].finish(part, number, memory)
                yield number


def _is_before(memory: Memory, period: int) -> bool:
    return memory.last is None or memory.last < period
