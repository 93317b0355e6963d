"""Reading series: numpy arrays, and series of pandas, polars or pyarrow without depending on any of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import narwhals.stable.v2 as nw
import numpy as np

from optstream.data.numbers import doubles, listed
from optstream.errors import DataError, OptStreamError, ParameterTypeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from optstream.pipeline.hierarchy import Hierarchy

__all__ = ["read_leaves", "read_periods"]

EXACT = (nw.Int8, nw.Int16, nw.Int32, nw.Int64, nw.UInt8, nw.UInt16, nw.UInt32, nw.UInt64, nw.Float32, nw.Float64)
"""Types of series that become numpy arrays of the same type; those unknown to narwhals are judged by numpy's."""


def read_periods(x: Any, w: int) -> tuple[NDArray[np.float64], Callable[[NDArray[np.float64]], Any]]:
    """Return the data as one period per row, and a function that gives released rows the form of the input.

    A 1-D input of ``n * w`` values, a 2-D array of ``n`` rows of ``w``, or a series of pandas, polars or pyarrow.

    >>> rows, restore = read_periods(np.arange(6.0), 3)
    >>> rows.shape, restore(rows).shape
    ((2, 3), (6,))
    """
    series = None if isinstance(x, (np.ndarray, list, tuple)) else _series(x)
    array = _column(x if series is None else series)
    if array.ndim not in {1, 2} or (array.ndim == 2 and array.shape[1] != w):  # noqa: PLR2004
        raise DataError(f"x has shape {array.shape}, but must be 1-D, or 2-D with w = {w} columns")
    if array.size == 0 or array.size % w:
        raise DataError(f"x has {array.size} values, but must have a positive multiple of w = {w}")
    rows = np.ascontiguousarray(array).reshape(-1, w)

    def restore(released: NDArray[np.float64]) -> Any:
        values = released.reshape(array.shape)
        if series is None:
            return values
        kind = nw.Int64 if values.dtype.kind == "i" else nw.Float64
        made = _indexed(nw.new_series(series.name, values, kind, backend=series.implementation), series)
        # An array of one piece comes back as one.
        return made.combine_chunks() if _is_arrow_array(x) else made

    return rows, restore


def read_leaves(
    x: Any, hierarchy: Hierarchy, w: int
) -> tuple[NDArray[np.float64], Callable[[NDArray[np.float64]], Any]]:
    """Return one column per leaf, and a function that gives released columns, one per node, the form of the input.

    >>> from optstream import Hierarchy
    >>> tree = Hierarchy.nested({"nation": ["north", "south"]})
    >>> read_leaves({"south": [1.0], "north": [2.0]}, tree, 1)[0]
    array([[2., 1.]])
    """
    names = hierarchy.leaves
    frame = None
    if isinstance(x, np.ndarray):
        array = doubles("x", x)
    else:
        columns: Any = x
        if not isinstance(x, Mapping):
            try:
                columns = frame = nw.from_native(x, eager_only=True)
            except TypeError:
                raise ParameterTypeError(
                    f"x is of type {type(x).__name__}, but must be an array, a mapping or a frame of leaf columns"
                ) from None
        missing = [name for name in names if name not in (columns.columns if frame is not None else columns)]
        if missing:
            raise DataError(f"x has no column {missing[0]!r}, but must have one for every leaf")
        array = _stacked([_column(columns[name]) for name in names])
    if array.ndim != 2 or array.shape[1] != len(names):  # noqa: PLR2004
        raise DataError(f"x has shape {array.shape}, but must have one column for each of {len(names)} leaves")
    if array.shape[0] == 0 or array.shape[0] % w:
        raise DataError(f"x has {array.shape[0]} rows, but must have a positive multiple of w = {w}")

    def restore(released: NDArray[np.float64]) -> Any:
        if isinstance(x, np.ndarray):
            return released
        released_columns = {name: released[:, index] for index, name in enumerate(hierarchy.nodes)}
        if frame is None:
            return released_columns
        return _indexed(_timed(nw.from_dict(released_columns, backend=frame.implementation), frame), frame)

    data = np.ascontiguousarray(array)
    _check_finite(data, names)
    return data, restore


def _column(x: Any) -> NDArray[np.float64]:
    """Return one array, list or series as doubles."""
    if isinstance(x, np.ndarray):
        return doubles("x", x)
    if isinstance(x, (list, tuple)):
        return listed("x", x)
    series = _series(x)
    # Some of these become doubles inside the library, which rounds.
    if not isinstance(series.dtype, (*EXACT, nw.Unknown)):
        raise ParameterTypeError(f"x holds {series.dtype}, but must hold real numbers of at most 64 bits")
    if isinstance(series.dtype, nw.dtypes.IntegerType) and series.null_count():
        # What is left beside a null may come as doubles, rounded.
        raise DataError("x has nulls, but must have none: what is missing must not count as something else")
    try:
        return doubles("x", np.asarray(series))
    except OptStreamError:
        raise
    except Exception as error:  # noqa: BLE001  (libraries raise errors of their own)
        raise DataError(f"x cannot be read as an array: {type(error).__name__}") from None


def _stacked(columns: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    if any(column.ndim != 1 or column.size != columns[0].size for column in columns):
        raise DataError("x has columns of different lengths, or of more than one dimension, but must not")
    return np.stack(columns, axis=1)


def _indexed(made: Any, original: Any) -> Any:
    """Return the native form of what was made, with the index of the original where there are indices."""
    native, index = made.to_native(), nw.maybe_get_index(original)
    if index is not None:
        native.index = index
    return native


def _timed(made: Any, original: Any) -> Any:
    """Return a frame with the columns of times of the original, which are as public as the steps are."""
    if len(made) != len(original):
        return made
    times = [column for column in original.iter_columns() if column.dtype.is_temporal()]
    return made.select([*(time for time in times if time.name not in made.columns), nw.all()])


def _check_finite(data: NDArray[np.float64], names: tuple[str, ...]) -> None:
    for row, column in np.argwhere(~np.isfinite(data)):
        raise DataError(f"x is not finite in row {row} of {names[column]!r}, but must be")


def _is_arrow_array(x: Any) -> bool:
    return type(x).__module__.startswith("pyarrow") and hasattr(x, "__arrow_c_array__")


def _series(x: Any) -> nw.Series[Any]:
    if isinstance(x, nw.Series):
        return x
    if _is_arrow_array(x):
        # An array of one piece is read as a chunked one.
        x = sys.modules["pyarrow"].chunked_array([x])
    try:
        return nw.from_native(x, series_only=True)
    except TypeError:
        raise ParameterTypeError(
            f"x is of type {type(x).__name__}, but must be a numpy array or a series of pandas, polars or pyarrow"
        ) from None
