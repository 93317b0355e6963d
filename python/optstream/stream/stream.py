"""Streams: observations come one by one, private periods leave."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakSet

import numpy as np

from optstream.baselines.baseline import Baseline
from optstream.baselines.stepwise import Stepwise
from optstream.data.clock import Clock
from optstream.errors import ConflictError, DataError, LedgerError, ParameterError, ParameterTypeError, StreamError
from optstream.ledger import Ledger
from optstream.ledger.database import StaleError, pause
from optstream.mechanism.loop import draw_period, price_next
from optstream.mechanism.optstream import OptStream
from optstream.mechanism.state import State, public_memory, sealed, unsealed
from optstream.names import checked_name
from optstream.stream.keyed import curator_of, keyed_draw
from optstream.stream.open_period import Closed, OpenPeriod, Rules, finite
from optstream.stream.per_step import StepStream

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta
    from fractions import Fraction
    from pathlib import Path

    from numpy.typing import NDArray

    from optstream.keys import CuratorKey
    from optstream.ledger.observations import Kept
    from optstream.mechanism.per_step import StepRelease
    from optstream.mechanism.release import Parts

    Vector = NDArray[np.float64]

__all__ = ["Stream"]

LOG = logging.getLogger("optstream.stream")
EVERY: WeakSet[Stream] = WeakSet()
ATTEMPTS = 500
"""How often a push is tried again after another process has changed the stream."""


class Stream:
    """A stream that is released period by period as its observations come in.

    A period is the steps ``n * w`` to ``(n + 1) * w - 1``, and is released when all of them are there. An observation
    is taken entirely or not at all: after an exception the stream is as it was, and the call may be made again.

    Args:
        mechanism: How periods are released. A baseline that goes step by step releases every step as it comes, without
            a ledger.
        ledger: Where charges, releases and the open period are kept. Without one :attr:`state` is yours to keep.
        name: The name of the stream in the ledger.
        step: The time between two steps, if observations come with times instead of step numbers.
        origin: The time of step 0.
        late: What to do with an observation of a period that is released or passed over: ``"refuse"`` it, ``"drop"``
            it, or return the ``"stored"`` release of its period, for engines that deliver at least once.
        duplicate: What to do with a second observation of a step: ``"refuse"`` it, ``"keep"`` the first or
            ``"replace"`` it.
        disorder: Whether steps of the open period may come in any order: ``"refuse"`` or ``"accept"``.
        missing: What to do when a later step comes and some before it are missing: ``"refuse"`` it; put a public
            number in their place; ``"hold"`` the last value; or ``"skip"`` the period, which is then never released.
            Periods without any observation are passed over. Which steps are missing is taken to be public.
        absent: What to do with an observation of a hierarchy that lacks leaves: ``"refuse"`` it, or put a public number
            in their place. A number assumes that which leaves are absent is public, or that the number is what an
            absent leaf counts, such as 0 for counts: otherwise an entity that makes a leaf absent moves it by more than
            ``alpha``.
        state: What to go on from: :attr:`state` of an earlier stream, :attr:`Release.state`, or :attr:`Tuning.state`.
            With a ledger, which keeps everything itself, only what public history says.
        create: Whether a stream that the ledger does not know is made there; by default as the ledger was opened.
        emit: ``"step"`` releases every step as it comes, as a :class:`StepRelease`: its value, interval, time and
            statement. A period is then charged with its first step, and a step that has left cannot be corrected:
            the same observation again returns what has left. ``missing="hold"`` holds the last released value, which
            costs nothing. Without a ledger the state also holds what cube noise keeps pending: a copy of it that is
            used twice is a second look at the data.
        key: Without a ledger: the curator's key, or the path of its file, from which noise is derived, so that the same
            data of a period gives the same release bit for bit wherever the stream goes on from the same state. A
            ledger has its own.

    Holding a value makes one step's contribution count several times. The accountant prices this: the step that is
    repeated pays for its repetitions, and the period gets as much less epsilon as keeps every window within the
    guarantee. At the start of a period there is nothing to hold but the last *released* value, which costs nothing.

    Example:
        >>> import optstream as ops
        >>> mechanism = ops.OptStream(ops.Guarantee(epsilon=1, w=3), sample=ops.EqualSampling(k=3), bounds=(0, 100))
        >>> stream = Stream(mechanism, name="visits")
        >>> [stream.push(step, 50.0) for step in range(3)]
        [None, None, Release(periods=1, w=3, epsilon=1)]
    """

    def __init__(  # noqa: C901  (one check for each parameter)
        self,
        mechanism: OptStream | Baseline,
        *,
        name: str = "stream",
        ledger: Ledger | None = None,
        step: timedelta | None = None,
        origin: datetime | None = None,
        late: Literal["refuse", "drop", "stored"] = "refuse",
        duplicate: Literal["refuse", "keep", "replace"] = "refuse",
        disorder: Literal["refuse", "accept"] = "refuse",
        missing: Literal["refuse", "hold", "skip"] | float = "refuse",
        absent: Literal["refuse"] | float = "refuse",
        state: Mapping[str, Any] | None = None,
        create: bool | None = None,
        emit: Literal["period", "step"] = "period",
        key: CuratorKey | str | Path | None = None,
    ) -> None:
        self._lock, self._forked = Lock(), False
        EVERY.add(self)
        self._per_step: StepStream | None = None
        if emit not in {"period", "step"}:
            raise ParameterError(f"emit is {emit!r}, but must be 'period' or 'step'")
        if isinstance(absent, str) and absent != "refuse":
            raise ParameterError(f"absent is {absent!r}, but must be 'refuse' or a number")
        self._absent = None if isinstance(absent, str) else finite("absent", absent)
        self._clock = Clock.of(step, origin)
        self._rules = Rules.of(late=late, duplicate=duplicate, disorder=disorder, missing=missing)
        self._stepwise: Stepwise | None = None
        self._name = name
        if isinstance(mechanism, Baseline):
            given = {"ledger": ledger, "state": state, "key": key}
            for unfit in (parameter for parameter, value in given.items() if value is not None):
                raise ParameterError(f"{unfit} is given, but must not be: a baseline keeps what it needs in memory")
            self._stepwise = Stepwise(mechanism, self._clock, self._rules)
            return
        if not isinstance(mechanism, OptStream):
            raise ParameterTypeError(f"mechanism is of type {type(mechanism).__name__}, but must be OptStream")
        if ledger is not None and not isinstance(ledger, Ledger):
            raise ParameterTypeError(f"ledger is of type {type(ledger).__name__}, but must be Ledger")
        self._mechanism, self._ledger = mechanism, ledger
        if key is not None and ledger is not None:
            raise ParameterError("key is given, but must not be with a ledger, which has its own")
        self._key = None if key is None else curator_of(key)
        self._memory = None if state is None or ledger is None else public_memory(state, mechanism)
        self._state = OpenPeriod()
        if ledger is not None:
            # What does not fit, such as another clock, shows now.
            ledger.enrol(name, mechanism, str(self._clock), create=create)
        if emit == "step":
            self._per_step = StepStream(
                mechanism,
                self._clock,
                self._rules,
                ledger=ledger,
                name=checked_name(name) if self._key is not None else name,
                memory=self._memory,
                state=state,
                key=self._key,
            )
        elif ledger is not None:
            self._load()
        elif state is not None:
            self._state = self._begun(state)

    def __reduce__(self) -> Any:
        """Refuse to be copied: two streams on one open period would release it twice."""
        raise StreamError("a stream cannot be copied or pickled, but its state can be handed on: Stream.state")

    __copy__ = __reduce__

    def __deepcopy__(self, memo: Any) -> Any:
        return self.__reduce__()

    def __repr__(self) -> str:
        if self._stepwise is not None:
            return f"Stream(name={self._name!r}, step by step)"
        if self._per_step is not None:
            return f"Stream(name={self._name!r}, step by step, open_steps={self._per_step.open_steps})"
        open_steps = len(self._state.values)
        return f"Stream(name={self._name!r}, released={self._state.released}, open_steps={open_steps})"

    @property
    def released(self) -> int | None:
        """The last period that is released or passed over, as far as this process knows; None before the first."""
        if self._per_step is not None:
            return self._per_step.released
        return None if self._stepwise is not None else self._state.released

    @property
    def open_steps(self) -> int:
        """How many steps of the open period are there, as far as this process knows."""
        if self._per_step is not None:
            return self._per_step.open_steps
        return 0 if self._stepwise is not None else len(self._state.values)

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
        """What makes the stream go on after a restart without a ledger: plain data for JSON. It holds raw values."""
        if self._stepwise is not None:
            raise StreamError("the state of a baseline cannot be kept")
        self._check_process()
        if self._per_step is not None:
            return self._per_step.state
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

    def released_steps(self, period: int) -> list[StepRelease]:
        """Return the steps of a period that have left one by one, as the ledger has them.

        Raises:
            StreamError: The stream has no ledger, or releases whole periods.
        """
        if self._per_step is None or self._ledger is None:
            raise StreamError("the stream keeps no steps, but must have a ledger and emit='step'")
        if isinstance(period, bool) or not isinstance(period, int):
            raise ParameterTypeError(f"period is of type {type(period).__name__}, but must be an int")
        return [release for _, release in self._per_step.stored(period)]

    def _check_process(self) -> None:
        """Raise if this is a copy of the stream in a forked process, which no ledger tells from the other.

        With a ledger the copy takes up what is true there.
        """
        if not self._forked:
            return
        if self._stepwise is not None or self._ledger is None:
            raise StreamError(
                "a stream without a ledger stays in the process that made it: two copies would release its open "
                "period twice. Make it after the fork, from Stream.state, or give it a ledger"
            )
        if self._per_step is not None:
            self._per_step.look_again()
        self._load()
        self._forked = False

    def discard(self) -> int:
        """Drop the observations of the open period; return their number. What was released stays released."""
        with self._lock:
            self._check_process()
            if self._stepwise is not None or self._per_step is not None:
                return 0
            self._load()
            count, state = len(self._state.values), replace(self._state, values={})
            if count:
                self._carry_out(state, [])
            return count

    def push(self, when: int | datetime, value: Any) -> Any:
        """Take one observation; return a release when it completes a period, else None.

        Args:
            when: The number of the step, or its time if the stream has ``step`` and ``origin``.
            value: A number, or for a hierarchy a mapping with a number for every leaf.

        Raises:
            StreamError: The observation is late, a duplicate, out of order, or some before it are missing.
            DataError: The value is not a finite number, or a leaf is missing.
            LedgerError: The ledger failed or refused; see :class:`Ledger`.

        If a release fails after its noise was drawn, the error is raised once and the period is void: charged, never
        released and never drawn again.
        """
        released = self.push_many([when], [value])
        return released[-1] if released else None

    def push_many(self, when: Iterable[int | datetime], values: Iterable[Any]) -> list[Any]:
        """Take observations in the given order, all or none; return the releases of the periods that they complete."""
        try:
            pairs = list(zip(when, values, strict=True))
        except ValueError:
            raise DataError("when and values differ in length, but must not") from None
        if self._stepwise is not None:
            numbers = [(self._clock.step_of(when), np.array([finite(f"value at {when}", x)])) for when, x in pairs]
            with self._lock:
                self._check_process()
                return list(self._stepwise.push_many(numbers))
        observations = [(self._clock.step_of(moment), self._vector(moment, value)) for moment, value in pairs]
        with self._lock:
            self._check_process()
            if self._per_step is not None:
                return list(self._per_step.push_many(observations))
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
        with self._lock:
            self._check_process()
            if self._stepwise is not None or self._per_step is not None or not self._state.values:
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
            raise StreamError(f"step {step} is late: period {step // w} is closed, and late is 'refuse'")
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
                draw = None if self._key is None else keyed_draw(self._key, checked_name(self._name), period.sources)
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
        if self._ledger is None or self._per_step is not None:
            return
        kept: Kept = self._ledger.kept(self._name)
        self._state = OpenPeriod(
            released=kept.released,
            published=None if kept.published is None else self._leaves_of(kept.published),
            values=dict(kept.values),
            revision=kept.revision,
        )

    def _vector(self, when: Any, value: Any) -> Vector:
        """Return an observation as one number for every leaf."""
        hierarchy = self._mechanism.hierarchy
        if hierarchy is None:
            return np.array([finite(f"value at {when}", value)])
        if not isinstance(value, Mapping):
            raise ParameterTypeError(
                f"value at {when} is of type {type(value).__name__}, but must map leaves to numbers"
            )
        leaves = hierarchy.leaves
        if not value.keys() <= set(leaves):
            # A name that is not public may be anything, also a person's.
            raise DataError(f"value at {when} has a name that is no leaf, but must have leaves of the hierarchy only")
        lacking = next((name for name in leaves if name not in value), None)
        if lacking is not None and self._absent is None:
            raise DataError(
                f"value at {when} has no leaf {lacking!r}, but must have all {len(leaves)}: give a number for every "
                "leaf, or say by absent=NUMBER what one that does not come counts"
            )
        return np.array([finite(f"{name!r} at {when}", value.get(name, self._absent)) for name in leaves])


def _after_fork() -> None:
    """Let no thread that is not here hold a stream, and no stream go on as if it were the only one."""
    for stream in EVERY:
        stream._lock, stream._forked = Lock(), True  # noqa: SLF001


os.register_at_fork(after_in_child=_after_fork)


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
