"""What a ledger tells about its streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from optstream.errors import ParameterError
from optstream.mechanism.members import divided

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from fractions import Fraction

    from optstream.mechanism.optstream import OptStream
    from optstream.privacy.guarantee import Guarantee

__all__ = ["Entry", "Head", "Pool", "Remaining", "Verification", "Window", "listed"]


OVER = "over its policy"
"""How a problem ends that is about the cost of a window."""


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
    pool: Remaining | None = None
    """What is left to all members of the stream's pool together, if it has one."""

    @property
    def epsilon(self) -> Fraction:
        """What is left in the window with the least."""
        return min((window.epsilon for window in self.windows), default=self.policy.epsilon)


@dataclass(frozen=True)
class Pool:
    """Streams about the same people, which are held to one guarantee together."""

    name: str
    policy: Guarantee
    members: tuple[str, ...]
    clock: str | None

    def split(
        self,
        mechanisms: Mapping[str, OptStream],
        typical: Mapping[str, float],
        weights: Mapping[str, float] | None = None,
    ) -> dict[str, OptStream]:
        """Return the mechanisms of members with the pool's epsilon divided among them.

        Noise is divided by what values typically are; every member gets a share in proportion, so that relative errors
        are equal, or as weighted: a member of weight 2 is half as precise. Together they cost no more than the pool
        allows, since what members cost adds up.

        Args:
            mechanisms: How each member is released, with whatever epsilon.
            typical: How large the values of each member typically are, by public knowledge.
            weights: How large the relative error of a member may be beside those of the others; 1 by default.
        """
        weighted = {name: (weights or {}).get(name, 1) for name in mechanisms}
        for name in mechanisms:
            if not (typical[name] > 0 and weighted[name] > 0):
                raise ParameterError(f"typical or weights of {name!r} is not positive, but must be")
        shares = divided(self.policy.epsilon, mechanisms, typical, weighted)
        return {name: mechanism.with_epsilon(shares[name]) for name, mechanism in mechanisms.items()}


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
    pool: str | None = None
    """The pool that was charged too, if any."""


@dataclass(frozen=True)
class Verification:
    """What a look at every row of a ledger found."""

    streams: int
    charges: int
    releases: int
    problems: tuple[str, ...]
    pools: int = 0
    unchecked: tuple[str, ...] = ()
    """Streams whose seals only their curator's key can check, which was not given."""

    @property
    def damage(self) -> tuple[str, ...]:
        """The problems but for windows over their policy, which one that was made smaller leaves behind."""
        return tuple(problem for problem in self.problems if not problem.endswith(OVER))


@dataclass(frozen=True)
class Head:
    """The last entry of a stream's log: where a ledger is. One that is behind it has forgotten something."""

    ledger: str
    """The identity of the ledger."""
    stream: str
    number: int
    hash: str


def listed(names: Sequence[str]) -> str:
    """Return names as they are read out.

    >>> listed(["fares", "trips", "zones"])
    "'fares', 'trips' and 'zones'"
    """
    shown = [repr(name) for name in names]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if shown[1:] else shown)
