"""A budget for every window of w steps, spent as the steps come."""

from __future__ import annotations

from collections import deque
from fractions import Fraction

__all__ = ["WindowBudget"]

PARTS = 2**20


class WindowBudget:
    """A budget that no ``w`` consecutive steps together exceed, whatever is spent when.

    Each step spends once. It may spend what the ``w - 1`` steps before it have left, so the window that ends with it
    keeps to the total, and so does every window, since each ends with some step.

    Example:
        >>> budget = WindowBudget(Fraction(1), w=2)
        >>> for amount in (Fraction(3, 4), Fraction(1, 4)):
        ...     budget.spend(amount)
        >>> budget.left
        Fraction(3, 4)
    """

    def __init__(self, total: Fraction, w: int) -> None:
        self._total = total
        self._recent: deque[Fraction] = deque(maxlen=w - 1)
        self._spent = Fraction(0)

    @property
    def left(self) -> Fraction:
        """What the next step may spend."""
        return self._total - self._spent

    def rounded(self, amount: Fraction) -> Fraction:
        """Return an amount rounded down to whole parts of the total, so that no budget gets ever longer fractions.

        >>> WindowBudget(Fraction(1), w=2).rounded(Fraction(1, 3)) < Fraction(1, 3)
        True
        """
        return self.smallest * (amount // self.smallest)

    @property
    def smallest(self) -> Fraction:
        """The least that is worth spending: noise for less would drown any value."""
        return self._total / PARTS

    def spend(self, amount: Fraction) -> None:
        """Let the next step spend an amount, which may be zero.

        Raises:
            ValueError: Some window would exceed the total, which is a mistake of the mechanism.
        """
        if not 0 <= amount <= self.left:
            raise ValueError(f"amount is {amount}, but must be from 0 to {self.left}")
        if not self._recent.maxlen:
            return
        if len(self._recent) == self._recent.maxlen:
            self._spent -= self._recent[0]
        self._recent.append(amount)
        self._spent += amount
