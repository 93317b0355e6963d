"""Plans as a ledger writes them down, and what windows over their periods cost.

A plan is known by the digest of its description and of its costs together. Two builds that price one description in two
ways thus have two plans; as soon as a stream has met both, every period of either is charged with what is larger,
window by window.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import groupby
from math import lcm
from typing import TYPE_CHECKING, Any, NamedTuple

from optstream.errors import LedgerError, OptStreamError
from optstream.ledger.database import raw
from optstream.ledger.entries import digest_of
from optstream.mechanism.description import canonical
from optstream.mechanism.description import digest as plan_digest
from optstream.mechanism.plan import build
from optstream.privacy import accounting
from optstream.privacy.gaussian import rho_from

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optstream.ledger.database import Database, Transaction
    from optstream.ledger.log import View
    from optstream.mechanism.mechanism import Mechanism
    from optstream.privacy.accounting import Cost
    from optstream.privacy.guarantee import Guarantee

__all__ = ["LOST", "Plans", "PricedPlan", "Vector"]

LOST = b"lost"
"""Stands for the plan of a period that may have left and is forgotten: it costs all that the policy allows."""
CIRCUMSTANCES = ("held", "before", "spent")
"""What a plan may say of its periods beside the mechanism."""
Row = tuple[int, tuple[int, ...]]
"""A denominator, and for every window of w steps that meets a period what it costs, from that which begins w - 1 steps
before the period on."""


class Vector(NamedTuple):
    """What the windows cost that meet a period, in every unit that adds up, with the delta that makes epsilon of it."""

    rows: tuple[Row, ...]
    delta: Fraction

    def at(self, place: int) -> Fraction:
        """Return the epsilon of a window."""
        return accounting.price([Fraction(values[place], denominator) for denominator, values in self.rows], self.delta)


@dataclass(frozen=True)
class PricedPlan:
    """A mechanism and what a period of it costs, as the ledger writes it down."""

    mechanism: Mechanism
    description: str
    digest: bytes
    costs: tuple[Cost, ...]

    @classmethod
    def of(cls, mechanism: Mechanism, said: Mapping[str, Any] | None = None) -> PricedPlan:
        """Return the plan of a mechanism for periods in some circumstances, or in none that matter."""
        if not said:
            return cls(mechanism, mechanism.description, mechanism.digest, mechanism.costs_when({}))
        description = canonical({**json.loads(mechanism.description), **said})
        return cls(mechanism, description, plan_digest(description), mechanism.costs_when(said))

    @classmethod
    def holding(cls, mechanism: Mechanism, held: Mapping[int, int] | None) -> PricedPlan:
        """Return the plan of a mechanism in whose periods some steps repeat an earlier one, or none."""
        return cls.of(mechanism, {"held": {str(step): source for step, source in sorted(held.items())}} if held else {})

    @classmethod
    def described(cls, description: str) -> PricedPlan:
        """Return the plan of a description, as this build prices it."""
        content = json.loads(description)
        said = {name: content.pop(name) for name in CIRCUMSTANCES if name in content}
        return cls.of(build(content), said)

    @cached_property
    def costs_text(self) -> str:
        """The costs as they are written."""
        return json.dumps(accounting.to_data(self.costs))

    @cached_property
    def id(self) -> bytes:
        """What the ledger knows the plan by."""
        return _id(self.description, self.costs_text)


@dataclass(frozen=True)
class _Row:
    description: str
    digest: bytes
    costs: tuple[Cost, ...]


class Plans:
    """The plans of a ledger."""

    def __init__(self, database: Database[Any]) -> None:
        """Start without knowing any."""
        self._database = database
        self._rows: dict[bytes, _Row] = {}
        self._plans: dict[bytes, PricedPlan] = {}
        self._own: dict[tuple[bytes, int, Fraction], Vector] = {}
        self.across = lru_cache(maxsize=1 << 14)(_across)

    def write(self, change: Transaction, made: PricedPlan) -> tuple[bytes, ...]:
        """Write a plan down, once; return it and those of the same description, if there are others."""
        change.write(
            "INSERT INTO optstream_plans VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (made.id, made.digest, made.description, made.costs_text),
        )
        rows = change.rows("SELECT id FROM optstream_plans WHERE digest = ? ORDER BY id", (made.digest,))
        return tuple(raw(found) for (found,) in rows) if len(rows) > 1 else ()

    def digest(self, made: bytes) -> bytes:
        """Return the digest of a plan's description; empty for what is no plan."""
        return self._row(made).digest if made else b""

    def mechanism(self, made: bytes) -> Mechanism:
        """Return the mechanism of a plan."""
        return self.plan(made).mechanism

    def plan(self, made: bytes) -> PricedPlan:
        """Return a plan as this build makes it from its description."""
        if made not in self._plans:
            self._plans[made] = PricedPlan.described(self._row(made).description)
        return self._plans[made]

    def costs(self, made: bytes) -> tuple[Cost, ...]:
        """Return what a period of a plan costs, as it was written down."""
        return self._row(made).costs

    def key(self, view: View, made: bytes) -> tuple[bytes, ...]:
        """Return a plan with all whose costs count too."""
        if made == LOST:
            return (LOST, str(view.policy.epsilon).encode())
        if not made or not view.larger:
            return (made,) if made else ()
        digest = self.digest(made)
        return tuple(sorted({made, *(other for other in view.larger if self.digest(other) == digest)}))

    def vector(self, key: tuple[bytes, ...], w: int, delta: Fraction) -> Vector:
        """Return what the windows over a period cost: the largest of what its plans say."""
        if key[:1] == (LOST,):
            full = Fraction(key[1].decode())
            units = [full, rho_from(full, delta)] if delta else [full]
            return Vector(tuple((unit.denominator, (unit.numerator,) * (2 * w - 1)) for unit in units), delta)
        vectors = [self._vector(made, w, delta) for made in key] or [_nothing(w, delta)]
        if len(vectors) == 1:
            return vectors[0]
        return Vector(tuple(map(_largest, zip(*(vector.rows for vector in vectors), strict=True))), delta)

    def price(self, view: View, period: int, charged: Mapping[int, bytes] | None = None) -> Fraction:
        """Return the worst cost of any window that meets a period.

        Args:
            view: What is charged.
            period: The period.
            charged: Plans of periods that are to be charged.
        """
        return self.prices(view, period, period, charged)

    def prices(self, view: View, first: int, last: int, charged: Mapping[int, bytes] | None = None) -> Fraction:
        """Return the worst cost of any window that meets any period from the first to the last."""
        charged, states = charged or {}, view.states
        # Many periods in a row have the same plan: each kind of pair is priced once.
        own: set[bytes] = set()
        pairs: set[tuple[bytes, bytes]] = set()
        before = b""
        for period in range(first - 1, last + 2):
            made = charged.get(period)
            if view.lost and view.is_lost(period):
                made = LOST
            elif made is None:
                made = states[period].plan if period in states else b""
            if first <= period <= last:
                own.add(made)
            if period >= first:
                pairs.add((before, made))
            before = made
        sliding = view.policy.neighbours != "aligned"
        if not charged and any(LOST in pair for pair in pairs):
            # What may have left was within the policy, together with what is stored; it is charged in full.
            full = [view.policy.epsilon] if LOST in own or sliding else []
            own, pairs = own - {LOST}, {pair for pair in pairs if LOST not in pair}
        else:
            full = []
        full += [self._of(view, made).at(view.policy.w - 1) for made in own]
        return max(full + [self._between(view, *pair) for pair in pairs if sliding])

    def _of(self, view: View, made: bytes) -> Vector:
        return self.vector(self.key(view, made), view.policy.w, view.policy.delta)

    def _between(self, view: View, one: bytes, other: bytes) -> Fraction:
        """Return the worst cost of a window that meets two periods."""
        vectors = (self._of(view, made) for made in (one, other))
        return max((cost for _, _, cost in self.across(*vectors)), default=Fraction(0))

    def problems(self, reading: Transaction) -> list[str]:
        """Check that every plan is what its digest says, and costs what this build says."""
        problems = []
        for made, digest, description, costs in reading.rows("SELECT * FROM optstream_plans"):
            name = raw(made).hex()[:12]
            try:
                row = _read(raw(made), raw(digest), description, costs)
                if row.costs != PricedPlan.described(description).costs:
                    problems.append(f"the costs of the plan {name} are not those that this build computes")
            except LedgerError as error:
                problems.append(str(error))
            except (OptStreamError, ValueError, TypeError, KeyError, AttributeError):
                problems.append(f"the plan {name} cannot be read by this build")
        return problems

    def worst(self, made: bytes, guarantee: Guarantee) -> Fraction:
        """Return what a period of a plan costs on its own, in its worst window."""
        return accounting.worst_window(self.costs(made), guarantee.w, guarantee.delta)

    def _vector(self, made: bytes, w: int, delta: Fraction) -> Vector:
        if (made, w, delta) not in self._own:
            first, units = accounting.window_units(self._row(made).costs, w, delta)
            rows = []
            for windows in units:
                by_start = dict(enumerate(windows, first))
                costs = [by_start.pop(start, Fraction(0)) for start in range(1 - w, w)]
                if any(by_start.values()):
                    raise LedgerError(f"the plan {made.hex()[:12]} costs something outside its period")
                common = lcm(1, *(cost.denominator for cost in costs))
                rows.append((common, tuple(int(cost * common) for cost in costs)))
            self._own[made, w, delta] = Vector(tuple(rows), delta)
        return self._own[made, w, delta]

    def _row(self, made: bytes) -> _Row:
        if made not in self._rows:
            with self._database.transaction(write=False) as reading:
                rows = reading.rows("SELECT digest, description, costs FROM optstream_plans WHERE id = ?", (made,))
            if not rows:
                raise LedgerError(f"the plan {made.hex()[:12]} is missing")
            ((digest, description, costs),) = rows
            self._rows[made] = _read(made, raw(digest), description, costs)
        return self._rows[made]


