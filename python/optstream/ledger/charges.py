"""Charges: what a period costs is written down before it is drawn, and only if every window stays within its policy."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from optstream.errors import BudgetError, ConflictError, LedgerError, ParameterError
from optstream.ledger import observations
from optstream.ledger.database import BehindError, pause
from optstream.ledger.entries import Draft
from optstream.privacy.budget import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from fractions import Fraction

    from optstream.ledger.database import Transaction
    from optstream.ledger.entries import State
    from optstream.ledger.log import Log, View
    from optstream.ledger.plans import Plans, PricedPlan
    from optstream.ledger.pools import Pools
    from optstream.privacy.guarantee import Guarantee

__all__ = ["Charges", "check_fits", "is_for"]

ATTEMPTS = 500
"""How often a decision is made again after others were faster."""


@runtime_checkable
class Rekeyed(Protocol):
    """Digests that can be made again with a former key."""

    def under(self, period: int, key: bytes) -> bytes:
        """Return the digest of a period with a key."""


class Charges:
    """The charges of all streams, and what this process knows of them."""

    def __init__(self, log: Log, plans: Plans, pools: Pools) -> None:
        """Start without knowing any."""
        self._log, self._plans, self._pools = log, plans, pools
        self._views: dict[str, View] = {}
        self.twins: dict[bytes, tuple[bytes, ...]] = {}
        """Plans with the same description as one that this process has enrolled, and other costs; with itself."""

    def charge(
        self, stream: str, made: PricedPlan, digests: Mapping[int, bytes], *, final: bool = False
    ) -> dict[int, State]:
        """Charge the periods that are not charged yet; return what the log then says of every one.

        Raises:
            BudgetError: Some window would cost more than the policy allows.
            ConflictError: A period was released from other data or with another plan, or is void.
        """
        periods = list(digests)

        def decide(view: View) -> tuple[list[Draft], Callable[[Transaction], None] | None]:
            return self.drafts(view, made, digests, final=final), None

        # Not forced: the commit that stores the release forces both, and nothing leaves before. A final charge is for
        # what leaves in another way.
        view = self.change(stream, periods, decide, forced=final)
        return {period: view.states[period] for period in periods}

    def change(
        self,
        stream: str,
        periods: Sequence[int],
        decide: Callable[[View], tuple[list[Draft], Callable[[Transaction], None] | None]],
        *,
        forced: bool = True,
        fresh: bool = False,
    ) -> View:
        """Append what is decided by all that is known, again and again until nobody was faster.

        Args:
            stream: The name of the stream.
            periods: The periods that the decision is about.
            decide: Returns what to append, and what else belongs to the transaction.
            forced: Whether one entry must be on the disk before this returns.
            fresh: Whether what this process remembers must not be relied on.
        """
        for attempt in range(ATTEMPTS):
            view = self._views.pop(stream, None)
            known = not fresh and view is not None and view.covers(periods)
            if view is None or not known:
                view = self._log.look(stream, periods[0], periods[-1])
            try:
                drafts, also = decide(view)
                if drafts:
                    view = self.append(view, drafts, forced=forced, also=also)
            except BehindError:
                pause(attempt)
            except (BudgetError, ParameterError):
                # What was known may be out of date: the policy may allow more by now.
                if not known:
                    raise
            else:
                self._views[stream] = view.pruned(periods[-1] - 1)
                return view
        raise LedgerError(f"stream {stream!r} is changed by other processes all the time")

    def append(
        self, view: View, drafts: Sequence[Draft], *, forced: bool, also: Callable[[Transaction], None] | None
    ) -> View:
        """Append to the log of a stream, and to that of its pool what belongs to it."""
        if view.pool is None:
            return self._log.append(view, drafts, forced=forced, also=also)
        after = self._log.append_all(self._pools.together([(view, drafts)]), forced=forced, also=also)
        self._pools.remember(after)
        return next(one for one in after if one.stream == view.stream)

    def pool_of(self, stream: str) -> str | None:
        """Return the log of the pool of a stream, if it has one."""
        view = self._views.get(stream) or self._log.look(stream, -1, -1)
        return view.pool

    def cached(self, stream: str, periods: Sequence[int]) -> View | None:
        """Return what this process remembers, if it needs to know nothing else to decide about periods."""
        view = self._views.pop(stream, None)
        return view if view is not None and view.covers(periods) else None

    def known(self, stream: str, periods: Sequence[int]) -> View:
        """Return what is known of charged periods, which need not be all that there is."""
        view = self._views.pop(stream, None)
        if view is not None and all(period in view.states and period + 1 in view.periods for period in periods):
            return view
        return self._log.look(stream, periods[0], periods[-1])

    def price(self, stream: str, first: int, last: int) -> Fraction:
        """Return the worst window that meets charged periods."""
        view = self._views.get(stream)
        if view is None or not all(period in view.periods for period in (first - 1, last + 1)):
            view = self._log.look(stream, first, last)
        return self._plans.prices(view, first, last)

    def remember(self, view: View, last: int) -> None:
        """Keep what is known after a period."""
        self._views[view.stream] = view.pruned(last - 1)

    def drafts(self, view: View, made: PricedPlan, digests: Mapping[int, bytes], *, final: bool) -> list[Draft]:
        """Return what to append so that periods are charged for some data, after a look at every window."""
        check_fits(view, made.mechanism.guarantee)
        kind = "final" if final else "charge"
        unmet = [twin for twin in self.twins.get(made.id, ()) if twin not in view.larger]
        drafts = [Draft.saying("plan", b"", plan=twin) for twin in unmet]
        view = replace(view, larger=view.larger.union(unmet))
        charged: dict[int, bytes] = {}
        for period, todays in digests.items():
            view.check_lost(period)
            state, digest = view.states.get(period), todays
            if state is not None:
                if state.key != view.key_check and isinstance(digests, Rekeyed):
                    digest = digests.under(period, state.key)
                state.check_void(view.stream)
                same_plan = state.plan == made.id or self._plans.digest(state.plan) == made.digest
                if state.release and same_plan and state.data == digest:
                    continue
                charged[period] = made.id
                if (state.plan, state.data) == (made.id, digest) and (state.final or not final):
                    # Taken up as it is, if the policy still allows it.
                    continue
                if (state.plan, state.data) != (made.id, digest):
                    state.check_replaceable(view.stream, same_plan=same_plan)
            charged[period] = made.id
            drafts.append(Draft(kind, period, 0 if state is None else state.number, made.id, todays))
        self.check_windows(view, charged)
        return drafts

    def check_windows(self, view: View, charged: Mapping[int, bytes]) -> None:
        """Raise unless every window that meets some periods is within the policy."""
        if len(charged) > 1 and self._plans.prices(view, min(charged), max(charged), charged) <= view.policy.epsilon:
            return
        for period in charged:
            price = self._plans.price(view, period, charged)
            if price > view.policy.epsilon:
                raise BudgetError(
                    f"releasing period {period} of {view.stream!r} would make a window cost {_told(view, price)}, but "
                    f"its policy allows {view.policy.epsilon}; nothing was released"
                )

    def check_pool(self, view: View, charged: Mapping[int, bytes]) -> None:
        """Raise unless the pool of a stream, as it is now, allows periods that are charged already."""
        if view.pool is not None and charged:
            self._pools.check_charged(view, charged)

    def make_void(self, stream: str, period: int, why: str) -> None:
        """Let nothing be released for a period; what it was charged stays charged.

        Raises:
            ConflictError: It is released.
        """

        def decide(view: View) -> tuple[list[Draft], Callable[[Transaction], None] | None]:
            state = view.states.get(period)
            if state is not None and state.release:
                raise ConflictError(f"period {period} of {stream!r} is released, and cannot become void")
            if state is not None and state.void is not None:
                return [], None
            charge = 0 if state is None else state.number
            draft = Draft.saying("void", why.encode(), period=period, charge=charge)
            return [draft], observations.forgetter(stream, period, period, view.policy.w)

        self.change(stream, [period], decide, fresh=True)

    def settle(self, stream: str, state: State, why: str | None) -> State | None:
        """See to it that a draw that has failed is not drawn again; return what is true of its period then.

        Without a key the period becomes void, for the reason given. With one, for which no reason is given, the charge
        becomes final: the same data gives the same draw, and other data is refused. If the charge was replaced or its
        period released in the meantime, nothing is written.
        """

        def decide(view: View) -> tuple[list[Draft], Callable[[Transaction], None] | None]:
            now = view.states.get(state.period)
            if now is None or not is_for(now, state) or now.release or now.void is not None:
                return [], None
            if why is not None:
                draft = Draft.saying("void", why.encode(), period=now.period, charge=now.number)
                return [draft], observations.forgetter(stream, now.period, now.period, view.policy.w)
            final = Draft("final", now.period, now.number, now.plan, now.data)
            return [] if now.final else [final], None

        return self.change(stream, [state.period], decide, fresh=True).states.get(state.period)


def is_for(state: State, other: State) -> bool:
    """Whether two charges of a period are for the same plan and data."""
    return (state.plan, state.data) == (other.plan, other.data)


def _told(view: View, price: Fraction) -> str:
    """Return a price for people; what rho comes to is a long fraction."""
    return shown(price) if view.policy.delta else str(price)


def check_fits(view: View, guarantee: Guarantee) -> None:
    """Raise if a mechanism is not for the windows, the alpha, the neighbours and the entities of a policy."""
    policy = view.policy
    if (policy.w, policy.alpha) != (guarantee.w, guarantee.alpha):
        raise ParameterError(
            f"mechanism has w = {guarantee.w} and alpha = {guarantee.alpha:g}, but the policy of {view.stream!r} has "
            f"w = {policy.w} and alpha = {policy.alpha:g}"
        )
    if policy.delta != guarantee.delta:
        raise ParameterError(
            f"mechanism has delta = {float(guarantee.delta):g}, but the policy of {view.stream!r} has "
            f"{float(policy.delta):g}"
        )
    if policy.neighbours != guarantee.neighbours:
        raise ParameterError(
            f"mechanism has neighbours = {guarantee.neighbours!r}, but the policy of {view.stream!r} has "
            f"{policy.neighbours!r}"
        )
    check_entities("mechanism", guarantee, view.stream, policy)


def check_entities(name: str, guarantee: Guarantee, stream: str, policy: Guarantee) -> None:
    """Raise if a guarantee is for other entities than the policy of a stream or pool."""
    if (guarantee.entities, guarantee.entity) != (policy.entities, policy.entity):
        raise ParameterError(
            f"{name} has {guarantee.entities} entities ({guarantee.entity}), but the policy of {stream!r} has "
            f"{policy.entities} ones ({policy.entity})"
        )
