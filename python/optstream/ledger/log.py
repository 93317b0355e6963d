"""The log of a stream: appended to by who knows all of it.

Every entry has the number after the last one. A process decides by all entries up to the last that it knows of, and
appends with the next number and the hash of that last one. Two rows cannot have the same number, and no row ever
changes or goes, so if another process has appended anything in the meantime, nothing is written and the decision is
made again. No lock is held while a process thinks.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from optstream.errors import LedgerError, ParameterError, UnknownStreamError
from optstream.ledger.database import BehindError
from optstream.ledger.entries import NOWHERE, Draft, LogEntry, Seals, State, followed, policy_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from optstream.ledger.database import Database, Transaction
    from optstream.privacy.guarantee import Guarantee

__all__ = ["LARGEST", "Head", "Log", "View", "policy_draft"]

LARGEST = 2**40
"""Periods are numbered below this, so that steps and costs stay far from the limits of any database."""
CHUNK = 4096
"""Entries that are read at a time when all are looked at."""

COLUMNS = "number, kind, period, charge, plan, data, content, written, previous, hash, seal"
LIGHT = COLUMNS.replace("content", "CASE WHEN kind IN ('release', 'step') THEN NULL ELSE content END")
# Nothing but names of columns is put into these statements.
# ruff: noqa: S608
INSERT = f"INSERT INTO optstream_entries (stream, {COLUMNS})"
FIRST = f"{INSERT} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
NEXT = (
    f"{INSERT} SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?"
    " WHERE EXISTS (SELECT 1 FROM optstream_entries WHERE stream = ? AND number = ? AND hash = ?)"
    " ON CONFLICT DO NOTHING"
)
HEAD = "SELECT number, hash FROM optstream_entries WHERE stream = ? ORDER BY number DESC LIMIT 1"
LAST_RELEASE = (
    "SELECT number, hash FROM optstream_entries WHERE stream = ? AND kind IN ('release', 'step')"
    " ORDER BY number DESC LIMIT 1"
)
AT = "SELECT hash FROM optstream_entries WHERE stream = ? AND number = ?"
ONWARD = f"SELECT {LIGHT} FROM optstream_entries WHERE stream = ? AND number > ? ORDER BY number LIMIT {CHUNK}"
ABOUT = f"SELECT {LIGHT} FROM optstream_entries WHERE stream = ? AND period BETWEEN ? AND ? ORDER BY number"
LATER = "SELECT min(period) FROM optstream_entries WHERE stream = ? AND period > ?"


class Head(NamedTuple):
    """The last entry of a log."""

    number: int
    hash: bytes


@dataclass(frozen=True)
class View:
    """What a process knows of a stream: all that its log says up to the head about a range of periods."""

    stream: str
    policy: Guarantee
    key_check: bytes
    """Which curator's key seals the entries; empty if none does."""
    head: Head
    clock: str | None = None
    larger: frozenset[bytes] = frozenset()
    """Plans whose description another build prices in another way: what costs more is charged."""
    periods: range = range(0)
    states: Mapping[int, State] = field(default_factory=dict)

    def covers(self, periods: Sequence[int]) -> bool:
        """Whether nothing else needs to be known to decide about periods: what is released stays so."""
        inside = periods[0] - 1 in self.periods and periods[-1] + 1 in self.periods
        return inside and all(period not in self.states or self.states[period].release for period in periods)

    def after(self, entries: Iterable[LogEntry]) -> View:
        """Return what is known after more entries."""
        changed: dict[str, Any] = {}
        states = dict(self.states)
        head, larger = self.head, self.larger
        for entry in entries:
            head = Head(entry.number, entry.hash)
            match entry.kind:
                case "policy":
                    changed["policy"], _ = policy_of(entry.content or b"")
                case "plan":
                    larger |= {entry.plan}
                case "clock":
                    changed["clock"] = (entry.content or b"").decode()
                case _ if entry.period in self.periods:
                    states[entry.period] = followed(self.stream, states.get(entry.period), entry)
        return replace(self, head=head, larger=larger, states=states, **changed)

    def pruned(self, begin: int) -> View:
        """Return the view without what the periods from one on do not meet."""
        kept = {period: state for period, state in self.states.items() if period >= begin}
        return replace(self, periods=range(max(begin, self.periods.start), self.periods.stop), states=kept)


