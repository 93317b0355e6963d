"""The protocol of the ledger: charge, draw, store, return.

1. An entry charges the period, after every window that it meets was checked against the stream's policy.
2. Noise is drawn and the post-processing solved.
3. An entry stores the released values, after the same check by what is true then.
4. They are returned.

Asking again for a stored period returns what is stored. After a crash between 1 and 3 nothing has left, so 2 is done
again without a second charge. Of two processes that race for a period one stores, and both return what is stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optstream.errors import ConflictError, EntropyError, LedgerError, ParameterError
from optstream.keys import data_digest
from optstream.ledger.charges import check_fits, is_for
from optstream.ledger.database import BehindError, pause
from optstream.ledger.entries import Draft
from optstream.ledger.releases import stored
from optstream.progress import progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from optstream.estimate.memory import Memory
    from optstream.keys import CuratorKey
    from optstream.ledger.charges import Charges
    from optstream.ledger.database import Transaction
    from optstream.ledger.entries import Seals, State
    from optstream.ledger.log import Log, View
    from optstream.ledger.memories import Memories
    from optstream.ledger.plans import Plans, PricedPlan
    from optstream.mechanism.release import Parts

__all__ = ["Digests", "Protocol"]

BATCH = 256
"""Periods that are drawn between two transactions that store them."""
ATTEMPTS = 500
"""How often a store is tried again after others were faster."""


class Digests(dict[int, bytes]):
    """The digests of the data of periods, which can be made again with a former key."""

    def __init__(self, digester: CuratorKey, seals: Seals, stream: str, units: Mapping[int, NDArray[np.int64]]) -> None:
        """Make all digests with the key of today."""
        super().__init__({number: data_digest(digester, stream, number, rows) for number, rows in units.items()})
        self._seals, self._stream, self._units = seals, stream, units

    def under(self, period: int, key: bytes) -> bytes:
        """Return the digest of a period with the key that it was charged with.

        Raises:
            ParameterError: That key is not known.
        """
        if key == self._seals.check:
            return self[period]
        if key not in self._seals.keys:
            raise ParameterError(
                f"period {period} of {self._stream!r} was charged with a former key, which must be given to repeat it"
            )
        return data_digest(self._seals.keys[key], self._stream, period, self._units[period])


class Protocol:
    """The steps of a release on one database."""

    def __init__(self, log: Log, plans: Plans, charges: Charges, memories: Memories, digester: CuratorKey) -> None:
        """Take the log, the plans, the charges, what is remembered, and the key for digests of the data."""
        self._log, self._plans, self._charges, self._memories = log, plans, charges, memories
        self._database, self._curator, self._digester = log.database, log.seals.curator, digester
        self._enrolled: set[tuple[str, bytes]] = set()
        self._written: set[bytes] = set()

    def release(
        self,
        made: PricedPlan,
        units: NDArray[np.int64],
        *,
        stream: str,
        period: int,
        finish: Callable[[Transaction], None] | None = None,
        memory: Memory | None = None,
        create: bool = False,
    ) -> list[Parts]:
        """Release periods that are integers of the grid; ``finish`` is part of the transaction that stores the last.

        With a memory, which must be that before the period, there is one period: it is estimated and remembered.
        """
        self.enrol(stream, made, create=create)
        numbers = range(period, period + len(units))
        digests = self.digests(stream, period, units)
        states = self._charges.charge(stream, made, digests)
        parts = self.stored(stream, [number for number in numbers if states[number].release])
        waiting = [number for number in numbers if number not in parts]
        for batch in _batches(waiting):
            data = {number: units[number - period] for number in batch}
            last = finish if batch[-1] == waiting[-1] else None
            parts |= self._carry_out(made, stream, states, data, finish=last, memory=memory)
        if finish is not None and not waiting:
            with self._database.transaction() as change:
                finish(change)
        return [parts[number] for number in numbers]

    def digests(self, stream: str, period: int, units: NDArray[np.int64]) -> Digests:
        """Return the keyed digest of the data of every period."""
        return Digests(self._digester, self._log.seals, stream, dict(enumerate(units, period)))

    def enrol(self, stream: str, made: PricedPlan, *, create: bool) -> None:
        """Write the plan down, once, and the stream if it may be made.

        Raises:
            UnknownStreamError: There is no such stream, and none may be made.
            ParameterError: The stream was begun with another key, or for other windows, neighbours or another alpha.
        """
        if (stream, made.id) in self._enrolled:
            return
        if create:
            with self._database.transaction() as change:
                self._log.begin(change, stream, made.mechanism.guarantee)
        view = self._log.look(stream, -1, -1)
        self._log.check_key(view)
        check_fits(view, made.mechanism.guarantee)
        self.enrol_plan(made)
        self._enrolled.add((stream, made.id))

    def enrol_plan(self, made: PricedPlan) -> None:
        """Write a plan down, once."""
        if made.id in self._written:
            return
        with self._database.transaction() as change:
            twins = self._plans.write(change, made)
        if twins:
            self._charges.twins[made.id] = twins
        self._written.add(made.id)

    def _carry_out(
        self,
        made: PricedPlan,
        stream: str,
        states: Mapping[int, State],
        data: Mapping[int, NDArray[np.int64]],
        *,
        finish: Callable[[Transaction], None] | None,
        memory: Memory | None,
    ) -> dict[int, Parts]:
        """Draw and store periods that are charged."""
        drawn: dict[int, Parts] = {}
        current = min(data)
        try:
            for current, rows in data.items():
                drawn[current] = self.draw(made, stream, states[current], rows)
                if memory is not None:
                    drawn[current] = made.mechanism.finish(drawn[current], current, memory)
        except EntropyError:
            # Nothing was drawn.
            raise
        except BaseException as error:
            # That a draw has failed is told, so what was drawn before it must count too: it is stored as it is.
            drawn.pop(current, None)
            if drawn:
                self._store(stream, states, drawn, None, None)
            theirs = self.fail(stream, states[current], error)
            if theirs is None:
                raise
            rest = {number: rows for number, rows in data.items() if number > current}
            done = self.stored(stream, list(drawn)) | {current: theirs}
            return done | (self._carry_out(made, stream, states, rest, finish=finish, memory=memory) if rest else {})
        try:
            return self._store(stream, states, drawn, finish, memory)
        except LedgerError:
            # That the ledger refuses or fails does not depend on what was drawn.
            raise
        except BaseException as error:
            for number in drawn:
                self.fail(stream, states[number], error)
            raise

    def draw(self, made: PricedPlan, stream: str, state: State, units: NDArray[np.int64]) -> Parts:
        """Draw the release of a charged period."""
        if self._curator is None:
            return made.mechanism.draw(units)
        context = [stream.encode(), _number(state.period), made.id, state.data]
        return made.mechanism.draw(units, (self._log.seals.keys[state.key], context))

    def fail(self, stream: str, state: State, error: BaseException) -> Parts | None:
        """See to it that nothing is drawn again for a charge; return what another process has released for it, if so.

        After a draw that failed by its noise, another would be a second look at the data.

        Raises:
            ConflictError: The charge was replaced in the meantime, so that this draw does not matter to anybody.
        """
        why = None if self._curator is not None else f"{_reason(error)}: {error}"
        try:
            now = self._charges.settle(stream, state, why)
        except LedgerError as failure:
            # What failed first stays untold: it would say something about a draw that may be made again.
            raise LedgerError(str(failure)) from None
        if now is None or not is_for(now, state):
            raise _replaced(stream, [state.period]) from None
        if now.release and isinstance(error, Exception):
            return self.stored(stream, [state.period])[state.period]
        return None

    def stored(self, stream: str, numbers: Sequence[int]) -> dict[int, Parts]:
        """Return periods that are released."""
        if not numbers:
            return {}
        with self._database.transaction(write=False) as reading:
            found = stored(reading, self._log.seals, stream, min(numbers), max(numbers))
            self._log.note_releases(reading, stream)
        return {number: found[number] for number in numbers}

    def _store(
        self,
        stream: str,
        states: Mapping[int, State],
        drawn: Mapping[int, Parts],
        finish: Callable[[Transaction], None] | None,
        memory: Memory | None,
    ) -> dict[int, Parts]:
        """Store what was drawn; where another process has released a period from the same data, return that."""
        periods = sorted(drawn)
        results = {number: drawn[number].to_bytes() for number in periods}
        for attempt in range(ATTEMPTS):
            view = self._charges.known(stream, periods)
            drafts, theirs = self.release_drafts(view, states, results)
            remembered = memory if not theirs else None

            def also(change: Transaction, remembered: Memory | None = remembered) -> None:
                if remembered is not None:
                    self._memories.keep(change, stream, remembered)
                if finish is not None:
                    finish(change)

            try:
                if drafts:
                    more = also if finish is not None or remembered is not None else None
                    view = self._log.append(view, drafts, also=more)
                    self._charges.remember(view, periods[-1])
                elif finish is not None:
                    with self._database.transaction() as change:
                        finish(change)
            except BehindError:
                pause(attempt)
                continue
            return {**drawn, **self.stored(stream, theirs)}
        raise LedgerError(f"stream {stream!r} is changed by other processes all the time")

    def release_drafts(
        self, view: View, states: Mapping[int, State], results: Mapping[int, bytes]
    ) -> tuple[list[Draft], list[int]]:
        """Return the entries that store results, and the periods that are released already from the same data.

        Raises:
            ConflictError: A period is void, or was charged again for something else.
            BudgetError: The policy does not allow a period any more.
        """
        drafts, theirs, charged = [], [], {}
        for number, result in results.items():
            view.check_lost(number)
            now = view.states.get(number)
            if now is None or not is_for(now, states[number]):
                raise _replaced(view.stream, list(results))
            now.check_void(view.stream)
            if now.release:
                theirs.append(number)
                continue
            charged[number] = now.plan
            drafts.append(Draft.saying("release", result, period=number, charge=now.number, plan=now.plan))
        self._charges.check_windows(view, charged)
        self._charges.check_pool(view, charged)
        return drafts, theirs


def _replaced(stream: str, numbers: Sequence[int]) -> ConflictError:
    return ConflictError(
        f"a period of {stream!r} from {min(numbers)} to {max(numbers)} was charged again by another process, for "
        "other data or another plan"
    )


def _reason(error: BaseException) -> str:
    names: dict[str, str] = {"SolverError": "not solved", "KeyboardInterrupt": "interrupted"}
    return names.get(type(error).__name__, f"failed with {type(error).__name__}")


def _number(period: int) -> bytes:
    return period.to_bytes(8, "little")


def _batches(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield batches, with a progress bar if there are several."""
    if len(numbers) <= BATCH:
        yield from [numbers] if numbers else []
        return
    with progress(total=len(numbers), desc="releasing", unit="period") as bar:
        for start in range(0, len(numbers), BATCH):
            batch = numbers[start : start + BATCH]
            yield batch
            bar.update(len(batch))
