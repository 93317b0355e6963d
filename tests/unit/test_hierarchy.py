"""Hierarchies: built in several ways, priced along the path, released so that everything adds up to the last bit."""

from __future__ import annotations

import fcntl
import gzip
import io
import itertools
import os
import pickle
import pty
import struct
import subprocess
import sys
import termios
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import clarabel
import hypothesis.strategies as st
import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from scipy import sparse
from scipy.optimize import nnls

import optstream as ops
from optstream.pipeline.tree_projection import TreeProjection

if TYPE_CHECKING:
    from numpy.typing import NDArray

W = 6
FEATURES = [ops.Feature.cuts(W, 2, 4), ops.Feature.total(W)]
CROSSING = [ops.Feature.cuts(W, 2), ops.Feature.cuts(W, 3)]
NONNEGATIVE = (0.0, 1e12)
UNEVEN = ops.Hierarchy.nested({"root": {"a": ["a1", "a2"], "b": {"b1": ["b11", "b12", "b13"], "b2": None}, "c": None}})


@st.composite
def trees(draw: st.DrawFn) -> ops.Hierarchy:
    size = draw(st.integers(1, 9))
    links: dict[str, str | None] = {"n0": None}
    for node in range(1, size):
        links[f"n{node}"] = f"n{draw(st.integers(0, node - 1))}"
    return ops.Hierarchy(links)


def mechanism(tree: ops.Hierarchy, **changes: Any) -> ops.OptStream:
    options: dict[str, Any] = {"sample": ops.EqualSampling(k=3), "bounds": (0, 1000), "hierarchy": tree, **changes}
    guarantee = options.pop("guarantee", ops.Guarantee(epsilon=1, w=W))
    return ops.OptStream(guarantee, **options)


class TestConstruction:
    def test_every_way_leads_to_the_same_tree(self) -> None:
        links = {"nation": None, "north": "nation", "south": "nation", "n1": "north", "n2": "north"}
        tree = ops.Hierarchy(links)
        assert tree == ops.Hierarchy.nested({"nation": {"north": ["n1", "n2"], "south": None}})
        rows = {"top": ["nation"] * 3, "middle": ["north", "north", "south"], "bottom": ["n1", "n2", None]}
        for frame in (pd.DataFrame(rows), pl.DataFrame(rows)):
            assert ops.Hierarchy.from_frame(frame, ["top", "middle", "bottom"]) == tree
        assert tree.nodes == ("nation", "north", "south", "n1", "n2")
        assert tree.leaves == ("south", "n1", "n2")
        assert tree.levels == 3
        assert pickle.loads(pickle.dumps(tree)) == tree

    @pytest.mark.parametrize(
        ("links", "message"),
        [
            ({}, "0 roots"),
            ({"a": None, "b": None}, "2 roots"),
            ({"a": None, "b": "c"}, r"parents\['b'\] is 'c'"),
            ({"a": None, "b": "c", "c": "b"}, "cycle"),
        ],
        ids=str,
    )
    def test_what_is_no_tree_is_refused(self, links: dict[str, str | None], message: str) -> None:
        with pytest.raises(ops.ParameterError, match=message):
            ops.Hierarchy(links)

    def test_other_mistakes_are_named(self) -> None:
        with pytest.raises(ops.ParameterError, match="'a' twice"):
            ops.Hierarchy.nested({"root": {"a": ["a"]}})
        with pytest.raises(ops.ParameterError, match="two parents"):
            ops.Hierarchy.from_frame(pl.DataFrame({"x": ["r", "r"], "y": ["a", "b"], "z": ["c", "c"]}), ["x", "y", "z"])
        with pytest.raises(ops.ParameterError, match="columns of the frame"):
            ops.Hierarchy.from_frame(pl.DataFrame({"x": ["r"]}), ["x", "y"])


