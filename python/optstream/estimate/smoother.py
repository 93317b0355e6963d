"""Revised history: what each period looks like in the light of later ones (Rauch, Tung and Striebel 1965).

One pass of the filter forward, with the likeliest amplitudes at the end, and one backward. All that comes later depends
on a period only through the states at the start of the next. So what later periods say of these states corrects the
states at the start of the period itself, and its steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optstream.estimate.model import Posterior, layout_of, whitening
from optstream.estimate.threads import one_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from optstream.estimate.filter import Filter, Measured

    Array = NDArray[np.float64]

__all__ = ["revised"]


class _Passed(NamedTuple):
    """What the pass forward left of a period."""

    found: Posterior
    factors: Array
    """What the states at the end of the period before were multiplied by."""
    starts: Array
    """Covariance of the states at the start of the period, given all periods before."""


@one_thread
def revised(learnt: Filter, measured: Sequence[Measured]) -> tuple[Array, Array]:
    """Return the means and variances of the steps of all measured periods, given all of them.

    Args:
        learnt: A filter that has seen them.
        measured: What was measured of each period, in their order, as the filter understood it.
    """
    bank = learnt.ahead()
    bank.forget()
    passed = []
    for seen in measured:
        factors = bank.factors(0 if bank.last is None else seen.period - bank.last)[0]
        bank.advance(seen.period, seen.jump)
        starts = bank.covariance[0].copy()
        layout = layout_of(bank.geometry, seen.cells)
        found = bank.observe(seen.period, layout, seen.values, seen.variances, seen.excess)
        passed.append(_Passed(found, factors, starts))

    means = np.stack([period.found.means[0] for period in passed])
    variances = np.stack([period.found.variances[0] for period in passed])
    size = bank.geometry.size
    # What later periods add to the mean and to the covariance of the states at the start of the next.
    mean, covariance = np.zeros(size), np.zeros((size, size))
    after: _Passed | None = None
    for index, period in reversed(list(enumerate(passed))):
        found = period.found
        own = found.starts[0].T
        change, spread = own @ found.surprise[0], -own @ own.T
        if after is not None:
            inverse, _ = whitening(after.starts[None])
            to_next = after.factors[:, None] * (inverse[0].T @ inverse[0])
            steps = found.with_ends[0] @ to_next
            means[index] += steps @ mean
            variances[index] += ((steps @ covariance) * steps).sum(axis=1)
            states = (period.starts * bank.decay - own @ found.ends[0]) @ to_next
            change, spread = change + states @ mean, spread + states @ covariance @ states.T
        mean, covariance, after = change, spread, period
    return means, np.maximum(variances, 0.0)
