"""The protocol of the ledger: charge, draw, store, return.

1. One transaction checks every window that the period meets against the stream's policy and writes the charge.
2. Noise is drawn and the post-processing solved.
3. One transaction stores the released values.
4. They are returned.

Asking again for a stored period returns what is stored. After a crash between 1 and 3 nothing has left, so 2 is done
again without a second charge. Of two processes that race for a period one stores, and both return what is stored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm.auto import tqdm

from optstream import accounting, plan
from optstream.errors import BudgetError, ConflictError, LedgerError, ParameterError, SolverError
from optstream.ledger.rows import CHARGE, CHARGED, POLICY, RECHARGE, STORE, STORED, Charge, policy_of, policy_row, seal
from optstream.release import Parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from fractions import Fraction

    from numpy.typing import NDArray

    from optstream.accounting import Cost
    from optstream.guarantee import Guarantee
    from optstream.keys import CuratorKey
    from optstream.ledger.database import Database, Transaction
    from optstream.mechanism import OptStream

__all__ = ["PricedPlan", "Protocol"]

BATCH = 256
"""Periods that are drawn between two transactions that store them."""


@dataclass(frozen=True)
class PricedPlan:
    """A mechanism and what a period of it costs, as the ledger writes it down."""

    mechanism: OptStream
    description: str
    digest: bytes
    costs: tuple[Cost, ...]

    @classmethod
    def of(cls, mechanism: OptStream, held: Mapping[int, int] | None = None) -> PricedPlan:
        """Return the plan of a mechanism in whose periods some steps repeat an earlier one, or none."""
        if not held:
            return cls(mechanism, mechanism.description, mechanism.digest, mechanism.costs)
        steps = {str(step): source for step, source in sorted(held.items())}
        description = plan.canonical({**json.loads(mechanism.description), "held": steps})
        return cls(mechanism, description, plan.digest(description), tuple(accounting.held(mechanism.costs, held)))


class Protocol:
    """The steps of a release on one database, with the plans and prices that this process has met."""

    def __init__(self, database: Database[Any], curator: CuratorKey | None, digester: CuratorKey) -> None:
        """Take the database, the curator's key if there is one, and the key for digests of the data."""
        self.database = database
        self._curator, self._digester = curator, digester
        self._known: set[tuple[str, bytes]] = set()
        self._costs: dict[bytes, tuple[Cost, ...]] = {}
        self._prices: dict[tuple[Any, ...], Fraction] = {}

    def release(
        self,
        made: PricedPlan,
        units: NDArray[np.int64],
        *,
        stream: str,
        period: int,
        finish: Callable[[Transaction], None] | None = None,
    ) -> list[Parts]:
        """Release periods that are integers of the grid; ``finish`` is part of the transaction that stores the last."""
        self.enrol(stream, made)
        numbers = range(period, period + len(units))
        digests = {
            number: self._digester.digest([stream.encode(), _number(number)], rows)
            for number, rows in zip(numbers, units, strict=True)
        }
        parts = self._charge(stream, made, digests)
        waiting = [number for number in numbers if number not in parts]
        for batch in _batches(waiting):
            drawn = {
                number: self._draw(stream, made, number, units[number - period], digests[number]) for number in batch
            }
            parts |= self._store(stream, made, drawn, digests, finish if batch[-1] == waiting[-1] else None)
        if finish is not None and not waiting:
            with self.database.transaction() as change:
                finish(change)
        return [parts[number] for number in numbers]

    def enrol(self, stream: str, made: PricedPlan) -> None:
        """Write the plan and the stream down, once."""
        if (stream, made.digest) in self._known:
            return
        costs = json.dumps(accounting.to_data(made.costs))
        with self.database.transaction() as change:
            change.execute(
                "INSERT INTO optstream_plans VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (made.digest, made.description, made.mechanism.statement.to_json(), costs),
            )
            self.insert_stream(change, stream, made.mechanism.guarantee)
            ((check,),) = change.execute("SELECT key_check FROM optstream_streams WHERE name = ?", (stream,)).rows()
        mine = self._key_check()
        if mine != (None if check is None else bytes(check)):
            raise ParameterError(
                f"key is not the one with which {stream!r} was begun, but must be"
                if check is not None and mine is not None
                else f"key is {'missing' if mine is None else 'given'}, but {stream!r} was begun "
                f"{'with' if mine is None else 'without'} one"
            )
        self._known.add((stream, made.digest))

    def _charge(self, stream: str, made: PricedPlan, digests: Mapping[int, bytes]) -> dict[int, Parts]:
        """Charge the periods that are not charged yet; return those that are released already."""
        now = datetime.now(UTC).isoformat()
        mine = {number: Charge(number, made.digest, digest, now, None) for number, digest in digests.items()}
        numbers = list(digests)
        first, last = numbers[0], numbers[-1]
        with self.database.transaction() as change:
            policy_row = change.execute(POLICY + self.database.lock, (stream,))
            charged = change.execute(CHARGED, (stream, first - 1, last + 1))
            change.execute_many(CHARGE, [charge.row(stream) for charge in mine.values()])
            policy = policy_of(stream, policy_row.rows())
            if (policy.w, policy.alpha) != (made.mechanism.guarantee.w, made.mechanism.guarantee.alpha):
                raise ParameterError(
                    f"mechanism has w = {made.mechanism.guarantee.w} and alpha = {made.mechanism.guarantee.alpha:g}, "
                    f"but the policy of {stream!r} has w = {policy.w} and alpha = {policy.alpha:g}"
                )
            found = {row[0]: Charge.read(stream, row) for row in charged.rows()}
            replaced = [mine[number] for number in numbers if number in found and found[number].differs(mine[number])]
            for charge in replaced:
                found[charge.period].check_replaceable(stream, charge)
                change.execute(RECHARGE, (*charge.row(stream)[2:], stream, charge.period))
            new = [number for number in numbers if number not in found]
            after = found | {charge.period: charge for charge in (*(mine[number] for number in new), *replaced)}
            for number in [*new, *(charge.period for charge in replaced)]:
                self._check_windows(change, stream, policy, after, number)
            for number in numbers:
                after[number].check_void(stream)
            released = [number for number in numbers if number in found and found[number].released]
            return self.stored(change, stream, released[0], released[-1]) if released else {}

    def _check_windows(
        self, reading: Transaction, stream: str, policy: Guarantee, charges: Mapping[int, Charge], number: int
    ) -> None:
        """Raise unless every window that meets a period is within the policy."""
        reach = (0,) if policy.neighbours == "aligned" else (-1, 0, 1)
        plans = tuple(charges[number + by].plan if number + by in charges else None for by in reach)
        case = (policy.w, plans)
        if case not in self._prices:
            around = [
                accounting.moved(cost, by * policy.w)
                for by, digest in zip(reach, plans, strict=True)
                if digest is not None
                for cost in self.costs_of(reading, digest)
            ]
            # Windows that meet the period start from w - 1 steps before its first step to its last.
            first, windows = accounting.window_costs(around, policy.w)
            self._prices[case] = max(windows[max(1 - policy.w - first, 0) : policy.w - first])
        price = self._prices[case]
        if price > policy.epsilon:
            raise BudgetError(
                f"releasing period {number} of {stream!r} would make a window cost {price}, but its policy allows "
                f"{policy.epsilon}; nothing was charged"
            )

    def _draw(self, stream: str, made: PricedPlan, number: int, units: NDArray[np.int64], digest: bytes) -> Parts:
        context = [stream.encode(), _number(number), made.digest, digest]
        if self._curator:
            # A retry draws the same noise, so a failure repeats itself and tells nothing more.
            return made.mechanism.draw(units, (self._curator, context))
        try:
            return made.mechanism.draw(units)
        except SolverError as error:
            self._make_void(stream, made, number, digest, f"not solved: {error}")
            raise

    def _make_void(self, stream: str, made: PricedPlan, number: int, digest: bytes, why: str) -> None:
        """Let nobody draw again: after a draw that failed by its noise, another would be a second look at the data."""
        with self.database.transaction() as change:
            change.execute(POLICY + self.database.lock, (stream,))
            for row in change.execute(CHARGED, (stream, number, number)).rows():
                charge = Charge.of(row)
                if not charge.released and (charge.plan, charge.data) == (made.digest, digest):
                    change.execute(RECHARGE, (*replace(charge, void=why).row(stream)[2:], stream, number))

    def _store(
        self,
        stream: str,
        made: PricedPlan,
        drawn: Mapping[int, Parts],
        digests: Mapping[int, bytes],
        finish: Callable[[Transaction], None] | None,
    ) -> dict[int, Parts]:
        """Store what was drawn, or return what another process has stored by now."""
        now = datetime.now(UTC).isoformat()
        rows = []
        for number, parts in drawn.items():
            result = parts.to_bytes()
            sealed = seal(stream, number, digests[number], result, now)
            key = (stream, number, made.digest, digests[number])
            rows.append((stream, number, digests[number], result, now, sealed, *key))
        with self.database.transaction() as change:
            written = change.execute_many(STORE.format(lock=self.database.lock), rows)
            if finish is not None:
                finish(change)
            if written.count == len(rows):
                return dict(drawn)
            stored = self.stored(change, stream, min(drawn), max(drawn))
            charged = change.execute(CHARGED, (stream, min(drawn), max(drawn))).rows()
        theirs = {row[0]: bytes(row[2]) for row in charged}
        for number in drawn:
            if number not in stored or theirs[number] != digests[number]:
                raise ConflictError(
                    f"period {number} of {stream!r} was charged by another process for other data or another plan"
                )
        return {number: stored[number] for number in drawn}

    def insert_stream(self, change: Transaction, stream: str, policy: Guarantee) -> None:
        """Write a stream down unless it is there."""
        change.execute(
            "INSERT INTO optstream_streams (name, epsilon, w, alpha, neighbours, key_check) VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT DO NOTHING",
            (stream, *policy_row(policy), self._key_check()),
        )

    def _key_check(self) -> bytes | None:
        """What tells whether a key is the one that a stream was begun with."""
        return self._curator and self._curator.digest([b"key check"], np.empty((0, 0), dtype=np.int64))

    def costs_of(self, reading: Transaction, digest: bytes) -> tuple[Cost, ...]:
        """Return what a period of a plan costs."""
        if digest not in self._costs:
            ((text,),) = reading.execute("SELECT costs FROM optstream_plans WHERE digest = ?", (digest,)).rows()
            self._costs[digest] = accounting.from_data(json.loads(text))
        return self._costs[digest]

    def stored(self, reading: Transaction, stream: str, first: int, last: int) -> dict[int, Parts]:
        """Return the releases of periods that are stored.

        Raises:
            LedgerError: One of them is not as it was written.
        """
        parts = {}
        for period, data, result, released, sealed in reading.execute(STORED, (stream, first, last)).rows():
            if bytes(sealed) != seal(stream, period, bytes(data), bytes(result), released):
                raise LedgerError(f"the release of period {period} of {stream!r} was altered")
            parts[period] = Parts.from_bytes(bytes(result))
        return parts


def _number(period: int) -> bytes:
    return period.to_bytes(8, "little")


def _batches(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield batches, with a progress bar if there are several."""
    starts = range(0, len(numbers), BATCH)
    for start in tqdm(starts, desc="releasing", unit="batch", disable=None if len(starts) > 1 else True, leave=False):
        yield numbers[start : start + BATCH]
