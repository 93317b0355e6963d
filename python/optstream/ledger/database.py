"""What a ledger needs of a database: durable transactions on connections that survive threads, forks and failures."""

from __future__ import annotations

import os
import random
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from threading import Condition, RLock, local
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from optstream.errors import LedgerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

__all__ = ["BehindError", "Database", "StaleError", "Transaction", "pause", "raw"]

Connection = TypeVar("Connection")


class StaleError(LedgerError):
    """Another process has written what this one was about to write; what it knows is out of date."""


class BehindError(StaleError):
    """Another process has appended to the log of a stream since this one has looked; nothing was written."""


def pause(attempt: int) -> None:
    """Wait for a random time, so that processes that met do not meet again."""
    time.sleep(random.random() * min(attempt, 10) / 1000)  # noqa: S311  (spreads processes, hides nothing)


def raw(value: Any) -> bytes:
    """Return the bytes of a column.

    Raises:
        LedgerError: It holds something else: an int would make that many bytes.
    """
    if not isinstance(value, (bytes, memoryview)):
        raise LedgerError(f"a row holds a value of type {type(value).__name__}, but must hold bytes: it was altered")
    return bytes(value)


class Transaction(Protocol):
    """Statements that are carried out together or not at all. Placeholders are question marks."""

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows that a statement asks for."""

    def write(self, statement: str, *rows: Sequence[Any]) -> int:
        """Carry out a statement once for every row of values; return how many rows of tables were written."""

    def load(self, table: str, columns: str, rows: Sequence[Sequence[Any]]) -> None:
        """Add many rows to a table, none of which may be there."""


class Database(ABC, Generic[Connection]):
    """A database with a pool of connections: one for every thread that is inside a transaction."""

    blob: str
    """The type of columns that hold bytes."""
    clustered: str
    """What follows a table that is kept in the order of its primary key."""
    location: str
    """Where it is, for messages; without a password."""
    errors: tuple[type[Exception], ...]
    """What the driver raises."""
    duplicates: type[Exception]
    """What the driver raises if a row with the same key is there."""

    survives_fork: bool = True
    """Whether a process may make connections although it has inherited some that were in use."""

    def __init__(self) -> None:
        """Start with no connection."""
        self._idle = _pools()
        self._gate = Condition(RLock())
        self._busy = 0
        self._mine = local()
        self._inherited: list[Any] = []
        self._forking = self._broken = self._closed = False
        EVERY.add(self)

    @abstractmethod
    def _connect(self, *, forced: bool) -> Connection:
        """Open a connection whose commits are on the disk before they return, or go there with the next such commit."""

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
    def _alone(self, connection: Connection) -> Transaction:
        """Return what carries out every statement as a transaction of its own."""

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
    def backup(self, target: str | Path) -> None:
        """Write all that is in the database to a new file, which is marked as a backup.

        Raises:
            LedgerError: The file exists or cannot be written, or the database has tools of its own.
        """

    @abstractmethod
    def damage(self) -> list[str]:
        """Return what the database itself finds wrong with its files."""

    @contextmanager
    def transaction(self, *, write: bool = True) -> Iterator[Transaction]:
        """Carry out statements together or not at all, and durably. One that only reads sees one moment.

        Raises:
            BehindError: A row with the same key is there; nothing was written.
            LedgerError: The database failed; nothing was written.
        """
        connection = self._borrow(forced=True)
        try:
            with self._begin(connection, write=write) as inside:
                yield inside
            self._check_place(connection)
        except BaseException as error:
            self._give_up(connection, error, forced=True)
            raise
        self._give_back(connection, forced=True)

    def write_alone(self, statement: str, values: Sequence[Any], *, forced: bool = True) -> int:
        """Carry out one statement as a transaction, without the journeys that one of several needs.

        One that is not forced to the disk is there at the latest when any later one that is forced returns, on whatever
        connection, because a database writes its log in order.
        """
        connection = self._borrow(forced=forced)
        try:
            written = self._alone(connection).write(statement, values)
            if forced:
                self._check_place(connection)
        except BaseException as error:
            self._give_up(connection, error, forced=forced)
            raise
        self._give_back(connection, forced=forced)
        return written

    def _give_up(self, connection: Connection, error: BaseException, *, forced: bool) -> None:
        """Put a connection back or away, and raise what the driver raised as an error of the ledger."""
        if isinstance(error, Exception) and not isinstance(error, self.errors):
            # The caller's own, raised inside a transaction that is rolled back by now.
            self._give_back(connection, forced=forced)
            return
        if isinstance(error, self.duplicates):
            # The database is well: it has refused a row that is there, and with it the whole transaction.
            self._give_back(connection, forced=forced)
            raise BehindError(f"ledger {self.location}: {self._explain(error)}") from error
        # After an error or an interrupt, which may have come at any point, the state of the connection is unknown.
        self._close(connection)
        self._done()
        if isinstance(error, self.errors):
            raise LedgerError(f"ledger {self.location}: {self._explain(error)}") from error

    def _give_back(self, connection: Connection, *, forced: bool) -> None:
        self._idle[forced].append(connection)
        self._done()

    def _done(self) -> None:
        """Note that a thread is out of a transaction."""
        with self._gate:
            self._busy -= 1
            self._mine.busy -= 1
            self._gate.notify_all()

    def close(self) -> None:
        """Close all connections."""
        self._closed = True
        with self._gate:
            self._close_idle(last=True)

    def _check_place(self, connection: Connection) -> None:
        """Raise unless what a connection has written is where the next process will look."""

    def _last_words(self, connection: Connection) -> None:
        """Do what is to be done before the last connection is closed."""

    def _close_idle(self, *, last: bool = False) -> None:
        for idle in self._idle.values():
            while idle:
                connection = idle.pop()
                if last and not self._busy and not any(self._idle.values()):
                    self._last_words(connection)
                self._close(connection)

    def _borrow(self, *, forced: bool) -> Connection:
        # Nobody passes while the process is being forked.
        with self._gate:
            own = getattr(self._mine, "busy", 0)
            # A thread that is inside a transaction is waited for, so it may begin another.
            self._gate.wait_for(lambda: not self._forking or own > 0)
            self._busy += 1
            self._mine.busy = own + 1
        try:
            return self._connection(forced=forced)
        except BaseException as error:
            self._done()
            if isinstance(error, self.errors):
                raise LedgerError(f"ledger {self.location}: {self._explain(error)}") from error
            raise

    def _connection(self, *, forced: bool) -> Connection:
        if self._closed:
            raise LedgerError(f"ledger {self.location} is closed, but must be open")
        if self._broken:
            raise LedgerError(
                f"ledger {self.location} was in use when this process was forked, and cannot be used here: open it "
                "after the fork"
            )
        idle = self._idle[forced]
        while idle:
            try:
                connection: Connection = idle.pop()
            except IndexError:
                # Another thread was faster.
                break
            if self._is_alive(connection):
                return connection
            self._close(connection)
        return self._connect(forced=forced)

    # No connection lives across a fork: locks of a file belong to the process that took them.

    def before_fork(self) -> None:
        """Let all transactions of other threads end, close the connections, and let nobody begin."""
        self._gate.acquire()
        self._forking = True
        own = getattr(self._mine, "busy", 0)
        self._gate.wait_for(lambda: self._busy <= own, timeout=PATIENCE)
        self._close_idle()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._forking = False
        self._gate.notify_all()
        self._gate.release()

    def after_fork_in_child(self) -> None:
        """Start without connections. What was in use is neither used nor closed here, so it is kept for good."""
        self._broken = self._busy > 0 and not self.survives_fork
        self._inherited.append(self._idle)
        self._idle, self._busy = _pools(), 0
        self._gate, self._mine, self._forking = Condition(RLock()), local(), False


def _pools() -> dict[bool, list[Any]]:
    return {True: [], False: []}


PATIENCE = 60
"""The most seconds that a fork waits for other threads to end their transactions."""
EVERY: WeakSet[Database[Any]] = WeakSet()
_forking: list[Database[Any]] = []


def _before_fork() -> None:
    _forking[:] = sorted(EVERY, key=id)
    for database in _forking:
        database.before_fork()


def _after_fork_in_parent() -> None:
    while _forking:
        _forking.pop().after_fork_in_parent()


def _after_fork_in_child() -> None:
    while _forking:
        _forking.pop().after_fork_in_child()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
