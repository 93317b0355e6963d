"""What was released, as it is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optstream.errors import DataError, LedgerError
from optstream.mechanism.release import Parts

if TYPE_CHECKING:
    from optstream.ledger.database import Transaction
    from optstream.ledger.entries import Seals

__all__ = ["stored"]

STORED = (
    "SELECT number, kind, period, charge, plan, data, content, written, previous, hash, seal FROM optstream_entries"
    " WHERE stream = ? AND period BETWEEN ? AND ? AND kind = 'release' ORDER BY period"
)


def stored(reading: Transaction, seals: Seals, stream: str, first: int, last: int) -> dict[int, Parts]:
    """Return the releases of periods that are stored.

    Raises:
        LedgerError: One of them is not as it was written.
    """
    parts = {}
    for row in reading.rows(STORED, (stream, first, last)):
        entry = seals.read(stream, row, None)
        content = entry.content or b""
        try:
            parts[entry.period] = Parts.from_bytes(content)
        except (DataError, ValueError):
            raise LedgerError(f"the release of period {entry.period} of {stream!r} was altered") from None
    return parts
