"""Raw numbers as doubles, exactly: whatever would be rounded on the way is refused.

The guarantee counts what one entity changes on the grid. A conversion that rounds half to even before the grid, such as
that of an integer beyond 2^53 or of a long double, may move two neighbours one grid step further apart than the grid
itself would. So every way in leads through here, and no message quotes a number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from optstream.errors import DataError, ParameterTypeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LARGEST", "doubles", "finite", "listed"]

LARGEST = 2**53
"""The largest size of an integer up to which every integer is a double."""
WIDEST = np.dtype(np.float64).itemsize


def finite(name: str, value: Any) -> float:
    """Return a number as a double, or raise with the name of what is not one.

    >>> finite("value", np.float32(0.5))
    0.5
    """
    number = _double(name, value)
    if not np.isfinite(number):
        raise DataError(f"{name} is {number}, but must be finite")
    return number


def _double(name: str, value: Any) -> float:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise ParameterTypeError(f"{name} is of type {type(value).__name__}, but must be a real number")
    if isinstance(value, np.floating) and value.dtype.itemsize > WIDEST:
        raise ParameterTypeError(f"{name} is of type {type(value).__name__}, but must be a number of at most 64 bits")
    if isinstance(value, (int, np.integer)) and not -LARGEST <= int(value) <= LARGEST:
        raise DataError(f"{name} is an integer beyond 2^53, but must be at most 2^53 in size: a double would round it")
    return float(value)


def doubles(name: str, array: NDArray[Any]) -> NDArray[np.float64]:
    """Return an array as doubles, which hold its entries exactly.

    >>> doubles("x", np.array([1, 2], dtype=np.uint8))
    array([1., 2.])
    """
    if np.ma.is_masked(array):
        raise DataError(
            f"{name} has masked entries, but must have none: what is missing must not count as something else"
        )
    if array.dtype.kind not in "fiu" or array.dtype.itemsize > WIDEST:
        raise ParameterTypeError(f"{name} holds {array.dtype}, but must hold real numbers of at most 64 bits")
    # Narrower integers cannot be too large.
    if array.dtype.kind in "iu" and array.dtype.itemsize == WIDEST and array.size:
        low, high = int(array.min()), int(array.max())
        if low < -LARGEST or high > LARGEST:
            raise DataError(
                f"{name} holds an integer beyond 2^53, but must hold none: a double would round it (use another unit)"
            )
    return np.asarray(array, dtype=np.float64)


def listed(name: str, values: list[Any] | tuple[Any, ...]) -> NDArray[np.float64]:
    """Return a list of numbers, or of rows of them, as doubles. Each is looked at before numpy finds a common type.

    >>> listed("x", [[1, 2.5]])
    array([[1. , 2.5]])
    """
    try:
        entries = np.array(values, dtype=object)
    except Exception as error:  # noqa: BLE001  (libraries raise errors of their own)
        raise DataError(f"{name} cannot be read as an array: {type(error).__name__}") from None
    return np.array([_double(f"an entry of {name}", entry) for entry in entries.flat], dtype=np.float64).reshape(
        entries.shape
    )