class Log:
    """The logs of all streams, and what this process has seen of them."""

    def __init__(self, database: Database[Any], seals: Seals) -> None:
        """Start without having seen anything."""
        self.database, self.seals = database, seals
        self._seen: dict[str, Head] = {}
        self.durable: dict[str, Head] = {}
        """What this process has seen on the disk: it must stay there."""

    def look(self, stream: str, first: int, last: int) -> View:
        """Return all that the log says about some periods and those next to them, in one moment.

        Raises:
            UnknownStreamError: There is no such stream.
            LedgerError: An entry was altered, or entries are missing that were there.
        """
        with self.database.transaction(write=False) as reading:
            return self.view(reading, stream, first, last)

    def view(self, reading: Transaction, stream: str, first: int, last: int) -> View:
        """Return the same as part of a transaction."""
        head = self._checked_head(reading, stream)
        base = reading.rows(ABOUT, (stream, NOWHERE, NOWHERE))
        begin = first - 1
        rows = reading.rows(ABOUT, (stream, max(begin, 0), last + 1))
        ((later,),) = reading.rows(LATER, (stream, max(last + 1, NOWHERE)))
        view = self._begun(stream, base[0])
        view = replace(view, periods=range(begin, LARGEST + 2 if later is None else later))
        entries = [self.seals.read(stream, row, view.key_check) for row in (*base[1:], *rows)]
        return replace(view.after(entries), head=head)

    def all(self, reading: Transaction, stream: str, note: Callable[[str], None] | None = None) -> View:
        """Return what the log says about every period. Problems are noted, or raised if nothing notes them."""
        rows = self.rows(reading, stream)
        first = next(rows, None)
        if first is None:
            raise _unknown(stream)
        view = self._begun(stream, first)
        states: dict[int, State] = {}
        clean: list[LogEntry] = []
        number, previous = 1, bytes(first[9])
        for row in rows:
            try:
                entry = self.seals.read(stream, row, view.key_check)
                _check_next(stream, Head(number, previous), entry)
                if entry.period == NOWHERE:
                    clean.append(entry)
                else:
                    states[entry.period] = followed(stream, states.get(entry.period), entry)
            except LedgerError as error:
                if note is None:
                    raise
                note(str(error))
            if isinstance(row[0], int):
                number, previous = row[0], bytes(row[9])
        view = replace(view.after(clean), periods=range(-1, LARGEST + 2), states=states)
        return replace(view, head=Head(number, previous))

    def rows(self, reading: Transaction, stream: str, after: int = 0) -> Iterator[tuple[Any, ...]]:
        """Yield all rows of a stream in their order."""
        while rows := reading.rows(ONWARD, (stream, after)):
            yield from rows
            after = rows[-1][0]

    def append(
        self,
        view: View,
        drafts: Sequence[Draft],
        *,
        forced: bool = True,
        also: Callable[[Transaction], None] | None = None,
    ) -> View:
        """Append entries to what a view knows, together with whatever else a transaction is to do.

        Args:
            view: What is known.
            drafts: What the entries say.
            forced: Whether it must be on the disk before this returns. One entry alone need not be if a later one that
                is forced comes before anything leaves.
            also: Part of the transaction.

        Raises:
            BehindError: Another process has appended something since; nothing was written.
        """
        self.check_key(view)
        entries = self.sealed(view, drafts)
        rows = [(view.stream, *entry) for entry in entries]
        condition = (view.stream, *view.head)
        if len(rows) == 1 and also is None:
            written = self.database.write_alone(NEXT, (*rows[0], *condition), forced=forced)
            if written != 1:
                raise BehindError(f"stream {view.stream!r} was changed by another process")
        else:
            forced = True
            with self.database.transaction() as change:
                self.write(change, view, entries)
                if also is not None:
                    also(change)
        after = view.after(entries)
        if forced:
            self.durable[view.stream] = after.head
        return after

    def write(self, change: Transaction, view: View, entries: Sequence[LogEntry]) -> None:
        """Append entries as part of a transaction."""
        rows = [(view.stream, *entry) for entry in entries]
        written = change.write(NEXT, (*rows[0], view.stream, *view.head))
        if rows[1:]:
            written += change.write(FIRST, *rows[1:])
        if written != len(rows):
            raise BehindError(f"stream {view.stream!r} was changed by another process")

    def sealed(self, view: View, drafts: Sequence[Draft]) -> list[LogEntry]:
        """Return drafts as the entries that come after what a view knows."""
        now, head = datetime.now(UTC).isoformat(), view.head
        entries = []
        for draft in drafts:
            entry = self.seals.entry(view.stream, draft, head.number + 1, now, head.hash)
            entries.append(entry)
            head = Head(entry.number, entry.hash)
        return entries

    def begin(self, change: Transaction, stream: str, policy: Guarantee) -> None:
        """Write a stream down with its first entry, unless it is there."""
        if change.rows(AT, (stream, 1)):
            return
        draft = policy_draft(policy, self.seals.check)
        entry = self.seals.entry(stream, draft, 1, datetime.now(UTC).isoformat(), b"")
        change.write("INSERT INTO optstream_streams (name) VALUES (?) ON CONFLICT DO NOTHING", (stream,))
        change.write(FIRST, (stream, *entry))

    def head(self, reading: Transaction, stream: str) -> Head:
        """Return the last entry of a stream."""
        for number, hashed in reading.rows(HEAD, (stream,)):
            return Head(number, bytes(hashed))
        raise _unknown(stream)

    def last_release(self, reading: Transaction, stream: str) -> Head | None:
        """Return the last entry that has released something; it is on the disk."""
        rows = reading.rows(LAST_RELEASE, (stream,))
        return Head(rows[0][0], bytes(rows[0][1])) if rows else None

    def check_key(self, view: View) -> None:
        """Raise if a stream was begun with another key."""
        if view.key_check != self.seals.check:
            given = {True: "with a key", False: "without a key"}
            begun, mine = bool(view.key_check), bool(self.seals.check)
            raise ParameterError(
                f"stream {view.stream!r} was begun {given[begun]}, but now comes "
                + (given[mine] if begun != mine else "with another key")
            )

    def _begun(self, stream: str, row: tuple[Any, ...]) -> View:
        """Return what the first entry says."""
        first = self.seals.read(stream, row, None)
        policy, key_check = policy_of(first.content or b"")
        view = View(stream, policy, key_check or b"", Head(1, first.hash))
        # Its seal can be checked now that it is known whose it is.
        self.seals.read(stream, row, view.key_check)
        return view

    def _checked_head(self, reading: Transaction, stream: str) -> Head:
        """Return the head, after a look at all entries that this process has not seen: each must follow the last."""
        durable = self.durable.get(stream)
        if durable is not None and not _holds(reading, stream, durable):
            raise LedgerError(
                f"ledger {self.database.location} has lost entries of {stream!r} that were there: it was restored from "
                "an older copy or replaced. Put the newest copy back"
            )
        seen = self._seen.get(stream)
        if seen is None or not _holds(reading, stream, seen):
            seen = durable or Head(0, b"")
        for row in self.rows(reading, stream, seen.number):
            entry = self.seals.read(stream, row, None)
            _check_next(stream, seen, entry)
            seen = Head(entry.number, entry.hash)
        if seen.number == 0:
            raise _unknown(stream)
        self._seen[stream] = seen
        return seen


def policy_draft(policy: Guarantee, key_check: bytes | None = None) -> Draft:
    """Return what says a policy; the first one of a stream also says which key it has.

    Raises:
        ParameterError: The policy has a delta, which entries do not say.
    """
    if policy.delta:
        raise ParameterError(
            f"delta is {float(policy.delta):g}, but must be 0 in a ledger, whose policies are of pure epsilon"
        )
    said: dict[str, Any] = {
        "epsilon": str(policy.epsilon),
        "w": policy.w,
        "alpha": policy.alpha,
        "neighbours": policy.neighbours,
    }
    if key_check is not None:
        said["key"] = key_check.hex()
    return Draft.saying("policy", json.dumps(said).encode())


def _holds(reading: Transaction, stream: str, head: Head) -> bool:
    return [bytes(found) for (found,) in reading.rows(AT, (stream, head.number))] == [head.hash]


def _check_next(stream: str, head: Head, entry: LogEntry) -> None:
    if (entry.number, entry.previous) != (head.number + 1, head.hash):
        raise LedgerError(f"entry {head.number + 1} of {stream!r} is missing, or another stands in its place")


def _unknown(stream: str) -> UnknownStreamError:
    return UnknownStreamError(f"stream {stream!r} is not in the ledger, but must be")
