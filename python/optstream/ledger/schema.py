"""The tables of a ledger.

Entries are appended and never changed; everything that decides about privacy is an entry or follows from entries. The
other tables hold what may change: raw observations of open periods, and what streams remember of their releases, which
can be made again.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from optstream.errors import LedgerError
from optstream.ledger.database import raw
from optstream.ledger.entries import Seals

if TYPE_CHECKING:
    from optstream.ledger.database import Database

__all__ = ["VERSION", "About", "open_tables"]

VERSION = 1
TABLES = """
    CREATE TABLE optstream_ledger (
        id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL, identity TEXT NOT NULL,
        digest_key {blob} NOT NULL, created TEXT NOT NULL, backup TEXT NOT NULL, lost_period BIGINT NOT NULL,
        lost_step BIGINT NOT NULL, seal {blob} NOT NULL);
    CREATE TABLE optstream_streams (name TEXT PRIMARY KEY, revision BIGINT NOT NULL DEFAULT 0);
    CREATE TABLE optstream_plans (
        id {blob} PRIMARY KEY, digest {blob} NOT NULL, description TEXT NOT NULL, costs TEXT NOT NULL);
    CREATE INDEX optstream_plans_digest ON optstream_plans (digest);
    CREATE TABLE optstream_entries (
        stream TEXT NOT NULL, number BIGINT NOT NULL, kind TEXT NOT NULL, period BIGINT NOT NULL,
        charge BIGINT NOT NULL, plan {blob} NOT NULL, data {blob} NOT NULL, content {blob} NOT NULL,
        written TEXT NOT NULL, previous {blob} NOT NULL, hash {blob} NOT NULL, seal {blob} NOT NULL,
        PRIMARY KEY (stream, number)) {clustered};
    CREATE INDEX optstream_entries_period ON optstream_entries (stream, period);
    CREATE TABLE optstream_observations (
        stream TEXT NOT NULL REFERENCES optstream_streams, step BIGINT NOT NULL, value {blob} NOT NULL,
        seal {blob} NOT NULL, PRIMARY KEY (stream, step));
    CREATE TABLE optstream_memories (
        stream TEXT PRIMARY KEY REFERENCES optstream_streams, period BIGINT NOT NULL, state {blob} NOT NULL,
        seal {blob} NOT NULL);
    CREATE TABLE optstream_pending (
        stream TEXT PRIMARY KEY REFERENCES optstream_streams, period BIGINT NOT NULL, radii {blob} NOT NULL,
        seal {blob} NOT NULL)
    """


class About(NamedTuple):
    """What a ledger says of itself."""

    identity: str
    digest_key: bytes
    backup: str
    """When it was made, if it is a backup; else empty."""


def open_tables(database: Database[Any], *, create: bool) -> About:
    """Return what a ledger says of itself; make its tables if there are none and that is asked for.

    Raises:
        LedgerError: There is no ledger and none may be made, what is there is not one, or it is of another version.
    """
    with database.transaction(write=False) as reading:
        found = database.version(reading)
    if found == 0 and create:
        with database.transaction() as change:
            database.lock_schema(change)
            # Another process may have been faster.
            found = database.version(change)
            if found == 0:
                for statement in TABLES.format(blob=database.blob, clustered=database.clustered).split(";"):
                    change.write(statement, ())
                key = os.urandom(32)
                seal = Seals(key, ()).forgotten(-1, -1)
                row = (VERSION, os.urandom(16).hex(), key, datetime.now(UTC).isoformat(), seal)
                change.write("INSERT INTO optstream_ledger VALUES (1, ?, ?, ?, ?, '', -1, -1, ?)", row)
                found = VERSION
    if found == 0:
        raise LedgerError(
            f"ledger {database.location} is empty, but must exist already: `optstream ledger init` or create=True "
            "makes one. If there was one, its budget is spent: find it, or restore a backup"
        )
    if found != VERSION:
        raise LedgerError(
            f"ledger {database.location} has version {found}, but must have {VERSION}: use another optstream"
        )
    with database.transaction(write=False) as reading:
        ((identity, key, backup),) = reading.rows("SELECT identity, digest_key, backup FROM optstream_ledger")
    if not (isinstance(identity, str) and isinstance(backup, str)):
        raise LedgerError(f"ledger {database.location} is damaged: what it says of itself cannot be read")
    return About(identity, raw(key), backup)
