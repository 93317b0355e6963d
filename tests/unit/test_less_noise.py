"""Cube noise on blocks and means of buckets: exactly the noise that is stated, for exactly the price that is stated."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

import hypothesis.strategies as st
import numpy as np
import pytest
from distributions import (
    assert_law,
    assert_rejected,
    cube_max_below,
    cube_value_below,
    edges_of_bins,
    laplace_below,
    p_value,
)
from hypothesis import given, settings

import optstream as ops
from optstream.mechanism import description, plan
from optstream.privacy.accounting import StepCosts, TouchCost, epsilon_of, moved, window_costs, worst_window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

W = 12
GRID = 2**-10


def made(sample: Any, perturb: Any = None, *, epsilon: Any = 1, **changes: Any) -> ops.OptStream:
    guarantee = changes.pop("guarantee", ops.Guarantee(epsilon=epsilon, w=W))
    return ops.OptStream(guarantee, sample=sample, perturb=perturb, bounds=(0, 1000), grid=GRID, **changes)


def brute_price(blocks: Sequence[set[int]], w: int, neighbours: str) -> int:
    """The most blocks that a window meets, by looking at every window over three periods."""
    if neighbours == "aligned":
        return len(blocks)
    everywhere = [{step + period * w for step in block} for period in range(3) for block in blocks]
    return max(sum(bool(block & set(range(first, first + w))) for block in everywhere) for first in range(2 * w + 1))


class TestPrice:
    @settings(max_examples=150, deadline=None)
    @given(st.data(), st.sampled_from(["sliding", "aligned"]))
    def test_blocks_cost_what_the_worst_window_meets(
        self, data: st.DataObject, neighbours: Literal["sliding", "aligned"]
    ) -> None:
        k = data.draw(st.integers(2, W))
        samples: list[ops.EqualSampling | ops.BucketSampling] = [ops.EqualSampling(k=k), ops.BucketSampling(k=k)]
        sample = data.draw(st.sampled_from(samples))
        noise = ops.CubeNoise(block=data.draw(st.integers(1, k)))
        guarantee = ops.Guarantee(epsilon=1, w=W, neighbours=neighbours)
        lengths = noise.blocks(sample, guarantee)
        assert sum(lengths) == k
        assert max(lengths) - min(lengths) <= 1
        runs, blocks, first = sample.runs(W), [], 0
        for length in lengths:
            # The steps between two measured ones change nothing, but a window that meets only these is no worse.
            blocks.append(set(range(runs[first][0], runs[first + length - 1][1])))
            first += length
        assert epsilon_of(noise.sample_costs(sample, guarantee), guarantee) == brute_price(blocks, W, neighbours)

    @pytest.mark.parametrize("neighbours", ["sliding", "aligned"])
    @pytest.mark.parametrize("k", [2, 5, 12])
    def test_the_best_block_is_found(self, k: int, neighbours: Literal["sliding", "aligned"]) -> None:
        guarantee = ops.Guarantee(epsilon=1, w=W, neighbours=neighbours)
        sample = ops.EqualSampling(k=k)

        def noise(block: int) -> float:
            variance = made(sample, ops.CubeNoise(block=block), guarantee=guarantee)
            lengths = np.array(variance.engine.calibration.blocks)
            return float((lengths * (lengths + 1) / 2).sum() / k / float(variance.engine.calibration.budget.sample))

        automatic = made(sample, ops.CubeNoise(), guarantee=guarantee)
        lengths = np.array(automatic.engine.calibration.blocks)
        found = (lengths * (lengths + 1) / 2).sum() / k / float(automatic.engine.calibration.budget.sample)
        assert found == pytest.approx(min(noise(block) for block in range(1, k + 1)))
        if neighbours == "aligned":
            assert automatic.engine.calibration.blocks == (k,)

    def test_the_figures_of_the_design(self) -> None:
        """K = w = 48: mean absolute noise 31.5 alpha/epsilon sliding and 24.5 aligned, instead of 48."""
        for neighbours, expected in (("sliding", 31.5), ("aligned", 24.5)):
            guarantee = ops.Guarantee(epsilon=1, w=48, neighbours=neighbours)  # type: ignore[arg-type]
            cube = ops.OptStream(guarantee, sample=ops.EqualSampling(k=48), perturb=ops.CubeNoise(), bounds=(0, 1000))
            noise = cube.release(np.full(48 * 20_000, 500.0)).values - 500
            # The standard error is below 0.05.
            assert np.abs(noise).mean() == pytest.approx(expected, abs=0.3)

    @settings(max_examples=80, deadline=None)
    @given(
        epsilon=st.fractions(Fraction(1, 100), 10, max_denominator=1000),
        k=st.integers(2, W),
        block=st.integers(1, W) | st.just("auto"),
        kind=st.sampled_from(["equal", "bucket", "l1"]),
        features=st.sampled_from([(), (ops.Feature.total(W),)]),
        neighbours=st.sampled_from(["sliding", "aligned"]),
        levels=st.sampled_from([None, ops.Hierarchy.nested({"all": ["a", "b"]})]),
    )
    def test_no_parameters_make_a_sound_release_cost_more(
        self, epsilon: Fraction, k: int, block: Any, kind: str, features: Any, neighbours: Any, levels: Any
    ) -> None:
        samples = {
            "equal": ops.EqualSampling(k=k),
            "bucket": ops.BucketSampling(k=k),
            "l1": ops.L1Sampling(k=k, threshold=5),
        }
        guarantee = ops.Guarantee(epsilon=epsilon, w=W, neighbours=neighbours)
        noise = ops.CubeNoise(block=min(block, k) if block != "auto" else block)
        built = made(samples[kind], noise, guarantee=guarantee, features=features, hierarchy=levels)
        assert epsilon * (1 - Fraction(1, 2**40)) <= built.statement.epsilon <= epsilon
        assert plan.build(description.describe(built)) == built

    def test_lengths_of_buckets_may_change_at_no_cost(self) -> None:
        """With Laplace noise every step costs the same, whatever buckets the periods have."""
        plans = [made(ops.BucketSampling(cuts=cuts)) for cuts in ((3,), (5,), (1, 2, 3), tuple(range(1, W)), ())]
        for order in itertools.permutations(plans, 3):
            costs = [moved(cost, period * W) for period, plan in enumerate(order) for cost in plan.costs]
            assert worst_window(costs, W) == 1
            assert set(window_costs(costs, W)[1][W : 2 * W]) == {Fraction(1)}

    def test_adaptive_samples_touch_all_blocks(self) -> None:
        noise = ops.CubeNoise(block=2).sample_costs(ops.L1Sampling(k=4, threshold=1), ops.Guarantee(epsilon=1, w=W))
        assert noise == [TouchCost(0, W, Fraction(2))]


class TestNoise:
    def test_blocks_of_steps_have_the_stated_cube_noise(self) -> None:
        built = made(ops.EqualSampling(k=W), ops.CubeNoise(block=4))
        scale = Fraction(*built.engine.calibration.plan.sample_scale)
        noise = np.round((built.release(np.full(W * 200_000, 500.0)).values - 500) / GRID).astype(np.int64)
        blocks = noise.reshape(-1, 4)
        self.check_cube(blocks, float(scale), 4)

    def test_means_of_different_lengths_have_the_stated_cube_noise(self) -> None:
        """A mean has whole multiples of grid / L, with L a common multiple of the lengths."""
        built = made(ops.BucketSampling(cuts=(2, 5, 6)), ops.CubeNoise(block=4))
        lengths, multiple = (2, 3, 1, 6), 6
        scale = float(Fraction(*built.engine.calibration.plan.sample_scale))
        released = built.release(np.full(W * 200_000, 500.0)).values.reshape(-1, W)
        starts = np.cumsum([0, *lengths[:-1]])
        # Steps of one bucket have its mean.
        for start, length in zip(starts, lengths, strict=True):
            assert (released[:, start : start + length] == released[:, [start]]).all()
        units = (released[:, starts] - 500) / GRID * multiple
        assert np.abs(units - np.round(units)).max() < 1e-3
        self.check_cube(np.round(units).astype(np.int64), scale, 4)

    def check_cube(self, blocks: NDArray[np.int64], scale: float, length: int) -> None:
        half = len(blocks) // 2
        largest, value = np.abs(blocks).max(axis=1), blocks[:, 1]
        edges = edges_of_bins(largest[:half], 100)
        below = cube_max_below(scale, length, edges)
        assert_law(p_value(largest[half:], edges, below), "largest of a block", half)
        assert_rejected(p_value(largest[half:], edges, cube_max_below(scale * 0.97, length, edges)), "3 % less", half)
        edges = edges_of_bins(value[:half], 100)
        assert_law(p_value(value[half:], edges, cube_value_below(scale, length, edges)), "one value", half)

    def test_means_have_the_stated_laplace_noise(self) -> None:
        built = made(ops.BucketSampling(cuts=(4,)))
        scale = float(Fraction(*built.engine.calibration.plan.sample_scale))
        released = built.release(np.full(W * 200_000, 500.0)).values.reshape(-1, W)
        for start, length in ((0, 4), (4, 8)):
            sums = np.round((released[:, start] - 500) * length / GRID).astype(np.int64)
            edges = edges_of_bins(sums[:100_000], 100)
            assert_law(p_value(sums[100_000:], edges, laplace_below(scale, edges)), f"sum of {length}", 100_000)

    def test_without_noise_means_are_means(self) -> None:
        loud = ops.Guarantee(epsilon=10**7, w=W)
        x = np.arange(W, dtype=float) ** 2
        for perturb in (ops.LaplaceNoise(), ops.CubeNoise(block=2)):
            built = ops.OptStream(
                loud, sample=ops.BucketSampling(cuts=(5, 9)), perturb=perturb, bounds=(0, 1000), grid=2**-30
            )
            expected = np.concatenate([np.full(len(part), part.mean()) for part in np.split(x, [5, 9])])
            assert np.allclose(built.release(x).values, expected, atol=1e-4)

    @pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
    @pytest.mark.parametrize(
        ("sample", "perturb", "exact"),
        [
            (ops.EqualSampling(k=W), ops.CubeNoise(block=5), True),
            (ops.EqualSampling(k=4), ops.CubeNoise(), False),
            (ops.BucketSampling(k=5), ops.CubeNoise(), True),
            (ops.BucketSampling(k=5), ops.LaplaceNoise(), True),
            (ops.L1Sampling(k=5, threshold=1), ops.CubeNoise(), False),
        ],
        ids=str,
    )
    def test_intervals_cover_the_noise(self, sample: Any, perturb: Any, exact: bool, level: float) -> None:
        x = np.full(W * 20_000, 500.0)
        low, high = made(sample, perturb).release(x).interval(level)
        covered = ((low <= 500) & (high >= 500)).mean()
        # 240,000 steps in at least 20,000 independent blocks: the standard error is below 0.004.
        assert covered >= level - 0.02
        assert not exact or covered <= level + 0.02

    def test_consistent_totals_and_hierarchies_work_with_both(self) -> None:
        tree = ops.Hierarchy.nested({"all": ["a", "b"]})
        for sample in (ops.EqualSampling(k=4), ops.BucketSampling(k=4), ops.L1Sampling(k=4, threshold=1)):
            built = made(sample, ops.CubeNoise(), features=[ops.Feature.total(W)], hierarchy=tree)
            release = built.release({"a": np.full(W, 50.0), "b": np.full(W, 70.0)})
            assert (release.values["all"] == release.values["a"] + release.values["b"]).all()
            alone = made(sample, ops.CubeNoise(), features=[ops.Feature.cuts(W, 6), ops.Feature.total(W)])
            values = alone.release(np.full(W, 50.0))
            assert np.isclose(values.values.sum(), values.features[1].sum())
            assert (values.values >= 0).all()


class TestParameters:
    @pytest.mark.parametrize(
        ("build", "message"),
        [
            (lambda: ops.CubeNoise(block=0), "block is 0, but must be at least 1"),
            (lambda: ops.CubeNoise(block=1.5), "block is of type float"),  # type: ignore[arg-type]
            (lambda: made(ops.EqualSampling(k=4), ops.CubeNoise(block=5)), "block is 5, but must be at most k = 4"),
            (ops.BucketSampling, "both given or both missing"),
            (lambda: ops.BucketSampling(3, cuts=(1,)), "both given or both missing"),
            (lambda: ops.BucketSampling(k=0), "k is 0, but must be at least 1"),
            (lambda: ops.BucketSampling(k=True), "k is of type bool"),
            (lambda: made(ops.BucketSampling(k=13)), "k is 13, but must be from 1 to w = 12"),
            (lambda: made(ops.BucketSampling(cuts=(5, 5))), "cuts are"),
            (lambda: made(ops.BucketSampling(cuts=(5, 12))), "cuts are"),
            (lambda: made(ops.EqualSampling(k=4), "cube"), "perturb is of type str"),
            (lambda: made(ops.EqualSampling(k=4), ops.CubeNoise(), calibration="paper"), "calibration is 'paper'"),
            (lambda: made(ops.BucketSampling(k=4), calibration="paper"), "calibration is 'paper'"),
        ],
    )
    def test_what_is_wrong_is_said(self, build: Any, message: str) -> None:
        with pytest.raises((ops.ParameterError, ops.ParameterTypeError), match=message):
            build()

    def test_one_bucket_and_all_steps_are_the_ends(self) -> None:
        assert ops.BucketSampling(k=1).runs(W) == ((0, W),)
        assert ops.BucketSampling(k=W).runs(W) == ops.EqualSampling(k=W).runs(W)
        assert made(ops.BucketSampling(k=W)).costs == made(ops.EqualSampling(k=W)).costs
        assert isinstance(made(ops.BucketSampling(k=1)).costs[0], StepCosts)
