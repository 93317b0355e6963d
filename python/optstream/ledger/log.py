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
from itertools import groupby
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from optstream.errors import ConflictError, LedgerError, ParameterError, UnknownStreamError
from optstream.ledger.database import BehindError, raw
from optstream.ledger.entries import NOWHERE, Draft, LogEntry, Seals, State, followed, policy_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from optstream.ledger.database import Database, Transaction
    from optstream.privacy.guarantee import Guarantee

__all__ = ["LARGEST", "POOL", "Head", "Log", "Share", "View", "lost_draft", "lost_drafts", "policy_draft", "unknown"]

POOL = "\x1d"
"""Begins the names of the logs of pools; names of streams are printable."""
LARGEST = 2**40
"""Periods are numbered below this, so that steps and costs stay far from the limits of any database."""
CHUNK = 4096
"""Entries that are read at a time when all are looked at."""
FEW = 8
"""Entries that are written one by one."""
MANY = 400
"""Logs that are looked for by one statement."""

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
BOTH = (
    f"{INSERT} SELECT * FROM (VALUES ({', '.join('?' * 12)}), ({', '.join('?' * 12)})) AS rows"
    " WHERE EXISTS (SELECT 1 FROM optstream_entries WHERE stream = ? AND number = ? AND hash = ?)"
    " AND EXISTS (SELECT 1 FROM optstream_entries WHERE stream = ? AND number = ? AND hash = ?)"
)
HEAD = "SELECT number, hash FROM optstream_entries WHERE stream = ? ORDER BY number DESC LIMIT 1"
LAST_RELEASE = (
    "SELECT number, hash FROM optstream_entries WHERE stream = ? AND kind IN ('release', 'step', 'final')"
    " ORDER BY number DESC LIMIT 1"
)
AT = "SELECT hash FROM optstream_entries WHERE stream = ? AND number = ?"
ONWARD = f"SELECT {LIGHT} FROM optstream_entries WHERE stream = ? AND number > ? ORDER BY number LIMIT {CHUNK}"
ABOUT = f"SELECT {LIGHT} FROM optstream_entries WHERE stream = ? AND period BETWEEN ? AND ? ORDER BY number"
LENGTHS = "SELECT stream, max(number) FROM optstream_entries WHERE stream IN ({}) GROUP BY stream"
WHOLE = f"SELECT stream, {LIGHT} FROM optstream_entries WHERE stream IN ({{}}) ORDER BY stream, number"
FORGOTTEN = "SELECT lost_period, lost_step, seal FROM optstream_ledger"
FORGET = "UPDATE optstream_ledger SET lost_period = ?, lost_step = ?, seal = ?"
LATER = "SELECT min(period) FROM optstream_entries WHERE stream = ? AND period > ?"


class Head(NamedTuple):
    """The last entry of a log."""

    number: int
    hash: bytes


NOTHING = Head(0, b"")
"""What stands before the first entry."""


class Share(NamedTuple):
    """A period of a member of a pool."""

    stream: str
    period: int
    start: int
    """Its first step."""


