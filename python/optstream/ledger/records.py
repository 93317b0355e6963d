"""What a ledger tells about its streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime
    from fractions import Fraction

    from optstream.privacy.guarantee import Guarantee

__all__ = ["Entry", "Head", "Remaining", "Verification", "Window"]


@dataclass(frozen=True)
class Window:
    """What is left in the windows that start at the steps ``first`` to ``last``."""

    first: int
    last: int
    epsilon: Fraction


@dataclass(frozen=True)
class Remaining:
    """What is left of a stream's budget, window by window. Windows that no release meets have all of it."""

    policy: Guarantee
    windows: tuple[Window, ...]

    @property
    def epsilon(self) -> Fraction:
        """What is left in the window with the least."""
        return min((window.epsilon for window in self.windows), default=self.policy.epsilon)


@dataclass(frozen=True)
class Entry:
    """One charged period of a stream."""

    stream: str
    period: int
    plan: str
    """The digest of the plan, in hexadecimal digits."""
    epsilon: Fraction
    """What the period costs on its own, in its worst window."""
    charged: datetime
    released: datetime | None
    """When the values were stored; None if they were not, so that a retry releases them without a second charge."""
    void: str | None
    """Why the period will not be released although its budget is spent, if so."""


@dataclass(frozen=True)
class Verification:
    """What a look at every row of a ledger found."""

    streams: int
    charges: int
    releases: int
    problems: tuple[str, ...]
    unchecked: tuple[str, ...] = ()
    """Streams whose seals only their curator's key can check, which was not given."""


@dataclass(frozen=True)
class Head:
    """The last entry of a stream's log: where a ledger is. One that is behind it has forgotten something."""

    ledger: str
    """The identity of the ledger."""
    stream: str
    number: int
    hash: str
