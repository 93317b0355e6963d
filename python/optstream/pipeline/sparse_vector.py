"""The sparse vector technique: which of many scores are above a threshold, at the price of the few that are."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from optstream import _core
from optstream.errors import ParameterError, ParameterTypeError
from optstream.privacy.budget import exact

if TYPE_CHECKING:
    from decimal import Decimal

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["above_threshold", "shares"]


def shares(positives: int) -> tuple[Fraction, Fraction]:
    """Return the shares of the noise on the threshold and on the scores: 1 to (2c)^(2/3) (Lyu, Su and Li 2017).

    >>> shares(4)
    (Fraction(1, 5), Fraction(4, 5))
    """
    ratio = Fraction(round(1000 * (2 * positives) ** (2 / 3)), 1000)
    return 1 / (1 + ratio), ratio / (1 + ratio)


def above_threshold(
    scores: NDArray[np.float64],
    *,
    threshold: float,
    sensitivity: float,
    epsilon: float | Fraction | Decimal,
    max_positive: int,
    bounds: tuple[float, float],
    grid: float | None = None,
) -> NDArray[np.bool_]:
    """Answer, score after score, whether it is above a threshold, and stop after ``max_positive`` times yes.

    **What it costs.** ``epsilon`` in all, however many scores are asked about, as long as an entity changes every score
    by at most ``sensitivity``. Both the threshold and each score get exact discrete Laplace noise (Lyu, Su and Li 2017,
    Algorithm 1, with its better division of the budget).

    Args:
        scores: 1-D array of float64.
        threshold: Public.
        sensitivity: The largest change of any one score, positive.
        epsilon: The budget of the whole call, positive. A float is read as the decimal that it shows.
        max_positive: After this many positive answers the call ends.
        bounds: Public ``(lower, upper)`` to which scores are clamped.
        grid: Public step, a power of two. By default :func:`optstream.noise.default_grid` of the sensitivity.

    Returns:
        The answers, one per score up to and including the last positive one that was allowed.

    Example:
        >>> import numpy as np
        >>> scores = np.array([0.0, 1000.0, 0.0, 1000.0, 0.0])
        >>> above_threshold(scores, threshold=500, sensitivity=1, epsilon=1, max_positive=2, bounds=(0, 1000))
        array([False,  True, False,  True])
    """
    if isinstance(max_positive, bool) or not isinstance(max_positive, int):
        raise ParameterTypeError(f"max_positive is of type {type(max_positive).__name__}, but must be an int")
    if not 1 <= max_positive <= 2**31:
        raise ParameterError(f"max_positive is {max_positive}, but must be from 1 to 2^31")
    budget = exact("epsilon", epsilon)
    first, second = (share * budget for share in shares(max_positive))
    return _core.above_threshold(scores, threshold, sensitivity, first, second, max_positive, bounds, grid)
