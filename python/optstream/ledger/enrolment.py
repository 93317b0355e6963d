"""Making streams, and making them members of pools."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from optstream.errors import LedgerError, ParameterError
from optstream.ledger.charges import check_entities
from optstream.ledger.database import BehindError, pause
from optstream.ledger.entries import Draft
from optstream.ledger.log import LARGEST, POOL, Head, Share, View, policy_draft
from optstream.ledger.pools import member_draft, share_drafts

if TYPE_CHECKING:
    from optstream.ledger.log import Log
    from optstream.ledger.plans import Plans
    from optstream.ledger.pools import Pools
    from optstream.privacy.guarantee import Guarantee

__all__ = ["Enrolment"]

ATTEMPTS = 100


class Enrolment:
    """What is written when a stream is made, or enters a pool: in its own log and in that of the pool, together."""

    def __init__(self, log: Log, plans: Plans, pools: Pools) -> None:
        """Take the log, the plans and the pools."""
        self._log, self._plans, self._pools = log, plans, pools

    def enrol(self, stream: str, guarantee: Guarantee, pool: str | None, clock: str | None) -> None:
        """Make a stream or a member; a member that was charged before brings its charges."""
        with self._log.database.transaction() as change:
            if self._log.forgotten(change)[0] >= 0:
                self._log.begin(change, stream, guarantee)
        for attempt in range(ATTEMPTS):
            try:
                self._append(stream, guarantee, pool, clock)
            except BehindError:
                pause(attempt)
            else:
                return
        raise LedgerError(f"stream {stream!r} is changed by other processes all the time")

    def _append(self, stream: str, guarantee: Guarantee, pool: str | None, clock: str | None) -> None:
        with self._log.database.transaction(write=False) as reading:
            exists = self._log.exists(reading, stream)
            view = self._log.all(reading, stream) if exists else self._new(stream, guarantee)
            shared = None if pool is None else self._log.all(reading, pool)
        drafts = [] if exists else [policy_draft(guarantee, self._log.seals.check)]
        if exists:
            _check_same(view, guarantee)
        clock = clock or view.clock or (None if shared is None else shared.clock or "steps")
        if clock is not None and view.clock is None:
            drafts.append(Draft.saying("clock", clock.encode()))
        elif view.clock != clock:
            raise ParameterError(f"stream {stream!r} counts {view.clock}, but was to count {clock}")
        if shared is None or pool is None:
            # Another attempt, or process, may have made it meanwhile.
            if drafts:
                self._log.append_all([(view, drafts)])
            return
        if view.pool is not None:
            if view.pool == pool:
                return
            raise ParameterError(f"stream {stream!r} is a member of {view.pool.removeprefix(POOL)!r} already")
        _check_member(view, shared, clock)
        charged = {
            Share(stream, period, period * view.policy.w): state.plan
            for period, state in view.states.items()
            if state.plan
        }
        shares = [member_draft(stream, view.policy.w)]
        if shared.clock is None and clock is not None:
            shares.append(Draft.saying("clock", clock.encode()))
        shares += [Draft.saying("plan", b"", plan=twin) for twin in sorted(view.larger - shared.larger)]
        if charged:
            known = replace(
                shared, members={**shared.members, stream: view.policy.w}, larger=shared.larger | view.larger
            )
            self._pools.check(known, charged)
            numbers = {share: view.states[share.period].number for share in charged}
            shares += share_drafts(charged, numbers)
        drafts.append(Draft.saying("pool", pool.encode()))
        self._log.append_all([(shared, shares), (view, drafts)])

    def _new(self, stream: str, guarantee: Guarantee) -> View:
        return View(stream, guarantee, ((-1, self._log.seals.check),), Head(0, b""), periods=range(-1, LARGEST + 2))


def _check_same(view: View, guarantee: Guarantee) -> None:
    if view.policy != guarantee:
        raise ParameterError(f"stream {view.stream!r} has the policy {view.policy}, but was to have {guarantee}")


def _check_member(view: View, pool: View, clock: str | None) -> None:
    """Raise unless a stream goes with a pool."""
    name = pool.stream.removeprefix(POOL)
    if pool.clock not in {None, clock}:
        raise ParameterError(f"stream {view.stream!r} counts {clock}, but members of {name!r} count {pool.clock}")
    if view.policy.neighbours != pool.policy.neighbours:
        raise ParameterError(
            f"stream {view.stream!r} has neighbours = {view.policy.neighbours!r}, but the pool {name!r} has "
            f"{pool.policy.neighbours!r}"
        )
    if view.policy.delta and not pool.policy.delta:
        raise ParameterError(
            f"stream {view.stream!r} has delta = {float(view.policy.delta):g}, but the pool {name!r} has none"
        )
    check_entities(f"stream {view.stream!r}", view.policy, name, pool.policy)
    if pool.policy.neighbours == "aligned" and view.policy.w != pool.policy.w:
        raise ParameterError(
            f"stream {view.stream!r} has w = {view.policy.w}, but must have {pool.policy.w} in {name!r}"
        )
    ends = [last for _, last in pool.lost]
    if any((last + 1) * view.policy.w - 1 > max(ends, default=-1) for _, last in view.lost):
        raise ParameterError(
            f"stream {view.stream!r} may have lost periods before the ledger was restored, and cannot enter the pool "
            f"{name!r}, which does not count them"
        )
