"""Budget distribution of Kellaris et al. (2014)."""

from __future__ import annotations

from dataclasses import dataclass

from optstream.baselines.republication import Republication, RepublicationSteps
from optstream.baselines.window_budget import PARTS

__all__ = ["BudgetDistribution"]


@dataclass(frozen=True, kw_only=True)
class BudgetDistribution(Republication):
    """Publish a step with half of what its window has left, or repeat the last published one (Kellaris et al. 2014).

    **Guarantee.** Asking for the distance costs ``epsilon / 2`` in any window (see :class:`Republication`). A published
    step spends half of what the ``w - 1`` steps before it have left of the other ``epsilon / 2``, so that every window
    keeps to it, whatever the data (adaptive composition: the budget of a step depends on released values only).

    Example:
        >>> import numpy as np
        >>> from optstream import Guarantee
        >>> mechanism = BudgetDistribution(Guarantee(epsilon=1, w=4), bounds=(0, 100))
        >>> mechanism.release(np.full(8, 50.0)).values.shape
        (8,)
    """

    @property
    def parts(self) -> int:
        """Into how many parts the budget for publishing is divided: so many that rounding does not matter."""
        return PARTS

    def _publishes(self) -> str:
        return "publishes steps, each with half of what its window has left"

    def steps(self) -> RepublicationSteps:
        """Return a new stream, to which values are pushed one by one."""
        return _Steps(self)


class _Steps(RepublicationSteps):
    def _offer(self) -> int:
        return self._budget.left // 2
