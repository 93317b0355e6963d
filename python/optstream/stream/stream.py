"""Streams: observations come one by one, private periods or steps leave."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, cast
from weakref import WeakSet

import numpy as np

from optstream.data.clock import Clock
from optstream.errors import DataError, ParameterError, ParameterTypeError, StreamError
from optstream.ledger import Ledger
from optstream.mechanism.mechanism import check_mechanism
from optstream.mechanism.state import public_memory
from optstream.names import checked_name
from optstream.stream.by_period import PeriodStream
from optstream.stream.by_step import StepStream
from optstream.stream.keyed import curator_of
from optstream.stream.open_period import Rules, finite

if TYPE_CHECKING:
    from datetime import datetime, timedelta
    from pathlib import Path

    from numpy.typing import NDArray

    from optstream.keys import CuratorKey
    from optstream.mechanism.mechanism import Mechanism
    from optstream.mechanism.optstream import OptStream
    from optstream.mechanism.step_release import StepRelease

    Vector = NDArray[np.float64]

__all__ = ["Stream"]

EVERY: WeakSet[Stream] = WeakSet()


class Stream:
    """A stream that is released period by period as its observations come in.

    A period is the steps ``n * w`` to ``(n + 1) * w - 1``, and is released when all of them are there. An observation
    is taken entirely or not at all: after an exception the stream is as it was, and the call may be made again.

    Args:
        mechanism: How periods, or steps, are released: an :class:`OptStream`, or a mechanism of
            :mod:`optstream.baselines` that goes step by step.
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
        emit: ``"period"`` releases whole periods, as an :class:`OptStream` does by default; other mechanisms know
            ``"step"`` only, which releases every step as it comes, as a :class:`StepRelease`: its value, interval, time
            and statement. A period is then charged with its first step, and a step that has left cannot be corrected:
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

    def __init__(
        self,
        mechanism: Mechanism,
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
        emit: Literal["period", "step"] | None = None,
        key: CuratorKey | str | Path | None = None,
    ) -> None:
        self._lock, self._forked = Lock(), False
        EVERY.add(self)
        if isinstance(absent, str) and absent != "refuse":
            raise ParameterError(f"absent is {absent!r}, but must be 'refuse' or a number")
        self._absent = None if isinstance(absent, str) else finite("absent", absent)
        self._clock = Clock.of(step, origin)
        rules = Rules.of(self._clock, late=late, duplicate=duplicate, disorder=disorder, missing=missing)
        check_mechanism(mechanism)
        if emit not in {None, "period", "step"}:
            raise ParameterError(f"emit is {emit!r}, but must be 'period' or 'step'")
        emits = emit or (mechanism.emits or ("period",))[0]
        check_mechanism(mechanism, emits)
        if ledger is not None and not isinstance(ledger, Ledger):
            raise ParameterTypeError(f"ledger is of type {type(ledger).__name__}, but must be Ledger")
        if key is not None and ledger is not None:
            raise ParameterError("key is given, but must not be with a ledger, which has its own")
        curator = None if key is None else curator_of(key)
        self._mechanism, self._ledger = mechanism, ledger
        self._name = name if curator is None else checked_name(name)
        known: dict[str, Any] = {
            "ledger": ledger,
            "name": self._name,
            "memory": None if state is None or ledger is None else public_memory(state, mechanism),
            "state": state,
            "key": curator,
        }
        if emits == "step":
            # What cannot go step by step shows before the ledger hears of it.
            _ = mechanism.walks
        if ledger is not None:
            # What does not fit, such as another clock, shows now.
            ledger.enrol(name, mechanism, str(self._clock), create=create)
        self._open: PeriodStream | StepStream
        if emits == "step":
            self._open = StepStream(mechanism, self._clock, rules, **known)
        else:
            # Only an OptStream emits whole periods.
            self._open = PeriodStream(cast("OptStream", mechanism), self._clock, rules, **known)

    def __reduce__(self) -> Any:
        """Refuse to be copied: two streams on one open period would release it twice."""
        raise StreamError("a stream cannot be copied or pickled, but its state can be handed on: Stream.state")

    __copy__ = __reduce__

    def __deepcopy__(self, memo: Any) -> Any:
        return self.__reduce__()

    def __repr__(self) -> str:
        how = "step by step, " if isinstance(self._open, StepStream) else f"released={self.released}, "
        return f"Stream(name={self._name!r}, {how}open_steps={self.open_steps})"

    @property
    def released(self) -> int | None:
        """The last period that is released or passed over, as far as this process knows; None before the first."""
        return self._open.released

    @property
    def open_steps(self) -> int:
        """How many steps of the open period are there, as far as this process knows."""
        return self._open.open_steps

    @property
    def state(self) -> dict[str, Any]:
        """What makes the stream go on after a restart without a ledger: plain data for JSON. It holds raw values."""
        self._check_process()
        return self._open.state

    def released_steps(self, period: int) -> list[StepRelease]:
        """Return the steps of a period that have left one by one, as the ledger has them.

        Raises:
            StreamError: The stream has no ledger, or releases whole periods.
        """
        if self._ledger is None or not isinstance(self._open, StepStream):
            raise StreamError("the stream keeps no steps, but must have a ledger and emit='step'")
        if isinstance(period, bool) or not isinstance(period, int):
            raise ParameterTypeError(f"period is of type {type(period).__name__}, but must be an int")
        return [release for _, release in self._open.stored(period)]

    def _check_process(self) -> None:
        """Raise if this is a copy of the stream in a forked process, which no ledger tells from the other.

        With a ledger the copy takes up what is true there.
        """
        if not self._forked:
            return
        if self._ledger is None:
            raise StreamError(
                "a stream without a ledger stays in the process that made it: two copies would release its open "
                "period twice. Make it after the fork, from Stream.state, or give it a ledger"
            )
        self._open.look_again()
        self._forked = False

    def discard(self) -> int:
        """Drop the observations of the open period; return their number. What was released stays released."""
        with self._lock:
            self._check_process()
            return self._open.discard()

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
        observations = [(self._clock.step_of(moment), self._vector(moment, value)) for moment, value in pairs]
        with self._lock:
            self._check_process()
            return list(self._open.push_many(observations))

    def flush(self) -> Any:
        """Close the open period although steps at its end are missing, as ``missing`` says; return its release."""
        with self._lock:
            self._check_process()
            return self._open.flush()

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
