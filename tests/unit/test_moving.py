"""People who move: exact losses of every way to move against the price, and what is made for them."""

from __future__ import annotations

import itertools
import json
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import numpy as np
import pytest
from cost_examples import chosen, cost_of_change, spreads, steps, touches
from hypothesis import given, settings

import optstream as ops
from optstream.baselines import EachNode, Fourier
from optstream.cli.parameters import mechanism_of
from optstream.mechanism.description import describe
from optstream.mechanism.plan import build
from optstream.privacy.accounting import SpreadCost, StepCosts, from_data, held, moved, to_data, worst_window

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from optstream.mechanism.calibration import Calibration
    from optstream.privacy.accounting import Cost

FLAT = ops.Hierarchy.nested({"city": ["a", "b", "c"]})
PAIR = ops.Hierarchy.nested({"city": ["a", "b"]})
DEEP = ops.Hierarchy.nested({"city": {"north": ["a", "b"], "south": ["c"]}})


def moving(w: int, **changes: Any) -> ops.Guarantee:
    options: dict[str, Any] = {"epsilon": 1, "w": w, "entities": "moving", "entity": "rider", **changes}
    return ops.Guarantee(**options)


def made(guarantee: ops.Guarantee, **changes: Any) -> ops.OptStream:
    options: dict[str, Any] = {"sample": ops.EqualSampling(k=2), "bounds": (0, 100), "hierarchy": FLAT, **changes}
    return ops.OptStream(guarantee, **options)


def ways(window: range, leaves: int) -> NDArray[np.int64]:
    """Every way to put each step of a window into one leaf with either sign: steps, leaves and ways.

    A loss is a sum of norms, so no change that is split over leaves loses more than the worst of these.
    """
    places = list(itertools.product(range(leaves), (1, -1)))
    # The first sign may be turned for all, which changes no norm.
    found = np.array([way for way in itertools.product(range(len(places)), repeat=len(window)) if way[0] % 2 == 0])
    changes = np.zeros((len(window), leaves, len(found)), dtype=np.int64)
    for step in range(len(window)):
        for place, (leaf, sign) in enumerate(places):
            changes[step, leaf, found[:, step] == place] = sign
    return changes