class TestBudget:
    @pytest.mark.parametrize("sample", [ops.EqualSampling(k=3), ops.L1Sampling(k=4, threshold=5.0)], ids=str)
    @pytest.mark.parametrize("split", [None, (4, 2, 1, 1)])
    def test_the_path_to_the_lowest_leaf_costs_epsilon(self, sample: Any, split: tuple[int, ...] | None) -> None:
        statement = mechanism(UNEVEN, sample=sample, features=FEATURES, level_split=split).statement
        assert statement.epsilon == 1
        shares = [Fraction(s, 8) for s in split] if split else [Fraction(1, 4)] * 4
        for depth, share in enumerate(shares):
            stages = [stage for stage in statement.stages if stage.name.endswith(f"level {depth}")]
            assert sum(stage.epsilon for stage in stages) == share
        assert "one leaf" in str(statement)

    def test_brute_force_over_the_changes_of_one_entity(self) -> None:
        # Equal sampling: an entity of a leaf changes any steps of a window, at every node of its path, by alpha. The
        # loss of a change is the sum over measured steps of alpha / scale; brute force over all changes.
        tree = ops.Hierarchy.nested({"root": {"a": ["a1", "a2"], "b": None}})
        w = 3
        made = ops.OptStream(
            ops.Guarantee(epsilon=1, w=w), sample=ops.EqualSampling(k=2), bounds=(0, 10), hierarchy=tree
        )
        scales = [Fraction(*plan.sample_scale) / plan.sensitivity for plan in made.engine.tree.plans]
        measured = [step for period in range(2) for step in (period * w, period * w + w - 1)]
        worst = Fraction(0)
        for first, leaf_depth in itertools.product(range(w + 1), (1, 2)):
            for changed in itertools.product((False, True), repeat=w):
                steps = [first + offset for offset, moves in enumerate(changed) if moves]
                loss = sum(1 / scale for scale in scales[: leaf_depth + 1] for step in steps if step in measured)
                worst = max(worst, Fraction(loss))
        assert worst == made.statement.epsilon == 1

    def test_level_shares_must_fit_the_levels(self) -> None:
        with pytest.raises(ops.ParameterError, match="level_split has 2 shares, but must have 4"):
            mechanism(UNEVEN, level_split=(1, 1))
        with pytest.raises(ops.ParameterError, match="level_split has 1 shares, but must have 0"):
            ops.OptStream(ops.Guarantee(epsilon=1, w=W), sample=ops.EqualSampling(k=2), bounds=(0, 1), level_split=(1,))


