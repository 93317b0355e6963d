"""Speed of hierarchical releases, beside cvxpy with Clarabel at 13 nodes, and of the tree projection beside Clarabel.

python tools/bench_hierarchy.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import clarabel
import cvxpy as cp
import numpy as np
from scipy import sparse

import optstream as ops
from optstream import _core

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

W = 48
FEATURES = [ops.Feature.cuts(W, 14, 24, 36), ops.Feature.total(W)]


def best(call: Callable[[], object], rounds: int) -> float:
    """Best time of a call."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def tree_of(regions: int, leaves: int) -> ops.Hierarchy:
    """A nation of regions, each with the same number of leaves."""
    below = leaves // regions
    return ops.Hierarchy.nested({"nation": {f"r{r}": [f"r{r}.{i}" for i in range(below)] for r in range(regions)}})


def loads(leaves: int, periods: int, mean: float) -> NDArray[np.float64]:
    """Daily curves of different sizes."""
    generator = np.random.default_rng(1)
    day = 1 + 0.3 * np.sin(np.arange(periods * W) / W * 2 * np.pi)
    return day[:, None] * generator.uniform(0.5, 1.5, leaves) * mean


def mechanism(tree: ops.Hierarchy, epsilon: float) -> ops.OptStream:
    """The paper's features and equal sampling."""
    return ops.OptStream(
        ops.Guarantee(epsilon=epsilon, w=W),
        sample=ops.EqualSampling(k=10),
        features=FEATURES,
        bounds=(0, 20_000),
        hierarchy=tree,
    )


class Cvxpy:
    """The joint problem of all nodes, steps and features, built once with its answers as parameters."""

    def __init__(self, made: ops.OptStream) -> None:
        """Build it."""
        tree = made.hierarchy
        if tree is None:
            raise ValueError("a hierarchy is needed")
        member = tree.sums(np.eye(tree.leaf_positions.size))
        sums = np.vstack([np.eye(W)] + [np.eye(f.size)[:, list(f.labels)] for f in FEATURES])
        self.answers = cp.Parameter((len(tree.nodes), sums.shape[0]))
        self.leaves = cp.Variable((tree.leaf_positions.size, W))
        weights = np.sqrt(np.tile(made.engine.calibration.answer_weights(), (len(tree.nodes), 1)))
        distance = cp.multiply(weights, member @ self.leaves @ sums.T - self.answers)
        self.problem = cp.Problem(cp.Minimize(cp.sum_squares(distance)), [self.leaves >= 0])

    def solve(self, answers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Solve for one period."""
        self.answers.value = answers
        self.problem.solve(solver=cp.CLARABEL)
        return np.asarray(self.leaves.value)


def clarabel_tree(
    parents: NDArray[np.int64], weights: NDArray[np.float64], targets: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The projection on a tree with x >= 0, all nodes as variables."""
    n = targets.size
    inner = np.unique(parents[parents >= 0])
    row = {node: index for index, node in enumerate(inner)}
    children = np.flatnonzero(parents >= 0)
    entries = (
        np.concatenate([np.ones(children.size), -np.ones(inner.size)]),
        (
            np.concatenate([[row[p] for p in parents[children]], np.arange(inner.size)]),
            np.concatenate([children, inner]),
        ),
    )
    consistency = sparse.csc_matrix(entries, shape=(inner.size, n))
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    unit = float(np.abs(targets).max())
    solver = clarabel.DefaultSolver(
        sparse.csc_matrix(sparse.diags_array(weights)),
        -weights * targets / unit,
        sparse.csc_matrix(sparse.vstack([consistency, -sparse.eye_array(n)])),
        np.zeros(inner.size + n),
        [clarabel.ZeroConeT(inner.size), clarabel.NonnegativeConeT(n)],
        settings,
    )
    return np.asarray(solver.solve().x) * unit


def main() -> None:
    """Measure, print the table, and write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    target = parser.parse_args().json
    figures: dict[str, Any] = {}

    print("13 nodes, the paper's features (689 variables)           ms/period   times optstream")
    tree = ops.Hierarchy.nested({"nation": [f"region {i}" for i in range(12)]})
    for name, epsilon in (("nothing binds", 1.0), ("x >= 0 binds", 0.005)):
        made = mechanism(tree, epsilon)
        data = loads(12, 30, 4000.0)
        ours = best(lambda m=made, x=data: m.release(x), 5) / 30  # type: ignore[misc]
        peer = Cvxpy(made)
        units = _core.quantise(data[:W], made.bounds, made.grid)
        steps, cells, _ = made.engine.tree.measure(np.ascontiguousarray(units.T))
        answers = np.hstack([steps, cells])
        theirs = best(lambda p=peer, a=answers: p.solve(a), 5)  # type: ignore[misc]
        gap = np.abs(peer.solve(answers) - made.engine.tree.projection.project(steps, cells)).max()
        print(f"  optstream, whole release, {name:<28} {ours * 1e3:>9.2f} {1:>12}")
        print(f"  cvxpy with Clarabel, projection alone {'':<17} {theirs * 1e3:>9.2f} {theirs / ours:>12.0f}")
        print(f"    largest difference of the two optima {gap:.2g} of {np.abs(answers).max():.2g}")
        figures[f"13 nodes, {name}"] = {"optstream": ours, "cvxpy": theirs}

    print("Larger trees (nation, regions of 100 leaves, leaves)      s/period   growth")
    for name, epsilon in (("nothing binds", 50.0), ("x >= 0 binds", 0.5)):
        last = None
        for leaves in (100, 1_000, 10_000):
            made = mechanism(tree_of(max(leaves // 100, 1), leaves), epsilon)
            data = loads(leaves, 1, 100.0)
            ours = best(lambda m=made, x=data: m.release(x), 3)  # type: ignore[misc]
            growth = "" if last is None else f"x {ours / last:.1f}"
            print(f"  {leaves:>6,} leaves, {name:<38} {ours:>9.3f}   {growth}")
            figures[f"{leaves} leaves, {name}"] = ours
            last = ours

    print("Tree projection, 500,000 variables, x >= 0 binds              s     worst residual")
    generator = np.random.default_rng(2)
    parents = np.concatenate([[-1], np.zeros(700, dtype=int), np.repeat(np.arange(1, 701), 713)])
    weights = np.where(np.arange(parents.size) <= 700, 0.5, 1.0)
    targets = generator.normal(1.0, 10.0, parents.size)
    forest = _core.Forest([None if p < 0 else int(p) for p in parents], weights.tolist())
    ours = best(lambda: forest.project(targets[None, :], lower=0.0), 5)
    found = forest.project(targets[None, :], lower=0.0)[0]
    start = time.perf_counter()
    theirs_found = clarabel_tree(parents, weights, targets)
    theirs = time.perf_counter() - start
    for name, taken, x in (("optstream", ours, found), ("Clarabel", theirs, theirs_found)):
        sums = np.bincount(parents[1:], x[1:], minlength=701)
        residual = max(float(np.abs(sums[:701] - x[:701]).max()), -float(x.min()))
        print(f"  {name:<52} {taken:>9.3f} {residual:>12.2g}")
    print(f"  times optstream {theirs / ours:.0f}; largest difference {np.abs(found - theirs_found).max():.2g}")
    figures["500,000 variables"] = {"optstream": ours, "clarabel": theirs}

    if target is not None:
        target.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
