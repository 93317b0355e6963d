"""A mean over trials, with what chance may have done to it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from optstream.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Mean"]


@dataclass(frozen=True)
class Mean:
    """The mean of independent trials with its confidence interval (Student).

    Example:
        >>> found = Mean.of([9.0, 10.0, 11.0], level=0.95)
        >>> round(found.mean, 1), round(found.low, 1), round(found.high, 1)
        (10.0, 7.5, 12.5)
        >>> found.log10
        1.0
    """

    mean: float
    low: float
    high: float
    trials: int

    @classmethod
    def of(cls, values: Sequence[float], level: float = 0.95) -> Mean:
        """Return the mean of what the trials gave; one trial has no interval.

        Raises:
            ParameterError: There is no trial, or the level does not lie between 0 and 1.
        """
        if not values:
            raise ParameterError("values are empty, but must hold a trial")
        if not 0 < level < 1:
            raise ParameterError(f"level is {level}, but must lie between 0 and 1")
        mean, count = float(np.mean(values)), len(values)
        if count == 1:
            return cls(mean, -math.inf, math.inf, 1)
        reach = float(stats.t.ppf((1 + level) / 2, count - 1) * np.std(values, ddof=1) / math.sqrt(count))
        return cls(mean, mean - reach, mean + reach, count)

    @property
    def log10(self) -> float:
        """The common logarithm of the mean, which the paper's figures show."""
        return math.log10(self.mean) if self.mean > 0 else -math.inf

    def __str__(self) -> str:
        reach = (self.high - self.low) / 2
        return f"{self.mean:.4g}" if math.isinf(reach) else f"{self.mean:.4g} ± {reach:.2g}"