def _read(made: bytes, digest: bytes, description: str, costs: str) -> _Row:
    if made != _id(description, costs) or digest != plan_digest(description):
        raise LedgerError(f"the plan {made.hex()[:12]} was altered")
    return _Row(description, digest, accounting.from_data(json.loads(costs)))


def _id(description: str, costs: str) -> bytes:
    return digest_of(digest_of(description.encode()) + costs.encode())


def _nothing(w: int, delta: Fraction) -> Vector:
    return Vector(((1, (0,) * (2 * w - 1)),) * (2 if delta else 1), delta)


def _largest(rows: Sequence[Row]) -> Row:
    """Return the largest cost of every window."""
    common = lcm(1, *(denominator for denominator, _ in rows))
    shared = [[value * (common // denominator) for value in values] for denominator, values in rows]
    return common, tuple(max(column) for column in zip(*shared, strict=True))


def _sums(before: Row, after: Row) -> tuple[int, list[int]]:
    """Return a denominator, and what the windows cost that meet two periods."""
    common = lcm(before[0], after[0])
    w = (len(before[1]) + 1) // 2
    own, other = common // before[0], common // after[0]
    return common, [before[1][w - 1 + step] * own + after[1][step - 1] * other for step in range(1, w)]


def _across(before: Vector, after: Vector) -> tuple[tuple[int, int, Fraction], ...]:
    """Return runs of windows that meet two periods, as first and last step in the first of them, and their cost."""
    sums = [_sums(*rows) for rows in zip(before.rows, after.rows, strict=True)]
    runs = []
    for costs, run in groupby(
        enumerate(zip(*(totals for _, totals in sums), strict=True), 1), key=lambda step: step[1]
    ):
        steps: Sequence[int] = [step for step, _ in run]
        units = [Fraction(cost, common) for cost, (common, _) in zip(costs, sums, strict=True)]
        runs.append((steps[0], steps[-1], accounting.price(units, before.delta)))
    return tuple(runs)
