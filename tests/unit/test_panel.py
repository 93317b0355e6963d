"""Streams of one guarantee without a tree, and what streams that are measured alike learn from each other."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest

import optstream as ops
from optstream.estimate.filter import Measured
from optstream.estimate.memory import Memory
from optstream.mechanism import plan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

W, STREAMS = 6, 4
CELLS = tuple((step,) for step in range(W))
GUARANTEE = ops.Guarantee(epsilon=1, w=W)


def made(**parameters: Any) -> ops.OptStream:
    chosen: dict[str, Any] = {
        "sample": ops.BucketSampling(W),
        "reconstruct": ops.Estimate(season=1),
        "hierarchy": ops.Panel(["a", "b", "c"]),
        "bounds": (0, 1000),
    }
    return ops.OptStream(GUARANTEE, **(chosen | parameters))


def moving(rng: np.random.Generator, days: int, share: float) -> Array:
    """Return streams of which that share moves together, as streams, periods and steps."""
    common, own = rng.normal(0, 30, (1, days, W)), rng.normal(0, 30, (STREAMS, days, W))
    factors = np.array([1.0, 0.8, 1.2, 0.5])[:, None, None]
    return np.asarray(500 + factors * (np.sqrt(share) * common + np.sqrt(1 - share) * own))


def estimated(truth: Array, noisy: Array, *, together: bool, restart: int | None = None) -> tuple[Array, Memory]:
    estimate = ops.Estimate(season=1, together=together)
    memory = Memory.fresh(estimate, W, (0.0, 1000.0), [1] * len(truth), [list(range(len(truth)))])
    found = np.empty_like(truth)
    for day in range(truth.shape[1]):
        if day == restart:
            memory = memory.restored(json.loads(json.dumps(memory.state())))
        rows = [Measured(day, CELLS, row, np.full(W, 900.0)) for row in noisy[:, day]]
        found[:, day] = memory.update(rows)[0]
    return found, memory


def errors(share: float, *, together: bool) -> tuple[Array, Array]:
    """Return the mean absolute error of every stream, and the estimates, of fixed data with fixed noise."""
    rng = np.random.default_rng(7)
    truth = moving(rng, 40, share)
    found, _ = estimated(truth, truth + rng.normal(0, 30, truth.shape), together=together)
    return np.abs(found - truth).mean(axis=(1, 2)), found


class TestTogether:
    def test_streams_that_move_together_are_closer(self) -> None:
        ratio = errors(0.99, together=True)[0] / errors(0.99, together=False)[0]
        assert ratio.mean() < 0.96
        assert ratio.max() < 1.01

    def test_streams_that_do_not_are_estimated_one_by_one(self) -> None:
        ratio = errors(0.0, together=True)[0] / errors(0.0, together=False)[0]
        assert ratio.max() < 1.01

    @pytest.mark.parametrize("restart", [3, 12, 35])
    def test_a_state_goes_on_bit_for_bit(self, restart: int) -> None:
        rng = np.random.default_rng(3)
        truth = moving(rng, 40, 0.95)
        noisy = truth + rng.normal(0, 30, truth.shape)
        whole, memory = estimated(truth, noisy, together=True)
        assert memory.groups[0].helps
        np.testing.assert_array_equal(whole, estimated(truth, noisy, together=True, restart=restart)[0])

    def test_a_damaged_state_is_refused(self) -> None:
        truth = moving(np.random.default_rng(3), 8, 0.95)
        memory = estimated(truth, truth, together=True)[1]
        state = json.loads(json.dumps(memory.state()))
        for name, value in [("centre", ""), ("filters", []), ("rotation", "AAAA"), ("log", [[0]]), ("count", "x")]:
            damaged = {**state, "groups": [{**state["groups"][0], name: value}]}
            with pytest.raises(ops.ParameterError):
                memory.restored(damaged)

    def test_the_last_step_of_a_period_knows_what_the_period_knows(self) -> None:
        rng = np.random.default_rng(5)
        truth = moving(rng, 30, 0.99)
        _, memory = estimated(truth, truth + rng.normal(0, 30, truth.shape), together=True)
        estimator = ops.OptStream(
            GUARANTEE,
            sample=ops.BucketSampling(W),
            reconstruct=ops.Estimate(season=1),
            hierarchy=ops.Panel("abcd"[place] for place in range(STREAMS)),
            bounds=(0, 1000),
        ).estimator
        assert estimator is not None
        assert memory.groups[0].helps
        tracks, values = estimator.tracks(memory, 30), moving(rng, 1, 0.99)[:, 0]
        noise = estimator.measured(_parts(values), 30)
        for step in range(W):
            last = tracks.push(values[:, step : step + 1])
        means, variances = memory.update(noise)
        # A whole period may also be taken as odd, and its variances are larger by what means cannot know.
        np.testing.assert_allclose(last[:, 0], means[:, -1], rtol=0.01)
        assert variances.shape == (STREAMS, W)

    def test_revised_values_are_closer_too(self) -> None:
        rng = np.random.default_rng(11)
        x = moving(rng, 40, 0.97).reshape(STREAMS, -1).T
        apart = []
        for together in (True, False):
            tree = ops.Panel(["a", "b", "c", "d"])
            estimate = ops.Estimate(season=1, revise=True, together=together)
            # Noise of the mechanism's own is random: its mean error over 240 steps differs by a few percent.
            mechanism = made(hierarchy=tree, reconstruct=estimate)
            apart.append(np.abs(mechanism.release(x).revised - x).mean())
        assert apart[0] < apart[1]


def _parts(values: Array) -> Any:
    from optstream.mechanism.release import Parts  # noqa: PLC0415

    knots = np.arange(W)[None]
    return Parts(values, np.empty((STREAMS, 0)), knots)


class TestPanel:
    def test_it_costs_what_one_stream_costs(self) -> None:
        assert made().costs == made(hierarchy=None).costs
        assert made().statement.epsilon == 1
        assert "one stream of the panel" in str(made().statement)

    @pytest.mark.parametrize("estimate", [ops.Linear(), ops.Estimate(season=1)])
    def test_a_mapping_and_a_frame_leave_as_they_came(self, estimate: Any) -> None:
        x = {"a": np.full(12, 10.0), "b": np.full(12, 20.0), "c": np.full(12, 30.0)}
        mechanism = made(reconstruct=estimate)
        release = mechanism.release(x)
        assert list(release.values) == ["a", "b", "c"]
        assert release.values["b"].shape == (12,)
        low, high = release.interval(0.9)
        assert low.shape == high.shape == (12, 3)
        frame = mechanism.release(pl.DataFrame(x)).values
        assert isinstance(frame, pl.DataFrame)
        assert frame.columns == ["a", "b", "c"]
        again = mechanism.release(x, state=release.state)
        assert again.statement.epsilon <= 1

    def test_who_moves_between_streams_costs_no_more_under_laplace_noise(self) -> None:
        moving_people = made().changed(
            guarantee=ops.Guarantee(epsilon=1, w=W, entities="moving"), perturb=ops.LaplaceNoise()
        )
        assert moving_people.costs == made(perturb=ops.LaplaceNoise()).costs
        assert "in any streams of the panel" in str(moving_people.statement)

    def test_steps_are_not_chosen_where_people_move(self) -> None:
        chosen = {"sample": ops.L1Sampling(k=4, threshold=10.0), "reconstruct": ops.Linear()}
        assert made(**chosen).statement.epsilon == 1
        with pytest.raises(ops.ParameterError, match="must not choose steps in a panel whose entities move"):
            made(**chosen).changed(guarantee=ops.Guarantee(epsilon=1, w=W, entities="moving"))

    def test_values_are_near_the_truth(self) -> None:
        x = {"a": np.full(60, 100.0), "b": np.full(60, 500.0), "c": np.full(60, 900.0)}
        mechanism = made().changed(guarantee=GUARANTEE.with_epsilon(Fraction(10**4)))
        values = mechanism.release(x).values
        for name, wanted in x.items():
            np.testing.assert_allclose(values[name], wanted, atol=1)

    def test_a_stream_takes_observations_of_a_panel(self) -> None:
        stream = ops.Stream(made())
        for step in range(W):
            release = stream.push(step, {"a": 1.0, "b": 2.0, "c": 3.0})
        assert sorted(release.values) == ["a", "b", "c"]
        again = ops.Stream(made(), state=json.loads(json.dumps(stream.state)))
        assert again.released == 0

    def test_every_step_leaves(self) -> None:
        release = made().release(np.full((2 * W, 3), 50.0), emit="step")
        assert release.values.shape == (12, 3)

    def test_a_plan_file_keeps_it(self) -> None:
        mechanism = made()
        assert plan.build(json.loads(mechanism.description)) == mechanism
        with pytest.raises(ops.ParameterError, match="both 'hierarchy' and 'panel'"):
            plan.build(json.loads(mechanism.description) | {"hierarchy": {"all": ["a"]}})

    @pytest.mark.parametrize(
        ("streams", "error", "message"),
        [
            ("abc", ops.ParameterTypeError, "streams are of type str"),
            (5, ops.ParameterTypeError, "streams are of type int"),
            ([1], ops.ParameterTypeError, "a name of type int"),
            ([], ops.ParameterError, "streams are empty"),
            (["a", "a"], ops.ParameterError, "'a' twice"),
        ],
    )
    def test_what_is_no_panel_is_refused(self, streams: Any, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            ops.Panel(streams)

    def test_auto_and_tune_take_a_panel(self) -> None:
        mechanism = ops.OptStream.auto(GUARANTEE, bounds=(0, 1000), hierarchy=ops.Panel(["a", "b"]), season=1)
        assert mechanism.release(np.full((4 * W, 2), 50.0)).values.shape == (24, 2)
        history = np.full((10 * W, 2), 50.0)
        found = ops.tune(GUARANTEE, history, bounds=(0, 1000), hierarchy=ops.Panel(["a", "b"]), season=1)
        assert found.mechanism.hierarchy == ops.Panel(["a", "b"])
