"""What a forecast from released data is worth: ARMA(1,1), as in the paper."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy.optimize import minimize
from scipy.signal import lfilter

from optstream.errors import DataError, OptStreamError, ParameterError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

__all__ = ["Forecast", "arma_forecast"]

Method = Literal["statsmodels", "conditional"]
FEWEST = 8
STARTS = tuple(product((-0.5, 0.3, 0.7, 0.9, 0.97, 0.99), (-0.9, -0.6, -0.3, 0.0, 0.4, 0.8)))
"""Coefficients of which the best begins the search; where there is much noise the moving average is negative."""


@dataclass(frozen=True)
class Forecast:
    """Forecasts of the next period from the released ones before it, against the data.

    Args:
        periods: The released periods from which each forecast is made; four weeks of days.
        method: ``"statsmodels"`` maximises the likelihood, in about half a second for four weeks of half hours.
            ``"conditional"`` minimises the sum of squares given the first step, forty times as fast, and comes out
            nearly the same unless noise drowns the series.

    Example:
        >>> x = np.sin(np.arange(12 * 30) / 6) + 5
        >>> Forecast(periods=28, method="conditional").error(x, x, w=12) < 1
        True
    """

    periods: int = 28
    method: Method = "statsmodels"

    def __post_init__(self) -> None:
        if isinstance(self.periods, bool) or not isinstance(self.periods, int) or self.periods < 1:
            raise ParameterError(f"periods is {self.periods!r}, but must be an int of at least 1")
        _check_method(self.method)

    def error(self, released: Array, truth: Array, w: int) -> float:
        """Return the mean absolute error of a step, over the forecasts of all periods that have enough before them."""
        count = truth.size // w - self.periods
        if released.shape != truth.shape or count < 1:
            raise DataError(
                f"released has {released.size} steps and truth {truth.size}, but both must have the same, "
                f"more than {self.periods} periods of {w}"
            )
        errors = []
        for first in range(0, count * w, w):
            last = first + self.periods * w
            found = arma_forecast(released[first:last], w, method=self.method)
            errors.append(np.abs(found - truth[last : last + w]).mean())
        return float(np.mean(errors))


def arma_forecast(history: Array, steps: int, *, method: Method = "statsmodels") -> Array:
    """Return the next steps of a series as an ARMA(1,1) model with a mean sees them.

    Raises:
        DataError: The series is too short or not finite.
        OptStreamError: Statsmodels is asked for and not installed.

    Example:
        >>> generator = np.random.default_rng(1)
        >>> series = 10 + generator.normal(size=500)
        >>> bool(abs(arma_forecast(series, 3, method="conditional")[-1] - 10) < 0.5)
        True
    """
    _check_method(method)
    series = np.asarray(history, dtype=float).ravel()
    if series.size < FEWEST or not np.isfinite(series).all():
        raise DataError(f"history has {series.size} steps, but must have at least {FEWEST}, all of them finite")
    if np.ptp(series) == 0:
        # Nothing ever moved, and no model has anything to learn.
        return np.full(steps, series[-1])
    return _by_likelihood(series, steps) if method == "statsmodels" else _by_squares(series, steps)


def _check_method(method: str) -> None:
    if method not in {"statsmodels", "conditional"}:
        raise ParameterError(f"method is {method!r}, but must be 'statsmodels' or 'conditional'")


def _by_likelihood(series: Array, steps: int) -> Array:
    try:
        from statsmodels.tsa.arima.model import ARIMA  # noqa: PLC0415  (an extra)
    except ImportError:
        raise OptStreamError("forecasts need statsmodels: pip install 'optstream[evaluate]'") from None
    with warnings.catch_warnings():
        # Noise makes starting values odd and the search end early; the forecast is judged by its error.
        warnings.simplefilter("ignore")
        # In its own spread a series is as easy to fit as any other.
        centre, spread = series.mean(), series.std()
        fitted = ARIMA((series - centre) / spread, order=(1, 0, 1), trend="c").fit()
        return np.asarray(fitted.forecast(steps) * spread + centre)


def _by_squares(series: Array, steps: int) -> Array:
    """Minimise the sum of squared surprises, given the first step."""
    centre, spread = series.mean(), series.std()
    scaled = (series - centre) / spread

    def surprises(coefficients: Array) -> tuple[Array, float]:
        """Return the surprises for the best mean, and that mean: both filters are linear in it."""
        phi, theta = np.tanh(coefficients)
        moved = lfilter([1.0], [1.0, theta], scaled[1:] - phi * scaled[:-1])
        constant = lfilter([1.0], [1.0, theta], np.full(scaled.size - 1, 1 - phi))
        mean = float(moved @ constant / max(constant @ constant, 1e-12))
        return moved - mean * constant, mean

    def squares(coefficients: Array) -> float:
        found = surprises(coefficients)[0]
        return float(found @ found)

    # The hyperbolic tangent keeps the model stationary and invertible.
    start = min((np.arctanh(start) for start in STARTS), key=squares)
    best = minimize(squares, start, method="Nelder-Mead", options={"xatol": 1e-3, "fatol": 1e-6 * squares(start)}).x
    (phi, theta), (left, mean) = np.tanh(best), surprises(best)
    first = phi * (scaled[-1] - mean) + theta * left[-1]
    return np.asarray(centre + spread * (mean + first * phi ** np.arange(steps)))
