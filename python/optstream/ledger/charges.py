"""Charges: written only by who knows all earlier ones.

The charges of a stream are numbered. A process checks a new charge against all charges up to the last number that it
knows of, and writes it with the next one. Two rows cannot have the same number, so if another process has charged
anything in the meantime, nothing is written, and the check is made again with what is there now. No window can be
overspent by a race, and no lock is held while a process thinks.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from optstream.errors import BudgetError, LedgerError, ParameterError
from optstream.ledger.database import StaleError, pause
from optstream.ledger.rows import CHARGE, CHARGED, POLICY, RECHARGE, Charge, check_fits, policy_of, policy_row, stored
from optstream.privacy import accounting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from fractions import Fraction

    from optstream.ledger.database import Database
    from optstream.mechanism.release import Parts
    from optstream.privacy.accounting import Cost
    from optstream.privacy.guarantee import Guarantee

__all__ = ["Charges"]

ATTEMPTS = 500
"""How often a charge is checked again after others were faster."""
AHEAD = 1000
"""Periods beyond the asked ones that are looked at too, so that the next charge needs no look."""


class _View(NamedTuple):
    """What a process knows of a stream: its policy, and all charges up to a number in a range of periods."""

    policy: Guarantee
    row: tuple[str, str]
    """What can change of the policy, as it is written."""
    last: int
    periods: range
    charges: Mapping[int, Charge]

    def covers(self, periods: Sequence[int]) -> bool:
        """Whether nothing else needs to be known to charge periods that are not charged."""
        inside = periods[0] - 1 in self.periods and periods[-1] + 1 in self.periods
        return inside and not any(period in self.charges for period in periods)

    def after(self, written: Sequence[Charge]) -> _View:
        """Return the view with more charges, and without those that the next periods do not meet."""
        begin = min(charge.period for charge in written) - 1
        charges = {period: charge for period, charge in self.charges.items() if period >= begin}
        charges |= {charge.period: charge for charge in written}
        return self._replace(last=written[-1].number, periods=range(begin, self.periods.stop), charges=charges)


class Charges:
    """The charges of all streams, and what this process knows of them."""

    def __init__(self, database: Database[Any]) -> None:
        """Start without knowing any."""
        self._database = database
        self._views: dict[str, _View] = {}
        self._costs: dict[bytes, tuple[Cost, ...]] = {}
        self._prices: dict[tuple[Any, ...], Fraction] = {}

    def charge(
        self, stream: str, made: bytes, digests: Mapping[int, bytes], *, w: int, alpha: float
    ) -> tuple[dict[int, int], dict[int, Parts]]:
        """Charge the periods that are not charged yet; return the numbers of the charges, and what is released already.

        Raises:
            BudgetError: Some window would cost more than the policy allows.
            ConflictError: A period was released from other data or with another plan.
        """
        periods = list(digests)
        for attempt in range(ATTEMPTS):
            view = self._views.pop(stream, None)
            known = view is not None and view.covers(periods)
            if view is None or not known:
                view = self._look(stream, periods)
            try:
                check_fits(stream, view.policy, w, alpha)
                return self._charge(stream, made, digests, view)
            except StaleError:
                pause(attempt)
            except (BudgetError, ParameterError):
                # What was known may be out of date: the policy may allow more by now.
                if not known:
                    raise
        raise LedgerError(f"stream {stream!r} is charged by other processes all the time")

    def _look(self, stream: str, periods: Sequence[int]) -> _View:
        begin, end = periods[0] - 1, periods[-1] + 1 + AHEAD
        with self._database.transaction(write=False) as reading:
            policy = policy_of(stream, reading.rows(POLICY, (stream,)))
            # A transaction that reads sees one moment, so no charge up to the last number can be missing.
            rows = reading.rows(CHARGED, (stream, begin, end))
            ((last,),) = reading.rows("SELECT max(number) FROM optstream_charges WHERE stream = ?", (stream,))
        charges = {row[0]: Charge.read(stream, row) for row in rows}
        epsilon, _, _, neighbours = policy_row(policy)
        return _View(policy, (epsilon, neighbours), last or 0, range(begin, end + 1), charges)

    def _charge(
        self, stream: str, made: bytes, digests: Mapping[int, bytes], view: _View
    ) -> tuple[dict[int, int], dict[int, Parts]]:
        now = datetime.now(UTC).isoformat()
        written: list[Charge] = []
        for period, digest in digests.items():
            known = view.charges.get(period)
            if known is not None:
                known.check_void(stream)
            if known is None or (known.plan, known.data) != (made, digest):
                written.append(Charge(period, view.last + len(written) + 1, made, digest, now, None))
        after = view
        if written:
            after = view.after(written)
            for charge in written:
                if charge.period in view.charges:
                    view.charges[charge.period].check_unreleased(stream, made)
                self._check_windows(stream, after, charge.period)
            self._write(stream, view, written)
            self._views[stream] = after
        numbers = {period: after.charges[period].number for period in digests}
        released = [period for period in digests if period in view.charges and view.charges[period].released]
        if not released:
            return numbers, {}
        with self._database.transaction(write=False) as reading:
            found = stored(reading, stream, released[0], released[-1])
        return numbers, {period: found[period] for period in released}

    def _write(self, stream: str, view: _View, written: Sequence[Charge]) -> None:
        """Write charges, or raise StaleError if the view is out of date."""
        new = [(*charge.row(stream), stream, *view.row) for charge in written if charge.period not in view.charges]
        if len(new) == len(written) == 1:
            # Not forced: the commit that stores the release forces both, and nothing leaves before.
            if self._database.write_alone(CHARGE, new[0], forced=False) != 1:
                raise StaleError(f"stream {stream!r} was charged by another process")
            return
        with self._database.transaction() as change:
            done = change.write(CHARGE, *new) if new else 0
            for charge in written:
                if charge.period in view.charges:
                    old = view.charges[charge.period].number
                    done += change.write(RECHARGE, (*charge.row(stream)[2:], stream, old))
            if done != len(written):
                raise StaleError(f"stream {stream!r} was charged by another process")

    def make_void(self, stream: str, period: int, number: int, why: str) -> None:
        """Keep a charge and let nothing be released for it, unless something was."""
        for attempt in range(ATTEMPTS):
            view = self._look(stream, [period])
            charge = view.charges[period]
            if charge.number != number or charge.released:
                return
            row = charge._replace(number=view.last + 1, void=why).row(stream)
            try:
                self._database.write_alone(RECHARGE, (*row[2:], stream, number))
            except StaleError:
                pause(attempt)
            else:
                return

    def _check_windows(self, stream: str, view: _View, period: int) -> None:
        """Raise unless every window that meets a period is within the policy."""
        policy = view.policy
        reach = (0,) if policy.neighbours == "aligned" else (-1, 0, 1)
        plans = tuple(view.charges[period + by].plan if period + by in view.charges else None for by in reach)
        case = (policy.w, plans)
        if case not in self._prices:
            around = [
                accounting.moved(cost, by * policy.w)
                for by, digest in zip(reach, plans, strict=True)
                if digest is not None
                for cost in self.costs_of(digest)
            ]
            # Windows that meet the period start from w - 1 steps before its first step to its last.
            first, windows = accounting.window_costs(around, policy.w)
            self._prices[case] = max(windows[max(1 - policy.w - first, 0) : policy.w - first])
        price = self._prices[case]
        if price > policy.epsilon:
            raise BudgetError(
                f"releasing period {period} of {stream!r} would make a window cost {price}, but its policy allows "
                f"{policy.epsilon}; nothing was charged"
            )

    def costs_of(self, made: bytes) -> tuple[Cost, ...]:
        """Return what a period of a plan costs."""
        if made not in self._costs:
            with self._database.transaction(write=False) as reading:
                ((text,),) = reading.rows("SELECT costs FROM optstream_plans WHERE digest = ?", (made,))
            self._costs[made] = accounting.from_data(json.loads(text))
        return self._costs[made]
