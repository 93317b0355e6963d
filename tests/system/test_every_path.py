"""Any sequence of calls that a user may make: no window ever costs more than was stated.

A machine of rules builds, tunes, releases in pieces, streams with and without a ledger, hands states over or does not,
holds steps, goes through plan files, and restarts. After every release the exact loss of every window over everything
that left is computed from the scales that were drawn (tests/support/exact_losses.py) and compared with what was stated.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import numpy as np
import pytest
from exact_losses import Draw, RecordedPlan, Recorder, record, worst_loss
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import optstream as ops
from optstream import _core
from optstream.mechanism import engine, loop, plan
from optstream.mechanism.state import State, sealed
from optstream.mechanism.step_release import StepRelease
from optstream.privacy import accounting
from optstream.stream import by_period as stream_module

if TYPE_CHECKING:
    from collections.abc import Callable

W = 4
BOUNDS = (0, 2**20)
DELTA = Fraction(1, 10**6)
SLIGHTLY = Fraction(1, 2**30)
"""Scales are fractions of 64 bits that are rounded up, never down; nothing is forgiven beyond this."""

MANY = 2000
"""Sequences to look for a known defect in: each is found within 50 on average, and then the search ends."""

NOISES: st.SearchStrategy[Any] = st.sampled_from([ops.LaplaceNoise(), ops.CubeNoise(), ops.CubeNoise(block=1)])
SAMPLES: st.SearchStrategy[Any] = st.sampled_from(
    [ops.EqualSampling(2), ops.EqualSampling(4), ops.BucketSampling(1), ops.BucketSampling(2), ops.BucketSampling(4)]
)
FOLLOWS: st.SearchStrategy[Any] = st.sampled_from([ops.Linear(), ops.Estimate(season=1)])
TREE = ops.Hierarchy({"all": None, "a": "all", "b": "all"})


@st.composite
def mechanisms(draw: st.DrawFn) -> ops.OptStream:
    epsilon = draw(st.sampled_from([Fraction(1), Fraction(1, 2), Fraction(2)]))
    delta = draw(st.runner()).delta
    if draw(st.integers(0, 9)) == 0:
        # A state is refused by a mechanism with another delta.
        delta = DELTA - delta
    guarantee = ops.Guarantee(epsilon=epsilon, w=W, delta=delta)
    if draw(st.booleans()) and draw(st.booleans()):
        return ops.OptStream.auto(guarantee, bounds=BOUNDS, season=1)
    return ops.OptStream(
        guarantee,
        sample=draw(SAMPLES),
        perturb=draw(st.just(ops.GaussianNoise()) | NOISES if delta else NOISES),
        bounds=BOUNDS,
        features=draw(st.sampled_from([(), (ops.Feature.total(W),)])),
        reconstruct=draw(FOLLOWS),
        hierarchy=draw(st.sampled_from([None, None, TREE])),
    )


def data(made: ops.OptStream, steps: range) -> Any:
    """Return values that tell which step they are; of a tree one leaf has them."""
    values = np.array([float(step + 1) for step in steps])
    return values if made.hierarchy is None else {"a": values, "b": np.zeros(len(steps))}


def observation(made: ops.OptStream, step: int) -> Any:
    return float(step + 1) if made.hierarchy is None else {"a": float(step + 1), "b": 0.0}


class Paths(RuleBasedStateMachine):
    """One stream of data that is released piece by piece, each period once."""

    recorder: Recorder
    """What the plans draw, set by the test."""
    delta = Fraction(0)
    """That of most mechanisms."""

    def __init__(self) -> None:
        super().__init__()
        self.recorder.draws.clear()
        self.folder = Path(tempfile.mkdtemp())
        self.period = 0
        self.chain: list[Draw] = []
        """What the last release was stated together with."""
        self.state: Any = None
        self.last: Any = None
        self.stream: ops.Stream | None = None
        self.made: ops.OptStream | None = None

    @initialize(delta=st.sampled_from([Fraction(0), DELTA]))
    def choose_a_delta(self, delta: Fraction) -> None:
        self.delta = delta

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def check(self, release: Any, begin: int) -> None:
        """Compare what was stated with what every window that meets the new draws has lost."""
        self.check_statement(release.statement, self.recorder.draws[begin:])
        self.last = release

    def check_statement(self, statement: ops.Statement, new: list[Draw]) -> None:
        assert new
        self.chain += new
        loss = worst_loss(self.chain, W, new, delta=statement.guarantee.delta)
        assert loss <= statement.epsilon + SLIGHTLY, (loss, statement.epsilon)

    def goes_on(self, handed: Any) -> int:
        """Begin another chain unless something is handed over; return how much was drawn before."""
        if handed is None:
            self.chain = []
        return len(self.recorder.draws)

    @rule(made=mechanisms(), count=st.integers(1, 2), hand=st.booleans(), as_json=st.booleans())
    def release_at_once(self, made: ops.OptStream, count: int, *, hand: bool, as_json: bool) -> None:
        state = self.state if hand else None
        begin = self.goes_on(state)
        steps = range(self.period * W, (self.period + count) * W)
        try:
            release = made.release(data(made, steps), state=state, period=self.period if state else None)
        except (ops.BudgetError, ops.ParameterError):
            if state is None:
                raise
            # No room, or what an estimate has learnt is of another kind: nothing was drawn.
            assert len(self.recorder.draws) == begin
            return
        self.period += count
        self.stream = None
        self.state = json.loads(json.dumps(release.state)) if as_json else release.state
        if state is None:
            # The call numbered its periods from 0.
            self.state = sealed({**self.state, "last": self.period - 1, "memory": None})
        self.check(release, begin)

    @precondition(lambda self: self.last is not None and self.state is not None)
    @rule(epsilon=st.sampled_from([Fraction(1), Fraction(2)]))
    def tune_on_the_last_release(self, epsilon: Fraction) -> None:
        guarantee = ops.Guarantee(epsilon=epsilon, w=W, delta=Fraction(self.state["delta"]))
        if isinstance(self.last, ops.TreeRelease):
            return
        found = ops.tune(guarantee, replace(self.last, state=self.state), bounds=BOUNDS, season=1)
        begin = self.goes_on(found.state)
        try:
            release = found.mechanism.release(
                data(found.mechanism, range(self.period * W, (self.period + 1) * W)), state=found.state
            )
        except ops.BudgetError:
            assert len(self.recorder.draws) == begin
            return
        self.period += 1
        self.state = release.state
        self.stream = None
        self.check(release, begin)

    @rule(made=mechanisms(), hand=st.booleans())
    def begin_a_stream(self, made: ops.OptStream, *, hand: bool) -> None:
        state = self.state if hand else None
        try:
            self.stream = ops.Stream(made, missing="hold", state=state)
        except ops.ParameterError:
            if state is None:
                raise
            return
        self.made, self.state = made, state
        if state is None:
            self.chain = []

    @precondition(lambda self: self.stream is not None)
    @rule(missing=st.sets(st.integers(1, W - 1)), restart=st.booleans())
    def push_a_period(self, missing: set[int], *, restart: bool) -> None:
        assert self.stream is not None
        assert self.made is not None
        begin = len(self.recorder.draws)
        first = self.period * W
        try:
            released = self.stream.push_many(
                [first + step for step in range(W) if step not in missing],
                [observation(self.made, first + step) for step in range(W) if step not in missing],
            )
            released += [self.stream.flush()] if missing else []
        except (ops.BudgetError, ops.StreamError):
            assert len(self.recorder.draws) == begin
            self.stream.discard()
            self.period += 1
            return
        self.period += 1
        if restart:
            self.stream = ops.Stream(self.made, missing="hold", state=json.loads(json.dumps(self.stream.state)))
        self.state = self.stream.state["known"]
        self.check(released[-1], begin)

    @rule(
        made=mechanisms(),
        other=mechanisms(),
        hand=st.booleans(),
        turn=st.integers(1, W - 1),
        fails=st.sampled_from([None, None, "draw", "release"]),
    )
    def push_a_period_step_by_step(
        self, made: ops.OptStream, other: ops.OptStream, turn: int, fails: str | None, *, hand: bool
    ) -> None:
        """Within the period the state goes to another mechanism, which must refuse it, or a step fails once."""
        state, steps = self.state if hand else None, range(self.period * W, (self.period + 1) * W)
        begin = self.goes_on(state)
        try:
            stream = ops.Stream(made, emit="step", state=state)
            releases = [stream.push(step, observation(made, step)) for step in steps[:turn]]
        except (ops.BudgetError, ops.ParameterError):
            if state is None:
                raise
            assert len(self.recorder.draws) == begin
            return
        within = json.loads(json.dumps(stream.state))
        try:
            stream = ops.Stream(other, emit="step", state=within)
        except ops.ParameterError:
            stream = ops.Stream(made, emit="step", state=within)
        else:
            made = other
        with pytest.MonkeyPatch.context() as broken:
            if fails == "draw":
                RecordedPlan.fails = True
            elif fails == "release":
                broken.setattr(StepRelease, "__init__", failing)
            try:
                releases.append(stream.push(steps[turn], observation(made, steps[turn])))
            except MemoryError:
                pass
            finally:
                RecordedPlan.fails = False
        for step in steps[turn + (fails is None) :]:
            try:
                releases.append(stream.push(step, observation(made, step)))
            except ops.StreamError:
                assert fails
        self.period += 1
        self.stream = None
        self.state = stream.state["known"]
        self.check_statement(releases[-1].statement, self.recorder.draws[begin:])

    @rule(made=mechanisms())
    def go_through_a_plan_file(self, made: ops.OptStream) -> None:
        if not made.retune:
            assert plan.build(json.loads(made.description)).costs == made.costs


class WholePeriods(Paths):
    """The same without steps, in which defects of whole periods are found sooner."""

    push_a_period_step_by_step = None  # type: ignore[assignment]


class OnlyStreams(WholePeriods):
    """Streams that push whole periods, and nothing else."""

    release_at_once = None  # type: ignore[assignment]
    tune_on_the_last_release = None  # type: ignore[assignment]
    go_through_a_plan_file = None  # type: ignore[assignment]


class WithDelta(WholePeriods):
    """Mechanisms with a delta, but for a few."""

    choose_a_delta = None  # type: ignore[assignment]
    delta = DELTA


def failing(*_: Any, **__: Any) -> None:
    raise MemoryError


def run_machine(monkeypatch: pytest.MonkeyPatch, examples: int, machine: type[Paths] = Paths) -> None:
    machine.recorder = record(monkeypatch, by_steps=True)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=10,
            phases=(Phase.generate,),
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=False,
            database=None,
        ),
    )


def test_no_sequence_of_calls_costs_more_than_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    run_machine(monkeypatch, examples=40)


def _forgetting(read: Callable[..., State]) -> Callable[..., State]:
    """Return the state without what the last period cost: the first defect that was found."""
    return lambda *arguments: replace(read(*arguments), costs=())


def _unpriced_holes(price: Callable[..., loop.Priced[Any]]) -> Callable[..., loop.Priced[Any]]:
    """Return the price of a period without its holes and without the one before: the third defect that was found."""

    def priced(*arguments: Any) -> loop.Priced[Any]:
        found = price(*arguments)
        return replace(found, epsilon=found.mechanism.steady_epsilon)

    return priced


def test_costs_that_are_forgotten_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(State, "read", _forgetting(State.read))
    with pytest.raises(AssertionError, match="Fraction"):
        run_machine(monkeypatch, examples=MANY, machine=WholePeriods)


def test_holes_that_are_not_priced_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "price_next", _unpriced_holes(loop.price_next))
    with pytest.raises(AssertionError, match="Fraction"):
        run_machine(monkeypatch, examples=MANY, machine=OnlyStreams)


def test_pure_noise_that_is_free_beside_gaussian_noise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    cached = (loop.window_price, loop._with_room)
    monkeypatch.setattr(accounting, "WORTH", Fraction(0))
    for prices in cached:
        prices.cache_clear()
    try:
        with pytest.raises(AssertionError, match="Fraction"):
            run_machine(monkeypatch, examples=MANY, machine=WithDelta)
    finally:
        for prices in cached:
            prices.cache_clear()


class TestWhatWasFound:
    """Each sequence that once cost more than stated, by itself."""

    def test_auto_on_consecutive_data_is_priced_over_the_border(self, monkeypatch: pytest.MonkeyPatch) -> None:
        recorder = record(monkeypatch)
        x = np.arange(1.0, 16 * W + 1)
        made = ops.OptStream.auto(ops.Guarantee(epsilon=1, w=W), bounds=BOUNDS, season=1)
        first = made.release(x[: 8 * W])
        second = made.release(x[8 * W :], state=first.state)
        assert worst_loss(recorder.draws, W) <= max(first.statement.epsilon, second.statement.epsilon) + SLIGHTLY
        assert "one call and one stretch of data" in str(first.statement)
        assert "handed over" in str(second.statement)

    @pytest.mark.parametrize("epsilon", [Fraction(1), Fraction(3, 2)])
    def test_another_mechanism_on_a_state_gets_the_room_that_is_left(
        self, monkeypatch: pytest.MonkeyPatch, epsilon: Fraction
    ) -> None:
        recorder = record(monkeypatch)
        old = ops.OptStream(ops.Guarantee(epsilon=1, w=W), sample=ops.EqualSampling(2), bounds=BOUNDS)
        stream = ops.Stream(old)
        stream.push_many(range(W), [float(step + 1) for step in range(W)])
        new = old.changed(
            guarantee=ops.Guarantee(epsilon=epsilon, w=W), sample=ops.EqualSampling(4), perturb=ops.CubeNoise(block=1)
        )
        after = ops.Stream(new, state=stream.state)
        (release,) = after.push_many(range(W, 2 * W), [float(step + 1) for step in range(W, 2 * W)])
        loss = worst_loss(recorder.draws, W, recorder.draws[-1:])
        assert loss <= release.statement.epsilon + SLIGHTLY <= epsilon + SLIGHTLY

    @pytest.mark.parametrize(
        "noises", [(ops.GaussianNoise(), ops.LaplaceNoise()), (ops.CubeNoise(), ops.GaussianNoise())]
    )
    def test_pure_and_gaussian_noise_share_the_windows_over_a_change(
        self, monkeypatch: pytest.MonkeyPatch, noises: tuple[Any, Any]
    ) -> None:
        recorder = record(monkeypatch)
        old, new = (
            ops.OptStream(
                ops.Guarantee(epsilon=1, w=W, delta=DELTA), sample=ops.EqualSampling(2), bounds=BOUNDS, perturb=noise
            )
            for noise in noises
        )
        x = np.arange(1.0, W + 1)
        first = old.release(x)
        try:
            second = new.release(x + W, state=first.state)
        except ops.BudgetError:
            assert len(recorder.draws) == 1
            second = new.release(x + 2 * W, state=first.state, period=2)
        assert worst_loss(recorder.draws, W, recorder.draws[-1:], delta=DELTA) <= second.statement.epsilon <= 1

    def test_without_room_nothing_is_released(self, monkeypatch: pytest.MonkeyPatch) -> None:
        recorder = record(monkeypatch)
        old = ops.OptStream(ops.Guarantee(epsilon=2, w=W), sample=ops.EqualSampling(4), bounds=BOUNDS)
        state = old.release(np.arange(1.0, W + 1)).state
        new = old.changed(guarantee=ops.Guarantee(epsilon=1, w=W))
        with pytest.raises(ops.BudgetError, match="leaves nothing for this one"):
            new.release(np.arange(1.0, W + 1), state=state)
        assert len(recorder.draws) == 1
        # A period that is left out parts the windows.
        assert new.release(np.arange(1.0, W + 1), state=state, period=2).statement.epsilon <= 1

    @pytest.mark.parametrize(
        "change", [{"w": 2 * W}, {"alpha": 2.0}, {"neighbours": "aligned"}, {"delta": 1e-6}, {"entities": "moving"}]
    )
    def test_a_state_of_another_relation_is_refused(self, change: dict[str, Any]) -> None:
        made = ops.OptStream(ops.Guarantee(epsilon=1, w=W), sample=ops.EqualSampling(2), bounds=BOUNDS)
        state = made.release(np.ones(W)).state
        other = made.changed(guarantee=ops.Guarantee(**({"epsilon": 1, "w": W} | change)))
        with pytest.raises(ops.ParameterError, match=r"state is of releases with w = 4, alpha = 1, sliding"):
            other.release(np.ones(2 * W), state=state)

    def test_a_state_on_another_clock_is_refused(self) -> None:
        made = ops.OptStream(ops.Guarantee(epsilon=1, w=W), sample=ops.EqualSampling(2), bounds=BOUNDS)
        state = ops.Stream(made).state
        with pytest.raises(ops.ParameterError, match="another clock"):
            ops.Stream(made, state=state, step=timedelta(hours=1), origin=datetime(2026, 1, 1, tzinfo=UTC))

    def test_a_failure_after_the_draw_is_no_second_look(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whatever fails between the draw and the return: the period is void, and the stream goes on."""
        recorder = record(monkeypatch)
        made = ops.OptStream(ops.Guarantee(epsilon=1, w=W), sample=ops.EqualSampling(4), bounds=BOUNDS)
        stream = ops.Stream(made, late="drop")
        stream.push_many(range(3), [1.0, 2.0, 3.0])

        def fail(*_: Any, **__: Any) -> None:
            raise MemoryError

        with monkeypatch.context() as broken:
            broken.setattr(ops.OptStream, "assemble_period", fail)
            with pytest.raises(MemoryError):
                stream.push(3, 4.0)
        assert stream.push(3, 4.0) is None
        assert len(recorder.draws) == 1
        (release,) = stream.push_many(range(W, 2 * W), [float(step + 1) for step in range(W, 2 * W)])
        assert worst_loss(recorder.draws, W) <= release.statement.epsilon

    def test_a_period_that_another_mechanism_finishes_costs_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is refused; where nothing tells the mechanisms apart, what is computed here tells."""
        recorder = record(monkeypatch, by_steps=True)
        first, other = (
            ops.OptStream(ops.Guarantee(epsilon=1, w=W), sample=sample, bounds=BOUNDS)
            for sample in (ops.EqualSampling(2), ops.BucketSampling(2))
        )
        begun = ops.Stream(first, emit="step")
        begun.push(0, 1.0)
        with pytest.raises(ops.ParameterError, match="of another mechanism"):
            ops.Stream(other, emit="step", state=begun.state)
        monkeypatch.setattr(engine.Engine, "fingerprint", property(lambda _: b"any"))
        state = sealed({**begun.state, "walk": {**begun.state["walk"], "plan": b"any".hex()}})
        (*_, last) = ops.Stream(other, emit="step", state=state).push_many(range(1, W), [2.0, 3.0, 4.0])
        assert worst_loss(recorder.draws, W) == Fraction(3, 2) > last.statement.epsilon

    def test_keyed_noise_knows_its_scale(self) -> None:
        """Two calibrations of one description must not draw the same bits at two scales."""
        made = ops.OptStream(ops.Guarantee(epsilon=1, w=W), sample=ops.EqualSampling(4), bounds=BOUNDS)
        halved = made.with_epsilon(Fraction(1, 2))
        assert made.engine.fingerprint != halved.engine.fingerprint
        key, units = _core.CuratorKey(bytes(32)), np.zeros((1, W), dtype=np.int64)
        noise = [mechanism.draw(units, (key, [b"same"])).values for mechanism in (made, made, halved)]
        np.testing.assert_array_equal(noise[0], noise[1])
        ratios = noise[2] / np.where(noise[0] == 0, np.inf, noise[0])
        assert np.abs(ratios - 2).min() > 1e-6
