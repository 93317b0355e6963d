"""Keyed noise without a ledger: the same bits as with one, however many periods and streams at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import optstream as ops
from optstream.keys import data_digest
from optstream.stream.keyed import digest_rows

if TYPE_CHECKING:
    from pathlib import Path

W = 6
KEY = ops.CuratorKey(bytes(range(32)))
GUARANTEE = ops.Guarantee(epsilon=1, w=W)
TREE = ops.Hierarchy({"all": None, "a": "all", "b": "all"})


def mechanism(sample: Any = None, **more: Any) -> ops.OptStream:
    return ops.OptStream(GUARANTEE, sample=sample or ops.EqualSampling(3), bounds=(0, 100), **more)


ONE_STREAM = {
    "steps": mechanism(),
    "cube": mechanism(ops.BucketSampling(cuts=(1, 4)), perturb=ops.CubeNoise()),
    "chosen": mechanism(ops.L1Sampling(4, 5.0)),
    "chain": mechanism(features=[ops.Feature.total(W)]),
    "Clarabel": mechanism(features=[ops.Feature.cuts(W, 1), ops.Feature.cuts(W, 2)]),
    "estimate": mechanism(reconstruct=ops.Estimate(season=1)),
    "whole": mechanism(integers=True),
}
TREES = {
    "tree": mechanism(hierarchy=TREE),
    "tree with totals": mechanism(hierarchy=TREE, features=[ops.Feature.total(W)]),
    "estimated tree": mechanism(hierarchy=TREE, reconstruct=ops.Estimate(season=1)),
    "chosen for all": ops.OptStream(
        ops.Guarantee(epsilon=1, w=W, entities="moving"), sample=ops.L1Sampling(4, 5.0), bounds=(0, 100), hierarchy=TREE
    ),
}


def data(made: ops.OptStream, streams: int = 3) -> dict[str, Any]:
    generator = np.random.default_rng(5)
    shape = (4 * W,) if made.hierarchy is None else (4 * W, 2)
    return {f"s{number}": generator.uniform(0, 100, shape) for number in range(streams)}


@pytest.mark.parametrize("made", [*ONE_STREAM.values(), *TREES.values()], ids=[*ONE_STREAM, *TREES])
def test_many_at_once_are_the_bits_of_a_ledger(made: ops.OptStream, tmp_path: Path) -> None:
    given = data(made)
    together = ops.release_many(made, given, key=KEY, period=2)
    with ops.Ledger(tmp_path / "l.db", key=KEY, create=True) as ledger:
        for name, x in given.items():
            by_ledger = ledger.release(made, x, stream=name, period=2)
            assert np.array_equal(together[name].values, by_ledger.values)
            for one, other in zip(together[name].features, by_ledger.features, strict=True):
                assert np.array_equal(one, other)
            for end, same in zip(together[name].interval(0.9), by_ledger.interval(0.9), strict=True):
                assert np.array_equal(end, same)


@pytest.mark.parametrize("made", ONE_STREAM.values(), ids=ONE_STREAM)
def test_a_stream_with_a_key_gives_the_same(made: ops.OptStream) -> None:
    given = data(made, 1)["s0"]
    expected = ops.release_many(made, {"s": given}, key=KEY)["s"].values
    for _ in range(2):
        stream = ops.Stream(made, name="s", key=KEY)
        found = stream.push_many(range(len(given)), given)
        assert np.array_equal(np.concatenate([one.values for one in found]), expected)


def test_a_restarted_stream_gives_the_same() -> None:
    made, given = ONE_STREAM["estimate"], data(ONE_STREAM["estimate"], 1)["s0"]
    expected = ops.release_many(made, {"s": given}, key=KEY)["s"].values
    stream, found = ops.Stream(made, name="s", key=KEY), []
    for step, value in enumerate(given):
        stream = ops.Stream(made, name="s", key=KEY, state=stream.state) if step else stream
        found += [release.values for release in [stream.push(step, value)] if release is not None]
    assert np.array_equal(np.concatenate(found), expected)


def test_noise_depends_on_everything_that_it_must() -> None:
    made, x = ONE_STREAM["steps"], np.full(W, 50.0)

    def values(made: ops.OptStream = made, x: Any = x, key: Any = KEY, stream: str = "s", period: int = 0) -> Any:
        return ops.release_many(made, {stream: x}, key=key, period=period)[stream].values

    first = values()
    moved = x.copy()
    moved[1] += 1  # A step that is not measured: the data are others all the same.
    assert np.array_equal(first, values())
    for other in (
        values(key=ops.CuratorKey(bytes(32))),
        values(stream="t"),
        values(period=1),
        values(made=made.with_epsilon(GUARANTEE.epsilon / 2)),
        values(x=moved),
    ):
        assert not np.isin(other, first).any()


def test_digests_are_those_of_single_periods() -> None:
    units = np.arange(24).reshape(2, 2, 6)
    found = digest_rows(KEY, [b"a", b"b"], [3, 2**40], units)
    assert [row.tobytes() for row in found] == [
        data_digest(KEY, "a", 3, units[0]),
        data_digest(KEY, "b", 2**40, units[1]),
    ]


def test_a_state_goes_on_and_prices_what_came_before() -> None:
    made, x = ONE_STREAM["estimate"], data(ONE_STREAM["estimate"], 1)["s0"]
    whole = ops.release_many(made, {"s": x}, key=KEY)["s"]
    first = ops.release_many(made, {"s": x[: 2 * W]}, key=KEY)["s"]
    second = ops.release_many(made, {"s": x[2 * W :]}, key=KEY, state={"s": first.state})["s"]
    assert np.array_equal(np.concatenate([first.values, second.values]), whole.values)
    assert second.state == whole.state
    with pytest.raises(ops.ParameterError, match="period is 1, but must be at least 2"):
        ops.release_many(made, {"s": x}, key=KEY, state={"s": first.state}, period=1)
    # Another plan meets what came before: its first period gets what the windows over the border leave.
    dear = mechanism(ops.L1Sampling(4, 5.0))
    before = ops.release_many(mechanism(), {"s": x[: 2 * W]}, key=KEY)["s"]
    changed = ops.release_many(dear, {"s": x[2 * W :]}, key=KEY, state={"s": before.state})["s"]
    alone = dear.release(x[2 * W :], state=before.state)
    assert changed.state == alone.state
    assert changed.statement.epsilon == alone.statement.epsilon
    assert np.array_equal(changed._scales, alone._scales)
    assert changed._scales[0] > changed._scales[1]


def test_a_plan_that_tunes_itself_repeats_too() -> None:
    made = ops.OptStream.auto(GUARANTEE, bounds=(0, 100), season=1)
    x = data(made, 1)["s0"]
    first, again = (ops.release_many(made, {"s": x}, key=KEY)["s"].values for _ in range(2))
    assert np.array_equal(first, again)


def test_steps_repeat_with_a_key() -> None:
    made = ops.OptStream(GUARANTEE, sample=ops.EqualSampling(W), bounds=(0, 100), perturb=ops.LaplaceNoise())
    x = data(made, 1)["s0"]

    def left(name: str = "s") -> list[Any]:
        stream = ops.Stream(made, name=name, emit="step", key=KEY)
        return [release.value for release in stream.push_many(range(len(x)), x)]

    assert left() == left()
    assert not set(left()) & set(left("t"))


def test_cube_noise_by_step_needs_a_ledger() -> None:
    made = ops.OptStream(GUARANTEE, sample=ops.EqualSampling(W), bounds=(0, 100), perturb=ops.CubeNoise())
    with pytest.raises(ops.ParameterError, match="noise that lasts for several steps"):
        ops.Stream(made, emit="step", key=KEY)


def test_a_key_is_needed_once(tmp_path: Path) -> None:
    with pytest.raises(ops.ParameterError, match="key is not given"):
        ops.release_many(mechanism(), {"s": np.ones(W)})
    with (
        ops.Ledger(tmp_path / "l.db", create=True) as ledger,
        pytest.raises(ops.ParameterError, match="key is given, but must not be with a ledger"),
    ):
        ops.Stream(mechanism(), ledger=ledger, key=KEY)
