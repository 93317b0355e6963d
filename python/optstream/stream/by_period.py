"""A stream whose periods leave when they are complete."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream.errors import ConflictError, LedgerError, ParameterError, ParameterTypeError, StreamError
from optstream.ledger.database import StaleError, pause
from optstream.mechanism.loop import draw_period, price_next
from optstream.mechanism.state import State, sealed, unsealed
from optstream.stream.keyed import keyed_draw
from optstream.stream.open_period import Closed, OpenPeriod, Rules

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from numpy.typing import NDArray

    from optstream.data.clock import Clock
    from optstream.keys import CuratorKey
    from optstream.ledger import Ledger
    from optstream.ledger.observations import Kept
    from optstream.mechanism.optstream import OptStream
    from optstream.mechanism.release import Parts

    Vector = NDArray[np.float64]

__all__ = ["ATTEMPTS", "PeriodStream"]

LOG = logging.getLogger("optstream.stream")
ATTEMPTS = 500
"""How often a push is tried again after another process has changed the stream."""


class PeriodStream:
    """What a :class:`Stream` with ``emit="period"`` does with observations.

    Args:
        mechanism: How periods are released.
        clock: Which time a step is.
        rules: What to do with observations that do not come in order.
        ledger: Where charges, releases and the open period are kept.
        name: The name of the stream in the ledger.
        memory: What public history says, with a ledger.
        state: What to go on from, without one.
        key: What noise is derived from, without one.
    """

    def __init__(
        self,
        mechanism: OptStream,
        clock: Clock,
        rules: Rules,
        *,
        ledger: Ledger | None,
        name: str,
        memory: Mapping[str, Any] | None,
        state: Mapping[str, Any] | None,
        key: CuratorKey | None = None,
    ) -> None:
        self._mechanism, self._clock, self._rules = mechanism, clock, rules
        self._ledger, self._name, self._memory, self._key = ledger, name, memory, key
        self._state = OpenPeriod()
        if ledger is not None:
            self._load()
        elif state is not None:
            self._state = self._begun(state)

    @property
    def released(self) -> int | None:
        """The last period that is released or passed over, as far as this process knows."""
        return self._state.released

    @property
    def open_steps(self) -> int:
        """How many steps of the open period are there."""
        return len(self._state.values)

    @property
    def _width(self) -> int:
        hierarchy = self._mechanism.hierarchy
        return 1 if hierarchy is None else len(hierarchy.leaves)

    def _begun(self, state: Mapping[str, Any]) -> OpenPeriod:
        """Return the open period of a stream that goes on from a state, its own or that of a release."""
        if not isinstance(state, Mapping):
            raise ParameterTypeError(f"state is of type {type(state).__name__}, but must be a mapping")
        if state.get("emit") == "step":
            raise ParameterError("state is of a stream with emit='step', but must be of one with emit='period'")
        if "observations" not in state:
            known = State.read(state, self._mechanism, str(self._clock))
            return OpenPeriod(released=known.last, known=known)
        content = unsealed(state)
        if content.get("clock") != str(self._clock):
            # On another clock the same hours would be released again as other periods.
            raise ParameterError(f"state is of a stream with another clock, but must have {self._clock}")
        if not isinstance(content.get("known"), Mapping):
            raise ParameterError("state is damaged, but must be what Stream.state gave")
        known = State.read(content["known"], self._mechanism, str(self._clock))
        begun = replace(OpenPeriod.read(content, self._width), known=known)
        begun.check(self._mechanism.guarantee.w, known.last)
        return begun

    @property
    def state(self) -> dict[str, Any]:
        """What makes the stream go on after a restart without a ledger. It holds raw values."""
        state = self._state
        return sealed(
            {
                "clock": str(self._clock),
                "released": state.released,
                "published": None if state.published is None else state.published.tolist(),
                "observations": {str(step): value.tolist() for step, value in state.values.items()},
                "known": (state.known or State(clock=str(self._clock))).to_data(self._mechanism.guarantee),
            }
        )

    def look_again(self) -> None:
        """Take up what the ledger says before anything else."""
        self._load()

    def discard(self) -> int:
        """Drop the observations of the open period; return their number."""
        self._load()
        count, state = len(self._state.values), replace(self._state, values={})
        if count:
            self._carry_out(state, [])
        return count

    def push_many(self, observations: Sequence[tuple[int, Vector]]) -> list[Any]:
        """Take observations in the given order, all or none; return the releases of the periods that they complete."""
        for attempt in range(ATTEMPTS):
            try:
                return self._take(observations)
            except StaleError:
                # Another process has changed the stream, which may change what these observations mean.
                self._load()
                pause(attempt)
            except (StreamError, ConflictError):
                # Judged by what this process remembers, which may be out of date.
                revision = self._state.revision
                self._load()
                if self._state.revision == revision:
                    raise
        raise LedgerError(f"stream {self._name!r} is changed by other processes all the time")

    def flush(self) -> Any:
        """Close the open period although steps at its end are missing, as ``missing`` says; return its release."""
        if not self._state.values:
            return None
        w, state = self._mechanism.guarantee.w, self._state.copy()
        closed = state.close(self._rules, w, state.number(w) * w + w)
        released = self._carry_out(state, closed)
        return released[-1] if released else None

    def _take(self, observations: Sequence[tuple[int, Vector]]) -> list[Any]:
        w, state = self._mechanism.guarantee.w, self._state.copy()
        closed: list[Closed] = []
        again: list[int] = []
        for step, value in observations:
            if state.is_late(step, w):
                again += self._late(step, w)
            else:
                closed += state.add(self._rules, w, step, value)
        return [*(self._stored(period) for period in dict.fromkeys(again)), *self._carry_out(state, closed)]

    def _late(self, step: int, w: int) -> list[int]:
        if self._rules.late == "refuse":
            raise StreamError(f"{self._clock.named(step)} is late: period {step // w} is closed, and late is 'refuse'")
        return [step // w] if self._rules.late == "stored" else []

    def _stored(self, period: int) -> Any:
        release = None if self._ledger is None else self._ledger.stored(self._name, period)
        if release is None:
            raise StreamError(f"period {period} is closed, but its release is not stored")
        return replace(release, start=self._clock.time_of(period * self._mechanism.guarantee.w))

    def _carry_out(self, state: OpenPeriod, closed: Sequence[Closed]) -> list[Any]:
        """Release what is closed and keep what is open, together; then go on from the new state."""
        runs = _runs(_holdable(closed, state.published), self._mechanism.guarantee.w)
        released = self._drawn(state, runs) if self._ledger is None else self._charged(self._ledger, state, runs)
        self._state = state
        return released

    def _drawn(self, state: OpenPeriod, runs: Sequence[Sequence[Closed]]) -> list[Any]:
        """Return closed periods as they are released without a ledger, and what is known after them."""
        if not runs:
            return []
        before = state.known or State.read(None, self._mechanism, str(self._clock))
        known, released = deepcopy(before), []
        void = replace(state, published=self._state.published)
        for run in runs:
            units = self._read(run, state.published)
            for period, rows in zip(run, units, strict=True):
                priced = price_next(self._mechanism, known, period.period, period.sources)
                # Spent before it is drawn: if anything fails from here on, even an interrupt, another draw would be a
                # second look, so that what is closed is void.
                spent = replace(before, last=period.period, costs=priced.costs, handed_over=True)
                void = self._state = replace(void, known=spent)
                draw = None if self._key is None else keyed_draw(self._key, self._name, period.sources)
                drawn = draw_period(priced, rows, period.period, known, draw)
                released.append(self._assembled(period.period, priced.mechanism, drawn.parts, priced.epsilon))
                state.published = self._leaves_of(drawn.parts)
        state.known = known
        for release in released:
            LOG.info("released period %d of %r", release.period, self._name)
        return released

    def _charged(self, ledger: Ledger, state: OpenPeriod, runs: Sequence[Sequence[Closed]]) -> list[Any]:
        """Return closed periods as a ledger releases them, and keep what is open in it."""
        before = self._state
        forget = [step for step in before.values if step not in state.values]
        add = {step: value for step, value in state.values.items() if before.values.get(step) is not value}
        released: list[Any] = []
        for run in runs:
            drawn = ledger.release_parts(
                self._mechanism,
                self._read(run, state.published),
                stream=self._name,
                period=run[0].period,
                held=run[0].sources,
                memory=self._memory,
                finish=ledger.keeper(self._name, state.revision, forget, add) if run is runs[-1] else None,
            )
            released += [
                self._assembled(period.period, one.priced.mechanism, one.parts, one.priced.epsilon)
                for period, one in zip(run, drawn, strict=True)
            ]
            state.published = self._leaves_of(drawn[-1].parts)
        if not runs:
            # Also if nothing is new: what this process believes may be out of date.
            ledger.keep(self._name, state.revision, forget, add)
        state.revision += 1
        return released

    def _assembled(self, period: int, made: OptStream, parts: Parts, epsilon: Fraction) -> Any:
        start = self._clock.time_of(period * made.guarantee.w)
        before = "through the same stream"
        if self._ledger is not None:
            before = f"of {self._name!r} through the ledger"
        scope = f"Holds for every window that meets this period, with all that was released before it {before}."
        statement = replace(made.statement, epsilon=epsilon, scope=scope)
        return made.assemble_period(parts, period, start, statement)

    def _read(self, run: Sequence[Closed], published: Vector | None) -> NDArray[np.int64]:
        """Return the quantised data of closed periods."""
        w = self._mechanism.guarantee.w
        rows = [period.rows(w, self._width, published) for period in run]
        data = np.concatenate(rows)
        return self._mechanism.read(data if self._mechanism.hierarchy is not None else data.ravel()).units

    def _leaves_of(self, parts: Parts) -> Vector:
        """Return what was released last of every leaf."""
        hierarchy = self._mechanism.hierarchy
        last = parts.values[:, -1]
        return last if hierarchy is None else last[hierarchy.leaf_positions]

    def _load(self) -> None:
        if self._ledger is None:
            return
        kept: Kept = self._ledger.kept(self._name)
        self._state = OpenPeriod(
            released=kept.released,
            published=None if kept.published is None else self._leaves_of(kept.published),
            values=dict(kept.values),
            revision=kept.revision,
        )


def _holdable(closed: Sequence[Closed], published: Vector | None) -> list[Closed]:
    """Return closed periods without those that begin with a hole before anything was released that could be held."""
    kept: list[Closed] = []
    for period in closed:
        if kept or published is not None or not period.begins_with_a_hole:
            kept.append(period)
    return kept


def _runs(closed: Sequence[Closed], w: int) -> list[list[Closed]]:
    """Return runs of consecutive periods that can be released in one go: those in which nothing is held."""
    runs: list[list[Closed]] = []
    for period in closed:
        last = runs[-1][-1] if runs else None
        holds = period.fill is None and len(period.values) < w
        if last is None or holds or last.sources or last.period + 1 != period.period:
            runs.append([])
        runs[-1].append(period)
    return runs
