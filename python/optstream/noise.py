"""Exact noise for numpy arrays.

Values are clamped to public bounds, rounded to a public grid, and moved by an integer number of grid steps. The law of
that integer is exact: no probability is rounded, and no floating-point number is computed with in between. Every call
draws a fresh key from the operating system, and no generator outlives it, so processes that fork, threads, and restored
snapshots never repeat noise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optstream import _core
from optstream.errors import ParameterError, ParameterTypeError
from optstream.privacy.budget import exact
from optstream.privacy.gaussian import ratio_of, rho_from

if TYPE_CHECKING:
    from decimal import Decimal
    from fractions import Fraction

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["cube", "default_grid", "gaussian", "laplace"]


def laplace(
    values: NDArray[np.float64],
    *,
    sensitivity: float,
    epsilon: float | Fraction | Decimal,
    bounds: tuple[float, float],
    grid: float | None = None,
) -> NDArray[np.float64]:
    """Add independent discrete Laplace noise to every value of a 1-D array.

    **What it costs.** ``sensitivity`` is how much *one value* may change, and ``epsilon`` is what *each value* costs:
    an entity that can change ``m`` of the values by up to ``sensitivity`` each is protected with ``m * epsilon``. The
    array as a whole is not covered by a single ``epsilon`` unless an entity can change only one value of it.

    Args:
        values: 1-D array of float64. Not modified.
        sensitivity: The largest change of one value, positive.
        epsilon: The budget per value, positive. A float is read as the decimal that it shows: 0.1 is one tenth.
        bounds: Public ``(lower, upper)``. Values outside are clamped; the noisy result may lie outside.
        grid: Public step, a power of two. By default :func:`default_grid` of the sensitivity.

    Returns:
        The noisy values, all of them multiples of the grid.

    Raises:
        ParameterError: A parameter lies outside its bound.
        ParameterTypeError: A parameter has the wrong type.
        DataError: The array is empty, or a value is NaN or infinite.
        EntropyError: The operating system gave no entropy.

    Example:
        >>> import numpy as np
        >>> noisy = laplace(np.array([12.0, 7.5]), sensitivity=1.0, epsilon=0.5, bounds=(0.0, 100.0))
        >>> noisy.shape, bool(np.all(noisy % default_grid(1.0) == 0))
        ((2,), True)
    """
    return _core.laplace(values, sensitivity, epsilon, bounds, grid)


def cube(
    values: NDArray[np.float64],
    *,
    sensitivity: float,
    epsilon: float | Fraction | Decimal,
    bounds: tuple[float, float],
    grid: float | None = None,
) -> NDArray[np.float64]:
    """Add cube (L-infinity) noise to a block of values: 1-D is one block, 2-D is one block per row.

    **What it costs.** ``epsilon`` is what *one block* costs, however many of its values change, as long as each changes
    by at most ``sensitivity``. An entity that can change ``m`` blocks is protected with ``m * epsilon``. For a block of
    ``d`` values the mean absolute noise is about ``(d + 1) / 2 * sensitivity / epsilon``, against
    ``d * sensitivity / epsilon`` for independent Laplace noise with the same protection of the block.

    Args:
        values: 1-D or 2-D array of float64. Not modified.
        sensitivity: The largest change of any one value of a block, positive.
        epsilon: The budget per block, positive. A float is read as the decimal that it shows: 0.1 is one tenth.
        bounds: Public ``(lower, upper)``. Values outside are clamped; the noisy result may lie outside.
        grid: Public step, a power of two. By default :func:`default_grid` of the sensitivity.

    Returns:
        The noisy values, all of them multiples of the grid, in the shape of the input.

    Raises:
        ParameterError: A parameter lies outside its bound, or a block is longer than
            ``8 * sensitivity / (grid * epsilon)``, beyond which drawing would take too long: use a finer grid.
        ParameterTypeError: A parameter has the wrong type.
        DataError: The array is empty, or a value is NaN or infinite.
        EntropyError: The operating system gave no entropy.

    Example:
        >>> import numpy as np
        >>> noisy = cube(np.zeros((30, 8)), sensitivity=1.0, epsilon=0.5, bounds=(0.0, 100.0))
        >>> noisy.shape
        (30, 8)
    """
    return _core.cube(values, sensitivity, epsilon, bounds, grid)


def gaussian(
    values: NDArray[np.float64],
    *,
    sensitivity: float,
    epsilon: float | Fraction | Decimal,
    delta: float | Fraction | Decimal,
    bounds: tuple[float, float],
    changes: int = 1,
    grid: float | None = None,
) -> NDArray[np.float64]:
    """Add independent discrete Gaussian noise to every value of a 1-D array.

    **What it costs.** An entity that can change at most ``changes`` of the values, each by at most ``sensitivity``, is
    protected with ``(epsilon, delta)`` in all. The noise grows with the root of ``changes``; its standard deviation is
    about ``sensitivity * sqrt(changes / (2 rho))``, where rho depends on epsilon and delta. See docs/choosing.md for
    what a delta means.

    Args:
        values: 1-D array of float64. Not modified.
        sensitivity: The largest change of one value, positive.
        epsilon: The budget of all values together, from above 0 to 100. A float is read as the decimal that it shows.
        delta: The probability with which the promise may fail, well below one over the number of entities.
        bounds: Public ``(lower, upper)``. Values outside are clamped; the noisy result may lie outside.
        changes: The most values that one entity can change.
        grid: Public step, a power of two. By default :func:`default_grid` of the sensitivity.

    Returns:
        The noisy values, all of them multiples of the grid.

    Raises:
        ParameterError: A parameter lies outside its bound.
        ParameterTypeError: A parameter has the wrong type.
        DataError: The array is empty, or a value is NaN or infinite.
        EntropyError: The operating system gave no entropy.

    Example:
        >>> import numpy as np
        >>> noisy = gaussian(
        ...     np.zeros(48), sensitivity=1.0, epsilon=1, delta=1e-6, changes=48, bounds=(0.0, 100.0)
        ... )
        >>> noisy.shape
        (48,)
    """
    if isinstance(changes, bool) or not isinstance(changes, int):
        raise ParameterTypeError(f"changes is of type {type(changes).__name__}, but must be an int")
    if not 1 <= changes <= 2**31:
        raise ParameterError(f"changes is {changes}, but must be from 1 to 2^31")
    rho = rho_from(exact("epsilon", epsilon), exact("delta", delta)) / changes
    step = default_grid(sensitivity) if grid is None else grid
    ratio = ratio_of(_core.sensitivity(sensitivity, step), rho)
    return _core.gaussian(values, sensitivity, ratio, bounds, step)


def default_grid(sensitivity: float) -> float:
    """Return the largest power of two that is at most ``sensitivity / 1024``.

    Example:
        >>> default_grid(1.0) == 1 / 1024, default_grid(10.0) == 1 / 128
        (True, True)
    """
    return _core.default_grid(sensitivity)
