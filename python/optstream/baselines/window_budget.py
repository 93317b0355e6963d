"""A budget for every window of w steps, spent as the steps come."""

from __future__ import annotations

from collections import deque

__all__ = ["PARTS", "WindowBudget"]

PARTS = 2**20
"""Into how many parts a budget is divided that is not spent in equal units. Noise for less would drown any value."""


class WindowBudget:
    """A number of equal parts that no ``w`` consecutive steps together exceed, whatever is spent when.

    Each step spends once. It may spend what the ``w - 1`` steps before it have left, so the window that ends with it
    keeps to the total, and so does every window, since each ends with some step.

    Example:
        >>> budget = WindowBudget(4, w=2)
        >>> for parts in (3, 1):
        ...     budget.spend(parts)
        >>> budget.left
        3
    """

    def __init__(self, parts: int, w: int) -> None:
        self._recent: deque[int] = deque([0] * (w - 1))
        self.left = parts
        """What the next step may spend."""

    def spend(self, parts: int) -> None:
        """Let the next step spend some parts, or none.

        Raises:
            ValueError: Some window would exceed the total, which is a mistake of the mechanism.
        """
        if not 0 <= parts <= self.left:
            raise ValueError(f"parts are {parts}, but must be from 0 to {self.left}")
        self._recent.append(parts)
        # The oldest step leaves the windows in which the step after this one lies.
        self.left += self._recent.popleft() - parts