@dataclass(frozen=True)
class View:
    """What a process knows of a stream: all that its log says up to the head about a range of periods."""

    stream: str
    policy: Guarantee
    keys: tuple[tuple[int, bytes], ...]
    """Which of the curator's keys seals the entries after a number; the empty one if none does."""
    head: Head
    clock: str | None = None
    larger: frozenset[bytes] = frozenset()
    """Plans whose description another build prices in another way: what costs more is charged."""
    periods: range = range(0)
    states: Mapping[int, State] = field(default_factory=dict)
    lost: tuple[tuple[int, int], ...] = ()
    """Numbers of entries that say that the ledger was restored, with the last period that may have left before."""
    pool: str | None = None
    """The log of the pool that the stream is a member of."""
    members: Mapping[str, int] = field(default_factory=dict)
    """In the log of a pool: its streams, with the length of their periods."""
    shares: Mapping[Share, bytes] = field(default_factory=dict)
    """In the log of a pool, whose periods are steps: the plan that every period of a member is charged with."""

    @property
    def key_check(self) -> bytes:
        """Which of the curator's keys seals what is appended."""
        return self.keys[-1][1]

    def key_at(self, number: int) -> bytes:
        """Return which of the curator's keys seals an entry."""
        return next(check for after, check in reversed(self.keys) if number > after)

    def is_lost(self, period: int) -> bool:
        """Whether a period may have left in a form that this ledger has forgotten."""
        for number, last in self.lost:
            state = self.states.get(period)
            ends = (state.release, state.ended) if state is not None else ()
            if 0 <= period <= last and not any(0 < end < number for end in ends):
                return True
        return False

    def check_lost(self, period: int) -> None:
        """Raise if nothing may leave for a period because something may have left that is forgotten."""
        if self.lost and self.is_lost(period):
            raise ConflictError(
                f"period {period} of {self.stream!r} may have left before the ledger was restored, and will not be "
                "released"
            )

    def covers(self, periods: Sequence[int]) -> bool:
        """Whether nothing else needs to be known to decide about periods: what is released stays so."""
        inside = periods[0] - 1 in self.periods and periods[-1] + 1 in self.periods
        return inside and all(period not in self.states or self.states[period].release for period in periods)

    def after(self, entries: Iterable[LogEntry]) -> View:
        """Return what is known after more entries."""
        view, head, states, shares = self, self.head, dict(self.states), dict(self.shares)
        for entry in entries:
            head = Head(entry.number, entry.hash)
            if entry.period == NOWHERE:
                view = view._told(entry)
            elif entry.period not in self.periods:
                continue
            elif entry.kind == "share":
                shares[share_of(entry)] = entry.plan
            else:
                key = view.key_at(entry.number)
                states[entry.period] = followed(self.stream, states.get(entry.period), entry, key)
        return replace(view, head=head, states=states, shares=shares)

    def _told(self, entry: LogEntry) -> View:  # noqa: PLR0911  (one for every kind)
        """Return what is known after an entry that is about no period.

        Raises:
            LedgerError: It is of a kind that this build does not know, so that nothing can be decided.
        """
        content = entry.content or b""
        match entry.kind:
            case "policy":
                return replace(self, policy=policy_of(content)[0])
            case "plan":
                return replace(self, larger=self.larger | {entry.plan})
            case "clock":
                return replace(self, clock=content.decode())
            case "key":
                return replace(self, keys=(*self.keys, (entry.number, content)))
            case "lost":
                return replace(self, lost=(*self.lost, (entry.number, json.loads(content)["last"])))
            case "pool":
                return replace(self, pool=content.decode())
            case "member":
                said = json.loads(content)
                return replace(self, members={**self.members, said["stream"]: said["w"]})
        raise LedgerError(f"entry {entry.number} of {self.stream!r} is of a kind that this optstream does not know")

    def pruned(self, begin: int) -> View:
        """Return the view without what the periods from one on do not meet."""
        kept = {period: state for period, state in self.states.items() if period >= begin}
        shares = {share: made for share, made in self.shares.items() if share.start >= begin}
        known = range(max(begin, self.periods.start), self.periods.stop)
        return replace(self, periods=known, states=kept, shares=shares)


