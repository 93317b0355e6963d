"""Pools: streams about the same people, which share a budget.

A pool has a log of its own, in which every charge of a member has an entry, written in one transaction with that of the
member's log. Who charges a member knows all entries of both, so no window over all members ever costs more than the
pool allows, whatever processes race. Members have one clock; their periods may be of different lengths. The costs of
members add up window by window, because an entity may be in all of them.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from math import lcm
from typing import TYPE_CHECKING

from optstream.errors import BudgetError, ParameterError
from optstream.ledger.entries import CHARGES, Draft
from optstream.ledger.log import LARGEST, POOL, Share
from optstream.ledger.records import Window
from optstream.privacy import accounting
from optstream.privacy.budget import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from optstream.ledger.log import Log, View
    from optstream.ledger.plans import Plans, Row

__all__ = ["Pools", "member_draft", "share_drafts"]


class Pools:
    """The pools of a ledger, and what this process knows of them."""

    def __init__(self, log: Log, plans: Plans) -> None:
        """Start without knowing any."""
        self._log, self._plans = log, plans
        self._views: dict[str, View] = {}
        self._vectors: dict[tuple[tuple[bytes, ...], int, Fraction], tuple[int, tuple[Row, ...]]] = {}

    def together(self, parts: Sequence[tuple[View, Sequence[Draft]]]) -> list[tuple[View, Sequence[Draft]]]:
        """Return what is to be appended to the logs of streams together with what belongs to those of their pools.

        Raises:
            BudgetError: Some window over all members would cost more than the pool allows.
        """
        charged: dict[str, dict[Share, bytes]] = {}
        twins: dict[str, set[bytes]] = {}
        numbers: dict[Share, int] = {}
        for view, drafts in parts:
            if view.pool is None:
                continue
            own = charged.setdefault(view.pool, {})
            w = view.policy.w
            twins.setdefault(view.pool, set()).update(draft.plan for draft in drafts if draft.kind == "plan")
            for index, draft in enumerate(drafts):
                state = view.states.get(draft.period)
                if draft.kind in {*CHARGES, "settled"} and (state is None or state.plan != draft.plan):
                    share = Share(view.stream, draft.period, draft.period * w)
                    own[share] = draft.plan
                    numbers[share] = view.head.number + 1 + index
        made = list(parts)
        for pool, own in charged.items():
            if own:
                view = self._allowed(pool, own, twins[pool])
                unmet = [Draft.saying("plan", b"", plan=twin) for twin in sorted(twins[pool] - view.larger)]
                made.append((view, [*unmet, *share_drafts(own, numbers)]))
        return sorted(made, key=lambda part: part[0].stream)

    def known(self, pool: str) -> View:
        """Return a pool as this process knows it, with its policy and its members."""
        return self._views.get(pool) or self._log.look(pool, -1, -1)

    def remember(self, views: Iterable[View]) -> None:
        """Keep what is known of pools after something was appended."""
        for view in views:
            if view.stream.startswith(POOL):
                last = max((share.start for share in view.shares), default=0)
                reach = view.policy.w + max(view.members.values(), default=0)
                self._views[view.stream] = view.pruned(last - 2 * reach)

    def _allowed(self, pool: str, charged: Mapping[Share, bytes], twins: set[bytes]) -> View:
        """Return what is known of a pool that allows some charges."""
        view = self._views.pop(pool, None)
        if view is not None and self._covers(view, charged):
            try:
                self.check(replace(view, larger=view.larger | twins), charged)
            except (BudgetError, ParameterError):
                # What was known may be out of date.
                pass
            else:
                return view
        view = self.look(pool, charged)
        self.check(replace(view, larger=view.larger | twins), charged)
        return view

    def check_charged(self, view: View, charged: Mapping[int, bytes]) -> None:
        """Raise unless the pool of a stream still allows periods that it was charged for.

        Its policy may have become smaller since. A view whose entry is the last one is as the pool is now.
        """
        pool, w = view.pool, view.policy.w
        if pool is None:
            return
        shares = {Share(view.stream, period, period * w): made for period, made in charged.items()}
        known = self._views.get(pool)
        with self._log.database.transaction(write=False) as reading:
            current = known is not None and self._log.head(reading, pool) == known.head
        if known is None or not current or not self._covers(known, shares):
            known = self.look(pool, shares)
        self.check(known, shares)

    def look(self, pool: str, charged: Iterable[Share]) -> View:
        """Return all that the windows that meet some periods depend on."""
        return self._look(pool, [share.start for share in charged])

    def worst(self, pool: str, first: int, last: int) -> Fraction:
        """Return the worst window over all members that meets the steps ``first`` to ``last``."""
        view = self._look(pool, [first, last])
        common, totals = self.costs(view, view.shares, first - view.policy.w + 1, last + 1)
        return Fraction(max(totals.values(), default=0), common)

    def _look(self, pool: str, starts: Sequence[int]) -> View:
        with self._log.database.transaction(write=False) as reading:
            base = self._log.view(reading, pool, -1, -1)
            reach = base.policy.w + max(base.members.values(), default=0)
            first, last = min(starts, default=0), max(starts, default=0)
            # Appends at the end are the rule, so what comes later is read too if there is little of it.
            return self._log.view(reading, pool, max(first - 2 * reach, 0), min(last + 2 * reach, LARGEST))

    @staticmethod
    def _covers(view: View, charged: Mapping[Share, bytes]) -> bool:
        reach = view.policy.w + max(view.members.values(), default=0)
        first, last = min(share.start for share in charged), max(share.start for share in charged)
        begins = view.periods.start <= max(first - reach, 0)
        return begins and last + reach < view.periods.stop

    def check(self, view: View, charged: Mapping[Share, bytes]) -> None:
        """Raise unless every window that meets some periods of members is within the policy of their pool."""
        for share in charged:
            if share.stream not in view.members:
                raise ParameterError(f"stream {share.stream!r} is not a member of {view.stream.removeprefix(POOL)!r}")
        w = view.policy.w
        first = min(share.start for share in charged) - w + 1
        meets = first if view.policy.neighbours != "aligned" else first + w - 1
        for _, last in view.lost:
            if meets <= last:
                raise BudgetError(
                    f"members of the pool {view.stream.removeprefix(POOL)!r} may have left up to step {last} before "
                    "the ledger was restored: windows that meet these steps are charged in full; nothing was released"
                )
        stop = max(share.start + view.members[share.stream] for share in charged)
        common, totals = self.costs(view, {**view.shares, **charged}, first, stop)
        price = Fraction(max(totals.values(), default=0), common)
        if price > view.policy.epsilon:
            raise BudgetError(
                f"releasing this would make a window over all members of the pool {view.stream.removeprefix(POOL)!r} "
                f"cost {shown(price) if view.policy.delta else price}, but its policy allows "
                f"{view.policy.epsilon}; nothing was released"
            )

    def costs(self, view: View, shares: Mapping[Share, bytes], first: int, stop: int) -> tuple[int, dict[int, int]]:
        """Return what windows cost that begin at ``first <= t < stop`` and meet a charge, with their denominator."""
        w = view.policy.w
        counts = Counter((self._plans.key(view, made), share.start) for share, made in shares.items() if made)
        vectors = [(self._vector(key, w, view.policy.delta), start, count) for (key, start), count in counts.items()]
        sums = [
            _totals([(start + begin, rows[unit], count) for (begin, rows), start, count in vectors], first, stop)
            for unit in range(2 if view.policy.delta else 1)
        ]
        common, totals = sums[0] if len(sums) == 1 else _prices(sums, view.policy.delta)
        if view.policy.neighbours == "aligned":
            totals = {at: total for at, total in totals.items() if at % w == 0}
        return common, totals

    def left(self, view: View) -> list[Window]:
        """Return what is left in the windows over all members, for runs of windows with the same."""
        merged: list[Window] = []
        common, totals = self.costs(view, view.shares, -LARGEST, 2 * LARGEST)
        # Many windows cost the same.
        rests = {total: view.policy.epsilon - Fraction(total, common) for total in set(totals.values())}
        for begin in sorted(totals):
            rest = rests[totals[begin]]
            if any(begin <= last for _, last in view.lost):
                rest = min(rest, Fraction(0))
            last = merged[-1] if merged else None
            if last is not None and (last.last + 1, last.epsilon) == (begin, rest):
                merged[-1] = Window(last.first, begin, rest)
            else:
                merged.append(Window(begin, begin, rest))
        return merged

    def _vector(self, key: tuple[bytes, ...], w: int, delta: Fraction) -> tuple[int, tuple[Row, ...]]:
        """Return what windows over a period cost: the first of them, and in every unit the largest."""
        if (key, w, delta) not in self._vectors:
            largest: list[dict[int, Fraction]] = [{} for _ in range(2 if delta else 1)]
            for made in key:
                first, units = accounting.window_units(self._plans.costs(made), w, delta)
                for most, windows in zip(largest, units, strict=True):
                    for begin, cost in enumerate(windows, first):
                        most[begin] = max(cost, most.get(begin, Fraction(0)))
            begin, end = min(largest[0], default=0), max(largest[0], default=-1)
            rows = []
            for most in largest:
                costs = [most.get(at, Fraction(0)) for at in range(begin, end + 1)]
                common = lcm(1, *(cost.denominator for cost in costs))
                rows.append((common, tuple(int(cost * common) for cost in costs)))
            self._vectors[key, w, delta] = begin, tuple(rows)
        return self._vectors[key, w, delta]


def _totals(parts: Sequence[tuple[int, Row, int]], first: int, stop: int) -> tuple[int, dict[int, int]]:
    """Return the sums of one unit in the windows from one to another: rows by their first window, so many of each."""
    common = lcm(1, *(row[0] for _, row, _ in parts))
    totals: dict[int, int] = {}
    for begin, (denominator, values), count in parts:
        factor = count * (common // denominator)
        low, high = max(first - begin, 0), max(min(stop - begin, len(values)), 0)
        for at, value in enumerate(values[low:high], begin + low):
            totals[at] = totals.get(at, 0) + value * factor
    return common, totals


def _prices(sums: Sequence[tuple[int, dict[int, int]]], delta: Fraction) -> tuple[int, dict[int, int]]:
    """Return the epsilon of windows from their sums in every unit."""
    spent = {at: tuple(Fraction(totals[at], common) for common, totals in sums) for at in sums[0][1]}
    prices = {units: accounting.price(units, delta) for units in set(spent.values())}
    common = lcm(1, *(price.denominator for price in prices.values()))
    return common, {at: int(prices[units] * common) for at, units in spent.items()}


def member_draft(stream: str, w: int) -> Draft:
    """Return what makes a stream a member, in the log of its pool."""
    return Draft.saying("member", json.dumps({"stream": stream, "w": w}).encode())


def share_drafts(charged: Mapping[Share, bytes], numbers: Mapping[Share, int]) -> list[Draft]:
    """Return what charges periods of members, in the log of their pool."""
    return [
        Draft.saying(
            "share",
            json.dumps([share.stream, share.period]).encode(),
            period=share.start,
            charge=numbers[share],
            plan=made,
        )
        for share, made in charged.items()
    ]
