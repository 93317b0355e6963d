"""Estimates: what they promise through every way of releasing, and that memory is never wrong, lost or charged."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import optstream as ops
from optstream.ledger.memories import KEPT
from optstream.mechanism import plan
from optstream.mechanism.candidates import CHANGES
from optstream.mechanism.loop import price_next
from optstream.mechanism.release import Parts
from optstream.mechanism.state import State, sealed
from optstream.privacy import accounting

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

W = 8
RNG = np.random.default_rng(5)
SHAPE = 50 + 20 * np.sin(np.arange(W) / W * 2 * np.pi)
TREE = ops.Hierarchy({"city": None, "north": "city", "south": "city"})


def days(count: int, noise: float = 1.0) -> Array:
    """A stream with a daily shape and a little of its own."""
    return np.asarray((SHAPE + RNG.normal(0, noise, (count, W))).ravel())


def mechanism(epsilon: float | Fraction = 1, **changes: Any) -> ops.OptStream:
    options: dict[str, Any] = {"sample": ops.BucketSampling(k=4), "reconstruct": ops.Estimate(), "bounds": (0, 100)}
    return ops.OptStream(ops.Guarantee(epsilon=epsilon, w=W), **(options | changes))


CONFIGURATIONS: dict[str, Callable[[], ops.OptStream]] = {
    "buckets": mechanism,
    "cube": lambda: mechanism(perturb=ops.CubeNoise()),
    "steps": lambda: mechanism(sample=ops.EqualSampling(k=3)),
    "chosen steps": lambda: mechanism(sample=ops.L1Sampling(k=4, threshold=10.0)),
    "features": lambda: mechanism(features=[ops.Feature.cuts(W, 3), ops.Feature.cuts(W, 4), ops.Feature.total(W)]),
    "no memory": lambda: mechanism(reconstruct=ops.Estimate(memory=False)),
    "not smooth": lambda: mechanism(reconstruct=ops.Estimate(smooth=False, season=1)),
    "negative values": lambda: mechanism(bounds=(-100, 100)),
    "hierarchy": lambda: mechanism(hierarchy=TREE),
    "hierarchy with features and chosen steps": lambda: mechanism(
        hierarchy=TREE, features=[ops.Feature.total(W)], sample=ops.L1Sampling(k=4, threshold=10.0)
    ),
    "hierarchy of negative values": lambda: mechanism(hierarchy=TREE, bounds=(-100, 100)),
    "hierarchy far from zero": lambda: mechanism(hierarchy=TREE, bounds=(20, 40)),
    "tunes itself": lambda: ops.OptStream.auto(ops.Guarantee(epsilon=1, w=W), bounds=(0, 100)),
}


def data_for(made: ops.OptStream, count: int) -> Any:
    return days(count) if made.hierarchy is None else {name: days(count) / 2 for name in made.hierarchy.leaves}


@pytest.mark.parametrize("name", CONFIGURATIONS)
class TestEveryConfiguration:
    def test_values_are_within_bounds_on_the_grid_and_consistent(self, name: str) -> None:
        made = CONFIGURATIONS[name]()
        release = made.release(data_for(made, 6))
        values = np.stack(list(release.values.values())) if made.hierarchy else release.values.reshape(1, -1)
        assert np.isfinite(values).all()
        np.testing.assert_array_equal(values / made.grid, np.round(values / made.grid))
        if made.hierarchy is None:
            assert (values >= made.bounds[0]).all()
            assert (values <= made.bounds[1]).all()
            rows = release.values.reshape(-1, W)
            for feature, cells in zip(made.features, release.features, strict=True):
                np.testing.assert_array_equal(rows @ np.eye(feature.size)[list(feature.labels)], cells)
        else:
            assert (values[1:] >= made.bounds[0]).all()
            assert (values[1:] <= made.bounds[1]).all()
            np.testing.assert_array_equal(values[0], values[1] + values[2])
            low, high = release.interval(0.9)
            assert (low >= made.bounds[0] * np.array([2, 1, 1])).all()
            assert (high <= made.bounds[1] * np.array([2, 1, 1])).all()
            for cells in release.features:
                np.testing.assert_array_equal(cells[..., 0], cells[..., 1:].sum(axis=-1))

    def test_it_costs_what_the_same_measurements_cost_without_an_estimate(self, name: str) -> None:
        made = CONFIGURATIONS[name]()
        assert made.costs == made.changed(reconstruct=ops.Linear(), retune=False).costs
        assert made.statement.epsilon <= made.guarantee.epsilon

    def test_it_is_a_function_of_what_was_measured(self, name: str) -> None:
        made = CONFIGURATIONS[name]()
        made = made.following(made.remembered())
        (units,) = made.read(data_for(made, 1)).units
        finished = made.finish(made.draw(units), 0, made.remembered())
        bare = replace(finished, values=np.zeros_like(finished.values), cells=np.zeros_like(finished.cells))
        again = made.finish(bare, 0, made.remembered())
        np.testing.assert_array_equal(again.values, finished.values)

    def test_it_survives_pickle_and_plan(self, name: str) -> None:
        made = CONFIGURATIONS[name]()
        assert pickle.loads(pickle.dumps(made)) == made
        assert plan.build(json.loads(made.description)) == made

    def test_releasing_in_pieces_with_its_memory_is_releasing_at_once(self, name: str) -> None:
        made = CONFIGURATIONS[name]()
        x = data_for(made, 9)

        def part(first: int, last: int) -> Any:
            cut = slice(first * W, last * W)
            return x[cut] if made.hierarchy is None else {leaf: column[cut] for leaf, column in x.items()}

        # Noise is fresh in every release, so what is compared is what was measured and what followed from it.
        first = made.release(part(0, 4))
        second = made.release(part(4, 9), state=json.loads(json.dumps(first.state)))
        assert made.remembered(second.state["memory"]).measured == 9
        assert second.state["last"] == 8

    def test_a_ledger_and_a_stream_agree_with_what_they_stored(self, name: str, tmp_path: Any) -> None:
        made = CONFIGURATIONS[name]()
        x = data_for(made, 8)
        columns = [x] if made.hierarchy is None else list(x.values())
        with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
            stream = ops.Stream(made, ledger=ledger, name="a")
            for step in range(4 * W):
                value = x[step] if made.hierarchy is None else {n: c[step] for n, c in x.items()}
                stream.push(step, value)
        # Another process goes on where this one has stopped.
        with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
            rest = x[4 * W :] if made.hierarchy is None else {n: c[4 * W :] for n, c in x.items()}
            ledger.release(made, rest, stream="a", period=4)
            assert ledger.verify().problems == ()
            assert [entry.period for entry in ledger.history("a")] == list(range(8))
            with ledger._database.transaction(write=False) as reading:
                ((last, state, _),) = reading.rows(KEPT, ("a",))
        assert last == 7
        assert len(columns[0]) == 8 * W
        # What is kept is what all releases together say.
        with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
            with ledger._database.transaction() as change:
                change.write("DELETE FROM optstream_memories", ())
            again = ledger._memories.before("a", 8, made, None)
        assert json.dumps(again.state()) == bytes(state).decode()


def test_estimates_are_closer_than_what_was_measured() -> None:
    made, x = mechanism(Fraction(1, 10), sample=ops.BucketSampling(k=W)), days(60)
    plain = np.abs(made.changed(reconstruct=ops.Linear()).release(x).values - x).mean()
    assert np.abs(made.release(x).values - x)[20 * W :].mean() < plain / 2


def test_a_release_never_changes_but_revised_history_does() -> None:
    made, x = mechanism(Fraction(1, 4), reconstruct=ops.Estimate(revise=True)), days(40)
    release = made.release(x)
    assert release.revised.shape == release.values.shape
    assert made.release(days(2)).revised is not None
    # The last period has nothing after it.
    assert not np.array_equal(release.revised[:W], release.values[:W])
    errors = [
        [np.abs(values - x)[: 10 * W].mean() for values in (again.revised, again.values)]
        for again in (made.release(x) for _ in range(5))
    ]
    revised_error, error = np.mean(errors, axis=0)
    assert revised_error < error
    assert mechanism().release(days(2)).revised is None
    tree = mechanism(hierarchy=TREE, reconstruct=ops.Estimate(revise=True))
    revised = tree.release({"north": days(5) / 2, "south": days(5) / 2}).revised
    np.testing.assert_array_equal(revised["city"], revised["north"] + revised["south"])


def test_intervals_of_estimates_are_those_of_the_posterior_within_the_bounds() -> None:
    made, x = mechanism(Fraction(1, 2)), days(80, noise=4.0)
    release = made.release(x)
    low, high = release.interval(0.9)
    truth = x.reshape(-1, W)
    assert ((low <= truth) & (truth <= high))[10:].mean() > 0.85
    assert (high - low).mean() < 60
    assert (low >= 0).all()
    assert (high <= 100).all()
    wide_low, wide_high = release.interval(0.99)
    assert (wide_low <= low).all()
    assert (wide_high >= high).all()


def test_stored_estimates_are_read_as_they_were_and_so_are_older_releases() -> None:
    parts = Parts(np.ones((1, 3)), np.empty((1, 0)), np.array([[0, 1]]), np.array([[1.0, 2.0]]), np.full((1, 3), 0.5))
    again = Parts.from_bytes(parts.to_bytes())
    for name in ("values", "cells", "knots", "measured", "deviations"):
        np.testing.assert_array_equal(getattr(again, name), getattr(parts, name))
    old = Parts(np.ones((1, 3)), np.empty((1, 0)), np.array([[0, 1]]))
    assert not Parts.from_bytes(old.to_bytes()).measured.size
    for data in (parts.to_bytes()[:-1], parts.to_bytes() + b"0", old.to_bytes()[:-8]):
        with pytest.raises(ops.DataError, match="stored release"):
            Parts.from_bytes(data)


def test_plans_without_an_estimate_keep_their_digest() -> None:
    made = ops.OptStream(ops.Guarantee(epsilon=1, w=4), sample=ops.EqualSampling(k=2), bounds=(0, 9))
    assert "reconstruct" not in made.description
    assert made.digest.hex() == "1bbf32d5a169d819c0ae625120acf6b0dc50839bb0b5973ced613e1c40414c84"


RELEASED = mechanism().release(days(1)).state


class TestMemory:
    def test_a_stream_without_ledger_keeps_it_in_its_state(self) -> None:
        stream = ops.Stream(mechanism(), name="a")
        stream.push_many(range(3 * W), days(3))
        state = json.loads(json.dumps(stream.state))
        again = ops.Stream(mechanism(), name="a", state=state)
        again.push_many(range(3 * W, 4 * W), days(1))
        assert again.state["known"]["memory"]["filters"][0]["measured"] == 4

    def test_a_push_that_fails_leaves_it_as_it_was(self) -> None:
        stream = ops.Stream(mechanism(), name="a")
        stream.push_many(range(2 * W), days(2))
        before = json.dumps(stream.state)
        with pytest.raises(ops.StreamError):
            stream.push_many([*range(2 * W, 3 * W), 0], [*days(1), 1.0])
        assert json.dumps(stream.state) == before

    def test_what_another_process_stored_is_what_is_remembered(self, tmp_path: Any) -> None:
        url = tmp_path / "ledger.db"
        x = days(6)
        with ops.Ledger(url, create=True) as one, ops.Ledger(url, create=True) as other:
            for period in range(6):
                # Both release every period; whoever comes second gets what is stored.
                for ledger in (one, other) if period % 2 else (other, one):
                    ledger.release(mechanism(), x[period * W : (period + 1) * W], stream="a", period=period)
            states = [json.dumps(ledger._memories.before("a", 6, mechanism(), None).state()) for ledger in (one, other)]
        assert states[0] == states[1]

    def test_an_earlier_period_is_estimated_from_those_before_it(self, tmp_path: Any) -> None:
        x = days(5)
        with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
            for period in (0, 1, 4, 2):
                ledger.release(mechanism(), x[period * W : (period + 1) * W], stream="a", period=period)
            assert ledger._memories.before("a", 3, mechanism(), None).measured == 3
            assert ledger.verify().problems == ()

    def test_altered_memory_is_refused_and_found(self, tmp_path: Any) -> None:
        url = tmp_path / "ledger.db"
        with ops.Ledger(url, create=True) as ledger:
            ledger.release(mechanism(), days(1), stream="a")
            with ledger._database.transaction() as change:
                change.write("UPDATE optstream_memories SET period = 3", ())
        with ops.Ledger(url, create=True) as ledger:
            assert any("remembered of 'a' was altered" in problem for problem in ledger.verify().problems)
            with pytest.raises(ops.LedgerError, match="remembered of 'a' was altered"):
                ledger.release(mechanism(), days(1), stream="a", period=5)

    def test_a_change_of_plan_keeps_it_and_a_change_of_kind_reads_it_again(self, tmp_path: Any) -> None:
        with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
            ledger.release(mechanism(), days(3), stream="a")
            ledger.release(mechanism(sample=ops.BucketSampling(k=2)), days(1), stream="a", period=3)
            assert ledger._memories.before("a", 4, mechanism(), None).measured == 4
            other = mechanism(reconstruct=ops.Estimate(season=1))
            assert ledger._memories.before("a", 4, other, None).measured == 4
            # Periods that were not estimated were not measured in a way that can be remembered.
            ledger.release(mechanism(reconstruct=ops.Linear()), days(1), stream="a", period=4)
            assert ledger._memories.before("a", 5, mechanism(), None).measured == 4

    def test_a_retry_with_a_key_repeats_the_estimate(self, tmp_path: Any) -> None:
        ops.create_key(tmp_path / "key")
        x, values = days(4), []
        for copy in ("one.db", "two.db"):
            with ops.Ledger(tmp_path / copy, key=tmp_path / "key", create=True) as ledger:
                values.append(ledger.release(mechanism(), x, stream="a").values.tolist())
        assert values[0] == values[1]

    def test_public_history_is_a_start(self, tmp_path: Any) -> None:
        guarantee = ops.Guarantee(epsilon=Fraction(1, 20), w=W)
        found = ops.tune(guarantee, days(70), bounds=(0, 100))
        made, x = found.mechanism, days(3)
        cold = np.mean([np.abs(made.release(x).values - x).mean() for _ in range(5)])
        warm = np.mean([np.abs(made.release(x, state=found.state).values - x).mean() for _ in range(5)])
        assert warm < cold
        stream = ops.Stream(made, state=found.state)
        stream.push_many(range(W), days(1))
        assert stream.state["known"]["memory"]["filters"][0]["measured"] == 71
        with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
            ledger.release(made, x, stream="a", state=found.state)
            assert ledger._memories.before("a", 3, made, None).measured == 73

    @pytest.mark.parametrize(
        ("state", "match"),
        [
            ({}, "damaged"),
            (sealed({"version": 2}), "damaged"),
            (sealed({"version": 1, "last": 0}), "not what a release"),
            ({"version": 2, "last": float("nan")}, "damaged"),
            ({**RELEASED, "costs": []}, "damaged"),
            (sealed({**RELEASED, "last": None}), "damaged"),
            (sealed({**RELEASED, "costs": {}}), "damaged"),
            (sealed({**RELEASED, "costs": [{"kind": "touch", "start": 0, "stop": 2 * W, "cost": "1"}]}), "damaged"),
            (sealed({**RELEASED, "costs": [{"kind": "touch", "start": 0, "stop": W, "cost": "-1"}]}), "damaged"),
        ],
    )
    def test_what_is_not_a_state_is_refused(self, state: Any, match: str) -> None:
        with pytest.raises(ops.ParameterError, match=match):
            mechanism().release(days(1), state=state)
        with pytest.raises(ops.ParameterError, match=match):
            ops.Stream(mechanism(), state=state)

    def test_a_memory_of_another_kind_is_refused(self) -> None:
        state = mechanism().release(days(1)).state
        with pytest.raises(ops.ParameterError, match="another kind"):
            mechanism(reconstruct=ops.Estimate(season=1)).release(days(1), state=state)
        # What does not estimate goes on all the same: it needs to know what was spent.
        assert mechanism(reconstruct=ops.Linear()).release(days(1), state=state).state["last"] == 1


def test_a_ledger_gives_revised_history_of_what_it_has_stored(tmp_path: Any) -> None:
    x = days(12)
    with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
        released = ledger.release(mechanism(Fraction(1, 4)), x, stream="a").values.reshape(-1, W)
        again = ledger.revised(mechanism(Fraction(1, 4)), "a")
        assert list(again) == list(range(12))
        # The last period has nothing after it but amplitudes, which the others were estimated without.
        assert not np.array_equal(again[0], released[0])
        np.testing.assert_array_equal(ledger.stored("a", 0).values, released[0])
        assert ledger.revised(mechanism(), "nothing") == {}
        with pytest.raises(ops.ParameterError, match="reconstruct is not an Estimate"):
            ledger.revised(mechanism(reconstruct=ops.Linear()), "a")


class TestTuningItself:
    def test_every_window_over_a_change_of_plan_costs_at_most_epsilon(self) -> None:
        guarantee = ops.Guarantee(epsilon=1, w=12)
        kinds = [
            (sample, noise)
            for sample in (ops.BucketSampling(k=3), ops.BucketSampling(k=12), ops.EqualSampling(k=4))
            for noise in (ops.LaplaceNoise(), ops.CubeNoise(), ops.CubeNoise(block=2))
        ]
        for before in kinds:
            old = ops.OptStream(guarantee, sample=before[0], perturb=before[1], bounds=(0, 9))
            for after in kinds:
                new = old.changed(sample=after[0], perturb=after[1])
                first = price_next(new, State(0, old.costs), 1).mechanism
                sequence = [old, old, first, new, new]
                costs = [
                    accounting.moved(cost, 12 * period) for period, made in enumerate(sequence) for cost in made.costs
                ]
                assert accounting.worst_window(costs, 12) <= 1
                # No more is taken away than must be.
                if first != new:
                    more = first.with_epsilon(first.guarantee.epsilon * Fraction(101, 100))
                    both_periods = [*old.costs, *(accounting.moved(cost, 12) for cost in more.costs)]
                    assert accounting.worst_window(both_periods, 12) > 1
                if isinstance(before[1], ops.LaplaceNoise) and isinstance(after[1], ops.LaplaceNoise):
                    both = isinstance(before[0], ops.BucketSampling) and isinstance(after[0], ops.BucketSampling)
                    assert not both or first == new

    def test_it_changes_what_it_measures_and_the_ledger_agrees(self, tmp_path: Any) -> None:
        # Days are flat but for their level, and history says so: less should be measured than the rule of thumb does.
        made = ops.OptStream.auto(ops.Guarantee(epsilon=Fraction(1, 10), w=W), bounds=(0, 1000))
        levels = np.array([500, 700, 300, 600, 350, 550, 420, 640, 500, 460.0])
        # The noise of a key and numbers of its own: chance is the same in every run.
        flat = np.repeat(levels, W) + np.random.default_rng(7).normal(0, 0.01, 10 * W)
        known = ops.tune(made.guarantee, flat[: (CHANGES[0] - 2) * W], bounds=(0, 1000)).state
        assert known is not None
        start = sealed(known | {"memory": known["memory"] | {"choice": made.choice}})
        key = ops.CuratorKey(bytes(range(32)))
        with ops.Ledger(tmp_path / "ledger.db", key=key, create=True) as ledger:
            release = ledger.release(made, flat[-5 * W :], stream="a", state=start)
            stored = ledger.releases("a")
            assert ledger.verify().problems == ()
            assert ledger.remaining("a").epsilon >= 0
            # A retry of everything gives what is stored.
            again = ledger.release(made, flat[-5 * W :], stream="a", state=start)
        plans = [part.statement.stages[0].does.split(" with")[0] for part in stored]
        assert plans == ["measures the means of 8 buckets"] * 2 + ["measures the means of 3 buckets"] * 3
        assert {part.statement.epsilon for part in stored} == {Fraction(1, 10)}
        # The first period after the change gets less, so that the windows over both plans stay within the guarantee.
        spent = [part.statement.stages[0].epsilon for part in stored]
        assert spent[2] < spent[0] == spent[3] == Fraction(1, 10)
        np.testing.assert_array_equal(release.values, again.values)
        np.testing.assert_array_equal(release.values, np.concatenate([part.values for part in stored]))

    def test_it_depends_on_released_values_alone(self) -> None:
        made = ops.OptStream.auto(ops.Guarantee(epsilon=1, w=W), bounds=(0, 100))
        memory = made.remembered(made.release(days(CHANGES[0])).state["memory"])
        assert made.following(memory) == made.following(made.remembered(memory.state()))

    def test_aligned_neighbours_need_no_transition(self) -> None:
        guarantee = ops.Guarantee(epsilon=1, w=12, neighbours="aligned")
        old = ops.OptStream(guarantee, sample=ops.BucketSampling(k=3), perturb=ops.CubeNoise(), bounds=(0, 9))
        new = old.changed(sample=ops.BucketSampling(k=12))
        assert price_next(new, State(0, old.costs), 1).mechanism is new


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: ops.Estimate(memory=False, smooth=False), "memory and smooth are both False"),
        (lambda: ops.Estimate(season=0), "season is 0"),
        (lambda: ops.Estimate(season=1000), "season is 1000"),
        (lambda: ops.Estimate(memory=False, revise=True), "revise is True"),
        (lambda: mechanism(calibration="paper"), "calibration is 'paper'"),
        (lambda: mechanism(retune=True, reconstruct=ops.Linear()), "retune is True"),
        (lambda: mechanism(retune=True, reconstruct=ops.Estimate(memory=False)), "retune is True"),
        (lambda: mechanism(reconstruct=ops.Linear()).remembered(), "reconstruct is not an Estimate"),
        (
            lambda: ops.OptStream(
                ops.Guarantee(epsilon=1, w=500),
                sample=ops.BucketSampling(k=500),
                reconstruct=ops.Estimate(),
                bounds=(0, 1),
            ),
            "500 values are measured in a period, but must be at most 400",
        ),
        (lambda: mechanism(bounds=(0, 1e95), grid=2.0**300), "must stay below 1e\\+90"),
    ],
)
def test_misuse_is_refused(build: Callable[[], Any], match: str) -> None:
    with pytest.raises(ops.ParameterError, match=match):
        build()


@pytest.mark.parametrize(
    "build",
    [
        lambda: ops.Estimate(memory=1),  # type: ignore[arg-type]
        lambda: ops.Estimate(season=7.0),  # type: ignore[arg-type]
        lambda: mechanism(reconstruct=7),
        lambda: mechanism(retune="yes"),
    ],
)
def test_wrong_types_are_refused(build: Callable[[], Any]) -> None:
    with pytest.raises(ops.ParameterTypeError):
        build()
