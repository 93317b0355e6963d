"""Reconstruction: how the steps of a period follow from what was measured. Reads private values only."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Linear"]


@dataclass(frozen=True)
class Linear:
    """Reconstruct the steps between two measured ones on a straight line. Reads private values only.

    Example:
        >>> Linear()
        Linear()
    """
