"""What users ask of a ledger: releases, policies, what is left, what happened, whether all is well."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from optstream.errors import LedgerError, ParameterError, ParameterTypeError
from optstream.keys import CuratorKey, find_key
from optstream.ledger import observations
from optstream.ledger.charges import Charges
from optstream.ledger.memories import Memories
from optstream.ledger.protocol import PricedPlan, Protocol
from optstream.ledger.records import Entry, Remaining, Verification
from optstream.ledger.review import plan_problems, windows_left
from optstream.ledger.rows import CHARGED, POLICY, Charge, policy_of, policy_row, stored
from optstream.ledger.schema import migrate
from optstream.ledger.sqlite import SQLite
from optstream.mechanism import plan
from optstream.mechanism.optstream import OptStream
from optstream.mechanism.state import public_memory
from optstream.privacy import accounting
from optstream.privacy.guarantee import Guarantee

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from fractions import Fraction
    from pathlib import Path
    from types import TracebackType
    from typing import TextIO

    import numpy as np
    from numpy.typing import NDArray

    from optstream.ledger.database import Database, Transaction
    from optstream.ledger.observations import Kept
    from optstream.mechanism.release import Parts

__all__ = ["Ledger"]

LARGEST = 2**40
"""Periods are numbered below this, so that steps and costs stay far from the limits of any database."""
LONGEST = 10**6
"""The most seconds to wait for another process."""


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
            ``OPTSTREAM_KEY_FILE`` say, if anything.
        create: Whether to make a ledger where there is none.
        timeout: Seconds to wait for another process.

    Raises:
        LedgerError: There is none, it is damaged, of a later version, or something else.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> import optstream as ops
        >>> mechanism = ops.OptStream(ops.Guarantee(epsilon=1, w=4), sample=ops.EqualSampling(k=4), bounds=(0, 100))
        >>> with tempfile.TemporaryDirectory() as folder, Ledger(f"{folder}/ledger.db") as ledger:
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
        create: bool = True,
        timeout: float = 30.0,
    ) -> None:
        curator = find_key(key)
        self._database = _open(url, create=create, timeout=timeout)
        own = CuratorKey(migrate(self._database, create=create))
        self._charges = Charges(self._database)
        self._mechanisms: dict[bytes, OptStream] = {}
        self._memories = Memories(self._database, self._mechanism)
        self._protocol = Protocol(self._database, self._charges, curator, curator or own)

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

    # What users ask for.

    def release(
        self,
        mechanism: OptStream,
        x: Any,
        *,
        stream: str,
        period: int = 0,
        held: Mapping[int, int] | None = None,
        state: Mapping[str, Any] | None = None,
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

        Raises:
            BudgetError: Some window would cost more than the policy allows. Nothing was charged.
            ConflictError: A period was released from other data or with another plan. Nothing was charged.
            LedgerError: The ledger failed. What was charged stays charged, and is not charged again by a retry.
            SolverError: Post-processing failed after noise was drawn. The period is void: charged and never released.
        """
        if not isinstance(mechanism, OptStream):
            raise ParameterTypeError(f"mechanism is of type {type(mechanism).__name__}, but must be OptStream")
        _check_held(held, mechanism.guarantee.w)
        periods = mechanism.read(x)
        known = None if state is None else public_memory(state, mechanism)
        released = self.release_parts(mechanism, periods.units, stream=stream, period=period, held=held, memory=known)
        return mechanism.assemble([parts for _, parts in released], periods.restore)

    def release_parts(
        self,
        mechanism: OptStream,
        units: NDArray[np.int64],
        *,
        stream: str,
        period: int,
        held: Mapping[int, int] | None = None,
        memory: Mapping[str, Any] | None = None,
        adjust: Callable[[OptStream], OptStream] | None = None,
        finish: Callable[[Transaction], None] | None = None,
    ) -> list[tuple[OptStream, Parts]]:
        """Release periods that are integers of the grid; return each with the mechanism that it was released by.

        Args:
            mechanism: How to release.
            units: The data, as :meth:`OptStream.read` gives it.
            stream: The name of the stream.
            period: The number of the first period.
            held: Steps that repeat an earlier one.
            memory: What is known before the first period of the stream.
            adjust: Gives the mechanism of a period another budget, if need be.
            finish: Part of the transaction that stores the last period.
        """
        _check_stream(stream)
        _check_period(period, len(units))
        adjust = adjust or (lambda made: made)
        if mechanism.estimator is None:
            made = adjust(mechanism)
            parts = self._protocol.release(
                PricedPlan.of(made, held), units, stream=stream, period=period, finish=finish
            )
            return [(made, part) for part in parts]
        released = []
        for number, rows in enumerate(units, period):
            before = self._memories.before(stream, number, mechanism, memory)
            made = adjust(mechanism.following(before))
            last = number == period + len(units) - 1
            (part,) = self._protocol.release(
                PricedPlan.of(made, held),
                rows[None],
                stream=stream,
                period=number,
                finish=finish if last else None,
                memory=before,
            )
            self._memories.give_back(stream, before, number, part)
            released.append((made, part))
        return released

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of all streams."""
        with self._database.transaction(write=False) as reading:
            return tuple(name for (name,) in reading.rows("SELECT name FROM optstream_streams ORDER BY name"))

    def policy(self, stream: str) -> Guarantee:
        """Return what every window of a stream is held to."""
        with self._database.transaction(write=False) as reading:
            return self._policy(reading, stream)

    def set_policy(self, stream: str, policy: Guarantee) -> None:
        """Hold every window of a stream to another epsilon from now on, or make a stream.

        What has been released stays released, so a smaller epsilon may leave windows that are over it; nothing more is
        released in them. The length of the window and alpha are those with which the stream was made.
        """
        _check_stream(stream)
        if not isinstance(policy, Guarantee):
            raise ParameterTypeError(f"policy is of type {type(policy).__name__}, but must be Guarantee")
        epsilon, w, alpha, neighbours = policy_row(policy)
        with self._database.transaction() as change:
            self._protocol.add_stream(change, stream, policy)
            now = self._policy(change, stream)
            if (now.w, now.alpha) != (policy.w, policy.alpha):
                raise ParameterError(
                    f"policy has w = {w} and alpha = {alpha}, but must have w = {now.w} and alpha = {now.alpha}, with "
                    f"which {stream!r} was made"
                )
            change.write(
                "UPDATE optstream_streams SET epsilon = ?, neighbours = ? WHERE name = ?", (epsilon, neighbours, stream)
            )

    def remaining(self, stream: str) -> Remaining:
        """Return what is left of the budget in every window that some release meets."""
        with self._database.transaction(write=False) as reading:
            policy = self._policy(reading, stream)
            rows = reading.rows(
                "SELECT period, plan FROM optstream_charges WHERE stream = ? ORDER BY period", (stream,)
            )
        costs = {digest: self._charges.costs_of(digest) for digest in {bytes(digest) for _, digest in rows}}
        windows = windows_left(policy, [(period, costs[bytes(digest)]) for period, digest in rows])
        return Remaining(policy, tuple(windows))

    def history(self, stream: str) -> tuple[Entry, ...]:
        """Return every charged period of a stream, in order."""
        with self._database.transaction(write=False) as reading:
            policy = self._policy(reading, stream)
            return tuple(self._entries(reading, stream, policy))

    def releases(self, stream: str, first: int = 0, last: int = LARGEST) -> list[Any]:
        """Return the stored releases of the periods from ``first`` to ``last``, each as it was released."""
        for name, period in (("first", first), ("last", last)):
            if isinstance(period, bool) or not isinstance(period, int):
                raise ParameterTypeError(f"{name} is of type {type(period).__name__}, but must be an int")
        first, last = min(max(first, 0), LARGEST), min(max(last, -1), LARGEST)
        with self._database.transaction(write=False) as reading:
            self._policy(reading, stream)
            parts = stored(reading, stream, first, last)
            plans = {charge.period: charge.plan for charge in self._charged(reading, stream, first, last)}
            mechanisms = {digest: self._mechanism(reading, digest) for digest in {plans[period] for period in parts}}
        return [mechanisms[plans[period]].assemble_period(part, period) for period, part in parts.items()]

    def stored(self, stream: str, period: int) -> Any:
        """Return the release of a period as it is stored, or None."""
        found = self.releases(stream, period, period)
        return found[0] if found else None

    def revised(self, mechanism: OptStream, stream: str) -> dict[int, Any]:
        """Return all estimated periods of a stream in the light of each other, by their numbers.

        Later periods say more about earlier ones. This costs nothing: only what was released is looked at, and what was
        released stays as it is. For a hierarchy every period is an array for every node.

        Args:
            mechanism: A mechanism with an :class:`Estimate`, such as the one that released the periods.
            stream: The name of the stream.
        """
        _check_stream(stream)
        if not isinstance(mechanism, OptStream):
            raise ParameterTypeError(f"mechanism is of type {type(mechanism).__name__}, but must be OptStream")
        memory = mechanism.remembered()
        numbers, understood = [], []
        for number in self._memories.replay(stream, LARGEST, memory):
            numbers.append(number)
            understood.append(memory.understood)
        if mechanism.estimator is None or not numbers:
            return {}
        rows = mechanism.estimator.revised(memory, understood)
        return {number: mechanism.named(row) for number, row in zip(numbers, rows, strict=True)}

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
        with self._database.transaction(write=False) as reading:
            for content in self._exported(reading):
                target.write(json.dumps(content) + "\n")
                lines += 1
        return lines

    def verify(self) -> Verification:
        """Look at every row: seals, plans, costs, released values, and every window against its policy."""
        problems = self._database.damage()
        charges = releases = 0
        with self._database.transaction(write=False) as reading:
            plans = reading.rows("SELECT digest, description, costs FROM optstream_plans")
            for digest, description, costs in plans:
                problems += plan_problems(bytes(digest), description, costs)
            streams = [name for (name,) in reading.rows("SELECT name FROM optstream_streams ORDER BY name")]
            for stream in streams:
                rows = self._charged(reading, stream, 0, LARGEST)
                charges += len(rows)
                broken = [row.period for row in rows if not row.sealed(stream)]
                problems += [f"the charge of period {period} of {stream!r} was altered" for period in broken]
                try:
                    releases += len(stored(reading, stream, 0, LARGEST))
                    self._memories.check(reading, stream)
                except LedgerError as error:
                    problems.append(str(error))
        for stream in [] if problems else streams:
            left = self.remaining(stream)
            if left.epsilon < 0:
                over = next(window for window in left.windows if window.epsilon < 0)
                problems.append(f"the window from step {over.first} of {stream!r} is {-over.epsilon} over its policy")
        return Verification(len(streams), charges, releases, tuple(problems))

    # What a stream keeps of its open period.

    def enrol(self, stream: str, mechanism: OptStream, clock: str = "steps") -> None:
        """Write a stream, its plan and its clock down without charging anything."""
        _check_stream(stream)
        self._protocol.enrol(stream, PricedPlan.of(mechanism))
        with self._database.transaction() as change:
            observations.set_clock(change, stream, clock)

    def kept(self, stream: str) -> Kept:
        """Return the open period of a stream."""
        with self._database.transaction(write=False) as reading:
            return observations.load(reading, stream, self._policy(reading, stream).w)

    def keep(self, stream: str, revision: int, forget: list[int], add: Mapping[int, NDArray[np.float64]]) -> None:
        """Change the open period of a stream, provided that its revision is the given one."""
        with self._database.transaction() as change:
            observations.keep(change, stream, revision=revision, forget=forget, add=add)

    def keeper(
        self, stream: str, revision: int, forget: list[int], add: Mapping[int, NDArray[np.float64]]
    ) -> Callable[[Transaction], None]:
        """Return the same as part of a transaction."""
        return lambda change: observations.keep(change, stream, revision=revision, forget=forget, add=add)

    # Rows.

    def _policy(self, reading: Transaction, stream: str) -> Guarantee:
        _check_stream(stream)
        return policy_of(stream, reading.rows(POLICY, (stream,)))

    def _mechanism(self, reading: Transaction, digest: bytes) -> OptStream:
        """Return the mechanism of a plan."""
        if digest not in self._mechanisms:
            ((text,),) = reading.rows("SELECT description FROM optstream_plans WHERE digest = ?", (digest,))
            content = json.loads(text)
            content.pop("held", None)
            self._mechanisms[digest] = plan.build(content)
        return self._mechanisms[digest]

    def _charged(self, reading: Transaction, stream: str, first: int, last: int) -> list[Charge]:
        return [Charge.of(row) for row in reading.rows(CHARGED, (stream, first, last))]

    def _entries(self, reading: Transaction, stream: str, policy: Guarantee) -> Iterator[Entry]:
        epsilon: dict[bytes, Fraction] = {}
        rows = reading.rows(
            "SELECT c.period, c.plan, c.charged, c.void, r.released FROM optstream_charges c"
            " LEFT JOIN optstream_releases r ON r.stream = c.stream AND r.period = c.period"
            " WHERE c.stream = ? ORDER BY c.period",
            (stream,),
        )
        for period, stored_digest, charged, void, released in rows:
            digest = bytes(stored_digest)
            if digest not in epsilon:
                epsilon[digest] = accounting.worst_window(self._charges.costs_of(digest), policy.w)
            yield Entry(
                stream=stream,
                period=period,
                plan=digest.hex(),
                epsilon=epsilon[digest],
                charged=datetime.fromisoformat(charged),
                released=None if released is None else datetime.fromisoformat(released),
                void=void,
            )

    def _exported(self, reading: Transaction) -> Iterator[dict[str, Any]]:
        for digest, description, statement in reading.rows(
            "SELECT digest, description, statement FROM optstream_plans ORDER BY digest"
        ):
            yield {
                "plan": bytes(digest).hex(),
                "description": json.loads(description),
                "statement": json.loads(statement),
            }
        streams = [name for (name,) in reading.rows("SELECT name FROM optstream_streams ORDER BY name")]
        for stream in streams:
            policy = self._policy(reading, stream)
            yield {
                "stream": stream,
                "epsilon": str(policy.epsilon),
                "w": policy.w,
                "alpha": policy.alpha,
                "neighbours": policy.neighbours,
            }
            for entry in self._entries(reading, stream, policy):
                parts = stored(reading, stream, entry.period, entry.period).get(entry.period)
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


def _check_stream(stream: str) -> None:
    if not isinstance(stream, str):
        raise ParameterTypeError(f"stream is of type {type(stream).__name__}, but must be str")
    if not 1 <= len(stream) <= 200 or not stream.isprintable():  # noqa: PLR2004
        raise ParameterError(f"stream is {stream[:200]!r}, but must be a name of 1 to 200 printable characters")


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
