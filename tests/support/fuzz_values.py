"""What comes in where it should not: values of every kind, for fuzzing."""

from __future__ import annotations

from datetime import UTC
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import hypothesis.extra.numpy as st_numpy
import hypothesis.strategies as st
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable


class Sub(np.ndarray[Any, Any]):
    """A subclass, as libraries make them."""


LAYOUTS: list[Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]] = [
    np.asarray,
    np.asfortranarray,
    lambda array: array.T,
    lambda array: array[::-2] if array.ndim else array,
    lambda array: array.view(Sub),
]
DTYPES = "f2 f4 f8 >f8 i1 i8 u8 ? c16 S3 U3 O V8 M8[s] m8[s] g"
NUMBERS = [0, 1, -1, 0.5, -0.0, 5e-324, 1e308, -1e308, float("nan"), float("inf"), 2**31, 2**53, -(2**63), 2**64]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-9, 9),
    st.floats(),
    st.sampled_from(NUMBERS),
    st.text(max_size=5).filter(lambda text: "/" not in text),
    st.binary(max_size=5).filter(lambda data: b"/" not in data),
    st.fractions(),
    st.decimals() | st.just(Decimal("1e400")),
    st.datetimes() | st.datetimes(timezones=st.just(UTC)) | st.dates() | st.timedeltas(),
    st.complex_numbers(),
    st.sampled_from([np.float32(1), np.float64("nan"), np.int64(3), np.bool_(1), np.datetime64("NaT"), pd.NaT]),
    st.sampled_from([object(), int, len, ..., "\0", "\ud800", "..", "nan", "auto"]),
)
TABLES = [
    pd.Series([1.0, None, 2.0, 3.0]),
    pd.Series(["a", "b"] * 2, dtype="category"),
    pd.DataFrame({"a": [1.0] * 4, "b": [2] * 4}),
    pl.Series([1, 2, 3, 4], dtype=pl.Int128),
    pl.Series([None] * 4),
    pl.DataFrame({"a": ["x"] * 4}),
    pl.LazyFrame({"a": [1.0] * 4}),
    pa.array([1.0, None] * 2),
    pa.array(["a", "b"]).dictionary_encode(),
    pa.table({"a": [1.0] * 4, "b": [1.0] * 4}),
]


@st.composite
def junk_arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Return arrays of any type, shape and layout."""
    shape = draw(st_numpy.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    made = np.zeros(shape, dtype=draw(st.sampled_from(DTYPES.split())))
    if made.dtype.kind == "f":
        made[...] = draw(st.sampled_from([0.0, 1.0, -1e4, np.nan, np.inf]))
    layout: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]] = draw(st.sampled_from(LAYOUTS))
    return layout(made)


JUNK: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3) | st.tuples(inner, inner)
    ),
    max_leaves=4,
)
JUNK |= junk_arrays() | st.sampled_from(TABLES) | st.just(10).map(lambda base: base**400)
SMALL = JUNK.filter(lambda value: not isinstance(value, (int, float)) or abs(value) < 100)
"""Junk without large numbers, for what takes a number as a length."""
