"""What a ledger needs of a database: durable transactions on connections that survive threads, forks and failures."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from optstream.errors import LedgerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

__all__ = ["Database", "Result", "Transaction"]

Connection = TypeVar("Connection")


class Result(Protocol):
    """What a statement gave. On a server it may be on its way until it is asked for."""

    @property
    def count(self) -> int:
        """The number of rows that were written."""

    def rows(self) -> list[tuple[Any, ...]]:
        """Return all rows."""


class Transaction(Protocol):
    """Statements that are carried out together or not at all. Placeholders are question marks."""

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Result:
        """Carry out a statement."""

    def execute_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> Result:
        """Carry out a statement once for every row of values."""


class Database(ABC, Generic[Connection]):
    """A database with a pool of connections: one for every thread that is inside a transaction."""

    blob: str
    """The type of columns that hold bytes."""
    lock: str
    """What a SELECT ends with in order to hold its rows until the transaction ends."""
    location: str
    """Where it is, for messages; without a password."""
    errors: tuple[type[Exception], ...]
    """What the driver raises."""

    def __init__(self) -> None:
        """Start with no connection."""
        self._idle: list[Connection] = []
        self._process = os.getpid()
        self._inherited: list[list[Connection]] = []
        self._closed = False

    @abstractmethod
    def _connect(self) -> Connection:
        """Open a connection that makes every commit durable."""

    @abstractmethod
    def _close(self, connection: Connection) -> None:
        """Close a connection, whatever state it is in."""

    @abstractmethod
    def _is_alive(self, connection: Connection) -> bool:
        """Whether an idle connection can be used."""

    @abstractmethod
    def _begin(self, connection: Connection, *, write: bool) -> AbstractContextManager[Transaction]:
        """Return a transaction that is committed at its end and rolled back on an exception."""

    @abstractmethod
    def _explain(self, error: Exception) -> str:
        """Return what went wrong in words that help."""

    @abstractmethod
    def version(self, reading: Transaction) -> int:
        """Return the version of the ledger's tables, 0 if there are none."""

    @abstractmethod
    def lock_schema(self, change: Transaction) -> None:
        """Let no other transaction make or change tables until this one ends."""

    @abstractmethod
    def damage(self) -> list[str]:
        """Return what the database itself finds wrong with its files."""

    @contextmanager
    def transaction(self, *, write: bool = True) -> Iterator[Transaction]:
        """Carry out statements together or not at all, and durably.

        Raises:
            LedgerError: The database failed; nothing was written.
        """
        try:
            connection = self._borrow()
            try:
                with self._begin(connection, write=write) as inside:
                    yield inside
            except self.errors:
                self._close(connection)
                raise
            except Exception:
                # The caller's own, raised inside a transaction that is rolled back by now.
                self._idle.append(connection)
                raise
            except BaseException:
                # An interrupt may have come at any point, so the state of the connection is unknown.
                self._close(connection)
                raise
            self._idle.append(connection)
        except self.errors as error:
            raise LedgerError(f"ledger {self.location}: {self._explain(error)}") from error

    def close(self) -> None:
        """Close all connections."""
        self._closed = True
        if self._process == os.getpid():
            while self._idle:
                self._close(self._idle.pop())

    def _borrow(self) -> Connection:
        if self._closed:
            raise LedgerError(f"ledger {self.location} is closed, but must be open")
        if self._process != os.getpid():
            # Connections of the parent process must be neither used nor closed here, so they are kept for good.
            self._inherited.append(self._idle)
            self._idle, self._process = [], os.getpid()
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:
                # Another thread was faster.
                break
            if self._is_alive(connection):
                return connection
            self._close(connection)
        return self._connect()
