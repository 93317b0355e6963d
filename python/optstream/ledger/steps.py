"""Periods that are released step by step, in the ledger.

1. A final entry charges the whole period before anything of it is drawn: it is never replaced.
2. Each step is drawn and an entry stores its values, in one transaction with the observation and what is pending.
3. Only then does the step leave. With the last one goes the entry that releases the whole period.

A step that is stored is returned as it is stored. After a crash before 2 nothing has left, and the step is drawn again:
with a curator's key with the same noise. What cube noise keeps pending follows from the key; where there is none it is
kept beside the observations, and goes with its block. So is what a mechanism knows whose every step has a cost of its
own; its noise follows from no key, and with the last step goes an entry that settles what the period has cost.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream.errors import LedgerError, ParameterError
from optstream.ledger import observations
from optstream.ledger.database import BehindError, StaleError, raw
from optstream.ledger.entries import Draft
from optstream.ledger.plans import PricedPlan
from optstream.mechanism.loop import Priced, price_next
from optstream.mechanism.optstream import OptStream
from optstream.mechanism.state import State

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from optstream.keys import CuratorKey
    from optstream.ledger.charges import Charges
    from optstream.ledger.database import Transaction
    from optstream.ledger.entries import Seals
    from optstream.ledger.entries import State as Charged
    from optstream.ledger.log import Log
    from optstream.ledger.memories import Memories
    from optstream.ledger.plans import Plans
    from optstream.ledger.protocol import Protocol
    from optstream.mechanism.mechanism import Mechanism, Walk
    from optstream.mechanism.release import Parts

    Array = NDArray[np.float64]

__all__ = ["StepProtocol", "StoredStep"]

STEPS = (
    "SELECT number, kind, period, charge, plan, data, content, written, previous, hash, seal FROM optstream_entries"
    " WHERE stream = ? AND period BETWEEN ? AND ? AND kind = 'step' ORDER BY number"
)
PENDING = "SELECT period, radii, seal FROM optstream_pending WHERE stream = ?"
KEEP = (
    "INSERT INTO optstream_pending (stream, period, radii, seal) VALUES (?, ?, ?, ?) ON CONFLICT (stream) DO UPDATE"
    " SET period = excluded.period, radii = excluded.radii, seal = excluded.seal"
)


@dataclass(frozen=True, repr=False)
class StoredStep:
    """A step as the ledger stores it."""

    step: int
    digest: bytes
    """The keyed digest of the observation."""
    values: Array
    deviations: Array | None
    samples: Array
    """What was measured of the period up to the step; what has not ended is not a number."""
    cells: Array

    def to_bytes(self) -> bytes:
        """Return the step as bytes."""
        return json.dumps(
            {
                "step": self.step,
                "digest": self.digest.hex(),
                "values": self.values.tolist(),
                "deviations": None if self.deviations is None else self.deviations.tolist(),
                "samples": _shown(self.samples),
                "cells": _shown(self.cells),
            }
        ).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> StoredStep:
        """Return the step that :meth:`to_bytes` gave."""
        data = json.loads(content)
        deviations = data["deviations"]
        return cls(
            data["step"],
            bytes.fromhex(data["digest"]),
            np.array(data["values"], dtype=np.float64),
            None if deviations is None else np.array(deviations, dtype=np.float64),
            _read(data["samples"]),
            _read(data["cells"]),
        )


class StepProtocol:
    """The steps of periods on one database."""

    def __init__(  # noqa: PLR0917
        self,
        log: Log,
        plans: Plans,
        charges: Charges,
        memories: Memories,
        protocol: Protocol,
        digester: CuratorKey,
    ) -> None:
        """Take what releases of whole periods use too."""
        self._log, self._plans, self._charges, self._memories = log, plans, charges, memories
        self._protocol, self._digester = protocol, digester
        self._seals = log.seals

    @property
    def is_keyed(self) -> bool:
        """Whether noise follows from a curator's key, so that nothing is pending."""
        return self._seals.curator is not None

    def digest(self, stream: str, step: int, units: NDArray[np.int64]) -> bytes:
        """Return the keyed digest of an observation."""
        return self._digester.digest(*_observed(stream, step, units))

    def is_same(self, digest: bytes, stream: str, step: int, units: NDArray[np.int64]) -> bool:
        """Whether a stored digest is that of an observation, with today's key or a former one."""
        keys = [self._digester, *self._seals.keys.values()]
        return any(digest == key.digest(*_observed(stream, step, units)) for key in keys)

    def begin(
        self, mechanism: Mechanism, stream: str, period: int, memory: Mapping[str, Any] | None, held: Any = None
    ) -> tuple[Charged, Priced[Any], State]:
        """Charge a period for good, or take its charge up; return the charge, the mechanism and what is known.

        Args:
            mechanism: What releases the period, if it is not begun yet.
            stream: The name of the stream.
            period: The number of the period.
            memory: What public history says.
            held: What the mechanism goes on from.

        Raises:
            BudgetError: Some window would cost more than the policy allows. Nothing was charged.
            ConflictError: The period was released as a whole, or is void.
        """
        known = State(period - 1)
        charged = self._charged(stream, period)
        markers = _Markers(self._digester, self._seals, stream, period)
        resumed = charged is not None and charged.number and charged.data == markers.under(period, charged.key)
        begun = self._plans.plan(charged.plan) if charged is not None and resumed else None
        made = mechanism if begun is None else begun.mechanism
        if made.estimator is not None:
            # A period that was begun with another estimate is finished with that one.
            alike = mechanism.estimator is not None and made.estimator.estimate == mechanism.estimator.estimate
            known.memory = self._memories.before(stream, period, made, memory if alike else None)
        if begun is None:
            self._protocol.enrol(stream, PricedPlan.of(mechanism), create=False)
            if isinstance(mechanism, OptStream) and mechanism.retune:
                before = self._charged(stream, period - 1) if period > 0 else None
                known.costs = self._plans.costs(before.plan) if before is not None and before.plan else ()
                made = price_next(mechanism, known, period).mechanism
            begun = PricedPlan.of(made, made.walks.before(held))
        self._protocol.enrol(stream, begun, create=False)
        charge = self._charges.charge(stream, begun, markers, final=True)[period]
        price = max(self._charges.price(stream, period, period), made.steady_epsilon)
        return charge, Priced(made, begun.costs, price), known

    def retry(self, stream: str, charge: Charged) -> tuple[CuratorKey, Sequence[bytes]] | None:
        """Return what keyed noise of a charged period is derived from, if there is a key: that of its charge.

        A key that is rotated within a period would give the rest of a block another radius.

        Raises:
            ParameterError: That key is not known.
        """
        if not charge.key:
            return None
        if charge.key not in self._seals.keys:
            raise ParameterError(
                f"period {charge.period} of {stream!r} was begun with a former key, which must be given to finish it"
            )
        numbers = [number.to_bytes(8, "little") for number in (charge.period, charge.number)]
        return self._seals.keys[charge.key], [b"steps", stream.encode(), *numbers, charge.plan]

    def store(
        self,
        stream: str,
        charge: Charged,
        step: StoredStep,
        *,
        revision: int,
        observed: Array,
        walk: Walk,
        finished: tuple[Parts, State] | None,
    ) -> None:
        """Store a step, and with the last one the whole period and what it has cost, before it leaves.

        Raises:
            StaleError: Another process has changed the stream; nothing was stored.
            BudgetError: The policy does not allow the period any more.
        """
        made = walk.priced.mechanism
        view = self._charges.known(stream, [charge.period])
        now = view.states.get(charge.period)
        if now is None or now.number != charge.number or now.release:
            raise StaleError(f"stream {stream!r} was changed by another process")
        now.check_void(stream)
        self._charges.check_windows(view, {charge.period: charge.plan})
        self._charges.check_pool(view, {charge.period: charge.plan})
        said = {"period": charge.period, "charge": charge.number}
        drafts = [Draft.saying("step", step.to_bytes(), plan=charge.plan, **said)]
        forget: list[int] = []
        add = {step.step: observed}
        if finished is not None:
            spent, after = charge.plan, made.walks.after(walk)
            if after is not None:
                settled = PricedPlan.of(made, after)
                self._protocol.enrol_plan(settled)
                spent = settled.id
                drafts.append(Draft.saying("settled", b"", plan=spent, **said))
            drafts.append(Draft.saying("release", finished[0].to_bytes(), plan=spent, **said))
            w = made.guarantee.w
            forget, add = list(range(charge.period * w, (charge.period + 1) * w)), {}

        def also(change: Transaction) -> None:
            observations.keep(change, self._seals, stream, revision=revision, forget=forget, add=add)
            if walk.pending is not None:
                content = json.dumps(walk.pending).encode()
                change.write(KEEP, (stream, charge.period, content, self._seal(stream, charge.period, content)))
            elif not self.is_keyed:
                change.write("DELETE FROM optstream_pending WHERE stream = ?", (stream,))
            if finished is not None and finished[1].memory is not None:
                self._memories.keep(change, stream, finished[1].memory)

        try:
            view = self._charges.append(view, drafts, forced=True, also=also)
        except BehindError:
            raise StaleError(f"stream {stream!r} was changed by another process") from None
        self._charges.remember(view, charge.period)

    def failed(self, stream: str, charge: Charged, walk: Walk, error: BaseException) -> None:
        """See to it that nothing else is drawn for a charge after a draw that has failed, unless a key repeats it."""
        if not (self.is_keyed and walk.priced.mechanism.walks.repeats):
            self._charges.settle(stream, charge, f"failed with {type(error).__name__}")

    def stored(self, stream: str, period: int) -> list[StoredStep]:
        """Return the steps of a period that are stored.

        Raises:
            LedgerError: One of them is not as it was written.
        """
        with self._log.database.transaction(write=False) as reading:
            return self.stored_in(reading, stream, period, period)

    def stored_in(self, reading: Transaction, stream: str, first: int, last: int) -> list[StoredStep]:
        """Return the steps of some periods as part of a transaction."""
        rows = reading.rows(STEPS, (stream, first, last))
        try:
            return [StoredStep.from_bytes(self._seals.read(stream, row, None).content or b"") for row in rows]
        except (KeyError, TypeError, ValueError):
            raise LedgerError(f"a step of the periods {first} to {last} of {stream!r} was altered") from None

    def mechanism_of(self, stream: str, period: int) -> Mechanism | None:
        """Return what a period was charged for."""
        charged = self._charged(stream, period)
        return None if charged is None or not charged.plan else self._plans.mechanism(charged.plan)

    def price(self, stream: str, period: int) -> Any:
        """Return the worst window that meets a period."""
        return self._charges.price(stream, period, period)

    def pending(self, stream: str) -> tuple[int, Any] | None:
        """Return what is kept beside the steps that have left, with the period that it is about.

        Raises:
            LedgerError: It is not what was written.
        """
        with self._log.database.transaction(write=False) as reading:
            found = self.check(reading, stream)
        return None if found is None else (found[0], json.loads(found[1]))

    def check(self, reading: Transaction, stream: str) -> tuple[int, bytes] | None:
        """Return what is kept beside the steps that have left, as it was written, with its period.

        Raises:
            LedgerError: It is not what was written.
        """
        for period, content, seal in reading.rows(PENDING, (stream,)):
            if raw(seal) != self._seal(stream, period, raw(content)):
                raise LedgerError(f"what is pending of {stream!r} was altered")
            return period, raw(content)
        return None

    def _charged(self, stream: str, period: int) -> Charged | None:
        try:
            return self._log.look(stream, period, period).states.get(period)
        except LedgerError as error:
            if type(error).__name__ == "UnknownStreamError":
                return None
            raise

    def _seal(self, stream: str, period: int, content: bytes) -> bytes:
        return self._seals.code(b"pending", stream.encode(), str(period).encode(), content)


