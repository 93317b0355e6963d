"""The tables of a ledger and how they came about.

A new ledger is made by the same migrations, one after the other, that bring an old one up to date.

A release refers to the number of its charge. A charge that is replaced, because nothing has left for it, gets another
number. So the database itself sees to it that a charge with a release cannot be replaced, and that nothing can be
released for a charge that was.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from optstream.errors import LedgerError

if TYPE_CHECKING:
    from optstream.ledger.database import Database

__all__ = ["MIGRATIONS", "migrate"]

MIGRATIONS = (
    # Streams with their policies, plans with their costs, charges and releases.
    """
    CREATE TABLE optstream_ledger (
        id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL, digest_key {blob} NOT NULL,
        created TEXT NOT NULL);
    CREATE TABLE optstream_streams (
        name TEXT PRIMARY KEY, epsilon TEXT NOT NULL, w BIGINT NOT NULL, alpha TEXT NOT NULL,
        neighbours TEXT NOT NULL, key_check {blob});
    CREATE TABLE optstream_plans (
        digest {blob} PRIMARY KEY, description TEXT NOT NULL, statement TEXT NOT NULL, costs TEXT NOT NULL);
    CREATE TABLE optstream_charges (
        stream TEXT NOT NULL REFERENCES optstream_streams, period BIGINT NOT NULL, number BIGINT NOT NULL,
        plan {blob} NOT NULL REFERENCES optstream_plans, data {blob} NOT NULL, charged TEXT NOT NULL, void TEXT,
        seal {blob} NOT NULL, PRIMARY KEY (stream, period), UNIQUE (stream, number)) {clustered};
    CREATE TABLE optstream_releases (
        stream TEXT NOT NULL, period BIGINT NOT NULL, number BIGINT NOT NULL, result {blob} NOT NULL,
        released TEXT NOT NULL, seal {blob} NOT NULL, PRIMARY KEY (stream, period),
        FOREIGN KEY (stream, number) REFERENCES optstream_charges (stream, number)) {clustered}
    """,
    # Observations of the open period of a stream. The revision tells whether another process has changed them. The
    # clock says which time a step is: on another clock the same hours could be released again as another period.
    """
    ALTER TABLE optstream_streams ADD COLUMN revision BIGINT NOT NULL DEFAULT 0;
    ALTER TABLE optstream_streams ADD COLUMN clock TEXT;
    CREATE TABLE optstream_observations (
        stream TEXT NOT NULL REFERENCES optstream_streams, step BIGINT NOT NULL, value {blob} NOT NULL,
        PRIMARY KEY (stream, step))
    """,
    # What a stream remembers of its releases, so that the next one can be estimated from them.
    """
    CREATE TABLE optstream_memories (
        stream TEXT PRIMARY KEY REFERENCES optstream_streams, period BIGINT NOT NULL, state {blob} NOT NULL,
        seal {blob} NOT NULL)
    """,
)


def migrate(database: Database[Any], *, create: bool, to: int = len(MIGRATIONS)) -> bytes:
    """Bring the tables up to date, make them if there are none, and return the ledger's own key for digests.

    Raises:
        LedgerError: There is no ledger and none may be made, what is there is not one, or it is of a later version.
    """
    with database.transaction(write=False) as reading:
        found = database.version(reading)
    if found == to:
        return _digest_key(database)
    if found == 0 and not create:
        raise LedgerError(f"ledger {database.location} is empty, but must exist already")
    with database.transaction() as change:
        # Another process may have been faster.
        database.lock_schema(change)
        found = database.version(change)
        if found > to:
            raise LedgerError(
                f"ledger {database.location} has version {found}, but must have at most {to}: update optstream"
            )
        for migration in MIGRATIONS[found:to]:
            for statement in migration.format(blob=database.blob, clustered=database.clustered).split(";"):
                change.write(statement, ())
        if found == 0:
            created = datetime.now(UTC).isoformat()
            change.write("INSERT INTO optstream_ledger VALUES (1, ?, ?, ?)", (to, os.urandom(32), created))
        else:
            change.write("UPDATE optstream_ledger SET version = ?", (to,))
    return _digest_key(database)


def _digest_key(database: Database[Any]) -> bytes:
    with database.transaction(write=False) as reading:
        ((key,),) = reading.rows("SELECT digest_key FROM optstream_ledger")
    return bytes(key)
