"""A witness: another disk or database that knows how far a ledger has come.

A ledger that is restored from an older copy is intact, and has forgotten. The witness keeps the number and the hash of
the last entry of every stream from which something has left, and is advanced before it leaves. It holds nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optstream.errors import LedgerError
from optstream.ledger.database import raw

if TYPE_CHECKING:
    from optstream.ledger.database import Database, Transaction
    from optstream.ledger.log import Head

__all__ = ["Witness"]

TABLE = """
    CREATE TABLE IF NOT EXISTS optstream_witness (
        ledger TEXT NOT NULL, stream TEXT NOT NULL, number BIGINT NOT NULL, hash {blob} NOT NULL,
        PRIMARY KEY (ledger, stream))
    """
ADVANCE = (
    "INSERT INTO optstream_witness (ledger, stream, number, hash) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (ledger, stream) DO UPDATE SET number = excluded.number, hash = excluded.hash"
    " WHERE optstream_witness.number < excluded.number"
)
KNOWN = "SELECT stream, number, hash FROM optstream_witness WHERE ledger = ?"
AT = "SELECT hash FROM optstream_entries WHERE stream = ? AND number = ?"


class Witness:
    """What another place knows of a ledger."""

    def __init__(self, database: Database[Any], identity: str, *, create: bool) -> None:
        """Make the table if that is asked for."""
        self._database, self._identity = database, identity
        self._at: dict[str, int] = {}
        if create:
            with database.transaction() as change:
                database.lock_schema(change)
                change.write(TABLE.format(blob=database.blob), ())
                # A stream has no empty name: the row says that the ledger is known.
                change.write(ADVANCE, (identity, "", 0, b""))
        try:
            with database.transaction(write=False) as reading:
                rows = reading.rows(KNOWN, (identity,))
        except LedgerError:
            rows = []
        if not rows:
            database.close()
            raise LedgerError(
                f"witness {database.location} does not know the ledger {identity}: if that is right, open both once "
                "with create=True, which starts to witness it from where it is"
            )

    def check(self, reading: Transaction, location: str) -> None:
        """Raise unless a ledger holds all that the witness knows of it."""
        with self._database.transaction(write=False) as known:
            rows = known.rows(KNOWN, (self._identity,))
        for stream, number, hashed in rows:
            if number == 0:
                continue
            found = reading.rows(AT, (stream, number))
            if [raw(one) for (one,) in found] != [raw(hashed)]:
                raise LedgerError(
                    f"ledger {location} is behind its witness {self._database.location}: entry {number} of {stream!r}, "
                    "from which something has left, is not in it. It was restored from an older copy or replaced: put "
                    "the newest copy back. What has left since an older one cannot be known, so nothing may be "
                    "released from it"
                )

    def advance(self, stream: str, head: Head, reading_of: Any, location: str) -> None:
        """Note how far a stream has come, before anything leaves.

        Args:
            stream: The name of the stream.
            head: An entry that is on the disk.
            reading_of: Makes a transaction that reads the ledger.
            location: Where the ledger is.
        """
        if self._at.get(stream, 0) >= head.number:
            return
        row = (self._identity, stream, head.number, head.hash)
        if self._database.write_alone(ADVANCE, row) != 1:
            # Another process has come further; what it knows must be in the ledger.
            with reading_of() as reading:
                self.check(reading, location)
        self._at[stream] = head.number

    def close(self) -> None:
        """Close the connections."""
        self._database.close()
