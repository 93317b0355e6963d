"""Releases step by step: what leaves depends on what has come, and costs what the period costs."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import optstream as ops
from optstream import _core
from optstream.mechanism.loop import price_next
from optstream.mechanism.state import State, sealed
from optstream.mechanism.walk import MeasuredWalk
from optstream.stream.by_step import StepStream

W = 12
TREE = ops.Hierarchy.nested({"all": ["north", "south"]})
KINDS: dict[str, dict[str, Any]] = {
    "points": {"sample": ops.EqualSampling(k=4)},
    "buckets": {"sample": ops.BucketSampling(k=3)},
    "cube": {"sample": ops.EqualSampling(k=12), "perturb": ops.CubeNoise(block=3)},
    "cube buckets": {"sample": ops.BucketSampling(cuts=(2, 7)), "perturb": ops.CubeNoise()},
    "features": {"sample": ops.EqualSampling(k=6), "features": [ops.Feature.cuts(W, 5), ops.Feature.total(W)]},
    "estimate": {"sample": ops.BucketSampling(k=4), "reconstruct": ops.Estimate()},
    "estimate of points": {
        "sample": ops.EqualSampling(k=6),
        "reconstruct": ops.Estimate(),
        "features": [ops.Feature.total(W)],
        "perturb": ops.CubeNoise(),
    },
    "no memory": {"sample": ops.EqualSampling(k=6), "reconstruct": ops.Estimate(memory=False)},
    "tree": {"sample": ops.EqualSampling(k=4), "hierarchy": TREE, "features": [ops.Feature.total(W)]},
    "tree estimate": {"sample": ops.BucketSampling(k=4), "hierarchy": TREE, "reconstruct": ops.Estimate()},
    "whole numbers": {"sample": ops.EqualSampling(k=4), "hierarchy": TREE, "integers": True},
}


def mechanism(kind: str, **changes: Any) -> ops.OptStream:
    return ops.OptStream(ops.Guarantee(epsilon=2, w=W), bounds=(0, 100), **KINDS[kind] | changes)


def data(kind: str, periods: int = 3) -> Any:
    x = 50 + 20 * np.sin(np.arange(periods * W) / 3)
    return np.stack([x, x / 2], axis=1) if "hierarchy" in KINDS[kind] else x


def walked(kind: str, rows: Any) -> list[Any]:
    """Return what leaves when a period is drawn with a key, so that all noise is a function of the data."""
    made = mechanism(kind)
    state = State.read(None, made)
    walk = MeasuredWalk(price_next(made, state, 0), 0, state)
    key = _core.CuratorKey(bytes(range(32)))
    return [walk.push(column, (key, [b"test"])) for column in made.read(rows).units[0].T]


@pytest.mark.parametrize("kind", KINDS)
def test_the_future_changes_no_bit_of_what_has_left(kind: str) -> None:
    rows = data(kind, 1)
    other = rows.copy()
    other[7:] = 3.0
    before, after = walked(kind, rows), walked(kind, other)
    for step in range(7):
        assert before[step].values.tobytes() == after[step].values.tobytes()
    assert any((one.values != two.values).any() for one, two in zip(before[7:], after[7:], strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_steps_leave_with_intervals_and_add_up_and_the_period_is_revised(kind: str) -> None:
    made = mechanism(kind)
    rows = data(kind)
    release = made.release(rows, emit="step")
    assert release.values.shape == release.revised.shape
    assert np.isfinite(release.values).all()
    low, high = release.interval(0.9)
    assert low.size == high.size == release.values.size
    assert (low <= high).all()
    if made.hierarchy is not None:
        assert (release.values[:, 0] == release.values[:, 1] + release.values[:, 2]).all()
        assert (release.revised[:, 0] == release.revised[:, 1] + release.revised[:, 2]).all()
    assert release.statement.epsilon == made.release(rows).statement.epsilon
    again = made.release(rows, emit="step", state=json.loads(json.dumps(release.state)))
    assert again.statement.epsilon <= 2


def test_linear_holds_the_last_measured_value() -> None:
    release = mechanism("points").release(data("points"), emit="step")
    steps = ops.EqualSampling(k=4).steps(W)
    for period in release.values.reshape(-1, W):
        for step in range(W):
            assert period[step] == period[max(known for known in steps if known <= step)]
    buckets = mechanism("buckets").release(data("buckets"), emit="step").values
    # Before the first mean there is nothing but the bounds; later the mean before stays until the next one.
    assert (buckets[:3] == 50).all()
    assert len(set(buckets[3:7].tolist())) == 1
    assert buckets[W] == buckets[W - 1]


def test_what_chooses_from_the_data_is_refused() -> None:
    made = ops.OptStream(ops.Guarantee(epsilon=1, w=W), sample=ops.L1Sampling(k=4, threshold=3.0), bounds=(0, 9))
    with pytest.raises(ops.ParameterError, match="L1Sampling"):
        made.release(np.ones(W), emit="step")
    with pytest.raises(ops.ParameterError, match="emit"):
        made.release(np.ones(W), emit="day")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_releases_each_step_and_goes_on_from_its_state(kind: str) -> None:
    made = mechanism(kind)
    rows = data(kind)
    stream = ops.Stream(made, emit="step")
    for step, value in enumerate(rows):
        given = dict(zip(TREE.leaves, value, strict=True)) if made.hierarchy is not None else float(value)
        release = stream.push(step, given)
        assert (release.step, release.time, release.period) == (step, step, step // W)
        assert (release.revised is not None) == (step % W == W - 1)
        assert release.statement.epsilon <= 2
        ends = release.interval(0.9)
        low, high = ends if made.hierarchy is None else ends["all"]
        assert low <= high
        # The same observation is a retry; another is refused.
        assert stream.push(step, given) is release
        if step % 5 == 3:
            state = json.loads(json.dumps(stream.state))
            stream = ops.Stream(made, emit="step", state=state)
            assert json.loads(json.dumps(stream.state)) == state
    other = {"north": 1.0, "south": 2.0} if made.hierarchy is not None else 1.0
    with pytest.raises(ops.StreamError, match="late"):
        stream.push(0, other)


def test_measured_steps_cannot_be_corrected() -> None:
    made = mechanism("points")
    stream = ops.Stream(made, emit="step")
    first = stream.push(0, 5.0)
    with pytest.raises(ops.StreamError, match="twice"):
        stream.push(0, 6.0)
    keeping = ops.Stream(made, emit="step", duplicate="keep")
    first = keeping.push(0, 5.0)
    assert keeping.push(0, 6.0) is first
    unfit: list[dict[str, Any]] = [{"duplicate": "replace"}, {"disorder": "accept"}, {"missing": "skip"}]
    for wrong in unfit:
        with pytest.raises(ops.ParameterError):
            ops.Stream(made, emit="step", **wrong)


def test_missing_steps_hold_what_was_released_and_empty_periods_are_passed_over() -> None:
    made = mechanism("points", sample=ops.EqualSampling(k=W))
    with pytest.raises(ops.StreamError, match="missing"):
        ops.Stream(made, emit="step").push(3, 1.0)
    for missing in ("hold", 7.0):
        stream = ops.Stream(made, emit="step", missing=missing)
        assert [release.step for release in stream.push_many([2, 5], [1.0, 2.0])] == [0, 1, 2, 3, 4, 5]
        found = stream.push_many([3 * W + 1], [4.0])
        assert [release.step for release in found] == [*range(6, W), 3 * W, 3 * W + 1]
        assert found[5].revised is not None


def test_a_draw_that_fails_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = ops.Stream(mechanism("points"), emit="step")
    stream.push(0, 5.0)

    def broken(*_: Any) -> Any:
        raise ops.SolverError("no luck")

    with monkeypatch.context() as patch:
        patch.setattr(MeasuredWalk, "_leaving", broken)
        with pytest.raises(ops.SolverError):
            stream.push(1, 5.0)
    with pytest.raises(ops.StreamError):
        stream.push(2, 5.0)
    assert stream.push(W, 5.0).statement.epsilon <= 2


def test_states_that_are_damaged_are_refused() -> None:
    made = mechanism("cube")
    stream = ops.Stream(made, emit="step")
    stream.push(0, 5.0)
    state = stream.state
    assert state["walk"]["pending"][0] is not None
    with pytest.raises(ops.ParameterError):
        ops.Stream(made, state=state)
    changes: list[dict[str, Any]] = [{"walk": {}}, {"next": "x"}, {"next": 5}]
    for change in (*changes, {"walk": {**state["walk"], "samples": [[None] * 12]}}):
        with pytest.raises(ops.ParameterError):
            ops.Stream(made, emit="step", state=sealed({**state, **change}))
        with pytest.raises(ops.ParameterError, match="damaged"):
            ops.Stream(made, emit="step", state={**state, **change})
    lost = sealed({**state, "walk": {**state["walk"], "pending": [None]}})
    with pytest.raises(ops.ParameterError, match="radius"):
        ops.Stream(made, emit="step", state=lost).push(1, 5.0)


def test_a_period_is_finished_by_the_mechanism_that_it_was_begun_with() -> None:
    """Its price is that of its own plan: the first half of one and the second half of another may cost more."""
    guarantee = ops.Guarantee(epsilon=1, w=4)
    first, other = (
        ops.OptStream(guarantee, sample=sample, bounds=(0, 100))
        for sample in (ops.EqualSampling(2), ops.BucketSampling(2))
    )
    begun = ops.Stream(first, emit="step")
    begun.push_many([0, 1], [1.0, 2.0])
    for mechanism in (other, first.changed(bounds=(0, 200))):
        with pytest.raises(ops.ParameterError, match="within a period of another mechanism"):
            ops.Stream(mechanism, emit="step", state=begun.state)
    begun.push_many([2, 3], [3.0, 4.0])
    assert len(ops.Stream(other, emit="step", state=begun.state).push_many(range(4, 8), [1.0] * 4)) == 4


@pytest.mark.parametrize("where", ["_released", "_went"])
def test_what_fails_after_the_draw_of_a_step_does_not_measure_it_again(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    stream = ops.Stream(
        ops.OptStream(ops.Guarantee(epsilon=1, w=4), sample=ops.EqualSampling(4), bounds=(0, 100)), emit="step"
    )
    stream.push(0, 1.0)

    def fail(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as broken:
        broken.setattr(StepStream, where, fail)
        with pytest.raises(MemoryError):
            stream.push(1, 2.0)
    with pytest.raises(ops.StreamError, match="late"):
        stream.push(1, 2.0)
    assert stream.push(4, 1.0).period == 1
