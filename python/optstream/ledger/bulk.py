"""Many periods of many streams at once: charged in one transaction, stored in another, all or nothing.

The protocol is that of single releases: who appends has decided by all entries before, in every log at once. If one
log has moved, nothing is written to any, and all is decided again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optstream.errors import BudgetError, EntropyError, LedgerError, ParameterError
from optstream.ledger.database import BehindError, pause
from optstream.ledger.log import LARGEST, POOL, Head, View, policy_draft, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from fractions import Fraction

    import numpy as np
    from numpy.typing import NDArray

    from optstream.estimate.memory import Memory
    from optstream.ledger.charges import Charges
    from optstream.ledger.database import Transaction
    from optstream.ledger.entries import Draft
    from optstream.ledger.log import Log
    from optstream.ledger.memories import Memories
    from optstream.ledger.plans import Plans, PricedPlan
    from optstream.ledger.pools import Pools
    from optstream.ledger.protocol import Protocol
    from optstream.mechanism.release import Parts

__all__ = ["Bulk"]

ATTEMPTS = 100
"""How often a decision is made again after others were faster."""


class Bulk:
    """The steps of many releases on one database."""

    def __init__(  # noqa: PLR0917
        self, log: Log, plans: Plans, pools: Pools, charges: Charges, memories: Memories, protocol: Protocol
    ) -> None:
        """Take the log, the plans, the pools, the charges, what is remembered, and the protocol of single releases."""
        self._log, self._plans, self._charges, self._memories = log, plans, charges, memories
        self._pools = pools
        self._protocol, self._database = protocol, log.database

    def charge(
        self, made: PricedPlan, digests: Mapping[str, Mapping[int, bytes]], *, final: bool, create: bool
    ) -> tuple[dict[str, View], int]:
        """Charge what is not charged yet; return what is then known of every stream, and how many were charged.

        Raises:
            BudgetError: Some window would cost more than its policy allows; nothing was charged.
            ConflictError: A period was released from other data or with another plan, or is void; nothing was charged.
        """
        self._protocol.enrol_plan(made)
        new: dict[str, int] = {}

        def decide(view: View) -> list[Draft]:
            drafts = self._charges.drafts(view, made, digests[view.stream], final=final)
            new[view.stream] = sum(draft.charge == 0 and draft.period >= 0 for draft in drafts)
            begin = [] if view.head.number else [policy_draft(view.policy, self._log.seals.check)]
            return [*begin, *drafts]

        def look(attempt: int) -> list[View]:
            return self._views(made, digests, create=create, fresh=attempt > 0)

        views = self._change(look, decide)
        return views, sum(new.values())

    def release(
        self, made: PricedPlan, units: Mapping[str, tuple[int, NDArray[np.int64]]], *, create: bool
    ) -> dict[str, tuple[list[Parts], Fraction]]:
        """Release periods of many streams, or return what is stored of them; with the worst window that they meet."""
        digests = {stream: self._protocol.digests(stream, period, rows) for stream, (period, rows) in units.items()}
        views, _ = self.charge(made, digests, final=False, create=create)
        released = {
            stream: [number for number in digests[stream] if view.states[number].release]
            for stream, view in views.items()
        }
        parts = {stream: self._protocol.stored(stream, numbers) for stream, numbers in released.items()}
        drawn: dict[str, dict[int, Parts]] = {stream: {} for stream in units}
        remembered: dict[str, Memory] = {}
        for stream, (period, rows) in units.items():
            memory = self._memory(stream, period, made)
            for number, row in enumerate(rows, period):
                state = views[stream].states[number]
                try:
                    one = parts[stream].get(number) or self._protocol.draw(made, stream, state, row)
                    if memory is not None:
                        one = made.mechanism.finish(one, number, memory)
                except EntropyError:
                    # Nothing was drawn.
                    raise
                except BaseException as error:
                    # That a draw has failed is told, and with it that those before have not: they are stored.
                    self._store(views, drawn, {})
                    self._protocol.fail(stream, state, error)
                    raise
                if number not in parts[stream]:
                    drawn[stream][number] = one
            if memory is not None:
                remembered[stream] = memory
        theirs = self._store(views, drawn, remembered)
        for stream, own in drawn.items():
            parts[stream] |= {**own, **self._protocol.stored(stream, theirs.get(stream, []))}
        found = {}
        for stream, view in views.items():
            price = self._plans.prices(view, min(digests[stream]), max(digests[stream]))
            found[stream] = [parts[stream][number] for number in digests[stream]], price
        return found

    def _memory(self, stream: str, period: int, made: PricedPlan) -> Memory | None:
        return None if made.mechanism.estimator is None else self._memories.before(stream, period, made.mechanism, None)

    def _store(
        self,
        charged: Mapping[str, View],
        drawn: Mapping[str, Mapping[int, Parts]],
        remembered: Mapping[str, Memory],
    ) -> dict[str, list[int]]:
        """Store what was drawn; return which periods others have released from the same data."""
        results = {stream: {n: part.to_bytes() for n, part in own.items()} for stream, own in drawn.items() if own}
        theirs: dict[str, list[int]] = {}
        if not results:
            return theirs

        def decide(view: View) -> list[Draft]:
            stream = view.stream
            drafts, theirs[stream] = self._protocol.release_drafts(view, charged[stream].states, results[stream])
            return drafts

        def also(change: Transaction) -> None:
            for stream in results:
                if stream in remembered and not theirs[stream]:
                    self._memories.keep(change, stream, remembered[stream])

        def look(attempt: int) -> list[View]:
            if attempt == 0:
                return [charged[stream] for stream in sorted(results)]
            with self._database.transaction(write=False) as reading:
                views = self._log.look_many(reading, _ranges(results))
            return [views[stream] for stream in sorted(views)]

        self._change(look, decide, also if remembered else None)
        return theirs

    def _change(
        self,
        look: Callable[[int], list[View]],
        decide: Callable[[View], list[Draft]],
        also: Callable[[Transaction], None] | None = None,
    ) -> dict[str, View]:
        """Append to all logs what is decided by all that is known, again and again until nobody was faster."""
        for attempt in range(ATTEMPTS):
            views = look(attempt)
            try:
                parts = [(view, decide(view)) for view in views]
                changing = self._pools.together([part for part in parts if part[1]])
                after = self._log.append_all(changing, also=also) if changing else []
            except BehindError:
                pause(attempt)
            except (BudgetError, ParameterError):
                # What was known may be out of date the first time: a policy may allow more by now.
                if attempt > 0:
                    raise
            else:
                self._pools.remember(after)
                found = {view.stream: view for view in (*views, *after) if not view.stream.startswith(POOL)}
                for view in found.values():
                    self._charges.remember(view, max(view.states, default=0))
                return found
        raise LedgerError("streams are changed by other processes all the time")

    def _views(
        self, made: PricedPlan, periods: Mapping[str, Mapping[int, Any]], *, create: bool, fresh: bool
    ) -> list[View]:
        """Return what is known of streams, in the order of their names."""
        views: dict[str, View] = {}
        if not fresh:
            found = ((stream, self._charges.cached(stream, list(own))) for stream, own in periods.items())
            views = {stream: view for stream, view in found if view is not None}
        unseen = {stream: span for stream, span in _ranges(periods).items() if stream not in views}
        if unseen and create:
            with self._database.transaction() as change:
                if self._log.forgotten(change)[0] >= 0:
                    # Any of them may have been there before.
                    for stream in unseen:
                        self._log.begin(change, stream, made.mechanism.guarantee)
        if unseen:
            with self._database.transaction(write=False) as reading:
                views |= self._log.look_many(reading, unseen)
        for stream in unseen:
            if stream not in views:
                if not create:
                    raise unknown(stream)
                guarantee, keys = made.mechanism.guarantee, ((-1, self._log.seals.check),)
                views[stream] = View(stream, guarantee, keys, Head(0, b""), periods=range(-1, LARGEST + 2))
        return [views[stream] for stream in sorted(views)]


def _ranges(periods: Mapping[str, Mapping[int, Any]]) -> dict[str, tuple[int, int]]:
    return {stream: (min(own), max(own)) for stream, own in periods.items()}
