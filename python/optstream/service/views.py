"""What may be read of a stream: released periods, what is left of the budget, how far it has come.

A released period never changes, so it is put together once. What is left is followed release by release: a request
never makes anybody look at the whole history.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any

from optstream.mechanism.tree_release import TreeRelease

if TYPE_CHECKING:
    from optstream.ledger import Ledger
    from optstream.privacy.guarantee import Guarantee
    from optstream.service.intake import Intake

__all__ = ["LEVEL", "PAGE", "View", "exact"]

PAGE = 100
"""The most periods of one answer."""
LEVEL = 0.95
"""The coverage of bands."""
KEPT = 4_000_000
"""Bytes of periods that are kept ready for every stream."""
FRESH = 0.5
"""Seconds in which what other processes do need not be seen."""


@dataclass(frozen=True)
class Shared:
    """What all members of a pool are held to together, and what is left in windows that meet the last period."""

    name: str
    policy: Guarantee
    left: Fraction


@dataclass(frozen=True)
class Budget:
    """What every window is held to, and what is left."""

    policy: Guarantee
    least: Fraction
    period: int | None
    left: Fraction
    head: int
    pool: Shared | None


class View:
    """The readable side of one stream. Its methods wait for the ledger, so they are called in threads."""

    def __init__(self, intake: Intake, ledger: Ledger) -> None:
        self._intake, self._ledger, self.name = intake, ledger, intake.declared.name
        self._clock, self._w = intake.clock, intake.declared.mechanism.guarantee.w
        self._periods: OrderedDict[int, bytes] = OrderedDict()
        self._bytes = 0
        self._guard, self._looking, self._looked = Lock(), Lock(), monotonic()
        self.released, self.open_steps = intake.stream.released, intake.stream.open_steps
        self.budget = self._whole_budget()

    # How far the stream has come.

    def refresh(self) -> None:
        """Look at the ledger, which other processes may have written, unless somebody just has."""
        with self._looking:
            if monotonic() - self._looked < FRESH:
                return
            kept = self._ledger.kept(self.name)
            self.released, self.open_steps = kept.released, len(kept.values)
            self.budget = self._next_budget()
            self._looked = monotonic()

    def note(self) -> None:
        """Note what this process has just written; who asks next looks again what is left."""
        self._looked = 0.0
        self.released, self.open_steps = self._intake.stream.released, self._intake.stream.open_steps

    @property
    def lag(self) -> float | None:
        """Seconds since the end of the last closed period, for streams with a clock."""
        if self._intake.declared.step is None:
            return None
        begun = self._clock.time_of(0 if self.released is None else (self.released + 1) * self._w)
        return (datetime.now(UTC) - begun).total_seconds() if isinstance(begun, datetime) else None

    # What is left.

    def _whole_budget(self) -> Budget:
        head = self._ledger.head(self.name).number
        left = self._ledger.remaining(self.name)
        return self._budget(left.policy, left.epsilon, head)

    def _next_budget(self) -> Budget:
        before, head = self.budget, self._ledger.head(self.name).number
        if head == before.head:
            # Other members may have been charged since.
            return replace(before, pool=self._shared(before.period))
        policy = self._ledger.policy(self.name)
        last = self.released
        first = None if last is None else min(before.period or 0, last)
        # The whole history is looked at when the service starts and when something else than the next periods has
        # happened. What another program charges for an old period is seen then; the ledger itself always sees it.
        if policy != before.policy or last is None or first is None or last - first > PAGE:
            return self._whole_budget()
        price = self._ledger.window_price(self.name, first, last)
        return self._budget(policy, min(before.least, policy.epsilon - price), head)

    def _budget(self, policy: Guarantee, least: Fraction, head: int) -> Budget:
        last = self.released
        price = Fraction(0) if last is None else self._ledger.window_price(self.name, last, last)
        return Budget(policy, least, last, policy.epsilon - price, head, self._shared(last))

    def _shared(self, last: int | None) -> Shared | None:
        """Return what is left to all members of the stream's pool where it meets the last period."""
        pool = self._intake.declared.pool
        if pool is None:
            return None
        policy, first = self._ledger.pool(pool).policy, (last or 0) * self._w
        price = self._ledger.pool_price(pool, first, first + self._w - 1)
        return Shared(pool, policy, policy.epsilon - price)

    def budget_content(self) -> dict[str, Any]:
        """Return what is left as plain data."""
        self.refresh()
        budget, policy = self.budget, self.budget.policy
        return {
            "policy": {
                "epsilon": exact(policy.epsilon),
                "w": policy.w,
                "alpha": policy.alpha,
                "neighbours": policy.neighbours,
                "entities": policy.entities,
                "entity": policy.entity,
            },
            "least": exact(budget.least),
            "last": None if budget.period is None else {"period": budget.period, "left": exact(budget.left)},
            "pool": None
            if budget.pool is None
            else {
                "name": budget.pool.name,
                "epsilon": exact(budget.pool.policy.epsilon),
                "w": budget.pool.policy.w,
                "left": exact(budget.pool.left),
            },
        }

    def windows(self, first: int, last: int) -> dict[str, Any]:
        """Return what the worst window that meets some periods costs and has left."""
        price = self._ledger.window_price(self.name, first, last)
        left = self.budget.policy.epsilon - price
        return {"first": first, "last": last, "spent": exact(price), "left": exact(left)}

    # What was released.

    def period(self, number: int) -> bytes | None:
        """Return a released period as JSON, or None."""
        with self._guard:
            found = self._periods.get(number)
        if found is None:
            release = self._ledger.stored(self.name, number)
            return None if release is None else self.shown(release)
        return found

    def page(self, first: int | None, limit: int) -> bytes:
        """Return the released periods from one on, or the last ones, as JSON."""
        self.refresh()
        last = -1 if self.released is None else self.released
        start = max(0, last - limit + 1) if first is None else first
        stop = min(start + limit - 1, last)
        numbers = range(start, stop + 1)
        with self._guard:
            found = {number: self._periods[number] for number in numbers if number in self._periods}
        lacking = [number for number in numbers if number not in found]
        if lacking:
            found |= {one.period: self.shown(one) for one in self._ledger.releases(self.name, lacking[0], lacking[-1])}
        shown = b",".join(found[number] for number in sorted(found))
        following = str(stop + 1).encode() if numbers and stop < last else b"null"
        return b'{"periods":[' + shown + b'],"next":' + following + b"}"

    def summary(self) -> bytes:
        """Return the stream at a glance as JSON."""
        content = {
            "name": self.name,
            "w": self._w,
            "budget": self.budget_content() | {"windows": None},
            "released": self.released,
            "open_steps": self.open_steps,
            "lag_seconds": None if self.lag is None else round(self.lag, 1),
        }
        # A period that was passed over has no values.
        last = None if self.released is None else self.period(self.released)
        return json.dumps(content).encode()[:-1] + b',"last":' + (last or b"null") + b"}"

    def shown(self, release: Any) -> bytes:
        """Return a period as JSON: values and bands for every step, or for every node and step, and what it costs."""
        number = release.period
        with self._guard:
            if number in self._periods:
                self._periods.move_to_end(number)
                return self._periods[number]
        content = json.dumps(self._content(release), separators=(",", ":"), allow_nan=False).encode()
        with self._guard:
            if number not in self._periods:
                self._periods[number] = content
                self._bytes += len(content)
            while self._bytes > KEPT and len(self._periods) > 1:
                self._bytes -= len(self._periods.popitem(last=False)[1])
        return content

    def _content(self, release: Any) -> dict[str, Any]:
        low, high = release.interval(LEVEL)
        if isinstance(release, TreeRelease):
            nodes = release.hierarchy.nodes
            values: Any = {node: release.values[node].tolist() for node in nodes}
            ends = [{node: end[:, place].tolist() for place, node in enumerate(nodes)} for end in (low, high)]
        else:
            values, ends = release.values.tolist(), [low.ravel().tolist(), high.ravel().tolist()]
        start = self._clock.time_of(release.period * self._w)
        return {
            "period": release.period,
            "start": start.isoformat() if isinstance(start, datetime) else start,
            "values": values,
            "band": {"level": LEVEL, "lower": ends[0], "upper": ends[1]},
            "epsilon": exact(release.statement.epsilon),
        }


def exact(value: Fraction) -> dict[str, Any]:
    """Return a rational as what it is and as what people read.

    >>> exact(Fraction(1, 4))
    {'exact': '1/4', 'decimal': 0.25}
    """
    return {"exact": str(value), "decimal": float(value)}
