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
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm.auto import tqdm

from optstream.errors import ConflictError, ParameterError, SolverError
from optstream.ledger.database import ReplacedError
from optstream.ledger.memories import Memories
from optstream.ledger.rows import POLICY, STORE, STORED, check_fits, policy_of, policy_row, seal, stored
from optstream.mechanism import plan
from optstream.privacy import accounting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from optstream.estimate.memory import Memory
    from optstream.keys import CuratorKey
    from optstream.ledger.charges import Charges
    from optstream.ledger.database import Database, Transaction
    from optstream.mechanism.optstream import OptStream
    from optstream.mechanism.release import Parts
    from optstream.privacy.accounting import Cost
    from optstream.privacy.guarantee import Guarantee

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
    """The steps of a release on one database."""

    def __init__(
        self, database: Database[Any], charges: Charges, curator: CuratorKey | None, digester: CuratorKey
    ) -> None:
        """Take the database, its charges, the curator's key if there is one, and the key for digests of the data."""
        self._database, self._charges = database, charges
        self._curator, self._digester = curator, digester
        self._enrolled: set[tuple[str, bytes]] = set()

    def release(
        self,
        made: PricedPlan,
        units: NDArray[np.int64],
        *,
        stream: str,
        period: int,
        finish: Callable[[Transaction], None] | None = None,
        memory: Memory | None = None,
    ) -> list[Parts]:
        """Release periods that are integers of the grid; ``finish`` is part of the transaction that stores the last.

        With a memory, which must be that before the period, there is one period: it is estimated and remembered.
        """
        self.enrol(stream, made)
        numbers = range(period, period + len(units))
        digests = {
            number: self._digester.digest([stream.encode(), _number(number)], rows)
            for number, rows in zip(numbers, units, strict=True)
        }
        guarantee = made.mechanism.guarantee
        charged, parts = self._charges.charge(stream, made.digest, digests, w=guarantee.w, alpha=guarantee.alpha)
        waiting = [number for number in numbers if number not in parts]
        for batch in _batches(waiting):
            drawn = {
                number: self._draw((stream, number, charged[number]), made, units[number - period], digests[number])
                for number in batch
            }
            if memory is not None:
                drawn = {number: made.mechanism.finish(part, number, memory) for number, part in drawn.items()}
            parts |= self._store(stream, drawn, charged, finish if batch[-1] == waiting[-1] else None, memory)
        if finish is not None and not waiting:
            with self._database.transaction() as change:
                finish(change)
        return [parts[number] for number in numbers]

    def enrol(self, stream: str, made: PricedPlan) -> None:
        """Write the plan and the stream down, once.

        Raises:
            ParameterError: The stream was begun with another key, or for windows of another length or another alpha.
        """
        if (stream, made.digest) in self._enrolled:
            return
        guarantee = made.mechanism.guarantee
        costs = json.dumps(accounting.to_data(made.costs))
        with self._database.transaction() as change:
            change.write(
                "INSERT INTO optstream_plans VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (made.digest, made.description, made.mechanism.statement.to_json(), costs),
            )
            self.add_stream(change, stream, guarantee)
            check_fits(stream, policy_of(stream, change.rows(POLICY, (stream,))), guarantee.w, guarantee.alpha)
            ((found,),) = change.rows("SELECT key_check FROM optstream_streams WHERE name = ?", (stream,))
        begun, mine = None if found is None else bytes(found), self._key_check()
        if begun != mine:
            given = {True: "with a key", False: "without a key"}
            raise ParameterError(
                f"stream {stream!r} was begun {given[begun is not None]}, but now comes "
                + (given[mine is not None] if begun is None or mine is None else "with another key")
            )
        self._enrolled.add((stream, made.digest))

    def add_stream(self, change: Transaction, stream: str, policy: Guarantee) -> None:
        """Write a stream down unless it is there."""
        change.write(
            "INSERT INTO optstream_streams (name, epsilon, w, alpha, neighbours, key_check) VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT DO NOTHING",
            (stream, *policy_row(policy), self._key_check()),
        )

    def _key_check(self) -> bytes | None:
        """What tells whether a key is the one that a stream was begun with."""
        return self._curator and self._curator.digest([b"key check"], np.empty((0, 0), dtype=np.int64))

    def _draw(self, charge: tuple[str, int, int], made: PricedPlan, units: NDArray[np.int64], digest: bytes) -> Parts:
        """Draw the release of a charge, which is the stream, the period and its own number."""
        stream, number, _ = charge
        if self._curator:
            # A retry draws the same noise, so a failure repeats itself and tells nothing more.
            context = [stream.encode(), _number(number), made.digest, digest]
            return made.mechanism.draw(units, (self._curator, context))
        try:
            return made.mechanism.draw(units)
        except SolverError as error:
            # After a draw that failed by its noise, another would be a second look at the data.
            self._charges.make_void(*charge, f"not solved: {error}")
            raise

    def _store(
        self,
        stream: str,
        drawn: Mapping[int, Parts],
        charged: Mapping[int, int],
        finish: Callable[[Transaction], None] | None,
        memory: Memory | None,
    ) -> dict[int, Parts]:
        """Store what was drawn, or return what another process has stored for the same charge by now."""
        now = datetime.now(UTC).isoformat()
        rows = []
        for number, parts in drawn.items():
            result = parts.to_bytes()
            sealed = seal(stream, number, charged[number], result, now)
            rows.append((stream, number, charged[number], result, now, sealed))
        try:
            if finish is None and memory is None and len(rows) == 1:
                if self._database.write_alone(STORE, rows[0]) == 1:
                    return dict(drawn)
                with self._database.transaction(write=False) as reading:
                    return _theirs(reading, stream, drawn, charged)
            with self._database.transaction() as change:
                mine = change.write(STORE, *rows) == len(rows)
                # Raises, and undoes everything, unless each period is stored for this very charge.
                result_of = dict(drawn) if mine else _theirs(change, stream, drawn, charged)
                if memory is not None and mine:
                    Memories.keep(change, stream, memory)
                if finish is not None:
                    finish(change)
        except ReplacedError:
            raise ConflictError(
                f"a period of {stream!r} from {min(drawn)} to {max(drawn)} was charged again by another process, for "
                "other data or another plan"
            ) from None
        return result_of


def _theirs(
    reading: Transaction, stream: str, drawn: Mapping[int, Parts], charged: Mapping[int, int]
) -> dict[int, Parts]:
    """Return what other processes have stored for the same charges."""
    rows = reading.rows(STORED, (stream, min(drawn), max(drawn)))
    for_charge = {row[0]: row[1] for row in rows}
    if any(for_charge.get(number) != charged[number] for number in drawn):
        raise ReplacedError(f"a period of {stream!r} was released for another charge")
    found = stored(reading, stream, min(drawn), max(drawn))
    return {number: found[number] for number in drawn}


def _number(period: int) -> bytes:
    return period.to_bytes(8, "little")


def _batches(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield batches, with a progress bar if there are several."""
    if len(numbers) <= BATCH:
        yield from [numbers] if numbers else []
        return
    with tqdm(total=len(numbers), desc="releasing", unit="period", disable=None, leave=False) as progress:
        for start in range(0, len(numbers), BATCH):
            batch = numbers[start : start + BATCH]
            yield batch
            progress.update(len(batch))