class Log:
    """The logs of all streams, and what this process has seen of them."""

    def __init__(self, database: Database[Any], seals: Seals) -> None:
        """Start without having seen anything."""
        self.database, self.seals = database, seals
        self._seen: dict[str, Head] = {}
        self.durable: dict[str, Head] = {}
        """What this process has seen on the disk: it must stay there."""
        self._noting = Lock()

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
        for row in base[1:]:
            view = view.after([self.seals.read(stream, row, view.key_check)])
        entries = [self.seals.read(stream, row, view.key_at(row[0])) for row in rows]
        return replace(view.after(entries), head=head)

    def look_many(self, reading: Transaction, periods: Mapping[str, tuple[int, int]]) -> dict[str, View]:
        """Return what the logs of many streams say about some periods of each; nothing of those that are not there."""
        views = {}
        for start in range(0, len(periods), MANY):
            some = list(periods)[start : start + MANY]
            lengths = dict(reading.rows(LENGTHS.format(_places(some)), some))
            short, total = [], 0
            for stream, length in lengths.items():
                if stream in self._seen or stream in self.durable or total + length > CHUNK * 4:
                    views[stream] = self.view(reading, stream, *periods[stream])
                else:
                    short.append(stream)
                    total += length
            if short:
                rows = reading.rows(WHOLE.format(_places(short)), short)
                for stream, own in groupby(rows, key=lambda row: str(row[0])):
                    views[stream] = self._followed(stream, (row[1:] for row in own), None)
                    self._seen[stream] = views[stream].head
        return views

    def all(self, reading: Transaction, stream: str, note: Callable[[str], None] | None = None) -> View:
        """Return what the log says about every period. Problems are noted, or raised if nothing notes them."""
        return self._followed(stream, self.rows(reading, stream), note)

    def _followed(self, stream: str, rows: Iterator[tuple[Any, ...]], note: Callable[[str], None] | None) -> View:
        first = next(rows, None)
        if first is None:
            raise unknown(stream)
        view = self._begun(stream, first)
        states: dict[int, State] = {}
        shares: dict[Share, bytes] = {}
        number, previous = 1, bytes(first[9])
        for row in rows:
            try:
                entry = self.seals.read(stream, row, view.key_check)
                _check_next(stream, Head(number, previous), entry)
                if entry.period == NOWHERE:
                    view = view.after([entry])
                elif entry.kind == "share":
                    shares[share_of(entry)] = entry.plan
                else:
                    states[entry.period] = followed(stream, states.get(entry.period), entry, view.key_check)
            except LedgerError as error:
                if note is None:
                    raise
                note(str(error))
            if isinstance(row[0], int) and isinstance(row[9], (bytes, memoryview)):
                number, previous = row[0], bytes(row[9])
        view = replace(view, periods=range(-1, LARGEST + 2), states=states, shares=shares)
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
        (after,) = self.append_all([(view, drafts)], forced=forced, also=also)
        return after

    def append_all(
        self,
        parts: Sequence[tuple[View, Sequence[Draft]]],
        *,
        forced: bool = True,
        also: Callable[[Transaction], None] | None = None,
    ) -> list[View]:
        """Append entries to several logs together, or to none; logs are in the order of their names.

        Raises:
            BehindError: Another process has appended something to one of them since; nothing was written.
        """
        sealed = []
        for view, drafts in parts:
            if drafts[0].kind != "key":
                self.check_key(view)
            sealed.append((view, self.sealed(view, drafts)))
        rows = [(view.stream, *entry) for view, entries in sealed for entry in entries]
        if len(rows) == 1 and also is None and sealed[0][0].head.number:
            view = sealed[0][0]
            if self.database.write_alone(NEXT, (*rows[0], view.stream, *view.head), forced=forced) != 1:
                raise _behind(view)
        elif len(rows) == len(sealed) == 2 and also is None and all(view.head.number for view, _ in sealed):  # noqa: PLR2004
            heads = [value for view, _ in sealed for value in (view.stream, *view.head)]
            if self.database.write_alone(BOTH, (*rows[0], *rows[1], *heads), forced=forced) != len(rows):
                raise _behind(sealed[0][0])
        elif rows:
            forced = True
            with self.database.transaction() as change:
                self._write(change, sealed, rows)
                if also is not None:
                    also(change)
        afters = [view.after(entries) for view, entries in sealed]
        if forced:
            self._note_durable(afters)
        return afters

    def _write(
        self,
        change: Transaction,
        sealed: Sequence[tuple[View, Sequence[LogEntry]]],
        rows: Sequence[tuple[Any, ...]],
    ) -> None:
        """Append entries as part of a transaction."""
        if len(rows) > FEW:
            # An entry never changes, so what it follows may be looked for first; no two have one number.
            self._check_heads(change, [view for view, _ in sealed if view.head.number])
            new = [(view.stream,) for view, _ in sealed if not view.head.number]
            if new:
                change.write("INSERT INTO optstream_streams (name) VALUES (?) ON CONFLICT DO NOTHING", *new)
            change.load("optstream_entries", f"stream, {COLUMNS}", rows)
            return
        for view, entries in sealed:
            if not view.head.number:
                change.write("INSERT INTO optstream_streams (name) VALUES (?) ON CONFLICT DO NOTHING", (view.stream,))
                written, rest = 0, entries
            else:
                written = change.write(NEXT, (view.stream, *entries[0], view.stream, *view.head))
                rest = entries[1:]
            if rest:
                written += change.write(FIRST, *((view.stream, *entry) for entry in rest))
            if written != len(entries):
                raise _behind(view)

    @staticmethod
    def _check_heads(change: Transaction, views: Sequence[View]) -> None:
        for start in range(0, len(views), MANY):
            some = views[start : start + MANY]
            places = ", ".join(["(?, ?)"] * len(some))
            values = [value for view in some for value in (view.stream, view.head.number)]
            found = change.rows(
                f"SELECT stream, hash FROM optstream_entries WHERE (stream, number) IN (VALUES {places})", values
            )
            hashes = {stream: raw(hashed) for stream, hashed in found}
            for view in some:
                if hashes.get(view.stream) != view.head.hash:
                    raise _behind(view)

    def sealed(self, view: View, drafts: Sequence[Draft]) -> list[LogEntry]:
        """Return drafts as the entries that come after what a view knows."""
        now, head = datetime.now(UTC).isoformat(), view.head
        entries = []
        for draft in drafts:
            entry = self.seals.entry(view.stream, draft, head.number + 1, now, head.hash, view.key_check)
            entries.append(entry)
            head = Head(entry.number, entry.hash)
        return entries

    def begin(self, change: Transaction, stream: str, policy: Guarantee) -> None:
        """Write a stream or a pool down with its first entries, unless it is there.

        A ledger that was restored from an older copy does not know which streams were made since, so what may have left
        of any stream may have left of one that is made again.
        """
        if self.exists(change, stream):
            return
        view = View(stream, policy, ((-1, self.seals.check),), Head(0, b""))
        drafts = [policy_draft(policy, self.seals.check)]
        period, step = self.forgotten(change)
        if period >= 0 and stream.startswith(POOL):
            drafts.append(lost_draft(max(step, (period + 1) * policy.w - 1)))
        elif period >= 0:
            drafts += lost_drafts(policy, period, None)
        change.write("INSERT INTO optstream_streams (name) VALUES (?) ON CONFLICT DO NOTHING", (stream,))
        change.write(FIRST, *((stream, *entry) for entry in self.sealed(view, drafts)))

    def forgotten(self, reading: Transaction) -> tuple[int, int]:
        """Return the last period and the last step that may have left of streams that the ledger lacks; -1 if none.

        Raises:
            LedgerError: They are not what was written.
        """
        ((period, step, seal),) = reading.rows(FORGOTTEN)
        if raw(seal) != self.seals.forgotten(period, step):
            raise LedgerError("what may have left before the ledger was restored was altered")
        return period, step

    def forget(self, change: Transaction, period: int, step: int) -> None:
        """Note that streams which the ledger lacks may have left up to a period, or a step."""
        before = self.forgotten(change)
        period, step = max(period, before[0]), max(step, before[1])
        change.write(FORGET, (period, step, self.seals.forgotten(period, step)))

    @staticmethod
    def exists(reading: Transaction, stream: str) -> bool:
        """Whether there is such a stream."""
        return bool(reading.rows(AT, (stream, 1)))

    def head(self, reading: Transaction, stream: str) -> Head:
        """Return the last entry of a stream."""
        for number, hashed in reading.rows(HEAD, (stream,)):
            return Head(number, raw(hashed))
        raise unknown(stream)

    def _note_durable(self, views: Iterable[View]) -> None:
        for view in views:
            self.note_durable(view.stream, view.head)

    def note_durable(self, stream: str, head: Head) -> None:
        """Note that an entry is on the disk."""
        with self._noting:
            if head.number > self.durable.get(stream, NOTHING).number:
                self.durable[stream] = head

    def note_releases(self, reading: Transaction, stream: str) -> None:
        """Note the last entry by which something leaves, whoever has appended it; what can be read is on the disk."""
        for number, hashed in reading.rows(LAST_RELEASE, (stream,)):
            self.note_durable(stream, Head(number, raw(hashed)))

    def check_key(self, view: View) -> None:
        """Raise if a stream was begun with another key."""
        if view.key_check != self.seals.check:
            given = {True: "with a key", False: "without a key"}
            begun, mine = bool(view.key_check), bool(self.seals.check)
            other = "with another key: after a rotation `optstream key rotate` tells the ledger"
            raise ParameterError(
                f"stream {view.stream!r} was begun {given[begun]}, but now comes "
                + (given[mine] if begun != mine else other)
            )

    def _begun(self, stream: str, row: tuple[Any, ...]) -> View:
        """Return what the first entry says."""
        first = self.seals.read(stream, row, None)
        policy, key_check = policy_of(first.content or b"")
        view = View(stream, policy, ((-1, key_check or b""),), Head(1, first.hash))
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
            raise unknown(stream)
        self._seen[stream] = seen
        return seen


