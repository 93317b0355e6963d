"""The open period of a stream, kept in the ledger so that it survives a restart.

These are raw values: the ledger that holds them is as secret as the data. They go when the period is released.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optstream.errors import ParameterError
from optstream.ledger.database import StaleError
from optstream.ledger.rows import stored

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from optstream.ledger.database import Transaction
    from optstream.mechanism.release import Parts

__all__ = ["Kept", "keep", "load", "set_clock"]


@dataclass(frozen=True, repr=False)
class Kept:
    """What a ledger holds of a stream's open period."""

    revision: int
    """Grows with every change."""
    released: int | None
    """The last period that is released."""
    published: Parts | None
    """What was released of it."""
    values: Mapping[int, NDArray[np.float64]]
    """The observation of each step, one number for every leaf."""


def set_clock(change: Transaction, stream: str, clock: str) -> None:
    """Write down which time a step is, once.

    Raises:
        ParameterError: The stream has another clock.
    """
    change.write("UPDATE optstream_streams SET clock = ? WHERE name = ? AND clock IS NULL", (clock, stream))
    ((found,),) = change.rows("SELECT clock FROM optstream_streams WHERE name = ?", (stream,))
    if found != clock:
        raise ParameterError(f"stream {stream!r} counts {clock}, but was begun with {found}")


def load(reading: Transaction, stream: str, w: int) -> Kept:
    """Return what is kept of a stream; nothing if the ledger does not know it."""
    revisions = reading.rows("SELECT revision FROM optstream_streams WHERE name = ?", (stream,))
    ((released,),) = reading.rows("SELECT max(period) FROM optstream_releases WHERE stream = ?", (stream,))
    # Periods may also have been released as a whole, in which case what is kept of them is of no use any more.
    rows = reading.rows(
        "SELECT step, value FROM optstream_observations WHERE stream = ? AND step >= ? ORDER BY step",
        (stream, 0 if released is None else (released + 1) * w),
    )
    values = {step: np.frombuffer(bytes(value), "<f8").astype(np.float64) for step, value in rows}
    last = {} if released is None else stored(reading, stream, released, released)
    return Kept(revisions[0][0] if revisions else 0, released, last.get(released), values)


def keep(
    change: Transaction,
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
            "INSERT INTO optstream_observations VALUES (?, ?, ?)"
            " ON CONFLICT (stream, step) DO UPDATE SET value = excluded.value",
            *((stream, step, value.astype("<f8").tobytes()) for step, value in add.items()),
        )
