"""A stream whose steps leave as they come."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream import _core
from optstream.errors import ConflictError, EntropyError, LedgerError, OptStreamError, ParameterError, StreamError
from optstream.ledger.database import StaleError, pause
from optstream.ledger.steps import StoredStep
from optstream.mechanism.state import State, sealed, unsealed
from optstream.mechanism.step_release import StepRelease
from optstream.stream.by_period import ATTEMPTS
from optstream.stream.keyed import plan_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from optstream.data.clock import Clock
    from optstream.keys import CuratorKey
    from optstream.ledger import Ledger
    from optstream.ledger.entries import State as Charged
    from optstream.mechanism.mechanism import Mechanism, Walk
    from optstream.mechanism.step_release import Stepped
    from optstream.stream.open_period import Rules

    Vector = NDArray[np.float64]

__all__ = ["StepStream"]


class StepStream:
    """What a :class:`Stream` with ``emit="step"`` does with observations.

    Args:
        mechanism: How periods are released.
        clock: Which time a step is.
        rules: What to do with observations that do not come in order.
        ledger: Where charges, steps and the open period are kept.
        name: The name of the stream in the ledger.
        memory: What public history says, with a ledger.
        state: What to go on from, without one.
        key: What noise is derived from, without one.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        clock: Clock,
        rules: Rules,
        *,
        ledger: Ledger | None,
        name: str,
        memory: Mapping[str, Any] | None,
        state: Mapping[str, Any] | None,
        key: CuratorKey | None = None,
    ) -> None:
        self._walks = mechanism.walks
        if key is not None and not self._walks.repeats_alone:
            raise ParameterError(
                "key is given, but must not be with emit='step' for noise that lasts for several steps, or that no key "
                "repeats: give a ledger, which knows what was used before"
            )
        if rules.disorder == "accept":
            raise ParameterError("disorder is 'accept', but must be 'refuse' with emit='step': a step leaves at once")
        if rules.missing == "skip":
            raise ParameterError("missing is 'skip', but must be 'refuse', 'hold' or a number with emit='step'")
        if rules.duplicate == "replace":
            raise ParameterError("duplicate is 'replace', but must be 'refuse' or 'keep': a measured step stays")
        self._mechanism, self._clock, self._rules = mechanism, clock, rules
        self._ledger, self._name, self._memory, self._key = ledger, name, memory, key
        self._known = State.read(None, mechanism, str(clock))
        self._walk: Walk | None = None
        self._charge: Charged | None = None
        self._void: int | None = None
        self._revision = 0
        self._next: int | None = None
        """The step after the last that has left."""
        self._published: Vector | None = None
        """What left last, of every leaf."""
        self._held: Any = None
        """What the next period goes on from."""
        self._left: dict[int, tuple[bytes, StepRelease]] = {}
        """The steps of the open period and the one before that have left, with the observation of each."""
        if ledger is not None:
            self._load()
        elif state is not None:
            self._restore(state)

    @property
    def open_steps(self) -> int:
        """How many steps of the open period have left."""
        return 0 if self._walk is None else self._walk.step

    @property
    def released(self) -> int | None:
        """The last period that is closed, as far as this process knows."""
        return None if self._next is None else self._next // self._mechanism.guarantee.w - 1

    @property
    def state(self) -> dict[str, Any]:
        """What makes the stream go on after a restart without a ledger. It holds raw values and what is pending."""
        return sealed(
            {
                "emit": "step",
                "clock": str(self._clock),
                "next": self._next,
                "void": self._void,
                "published": None if self._published is None else self._published.tolist(),
                "held": self._walks.held_to_data(self._held),
                "walk": None if self._walk is None else self._walk.to_data(),
                "known": self._known.to_data(self._mechanism.guarantee),
            }
        )

    def _restore(self, state: Mapping[str, Any]) -> None:
        if state.get("emit") != "step":
            # Of a release or a tuning: it goes on with the next period.
            self._known = State.read(state, self._mechanism, str(self._clock))
            last = self._known.last
            self._next = None if last is None else (last + 1) * self._mechanism.guarantee.w
            return
        state = unsealed(state)
        if state.get("clock") != str(self._clock):
            raise ParameterError(f"state is of a stream with another clock, but must have {self._clock}")
        try:
            self._known = State.read(state["known"], self._mechanism, str(self._clock))
            following, void, walk = state["next"], state["void"], state["walk"]
            published, held = state["published"], state["held"]
            self._published = None if published is None else np.array(published, dtype=np.float64)
            self._held = self._walks.held_from_data(held)
        except (KeyError, TypeError, ValueError):
            raise ParameterError("state is damaged, but must be what Stream.state gave") from None
        if not all(number is None or type(number) is int for number in (following, void)):
            raise ParameterError("state is damaged, but must be what Stream.state gave")
        self._next, self._void = following, void
        if walk is not None:
            self._walk = self._walks.restored(walk, self._known)
            if self._known.last != self._walk.period or self._next != self._first(self._walk.period) + self._walk.step:
                raise ParameterError("state is damaged, but must be what Stream.state gave")

    def push_many(self, observations: Sequence[tuple[int, Vector]]) -> list[StepRelease]:
        """Take observations in the given order; return the release of every step, also of steps that were missing."""
        for attempt in range(ATTEMPTS):
            if self._revision < 0:
                self._load()
            try:
                self._check(observations)
                return [release for step, value in observations for release in self._push(step, value)]
            except StaleError:
                self._load()
                pause(attempt)
            except (ConflictError, StreamError):
                if self._ledger is None:
                    raise
                # Judged by what this process remembers, which may be out of date.
                revision = self._revision
                self._load()
                if self._revision == revision:
                    raise
        raise LedgerError(f"stream {self._name!r} is changed by other processes all the time")

    def look_again(self) -> None:
        """Take up what the ledger says before anything else."""
        self._walk, self._revision = None, -1

    def discard(self) -> int:
        """Drop nothing: every step has left."""
        return 0

    def flush(self) -> None:
        """Release nothing: every step has left."""

    def _first(self, period: int) -> int:
        return period * self._mechanism.guarantee.w

    def _check(self, observations: Sequence[tuple[int, Vector]]) -> None:
        """Raise before anything is drawn if an observation will be refused."""
        expected, w = self._next, self._mechanism.guarantee.w
        for step, value in observations:
            if self._next is not None and step < self._next:
                self._again(step, value)
            elif expected is None or step >= expected:
                self._check_gap(step, step // w * w if expected is None else expected)
                expected = step + 1

    def _check_gap(self, step: int, expected: int) -> None:
        if step > expected and self._rules.missing == "refuse":
            named, lacking = self._clock.named(step), self._clock.named(expected)
            raise StreamError(f"{named} comes, but {lacking} is missing, and missing is 'refuse'")

    def _push(self, step: int, value: Vector) -> list[StepRelease]:
        if self._next is not None and step < self._next:
            return self._again(step, value)
        return [release for number, vector in self._due(step, value) for release in self._take(number, vector)]

    def _again(self, step: int, value: Vector) -> list[StepRelease]:
        """Return the release of a step that has left, or refuse it."""
        w = self._mechanism.guarantee.w
        found = self._left.get(step) or self._stored(step)
        if found is not None and self._is_same(found[0], step, value):
            # The same observation again is a retry.
            return [found[1]]
        named = self._clock.named(step)
        closed = self._walk is None or step // w < self._walk.period
        if closed and self._rules.late != "stored":
            if self._rules.late == "drop":
                return []
            raise StreamError(f"{named} is late: it has left, period {step // w} is closed, and late is 'refuse'")
        if not closed and self._rules.duplicate == "refuse":
            raise StreamError(f"{named} has come twice: it has left, and duplicate is 'refuse'")
        if found is None:
            raise StreamError(f"{named} has left, but its release is not stored")
        return [found[1]]

    def _due(self, step: int, value: Vector) -> list[tuple[int, Vector | None]]:
        """Return the steps that are to be taken, with None for those that are missing."""
        w = self._mechanism.guarantee.w
        expected = step // w * w if self._next is None else self._next
        self._check_gap(step, expected)
        # Periods without any observation are passed over.
        end = self._end(expected)
        absent = [*range(expected, min(step, end)), *range(max(step // w * w, end), step)]
        return [*((number, None) for number in absent), (step, value)]

    def _end(self, step: int) -> int:
        """Return the end of the open period; none is open at the first step of one."""
        w = self._mechanism.guarantee.w
        return step if step % w == 0 else (step // w + 1) * w

    def _fill(self) -> Vector:
        hierarchy, (low, high) = self._mechanism.hierarchy, self._mechanism.bounds
        width = 1 if hierarchy is None else len(hierarchy.leaves)
        if not isinstance(self._rules.missing, str):
            return np.full(width, self._rules.missing)
        # What was released may be held at no price; before anything was, the middle of the bounds is public.
        return np.full(width, (low + high) / 2) if self._published is None else np.clip(self._published, low, high)

    def _units(self, value: Vector) -> NDArray[np.int64]:
        units = _core.quantise(value.reshape(1, -1), self._mechanism.bounds, self._mechanism.spacing)
        return units.ravel()

    def _digest(self, step: int, value: Vector) -> bytes:
        units = self._units(value)
        return units.tobytes() if self._ledger is None else self._ledger.steps.digest(self._name, step, units)

    def _is_same(self, digest: bytes, step: int, value: Vector) -> bool:
        """Whether a digest is that of an observation."""
        units = self._units(value)
        if self._ledger is None:
            return digest == units.tobytes()
        return self._ledger.steps.is_same(digest, self._name, step, units)

    def _take(self, step: int, value: Vector | None) -> list[StepRelease]:
        """Draw a step, store it and let it leave."""
        period = step // self._mechanism.guarantee.w
        if self._void == period:
            raise StreamError(
                f"period {period} is void: drawing one of its steps has failed, and it is not drawn again"
            )
        vector = self._fill() if value is None else value
        walk = self._walk
        if walk is None:
            walk = self._begun(period)
        finished = None
        try:
            stepped = walk.push(self._units(vector), self._retry(walk))
            known = deepcopy(self._known) if self._ledger is not None else self._known
            if walk.is_complete:
                finished = walk.finish(known), known
            release = self._released(walk, step, stepped, None if finished is None else finished[0])
            if self._ledger is None:
                self._went(walk, step, vector, stepped, release)
                return [release]
        except BaseException as error:
            if isinstance(error, EntropyError) and walk.priced.mechanism.walks.repeats:
                # Nothing was drawn.
                walk.forget()
            else:
                self._fail(walk, error)
            raise
        try:
            self._store(walk, step, vector, stepped, finished)
            self._went(walk, step, vector, stepped, release)
        except BaseException:
            # What is true now is what the ledger says.
            self.look_again()
            raise
        if finished is not None:
            self._known = finished[1]
        return [release]

    def _retry(self, walk: Walk) -> tuple[CuratorKey, Sequence[bytes]] | None:
        """Return what the noise of a period is derived from, if there is a key."""
        if self._ledger is not None and self._charge is not None:
            return self._ledger.steps.retry(self._name, self._charge)
        if self._key is None:
            return None
        # No ledger gives a charge the number 0.
        numbers = [number.to_bytes(8, "little") for number in (walk.period, 0)]
        return self._key, [b"steps", self._name.encode(), *numbers, plan_id(walk.priced.mechanism)]

    def _begun(self, period: int) -> Walk:
        if self._ledger is None:
            walk = self._walks.begin(self._known, period, self._held)
        else:
            self._charge, priced, self._known = self._ledger.steps.begin(
                self._mechanism, self._name, period, self._memory, self._held
            )
            walk = priced.mechanism.walks.charged(priced, period, self._known, self._held)
        self._walk = walk
        return walk

    def _store(self, walk: Walk, step: int, vector: Vector, stepped: Stepped, finished: Any) -> None:
        ledger, charge = self._ledger, self._charge
        if ledger is None or charge is None:
            return
        content = StoredStep(
            step, self._digest(step, vector), stepped.values, stepped.deviations, walk.samples, walk.cells
        )
        ledger.steps.store(
            self._name,
            charge,
            content,
            revision=self._revision,
            observed=vector,
            walk=walk,
            finished=finished,
        )
        ledger.witnessed(self._name)
        self._revision += 1

    def _went(self, walk: Walk, step: int, vector: Vector, stepped: Stepped, release: StepRelease) -> None:
        w = self._mechanism.guarantee.w
        hierarchy = self._mechanism.hierarchy
        self._next = step + 1
        self._published = stepped.values if hierarchy is None else stepped.values[hierarchy.leaf_positions]
        self._left = {number: left for number, left in self._left.items() if number >= (walk.period - 1) * w}
        self._left[step] = self._digest(step, vector), release
        if walk.is_complete:
            self._held, self._walk, self._charge = walk.held, None, None

    def _fail(self, walk: Walk, error: BaseException) -> None:
        """Let nothing more be drawn for a period: another draw would be a second look."""
        if self._ledger is not None and self._charge is not None:
            self._ledger.steps.failed(self._name, self._charge, walk, error)
            self._revision = -1
        self._void, self._walk = walk.period, None
        self._next = self._first(walk.period + 1)

    def _released(self, walk: Walk, step: int, stepped: Stepped, parts: Any) -> StepRelease:
        made = walk.priced.mechanism
        return self._made(made, step, stepped, walk.priced.epsilon, parts)

    def _made(self, made: Mechanism, step: int, stepped: Stepped, epsilon: Any, parts: Any) -> StepRelease:
        scope = "Holds for this step's period, together with all that was released before it through the same stream."
        if self._ledger is not None:
            scope = (
                f"Holds for this step's period of {self._name!r}, together with all that the ledger released of it "
                "before."
            )
        statement = replace(made.statement, epsilon=epsilon, scope=scope)
        period = step // made.guarantee.w
        values = stepped.values.astype(np.int64).tolist() if made.integers else stepped.values.tolist()
        return StepRelease(
            value=values[0] if made.hierarchy is None else dict(zip(made.hierarchy.nodes, values, strict=True)),
            step=step,
            time=self._clock.time_of(step),
            period=period,
            statement=statement,
            revised=None
            if parts is None
            else made.assemble_period(parts, period, self._clock.time_of(period * made.guarantee.w), statement),
            _stepped=stepped,
            _mechanism=made,
        )

    def stored(self, period: int) -> list[tuple[bytes, StepRelease]]:
        """Return the steps of a period as the ledger has them, each with the digest of its observation."""
        made = None if self._ledger is None else self._ledger.steps.mechanism_of(self._name, period)
        if self._ledger is None or made is None:
            return []
        steps = self._ledger.steps.stored(self._name, period)
        if steps:
            # Who has stored them may have died before it told the witness.
            self._ledger.witnessed(self._name)
        return [(found.digest, self._from_stored(made, period, found)) for found in steps]

    def _stored(self, step: int) -> tuple[bytes, StepRelease] | None:
        """Return a step as the ledger has it."""
        stored = self.stored(step // self._mechanism.guarantee.w)
        return next((found for found in stored if found[1].step == step), None)

    def _from_stored(self, made: Mechanism, period: int, found: StoredStep) -> StepRelease:
        steps = self._ledger.steps if self._ledger is not None else None
        epsilon = made.steady_epsilon if steps is None else max(steps.price(self._name, period), made.steady_epsilon)
        stepped = made.walks.stepped(found)
        return self._made(made, found.step, stepped, epsilon, None)

    def _load(self) -> None:
        """Take up what the ledger says, all of one moment."""
        ledger = self._ledger
        if ledger is None:
            return
        for attempt in range(ATTEMPTS):
            try:
                self._read(ledger)
            except OptStreamError:
                # What was read may be of two moments, and not go together.
                if ledger.kept(self._name).revision == self._revision:
                    raise
            else:
                if ledger.kept(self._name).revision == self._revision:
                    return
            pause(attempt)
        raise LedgerError(f"stream {self._name!r} is changed by other processes all the time")

    def _read(self, ledger: Ledger) -> None:
        w, hierarchy = self._mechanism.guarantee.w, self._mechanism.hierarchy
        kept = ledger.kept(self._name)
        self._walk = self._charge = self._held = self._published = None
        self._left, self._revision, self._void = {}, kept.revision, None
        self._next = None if kept.released is None else (kept.released + 1) * w
        last: list[StoredStep] = []
        at, pending = ledger.steps.pending(self._name) or (None, None)
        if kept.released is not None:
            last = ledger.steps.stored(self._name, kept.released)
            made = ledger.steps.mechanism_of(self._name, kept.released)
            if last and made is not None and type(made.walks) is type(self._walks):
                self._held = made.walks.held_after(last[-1], pending if at == kept.released else None)
        period = min(kept.values) // w if kept.values else None
        steps = last
        if period is not None:
            # Another process may have gone on since.
            steps = [*last, *(one for one in ledger.steps.stored(self._name, period) if one.step in kept.values)]
        if steps:
            # A period that is void has steps that never came.
            self._next = max(steps[-1].step + 1, self._next or 0)
            values = steps[-1].values
            self._published = values if hierarchy is None else values[hierarchy.leaf_positions]
        if period is None or not steps or steps[-1].step // w != period:
            return
        self._charge, priced, self._known = ledger.steps.begin(
            self._mechanism, self._name, period, self._memory, self._held
        )
        rows = np.stack([self._units(kept.values[number]) for number in range(period * w, self._next or 0)], axis=1)
        begun = [step for step in steps if step.step // w == period]
        self._walk = priced.mechanism.walks.again(
            priced, period, self._known, self._held, begun, (rows, pending if at == period else None)
        )
