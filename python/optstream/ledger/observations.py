"""The open period of a stream, kept in the ledger so that it survives a restart.

These are raw values: the ledger that holds them is as secret as the data. They go when the period is released.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream.errors import LedgerError
from optstream.ledger.database import StaleError, raw
from optstream.ledger.releases import stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from optstream.ledger.database import Transaction
    from optstream.ledger.entries import Seals
    from optstream.mechanism.release import Parts

__all__ = ["Kept", "forgetter", "keep", "load", "problems"]

LOST = "SELECT content FROM optstream_entries WHERE stream = ? AND period = -1 AND kind = 'lost'"
CLOSED = (
    "SELECT period FROM optstream_entries WHERE stream = ? AND kind IN ('release', 'void') ORDER BY period DESC LIMIT 1"
)
RELEASED = "SELECT period FROM optstream_entries WHERE stream = ? AND kind = 'release' ORDER BY period DESC LIMIT 1"


@dataclass(frozen=True, repr=False)
class Kept:
    """What a ledger holds of a stream's open period."""

    revision: int
    """Grows with every change."""
    released: int | None
    """The last period that is released or void."""
    published: Parts | None
    """What was released of the last period that is released."""
    values: Mapping[int, NDArray[np.float64]]
    """The observation of each step, one number for every leaf."""


def load(reading: Transaction, seals: Seals, stream: str, w: int) -> Kept:
    """Return what is kept of a stream; nothing if the ledger does not know it."""
    revisions = reading.rows("SELECT revision FROM optstream_streams WHERE name = ?", (stream,))
    closed = reading.rows(CLOSED, (stream,))
    ends = [row[0] for row in closed]
    # What may have left before a restore is closed too.
    ends += [json.loads(raw(content))["last"] for (content,) in reading.rows(LOST, (stream,))]
    released = max(ends, default=None)
    # Periods may also have been released as a whole, in which case what is kept of them is of no use any more.
    rows = reading.rows(
        "SELECT step, value, seal FROM optstream_observations WHERE stream = ? AND step >= ? ORDER BY step",
        (stream, 0 if released is None else (released + 1) * w),
    )
    values = {}
    for step, value, seal in rows:
        if raw(seal) != _seal(seals, stream, step, raw(value)):
            raise LedgerError(f"the observation of step {step} of {stream!r} was altered")
        values[step] = np.frombuffer(raw(value), "<f8").astype(np.float64)
    published = None
    for (period,) in reading.rows(RELEASED, (stream,)):
        published = stored(reading, seals, stream, period, period)[period]
    return Kept(revisions[0][0] if revisions else 0, released, published, values)


def keep(
    change: Transaction,
    seals: Seals,
    stream: str,
    *,
    revision: int,
    forget: list[int],
    add: Mapping[int, NDArray[np.float64]],
) -> None:
    """Forget some steps and add others, provided that nobody else has changed the stream.

    Raises:
        StaleError: Somebody has; nothing was changed.
    """
    moved = change.write(
        "UPDATE optstream_streams SET revision = revision + 1 WHERE name = ? AND revision = ?", (stream, revision)
    )
    if moved != 1:
        raise StaleError(f"stream {stream!r} was changed by another process")
    if forget:
        change.write(
            "DELETE FROM optstream_observations WHERE stream = ? AND step = ?", *((stream, step) for step in forget)
        )
    if add:
        change.write(
            "INSERT INTO optstream_observations VALUES (?, ?, ?, ?)"
            " ON CONFLICT (stream, step) DO UPDATE SET value = excluded.value, seal = excluded.seal",
            *_rows(seals, stream, add),
        )


def forgetter(stream: str, first: int, last: int, w: int) -> Callable[[Transaction], None]:
    """Return what forgets the raw values of some periods, as part of a transaction; other processes then look again."""

    def forget(change: Transaction) -> None:
        change.write("UPDATE optstream_streams SET revision = revision + 1 WHERE name = ?", (stream,))
        change.write(
            "DELETE FROM optstream_observations WHERE stream = ? AND step BETWEEN ? AND ?",
            (stream, first * w, last * w + w - 1),
        )
        change.write("DELETE FROM optstream_pending WHERE stream = ? AND period BETWEEN ? AND ?", (stream, first, last))

    return forget


def problems(reading: Transaction, seals: Seals, stream: str) -> list[str]:
    """Return which observations of a stream are not as they were written."""
    rows = reading.rows("SELECT step, value, seal FROM optstream_observations WHERE stream = ?", (stream,))
    altered = [step for step, value, seal in rows if raw(seal) != _seal(seals, stream, step, raw(value))]
    return [f"the observation of step {step} of {stream!r} was altered" for step in altered]


def _rows(seals: Seals, stream: str, add: Mapping[int, NDArray[np.float64]]) -> Iterator[tuple[Any, ...]]:
    for step, value in add.items():
        content = value.astype("<f8").tobytes()
        yield stream, step, content, _seal(seals, stream, step, content)


def _seal(seals: Seals, stream: str, step: int, content: bytes) -> bytes:
    return seals.code(b"observation", stream.encode(), str(step).encode(), content)
