"""Reading series: numpy arrays, and series of pandas, polars or pyarrow without depending on any of them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import narwhals.stable.v2 as nw
import numpy as np

from optstream.errors import DataError, ParameterTypeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["read_periods"]


def read_periods(x: Any, w: int) -> tuple[NDArray[np.float64], Callable[[NDArray[np.float64]], Any]]:
    """Return the data as one period per row, and a function that gives released rows the form of the input.

    A 1-D input of ``n * w`` values, a 2-D array of ``n`` rows of ``w``, or a series of pandas, polars or pyarrow.

    >>> rows, restore = read_periods(np.arange(6.0), 3)
    >>> rows.shape, restore(rows).shape
    ((2, 3), (6,))
    """
    series = None
    if isinstance(x, np.ndarray):
        array = x
    elif isinstance(x, (list, tuple)):
        array = np.asarray(x)
    else:
        series = _series(x)
        array = series.to_numpy()
    if array.dtype.kind not in "fiu" or array.dtype.itemsize > np.dtype(np.float64).itemsize:
        raise ParameterTypeError(f"x holds {array.dtype}, but must hold real numbers of at most 64 bits")
    if array.ndim not in {1, 2} or (array.ndim == 2 and array.shape[1] != w):  # noqa: PLR2004
        raise DataError(f"x has shape {array.shape}, but must be 1-D, or 2-D with w = {w} columns")
    if array.size == 0 or array.size % w:
        raise DataError(f"x has {array.size} values, but must have a positive multiple of w = {w}")
    rows = np.ascontiguousarray(array, dtype=np.float64).reshape(-1, w)

    def restore(released: NDArray[np.float64]) -> Any:
        values = released.reshape(array.shape)
        if series is None:
            return values
        made = nw.new_series(series.name, values, nw.Float64, backend=series.implementation)
        index = nw.maybe_get_index(series)
        return (made if index is None else nw.maybe_set_index(made, index=index)).to_native()

    return rows, restore


def _series(x: Any) -> nw.Series[Any]:
    if type(x).__module__.startswith("pyarrow") and hasattr(x, "__arrow_c_array__"):
        # An array of one piece is read as a chunked one.
        x = sys.modules["pyarrow"].chunked_array([x])
    try:
        return nw.from_native(x, series_only=True)
    except TypeError:
        raise ParameterTypeError(
            f"x is of type {type(x).__name__}, but must be a numpy array or a series of pandas, polars or pyarrow"
        ) from None
