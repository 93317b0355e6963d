"""Entries of a stream's log: what they hold, how they are sealed, and what they say about a period.

An entry is written once and never changed. It has the number after the last one, the hash of the entry before, and a
hash of its own over all that it holds, keyed with a key that the ledger has; where there is a curator's key, that key
seals the hash. So nobody can alter, leave out or move an entry unnoticed, and without the key nobody can add one.
"""

from __future__ import annotations

import json
from fractions import Fraction
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optstream.errors import ConflictError, LedgerError
from optstream.ledger.database import raw
from optstream.privacy.guarantee import Guarantee

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optstream.keys import CuratorKey

__all__ = ["CHARGES", "NOWHERE", "Draft", "LogEntry", "Seals", "State", "digest_of", "followed", "policy_of"]

NOWHERE = -1
"""The period of an entry that is about no period."""
CHARGES = ("charge", "final")
"""Kinds of entries that charge a period. A final one is never replaced."""
NOTHING = np.empty((0, 0), dtype=np.int64)


class Draft(NamedTuple):
    """What an entry is to say."""

    kind: str
    period: int = NOWHERE
    charge: int = 0
    """The number of the charge that is meant, or replaced."""
    plan: bytes = b""
    data: bytes = b""
    """The keyed digest of the data that is charged for; for other kinds the digest of the content."""
    content: bytes | None = b""

    @classmethod
    def saying(cls, kind: str, content: bytes, *, period: int = NOWHERE, charge: int = 0, plan: bytes = b"") -> Draft:
        """Return a draft with a content."""
        return cls(kind, period, charge, plan, digest_of(content), content)


class LogEntry(NamedTuple):
    """An entry as it is in the database."""

    number: int
    kind: str
    period: int
    charge: int
    plan: bytes
    data: bytes
    content: bytes | None
    """None if it was not asked for."""
    written: str
    previous: bytes
    hash: bytes
    seal: bytes

    @classmethod
    def of(cls, row: Sequence[Any]) -> LogEntry:
        """Return a row of the database."""
        number, kind, period, charge, plan, data, content, written, previous, hashed, seal = row
        numbers, texts = (number, period, charge), (kind, written)
        if not (all(type(one) is int for one in numbers) and all(type(one) is str for one in texts)):
            raise LedgerError("a row does not hold numbers and texts, but must")
        content = None if content is None else raw(content)
        return cls(
            number, kind, period, charge, raw(plan), raw(data), content, written, raw(previous), raw(hashed), raw(seal)
        )


class Seals:
    """The keys that make and check hashes and seals."""

    def __init__(self, own: bytes, curators: Sequence[CuratorKey]) -> None:
        """Take the ledger's own key, and the curator's if there are any, the newest first."""
        self._own, self.curator = own, curators[0] if curators else None
        self.keys = {key.digest([b"key check"], NOTHING): key for key in reversed(curators)}
        """The curator's keys by what tells them apart."""
        self.check = list(self.keys)[-1] if curators else b""
        """What tells whether a key is the one that a stream is sealed with; empty without a key."""

    def hash_of(self, stream: str, draft: Draft, number: int, written: str, previous: bytes) -> bytes:
        """Return the hash of an entry."""
        kind, period, charge, plan, data, _ = draft
        return self.code(f"{stream!r} {number} {kind} {period} {charge} {written}".encode(), plan, data, previous)

    def seal_of(self, hashed: bytes, key_check: bytes) -> bytes:
        """Return the seal of one of the curator's keys on a hash; empty without a key."""
        return self.keys[key_check].digest([b"entry", hashed], NOTHING) if key_check else b""

    def code(self, *fields: bytes) -> bytes:
        """Return a keyed code of fields, of which no two lists look the same."""
        parts = [part for field in fields for part in (len(field).to_bytes(8, "little"), field)]
        return blake2b(b"".join(parts), key=self._own, digest_size=32).digest()

    def forgotten(self, period: int, step: int) -> bytes:
        """Return the seal on up to where things may have left that the ledger has forgotten."""
        return self.code(b"forgotten", str(period).encode(), str(step).encode())

    def entry(  # noqa: PLR0917
        self, stream: str, draft: Draft, number: int, written: str, previous: bytes, key_check: bytes
    ) -> LogEntry:
        """Return a draft as an entry that is sealed with one of the keys."""
        hashed = self.hash_of(stream, draft, number, written, previous)
        return LogEntry(number, *draft, written, previous, hashed, self.seal_of(hashed, key_check))

    def read(self, stream: str, row: Sequence[Any], key_check: bytes | None) -> LogEntry:
        """Return a row that is as it was written; one that was altered must not make room in the budget.

        Args:
            stream: The name of the stream.
            row: What the database gave.
            key_check: Which curator's key has sealed it, empty if none has; None if that is not known.

        Raises:
            LedgerError: It is not.
        """
        try:
            entry = LogEntry.of(row)
            right = entry.hash == self.hash_of(
                stream, Draft(*entry[1:7]), entry.number, entry.written, entry.previous
            ) and (entry.content is None or _fits(entry))
        except (LedgerError, TypeError, ValueError):
            right = False
        if not right:
            raise LedgerError(f"entry {row[0]!r} of {stream!r} was altered")
        sealing = key_check is not None and (not key_check or key_check in self.keys)
        if sealing and entry.seal != self.seal_of(entry.hash, key_check or b""):
            raise LedgerError(f"entry {entry.number} of {stream!r} does not bear the seal of the curator's key")
        return entry


