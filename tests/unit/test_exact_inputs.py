"""What a user may pass, in pairs of neighbours: read exactly or refused, so that units differ by at most A."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, example, given, settings

import optstream as ops
from optstream.cli.tables import numbers
from optstream.data.events import aggregate
from optstream.data.frames import read_leaves, read_periods
from optstream.data.numbers import doubles, finite

if TYPE_CHECKING:
    from collections.abc import Callable

W = 2
TREE = ops.Hierarchy.nested({"all": ["a", "b"]})
HUGE = 2**53


def pyarrow_decimals(values: list[Any]) -> Any:
    return pa.array([Decimal(str(value)) for value in values], pa.decimal128(38, 6))


ARRAYS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "list beside a fraction": lambda values: [values[0], *values[1:-1], float(values[-1])],
    "list of numpy integers": lambda values: [np.int64(value) if isinstance(value, int) else value for value in values],
    "list of unsigned and signed": lambda values: [np.uint64(values[0]), *map(np.int64, values[1:])],
    "list of long doubles": lambda values: [np.longdouble(value) for value in values],
    "list of decimals": lambda values: [Decimal(value) for value in values],
    "list of fractions": lambda values: [Fraction(value) for value in values],
    "list of lists": lambda values: [list(values)],
    "int64": lambda values: np.array(values, dtype=np.int64),
    "uint64": lambda values: np.array(values, dtype=np.uint64),
    "int32": lambda values: np.array(values, dtype=np.int32),
    "float64": lambda values: np.array(values, dtype=np.float64),
    "float32": lambda values: np.array(values, dtype=np.float32),
    "float16": lambda values: np.array(values, dtype=np.float16),
    "longdouble": lambda values: np.array(values, dtype=np.longdouble),
    "object": lambda values: np.array(values, dtype=object),
    "decimals": lambda values: np.array([Decimal(value) for value in values], dtype=object),
    "bool": lambda values: np.array(values, dtype=bool),
    "pandas": pd.Series,
    "pandas Int64": lambda values: pd.Series(values, dtype="Int64"),
    "pandas UInt64": lambda values: pd.Series(values, dtype="UInt64"),
    "pandas Float64": lambda values: pd.Series(values, dtype="Float64"),
    "pandas int64[pyarrow]": lambda values: pd.Series(values, dtype="int64[pyarrow]"),
    "pandas double[pyarrow]": lambda values: pd.Series(values, dtype="double[pyarrow]"),
    "pandas decimal[pyarrow]": lambda values: pd.Series(
        pyarrow_decimals(values), dtype=pd.ArrowDtype(pa.decimal128(38, 6))
    ),
    "pandas object": lambda values: pd.Series(values, dtype=object),
    "pandas longdouble": lambda values: pd.Series(np.array(values, dtype=np.longdouble)),
    "polars": pl.Series,
    "polars Int64": lambda values: pl.Series(values, dtype=pl.Int64),
    "polars UInt64": lambda values: pl.Series(values, dtype=pl.UInt64),
    "polars Int128": lambda values: pl.Series(values, dtype=pl.Int128),
    "polars Decimal": lambda values: pl.Series([round(Decimal(value), 6) for value in values], dtype=pl.Decimal(38, 6)),
    "polars Float32": lambda values: pl.Series(values, dtype=pl.Float32),
    "pyarrow": pa.array,
    "pyarrow uint64": lambda values: pa.array(values, pa.uint64()),
    "pyarrow decimals": pyarrow_decimals,
    "pyarrow chunked": lambda values: pa.chunked_array([values]),
    "pyarrow halves": lambda values: pa.array(np.array(values, dtype=np.float16)),
}
ROUNDING = {
    "list of decimals",
    "list of fractions",
    "list of long doubles",
    "longdouble",
    "decimals",
    "polars Int128",
    "polars Decimal",
    "pyarrow decimals",
    "pandas decimal[pyarrow]",
    "pandas longdouble",
}

# These are doubles, or narrower, before they come here.
HOLDS_DOUBLES = {
    "float64",
    "float32",
    "float16",
    "pandas Float64",
    "pandas double[pyarrow]",
    "polars Float32",
    "pyarrow halves",
}


def made(kind: str, values: list[Any]) -> Any:
    """The values in a form, or None where the library that makes it cannot hold them or changes them."""
    try:
        return ARRAYS[kind](values)
    except (
        ValueError,
        TypeError,
        RuntimeError,
        OverflowError,
        RuntimeWarning,
        pa.ArrowException,
        pl.exceptions.PolarsError,
    ):
        return None


def exactly(value: Any) -> Fraction:
    return (
        Fraction(value.as_integer_ratio()[0], value.as_integer_ratio()[1])
        if hasattr(value, "as_integer_ratio")
        else Fraction(int(value))
    )


def held(kind: str, values: list[Any]) -> list[Fraction]:
    """What a form really holds, exactly."""
    form = made(kind, values)
    assume(form is not None)
    listed = form.to_pylist() if hasattr(form, "to_pylist") else form
    if isinstance(listed, (np.ndarray, list, tuple, pd.Series, pl.Series)):
        listed = [entry for row in listed for entry in (row if isinstance(row, list) else [row])]
    assume(not any(isinstance(entry, (float, np.floating)) and not math.isfinite(entry) for entry in listed))
    return [exactly(entry) for entry in listed]


# Around 2^53 and beyond, where doubles are further apart than integers, and around ties of the grid.
integers = st.one_of(
    st.integers(-(2**20), 2**20),
    st.integers(-4, 4).map(lambda offset: HUGE + offset),
    st.integers(-4, 4).map(lambda offset: -HUGE + offset),
    st.integers(HUGE, 2**63 - 1),
)
fractions = st.one_of(
    st.floats(-1e6, 1e6),
    st.integers(-(2**20), 2**20).map(lambda units: (units + 0.5) / 1024),
    st.sampled_from([5e-324, -5e-324, math.nextafter(0.5, 0), -0.0, 1e15 + 0.125]),
)


def units(rows: Any, mechanism: ops.OptStream) -> Any:
    return mechanism.read(rows).units.ravel()


def mechanism(alpha: float, *, grid: float | None = None, hierarchy: ops.Hierarchy | None = None) -> ops.OptStream:
    bounds = (-float(HUGE) * (grid or 0.0009765625) / 4, float(HUGE) * (grid or 0.0009765625) / 4)
    return ops.OptStream(
        ops.Guarantee(epsilon=1, w=W, alpha=alpha),
        sample=ops.EqualSampling(k=W),
        bounds=bounds,
        grid=grid,
        hierarchy=hierarchy,
    )


COARSE = mechanism(1.0, grid=1.0)
WIDE = mechanism(4.0, grid=4.0)
FINE = mechanism(1.0)


def check_pair(kind: str, values: list[Any], change: Any, made_by: ops.OptStream) -> None:
    """Either a form is refused, or neighbours in it become units that are at most A apart."""
    other = [values[0] + change, *values[1:]]
    first, second = made(kind, values), made(kind, other)
    assume(first is not None and second is not None)
    # The library that made the form may have rounded, which is not for this one to see.
    gap = abs(held(kind, values)[0] - held(kind, other)[0])
    assume(gap <= Fraction(made_by.guarantee.alpha))
    try:
        before, after = units(first, made_by), units(second, made_by)
    except (ops.DataError, ops.ParameterTypeError):
        return
    assert kind not in ROUNDING
    sensitivity = math.ceil(Fraction(made_by.guarantee.alpha) / Fraction(made_by.grid))
    assert np.abs(before - after).max() <= sensitivity


@pytest.mark.parametrize("kind", ARRAYS)
class TestNeighbours:
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
    @given(st.lists(integers, min_size=W, max_size=W), st.integers(-4, 4))
    # Half to even: 2^53 + 1 becomes 2^53, and 2^53 + 3 becomes 2^53 + 4.
    @example([HUGE + 1, 1], 2)
    @example([2**54 + 2, 1], 4)
    def test_integers(self, kind: str, values: list[int], change: int) -> None:
        for made_by in (COARSE, WIDE):
            if abs(change) <= made_by.guarantee.alpha:
                check_pair(kind, values, change, made_by)

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
    @given(st.lists(fractions | st.integers(0, 9), min_size=W, max_size=W), st.floats(-1, 1) | st.integers(-1, 1))
    @example([3, 4], 1)
    def test_fractions(self, kind: str, values: list[float], change: float) -> None:
        check_pair(kind, values, change, FINE)


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("value", [HUGE + 1, -HUGE - 1, 2**63 - 1])
def test_integers_beyond_2_53_are_refused_in_every_form(kind: str, value: int) -> None:
    form = made(kind, [value, 1])
    if kind in HOLDS_DOUBLES or form is None:
        pytest.skip("this form cannot hold the integer")
    with pytest.raises((ops.DataError, ops.ParameterTypeError)) as caught:
        read_periods(form, W)
    assert str(abs(value)) not in str(caught.value)
    with pytest.raises((ops.DataError, ops.ParameterTypeError)) as caught:
        read_leaves({"a": form, "b": [0.5, 0.5]}, TREE, W)
    assert str(abs(value)) not in str(caught.value)


FRAMES: dict[str, Callable[[dict[str, list[Any]]], Any]] = {
    "mapping": dict,
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "pyarrow": pa.table,
    "pandas Int64": lambda columns: pd.DataFrame(columns).convert_dtypes(),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_integers_beside_fractions_in_a_frame_are_not_rounded(kind: str) -> None:
    with pytest.raises(ops.DataError, match="beyond 2\\^53"):
        read_leaves(FRAMES[kind]({"a": [HUGE + 1, 1], "b": [0.5, 0.25]}), TREE, W)
    data, _ = read_leaves(FRAMES[kind]({"a": [HUGE, -HUGE], "b": [0.5, 0.25]}), TREE, W)
    assert data.tolist() == [[HUGE, 0.5], [-HUGE, 0.25]]


def test_bools_are_refused_alone_and_in_a_mapping() -> None:
    for form in ([True, False], np.array([True, False]), pl.Series([True, False]), pd.Series([True, False])):
        with pytest.raises(ops.ParameterTypeError):
            read_periods(form, W)
        with pytest.raises(ops.ParameterTypeError):
            read_leaves({"a": form, "b": [0.5, 0.5]}, TREE, W)


def test_nulls_beside_integers_are_refused() -> None:
    for form in (pl.Series([1, None]), pd.Series([1, None], dtype="Int64"), pa.array([1, None])):
        with pytest.raises(ops.DataError):
            read_periods(form, W)


def test_an_arrow_array_comes_back_as_one() -> None:
    released = FINE.release(pa.array([1.0, 2.0])).values
    assert isinstance(released, pa.Array)
    assert isinstance(FINE.release(pa.chunked_array([[1.0, 2.0]])).values, pa.ChunkedArray)


SCALARS = [HUGE + 1, -HUGE - 1, 10**400, np.int64(HUGE + 1), np.uint64(2**64 - 1), np.longdouble(1) / 3, Decimal("0.1")]


@pytest.mark.parametrize("value", [*SCALARS, Fraction(1, 3), True, np.True_, "1", None, np.array(1.0), math.nan])
def test_scalars_that_are_no_doubles_are_refused(value: Any) -> None:
    with pytest.raises((ops.DataError, ops.ParameterTypeError)):
        finite("value", value)
    with pytest.raises((ops.DataError, ops.ParameterTypeError)):
        ops.Stream(FINE).push(0, value)
    tree = mechanism(1.0, hierarchy=TREE)
    with pytest.raises((ops.DataError, ops.ParameterTypeError)):
        ops.Stream(tree).push(0, {"a": value, "b": 1.0})


@given(st.one_of(integers, fractions), st.sampled_from([float, int, np.float32, np.float64, np.int64]))
def test_scalars_are_read_exactly_or_refused(value: Any, kind: Callable[[Any], Any]) -> None:
    given_value = kind(value)
    try:
        read = finite("value", given_value)
    except ops.DataError:
        assert isinstance(given_value, (int, np.integer))
        assert abs(int(given_value)) > HUGE
    else:
        assert Fraction(read) == exactly(given_value)


@pytest.mark.parametrize("dtype", [pl.Int64, pl.UInt64, pl.Int128, pl.Decimal(38, 2)])
def test_tables_and_events_refuse_what_a_double_would_round(dtype: Any) -> None:
    frame = pl.DataFrame({"who": ["x", "y"], "at": [0, 1], "v": pl.Series([HUGE + 1, 1]).cast(dtype)})
    with pytest.raises((ops.DataError, ops.ParameterTypeError)):
        numbers(frame, ["v"])
    with pytest.raises((ops.DataError, ops.ParameterTypeError)):
        aggregate(frame, entity="who", time="at", value="v", alpha=2.0, start=0, stop=2)


def test_large_numbers_in_a_text_are_refused_beside_fractions() -> None:
    frame = pl.read_csv(b"v\n9007199254740993\n0.5\n")
    with pytest.raises(ops.DataError, match="beyond 2\\^53"):
        numbers(frame.with_columns(pl.col("v") * 2), ["v"])


def test_alpha_is_never_rounded_down() -> None:
    alpha = 1 + Fraction(1, 2**60)
    made_by = ops.Guarantee(epsilon=1, w=W, alpha=alpha)  # type: ignore[arg-type]
    assert Fraction(made_by.alpha) >= alpha
    assert doubles("x", np.array([HUGE, -HUGE])).tolist() == [HUGE, -HUGE]
