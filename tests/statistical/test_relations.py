"""Relations that hold for any stream: shift, scale, reflection, order of leaves, refinement, pieces, large epsilon.

Noise is paired: what was measured once, with fresh noise, is changed as the relation says, and both are estimated. So
no relation is judged by statistics.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import optstream as ops
from optstream.mechanism.state import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from optstream.mechanism.release import Parts

    Array = NDArray[np.float64]

W, PERIODS = 8, 10
TREE = ops.Hierarchy.nested({"all": ["a", "b", "c"]})
BELOW = np.array([[3.0], [1.0], [1.0], [1.0]])
SHAPE = 50 + 30 * np.sin(np.arange(W) / W * 2 * np.pi)
X = np.round(np.tile(SHAPE, PERIODS) + np.random.default_rng(3).normal(0, 3, W * PERIODS))
LEAVES = {"a": X, "b": 100 - X, "c": np.round(X / 4)}
TOTAL = (ops.Feature.total(W),)


def mechanism(
    unit: float = 1.0, bounds: tuple[float, float] = (0, 100), epsilon: float = 1, **changes: Any
) -> ops.OptStream:
    options: dict[str, Any] = {"sample": ops.BucketSampling(4), "reconstruct": ops.Estimate(season=3)}
    options["grid"] = 2.0**-10 * unit
    guarantee = ops.Guarantee(epsilon=epsilon, w=W, alpha=unit)
    low, high = bounds
    return ops.OptStream(guarantee, bounds=(low * unit, high * unit), **(options | changes))


ESTIMATES: dict[str, dict[str, Any]] = {
    "means": {},
    "means with cube noise": {"perturb": ops.CubeNoise()},
    "steps": {"sample": ops.EqualSampling(3)},
    "every step": {"sample": ops.EqualSampling(W), "perturb": ops.CubeNoise()},
    "features": {"features": TOTAL},
    "no memory": {"reconstruct": ops.Estimate(memory=False)},
    "tree": {"hierarchy": TREE},
}
both = pytest.mark.parametrize("changes", ESTIMATES.values(), ids=ESTIMATES)


def data(made: ops.OptStream) -> Any:
    return X if made.hierarchy is None else LEAVES


def pairs(
    made: ops.OptStream, other: ops.OptStream, changed: Callable[[Parts], Parts]
) -> Iterator[tuple[Array, Array]]:
    """Yield the estimates of each period from what was measured, and from what would have been of the other stream."""
    memory, theirs = made.remembered(), other.remembered()
    for period, units in enumerate(made.read(data(made)).units):
        parts = made.draw(units)
        yield made.finish(parts, period, memory).values, other.finish(changed(parts), period, theirs).values


@both
def test_a_shift_shifts(changes: dict[str, Any]) -> None:
    by = 64.0
    made, other = mechanism(**changes), mechanism(bounds=(by, 100 + by), **changes)
    below = np.ones((1, 1)) if made.hierarchy is None else BELOW

    def shifted(parts: Parts) -> Parts:
        return replace(parts, values=parts.values + by * below, cells=parts.cells + by * W * below)

    for one, two in pairs(made, other, shifted):
        # Values are rounded to the grid of each leaf.
        np.testing.assert_allclose(two - by * below, one, atol=3 * made.grid)


@both
@pytest.mark.parametrize("unit", [2.0**-7, 2.0**12])
def test_units_scale(changes: dict[str, Any], unit: float) -> None:
    made, other = mechanism(**changes), mechanism(unit, **changes)
    scaled = lambda parts: replace(parts, values=parts.values * unit, cells=parts.cells * unit)  # noqa: E731
    for one, two in pairs(made, other, scaled):
        np.testing.assert_allclose(two / unit, one, atol=3 * made.grid)


@both
def test_a_reflection_reflects(changes: dict[str, Any]) -> None:
    made, other = mechanism(**changes), mechanism(bounds=(-100, 0), **changes)
    for one, two in pairs(made, other, lambda parts: replace(parts, values=-parts.values, cells=-parts.cells)):
        np.testing.assert_allclose(-two, one, atol=3 * made.grid)


@both
def test_bounds_ten_thousand_times_wider_change_little(changes: dict[str, Any]) -> None:
    made, other = mechanism(**changes), mechanism(bounds=(-500_000, 500_000), **changes)
    found = list(pairs(made, other, lambda parts: parts))[PERIODS // 2 :]
    ours, wide = (np.array([pair[index] for pair in found]) for index in (0, 1))
    # What bounds do is to clamp the values; a step of a released value has noise of 8 or more.
    clamped = np.clip(wide, 0, 100) if made.hierarchy is None else wide
    assert np.abs(clamped - ours).mean() < 4


def test_the_order_of_leaves_does_not_matter() -> None:
    made = mechanism(hierarchy=TREE)
    other = mechanism(hierarchy=ops.Hierarchy.nested({"all": ["c", "a", "b"]}))
    order = [0, 3, 1, 2]
    for one, two in pairs(made, other, lambda parts: replace(parts, values=parts.values[order])):
        np.testing.assert_allclose(two, one[order], atol=3 * made.grid)


@both
def test_pieces_with_state_are_the_whole(changes: dict[str, Any]) -> None:
    """The same noise, with everything that is remembered written and read again after every period: the same bits."""
    made = mechanism(**changes)
    whole, pieces = State.read(None, made), State.read(None, made)
    assert whole.memory is not None
    for period, units in enumerate(made.read(data(made)).units):
        parts = made.draw(units)
        pieces.advance(period, made.costs)
        pieces = State.read(json.loads(json.dumps(pieces.to_data(made.guarantee))), made)
        assert pieces.memory is not None
        one, two = made.finish(parts, period, whole.memory), made.finish(parts, period, pieces.memory)
        np.testing.assert_array_equal(one.values, two.values)
        np.testing.assert_array_equal(one.deviations, two.deviations)


@pytest.mark.parametrize("tunes", [False, True])
def test_streams_and_ledgers_are_batches(tunes: bool, tmp_path: Path) -> None:
    """With one key: a stream step by step, a ledger at once, and one period after another, in the same bits."""
    ops.create_key(tmp_path / "key")
    auto = ops.OptStream.auto(ops.Guarantee(epsilon=1, w=W), bounds=(0, 100))
    made, values = auto if tunes else mechanism(), []
    for name in ("stream", "batch", "periods"):
        with ops.Ledger(tmp_path / f"{name}.db", key=tmp_path / "key", create=True) as ledger:
            if name == "stream":
                stream = ops.Stream(made, ledger=ledger, name="a")
                released = stream.push_many(range(len(X)), X)
                values.append(np.concatenate([release.values for release in released]))
            elif name == "batch":
                values.append(ledger.release(made, X, stream="a").values)
            else:
                rows = X.reshape(PERIODS, W)
                parts = [ledger.release(made, row, stream="a", period=at).values for at, row in enumerate(rows)]
                values.append(np.concatenate(parts))
    np.testing.assert_array_equal(values[0], values[1])
    np.testing.assert_array_equal(values[0], values[2])


LOUD: dict[str, Callable[[], ops.OptStream]] = {
    f"{sample.__name__}, {type(noise).__name__}, {rest}": lambda sample=sample, noise=noise, more=more: mechanism(  # type: ignore[misc]
        epsilon=1e7, sample=sample(W), perturb=noise, grid=2.0**-24, **more
    )
    for sample in (ops.EqualSampling, ops.BucketSampling)
    for noise in (ops.LaplaceNoise(), ops.CubeNoise(block=2))
    for rest, more in {
        "a line": {"reconstruct": ops.Linear()},
        "estimate": {},
        "without memory": {"reconstruct": ops.Estimate(memory=False)},
        "features": {"reconstruct": ops.Linear(), "features": TOTAL},
        "estimate with features": {"features": (*TOTAL, ops.Feature.cuts(W, 3))},
        "tree": {"reconstruct": ops.Linear(), "hierarchy": TREE},
        "tree of estimates": {"hierarchy": TREE},
    }.items()
}
LOUD |= {
    "chosen steps": lambda: mechanism(epsilon=1e7, sample=ops.L1Sampling(k=W, threshold=0.0), reconstruct=ops.Linear()),
    "tunes itself": lambda: ops.OptStream.auto(ops.Guarantee(epsilon=1e7, w=W), bounds=(0, 100)),
    "tuned": lambda: ops.tune(ops.Guarantee(epsilon=1e7, w=W), X, bounds=(0, 100)).mechanism,
    "tuned tree": lambda: ops.tune(ops.Guarantee(epsilon=1e7, w=W), LEAVES, bounds=(0, 100), hierarchy=TREE).mechanism,
}


@pytest.mark.parametrize("name", LOUD)
def test_a_large_epsilon_reproduces_the_data(name: str) -> None:
    made = LOUD[name]()
    release = made.release(data(made))
    if made.hierarchy is None:
        np.testing.assert_allclose(release.values, X, atol=0.01)
    else:
        for leaf, values in LEAVES.items():
            np.testing.assert_allclose(release.values[leaf], values, atol=0.01)


@pytest.mark.parametrize("reconstruct", [ops.Linear(), ops.Estimate()])
def test_a_refined_tree_has_the_same_nodes(reconstruct: ops.Linear | ops.Estimate) -> None:
    """Leaves that are parts of others, of one sign or of both, change no node that both trees have."""
    fine = ops.Hierarchy.nested({"all": {"a": ["a1", "a2"], "b": ["b1", "b2"], "c": ["c1", "c2"]}})
    made = mechanism(
        epsilon=1e7, hierarchy=fine, bounds=(-200, 200), sample=ops.EqualSampling(W), reconstruct=reconstruct
    )
    parts = {f"{leaf}1": values + 100 for leaf, values in LEAVES.items()}
    parts |= {f"{leaf}2": np.full_like(values, -100.0) for leaf, values in LEAVES.items()}
    found = made.release(parts).values
    for leaf, values in LEAVES.items():
        np.testing.assert_allclose(found[leaf], values, atol=0.01)
    np.testing.assert_allclose(found["all"], sum(LEAVES.values()), atol=0.01)