def _fits(entry: LogEntry) -> bool:
    """Whether the content is what the hash is about; a charge has none."""
    return not entry.content if entry.kind in CHARGES else entry.data == digest_of(entry.content or b"")


class State(NamedTuple):
    """What the log says about a period."""

    period: int
    number: int
    """The number of its charge; 0 if it is void without one."""
    plan: bytes
    data: bytes
    charged: str
    final: bool = False
    void: str | None = None
    release: int = 0
    """The number of the entry that released it, 0 if there is none."""
    released: str | None = None
    key: bytes = b""
    """Which of the curator's keys it is charged with; empty without one."""
    ended: int = 0
    """The number of the entry that made it void, 0 if there is none."""

    def check_void(self, stream: str) -> None:
        """Raise if the period will not be released."""
        if self.void is not None:
            raise ConflictError(f"period {self.period} of {stream!r} is void and will not be released: {self.void}")

    def check_replaceable(self, stream: str, *, same_plan: bool) -> None:
        """Raise if something has left for this charge, or may have, which another one was to replace."""
        what = "from other data" if same_plan else "with another plan"
        if self.release:
            raise ConflictError(
                f"period {self.period} of {stream!r} was released {what}; what is stored stays as it is"
            )
        if self.final:
            raise ConflictError(f"period {self.period} of {stream!r} was charged for good {what}; nothing was charged")


def followed(stream: str, state: State | None, entry: LogEntry, key: bytes) -> State:
    """Return what is true of a period after an entry about it.

    Raises:
        LedgerError: The entry may not follow: a period that is released or void stays as it is, and so does a final
            charge until it is released.
    """
    match entry.kind:
        case "charge" | "final":
            open_ = state is None if entry.charge == 0 else _is_open(state, entry.charge)
            same = state is not None and (state.plan, state.data) == (entry.plan, entry.data)
            if open_ and (state is None or not state.final or same):
                final = entry.kind == "final"
                return State(entry.period, entry.number, entry.plan, entry.data, entry.written, final, key=key)
        case "void":
            why = (entry.content or b"").decode(errors="replace")
            if state is None and entry.charge == 0:
                return State(entry.period, 0, b"", b"", entry.written, void=why, ended=entry.number)
            if state is not None and _is_open(state, entry.charge):
                return state._replace(void=why, ended=entry.number)
        case "step" | "settled":
            # Values have left, so that the charge must be one that is never replaced. What the steps of some mechanisms
            # have cost is known only when all of them have left.
            if state is not None and state.final and _is_open(state, entry.charge):
                return state if entry.kind == "step" else state._replace(plan=entry.plan)
        case "release":
            if state is not None and _is_open(state, entry.charge):
                return state._replace(release=entry.number, released=entry.written)
    raise LedgerError(f"entry {entry.number} of {stream!r} cannot follow those before it")


def _is_open(state: State | None, charge: int) -> bool:
    """Whether a charge is the one that holds, and nothing was released for it or ever will be."""
    return state is not None and state.number == charge and state.void is None and not state.release


def digest_of(content: bytes) -> bytes:
    """Return a checksum of a content."""
    return blake2b(content, digest_size=32).digest()


def policy_of(content: bytes) -> tuple[Guarantee, bytes | None]:
    """Return the policy in an entry, and which key the stream has, if the entry begins the stream."""
    said = json.loads(content)
    key = said.get("key")
    relation = {name: said[name] for name in ("w", "alpha", "neighbours", "entities", "entity")}
    policy = Guarantee(epsilon=Fraction(said["epsilon"]), delta=Fraction(said["delta"]), **relation)
    return policy, None if key is None else bytes.fromhex(key)
