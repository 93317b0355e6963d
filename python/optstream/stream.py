"""Streams: observations come one by one, private periods leave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from optstream import accounting
from optstream.errors import ConflictError, DataError, LedgerError, ParameterError, ParameterTypeError, StreamError
from optstream.ledger import Ledger
from optstream.ledger.database import StaleError, pause
from optstream.mechanism import OptStream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from optstream.ledger.observations import Kept
    from optstream.release import Parts

    Vector = NDArray[np.float64]

__all__ = ["Stream"]

LARGEST = 2**40
"""Steps are below this: a time that is far off is a slip, and would close every period before it."""
ATTEMPTS = 500
"""How often a push is tried again after another process has changed the stream."""


class Stream:
    """A stream that is released period by period as its observations come in.

    A period is the steps ``n * w`` to ``(n + 1) * w - 1``, and is released when all of them are there. An observation
    is taken entirely or not at all: after an exception the stream is as it was, and the call may be made again.

    Args:
        mechanism: How periods are released.
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
        state: What :attr:`state` of an earlier stream gave, if there is no ledger.

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
        mechanism: OptStream,
        *,
        name: str = "stream",
        ledger: Ledger | None = None,
        step: timedelta | None = None,
        origin: datetime | None = None,
        late: Literal["refuse", "drop", "stored"] = "refuse",
        duplicate: Literal["refuse", "keep", "replace"] = "refuse",
        disorder: Literal["refuse", "accept"] = "refuse",
        missing: Literal["refuse", "hold", "skip"] | float = "refuse",
        state: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(mechanism, OptStream):
            raise ParameterTypeError(f"mechanism is of type {type(mechanism).__name__}, but must be OptStream")
        if ledger is not None and not isinstance(ledger, Ledger):
            raise ParameterTypeError(f"ledger is of type {type(ledger).__name__}, but must be Ledger")
        if ledger is not None and state is not None:
            raise ParameterError("state is given, but must not be: the ledger keeps it")
        self._mechanism, self._ledger, self._name = mechanism, ledger, name
        self._lock = Lock()
        self._clock = _Clock.of(step, origin)
        self._rules = _Rules.of(late=late, duplicate=duplicate, disorder=disorder, missing=missing)
        self._state = _State() if state is None else _State.read(state, self._width)
        if ledger is not None:
            # What does not fit, such as another clock, shows now.
            ledger.enrol(name, mechanism, str(self._clock))
            self._load()

    def __repr__(self) -> str:
        open_steps = len(self._state.values)
        return f"Stream(name={self._name!r}, released={self._state.released}, open_steps={open_steps})"

    @property
    def _width(self) -> int:
        hierarchy = self._mechanism.hierarchy
        return 1 if hierarchy is None else len(hierarchy.leaves)

    @property
    def state(self) -> dict[str, Any]:
        """What makes the stream go on after a restart without a ledger: plain data for JSON. It holds raw values."""
        state = self._state
        return {
            "released": state.released,
            "published": None if state.published is None else state.published.tolist(),
            "observations": {str(step): value.tolist() for step, value in state.values.items()},
        }

    def push(self, when: int | datetime, value: Any) -> Any:
        """Take one observation; return a release when it completes a period, else None.

        Args:
            when: The number of the step, or its time if the stream has ``step`` and ``origin``.
            value: A number, or for a hierarchy a mapping with a number for every leaf.

        Raises:
            StreamError: The observation is late, a duplicate, out of order, or some before it are missing.
            DataError: The value is not a finite number, or a leaf is missing.
            LedgerError: The ledger failed or refused; see :class:`Ledger`.
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
            if not self._state.values:
                return None
            w, state = self._mechanism.guarantee.w, self._state.copy()
            closed = state.close(self._rules, w, state.open_period(w) * w + w)
            released = self._carry_out(state, closed)
            return released[-1] if released else None

    def _take(self, observations: Sequence[tuple[int, Vector]]) -> list[Any]:
        w, state = self._mechanism.guarantee.w, self._state.copy()
        closed: list[_Closed] = []
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

    def _carry_out(self, state: _State, closed: Sequence[_Closed]) -> list[Any]:
        """Release what is closed and keep what is open, together; then go on from the new state."""
        before = self._state
        forget = [step for step in before.values if step not in state.values]
        add = {step: value for step, value in state.values.items() if before.values.get(step) is not value}
        released: list[Any] = []
        w = self._mechanism.guarantee.w
        runs = _runs(closed, w)
        for run in runs:
            mechanism, units = self._prepared(run, state.published)
            last = run is runs[-1]
            if self._ledger is None:
                parts = [mechanism.draw(rows) for rows in units]
            else:
                parts = self._ledger.release_parts(
                    mechanism,
                    units,
                    stream=self._name,
                    period=run[0].period,
                    held=run[0].sources,
                    finish=self._ledger.keeper(self._name, state.revision, forget, add) if last else None,
                )
            released += [
                mechanism.assemble_period(part, period.period, self._clock.time_of(period.period * w))
                for period, part in zip(run, parts, strict=True)
            ]
            state.published = self._leaves_of(parts[-1])
        if self._ledger is not None:
            if not runs:
                # Also if nothing is new: what this process believes may be out of date.
                self._ledger.keep(self._name, state.revision, forget, add)
            state.revision += 1
        self._state = state
        return released

    def _prepared(self, run: Sequence[_Closed], published: Vector | None) -> tuple[OptStream, NDArray[np.int64]]:
        """Return the mechanism and the quantised data of closed periods."""
        w = self._mechanism.guarantee.w
        rows = [period.rows(w, self._width, published) for period in run]
        data = np.concatenate(rows)
        units = self._mechanism.read(data if self._mechanism.hierarchy is not None else data.ravel()).units
        return _within_budget(self._mechanism, run[0].sources), units

    def _leaves_of(self, parts: Parts) -> Vector:
        """Return what was released last of every leaf."""
        hierarchy = self._mechanism.hierarchy
        last = parts.values[:, -1]
        return last if hierarchy is None else last[hierarchy.leaf_positions]

    def _load(self) -> None:
        if self._ledger is None:
            return
        kept: Kept = self._ledger.kept(self._name)
        self._state = _State(
            released=kept.released,
            published=None if kept.published is None else self._leaves_of(kept.published),
            values=dict(kept.values),
            revision=kept.revision,
        )

    def _vector(self, when: Any, value: Any) -> Vector:
        """Return an observation as one number for every leaf."""
        hierarchy = self._mechanism.hierarchy
        if hierarchy is None:
            return np.array([_number(f"value at {when}", value)])
        if not isinstance(value, Mapping):
            raise ParameterTypeError(
                f"value at {when} is of type {type(value).__name__}, but must map leaves to numbers"
            )
        unknown = next((name for name in value if name not in hierarchy.leaves), None)
        if unknown is not None:
            raise DataError(f"value at {when} has {unknown!r}, but must have leaves of the hierarchy only")
        fill = self._rules.missing
        absent = [name for name in hierarchy.leaves if name not in value]
        if absent and isinstance(fill, str):
            raise DataError(f"value at {when} has no leaf {absent[0]!r}, but must have all {len(hierarchy.leaves)}")
        return np.array([_number(f"{name!r} at {when}", value.get(name, fill)) for name in hierarchy.leaves])


@dataclass(frozen=True)
class _Clock:
    """Turns times into steps."""

    step: timedelta | None
    origin: datetime | None

    def __str__(self) -> str:
        if self.step is None or self.origin is None:
            return "steps"
        return f"steps of {self.step.total_seconds():g} s from {_utc(self.origin).isoformat()}"

    @classmethod
    def of(cls, step: timedelta | None, origin: datetime | None) -> _Clock:
        if (step is None) != (origin is None):
            raise ParameterError("step and origin must be given together, or neither for step numbers")
        if step is not None and not isinstance(step, timedelta):
            raise ParameterTypeError(f"step is of type {type(step).__name__}, but must be timedelta")
        if step is not None and step <= timedelta(0):
            raise ParameterError(f"step is {step}, but must be positive")
        if origin is not None and not isinstance(origin, datetime):
            raise ParameterTypeError(f"origin is of type {type(origin).__name__}, but must be datetime")
        return cls(step, origin)

    def step_of(self, when: Any) -> int:
        if self.step is None or self.origin is None:
            if isinstance(when, (bool, np.bool_)) or not isinstance(when, (int, np.integer)):
                raise ParameterTypeError(
                    f"when is of type {type(when).__name__}, but must be an int without step and origin"
                )
            return _checked(int(when))
        moment = when.astype("datetime64[us]").item() if isinstance(when, np.datetime64) else when
        if not isinstance(moment, datetime):
            raise ParameterTypeError(f"when is of type {type(when).__name__}, but must be datetime")
        if (moment.utcoffset() is None) != (self.origin.utcoffset() is None):
            raise ParameterError(f"when is {when}, but must have a time zone if and only if origin has one")
        number, rest = divmod(_utc(moment) - _utc(self.origin), self.step)
        if rest:
            raise StreamError(f"when is {when}, but must be a whole number of steps of {self.step} after {self.origin}")
        if number < 0:
            raise StreamError(f"when is {when}, but must not be before the origin {self.origin}")
        return _checked(number)

    def time_of(self, step: int) -> int | datetime:
        if self.step is None or self.origin is None:
            return step
        zone = self.origin.tzinfo
        return (_utc(self.origin) + step * self.step).astimezone(zone) if zone else self.origin + step * self.step


def _checked(step: int) -> int:
    if not 0 <= step < LARGEST:
        raise StreamError(f"when is step {step}, but must be from 0 to {LARGEST - 1}")
    return step


def _utc(moment: datetime) -> datetime:
    # Between times of one zone Python's difference is that of the clocks on the wall, which jump twice a year.
    return moment if moment.tzinfo is None else moment.astimezone(UTC)


@dataclass(frozen=True)
class _Rules:
    """What to do with observations that do not come in order."""

    late: str
    duplicate: str
    disorder: str
    missing: str | float

    @classmethod
    def of(cls, *, late: str, duplicate: str, disorder: str, missing: str | float) -> _Rules:
        choices = {
            "late": (late, ("refuse", "drop", "stored")),
            "duplicate": (duplicate, ("refuse", "keep", "replace")),
            "disorder": (disorder, ("refuse", "accept")),
        }
        for name, (value, allowed) in choices.items():
            if value not in allowed:
                raise ParameterError(f"{name} is {value!r}, but must be {' or '.join(map(repr, allowed))}")
        if missing not in {"refuse", "hold", "skip"}:
            if isinstance(missing, str):
                raise ParameterError(f"missing is {missing!r}, but must be 'refuse', 'hold', 'skip' or a number")
            missing = _number("missing", missing)
        return cls(late, duplicate, disorder, missing)


@dataclass(repr=False)
class _Closed:
    """A period that is to be released."""

    period: int
    values: dict[int, Vector]
    """Observations, by their step within the period."""
    fill: float | None = None
    """What stands in the place of missing steps, if it is a public number."""
    sources: dict[int, int] = field(default_factory=dict)
    """Steps that repeat an earlier one."""

    def rows(self, w: int, width: int, published: Vector | None) -> NDArray[np.float64]:
        """Return one row of numbers for every step."""
        rows = np.empty((w, width))
        for step in range(w):
            value = self.values.get(self.sources.get(step, step))
            if value is None:
                value = published if self.fill is None else np.full(width, self.fill)
            if value is None:
                raise StreamError(
                    f"period {self.period} starts with missing steps, and nothing was released that could be held"
                )
            rows[step] = value
        return rows


@dataclass(repr=False)
class _State:
    """What a stream remembers."""

    released: int | None = None
    """The last period that is closed."""
    published: Vector | None = None
    """What was last released, of the last step of a period."""
    values: dict[int, Vector] = field(default_factory=dict)
    """Observations of the open period."""
    revision: int = 0

    @classmethod
    def read(cls, state: Mapping[str, Any], width: int) -> _State:
        try:
            values = {int(step): np.array(value, dtype=np.float64) for step, value in state["observations"].items()}
            published = None if state["published"] is None else np.array(state["published"], dtype=np.float64)
            made = cls(state["released"], published, values)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ParameterError("state is not what Stream.state gave, but must be") from None
        if any(value.shape != (width,) or not np.isfinite(value).all() for value in values.values()):
            raise ParameterError(
                f"state holds observations of another form, but must hold {width} finite numbers a step"
            )
        return made

    def copy(self) -> _State:
        return replace(self, values=dict(self.values))

    def open_period(self, w: int) -> int:
        return next(iter(self.values)) // w

    def is_late(self, step: int, w: int) -> bool:
        """Whether the period of a step is closed."""
        if self.values:
            return step // w < self.open_period(w)
        return self.released is not None and step // w <= self.released

    def add(self, rules: _Rules, w: int, step: int, value: Vector) -> list[_Closed]:
        """Take an observation that is not late; return the periods that it closes."""
        closed: list[_Closed] = []
        if self.values and step // w > self.open_period(w):
            closed = self.close(rules, w, step)
        if step in self.values:
            if rules.duplicate == "refuse":
                raise StreamError(f"step {step} has come twice, and duplicate is 'refuse'")
            if rules.duplicate == "keep":
                return closed
        elif self.values and step < max(self.values) and rules.disorder == "refuse":
            raise StreamError(f"step {step} comes after step {max(self.values)}, and disorder is 'refuse'")
        elif rules.missing == "refuse" and rules.disorder == "refuse":
            expected = max(self.values) + 1 if self.values else step // w * w
            _check_gap(expected, step)
        if not self.values and rules.missing == "refuse" and self.released is not None:
            _check_gap((self.released + 1) * w, step // w * w)
        self.values[step] = value
        if len(self.values) == w:
            closed.append(_Closed(step // w, self._offsets(w)))
            self.values = {}
            self.released = step // w
        return closed

    def close(self, rules: _Rules, w: int, step: int) -> list[_Closed]:
        """Close the open period although steps are missing, because a later step has come."""
        period = self.open_period(w)
        absent = [number for number in range(period * w, period * w + w) if number not in self.values]
        if rules.missing == "refuse":
            raise StreamError(
                f"step {step} comes, but {len(absent)} steps of period {period} are missing, the first of them "
                f"{absent[0]}, and missing is 'refuse'"
            )
        closed = _Closed(period, self._offsets(w))
        if isinstance(rules.missing, float):
            closed.fill = rules.missing
        elif rules.missing == "hold":
            closed.sources = {
                number - period * w: max(source for source in self.values if source < number) - period * w
                for number in absent
                if number > min(self.values)
            }
        self.values = {}
        self.released = period
        return [] if rules.missing == "skip" else [closed]

    def _offsets(self, w: int) -> dict[int, Vector]:
        return {step % w: value for step, value in self.values.items()}


def _check_gap(expected: int, step: int) -> None:
    if step > expected:
        raise StreamError(f"step {step} comes, but step {expected} is missing, and missing is 'refuse'")


def _runs(closed: Sequence[_Closed], w: int) -> list[list[_Closed]]:
    """Return runs of consecutive periods that can be released in one go: those in which nothing is held."""
    runs: list[list[_Closed]] = []
    for period in closed:
        last = runs[-1][-1] if runs else None
        holds = period.fill is None and len(period.values) < w
        if last is None or holds or last.sources or last.period + 1 != period.period:
            runs.append([])
        runs[-1].append(period)
    return runs


def _within_budget(mechanism: OptStream, sources: Mapping[int, int]) -> OptStream:
    """Return the mechanism with as much epsilon as leaves every window within its guarantee if steps are repeated."""
    if not sources:
        return mechanism
    guarantee = mechanism.guarantee
    w, epsilon = guarantee.w, mechanism.statement.epsilon
    own = accounting.held(mechanism.costs, sources)
    around = [accounting.moved(cost, by) for by in (-w, w) for cost in mechanism.costs]
    factor = accounting.largest_factor(own, [] if guarantee.neighbours == "aligned" else around, w, epsilon)
    if factor <= 0:
        raise StreamError("steps cannot be held: their source has no budget left")
    return mechanism if factor >= 1 else mechanism.with_epsilon(guarantee.epsilon * min(factor, Fraction(1)))


def _number(name: str, value: Any) -> float:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise ParameterTypeError(f"{name} is of type {type(value).__name__}, but must be a real number")
    try:
        number = float(value)
    except OverflowError:
        number = np.inf
    if not np.isfinite(number):
        raise DataError(f"{name} is {number}, but must be finite")
    return number
