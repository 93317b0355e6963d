"""Post-processing finds the optimum: the tree in Rust and Clarabel agree, and both satisfy the conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from scipy.optimize import lsq_linear, nnls

import optstream as ops
from optstream import _core
from optstream.pipeline.features import chain
from optstream.pipeline.projection import ConvexProjection, tree_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

W = 12
NONNEGATIVE = (0.0, 1e12)


def projected(problem: ConvexProjection, targets: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate(problem.project(targets[:W], targets[W:]))


def reference(
    features: list[ops.Feature], weights: NDArray[np.float64], targets: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The same optimum by an active-set method: non-negative least squares on the steps alone."""
    rows = [np.eye(W)] + [np.eye(f.size)[:, list(f.labels)] for f in features]
    roots = np.sqrt(weights)
    steps, _ = nnls(np.vstack(rows) * roots[:, None], targets * roots)
    return np.asarray(np.vstack(rows) @ steps)


partitions = st.lists(st.integers(0, 3), min_size=W, max_size=W).map(
    lambda labels: ops.Feature([[t for t in range(W) if labels[t] == cell] for cell in set(labels)])
)


@settings(max_examples=60, deadline=None)
@given(st.lists(partitions, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_clarabel_agrees_with_an_active_set_method(features: list[ops.Feature], random: object) -> None:
    generator = np.random.default_rng(abs(hash(random)) % 2**32)
    n = W + sum(feature.size for feature in features)
    weights = generator.uniform(0.05, 1, n)
    targets = generator.normal(0, 100, n)
    found = projected(ConvexProjection(W, features, weights, NONNEGATIVE), targets)
    np.testing.assert_allclose(found, reference(features, weights, targets), atol=1e-9 * np.abs(targets).max())


def test_one_problem_is_solved_for_many_periods() -> None:
    features = [ops.Feature.cuts(W, 5), ops.Feature.cuts(W, 7)]
    weights = np.ones(W + 4)
    problem = ConvexProjection(W, features, weights, NONNEGATIVE)
    generator = np.random.default_rng(3)
    for scale in (1.0, 1e6, 1e-3, 1e3):
        targets = generator.normal(0, scale, W + 4)
        expected = reference(features, weights, targets)
        np.testing.assert_allclose(projected(problem, targets), expected, atol=1e-9 * scale)


def test_a_chain_is_found_in_any_order_and_an_incomparable_pair_is_not_one() -> None:
    fine, middle, coarse = ops.Feature.cuts(W, 2, 4, 8), ops.Feature.cuts(W, 4), ops.Feature.total(W)
    assert chain([coarse, fine, middle]) == [1, 2, 0]
    assert chain([ops.Feature.cuts(W, 3), middle]) is None
    assert tree_of(W, [ops.Feature.cuts(W, 3), middle]) is None
    parents = tree_of(W, [coarse, fine])
    assert parents is not None
    # The total is node 12, the cells of the finer feature are 13 to 16.
    assert parents[:3] == [13, 13, 14]
    assert parents[12:] == [None, 12, 12, 12, 12]


@pytest.mark.parametrize("weights", ["paper", "variance"])
@pytest.mark.parametrize("sample", [ops.EqualSampling(k=5), ops.L1Sampling(k=5, threshold=10.0)], ids=str)
def test_the_tree_and_clarabel_release_the_same_optimum(weights: str, sample: object) -> None:
    features = [ops.Feature.cuts(W, 4, 8), ops.Feature.total(W)]
    made = ops.OptStream(
        ops.Guarantee(epsilon=1, w=W),
        sample=sample,  # type: ignore[arg-type]
        features=features,
        bounds=(0, 100),
        weights=weights,  # type: ignore[arg-type]
    )
    answer_weights = made.engine.calibration.answer_weights()
    problem = ConvexProjection(W, features, answer_weights, (0, 100))
    released = made.release(np.full((50, W), 2.0))
    everything = np.concatenate([released.values, *released.features], axis=1)
    for row in everything:
        # A projection leaves what already satisfies the constraints where it is.
        np.testing.assert_allclose(projected(problem, row), row, atol=1e-9 * max(row.max(), 1))


def test_a_failed_solve_is_a_typed_error() -> None:
    features = [ops.Feature.cuts(W, 5), ops.Feature.cuts(W, 7)]
    problem = ConvexProjection(W, features, np.ones(W + 4), NONNEGATIVE, iterations=1)
    with pytest.raises(ops.SolverError, match="Clarabel ended with status MaxIterations"):
        projected(problem, np.linspace(-5, 10, W + 4))
    with pytest.raises(ops.SolverError):
        projected(ConvexProjection(W, features, np.ones(W + 4), NONNEGATIVE), np.full(W + 4, np.nan))


boxes = st.sampled_from([(-100.0, 100.0), (-50.0, -20.0), (900.0, 1100.0), (-1e9, 1e9), (-30.0, 0.0), (0.0, 40.0)])


def boxed(
    features: list[ops.Feature], weights: NDArray[np.float64], targets: NDArray[np.float64], box: tuple[float, float]
) -> NDArray[np.float64]:
    """The optimum between bounds by scipy's active sets."""
    rows = np.vstack([np.eye(W)] + [np.eye(f.size)[:, list(f.labels)] for f in features])
    roots = np.sqrt(weights)
    found = lsq_linear(rows * roots[:, None], targets * roots, box, method="bvls", tol=1e-14, max_iter=2000)
    return np.asarray(rows @ found.x)


@settings(max_examples=60, deadline=None)
@given(st.lists(partitions, min_size=1, max_size=3), boxes, st.integers(0, 2**32 - 1))
def test_bounds_on_both_sides_of_zero_are_kept(
    features: list[ops.Feature], box: tuple[float, float], seed: int
) -> None:
    generator = np.random.default_rng(seed)
    n = W + sum(feature.size for feature in features)
    weights = generator.uniform(0.05, 1, n)
    targets = generator.normal(0, 100, n)
    found = projected(ConvexProjection(W, features, weights, box), targets)
    assert ((found[:W] >= box[0]) & (found[:W] <= box[1])).all()
    scale = max(np.abs(targets).max(), box[0])
    np.testing.assert_allclose(found, boxed(features, weights, targets, box), atol=1e-7 * scale)
    mirrored = projected(ConvexProjection(W, features, weights, (-box[1], -box[0])), -targets)
    np.testing.assert_allclose(mirrored, -found, atol=1e-7 * scale)
    # A shift by a constant moves steps by it and cells by as many times.
    shift = np.concatenate([np.full(W, 64.0), *(64.0 * np.bincount(f.labels) for f in features)])
    moved = projected(ConvexProjection(W, features, weights, (box[0] + 64, box[1] + 64)), targets + shift)
    np.testing.assert_allclose(moved, found + shift, atol=1e-6 * scale)


@settings(max_examples=60, deadline=None)
@given(boxes, st.integers(0, 2**32 - 1))
def test_the_tree_in_rust_keeps_bounds_on_both_sides_of_zero(box: tuple[float, float], seed: int) -> None:
    features = [ops.Feature.cuts(W, 2, 4, 8), ops.Feature.total(W)]
    generator = np.random.default_rng(seed)
    weights, targets = generator.uniform(0.05, 1, W + 5), generator.normal(0, 100, W + 5)
    parents = tree_of(W, features)
    assert parents is not None
    found = _core.Forest(parents, weights.tolist()).project(targets[None, :], lower=box[0], upper=box[1])[0]
    scale = max(np.abs(targets).max(), box[0])
    np.testing.assert_allclose(found, boxed(features, weights, targets, box), atol=1e-7 * scale)


@pytest.mark.parametrize("features", [[ops.Feature.total(W)], [ops.Feature.cuts(W, 5), ops.Feature.cuts(W, 7)]])
@pytest.mark.parametrize("hierarchy", [None, ops.Hierarchy.nested({"all": ["a", "b"]})])
def test_negative_data_is_released_as_it_is_with_a_large_budget(
    features: list[ops.Feature], hierarchy: ops.Hierarchy | None
) -> None:
    made = ops.OptStream(
        ops.Guarantee(epsilon=10**6, w=W),
        sample=ops.EqualSampling(k=W),
        features=features,
        bounds=(-100, 100),
        hierarchy=hierarchy,
    )
    data = np.random.default_rng(1).uniform(-90, 90, (W, 2))
    if hierarchy is None:
        np.testing.assert_allclose(made.release(data[:, 0]).values, data[:, 0], atol=0.1)
    else:
        np.testing.assert_allclose(made.release(data).values, hierarchy.sums(data.T).T, atol=0.1)
