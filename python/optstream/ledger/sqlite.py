"""A ledger in a file, by SQLite."""

from __future__ import annotations

import os
import sqlite3
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optstream.errors import LedgerError
from optstream.ledger.database import Database

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optstream.ledger.database import Transaction

__all__ = ["SQLite"]

PRAGMAS = (
    "journal_mode = WAL",
    "foreign_keys = ON",
    # Observations of an open period are overwritten when they go.
    "secure_delete = ON",
    "trusted_schema = OFF",
)


class SQLite(Database[sqlite3.Connection]):
    """A file with a write-ahead log, forced to disk at every commit."""

    blob, clustered = "BLOB", "WITHOUT ROWID"
    # The message about a damaged file may quote bytes that are no text.
    errors, duplicates = (sqlite3.Error, UnicodeDecodeError), sqlite3.IntegrityError

    def __init__(self, path: str | Path, *, create: bool, timeout: float) -> None:
        """Make the file, readable by its owner alone, unless it exists."""
        super().__init__()
        self._path, self._timeout = Path(path).absolute(), timeout
        self.location = str(path)
        try:
            if create:
                with suppress(FileExistsError):
                    os.close(os.open(self._path, os.O_CREAT | os.O_EXCL, 0o600))
            elif not self._path.is_file():
                raise LedgerError(f"ledger {path} does not exist, but must")
        except (OSError, ValueError) as error:
            # A path that holds a null is a ValueError.
            reason = error.strerror if isinstance(error, OSError) else error
            raise LedgerError(f"ledger {path} cannot be made: {reason}") from None
        if damage := self._first_damage():
            raise LedgerError(f"ledger {path} is damaged and was refused: {damage}")

    def _connect(self, *, forced: bool) -> sqlite3.Connection:
        # Transactions are begun and ended by hand, so that it shows what is one.
        connection = sqlite3.connect(
            self._path.as_uri() + "?mode=rw",
            uri=True,
            timeout=self._timeout,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            for pragma in PRAGMAS:
                connection.execute(f"PRAGMA {pragma}")
            # The log is one file: who forces its end to the disk forces all of it.
            connection.execute(f"PRAGMA synchronous = {'FULL' if forced else 'NORMAL'}")
        except self.errors:
            connection.close()
            raise
        return connection

    def _close(self, connection: sqlite3.Connection) -> None:
        with suppress(sqlite3.Error):
            connection.close()

    def _is_alive(self, connection: sqlite3.Connection) -> bool:  # noqa: ARG002
        return True

    @contextmanager
    def _begin(self, connection: sqlite3.Connection, *, write: bool) -> Iterator[Transaction]:
        # What reads first and writes later could overspend; this transaction may write from its start.
        connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
        try:
            yield _Statements(connection)
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise

    def _alone(self, connection: sqlite3.Connection) -> Transaction:
        return _Statements(connection)

    def _explain(self, error: Exception) -> str:
        cause = str(error)
        if "locked" in cause:
            return f"{cause}: another process held it for {self._timeout:g} s"
        if "full" in cause:
            return f"{cause}; nothing was lost, make room and try again"
        if "readonly" in cause:
            return f"{cause}: it cannot be written"
        if isinstance(error, UnicodeDecodeError) or "malformed" in cause or "not a database" in cause:
            return f"{cause}: it is damaged, or not a ledger"
        return cause

    def version(self, reading: Transaction) -> int:
        """Return the version of the ledger's tables, 0 if there are none."""
        tables = [name for (name,) in reading.rows("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        if not tables:
            return 0
        if "optstream_ledger" not in tables:
            raise LedgerError(f"ledger {self.location} is a database with other tables, but must be a ledger")
        ((version,),) = reading.rows("SELECT version FROM optstream_ledger")
        return int(version)

    def lock_schema(self, change: Transaction) -> None:
        """Do nothing: a transaction that may write is alone."""

    def damage(self) -> list[str]:
        """Return what SQLite finds wrong with every page, index and reference."""
        with self.transaction(write=False) as reading:
            found = [row[0] for row in reading.rows("PRAGMA integrity_check")]
            lost = reading.rows("PRAGMA foreign_key_check")
        return [text for text in found if text != "ok"] + [
            f"row {row[1]} of {row[0]} refers to nothing" for row in lost
        ]

    def _first_damage(self) -> str | None:
        """Look at every page before anything is charged."""
        with self.transaction(write=False) as reading:
            ((found,),) = reading.rows("PRAGMA quick_check(1)")
        return None if found == "ok" else str(found)


@dataclass(frozen=True)
class _Statements:
    connection: sqlite3.Connection

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self.connection.execute(statement, values).fetchall()

    def write(self, statement: str, *rows: Sequence[Any]) -> int:
        if len(rows) == 1:
            return self.connection.execute(statement, rows[0]).rowcount
        return self.connection.executemany(statement, rows).rowcount
