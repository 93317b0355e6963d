"""Budget absorption of Kellaris et al. (2014)."""

from __future__ import annotations

from dataclasses import dataclass

from optstream.baselines.republication import Republication, RepublicationSteps

__all__ = ["BudgetAbsorption"]


@dataclass(frozen=True, kw_only=True)
class BudgetAbsorption(Republication):
    """Publish a step with its own budget and that of the steps skipped before it (Kellaris et al. 2014).

    Every step has an equal unit of the budget for publishing. A published step takes the units of the steps since the
    last published one, at most ``w``, and as many steps after it as it took units beside its own publish nothing.

    **Guarantee.** Asking for the distance costs ``epsilon / 2`` in any window (see :class:`Republication`). Two
    consecutive published steps that take m and n units lie at least m + n - 1 steps apart, so published steps of one
    window take at most ``w`` units together, which is ``epsilon / 2``. The window's budget is checked at every step.

    Example:
        >>> import numpy as np
        >>> from optstream import Guarantee
        >>> mechanism = BudgetAbsorption(Guarantee(epsilon=1, w=4), bounds=(0, 100))
        >>> mechanism.release(np.full(8, 50.0)).values.shape
        (8,)
    """

    @property
    def parts(self) -> int:
        """Into how many units the budget for publishing is divided: one for every step."""
        return self.guarantee.w

    def _publishes(self) -> str:
        return "publishes steps, each with its own budget and that of the steps skipped before it"

    def steps(self) -> RepublicationSteps:
        """Return a new stream, to which values are pushed one by one."""
        return _Steps(self)


class _Steps(RepublicationSteps):
    def __init__(self, mechanism: Republication) -> None:
        super().__init__(mechanism)
        self._units = 1
        """Units that the next step may take; none or less while steps must publish nothing."""

    def _offer(self) -> int:
        return max(self._units, 0)

    def _note(self, spent: int) -> None:
        # A step that takes m units is followed by m - 1 that take none; the one after these may take its own.
        self._units = 2 - spent if spent else min(self._units + 1, self._mechanism.parts)