def share_of(entry: LogEntry) -> Share:
    """Return which period of which member an entry charges in a pool."""
    stream, period = json.loads(entry.content or b"")
    return Share(stream, period, entry.period)


def lost_draft(last: int) -> Draft:
    """Return what says that everything up to a period, or to a step of a pool, may have left."""
    return Draft.saying("lost", json.dumps({"last": last}).encode())


def lost_drafts(policy: Guarantee, last: int, state: State | None) -> list[Draft]:
    """Return what says that all periods of a stream up to one may have left.

    Args:
        policy: The policy of the stream.
        last: The last of these periods.
        state: What the log says about the period after it.
    """
    drafts = [lost_draft(last)]
    if policy.neighbours != "aligned" and (state is None or not (state.release or state.void)):
        # A window over both may be spent; so that the stream goes on after it.
        charge = 0 if state is None else state.number
        drafts.append(Draft.saying("void", b"next to periods that may have left", period=last + 1, charge=charge))
    return drafts


def policy_draft(policy: Guarantee, key_check: bytes | None = None) -> Draft:
    """Return what says a policy; the first one of a stream also says which key it has."""
    said: dict[str, Any] = {
        "epsilon": str(policy.epsilon),
        "w": policy.w,
        "alpha": policy.alpha,
        "delta": str(policy.delta),
        "neighbours": policy.neighbours,
        "entities": policy.entities,
        "entity": policy.entity,
    }
    if key_check is not None:
        said["key"] = key_check.hex()
    return Draft.saying("policy", json.dumps(said).encode())


def _holds(reading: Transaction, stream: str, head: Head) -> bool:
    return [raw(found) for (found,) in reading.rows(AT, (stream, head.number))] == [head.hash]


def _check_next(stream: str, head: Head, entry: LogEntry) -> None:
    if (entry.number, entry.previous) != (head.number + 1, head.hash):
        raise LedgerError(f"entry {head.number + 1} of {stream!r} is missing, or another stands in its place")


def _places(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))


def _behind(view: View) -> BehindError:
    return BehindError(f"stream {view.stream!r} was changed by another process")


def unknown(stream: str) -> UnknownStreamError:
    """Return the error about a stream that is not there."""
    kind, name = ("pool", stream.removeprefix(POOL)) if stream.startswith(POOL) else ("stream", stream)
    return UnknownStreamError(
        f"{kind} {name!r} is not in the ledger, but must be: a new name is a new budget, so it is made with "
        f"create_{kind}, `optstream ledger {kind} create`" + (" or create=True" if kind == "stream" else "")
    )
