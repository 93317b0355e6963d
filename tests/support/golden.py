"""What must come out bit for bit, on every machine and with every later version: results and formats.

``python tests/support/golden.py`` writes it to ``tests/golden``; do so when a change of it is meant, and say in the
changelog what changes for whom. Inputs are whole numbers made here: the streams of random generators may change.
"""

from __future__ import annotations

import json
import sqlite3
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

import optstream as ops
from optstream.estimate.filter import Filter, Measured, revised

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

__all__ = ["FOLDER", "estimates", "releases"]

FOLDER = Path(__file__).parents[1] / "golden"
W = 12
KEY = ops.CuratorKey(bytes(range(32)))
RUNS = tuple((step, step + 1, step + 2) for step in range(0, W, 3))
STEPS = tuple((step,) for step in range(W))
OVERLAPPING = ((0, 1, 2, 3), (2, 3, 7), (11,), tuple(range(W)))
LONG = 60


def numbers(count: int, seed: int = 1) -> Array:
    """Numbers from 0 to 1 that are exact in binary."""
    made = np.empty(count)
    for place in range(count):
        seed = (seed * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 2**64
        made[place] = (seed >> 40) / 2**24
    return made


def bits(*arrays: Array) -> dict[str, Any]:
    """The first values, to look at, and a digest of all."""
    whole = np.concatenate([np.ascontiguousarray(part, dtype="<f8").ravel() for part in arrays])
    return {"first": [float(value).hex() for value in whole[:3]], "digest": sha256(whole.tobytes()).hexdigest()}


def estimates() -> dict[str, Any]:
    """What filters make of measurements: values, expected errors, history, and the state that is saved."""
    kinds: dict[str, tuple[int, tuple[tuple[int, ...], ...], dict[str, Any]]] = {
        "runs": (W, RUNS, {"season": 3}),
        "steps": (W, STEPS, {"season": 1, "level": (100.0, 100.0)}),
        "overlapping": (W, OVERLAPPING, {"season": 2}),
        "without memory": (W, RUNS, {"memory": False, "smooth": False}),
        "more steps than directions": (LONG, tuple((step,) for step in range(LONG)), {"season": 2}),
    }
    return {name: _estimate(*kind) for name, kind in kinds.items()}


def _estimate(w: int, cells: tuple[tuple[int, ...], ...], kind: dict[str, Any]) -> dict[str, Any]:
    periods = 30
    made, k = Filter(w, **kind), len(cells)
    # A level that breaks, an odd period, and a period that is left out are told apart too.
    values = 40 + 30 * numbers(periods * k).reshape(periods, k) + 20 * np.linspace(0, 1, k)
    values[20:] += 500
    values[25, 0] -= 4000
    variances = 4 + numbers(k, seed=2)
    found: list[Array] = []
    seen: list[Measured] = []
    for period, row in enumerate(values):
        found.extend(made.update(Measured(period + (period > 15), cells, row, variances)))
        if made.understood is not None:
            seen.append(made.understood)
    again = Filter.from_state(made.state())
    return {
        "values": bits(*found),
        "understood": [[part.hex() for part in one[4:]] for one in seen if one[4:] != (0, 1, 0)],
        "revised": bits(*revised(made, seen)),
        "expected error": made.expected_error(cells, variances).hex(),
        "expected step error": made.expected_step_error(cells, variances).hex(),
        "state": {"bytes": len(made.state()["data"]), "digest": _digest(again.state())},
    }


def _digest(data: Any) -> str:
    return sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _mechanism(sample: Any, w: int = W, **more: Any) -> ops.OptStream:
    guarantee = ops.Guarantee(epsilon=1, w=w, delta=more.pop("delta", 0))
    return ops.OptStream(guarantee, sample=sample, bounds=(0, 100), **more)


def mechanisms() -> Iterator[tuple[str, ops.OptStream, int]]:
    """Mechanisms of every kind whose values no other library computes, and how many periods of them."""
    equal, tree = ops.EqualSampling(4), ops.Hierarchy({"all": None, "a": "all", "b": "all"})
    yield "Laplace noise", _mechanism(equal), 3
    yield "cube noise", _mechanism(ops.BucketSampling(4), perturb=ops.CubeNoise()), 3
    yield "Gaussian noise", _mechanism(equal, delta=Fraction(1, 10**6), perturb=ops.GaussianNoise()), 3
    yield "chosen steps", _mechanism(ops.L1Sampling(4, 5.0)), 3
    yield "features", _mechanism(equal, features=[ops.Feature.total(W)]), 3
    yield "whole numbers", _mechanism(equal, integers=True), 3
    yield "estimate", _mechanism(ops.BucketSampling(4), reconstruct=ops.Estimate(season=2)), 12
    yield "tree", _mechanism(equal, hierarchy=tree), 3
    auto = ops.OptStream.auto(ops.Guarantee(epsilon=1, w=W), bounds=(0, 100), season=2)
    yield "tunes itself", auto, 30


def releases() -> dict[str, Any]:
    """What a ledger with a key holds of releases: plans, costs, digests of data, and what was released."""
    return {name: _released(made, periods) for name, made, periods in mechanisms()}


def _released(made: ops.OptStream, periods: int) -> dict[str, Any]:
    width = 1 if made.hierarchy is None else 2
    data = 20 + 60 * numbers(periods * W * width).reshape(periods * W, width)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        with ops.Ledger(path, key=KEY, create=True) as ledger:
            release = ledger.release(made, data[:, 0] if width == 1 else data, stream="stream", period=2)
        plans, entries = _rows(path, "optstream_plans ORDER BY id"), _rows(path, "optstream_entries ORDER BY number")
        tables = sorted(sql for (sql,) in _rows(path, "sqlite_master", "sql") if sql)
    moments = {"written", "previous", "hash", "seal"}
    return {
        "description": made.description,
        "costs": [row["costs"] for row in plans if row["digest"] == made.digest.hex()],
        "plans": _digest(plans),
        "entries": _digest([{name: one for name, one in row.items() if name not in moments} for row in entries]),
        "tables": _digest(tables),
        "values": bits(release.values),
        "state": sorted(release.state or {}),
    }


def _rows(path: Path, table: str, columns: str = "*") -> list[Any]:
    with sqlite3.connect(path) as database:
        database.row_factory = None if columns != "*" else _named
        return database.execute(f"SELECT {columns} FROM {table}").fetchall()  # noqa: S608  (names of this file)


def _named(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    names = [name for name, *_ in cursor.description]
    return {name: one.hex() if isinstance(one, bytes) else one for name, one in zip(names, row, strict=True)}


CONTENT = {"estimates": estimates, "releases": releases}


def main() -> None:
    """Write all golden files."""
    FOLDER.mkdir(exist_ok=True)
    for name, make in CONTENT.items():
        (FOLDER / f"{name}.json").write_text(json.dumps(make(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
