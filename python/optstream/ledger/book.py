"""What users ask of a ledger: releases, policies, what is left, what happened, whether all is well."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Self, cast

from optstream.errors import LedgerError, OptStreamError, ParameterError, ParameterTypeError
from optstream.keys import CuratorKey, find_keys
from optstream.ledger import observations
from optstream.ledger.bulk import Bulk
from optstream.ledger.charges import Charges, check_entities
from optstream.ledger.database import StaleError
from optstream.ledger.enrolment import Enrolment
from optstream.ledger.entries import Draft, Seals
from optstream.ledger.log import LARGEST, POOL, Log, View, lost_draft, lost_drafts, policy_draft, unknown
from optstream.ledger.memories import Memories
from optstream.ledger.plans import Plans, PricedPlan
from optstream.ledger.pools import Pools
from optstream.ledger.protocol import Protocol
from optstream.ledger.records import OVER, Entry, Head, Pool, Remaining, Verification, listed
from optstream.ledger.releases import stored
from optstream.ledger.review import windows_left
from optstream.ledger.schema import About, open_tables
from optstream.ledger.sqlite import SQLite
from optstream.ledger.steps import StepProtocol
from optstream.ledger.witness import Witness
from optstream.mechanism.loop import Drawn, Priced, price_next
from optstream.mechanism.mechanism import Mechanism, check_mechanism
from optstream.mechanism.state import State, public_memory
from optstream.names import checked_name
from optstream.privacy.budget import shown
from optstream.privacy.guarantee import Guarantee

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from fractions import Fraction
    from pathlib import Path
    from types import TracebackType
    from typing import TextIO

    import numpy as np
    from numpy.typing import NDArray

    from optstream.estimate.memory import Memory
    from optstream.ledger.database import Database, Transaction
    from optstream.ledger.observations import Kept
    from optstream.mechanism.optstream import OptStream
    from optstream.privacy.accounting import Cost
    from optstream.privacy.statement import Statement

__all__ = ["Ledger"]

LOG = logging.getLogger("optstream.ledger")
LONGEST = 10**6
"""The most seconds to wait for another process."""
DAMAGE = (OptStreamError, TypeError, ValueError, LookupError, AttributeError)
"""What reading rows raises that hold something else than what was written."""
ORPHANS = {
    "optstream_entries": "number < 1 OR stream NOT IN (SELECT stream FROM optstream_entries WHERE number = 1)",
    "optstream_observations": "stream IS NULL OR stream NOT IN (SELECT stream FROM optstream_entries WHERE number = 1)",
    "optstream_pending": "stream IS NULL OR stream NOT IN (SELECT stream FROM optstream_entries WHERE number = 1)",
    "optstream_memories": "stream IS NULL OR stream NOT IN (SELECT stream FROM optstream_entries WHERE number = 1)",
}
"""Rows that no stream would look at."""
DIGEST = 32
"""Bytes of a digest of data."""
VERIFIED = 4096
"""Periods whose releases are looked at together."""


class Ledger:
    """A durable account of what has been released, in a file or in PostgreSQL, shared by any number of processes.

    Every stream has a policy: no window may ever cost more than its epsilon. The first release sets it to the guarantee
    of its mechanism, :meth:`set_policy` to another.

    With a curator's key the noise of a period is a function of the stream, the period, the plan and the data, so that
    the same release comes out bit for bit wherever it is computed again. Without one noise is fresh, and digests of the
    data are made with a key that the ledger itself holds; keep the ledger as you keep the data.

    Args:
        url: The path of an SQLite file, or a ``postgresql://`` URL.
        key: The curator's key or the path of its file. By default what the environment variables ``OPTSTREAM_KEY`` or
            ``OPTSTREAM_KEY_FILE`` say, if anything. A file may hold former keys too: see :func:`rotate_key`.
        former_keys: Keys that the ledger was used with before, the newest first, if the file does not hold them.
        create: Whether to make a ledger where there is none, and streams that it does not know when they are released.
            Without it what is missing is an error: a wrong path or name would otherwise be a fresh budget.
        expect: The :attr:`identity` that the ledger must have, if given.
        witness: The path or URL of a witness on another disk or in another database, which is advanced before a release
            is returned. A ledger that is behind it, because it was restored from an older copy, is refused. Made, or
            told of this ledger, if ``create`` is true.
        timeout: Seconds to wait for another process.

    Raises:
        LedgerError: There is none, it is damaged, of a later version, or something else.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> import optstream as ops
        >>> mechanism = ops.OptStream(ops.Guarantee(epsilon=1, w=4), sample=ops.EqualSampling(k=4), bounds=(0, 100))
        >>> with tempfile.TemporaryDirectory() as folder, Ledger(f"{folder}/ledger.db", create=True) as ledger:
        ...     first = ledger.release(mechanism, np.full(4, 50.0), stream="visits", period=0)
        ...     again = ledger.release(mechanism, np.full(4, 50.0), stream="visits", period=0)
        >>> bool((first.values == again.values).all())
        True
    """

    def __init__(
        self,
        url: str | Path,
        *,
        key: CuratorKey | str | Path | None = None,
        former_keys: Sequence[CuratorKey] = (),
        create: bool = False,
        expect: str | None = None,
        witness: str | Path | None = None,
        timeout: float = 30.0,
    ) -> None:
        curators = (*find_keys(key), *former_keys)
        self._witness: Witness | None = None
        self._create = create
        self._declared: set[str] = set()
        self._database = _open(url, create=create, timeout=timeout)
        try:
            about = open_tables(self._database, create=create)
            self._check(about, expect)
            self._identity = about.identity
            self._seals = Seals(about.digest_key, curators)
            self._log = Log(self._database, self._seals)
            self._plans = Plans(self._database)
            self._pools = Pools(self._log, self._plans)
            self._charges = Charges(self._log, self._plans, self._pools)
            self._memories = Memories(self._database, self._seals, self._plans.mechanism)
            digester = self._seals.curator or CuratorKey(about.digest_key)
            self._protocol = Protocol(self._log, self._plans, self._charges, self._memories, digester)
            self._steps = StepProtocol(self._log, self._plans, self._charges, self._memories, self._protocol, digester)
            self._bulk = Bulk(self._log, self._plans, self._pools, self._charges, self._memories, self._protocol)
            if witness is not None:
                self._witness = Witness(_open(witness, create=create, timeout=timeout), about.identity, create=create)
                with self._database.transaction(write=False) as reading:
                    self._witness.check(reading, self._database.location)
        except BaseException:
            self.close()
            raise
        LOG.debug("opened the ledger %s", self._identity)

    def _check(self, about: About, expect: str | None) -> None:
        """Raise unless a ledger is one that may be used, and the one that is meant."""
        if about.backup:
            raise LedgerError(
                f"ledger {self._database.location} is a backup of {about.backup}, but must be restored to be used: "
                "`optstream ledger restore`"
            )
        if expect is not None and expect != about.identity:
            raise LedgerError(
                f"ledger {self._database.location} has the identity {about.identity}, but {expect!r} is expected: it "
                "is another ledger"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Ledger({self._database.location!r})"

    def close(self) -> None:
        """Close the connections. Nothing is pending: every transaction is durable when it ends."""
        self._database.close()
        if self._witness is not None:
            self._witness.close()

    # What users ask for.

    def release(
        self,
        mechanism: Mechanism,
        x: Any,
        *,
        stream: str,
        period: int = 0,
        held: Mapping[int, int] | None = None,
        state: Mapping[str, Any] | None = None,
        create: bool | None = None,
    ) -> Any:
        """Release consecutive periods of a stream, or return what is stored of them.

        Args:
            mechanism: How to release.
            x: The data of whole periods, as :meth:`OptStream.release` takes it.
            stream: The name of the stream.
            period: The number of the first period.
            held: Steps that repeat an earlier one of the same period, with that one; the charge then covers both.
            state: What an :class:`Estimate` knows before the first period of the stream, from public history:
                :attr:`Tuning.state`. What it learns later is kept in the ledger.
            create: Whether a stream that does not exist is made, with the guarantee of the mechanism as its policy; by
                default as the ledger was opened.

        Raises:
            UnknownStreamError: There is no such stream, and none may be made: a new name is a new budget.
            BudgetError: Some window would cost more than the policy allows. Nothing was charged.
            ConflictError: A period was released from other data or with another plan. Nothing was charged.
            LedgerError: The ledger failed. What was charged stays charged, and is not charged again by a retry.
            SolverError: Post-processing failed after noise was drawn. The period is void: charged and never released.
        """
        mechanism = _periodic(mechanism)
        _check_held(held, mechanism.guarantee.w)
        periods = mechanism.read(x)
        known = None if state is None else public_memory(state, mechanism)
        released = self.release_parts(
            mechanism, periods.units, stream=stream, period=period, held=held, memory=known, create=create
        )
        made = mechanism.assemble(
            [one.parts for one in released], periods.restore, [one.priced.mechanism for one in released]
        )
        epsilon = max(one.priced.epsilon for one in released)
        return replace(made, statement=self._stated(mechanism.statement, epsilon, checked_name(stream), len(released)))

    def release_parts(
        self,
        mechanism: OptStream,
        units: NDArray[np.int64],
        *,
        stream: str,
        period: int,
        held: Mapping[int, int] | None = None,
        memory: Mapping[str, Any] | None = None,
        finish: Callable[[Transaction], None] | None = None,
        create: bool | None = None,
    ) -> list[Drawn]:
        """Release periods that are integers of the grid; return each with what released it and its worst window.

        Args:
            mechanism: How to release.
            units: The data, as :meth:`OptStream.read` gives it.
            stream: The name of the stream.
            period: The number of the first period.
            held: Steps that repeat an earlier one.
            memory: What is known before the first period of the stream.
            finish: Part of the transaction that stores the last period.
            create: Whether a stream that does not exist is made.
        """
        stream = checked_name(stream)
        _check_period(period, len(units))
        if held:
            # What a held step costs lies on the step that it repeats, so it must not say anything of its own.
            units = units.copy()
            for step, source in held.items():
                units[..., step] = units[..., source]
        if stream not in self._declared and self._may(create):
            self._protocol.enrol(stream, PricedPlan.of(mechanism), create=True)
        self._declared.add(stream)
        try:
            released = self._released(mechanism, units, stream, period, held, memory, finish)
            self._witnessed(stream)
        except StaleError:
            # The caller looks again.
            raise
        except Exception as error:
            # What it says may name what the caller should see alone.
            LOG.warning("%s: nothing is returned for period %d of %r", type(error).__name__, period, stream)
            raise
        for number in range(period, period + len(released)):
            LOG.info("released period %d of %r", number, stream)
        return released

    def _released(  # noqa: PLR0917
        self,
        mechanism: OptStream,
        units: NDArray[np.int64],
        stream: str,
        period: int,
        held: Mapping[int, int] | None,
        memory: Mapping[str, Any] | None,
        finish: Callable[[Transaction], None] | None,
    ) -> list[Drawn]:
        if mechanism.estimator is None:
            priced = self._next(mechanism, stream, period, held, None)
            parts = self._protocol.release(
                PricedPlan.holding(priced.mechanism, held), units, stream=stream, period=period, finish=finish
            )
            price = self._charges.price(stream, period, period + len(units) - 1)
            priced = replace(priced, epsilon=max(price, priced.mechanism.steady_epsilon))
            return [Drawn(priced, part) for part in parts]
        released = []
        for number, rows in enumerate(units, period):
            before = self._memories.before(stream, number, mechanism, memory)
            priced = self._next(mechanism, stream, number, held, before)
            last = number == period + len(units) - 1
            (part,) = self._protocol.release(
                PricedPlan.holding(priced.mechanism, held),
                rows[None],
                stream=stream,
                period=number,
                finish=finish if last else None,
                memory=before,
            )
            self._memories.give_back(stream, before, number, part)
            price = self._charges.price(stream, number, number)
            released.append(Drawn(replace(priced, epsilon=max(price, priced.mechanism.steady_epsilon)), part))
        return released

    def _next(
        self, mechanism: OptStream, stream: str, period: int, held: Mapping[int, int] | None, memory: Memory | None
    ) -> Priced[OptStream]:
        """Return the mechanism of a period, with the budget that holes and a plan that changes by itself leave.

        What a user changes is not adjusted: the policy allows it or refuses it.
        """
        if not held and not mechanism.retune:
            return Priced(mechanism, mechanism.costs, mechanism.steady_epsilon)
        self._protocol.enrol(stream, PricedPlan.of(mechanism), create=False)
        return price_next(mechanism, State(period - 1, self._costs_of(stream, period - 1), memory), period, held)

    def _costs_of(self, stream: str, period: int) -> tuple[Cost, ...]:
        """Return what a period was charged."""
        state = self._log.look(stream, period, period).states.get(period) if period >= 0 else None
        return self._plans.costs(state.plan) if state is not None and state.plan else ()

    def charge_many(
        self,
        mechanism: Mechanism,
        digests: Mapping[str, Mapping[int, bytes]],
        *,
        final: bool = False,
        create: bool | None = None,
    ) -> int:
        """Charge periods of many streams in one transaction, all or nothing; return how many were not charged before.

        For values that leave in another way than by this ledger, such as those of a cluster, a charge must be *final*:
        nothing replaces it, neither other data nor another plan. The values are then a function of the curator's key,
        the stream, the period, the plan and the data, so a final charge needs the key.

        Args:
            mechanism: How the periods are released.
            digests: For every stream and period the digest of its data: :func:`data_digest`, or :meth:`digests`.
            final: Whether nothing may ever replace the charges.
            create: Whether streams that do not exist are made, with the guarantee of the mechanism as their policy; by
                default as the ledger was opened.

        Raises:
            BudgetError: Some window would cost more than its policy allows. Nothing was charged.
            ConflictError: A period was charged for good or released from other data or with another plan.
        """
        mechanism = _periodic(mechanism)
        if final and self._seals.curator is None:
            raise ParameterError("final is True, but must be False without a curator's key: values would not repeat")
        named = {}
        _check_mapping("digests", digests)
        for stream, own in digests.items():
            _check_mapping("digests of a stream", own)
            for period, digest in own.items():
                _check_period(period, 1)
                if not isinstance(digest, bytes) or len(digest) != DIGEST:
                    raise ParameterError(f"the digest of period {period} is no {DIGEST} bytes, but must be")
            if own:
                named[checked_name(stream)] = dict(sorted(own.items()))
        if not named:
            return 0
        _check_one_name(named, digests)
        _, charged = self._bulk.charge(PricedPlan.of(mechanism), named, final=final, create=self._may(create))
        for stream in named:
            self._witnessed(stream, read=True)
        return charged

    def digests(self, mechanism: Mechanism, x: Any, *, stream: str, period: int = 0) -> dict[int, bytes]:
        """Return the keyed digests of the data of consecutive periods, as :meth:`charge_many` takes them."""
        mechanism = _periodic(mechanism)
        units = mechanism.read(x).units
        _check_period(period, len(units))
        return self._protocol.digests(checked_name(stream), period, units)

    def release_many(
        self,
        mechanism: Mechanism,
        data: Mapping[str, Any],
        *,
        period: int | Mapping[str, int] = 0,
        create: bool | None = None,
    ) -> dict[str, Any]:
        """Release consecutive periods of many streams: charged in one transaction, stored in another, all or nothing.

        Should a draw fail, it is told: its period is void, or final with a key, and those that were drawn before it are
        stored.

        Args:
            mechanism: How to release; one that does not change its plan by itself.
            data: For every stream the data of whole periods, as :meth:`OptStream.release` takes it.
            period: The number of the first period, of all streams or of each.
            create: Whether streams that do not exist are made, with the guarantee of the mechanism as their policy; by
                default as the ledger was opened.

        Raises:
            BudgetError: Some window would cost more than its policy allows. Nothing was charged.
            ConflictError: A period was released from other data or with another plan. Nothing was charged.
        """
        mechanism = _periodic(mechanism)
        if mechanism.retune:
            raise ParameterError("mechanism has a plan that changes by itself, but must have a fixed one in bulk")
        read, units = {}, {}
        _check_mapping("data", data)
        for given, x in data.items():
            stream = checked_name(given)
            read[stream] = mechanism.read(x)
            first = period.get(given, 0) if isinstance(period, Mapping) else period
            _check_period(first, len(read[stream].units))
            units[stream] = first, read[stream].units
        if not units:
            return {}
        _check_one_name(units, data)
        parts = self._bulk.release(PricedPlan.of(mechanism), units, create=self._may(create))
        released = {}
        for given in data:
            stream = checked_name(given)
            rows = units[stream][1]
            made = mechanism.assemble(parts[stream][0], read[stream].restore, [mechanism] * len(rows))
            epsilon = max(parts[stream][1], mechanism.steady_epsilon)
            released[given] = replace(made, statement=self._stated(mechanism.statement, epsilon, stream, len(rows)))
            self._witnessed(stream)
        return released

    @property
    def identity(self) -> str:
        """What tells this ledger from every other: 32 hexadecimal digits, drawn when it was made."""
        return self._identity

    def check(self) -> None:
        """Raise unless the ledger answers, is still the one that was opened, and holds all that its witness knows.

        Raises:
            LedgerError: It does not answer, is another one, or has forgotten.
        """
        self._check(open_tables(self._database, create=False), self._identity)
        if self._witness is not None:
            with self._database.transaction(write=False) as reading:
                self._witness.check(reading, self._database.location)

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of all streams."""
        with self._database.transaction(write=False) as reading:
            return tuple(name for name in _names(reading) if not name.startswith(POOL))

    @property
    def pools(self) -> tuple[str, ...]:
        """The names of all pools."""
        with self._database.transaction(write=False) as reading:
            return tuple(name.removeprefix(POOL) for name in _names(reading) if name.startswith(POOL))

    def create_pool(self, name: str, guarantee: Guarantee, *, clock: str | None = None) -> Pool:
        """Make a pool: streams about the same people, which are held to one guarantee together.

        No window over all members ever costs more than the guarantee's epsilon. What an entity may change in one step
        is said by every member for itself.

        Args:
            name: The name of the pool, such as "riders".
            guarantee: What all members together are held to. Their periods may be of another length.
            clock: What the members count, such as "steps"; by default what the first one does.

        Raises:
            ParameterError: The pool exists.
        """
        chain = POOL + checked_name(name)
        clock = None if clock is None else checked_name(clock, "clock")
        if not isinstance(guarantee, Guarantee):
            raise ParameterTypeError(f"guarantee is of type {type(guarantee).__name__}, but must be Guarantee")
        with self._database.transaction() as change:
            if self._log.exists(change, chain):
                raise ParameterError(f"pool {name!r} exists, but must not")
            self._log.begin(change, chain, guarantee)
        if clock is not None:
            self._charges.change(chain, [-1], lambda _: ([Draft.saying("clock", clock.encode())], None), fresh=True)
        return self.pool(name)

    def pool(self, name: str) -> Pool:
        """Return a pool: its guarantee and its members."""
        view = self._log.look(POOL + checked_name(name), -1, -1)
        return Pool(checked_name(name), view.policy, tuple(sorted(view.members)), view.clock)

    def create_stream(
        self, name: str, guarantee: Guarantee, *, pool: str | None = None, clock: str | None = None
    ) -> None:
        """Make a stream, or make one that exists a member of a pool.

        A stream that is enrolled later brings all that it was charged before. Members never leave.

        Args:
            name: The name of the stream.
            guarantee: Its policy, which every window of it is held to, apart from the pool.
            pool: The pool that it is a member of, if any.
            clock: What it counts; by default "steps" for a member.

        Raises:
            BudgetError: With what the stream was charged before, a window of the pool would cost too much.
            ParameterError: The stream exists and is not to be enrolled, or does not go with the pool.
        """
        stream = checked_name(name)
        clock = None if clock is None else checked_name(clock, "clock")
        if not isinstance(guarantee, Guarantee):
            raise ParameterTypeError(f"guarantee is of type {type(guarantee).__name__}, but must be Guarantee")
        with self._database.transaction() as change:
            exists = self._log.exists(change, stream)
            if exists and pool is None:
                raise ParameterError(f"stream {stream!r} exists, but must not")
            if pool is not None and not self._log.exists(change, POOL + checked_name(pool)):
                raise unknown(POOL + checked_name(pool))
        Enrolment(self._log, self._plans, self._pools).enrol(
            stream, guarantee, None if pool is None else POOL + checked_name(pool), clock
        )

    def _may(self, create: bool | None) -> bool:  # noqa: FBT001
        """Whether streams that do not exist are made."""
        return self._create if create is None else create

    def head(self, stream: str) -> Head:
        """Return the last entry of a stream's log: who has noted it can tell whether a ledger has forgotten it."""
        stream = checked_name(stream)
        with self._database.transaction(write=False) as reading:
            number, hashed = self._log.head(reading, stream)
        return Head(self._identity, stream, number, hashed.hex())

    def policy(self, stream: str) -> Guarantee:
        """Return what every window of a stream is held to."""
        return self._log.look(checked_name(stream), -1, -1).policy

    def set_policy(self, stream: str, policy: Guarantee) -> None:
        """Hold every window of a stream to another epsilon from now on.

        What has been released stays released, so a smaller epsilon may leave windows that are over it; nothing more is
        released in them, also not for periods that are charged already. The length of the window and alpha are those
        with which the stream was made, and so are its entities, and the neighbours once anything is charged.
        """
        stream = checked_name(stream)
        if not isinstance(policy, Guarantee):
            raise ParameterTypeError(f"policy is of type {type(policy).__name__}, but must be Guarantee")
        if self._create:
            with self._database.transaction() as change:
                self._log.begin(change, stream, policy)
        self._hold_to(stream, policy)

    def set_pool_policy(self, pool: str, policy: Guarantee) -> None:
        """Hold every window over all members of a pool to another epsilon from now on.

        What is charged stays charged, so a smaller epsilon may leave windows that are over it; nothing more is charged
        in them.
        """
        if not isinstance(policy, Guarantee):
            raise ParameterTypeError(f"policy is of type {type(policy).__name__}, but must be Guarantee")
        self._hold_to(POOL + checked_name(pool), policy)

    def _hold_to(self, stream: str, policy: Guarantee) -> None:
        def decide(view: View) -> tuple[list[Draft], None]:
            now = view.policy
            if (now.w, now.alpha) != (policy.w, policy.alpha):
                raise ParameterError(
                    f"policy has w = {policy.w} and alpha = {policy.alpha}, but must have w = {now.w} and alpha = "
                    f"{now.alpha}, with which {stream!r} was made"
                )
            bound = view.states or view.shares or view.periods.stop <= LARGEST or view.members or view.pool is not None
            if now.neighbours != policy.neighbours and bound:
                raise ParameterError(
                    f"policy has neighbours = {policy.neighbours!r}, but must have {now.neighbours!r}, for which "
                    f"periods of {stream.removeprefix(POOL)!r} are charged or pooled"
                )
            check_entities("policy", policy, stream, now)
            if now.delta and not policy.delta:
                # What was charged may be private with a delta only.
                raise ParameterError(f"policy has delta = 0, but must have one, as it had {float(now.delta):g} before")
            self._log.check_key(view)
            return ([] if now == policy else [policy_draft(policy)]), None

        self._charges.change(stream, [-1], decide, fresh=True)
        LOG.info("the policy of %r is epsilon %s", stream, policy.epsilon)

    def remaining(self, stream: str) -> Remaining:
        """Return what is left of the budget in every window that some release meets."""
        with self._database.transaction(write=False) as reading:
            view = self._log.all(reading, checked_name(stream))
            pool = None if view.pool is None else self._log.all(reading, view.pool)
        shared = None if pool is None else Remaining(pool.policy, tuple(self._pools.left(pool)))
        return Remaining(view.policy, tuple(windows_left(view, self._plans)), shared)

    def pool_remaining(self, pool: str) -> Remaining:
        """Return what is left to all members of a pool together, in every window that some release meets."""
        view = self._all(POOL + checked_name(pool))
        return Remaining(view.policy, tuple(self._pools.left(view)))

    def backup(self, target: str | Path) -> None:
        """Write the ledger to a new file as it is at this moment, while others go on; SQLite only.

        The file is marked as a backup, and is opened by :func:`restore_ledger` alone. It is as secret as the ledger.
        """
        if not isinstance(target, (str, os.PathLike)):
            raise ParameterTypeError(f"target is of type {type(target).__name__}, but must be a path")
        self._database.backup(target)

    def rotate_key(self) -> int:
        """Go on with the newest key of the curator in all streams that were used with a former one; return how many.

        Former periods stay as they are, sealed with the former key, with which they can still be repeated. A ledger
        needs the former key for this, in the same file or as ``former_keys``.

        Raises:
            ParameterError: A stream was used with a key that is not among them.
        """
        if self._seals.curator is None:
            raise ParameterError("key is not given, but must be to rotate it")
        changed = 0
        for stream in self._chains():
            begun = self._log.look(stream, -1, -1).key_check
            if begun in {b"", self._seals.check}:
                continue
            if begun not in self._seals.keys:
                raise ParameterError(f"stream {stream!r} is sealed with a key that is not given, but must be")

            def decide(view: View) -> tuple[list[Draft], None]:
                turned = view.key_check == self._seals.check
                return ([] if turned else [Draft.saying("key", self._seals.check)]), None

            self._charges.change(stream, [-1], decide, fresh=True)
            changed += 1
        return changed

    def forget_since(self, last: int) -> None:
        """Note that the ledger was restored from an older copy, and what may have left since.

        Every period up to ``last`` that is neither released nor void in this copy is void from now on and charged in
        full: nothing more is released in any window that it meets.

        Args:
            last: The number of the last period, of any stream, that may have left.
        """
        _check_period(last, 2)
        longest = max((self.policy(stream).w for stream in self.streams), default=1)
        # On the clock of a pool: all steps of all periods that may have left.
        step = (last + 1) * longest - 1
        with self._database.transaction() as change:
            # What is made from now on may have been there too.
            self._log.forget(change, last, step)
        for pool in self.pools:
            self._charges.change(POOL + pool, [-1], lambda _: ([lost_draft(step)], None), fresh=True)
        for stream in self.streams:

            def decide(view: View, stream: str = stream) -> tuple[list[Draft], Callable[[Transaction], None] | None]:
                drafts = lost_drafts(view.policy, last, view.states.get(last + 1))
                return drafts, observations.forgetter(stream, 0, last + 1, view.policy.w)

            self._charges.change(stream, [last + 1], decide, fresh=True)

    def _chains(self) -> list[str]:
        """Return the names of all logs: of streams and of pools."""
        with self._database.transaction(write=False) as reading:
            return _names(reading)

    def window_price(self, stream: str, first: int, last: int) -> Fraction:
        """Return the worst cost of any window that meets the periods from ``first`` to ``last``, by all charges."""
        stream = checked_name(stream)
        _check_period(first, 1)
        _check_period(last, 1)
        if last < first:
            raise ParameterError(f"last is {last}, but must be at least first, which is {first}")
        return self._plans.prices(self._log.look(stream, first, last), first, last)

    def pool_price(self, pool: str, first: int, last: int) -> Fraction:
        """Return the worst cost of any window over all members of a pool that meets the steps ``first`` to ``last``."""
        chain = POOL + checked_name(pool)
        for name, step in (("first", first), ("last", last)):
            if isinstance(step, bool) or not isinstance(step, int):
                raise ParameterTypeError(f"{name} is of type {type(step).__name__}, but must be an int")
        if not 0 <= first <= last <= LARGEST:
            raise ParameterError(f"first and last are {first} and {last}, but must be from 0 to {LARGEST}, in order")
        return self._pools.worst(chain, first, last)

    def void(self, stream: str, period: int, why: str) -> None:
        """Let nothing be released for a period; what it was charged stays charged, and its observations are forgotten.

        Raises:
            ConflictError: The period is released.
        """
        stream = checked_name(stream)
        _check_period(period, 1)
        if not isinstance(why, str) or not why:
            raise ParameterError("why is empty or no text, but must say why nothing is released")
        self._charges.make_void(stream, period, why)
        LOG.warning("period %d of %r is void", period, stream)

    def history(self, stream: str) -> tuple[Entry, ...]:
        """Return every charged period of a stream, in order."""
        stream = checked_name(stream)
        view = self._all(stream)
        return tuple(self._entries(view))

    def releases(self, stream: str, first: int = 0, last: int = LARGEST) -> list[Any]:
        """Return the stored releases of the periods from ``first`` to ``last``, each as it was released."""
        for name, period in (("first", first), ("last", last)):
            if isinstance(period, bool) or not isinstance(period, int):
                raise ParameterTypeError(f"{name} is of type {type(period).__name__}, but must be an int")
        stream = checked_name(stream)
        first, last = min(max(first, 0), LARGEST), min(max(last, -1), LARGEST)
        with self._database.transaction(write=False) as reading:
            view = self._log.view(reading, stream, first, last)
            parts = stored(reading, self._seals, stream, first, last)
        if parts:
            self._witnessed(stream, read=True)
        releases = []
        for period, part in parts.items():
            made = self._plans.mechanism(view.states[period].plan)
            epsilon = max(self._plans.price(view, period), made.steady_epsilon)
            releases.append(made.assemble_period(part, period, None, self._stated(made.statement, epsilon, stream, 1)))
        return releases

    def stored(self, stream: str, period: int) -> Any:
        """Return the release of a period as it is stored, or None."""
        found = self.releases(stream, period, period)
        return found[0] if found else None

    def revised(self, mechanism: Mechanism, stream: str) -> dict[int, Any]:
        """Return all estimated periods of a stream in the light of each other, by their numbers.

        Later periods say more about earlier ones. This costs nothing: only what was released is looked at, and what was
        released stays as it is. For a hierarchy every period is an array for every node.

        Args:
            mechanism: A mechanism with an :class:`Estimate`, such as the one that released the periods.
            stream: The name of the stream.
        """
        stream = checked_name(stream)
        mechanism = _periodic(mechanism)
        memory = mechanism.remembered()
        numbers, understood = [], []
        for number in self._memories.replay(stream, LARGEST, memory):
            numbers.append(number)
            understood.append(memory.understood)
        if mechanism.estimator is None or not numbers:
            return {}
        self._witnessed(stream, read=True)
        rows = mechanism.estimator.revised(memory, understood)
        return {number: mechanism.assembler.named(row) for number, row in zip(numbers, rows, strict=True)}

    def report(self, path: str | Path, streams: Sequence[str] | None = None, **names: Any) -> None:
        """Write a page about some streams, or all, for people who do not know differential privacy."""
        from optstream.report import write_ledger  # noqa: PLC0415  (reports know ledgers)

        write_ledger(self, path, streams, **names)

    def plot(self, stream: str, path: str | Path | None = None) -> Any:
        """Return a figure of matplotlib with what every window of a stream has used; write it if a file is named."""
        from optstream.pictures import budget_picture  # noqa: PLC0415  (pictures know ledgers)

        return budget_picture(self, stream, path)

    def _repr_html_(self) -> str:
        from optstream.report import ledger_html  # noqa: PLC0415

        return ledger_html(self)

    def export(self, target: TextIO) -> int:
        """Write streams, plans and periods with their released values as lines of JSON; return their number.

        What is written may be published: it holds private values and public parameters, no digest of the data and no
        observation of an open period.
        """
        lines = 0
        for stream in self.streams:
            self._witnessed(stream, read=True)
        with self._database.transaction(write=False) as reading:
            for content in self._exported(reading):
                target.write(json.dumps(content) + "\n")
                lines += 1
        return lines

    def verify(self) -> Verification:
        """Look at every row: hashes, seals, plans, costs, released values, and every window against its policy.

        What is damaged is told, not raised.
        """
        problems: list[str] = []
        unchecked: list[str] = []
        charges = releases = 0
        streams: list[str] = []
        pools: list[str] = []
        try:
            problems += self._database.damage()
            with self._database.transaction(write=False) as reading:
                problems += self._plans.problems(reading)
                self._log.forgotten(reading)
                problems += [
                    f"{count} rows of {table} belong to nothing"
                    for table, where in ORPHANS.items()
                    for (count,) in reading.rows(f"SELECT count(*) FROM {table} WHERE {where}")  # noqa: S608
                    if count
                ]
                chains = _names(reading)
                streams = [name for name in chains if not name.startswith(POOL)]
                shares: dict[str, dict[tuple[str, int], bytes]] = {name: {} for name in chains}
                for stream in streams:
                    view = self._verified(reading, stream, problems)
                    if view is None:
                        continue
                    charged = {(stream, period): one.plan for period, one in view.states.items() if one.plan}
                    if view.pool is not None:
                        shares.setdefault(view.pool, {}).update(charged)
                    charges += sum(1 for state in view.states.values() if state.number)
                    releases += sum(1 for state in view.states.values() if state.release)
                    if any(check and check not in self._seals.keys for _, check in view.keys):
                        unchecked.append(stream)
                pools = [name for name in chains if name.startswith(POOL)]
                for pool in pools:
                    self._verify_pool(reading, pool, shares[pool], problems)
        except DAMAGE as error:
            problems.append(_problem(error))
        return Verification(len(streams), charges, releases, tuple(problems), len(pools), tuple(unchecked))

    def _verify_pool(
        self, reading: Transaction, pool: str, charged: Mapping[tuple[str, int], bytes], problems: list[str]
    ) -> None:
        """Look at the log of a pool: it must hold what its members were charged, within its policy."""
        before, name = len(problems), pool.removeprefix(POOL)
        try:
            self._memories.check(reading, pool)
            problems += observations.problems(reading, self._seals, pool)
            view = self._log.all(reading, pool, problems.append)
            if {(share.stream, share.period): made for share, made in view.shares.items()} != charged:
                problems.append(f"the pool {name!r} does not hold what its members were charged")
            if len(problems) == before:
                problems += [
                    f"the window from step {window.first} over all members of {name!r} is {-window.epsilon} {OVER}"
                    for window in self._pools.left(view)
                    if window.epsilon < 0
                ][:1]
        except DAMAGE as error:
            problems.append(_problem(error))

    # What a stream keeps of its open period.

    @property
    def steps(self) -> StepProtocol:
        """What releases periods step by step; see :class:`Stream` with ``emit="step"``."""
        return self._steps

    def witnessed(self, stream: str) -> None:
        """Tell the witness how far a stream has come, before a step leaves, whoever has stored it."""
        self._witnessed(checked_name(stream), read=True)

    def enrol(self, stream: str, mechanism: Mechanism, clock: str = "steps", *, create: bool | None = None) -> None:
        """Write a stream, its plan and its clock down without charging anything.

        Raises:
            UnknownStreamError: There is no such stream, and none may be made.
            ParameterError: The stream has another clock, key, window, alpha or neighbours.
        """
        stream = checked_name(stream)
        self._protocol.enrol(stream, PricedPlan.of(mechanism), create=self._may(create))

        def decide(view: View) -> tuple[list[Draft], None]:
            if view.clock not in {None, clock}:
                raise ParameterError(f"stream {stream!r} counts {clock}, but was begun with {view.clock}")
            return ([] if view.clock else [Draft.saying("clock", clock.encode())]), None

        self._charges.change(stream, [-1], decide, fresh=True)

    def kept(self, stream: str) -> Kept:
        """Return the open period of a stream."""
        stream = checked_name(stream)
        with self._database.transaction(write=False) as reading:
            w = self._log.view(reading, stream, -1, -1).policy.w
            return observations.load(reading, self._seals, stream, w)

    def keep(self, stream: str, revision: int, forget: list[int], add: Mapping[int, NDArray[np.float64]]) -> None:
        """Change the open period of a stream, provided that its revision is the given one."""
        with self._database.transaction() as change:
            self.keeper(stream, revision, forget, add)(change)

    def keeper(
        self, stream: str, revision: int, forget: list[int], add: Mapping[int, NDArray[np.float64]]
    ) -> Callable[[Transaction], None]:
        """Return the same as part of a transaction."""
        stream = checked_name(stream)
        return lambda change: observations.keep(change, self._seals, stream, revision=revision, forget=forget, add=add)

    # Rows.

    def _witnessed(self, stream: str, *, read: bool = False) -> None:
        """Tell the witness how far a stream has come, before anything leaves.

        Args:
            stream: The name of the stream.
            read: Whether what leaves may be what another process has stored, which may have died before it came here.
        """
        if self._witness is None:
            return
        if stream not in self._log.durable or read:
            # What another process has stored leaves through this one too.
            with self._database.transaction(write=False) as reading:
                self._log.note_releases(reading, stream)
        head = self._log.durable.get(stream)
        if head is not None:
            reading_of = partial(self._database.transaction, write=False)
            self._witness.advance(stream, head, reading_of, self._database.location)

    def _stated(self, statement: Statement, epsilon: Fraction, stream: str, periods: int) -> Statement:
        """Return what a ledger states of periods: the worst window that meets them, by all that is charged."""
        count = "this period" if periods == 1 else f"these {periods} periods"
        scope = (
            f"Holds for every window that meets {count}, with all that was released before it of {stream!r} through "
            "the ledger."
        )
        chain = self._charges.pool_of(stream)
        if chain is not None:
            pool, name = self._pools.known(chain), chain.removeprefix(POOL)
            delta = f" with delta = {float(pool.policy.delta):g}" if pool.policy.delta else ""
            scope += (
                f" The pool {name!r}, {listed(sorted(pool.members))} together, costs at most epsilon = "
                f"{shown(pool.policy.epsilon)}{delta} in any window of {pool.policy.w} steps."
            )
        return replace(statement, epsilon=epsilon, scope=scope)

    def _all(self, stream: str) -> View:
        with self._database.transaction(write=False) as reading:
            return self._log.all(reading, stream)

    def _verified(self, reading: Transaction, stream: str, problems: list[str]) -> View | None:
        """Look at all that a ledger holds of a stream; add what is wrong to the problems."""
        before = len(problems)
        try:
            view = self._log.all(reading, stream, problems.append)
            for start in range(0, LARGEST, VERIFIED):
                if not any(period >= start for period in view.states):
                    break
                stored(reading, self._seals, stream, start, start + VERIFIED - 1)
                self._steps.stored_in(reading, stream, start, start + VERIFIED - 1)
            self._memories.check(reading, stream)
            self._steps.check(reading, stream)
            problems += observations.problems(reading, self._seals, stream)
            if len(problems) == before:
                problems += [
                    f"the window from step {window.first} of {stream!r} is {-window.epsilon} {OVER}"
                    for window in windows_left(view, self._plans)
                    if window.epsilon < 0
                ][:1]
        except DAMAGE as error:
            problems.append(_problem(error))
            return None
        return view

    def _entries(self, view: View) -> Iterator[Entry]:
        for period in sorted(view.states):
            state = view.states[period]
            if not state.number:
                continue
            yield Entry(
                stream=view.stream,
                period=period,
                plan=state.plan.hex(),
                epsilon=self._plans.worst(state.plan, view.policy),
                charged=datetime.fromisoformat(state.charged),
                released=None if state.released is None else datetime.fromisoformat(state.released),
                void="may have left before the ledger was restored" if view.is_lost(period) else state.void,
                pool=None if view.pool is None else view.pool.removeprefix(POOL),
            )

    def _exported(self, reading: Transaction) -> Iterator[dict[str, Any]]:
        for made, description in reading.rows("SELECT id, description FROM optstream_plans ORDER BY id"):
            yield {
                "plan": bytes(made).hex(),
                "description": json.loads(description),
                "statement": json.loads(self._plans.mechanism(bytes(made)).statement.to_json()),
            }
        for stream in _names(reading):
            view = self._log.all(reading, stream)
            policy = view.policy
            said = {
                "epsilon": str(policy.epsilon),
                "delta": str(policy.delta),
                "w": policy.w,
                "neighbours": policy.neighbours,
                "entities": policy.entities,
                "entity": policy.entity,
            }
            if stream.startswith(POOL):
                left = Remaining(policy, tuple(self._pools.left(view))).epsilon
                yield {"pool": stream.removeprefix(POOL), **said, "members": sorted(view.members), "left": str(left)}
                continue
            member = {} if view.pool is None else {"pool": view.pool.removeprefix(POOL)}
            yield {"stream": stream, **said, "alpha": policy.alpha, **member}
            for entry in self._entries(view):
                parts = stored(reading, self._seals, stream, entry.period, entry.period).get(entry.period)
                yield {
                    "stream": stream,
                    "period": entry.period,
                    "plan": entry.plan,
                    "epsilon": str(entry.epsilon),
                    "charged": entry.charged.isoformat(),
                    "released": entry.released and entry.released.isoformat(),
                    "void": entry.void,
                    "values": None if parts is None else parts.values.tolist(),
                    "cells": None if parts is None else parts.cells.tolist(),
                    "knots": None if parts is None else parts.knots.tolist(),
                }