class TestRelease:
    @settings(max_examples=40, deadline=None)
    @given(
        tree=trees(),
        features=st.sampled_from([[], FEATURES, CROSSING]),
        adaptive=st.booleans(),
        mean=st.sampled_from([0.0, 3.0, 500.0]),
    )
    def test_everything_adds_up_to_the_last_bit_and_nothing_is_negative(
        self, tree: ops.Hierarchy, features: list[ops.Feature], adaptive: bool, mean: float
    ) -> None:
        sample = ops.L1Sampling(k=4, threshold=5.0) if adaptive else ops.EqualSampling(k=3)
        made = mechanism(tree, sample=sample, features=features)
        released = made.release(np.full((2 * W, len(tree.leaves)), mean))
        values = released.values
        assert values.shape == (2 * W, len(tree.nodes))
        assert (values >= 0).all()
        assert (values % made.grid == 0).all()
        for node, parent in enumerate(tree.parents):
            children = [child for child, above in enumerate(tree.parents) if above == node]
            if children:
                np.testing.assert_array_equal(values[:, node], values[:, children].sum(axis=1))
            assert parent is None or parent < node
        for feature, sums in zip(features, released.features, strict=True):
            for period, cell in itertools.product(range(2), range(feature.size)):
                steps = [period * W + t for t in range(W) if feature.labels[t] == cell]
                np.testing.assert_array_equal(sums[period, cell], values[steps].sum(axis=0))

    @settings(max_examples=60, deadline=None)
    @given(tree=trees(), features=st.sampled_from([[], FEATURES, CROSSING]), seed=st.integers(0, 2**32 - 1))
    def test_the_projection_is_the_optimum_of_the_dense_problem(
        self, tree: ops.Hierarchy, features: list[ops.Feature], seed: int
    ) -> None:
        generator = np.random.default_rng(seed)
        node_weights = generator.uniform(0.05, 1, tree.levels)[tree.depths]
        step_weights = np.full(W, 1.0) if not features else generator.uniform(0.1, 1, W)
        cell_weights = generator.uniform(0.01, 1, len(features)).tolist()
        problem = TreeProjection(tree, features, node_weights, step_weights, cell_weights, bounds=NONNEGATIVE)
        cells = sum(feature.size for feature in features)
        answers = generator.normal(20, 100, (len(tree.nodes), W + cells))
        found = problem.project(answers[:, :W], answers[:, W:])
        expected = by_active_set(*system(tree, features, node_weights, step_weights, cell_weights, answers))
        np.testing.assert_allclose(found.ravel(), expected, atol=1e-6)

    @pytest.mark.parametrize("features", [FEATURES, CROSSING], ids=["chain", "crossing"])
    def test_the_projection_agrees_with_clarabel(self, features: list[ops.Feature]) -> None:
        generator = np.random.default_rng(7)
        node_weights = np.array([1.0, 0.5, 0.3, 0.2])[UNEVEN.depths]
        step_weights, cell_weights = generator.uniform(0.5, 1, W), [0.2, 0.1]
        problem = TreeProjection(UNEVEN, features, node_weights, step_weights, cell_weights, bounds=NONNEGATIVE)
        cells = sum(feature.size for feature in features)
        for mean in (5.0, 500.0):
            answers = generator.normal(mean, 100, (len(UNEVEN.nodes), W + cells))
            found = problem.project(answers[:, :W], answers[:, W:])
            expected = by_clarabel(*system(UNEVEN, features, node_weights, step_weights, cell_weights, answers))
            np.testing.assert_allclose(found.ravel(), expected, atol=1e-4)

    def test_with_a_large_budget_the_release_is_the_data(self) -> None:
        data = np.random.default_rng(1).integers(0, 900, (2 * W, len(UNEVEN.leaves))).astype(float)
        generous = ops.Guarantee(epsilon=10**6, w=W)
        for features in ([], FEATURES, CROSSING):
            made = mechanism(UNEVEN, guarantee=generous, sample=ops.EqualSampling(k=W), features=features)
            expected = UNEVEN.sums(data.T).T
            np.testing.assert_allclose(made.release(data).values, expected, atol=0.5)

    def test_frames_keep_their_kind_and_index_and_any_order_of_columns(self) -> None:
        tree = ops.Hierarchy.nested({"nation": ["north", "south"]})
        made = mechanism(tree, guarantee=ops.Guarantee(epsilon=10**6, w=W), sample=ops.EqualSampling(k=W))
        index = pd.date_range("2016-01-01", periods=W, freq="30min")
        columns = {"south": np.full(W, 200.0), "other": np.zeros(W), "north": np.full(W, 100.0)}
        frame = made.release(pd.DataFrame(columns, index=index)).values
        assert list(frame.columns) == ["nation", "north", "south"]
        pd.testing.assert_index_equal(frame.index, index)
        np.testing.assert_allclose(frame["north"], 100, atol=0.1)
        assert isinstance(made.release(pl.DataFrame(columns)).values, pl.DataFrame)
        assert set(made.release(columns).values) == {"nation", "north", "south"}
        copy = pickle.loads(pickle.dumps(made))
        assert copy.release(columns).statement.stages == made.statement.stages

    @pytest.mark.parametrize(
        ("x", "message"),
        [
            (np.zeros((W, 3)), "one column for each of 2 leaves"),
            (np.zeros((W + 1, 2)), "7 rows, but must have a positive multiple of w = 6"),
            (np.full((W, 2), np.nan), "x is not finite in row 0 of 'north'"),
            ({"north": np.zeros(W)}, "no column 'south'"),
            (np.zeros((W, 2), dtype=bool), "x holds bool"),
            (5, "x is of type int"),
        ],
        ids=range(6),
    )
    def test_wrong_data_is_named(self, x: Any, message: str) -> None:
        with pytest.raises(ops.OptStreamError, match=message):
            mechanism(ops.Hierarchy.nested({"nation": ["north", "south"]})).release(x)

    def test_noise_as_large_as_can_be_still_adds_up(self) -> None:
        tree = ops.Hierarchy.nested({"nation": [f"r{i}" for i in range(40)]})
        made = mechanism(tree, guarantee=ops.Guarantee(epsilon=1e-10, w=W), grid=1.0, bounds=(0, 1e14))
        values = made.release(np.ones((20 * W, 40))).values
        assert values.max() > 1e10
        np.testing.assert_array_equal(values[:, 0], values[:, 1:].sum(axis=1))

    def test_parents_are_sums_of_quantised_leaves(self) -> None:
        # Ten leaves at 0.3 grid steps are zero each, and so is their sum, which in floats would round to three.
        tree = ops.Hierarchy.nested({"nation": [f"r{i}" for i in range(10)]})
        made = mechanism(tree, guarantee=ops.Guarantee(epsilon=10**6, w=W), grid=1.0, bounds=(0, 100))
        assert (made.release(np.full((W, 10), 0.3)).values == 0).all()


