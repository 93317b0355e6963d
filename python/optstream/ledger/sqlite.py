"""A ledger in a file, by SQLite.

POSIX locks belong to a process and a file: a fork loses them, and so does closing any descriptor of the file. Who then
closes the last connection that it knows of would delete the write-ahead log under a process that goes on writing to it.
So no connection lives across a fork, nothing else opens the file, closing never removes the log, and after every
transaction the file and the log at the path must be those that were written.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw

from optstream.errors import LedgerError
from optstream.ledger.database import Database

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optstream.ledger.database import Transaction

__all__ = ["SQLite", "check_nothing_left", "restore_file"]

PAGES = 1000
"""Pages that are copied at a time."""

PRAGMAS = (
    "journal_mode = WAL",
    "foreign_keys = ON",
    # Observations of an open period are overwritten when they go.
    "secure_delete = ON",
    "trusted_schema = OFF",
)
Place = tuple[int, int]
"""The device and the inode of a file."""


class FileConnection(apsw.Connection):
    """A connection that knows which log it writes to."""

    log: Place | None = None


class SQLite(Database[FileConnection]):
    """A file with a write-ahead log, forced to disk at every commit."""

    blob, clustered = "BLOB", "WITHOUT ROWID"
    survives_fork = False
    # The message about a damaged file may quote bytes that are no text.
    errors, duplicates = (apsw.Error, UnicodeDecodeError), apsw.ConstraintError

    def __init__(self, path: str | Path, *, create: bool, timeout: float) -> None:
        """Make the file, readable by its owner alone, unless it exists."""
        super().__init__()
        self._given, self._timeout = Path(path).absolute(), timeout
        self.location = str(path)
        try:
            if create and not self._given.exists():
                # A ledger whose file is gone is not a new one.
                check_nothing_left(self._given)
                with suppress(FileExistsError):
                    os.close(os.open(self._given, os.O_CREAT | os.O_EXCL, 0o600))
            self._path = Path(os.path.realpath(self._given))
            self._log = Path(f"{self._path}-wal")
            self._file = self._place()
        except (OSError, ValueError) as error:
            # A path that holds a null is a ValueError.
            reason = error.strerror if isinstance(error, OSError) else error
            if isinstance(error, FileNotFoundError) and not create:
                raise LedgerError(
                    f"ledger {path} does not exist, but must: `optstream ledger init` or create=True makes one. If "
                    "there was one, its budget is spent: find it, or restore a backup"
                ) from None
            raise LedgerError(f"ledger {path} cannot be made: {reason}") from None
        if damage := self._first_damage():
            raise LedgerError(f"ledger {path} is damaged and was refused: {damage}")

    def _place(self) -> Place:
        """Return which file is at the path; it must be one that its owner alone can read, under one name."""
        found = self._given.stat()
        if not stat.S_ISREG(found.st_mode):
            raise LedgerError(f"ledger {self.location} is not a regular file, but must be")
        if os.name == "posix" and found.st_mode & 0o077:
            raise LedgerError(
                f"ledger {self.location} has mode {stat.S_IMODE(found.st_mode):04o}, but must be closed to others: "
                f"chmod 600 {self.location}"
            )
        if found.st_nlink > 1:
            raise LedgerError(
                f"ledger {self.location} has {found.st_nlink} names, but must have one: by another name its log is not "
                "found. Remove the hard links"
            )
        return found.st_dev, found.st_ino

    def _log_place(self) -> Place | None:
        try:
            found = self._log.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _check_place(self, connection: FileConnection) -> None:
        """Raise unless the file and the log at the path are those of a connection."""
        try:
            file = self._place()
        except OSError:
            file = (0, 0)
        if file != self._file or connection.log is None or connection.log != self._log_place():
            raise LedgerError(
                f"ledger {self.location} or its log was deleted, moved or replaced while it was open: nothing was "
                "released. Put the file and its -wal back, or restore a backup, and open it again"
            )

    def _connect(self, *, forced: bool) -> FileConnection:
        connection = FileConnection(str(self._path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.set_busy_timeout(round(self._timeout * 1000))
            # Closing neither moves the log into the file nor removes it.
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            for pragma in PRAGMAS:
                connection.execute(f"PRAGMA {pragma}")
            # The log is one file: who forces its end to the disk forces all of it.
            connection.execute(f"PRAGMA synchronous = {'FULL' if forced else 'NORMAL'}")
            # Reading opens the log.
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
            connection.log = self._log_place()
            self._check_place(connection)
        except (*self.errors, LedgerError):
            connection.close()
            raise
        return connection

    def _close(self, connection: FileConnection) -> None:
        with suppress(apsw.Error):
            connection.close()

    def _last_words(self, connection: FileConnection) -> None:
        """Move the log into the file if nobody else is at it, and empty it; it stays where it is."""
        with suppress(*self.errors, LedgerError):
            self._check_place(connection)
            connection.set_busy_timeout(0)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _is_alive(self, connection: FileConnection) -> bool:  # noqa: ARG002
        return True

    @contextmanager
    def _begin(self, connection: FileConnection, *, write: bool) -> Iterator[Transaction]:
        # What reads first and writes later could overspend; this transaction may write from its start.
        connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
        try:
            yield _Statements(connection)
            connection.execute("COMMIT")
        except BaseException:
            with suppress(apsw.Error):
                connection.execute("ROLLBACK")
            raise

    def _alone(self, connection: FileConnection) -> Transaction:
        return _Statements(connection)

    def _explain(self, error: Exception) -> str:
        cause = str(error).removeprefix(f"{type(error).__name__}: ")
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
        if not isinstance(version, int):
            raise LedgerError(f"ledger {self.location} is damaged: its version cannot be read")
        return version

    def lock_schema(self, change: Transaction) -> None:
        """Do nothing: a transaction that may write is alone."""

    def backup(self, target: str | Path) -> None:
        """Write all that is in the database at one moment to a new file, while others go on."""
        made = _new_file(target)
        connection = self._borrow(forced=True)
        try:
            copy_file(connection, made)
        except BaseException as error:
            made.unlink(missing_ok=True)
            self._give_up(connection, error, forced=True)
            raise
        self._give_back(connection, forced=True)

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


def check_nothing_left(path: Path) -> None:
    """Raise if the log of another database is at a path: it would be played into whatever comes there.

    Raises:
        LedgerError: There is one.
    """
    real = os.path.realpath(path)
    for end in ("-wal", "-journal"):
        left = Path(f"{real}{end}")
        if left.exists() and left.stat().st_size:
            raise LedgerError(
                f"{path} does not exist, but its log {left.name} does: it belongs to a ledger whose file was moved or "
                "deleted. Put the file back, or move the log away"
            )


def _new_file(path: str | Path) -> Path:
    """Make a file that its owner alone can read."""
    try:
        check_nothing_left(Path(path))
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise LedgerError(f"backup {path} cannot be made: {reason}") from None
    return Path(path)


def copy_file(source: apsw.Connection, target: Path) -> None:
    """Copy all that is in a database to an empty file, mark it as a backup, and force it to the disk."""
    made = apsw.Connection(str(target), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        with made.backup("main", source, "main") as copying:
            while not copying.done:
                copying.step(PAGES)
        # One file, without a log beside it, is harder to leave incomplete.
        made.execute("PRAGMA journal_mode = DELETE")
        made.execute("UPDATE optstream_ledger SET backup = ?", (datetime.now(UTC).isoformat(),))
    finally:
        made.close()
    for place in (target, target.absolute().parent):
        descriptor = os.open(place, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def restore_file(source: str | Path, target: Path, identity: str | None) -> None:
    """Make a ledger of a backup, in a new file; with another identity if it must not be taken for what it was.

    Raises:
        LedgerError: The one is no backup, or the other exists.
    """
    made = _new_file(target)
    try:
        read = apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            marked = read.execute("SELECT backup FROM optstream_ledger").fetchall()
            if not marked or not marked[0][0]:
                raise LedgerError(
                    f"backup {source} is a ledger in use, but must be what `optstream ledger backup` wrote"
                )
            copy_file(read, made)
        finally:
            read.close()
        written = apsw.Connection(str(made), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            written.execute("UPDATE optstream_ledger SET backup = '', identity = coalesce(?, identity)", (identity,))
        finally:
            written.close()
    except (apsw.Error, UnicodeDecodeError) as error:
        made.unlink(missing_ok=True)
        raise LedgerError(f"backup {source} cannot be read: {type(error).__name__}") from None
    except BaseException:
        made.unlink(missing_ok=True)
        raise


@dataclass(frozen=True)
class _Statements:
    connection: FileConnection

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self.connection.execute(statement, values).fetchall()

    def write(self, statement: str, *rows: Sequence[Any]) -> int:
        before = self.connection.total_changes()
        if len(rows) == 1:
            self.connection.execute(statement, rows[0])
        else:
            self.connection.executemany(statement, rows)
        return self.connection.total_changes() - before

    def load(self, table: str, columns: str, rows: Sequence[Sequence[Any]]) -> None:
        places = ", ".join("?" * len(columns.split(",")))
        self.connection.executemany(f"INSERT INTO {table} ({columns}) VALUES ({places})", rows)  # noqa: S608
