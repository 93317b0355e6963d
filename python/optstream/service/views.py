"""What may be read of a stream: released periods and steps, what is left of the budget, how far it has come.

What is released never changes, so it is put together once. What is left is followed release by release: a request
never makes anybody look at the whole history.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from math import isfinite
from operator import attrgetter
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any

from optstream.mechanism.tree_release import TreeRelease

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optstream.ledger import Ledger
    from optstream.privacy.guarantee import Guarantee
    from optstream.service.intake import Intake

__all__ = ["LEVEL", "PAGE", "Shelf", "View", "exact"]

PAGE = 100
"""The most periods, or steps, of one answer."""
LEVEL = 0.95
"""The coverage of bands."""
KEPT = 4_000_000
"""Bytes of periods, and of steps, that are kept ready for every stream."""
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


class Shelf:
    """What a stream has released, as JSON: its periods, or its steps.

    Args:
        name: What they are called together.
        number: The number of a release.
        content: A release as plain data.
        read: The releases from one number to another, as the ledger has them.
    """

    def __init__(
        self,
        name: str,
        number: Callable[[Any], int],
        content: Callable[[Any], dict[str, Any]],
        read: Callable[[int, int], list[Any]],
    ) -> None:
        self.name, self.number = name, number
        self._content, self._read = content, read
        self._ready: OrderedDict[int, bytes] = OrderedDict()
        self._bytes = 0
        self._guard = Lock()

    def find(self, number: int) -> bytes | None:
        """Return one release, or None."""
        with self._guard:
            found = self._ready.get(number)
        if found is not None:
            return found
        return next((self.shown(one) for one in self._read(number, number)), None)

    def page(self, first: int | None, limit: int, last: int | None) -> bytes:
        """Return the releases from one on, or the last ones, and where to go on."""
        end = -1 if last is None else last
        start = max(0, end - limit + 1) if first is None else first
        stop = min(start + limit - 1, end)
        numbers = range(start, stop + 1)
        with self._guard:
            found = {number: self._ready[number] for number in numbers if number in self._ready}
        lacking = [number for number in numbers if number not in found]
        if lacking:
            found |= {self.number(one): self.shown(one) for one in self._read(lacking[0], lacking[-1])}
        shown = b",".join(found[number] for number in sorted(found))
        following = str(stop + 1).encode() if numbers and stop < end else b"null"
        return b'{"%s":[%s],"next":%s}' % (self.name.encode(), shown, following)

    def shown(self, release: Any) -> bytes:
        """Return a release as JSON."""
        number = self.number(release)
        with self._guard:
            if number in self._ready:
                self._ready.move_to_end(number)
                return self._ready[number]
        content = json.dumps(self._content(release), separators=(",", ":"), allow_nan=False).encode()
        with self._guard:
            if number not in self._ready:
                self._ready[number] = content
                self._bytes += len(content)
            while self._bytes > KEPT and len(self._ready) > 1:
                self._bytes -= len(self._ready.popitem(last=False)[1])
        return content


class View:
    """The readable side of one stream. Its methods wait for the ledger, so they are called in threads."""

    def __init__(self, intake: Intake, ledger: Ledger) -> None:
        self._intake, self._ledger, self.name = intake, ledger, intake.declared.name
        self._clock, self._w = intake.clock, intake.declared.mechanism.guarantee.w
        self.periods = Shelf(
            "periods",
            attrgetter("period"),
            self._period_content,
            lambda first, last: ledger.releases(self.name, first, last),
        )
        self.steps = Shelf("steps", attrgetter("step"), self._step_content, self._read_steps)
        self._looking, self._looked = Lock(), monotonic()
        self.released: int | None = None
        self.open_steps = 0
        self.last_step: int | None = None
        """The last step that has left, of a stream whose steps leave one by one."""
        self._look()
        self.budget = self._whole_budget()

    @property
    def by_step(self) -> bool:
        """Whether steps leave one by one."""
        return self._intake.declared.emit == "step"

    @property
    def news(self) -> Shelf:
        """What is released: steps, or periods."""
        return self.steps if self.by_step else self.periods

    @property
    def last(self) -> int | None:
        """The number of the last step, or period, that has left."""
        return self.last_step if self.by_step else self.released

    @property
    def charged(self) -> int | None:
        """The last period that is charged: one whose steps leave one by one is when it begins."""
        if self.last_step is None:
            return self.released
        return self.last_step // self._w

    # How far the stream has come.

    def refresh(self) -> None:
        """Look at the ledger, which other processes may have written, unless somebody just has."""
        with self._looking:
            if monotonic() - self._looked < FRESH:
                return
            self._look()
            self.budget = self._next_budget()
            self._looked = monotonic()

    def _look(self) -> None:
        kept = self._ledger.kept(self.name)
        self.released, self.open_steps = kept.released, len(kept.values)
        if self.by_step:
            closed = None if kept.released is None else (kept.released + 1) * self._w - 1
            self.last_step = max(kept.values, default=closed)

    def note(self, releases: Sequence[Any]) -> None:
        """Note what this process has just written; who asks next looks again what is left."""
        self._looked = 0.0
        if self.by_step:
            self.last_step = max((release.step for release in releases), default=self.last_step)
        else:
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
        last = self.charged
        first = None if last is None else min(before.period or 0, last)
        # The whole history is looked at when the service starts and when something else than the next periods has
        # happened. What another program charges for an old period is seen then; the ledger itself always sees it.
        if policy != before.policy or last is None or first is None or last - first > PAGE:
            return self._whole_budget()
        price = self._ledger.window_price(self.name, first, last)
        return self._budget(policy, min(before.least, policy.epsilon - price), head)

    def _budget(self, policy: Guarantee, least: Fraction, head: int) -> Budget:
        last = self.charged
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
                "delta": exact(policy.delta),
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
                "delta": exact(budget.pool.policy.delta),
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

    def page(self, shelf: Shelf, first: int | None, limit: int) -> bytes:
        """Return the released periods or steps from one on, or the last ones, as JSON."""
        self.refresh()
        return shelf.page(first, limit, self.last_step if shelf is self.steps else self.released)

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
        return json.dumps(content).encode()[:-1] + b',"last":' + self._latest() + b"}"

    def _latest(self) -> bytes:
        """Return the last period, or so many of the last steps, in the form of a period."""
        if self.by_step:
            return json.dumps(self._latest_steps()).encode()
        # A period that was passed over has no values.
        return (None if self.released is None else self.periods.find(self.released)) or b"null"

    def _latest_steps(self) -> dict[str, Any] | None:
        if self.last_step is None:
            return None
        page = json.loads(self.steps.page(max(0, self.last_step - self._w + 1), self._w, self.last_step))
        steps = page["steps"]
        if not steps:
            return None
        nodes = steps[-1]["value"] if isinstance(steps[-1]["value"], dict) else None

        def line(of: Callable[[dict[str, Any]], Any]) -> Any:
            if nodes is None:
                return [of(step) for step in steps]
            return {node: [of(step)[node] for step in steps] for node in nodes}

        return {
            "period": self.last_step // self._w,
            "start": steps[0]["time"],
            "values": line(lambda step: step["value"]),
            "band": {
                "level": LEVEL,
                "lower": line(lambda step: step["band"]["lower"]),
                "upper": line(lambda step: step["band"]["upper"]),
            },
            "epsilon": steps[-1]["epsilon"],
        }

    def _read_steps(self, first: int, last: int) -> list[Any]:
        periods = range(first // self._w, last // self._w + 1)
        found = [one for period in periods for one in self._intake.stream.released_steps(period)]
        return [one for one in found if first <= one.step <= last]

    def _step_content(self, release: Any) -> dict[str, Any]:
        ends = release.interval(LEVEL)
        lower: Any
        upper: Any
        if isinstance(release.value, dict):
            lower, upper = ({node: _finite(pair[side]) for node, pair in ends.items()} for side in (0, 1))
        else:
            lower, upper = (_finite(end) for end in ends)
        return {
            "step": release.step,
            "time": release.time.isoformat() if isinstance(release.time, datetime) else release.time,
            "value": release.value,
            "band": {"level": LEVEL, "lower": lower, "upper": upper},
            "epsilon": exact(release.statement.epsilon),
        }

    def _period_content(self, release: Any) -> dict[str, Any]:
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


def _finite(end: float) -> float | None:
    """Return the end of a band, or None where nothing is known yet."""
    return end if isfinite(end) else None


def exact(value: Fraction) -> dict[str, Any]:
    """Return a rational as what it is and as what people read.

    >>> exact(Fraction(1, 4))
    {'exact': '1/4', 'decimal': 0.25}
    """
    return {"exact": str(value), "decimal": float(value)}
