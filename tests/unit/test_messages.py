"""No message quotes the data: sentinels go through every way in, and everything that is raised is searched for them."""

from __future__ import annotations

import traceback
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import optstream as ops
from optstream.cli.app import app
from optstream.cli.tables import numbers, read_table
from optstream.data.events import aggregate
from optstream.data.frames import read_leaves, read_periods

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VALUE, PERSON = 987654321.125, "SECRET-PERSON"
MARKS = ("987654321", "9.87654321", "SECRET")
TREE = ops.Hierarchy.nested({"all": ["a", "b"]})
GUARANTEE = ops.Guarantee(epsilon=1, w=2)
SINGLE = ops.OptStream(GUARANTEE, sample=ops.EqualSampling(k=2), bounds=(0, 100))
DOUBLE = ops.OptStream(GUARANTEE, sample=ops.EqualSampling(k=2), bounds=(0, 100), hierarchy=TREE)
BAD: dict[str, list[Any]] = {
    "text": [VALUE, PERSON],
    "nan": [VALUE, float("nan")],
    "null": [VALUE, None],
    "large": [int(VALUE), 2**60 + 987654321],
    "decimal": [Decimal("987654321.125"), Decimal(1)],
    "odd": [VALUE, VALUE, VALUE],
    "nested": [[VALUE], VALUE],
    "bytes": [b"SECRET", VALUE],
}
FORMS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "object": lambda values: np.array(values, dtype=object),
    "pandas": lambda values: pd.Series(values, dtype=object),
    "polars": lambda values: pl.Series(values, strict=False),
    "pyarrow": pa.array,
}


def check(call: Callable[[], object], *, must_fail: bool = True) -> None:
    """Assert that a call raises an error of this library that holds no mark, in its message and as it is printed."""
    raised: ops.OptStreamError | None = None
    try:
        call()
    except ops.OptStreamError as error:
        raised = error
    assert raised is not None or not must_fail
    # As it is printed, with what it was raised from unless that is suppressed; lines of source hold no data.
    shown = (
        "" if raised is None else "".join(traceback.TracebackException.from_exception(raised).format_exception_only())
    )
    context = None if raised is None or raised.__suppress_context__ else raised.__context__
    for text in (shown, str(context)):
        assert not any(mark in text for mark in MARKS), text


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("form", FORMS)
def test_arrays_and_leaves(form: str, bad: str) -> None:
    try:
        x = FORMS[form](BAD[bad])
    except (ValueError, TypeError, pa.ArrowException, pl.exceptions.PolarsError):
        pytest.skip("this form cannot be made")
    check(lambda: SINGLE.release(x), must_fail=bad != "null")
    check(lambda: DOUBLE.release({"a": x, "b": [1.0, 2.0]}))
    check(lambda: read_leaves({"a": x, "b": [1.0]}, TREE, 2))
    check(lambda: read_periods(x, 5))


@pytest.mark.parametrize("value", [PERSON, None, 2**60 + 987654321, Decimal("987654321.125"), [VALUE], {"a": VALUE}])
def test_streams(value: Any) -> None:
    check(lambda: ops.Stream(SINGLE).push(0, value))
    check(lambda: ops.Stream(DOUBLE).push(0, value))
    check(lambda: ops.Stream(DOUBLE).push(0, {"a": value, "b": 1.0}))
    check(lambda: ops.Stream(DOUBLE).push(0, {"a": VALUE, "b": 1.0, PERSON: VALUE}))


def events(**columns: list[Any]) -> dict[str, list[Any]]:
    base: dict[str, list[Any]] = {"who": [PERSON, "b"], "at": [0, 1], "v": [VALUE, 1.0], "zone": ["x", "y"]}
    return base | columns


CASES: dict[str, dict[str, list[Any]]] = {
    "mixed cells": events(v=[VALUE, PERSON]),
    "mixed entities": events(who=[PERSON, 5]),
    "null entity": events(who=[PERSON, None]),
    "null value": events(v=[VALUE, None]),
    "infinite": events(v=[VALUE, float("inf")]),
    "large": events(v=[2**60 + 987654321, 1]),
    "two groups": events(who=[PERSON, PERSON]),
    "unknown group": events(zone=["x", PERSON]),
    "mixed times": events(at=[0, PERSON]),
    "nested": events(v=[[VALUE], [1.0]]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow", "csv"])
def test_events(case: str, kind: str, tmp_path: Path) -> None:
    columns: Any = CASES[case]
    try:
        frame: Any = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.table, "csv": pd.DataFrame}[kind](
            columns
        )
    except (TypeError, ValueError, pa.ArrowException):
        pytest.skip("this frame cannot be made")
    if kind == "csv":
        path = tmp_path / "events.csv"
        frame.to_csv(path, index=False)
        frame = str(path)
    options: Any = {"entity": "who", "time": "at", "value": "v", "alpha": 2.0, "start": 0, "stop": 2}
    fails = not (kind == "csv" and case in {"mixed entities", "large"}) and case not in {"two groups", "unknown group"}
    check(lambda: aggregate(frame, **options), must_fail=fails)
    check(lambda: aggregate(frame, **options, group="zone", groups=["x", "y"]), must_fail=False)
    check(lambda: aggregate(frame, **options | {"value": "who"}))
    check(lambda: aggregate(frame, **options | {"time": "v"}))


def test_counts_are_not_told() -> None:
    many = pl.DataFrame({"who": [f"{n % 29634}" for n in range(59268)], "at": [0] * 59268, "zone": ["x", "y"] * 29634})
    swapped = many.with_columns(
        pl.when(pl.int_range(pl.len()) < 29634).then(pl.lit("x")).otherwise(pl.lit("y")).alias("zone")
    )
    with pytest.raises(ops.DataError) as caught:
        aggregate(swapped, entity="who", time="at", start=0, stop=1, group="zone")
    assert not any(letter.isdigit() for letter in str(caught.value))


def test_tables_and_the_command_line(tmp_path: Path) -> None:
    series = tmp_path / "series.csv"
    for text in (f"at,v\n0,{VALUE}\n1,{PERSON}\n", f"at,v\n0,{VALUE}\n1,\n", f"v\n{VALUE}\n{2**60 + 987654321}\n"):
        series.write_text(text)
        check(lambda: numbers(read_table(str(series), None), ["v"]))
        for arguments in (
            ["release", str(series), "--value", "v", "--epsilon", "1", "--w", "2", "--bounds", "0", "100"],
            [
                "aggregate",
                str(series),
                "-o",
                str(tmp_path / "o.csv"),
                "--entity",
                "v",
                "--time",
                "at",
                "--value",
                "at",
                "--alpha",
                "2",
            ],
        ):
            result = CliRunner().invoke(app, arguments)
            assert result.exit_code != 0
            assert not any(mark in result.output for mark in MARKS), result.output


def test_times_of_events_are_not_quoted() -> None:
    frame = pd.DataFrame({"who": ["a", "b"], "at": [datetime(2016, 1, 1), PERSON]})  # noqa: DTZ001
    check(lambda: aggregate(frame, entity="who", time="at", step="1h"))