def _names(reading: Transaction) -> list[str]:
    # Also streams that nobody has written down but that have entries: nothing may hide by a missing row.
    rows = reading.rows(
        "SELECT name FROM optstream_streams UNION SELECT stream FROM optstream_entries WHERE number = 1"
    )
    if not all(isinstance(name, str) for (name,) in rows):
        raise LedgerError("the name of a stream is no text: it was altered")
    return sorted(name for (name,) in rows)


def _open(url: str | Path, *, create: bool, timeout: float) -> Database[Any]:
    if not isinstance(url, (str, os.PathLike)):
        raise ParameterTypeError(f"url is of type {type(url).__name__}, but must be a path or a URL")
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise ParameterTypeError(f"timeout is of type {type(timeout).__name__}, but must be a real number")
    if not 0 <= timeout <= LONGEST:
        raise ParameterError(f"timeout is {timeout}, but must be from 0 to {LONGEST} seconds")
    if not str(url).startswith(("postgresql://", "postgres://")):
        return SQLite(url, create=create, timeout=timeout)
    try:
        from optstream.ledger.postgres import Postgres  # noqa: PLC0415
    except ImportError:
        raise LedgerError("ledger is in PostgreSQL, which needs psycopg: pip install 'optstream[postgres]'") from None
    return Postgres(str(url), timeout=timeout)