def by_active_set(matrix: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """The optimum by non-negative least squares."""
    return np.asarray(nnls(matrix, right)[0])


def by_clarabel(matrix: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same optimum by an interior point on the normal equations."""
    n = matrix.shape[1]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
    hessian = sparse.csc_matrix(sparse.triu(matrix.T @ matrix))
    cones = [clarabel.NonnegativeConeT(n)]
    positivity = sparse.csc_matrix(-sparse.eye_array(n))
    solver = clarabel.DefaultSolver(hessian, -matrix.T @ right, positivity, np.zeros(n), cones, settings)
    solution = solver.solve()
    assert solution.status == clarabel.SolverStatus.Solved
    return np.asarray(solution.x)


def system(
    tree: ops.Hierarchy,
    features: list[ops.Feature],
    node_weights: NDArray[np.float64],
    step_weights: NDArray[np.float64],
    cell_weights: list[float],
    answers: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The whole least-squares problem, dense: a row for every answer, scaled by the root of its weight."""
    time = np.vstack([np.eye(W)] + [np.eye(f.size)[:, list(f.labels)] for f in features])
    weights = np.concatenate([step_weights, *(np.full(f.size, c) for f, c in zip(features, cell_weights, strict=True))])
    nodes = tree.sums(np.eye(tree.leaf_positions.size))
    roots = np.sqrt(np.outer(node_weights, weights)).ravel()
    return np.kron(nodes, time) * roots[:, None], answers.ravel() * roots


@pytest.mark.slow
@pytest.mark.parametrize("source", ["synthetic", "RTE 2016"])
def test_the_papers_tree_end_to_end(source: str) -> None:
    w = 48
    data = Path(__file__).parents[3] / "shared" / "data" / "rte_regional_load_2016.csv.gz"
    if source == "synthetic":
        day = 1 + 0.3 * np.sin(np.arange(20 * w) / w * 2 * np.pi)
        frame = pd.DataFrame({f"region {i}": np.round(day * 500 * (i + 1)) for i in range(12)})
    elif data.exists():
        with gzip.open(data) as file:
            frame = pd.read_csv(io.BytesIO(file.read())).drop(columns=["timestamp", "france_rte"])
    else:
        pytest.skip(f"the data set is not there: {data}")
    tree = ops.Hierarchy.nested({"france": list(frame.columns)})
    made = ops.OptStream(
        ops.Guarantee(epsilon=1, w=w, alpha=10),
        sample=ops.L1Sampling(k=10, threshold=1000.0),
        features=[ops.Feature.cuts(w, 14, 24, 36), ops.Feature.total(w)],
        bounds=(0, 20_000),
        hierarchy=tree,
    )
    values = made.release(frame).values
    assert (values["france"] == values[list(frame.columns)].sum(axis=1)).all()
    assert (values.to_numpy() >= 0).all()
    # Nearer to the truth than a constant.
    error = np.abs(values["france"] - frame.sum(axis=1)).mean()
    assert error < np.abs(frame.sum(axis=1) - frame.sum(axis=1).mean()).mean()


LONG_RUN = """
import numpy as np, optstream as ops
tree = ops.Hierarchy.nested({"nation": ["north", "south"]})
made = ops.OptStream(ops.Guarantee(epsilon=1, w=4), sample=ops.EqualSampling(k=2), bounds=(0, 9), hierarchy=tree)
print(made.release(np.ones((4000, 2))).values.shape)
"""


def test_progress_is_shown_on_a_terminal_and_nowhere_else() -> None:
    command = [sys.executable, "-c", LONG_RUN]
    quiet = subprocess.run(command, capture_output=True, text=True, check=True)
    assert quiet.stdout == "(4000, 3)\n"
    assert not quiet.stderr
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    shown = subprocess.run(command, stdout=subprocess.PIPE, stderr=terminal, text=True, check=True)
    os.set_blocking(master, False)
    assert shown.stdout == quiet.stdout
    assert "releasing" in os.read(master, 100_000).decode()
    os.close(terminal)
    os.close(master)


@pytest.mark.parametrize("backend", [pl.DataFrame, pd.DataFrame])
def test_a_frame_keeps_its_times_and_nothing_else(backend: Any) -> None:
    at = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in range(2 * W)]
    tree = ops.Hierarchy.nested({"all": ["north", "south"]})
    x = backend({"note": ["raw"] * 2 * W, "at": at, "north": np.ones(2 * W), "south": np.ones(2 * W)})
    released = mechanism(tree).release(x).values
    assert list(released.columns) == ["at", "all", "north", "south"]
    assert list(released["at"]) == at
    indexed = mechanism(tree).release(pd.DataFrame(dict.fromkeys(tree.leaves, np.ones(2 * W)), index=at)).values
    assert list(indexed.index) == at
