"""A ledger in PostgreSQL, by psycopg."""

from __future__ import annotations

import select
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import IsolationLevel

from optstream.errors import LedgerError
from optstream.ledger.database import Database

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from optstream.ledger.database import Transaction

    Connection = psycopg.Connection[tuple[Any, ...]]

__all__ = ["Postgres"]

SCHEMA_LOCK = 0x6F707473
"""The advisory lock under which tables are made: "opts"."""


class _Patient(psycopg.Connection[tuple[Any, ...]]):
    """A connection that does not wait for ever for a server that hangs."""

    patience: float | None = None

    def wait(self, gen: Any, *limits: Any, **more: Any) -> Any:
        """Wait for an answer, but not longer than the patience."""
        return super().wait(gen if self.patience is None else self._hurried(gen, self.patience), *limits, **more)

    @staticmethod
    def _hurried(gen: Any, patience: float) -> Any:
        until = time.monotonic() + patience
        try:
            state = next(gen)
            while True:
                ready = yield state
                if not ready and time.monotonic() > until:
                    raise psycopg.OperationalError(f"the server has not answered for {patience:g} s")
                state = gen.send(ready)
        except StopIteration as end:
            return end.value


class Postgres(Database["Connection"]):
    """Tables whose names start with ``optstream_`` in a database that others may use too."""

    blob, clustered = "BYTEA", ""
    errors, duplicates = (psycopg.Error,), psycopg.errors.UniqueViolation

    def __init__(self, url: str, *, timeout: float) -> None:
        """Connect when it is needed."""
        super().__init__()
        self._url, self._timeout = url, timeout
        try:
            parts = psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.Error:
            parts = {}
        self.location = f"{parts.get('dbname', '')} on {parts.get('host', 'the local server')}"

    def _connect(self, *, forced: bool) -> Connection:
        connection: Connection = _Patient.connect(
            self._url, autocommit=True, connect_timeout=max(round(self._timeout), 2)
        )
        connection.patience = max(2 * self._timeout, 5)  # type: ignore[attr-defined]
        try:
            connection.execute(f"SET statement_timeout = {round(self._timeout * 1000)}")
            connection.execute(f"SET lock_timeout = {round(self._timeout * 1000)}")
            connection.execute("SET default_transaction_isolation = 'read committed'")
            ((commit,),) = connection.execute("SHOW synchronous_commit").fetchall()
            if not forced or commit == "off":
                connection.execute(f"SET synchronous_commit = {'on' if forced else 'off'}")
        except psycopg.Error:
            connection.close()
            raise
        return connection

    def _close(self, connection: Connection) -> None:
        with suppress(psycopg.Error):
            connection.close()

    def _is_alive(self, connection: Connection) -> bool:
        if connection.closed:
            return False
        # The server has nothing to say on an idle connection unless it has closed it.
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        return not poll.poll(0)

    @contextmanager
    def _begin(self, connection: Connection, *, write: bool) -> Iterator[Transaction]:
        # Who reads sees one moment. Who writes sees, after waiting for a row, what made it wait.
        level = IsolationLevel.READ_COMMITTED if write else IsolationLevel.REPEATABLE_READ
        connection.isolation_level = level
        with connection.transaction():
            yield _Statements(connection)

    def _alone(self, connection: Connection) -> Transaction:
        return _Statements(connection)

    def _explain(self, error: Exception) -> str:
        # The primary message alone: others may quote rows.
        primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
        return primary or str(error).strip() or type(error).__name__

    def version(self, reading: Transaction) -> int:
        """Return the version of the ledger's tables, 0 if there are none."""
        # Asked of the table of tables: what is cached of names may lag behind a lock that was waited for.
        tables = reading.rows(
            "SELECT 1 FROM pg_tables WHERE tablename = 'optstream_ledger' AND schemaname = ANY (current_schemas(false))"
        )
        if not tables:
            return 0
        ((version,),) = reading.rows("SELECT version FROM optstream_ledger")
        if not isinstance(version, int):
            raise LedgerError(f"ledger {self.location} is damaged: its version cannot be read")
        return version

    def lock_schema(self, change: Transaction) -> None:
        """Wait for the advisory lock of the ledger's tables."""
        change.rows("SELECT pg_advisory_xact_lock(?)", (SCHEMA_LOCK,))

    def backup(self, target: str | Path) -> None:
        """Refuse: a server has tools of its own."""
        raise LedgerError(
            f"ledger {self.location} is in PostgreSQL, but must be a file to be written to {target}: use pg_dump. What "
            "is restored from it is behind the witness if anything has left since"
        )

    def damage(self) -> list[str]:
        """Return nothing: a server looks after its files itself."""
        return []


@dataclass(frozen=True)
class _Statements:
    connection: Connection

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self.connection.execute(_numbered(statement), values).fetchall()

    def write(self, statement: str, *rows: Sequence[Any]) -> int:
        if len(rows) == 1:
            return self.connection.execute(_numbered(statement), rows[0]).rowcount
        with self.connection.cursor() as cursor:
            cursor.executemany(_numbered(statement), rows)
            return cursor.rowcount

    def load(self, table: str, columns: str, rows: Sequence[Sequence[Any]]) -> None:
        copying: Any = f"COPY {table} ({columns}) FROM STDIN"
        with self.connection.cursor() as cursor, cursor.copy(copying) as copy:
            for row in rows:
                copy.write_row(row)


def _numbered(statement: str) -> Any:
    return statement.replace("?", "%s")
