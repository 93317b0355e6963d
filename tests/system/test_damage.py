"""Whatever a column of a ledger is changed to, it is told and never crashes."""

from __future__ import annotations

import shutil
import sqlite3
from typing import TYPE_CHECKING

import numpy as np
import pytest

import optstream as ops

if TYPE_CHECKING:
    from pathlib import Path

# Nothing but names of tables and columns is put into these statements.
# ruff: noqa: S608
W = 4
KEY = ops.CuratorKey(bytes(range(32)))
VALUES = (None, 0, -5, 2**62, 1.5, "", "x", b"", b"\xff\x00", b"{}", "null", b"[1]", "\x1dp")
UNSEALED = {"created", "revision", "identity", "backup"}
"""What decides nothing: the identity is compared by who expects it, and by the witness."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    mechanism = ops.OptStream(
        ops.Guarantee(epsilon=0.5, w=W),
        sample=ops.EqualSampling(k=W),
        bounds=(0, 100),
        reconstruct=ops.Estimate(season=1),
    )
    path = tmp_path_factory.mktemp("damage") / "ledger.db"
    with ops.Ledger(path, create=True, key=KEY) as ledger:
        ledger.create_pool("p", ops.Guarantee(epsilon=1, w=W))
        for name in ("a", "b"):
            ledger.create_stream(name, mechanism.guarantee, pool="p")
            ledger.release(mechanism, np.arange(2.0 * W), stream=name)
        ops.Stream(mechanism, ledger=ledger, name="a").push(2 * W, 1.0)
        ledger.void("b", 7, "for a test")
        assert ledger.verify().problems == ()
    # Without a key what cube noise keeps pending is kept too.
    cube = ops.OptStream(mechanism.guarantee, sample=ops.EqualSampling(k=W), perturb=ops.CubeNoise(), bounds=(0, 100))
    with ops.Ledger(path) as ledger:
        ops.Stream(cube, ledger=ledger, name="c", emit="step", create=True).push(0, 1.0)
        assert ledger.verify().problems == ()
    return path


def columns(path: Path) -> list[tuple[str, str, int]]:
    with sqlite3.connect(path) as file:
        tables = [name for (name,) in file.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return [
            (table, row[1], file.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
            for table in tables
            for row in file.execute(f"PRAGMA table_info({table})")
        ]


def test_damage_is_told(original: Path, tmp_path: Path) -> None:
    order = np.random.default_rng(7)
    keys = {"optstream_entries": "stream, number", "optstream_plans": "id"}
    cases = 0
    for table, column, count in columns(original):
        for value in VALUES if count else ():
            path = tmp_path / f"{cases}.db"
            shutil.copy(original, path)
            path.chmod(0o600)
            file = sqlite3.connect(path)
            key = keys.get(table, "rowid")
            which = f"({key}) = (SELECT {key} FROM {table} LIMIT 1 OFFSET {order.integers(count)})"
            try:
                before = file.execute(f"SELECT {column} FROM {table} WHERE {which}").fetchall()
                file.execute(f"UPDATE {table} SET {column} = ? WHERE {which}", (value,))
                file.commit()
                changed = before != file.execute(f"SELECT {column} FROM {table} WHERE {which}").fetchall()
            except sqlite3.IntegrityError:
                continue
            finally:
                file.close()
            cases += 1
            told: tuple[str, ...] = ()
            try:
                with ops.Ledger(path, key=KEY) as ledger:
                    told = ledger.verify().problems
            except ops.LedgerError as error:
                told = (str(error),)
            assert told or not changed or column in UNSEALED, (table, column, value)
    assert cases > 280
