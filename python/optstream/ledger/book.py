"""What users ask of a ledger: releases, policies, what is left, what happened, whether all is well."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Self
from unicodedata import normalize

from optstream.errors import LedgerError, ParameterError, ParameterTypeError
from optstream.keys import CuratorKey, find_key
from optstream.ledger import observations
from optstream.ledger.charges import Charges
from optstream.ledger.entries import Draft, Seals
from optstream.ledger.log import LARGEST, Log, View, policy_draft
from optstream.ledger.memories import Memories
from optstream.ledger.plans import Plans, PricedPlan
from optstream.ledger.protocol import Protocol
from optstream.ledger.records import Entry, Head, Remaining, Verification
from optstream.ledger.releases import stored
from optstream.ledger.review import windows_left
from optstream.ledger.schema import About, open_tables
from optstream.ledger.sqlite import SQLite
from optstream.ledger.steps import StepProtocol
from optstream.ledger.witness import Witness
from optstream.mechanism.loop import Drawn, Priced, price_next
from optstream.mechanism.optstream import OptStream
from optstream.mechanism.state import State, public_memory
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
    from optstream.privacy.accounting import Cost
    from optstream.privacy.statement import Statement

__all__ = ["Ledger"]

LONGEST = 10**6
"""The most seconds to wait for another process."""
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
            ``OPTSTREAM_KEY_FILE`` say, if anything.
        create: Whether to make a ledger where there is none. Without it a missing one is an error: a wrong path would
            otherwise be a fresh budget.
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
        create: bool = False,
        expect: str | None = None,
        witness: str | Path | None = None,
        timeout: float = 30.0,
    ) -> None:
        curator = find_key(key)
        self._witness: Witness | None = None
        self._database = _open(url, create=create, timeout=timeout)
        try:
            about = open_tables(self._database, create=create)
            self._check(about, expect)
            self._identity = about.identity
            self._seals = Seals(about.digest_key, curator)
            self._log = Log(self._database, self._seals)
            self._plans = Plans(self._database)
            self._charges = Charges(self._log, self._plans)
            self._memories = Memories(self._database, self._seals, self._plans.mechanism)
            digester = curator or CuratorKey(about.digest_key)
            self._protocol = Protocol(self._log, self._plans, self._charges, self._memories, digester)
            self._steps = StepProtocol(self._log, self._plans, self._charges, self._memories, self._protocol, digester)
            if witness is not None:
                self._witness = Witness(_open(witness, create=create, timeout=timeout), about.identity, create=create)
                with self._database.transaction(write=False) as reading:
                    self._witness.check(reading, self._database.location)
        except BaseException:
            self.close()
            raise

    def _check(self, about: About, expect: str | None) -> None:
        """Raise unless a ledger is one that may be used, and the one that is meant."""
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
        made = mechanism.assemble(
            [one.parts for one in released], periods.restore, [one.priced.mechanism for one in released]
        )
        epsilon = max(one.priced.epsilon for one in released)
        return replace(made, statement=_stated(mechanism.statement, epsilon, stream, len(released)))

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
        """
        stream = _name(stream)
        _check_period(period, len(units))
        released = self._released(mechanism, units, stream, period, held, memory, finish)
        self._witnessed(stream)
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
                PricedPlan.of(priced.mechanism, held), units, stream=stream, period=period, finish=finish
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
                PricedPlan.of(priced.mechanism, held),
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
    ) -> Priced:
        """Return the mechanism of a period, with the budget that holes and a plan that changes by itself leave.

        What a user changes is not adjusted: the policy allows it or refuses it.
        """
        if not held and not mechanism.retune:
            return Priced(mechanism, mechanism.costs, mechanism.steady_epsilon)
        self._protocol.enrol(stream, PricedPlan.of(mechanism))
        return price_next(mechanism, State(period - 1, self._costs_of(stream, period - 1), memory), period, held)

    def _costs_of(self, stream: str, period: int) -> tuple[Cost, ...]:
        """Return what a period was charged."""
        state = self._log.look(stream, period, period).states.get(period) if period >= 0 else None
        return self._plans.costs(state.plan) if state is not None and state.plan else ()

    @property
    def identity(self) -> str:
        """What tells this ledger from every other: 32 hexadecimal digits, drawn when it was made."""
        return self._identity

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of all streams."""
        with self._database.transaction(write=False) as reading:
            return tuple(_names(reading))

    def head(self, stream: str) -> Head:
        """Return the last entry of a stream's log: who has noted it can tell whether a ledger has forgotten it."""
        stream = _name(stream)
        with self._database.transaction(write=False) as reading:
            number, hashed = self._log.head(reading, stream)
        return Head(self._identity, stream, number, hashed.hex())

    def policy(self, stream: str) -> Guarantee:
        """Return what every window of a stream is held to."""
        return self._log.look(_name(stream), -1, -1).policy

    def set_policy(self, stream: str, policy: Guarantee) -> None:
        """Hold every window of a stream to another epsilon from now on, or make a stream.

        What has been released stays released, so a smaller epsilon may leave windows that are over it; nothing more is
        released in them, also not for periods that are charged already. The length of the window and alpha are those
        with which the stream was made, and so are the neighbours once anything is charged.
        """
        stream = _name(stream)
        if not isinstance(policy, Guarantee):
            raise ParameterTypeError(f"policy is of type {type(policy).__name__}, but must be Guarantee")
        with self._database.transaction() as change:
            self._log.begin(change, stream, policy)

        def decide(view: View) -> tuple[list[Draft], None]:
            now = view.policy
            if (now.w, now.alpha) != (policy.w, policy.alpha):
                raise ParameterError(
                    f"policy has w = {policy.w} and alpha = {policy.alpha}, but must have w = {now.w} and alpha = "
                    f"{now.alpha}, with which {stream!r} was made"
                )
            if now.neighbours != policy.neighbours and (view.states or view.periods.stop <= LARGEST):
                raise ParameterError(
                    f"policy has neighbours = {policy.neighbours!r}, but must have {now.neighbours!r}, for which "
                    f"periods of {stream!r} are charged"
                )
            self._log.check_key(view)
            return ([] if now == policy else [policy_draft(policy)]), None

        self._charges.change(stream, [-1], decide, fresh=True)

    def remaining(self, stream: str) -> Remaining:
        """Return what is left of the budget in every window that some release meets."""
        view = self._all(_name(stream))
        return Remaining(view.policy, tuple(windows_left(view, self._plans)))

    def window_price(self, stream: str, first: int, last: int) -> Fraction:
        """Return the worst cost of any window that meets the periods from ``first`` to ``last``, by all charges."""
        stream = _name(stream)
        _check_period(first, 1)
        _check_period(last, 1)
        if last < first:
            raise ParameterError(f"last is {last}, but must be at least first, which is {first}")
        return self._plans.prices(self._log.look(stream, first, last), first, last)

    def void(self, stream: str, period: int, why: str) -> None:
        """Let nothing be released for a period; what it was charged stays charged, and its observations are forgotten.

        Raises:
            ConflictError: The period is released.
        """
        stream = _name(stream)
        _check_period(period, 1)
        if not isinstance(why, str) or not why:
            raise ParameterError("why is empty or no text, but must say why nothing is released")
        self._charges.make_void(stream, period, why)

    def history(self, stream: str) -> tuple[Entry, ...]:
        """Return every charged period of a stream, in order."""
        stream = _name(stream)
        view = self._all(stream)
        return tuple(self._entries(view))

    def releases(self, stream: str, first: int = 0, last: int = LARGEST) -> list[Any]:
        """Return the stored releases of the periods from ``first`` to ``last``, each as it was released."""
        for name, period in (("first", first), ("last", last)):
            if isinstance(period, bool) or not isinstance(period, int):
                raise ParameterTypeError(f"{name} is of type {type(period).__name__}, but must be an int")
        stream = _name(stream)
        first, last = min(max(first, 0), LARGEST), min(max(last, -1), LARGEST)
        with self._database.transaction(write=False) as reading:
            view = self._log.view(reading, stream, first, last)
            parts = stored(reading, self._seals, stream, first, last)
        releases = []
        for period, part in parts.items():
            made = self._plans.mechanism(view.states[period].plan)
            epsilon = max(self._plans.price(view, period), made.steady_epsilon)
            releases.append(made.assemble_period(part, period, None, _stated(made.statement, epsilon, stream, 1)))
        return releases

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
        stream = _name(stream)
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
        """Look at every row: hashes, seals, plans, costs, released values, and every window against its policy.

        What is damaged is told, not raised.
        """
        problems: list[str] = []
        unchecked: list[str] = []
        charges = releases = 0
        streams: list[str] = []
        try:
            problems += self._database.damage()
            with self._database.transaction(write=False) as reading:
                problems += self._plans.problems(reading)
                streams = _names(reading)
                for stream in streams:
                    view = self._verified(reading, stream, problems)
                    if view is None:
                        continue
                    charges += sum(1 for state in view.states.values() if state.number)
                    releases += sum(1 for state in view.states.values() if state.release)
                    if view.key_check and view.key_check != self._seals.check:
                        unchecked.append(stream)
        except LedgerError as error:
            problems.append(str(error))
        return Verification(len(streams), charges, releases, tuple(problems), tuple(unchecked))

    # What a stream keeps of its open period.

    @property
    def steps(self) -> StepProtocol:
        """What releases periods step by step; see :class:`Stream` with ``emit="step"``."""
        return self._steps

    def witnessed(self, stream: str) -> None:
        """Tell the witness how far a stream has come, before a step leaves."""
        self._witnessed(_name(stream))

    def enrol(self, stream: str, mechanism: OptStream, clock: str = "steps") -> None:
        """Write a stream, its plan and its clock down without charging anything.

        Raises:
            ParameterError: The stream has another clock, key, window, alpha or neighbours.
        """
        stream = _name(stream)
        self._protocol.enrol(stream, PricedPlan.of(mechanism))

        def decide(view: View) -> tuple[list[Draft], None]:
            if view.clock not in {None, clock}:
                raise ParameterError(f"stream {stream!r} counts {clock}, but was begun with {view.clock}")
            return ([] if view.clock else [Draft.saying("clock", clock.encode())]), None

        self._charges.change(stream, [-1], decide, fresh=True)

    def kept(self, stream: str) -> Kept:
        """Return the open period of a stream."""
        stream = _name(stream)
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
        stream = _name(stream)
        return lambda change: observations.keep(change, self._seals, stream, revision=revision, forget=forget, add=add)

    # Rows.

    def _witnessed(self, stream: str) -> None:
        """Tell the witness how far a stream has come, before anything leaves."""
        if self._witness is None:
            return
        head = self._log.durable.get(stream)
        if head is None:
            with self._database.transaction(write=False) as reading:
                head = self._log.last_release(reading, stream)
        if head is not None:
            reading_of = partial(self._database.transaction, write=False)
            self._witness.advance(stream, head, reading_of, self._database.location)

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
            self._memories.check(reading, stream)
            problems += observations.problems(reading, self._seals, stream)
            if len(problems) == before:
                problems += [
                    f"the window from step {window.first} of {stream!r} is {-window.epsilon} over its policy"
                    for window in windows_left(view, self._plans)
                    if window.epsilon < 0
                ][:1]
        except LedgerError as error:
            problems.append(str(error))
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
                void=state.void,
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
            yield {
                "stream": stream,
                "epsilon": str(policy.epsilon),
                "w": policy.w,
                "alpha": policy.alpha,
                "neighbours": policy.neighbours,
            }
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


def _stated(statement: Statement, epsilon: Fraction, stream: str, periods: int) -> Statement:
    """Return what a ledger states of periods: the worst window that meets them, by all that is charged."""
    count = "this period" if periods == 1 else f"these {periods} periods"
    scope = f"Holds for {count} of {stream!r}, together with all that the ledger released of it before."
    return replace(statement, epsilon=epsilon, scope=scope)


def _names(reading: Transaction) -> list[str]:
    # Also streams that nobody has written down but that have entries: nothing may hide by a missing row.
    rows = reading.rows(
        "SELECT name FROM optstream_streams UNION SELECT stream FROM optstream_entries WHERE number = 1"
    )
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


def _name(stream: str) -> str:
    """Return the name of a stream in the form in which names that look alike are one."""
    if not isinstance(stream, str):
        raise ParameterTypeError(f"stream is of type {type(stream).__name__}, but must be str")
    stream = normalize("NFC", stream)
    if not 1 <= len(stream) <= 200 or not stream.isprintable():  # noqa: PLR2004
        raise ParameterError(f"stream is {stream[:200]!r}, but must be a name of 1 to 200 printable characters")
    return stream


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