class _Markers(dict[int, bytes]):
    """What stands in the place of the digest of the data of a period that is not there yet."""

    def __init__(self, digester: CuratorKey, seals: Seals, stream: str, period: int) -> None:
        """Make it with the key of today."""
        self._keys, self._stream = {seals.check: digester, **seals.keys}, stream
        super().__init__({period: self.under(period, seals.check)})

    def under(self, period: int, key: bytes) -> bytes:
        """Return it with the key that the period was charged with.

        Raises:
            ParameterError: That key is not known.
        """
        if key not in self._keys:
            raise ParameterError(
                f"period {period} of {self._stream!r} was charged with a former key, which must be given to finish it"
            )
        context = [self._stream.encode(), period.to_bytes(8, "little"), b"step by step"]
        return self._keys[key].digest(context, np.empty((1, 0), dtype=np.int64))


def _observed(stream: str, step: int, units: NDArray[np.int64]) -> tuple[list[bytes], NDArray[np.int64]]:
    return [stream.encode(), b"step", step.to_bytes(8, "little")], units.reshape(1, -1)


def _shown(rows: Array) -> list[list[float | None]]:
    return [[None if np.isnan(value) else value for value in row] for row in rows.tolist()]


def _read(rows: list[list[float | None]]) -> Array:
    found = np.array([[np.nan if value is None else value for value in row] for row in rows], dtype=np.float64)
    return found.reshape(len(rows), -1)