def _problem(error: Exception) -> str:
    """Return what is wrong with a row; what is not ours to say may quote it."""
    return str(error) if isinstance(error, OptStreamError) else f"a row cannot be read: {type(error).__name__}"


def _periodic(mechanism: Mechanism) -> OptStream:
    """Return a mechanism that releases whole periods, which only an OptStream does in a ledger."""
    check_mechanism(mechanism, "period")
    return cast("OptStream", mechanism)


def _check_mapping(name: str, given: Mapping[Any, Any]) -> None:
    if not isinstance(given, Mapping):
        raise ParameterTypeError(f"{name} is of type {type(given).__name__}, but must be a mapping")


def _check_one_name(named: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    if len(named) != len(given):
        raise ParameterError("two streams have one name: names that look alike are one")


def _check_held(held: Mapping[int, int] | None, w: int) -> None:
    """Refuse what is not a later step mapped to an earlier one: its cost would be charged where nothing is."""
    if held is None:
        return
    if not isinstance(held, Mapping):
        raise ParameterTypeError(f"held is of type {type(held).__name__}, but must be a mapping")
    for step, source in held.items():
        if not all(isinstance(number, int) and not isinstance(number, bool) for number in (step, source)):
            raise ParameterTypeError("held holds something else, but must map ints to ints")
        if not 0 <= source < step < w or source in held:
            raise ParameterError(
                f"held maps step {step} to {source}, but must map it to an earlier one of the {w} that is not held"
            )


def _check_period(period: int, count: int) -> None:
    if isinstance(period, bool) or not isinstance(period, int):
        raise ParameterTypeError(f"period is of type {type(period).__name__}, but must be an int")
    if not 0 <= period <= LARGEST - count:
        raise ParameterError(f"period is {period}, but must be from 0 to {LARGEST - count}")