def level_loss(level: Calibration, nodes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What measuring one period loses to changes of nodes, in units of one over scale: samples and features."""
    runs = level.runs or ()
    changes = np.array([times * nodes[start:stop].sum(axis=0) for start, stop, times in runs])
    ends = np.cumsum([0, *(level.blocks or [1] * len(runs))])
    samples = sum(np.abs(changes[low:high]).max(axis=0).sum(axis=0) for low, high in itertools.pairwise(ends))
    sums: Any = 0
    for feature in level.features:
        for cell in range(feature.size):
            sums = sums + np.abs(nodes[np.array(feature.labels) == cell].sum(axis=0)).sum(axis=0)
    return np.asarray(samples), np.asarray(sums) + 0 * np.asarray(samples)


def losses(mechanism: ops.OptStream, first: int) -> Iterator[Fraction]:
    """Yield the exact loss of every way to change the window that begins at a step of the first of two periods."""
    guarantee, tree = mechanism.guarantee, mechanism.hierarchy
    assert tree is not None
    w = guarantee.w
    change = ways(range(w), len(tree.leaves))
    both = np.zeros((2 * w, *change.shape[1:]), dtype=np.int64)
    both[first : first + w] = change
    nodes = tree.sums(np.moveaxis(both, 1, 0).reshape(len(tree.leaves), -1))
    nodes = np.moveaxis(nodes.reshape(len(tree.nodes), 2 * w, -1), 0, 1)
    found: dict[tuple[int, ...], None] = {}
    parts: list[NDArray[np.int64]] = []
    for level, where in zip(mechanism.levels, tree.level_positions, strict=True):
        for period in (nodes[:w], nodes[w:]):
            parts.extend(level_loss(level, period[:, where]))
    for row in np.unique(np.array(parts), axis=1).T:
        found[tuple(row)] = None
    # One unit of a change by alpha: what one rounds up by is part of the scale.
    for row in found:
        total = Fraction(0)
        for depth, level in enumerate(mechanism.levels):
            plan = mechanism.engine.plans[depth]
            one = plan.sensitivity / Fraction(*plan.sample_scale)
            of_features = plan.sensitivity / Fraction(*plan.feature_scales[0]) if level.features else Fraction(0)
            a, b, c, d = (int(value) for value in row[4 * depth : 4 * depth + 4])
            total += (a + c) * one + (b + d) * of_features
        yield total


SAMPLES = [
    (ops.LaplaceNoise(), ops.EqualSampling(k=2)),
    (ops.LaplaceNoise(), ops.BucketSampling(k=2)),
    *((ops.CubeNoise(block=block), ops.EqualSampling(k=3)) for block in (1, 2, 3)),
    *((ops.CubeNoise(block=block), ops.BucketSampling(k=2)) for block in (1, 2)),
    (ops.CubeNoise(), ops.BucketSampling(cuts=(1, 2))),
    (ops.CubeNoise(block=3), ops.BucketSampling(cuts=(1, 2))),
]


class TestPrice:
    """Exact losses of every way to move within every window, against the price: none above it."""

    @pytest.mark.parametrize("neighbours", ["sliding", "aligned"])
    @pytest.mark.parametrize("tree", [PAIR, FLAT, DEEP], ids=["pair", "flat", "deep"])
    @pytest.mark.parametrize(("noise", "sample"), SAMPLES, ids=str)
    def test_no_way_to_move_loses_more_than_the_price(
        self, noise: Any, sample: Any, tree: ops.Hierarchy, neighbours: str
    ) -> None:
        w = 4
        features = [ops.Feature.total(w)] if isinstance(noise, ops.LaplaceNoise) else []
        mechanism = made(
            moving(w, neighbours=neighbours), sample=sample, perturb=noise, hierarchy=tree, features=features
        )
        offsets = range(w) if neighbours == "sliding" else range(1)
        worst = max(max(losses(mechanism, first)) for first in offsets)
        assert worst <= mechanism.steady_epsilon == 1
        # Where levels agree on the worst way the price is what is lost.
        if tree is not DEEP and not isinstance(sample, ops.BucketSampling):
            assert worst == 1

    def test_cubes_priced_as_settled_are_found(self) -> None:
        sample, noise = ops.EqualSampling(k=3), ops.CubeNoise(block=3)
        settled = made(ops.Guarantee(epsilon=1, w=3, neighbours="aligned"), sample=sample, perturb=noise)
        assert max(losses(settled, 0)) == Fraction(2)
        assert settled.steady_epsilon == 1

    def test_laplace_noise_is_the_same_for_both_and_cubes_are_cut_below_the_root(self) -> None:
        w = 12
        for noise in (ops.LaplaceNoise(), ops.CubeNoise()):
            options: dict[str, Any] = {"sample": ops.EqualSampling(k=12), "perturb": noise}
            scales, blocks = [], []
            for entities in ("settled", "moving"):
                mechanism = made(moving(w, entities=entities), **options)
                scales.append([level.scale for level in mechanism.levels])
                blocks.append([level.blocks for level in mechanism.levels])
            if noise == ops.LaplaceNoise():
                # Rounding three leaves apart costs a thousandth at most.
                assert np.allclose(scales[0], scales[1], rtol=1e-3)
            else:
                assert blocks[0][0] == blocks[0][1] == blocks[1][0] == (3, 3, 3, 3)
                assert blocks[1][1] == (1,) * 12

    def test_gaussian_noise_costs_the_same_for_both(self) -> None:
        both = [
            made(moving(4, entities=entities, delta=1e-6), perturb=ops.GaussianNoise(), grid=2.0**-30)
            for entities in ("settled", "moving")
        ]
        assert both[0].costs != both[1].costs  # by what rounding adds
        assert float(both[0].noise_scale) == pytest.approx(both[1].noise_scale, rel=1e-8)

    @pytest.mark.parametrize("w", [1, 2, 3, 4])
    def test_squares_of_nodes_that_share_a_change_are_at_most_its_square(self, w: int) -> None:
        for start, stop in itertools.combinations(range(w + 1), 2):
            sums = ways(range(w), 3)[start:stop].sum(axis=0)
            assert (sums**2).sum(axis=0).max() == (stop - start) ** 2

    def test_leaves_that_are_rounded_apart_are_paid_for(self) -> None:
        mechanism = made(moving(3), grid=2.0**-10)
        assert [plan.sensitivity for plan in mechanism.engine.plans] == [1024 + 2] * 2
        assert made(moving(3)).grid == 2.0**-12
        low, high = (mechanism.read(np.full((3, 3), 5 + value)).units for value in (0.49 / 1024, 0.51 / 1024))
        # Three changes that add up to less than a unit move three units together.
        assert np.abs(high - low).sum(axis=1).tolist() == [[3, 3, 3]]

    @settings(max_examples=100, deadline=None)
    @given(st.lists(steps | touches | chosen | spreads, max_size=3), st.integers(1, 6))
    def test_the_worst_window_is_that_of_brute_force(self, all_costs: list[Cost], w: int) -> None:
        windows = (set(range(first, first + w)) for first in range(-20, 25))
        worst = max(sum((cost_of_change(window, cost) for cost in all_costs), Fraction(0)) for window in windows)
        assert worst_window(all_costs, w) == worst

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.booleans(), min_size=5, max_size=5), st.integers(1, 3))
    def test_held_steps_move_with_what_they_hold(self, repeats: list[bool], nodes: int) -> None:
        runs = ((0, 2), (2, 3), (3, 5))
        sources: dict[int, int] = {}
        for step, repeat in enumerate(repeats):
            if repeat:
                sources[step] = sources.get(step - 1, step - 1)
        [cost] = held([SpreadCost(runs, nodes, Fraction(1))], sources)
        for w in range(1, 6):
            worst = Fraction(0)
            for first in range(-8, 5):
                inside = {step for step in range(5) if first <= sources.get(step, step) < first + w}
                shares = sorted(
                    (Fraction(len(inside & set(range(*run))), run[1] - run[0]) for run in runs), reverse=True
                )
                worst = max(worst, sum(shares[:nodes], Fraction(0)))
            assert worst_window([cost], w) == worst
            assert worst_window([moved(cost, 7)], w) == worst

    def test_as_many_nodes_as_runs_cost_what_is_covered(self) -> None:
        runs = ((0, 1), (1, 3), (4, 6))
        spread = SpreadCost(runs, 3, Fraction(1, 2))
        half, quarter = Fraction(1, 2), Fraction(1, 4)
        linear = StepCosts(0, (half, quarter, quarter, Fraction(0), quarter, quarter))
        for w in range(1, 9):
            assert worst_window([spread], w) == worst_window([linear], w)

    def test_costs_are_written_and_read(self) -> None:
        costs = (SpreadCost(((0, 2), (2, 5)), 2, Fraction(1, 3), frozenset({1, 3})),)
        assert from_data(json.loads(json.dumps(to_data(costs)))) == costs
        damaged = [{**to_data(costs)[0], "runs": [[0, 2, 5]]}]
        with pytest.raises(ops.DataError, match="costs hold something else"):
            from_data(damaged)


def test_the_command_line_gives_a_tree_its_fine_grid(tmp_path: Path) -> None:
    tree = tmp_path / "city.json"
    tree.write_text('{"city": ["a", "b", "c"]}')
    flags: dict[str, Any] = {"epsilon": "1", "w": 4, "alpha": 1.0, "lower": 0.0, "upper": 100.0, "k": 2}
    found = mechanism_of(**flags, entities="moving", entity="rider", hierarchy=tree)
    assert found == made(moving(4))
    assert found.grid == 2.0**-12


class TestGuarantee:
    def test_who_is_protected_is_part_of_it(self) -> None:
        guarantee = moving(4)
        assert guarantee != moving(4, entities="settled") != moving(4, entity="phone")
        assert repr(guarantee).endswith("neighbours='sliding', entities='moving', entity='rider')")
        assert guarantee.with_epsilon(Fraction(1, 2)).protects == guarantee.protects
        assert (ops.Guarantee(epsilon=1, w=4).entities, ops.Guarantee(epsilon=1, w=4).entity) == ("settled", "entity")

    @pytest.mark.parametrize(
        ("changes", "kind", "message"),
        [
            ({"entities": "still"}, ops.ParameterError, "entities is 'still', but must be 'settled' or 'moving'"),
            ({"entities": 3}, ops.ParameterError, "entities is 3"),
            ({"entity": 3}, ops.ParameterTypeError, "entity is of type int"),
            ({"entity": ""}, ops.ParameterError, "entity has 0 characters"),
            ({"entity": "a\nb"}, ops.ParameterError, "printable"),
            ({"entity": " rider"}, ops.ParameterError, "without spaces"),
            ({"entity": "r" * 61}, ops.ParameterError, "from 1 to 60"),
        ],
        ids=str,
    )
    def test_what_is_wrong_is_said(self, changes: Any, kind: type[Exception], message: str) -> None:
        with pytest.raises(kind, match=message):
            moving(4, **changes)

    def test_a_plan_a_state_and_a_statement_say_it(self) -> None:
        mechanism = made(moving(4))
        assert build(describe(mechanism)) == mechanism
        text = str(mechanism.statement)
        assert "Protects one rider's contribution" in text
        assert "over all leaves together" in text
        assert "entity" not in text
        said = json.loads(mechanism.statement.to_json())
        assert (said["entities"], said["entity"]) == ("moving", "rider")
        state = mechanism.release(np.zeros((4, 3))).state
        assert mechanism.release(np.zeros((4, 3)), state=state).statement.epsilon <= 1
        for other in (made(moving(4, entity="phone")), made(moving(4, entities="settled"))):
            with pytest.raises(ops.ParameterError, match=r"moving entities \(rider\), but must be of some with"):
                other.release(np.zeros((4, 3)), state=state)

    def test_a_statement_names_what_alpha_covers(self) -> None:
        tree, panel = made(moving(4, alpha=2)), made(moving(4, alpha=2), hierarchy=ops.Panel(["a", "b"]))
        for mechanism, series in ((tree, "leaves"), (panel, "streams")):
            text = str(mechanism.statement)
            assert f"up to 2 per step over all {series} together." in text
            assert f"changes the value of any one step by at most 2, over all {series} together" in text
            assert (
                f"If 2 bounds what one rider adds to all {series} of a step together (presence), this hides whether an "
                "activity took place (epsilon), and which of two activities it was (2 epsilon); if it bounds any "
                "change of that, epsilon covers both." in text
            )
            assert str(mechanism.release(np.zeros((4, 3 if series == "leaves" else 2))).statement).count(series) >= 3
        some = made(moving(4, delta=1e-6), perturb=ops.GaussianNoise())
        assert "it was (2 epsilon and (1 + exp(epsilon)) delta)" in str(some.statement)
        # Where entities are settled, or there is one series, nothing is taken together.
        for other in (made(moving(4, entities="settled")), made(moving(4), hierarchy=None)):
            said = str(other.statement)
            assert "together" not in said
            assert "presence" not in said

    def test_nodes_that_are_priced_alone_are_refused(self) -> None:
        with pytest.raises(ops.ParameterError, match="moving entities, but must have settled ones"):
            EachNode(moving(4), mechanism=Fourier, options={"k": 2}, hierarchy=FLAT, bounds=(0, 100))

    def test_a_ledger_keeps_them_apart(self, tmp_path: Path) -> None:
        with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
            ledger.create_pool("riders", moving(4, epsilon=2))
            ledger.create_stream("trips", moving(4), pool="riders")
            with pytest.raises(ops.ParameterError, match="settled entities"):
                ledger.create_stream("fares", moving(4, entities="settled"), pool="riders")
            with pytest.raises(ops.ParameterError, match=r"\(phone\)"):
                ledger.create_stream("calls", moving(4, entity="phone"), pool="riders")
            with pytest.raises(ops.ParameterError, match="policy has settled entities"):
                ledger.set_policy("trips", moving(4, entities="settled"))
            assert ledger.policy("trips") == moving(4)
            with pytest.raises(ops.ParameterError, match="mechanism has settled entities"):
                ledger.release(made(moving(4, entities="settled")), np.zeros((4, 3)), stream="trips", period=0)


class TestChosenSteps:
    """L1 sampling: the root chooses the steps of all nodes, at one price."""

    @pytest.mark.parametrize("noise", [ops.LaplaceNoise(), ops.CubeNoise(block=2), ops.GaussianNoise()], ids=str)
    def test_choosing_is_paid_once_and_the_rest_is_divided(self, noise: Any) -> None:
        delta = 1e-6 if isinstance(noise, ops.GaussianNoise) else 0
        sample = ops.L1Sampling(k=4, threshold=5.0)
        mechanism = made(moving(8, delta=delta), sample=sample, perturb=noise, hierarchy=DEEP, split=(1, 3))
        statement = mechanism.statement
        assert [stage.name for stage in statement.stages] == [
            "sample level 0",
            "perturb level 0",
            "perturb level 1",
            "perturb level 2",
        ]
        if delta:
            assert Fraction(999, 1000) < statement.epsilon <= 1
        else:
            assert statement.epsilon == 1
            assert statement.stages[0].epsilon == Fraction(1, 4)
            assert [stage.epsilon for stage in statement.stages[1:]] == [Fraction(1, 4)] * 3

    @pytest.mark.parametrize("key", [None, ops.CuratorKey(bytes(range(32)))], ids=["fresh", "keyed"])
    def test_all_nodes_are_measured_where_the_root_says(self, key: ops.CuratorKey | None) -> None:
        sample = ops.L1Sampling(k=3, threshold=5.0)
        mechanism = made(moving(8, epsilon=10**9), sample=sample, hierarchy=DEEP)
        # Alone, a would be measured at 2 and b at 5; together they bend at 4.
        x = np.zeros((8, 3))
        x[4:, 0] = 90
        units = mechanism.engine.read(x).units[0]
        retry = None if key is None else (key, [b"stream", b"period"])
        steps, _, knots = mechanism.engine.tree.measure(units, retry)
        assert len(np.unique(knots, axis=0)) == 1
        assert np.allclose(steps[:, knots[0]], DEEP.sums(x.T)[:, knots[0]], atol=1e-3)
        if retry is not None:
            again = mechanism.engine.tree.measure(units, retry)
            assert all(np.array_equal(one, two) for one, two in zip(again, (steps, _, knots), strict=True))

    def test_settled_nodes_choose_each_by_itself(self) -> None:
        sample = ops.L1Sampling(k=4, threshold=5.0)
        names = [stage.name for stage in made(ops.Guarantee(epsilon=1, w=8), sample=sample).statement.stages]
        assert names == ["sample level 0", "perturb level 0", "sample level 1", "perturb level 1"]


def mean_noise(level: Calibration) -> float:
    """The mean absolute noise of what a node measures: (d + 1) / 2 scales for each of a block of d."""
    blocks = level.blocks or (1,)
    return float(level.scale) * sum(length * (length + 1) / 2 for length in blocks) / sum(blocks)


class TestChoice:
    """What chooses for itself: it must be by the price of those who move."""

    @pytest.mark.parametrize("sample", [ops.EqualSampling(k=12), ops.BucketSampling(k=6), ops.BucketSampling(k=12)])
    def test_blocks_have_the_least_noise_at_the_price_of_those_who_move(self, sample: Any) -> None:
        chosen = made(moving(12), sample=sample, perturb=ops.CubeNoise())
        others = [made(moving(12), sample=sample, perturb=ops.CubeNoise(block=1 + b)) for b in range(sample.k)]
        for depth, level in enumerate(chosen.levels):
            least = min(mean_noise(other.levels[depth]) for other in others)
            assert mean_noise(level) == pytest.approx(least, rel=1e-9)
        # Long blocks pay on the root, where nobody moves, and would cost a multiple below it.
        assert max(chosen.levels[0].blocks or ()) > max(chosen.levels[1].blocks or ()) == 1
        assert mean_noise(others[-1].levels[1]) > 2 * mean_noise(chosen.levels[1])

    def test_whatever_is_tuned_keeps_the_promise_to_those_who_move(self) -> None:
        found = ops.tune(moving(4), bounds=(0, 100), hierarchy=FLAT)
        starts = ops.OptStream.auto(moving(4), bounds=(0, 100), hierarchy=FLAT)
        changes = [
            {"sample": row.sample, "perturb": row.perturb, "reconstruct": row.reconstruct} for row in found.table
        ]
        for mechanism in (found.mechanism, starts, *(found.mechanism.changed(**change) for change in changes)):
            assert mechanism.guarantee == moving(4)
            assert max(max(losses(mechanism, first)) for first in range(4)) <= mechanism.statement.epsilon <= 1

    def test_tuning_expects_the_noise_of_those_who_move(self) -> None:
        settled, movers = (
            ops.tune(moving(24, entities=entities), bounds=(0, 100), scale=20.0, hierarchy=FLAT)
            for entities in ("settled", "moving")
        )
        before, after = (
            {(row.sample, row.perturb, row.reconstruct): row.expected_error for row in found.table}
            for found in (settled, movers)
        )
        assert before.keys() == after.keys()
        for choice, error in after.items():
            if choice[1] == ops.LaplaceNoise():
                # The finer grid costs a thousandth; averages of noise may move by a little more.
                assert error == pytest.approx(before[choice], rel=5e-3)
        assert isinstance(settled.chosen.perturb, ops.CubeNoise)
        chosen = settled.chosen.sample, settled.chosen.perturb, settled.chosen.reconstruct
        assert after[chosen] > 1.05 * before[chosen]
        assert movers.expected_error <= 1.05 * min(after.values())
