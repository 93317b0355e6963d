"""Streams: every observation is taken once or refused clearly, and what is held is priced."""

from __future__ import annotations

import copy
import json
import pickle
import random
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
from cost_examples import chosen, cost_of_change, steps, touches
from hypothesis import HealthCheck, given, settings

import optstream as ops
from optstream.privacy.accounting import Cost, TouchCost, held, moved, worst_window
from optstream.stream import by_period as stream_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

W = 4
LOUD = ops.OptStream(ops.Guarantee(epsilon=10**6, w=W), sample=ops.EqualSampling(k=W), bounds=(0, 100))
"""So much epsilon that released values show what was read, to within a hundredth."""
QUIET = ops.OptStream(ops.Guarantee(epsilon=1, w=W), sample=ops.EqualSampling(k=W), bounds=(0, 100))
TREE = ops.Hierarchy.nested({"all": ["n", "s"]})


@pytest.fixture(params=["state", "ledger"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., ops.Stream]]:
    """Return a function that makes a stream, or makes it anew from what is kept of it."""
    ledger = ops.Ledger(tmp_path / "ledger.db", create=True)
    last: list[ops.Stream] = []

    def made(mechanism: ops.OptStream = LOUD, **rules: Any) -> ops.Stream:
        if request.param == "ledger":
            return ops.Stream(mechanism, ledger=ledger, name="a", **rules)
        # As text, since a caller would keep it so.
        state = json.loads(json.dumps(last[-1].state)) if last else None
        last.append(ops.Stream(mechanism, state=state, **rules))
        return last[-1]

    yield made
    ledger.close()


def near(release: Any, values: list[float]) -> bool:
    return np.allclose(release.values, values, atol=0.02)


class TestOrder:
    def test_a_period_is_released_when_it_is_complete(self, make: Callable[..., ops.Stream]) -> None:
        stream = make()
        for period in range(3):
            for step in range(W - 1):
                assert stream.push(period * W + step, 10.0 * step) is None
            release = stream.push(period * W + W - 1, 99.0)
            assert (release.period, release.start) == (period, period * W)
            assert near(release, [0, 10, 20, 99])
            assert replace(release.statement, scope=LOUD.statement.scope) == LOUD.statement

    def test_the_open_period_survives_a_restart_at_any_step(self, make: Callable[..., ops.Stream]) -> None:
        for step in range(2 * W):
            release = make().push(step, float(step))
        assert near(release, [4, 5, 6, 7])

    def test_many_at_once_are_those_one_by_one(self, make: Callable[..., ops.Stream]) -> None:
        stream = make()
        released = stream.push_many(range(3 * W + 2), np.arange(3 * W + 2.0))
        assert [release.period for release in released] == [0, 1, 2]
        assert near(released[2], [8, 9, 10, 11])
        assert near(stream.push_many([14, 15], [14, 15])[0], [12, 13, 14, 15])
        assert stream.push_many([], []) == []

    @pytest.mark.parametrize(
        ("rules", "pushed", "wrong", "message"),
        [
            ({}, [0, 1], 1, "step 1 has come twice"),
            ({}, [0, 1], 3, "step 3 comes, but step 2 is missing"),
            ({"disorder": "accept"}, [0, 3], 4, "2 steps of period 0 are missing, the first of them step 1"),
            ({"missing": 0.0}, [0, 2], 1, "step 1 comes after step 2, and disorder is 'refuse'"),
            ({}, [0, 1, 2, 3], 3, "step 3 is late: period 0 is closed"),
            ({}, [0, 1, 2, 3], 8, "step 8 comes, but step 4 is missing"),
            ({}, [], 2, "step 2 comes, but step 0 is missing"),
            ({}, [], -1, "when is step -1, but must be from 0"),
            ({}, [], 2**70, "when is step 1180591620717411303424, but must be from 0"),
        ],
    )
    def test_what_is_out_of_order_is_refused(
        self, make: Callable[..., ops.Stream], rules: dict[str, Any], pushed: list[int], wrong: int, message: str
    ) -> None:
        stream = make(**rules)
        stream.push_many(pushed, map(float, pushed))
        with pytest.raises(ops.StreamError, match=message):
            stream.push(wrong, 7.0)
        # Nothing has changed, also for a batch of which only the last is wrong.
        after = range(max(pushed, default=-1) + 1, (max(pushed, default=-1) // W + 1) * W + W - 1)
        with pytest.raises(ops.StreamError):
            stream.push_many([*after, wrong], [1.0] * (len(after) + 1))
        rest = [step for step in range((max(pushed, default=-1) + 1) // W * W + W) if step not in pushed]
        if not rules:
            released = make(**rules).push_many(rest, map(float, rest))
            assert near(released[-1], list(range(rest[-1] - W + 1, rest[-1] + 1)))

    def test_late_ones_can_be_dropped(self, make: Callable[..., ops.Stream]) -> None:
        stream = make(late="drop")
        stream.push_many(range(5), [1.0] * 5)
        assert stream.push(2, 50.0) is None
        assert near(stream.push_many([5, 6, 7], [1, 1, 1])[0], [1, 1, 1, 1])

    def test_late_ones_can_be_answered_with_what_is_stored(self, make: Callable[..., ops.Stream]) -> None:
        stream = make(QUIET, late="stored")
        first = stream.push_many(range(4), [1.0] * 4)[0]
        if "released" in stream.state and stream._open._ledger is None:
            with pytest.raises(ops.StreamError, match="its release is not stored"):
                stream.push(3, 1.0)
        else:
            again = stream.push(3, 1.0)
            assert again.values.tolist() == first.values.tolist()
            assert (again.period, again.statement) == (0, first.statement)
            # A call that is made again after a crash gets everything again, once each.
            both = stream.push_many(range(8), [1.0] * 8)
            assert [release.period for release in both] == [0, 1]

    def test_duplicates_can_be_kept_or_replaced(self, make: Callable[..., ops.Stream]) -> None:
        stream = make(duplicate="keep")
        stream.push_many([0, 1, 1], [0.0, 10.0, 50.0])
        assert near(stream.push_many([2, 3], [20, 30])[0], [0, 10, 20, 30])
        stream = make(duplicate="replace")
        stream.push_many([4, 5, 5], [0.0, 10.0, 50.0])
        assert near(make(duplicate="replace").push_many([6, 7], [20, 30])[0], [0, 50, 20, 30])

    def test_steps_of_a_period_can_come_in_any_order(self, make: Callable[..., ops.Stream]) -> None:
        order = list(range(W))
        random.Random(3).shuffle(order)
        stream = make(disorder="accept")
        assert near(stream.push_many(order, map(float, order))[0], [0, 1, 2, 3])

    @pytest.mark.parametrize("value", [np.nan, np.inf, 10**400, "5", None, True, [1.0], 1j])
    def test_values_that_are_no_numbers_are_refused(self, make: Callable[..., ops.Stream], value: Any) -> None:
        stream = make()
        with pytest.raises((ops.DataError, ops.ParameterTypeError), match="value at 0 is"):
            stream.push(0, value)
        assert stream.push(0, np.float32(1)) is None

    def test_wrong_rules_are_refused(self) -> None:
        wrong: list[dict[str, Any]] = [
            {"late": "keep"},
            {"duplicate": "drop"},
            {"disorder": "any"},
            {"missing": "zero"},
            {"missing": np.nan},
            {"step": timedelta(hours=1)},
            {"step": timedelta(0), "origin": datetime(2026, 1, 1, tzinfo=UTC)},
            {"step": 30, "origin": datetime(2026, 1, 1, tzinfo=UTC)},
            {"step": timedelta(hours=1), "origin": "2026"},
            {"ledger": "ledger.db"},
            {"state": {"released": 0}},
            {"state": {"released": None, "published": None, "observations": {"0": [1.0, 2.0]}}},
        ]
        for rules in wrong:
            with pytest.raises((ops.ParameterError, ops.ParameterTypeError, ops.DataError)):
                ops.Stream(LOUD, **rules)
        with pytest.raises(ops.ParameterTypeError, match="mechanism is of type str"):
            ops.Stream("mechanism")  # type: ignore[arg-type]
        with pytest.raises(ops.DataError, match="differ in length"):
            ops.Stream(LOUD).push_many([0, 1], [1.0])

    def test_a_repr_shows_no_data(self) -> None:
        stream = ops.Stream(LOUD, name="visits")
        stream.push(0, 12.345)
        assert repr(stream) == "Stream(name='visits', released=None, open_steps=1)"


class TestMissing:
    def test_a_public_number_takes_the_place(self, make: Callable[..., ops.Stream]) -> None:
        stream = make(missing=50.0)
        stream.push_many([1, 3], [10.0, 30.0])
        release = stream.push(4, 40.0)
        assert near(release, [50, 10, 50, 30])
        assert release.statement.epsilon == LOUD.statement.epsilon
        assert near(stream.flush(), [40, 50, 50, 50])
        assert stream.flush() is None

    def test_periods_can_be_skipped(self, make: Callable[..., ops.Stream]) -> None:
        stream = make(missing="skip")
        assert stream.push_many([0, 1, 3], [1.0, 2.0, 3.0]) == []
        (release,) = stream.push_many([4, 5, 6, 7], [4, 5, 6, 7])
        assert release.period == 1
        assert stream.push(23, 1.0) is None
        assert stream.flush() is None

    def test_the_last_value_is_held(self, make: Callable[..., ops.Stream]) -> None:
        stream = make(missing="hold")
        stream.push_many([0, 3], [10.0, 40.0])
        release = stream.push(9, 90.0)
        assert near(release, [10, 10, 10, 40])
        # Step 0 pays for three steps, so the period has less to spend.
        assert release.statement.epsilon < LOUD.statement.epsilon
        # Step 8 has no value before it in its period: what was released last is held, which costs nothing.
        later = stream.flush()
        assert near(later, [40, 90, 90, 90])
        assert later.period == 2

    def test_with_nothing_to_hold_a_period_is_passed_over(self, make: Callable[..., ops.Stream]) -> None:
        stream = make(missing="hold")
        stream.push(2, 1.0)
        assert stream.push(4, 40.0) is None
        assert near(stream.flush(), [40, 40, 40, 40])

    def test_an_open_period_can_be_discarded(self, make: Callable[..., ops.Stream]) -> None:
        """A first observation that is dated far off would otherwise stop a stream for good."""
        stream = make()
        stream.push(4 * 10**9, 1.0)
        assert stream.discard() == 1
        assert stream.push_many(range(4), [10.0] * 4)[0].period == 0
        assert stream.discard() == 0

    def test_held_periods_stay_within_the_policy(self, tmp_path: Path) -> None:
        """The ledger prices every window anew, with what was really charged."""
        mechanisms = [
            ops.OptStream(ops.Guarantee(epsilon=1, w=8), sample=ops.EqualSampling(k=8), bounds=(0, 100)),
            ops.OptStream(ops.Guarantee(epsilon=1, w=8), sample=ops.EqualSampling(k=3), bounds=(0, 100)),
            ops.OptStream(ops.Guarantee(epsilon=1, w=8), sample=ops.L1Sampling(k=4, threshold=9.0), bounds=(0, 100)),
            ops.OptStream(
                ops.Guarantee(epsilon=1, w=8),
                sample=ops.EqualSampling(k=4),
                features=[ops.Feature.cuts(8, 4), ops.Feature.total(8)],
                bounds=(0, 100),
            ),
        ]
        generator = random.Random(1)
        with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
            for number, mechanism in enumerate(mechanisms):
                stream = ops.Stream(mechanism, ledger=ledger, name=f"{number}", missing="hold")
                for period in range(30):
                    present = [0, *(step for step in range(1, 8) if generator.random() < 0.7)]
                    stream.push_many([period * 8 + step for step in present], [5.0] * len(present))
                assert len(ledger.history(f"{number}")) >= 25
                assert ledger.remaining(f"{number}").epsilon == 0
                # A period that was held is returned with the statement that it was released with.
                spent = [release.statement.epsilon for release in ledger.releases(f"{number}")]
                assert max(spent) == 1
                assert all(0 < epsilon <= 1 for epsilon in spent)
                assert number == 1 or min(spent) < 1
            assert ledger.verify().problems == ()

    def test_aligned_windows_pay_nothing_for_what_is_held(self) -> None:
        aligned = ops.OptStream(
            ops.Guarantee(epsilon=1, w=W, neighbours="aligned"), sample=ops.EqualSampling(k=W), bounds=(0, 100)
        )
        stream = ops.Stream(aligned, missing="hold")
        stream.push_many([0, 3], [1.0, 2.0])
        assert stream.push(4, 1.0).statement.epsilon == 1

    @settings(max_examples=300, deadline=None)
    @given(st.lists(steps | touches | chosen, min_size=1, max_size=3), st.integers(1, 6), st.data())
    def test_the_price_of_holding_covers_every_change(self, costs: list[Cost], w: int, data: st.DataObject) -> None:
        """By brute force: a window changes its own steps and all that repeat one of them."""
        missing = data.draw(st.sets(st.integers(-4, 12)))
        sources = {step: max(s for s in range(-5, step) if s not in missing) for step in missing}
        priced = worst_window(held(costs, sources), w)
        worst = Fraction(0)
        for first in range(-30, 30):
            changed = {step for step in range(-40, 50) if first <= sources.get(step, step) < first + w}
            worst = max(worst, sum((cost_of_change(changed, cost) for cost in costs), Fraction(0)))
        assert priced >= worst
        if not any(isinstance(cost, TouchCost) for cost in costs):
            assert priced == worst


def _aware(moment: Any) -> datetime:
    assert isinstance(moment, datetime)
    return moment.astimezone(UTC)


class TestClock:
    HALF = timedelta(minutes=30)

    def test_times_are_steps(self, make: Callable[..., ops.Stream]) -> None:
        origin = datetime(2026, 1, 1, tzinfo=UTC)
        stream = make(step=self.HALF, origin=origin)
        times = [
            origin,
            pd.Timestamp(origin + self.HALF),
            (origin + 2 * self.HALF).astimezone(ZoneInfo("Asia/Kolkata")),
            origin + 3 * self.HALF,
        ]
        (release,) = stream.push_many(times, [0.0, 1.0, 2.0, 3.0])
        assert near(release, [0, 1, 2, 3])
        assert release.start == origin
        assert stream.push_many([origin + i * self.HALF for i in range(4, 8)], [0.0] * 4)[0].start == datetime(
            2026, 1, 1, 2, tzinfo=UTC
        )

    @pytest.mark.parametrize("emit", ["period", "step"])
    def test_errors_name_times(self, emit: Any) -> None:
        made = ops.OptStream(ops.Guarantee(epsilon=1, w=4), sample=ops.EqualSampling(k=4), bounds=(0, 9))
        origin = datetime(2026, 1, 1, tzinfo=UTC)
        stream = ops.Stream(made, step=timedelta(hours=1), origin=origin, emit=emit)
        stream.push(origin, 1.0)
        with pytest.raises(ops.StreamError, match=r"the step at 2026-01-01T00:00:00.00:00 has come twice"):
            stream.push(origin, 2.0)
        with pytest.raises(ops.StreamError, match=r"03:00:00.*the step at 2026-01-01T01:00:00.00:00 is missing"):
            stream.push(origin + timedelta(hours=3), 1.0)

    def test_numpy_times_are_times(self) -> None:
        stream = ops.Stream(LOUD, step=self.HALF, origin=datetime(2026, 1, 1))  # noqa: DTZ001
        times = np.datetime64("2026-01-01T00:00") + np.arange(4) * np.timedelta64(30, "m")
        assert near(stream.push_many(times, np.arange(4.0))[0], [0, 1, 2, 3])

    @pytest.mark.parametrize("day", ["2016-03-27", "2016-10-30"])
    def test_a_change_of_summer_time_neither_drops_nor_repeats_a_step(self, day: str) -> None:
        paris = ZoneInfo("Europe/Paris")
        origin = datetime(2016, 1, 1, tzinfo=paris)
        begin = datetime.fromisoformat(day).replace(tzinfo=paris)
        clock = ops.Stream(LOUD, step=self.HALF, origin=origin)._clock
        true = [begin.astimezone(UTC) + number * self.HALF for number in range(60)]
        numbers = [clock.step_of(moment.astimezone(paris)) for moment in true]
        assert all(later - earlier == 1 for earlier, later in pairwise(numbers))
        # Compared in UTC: times of two zones that come twice are never equal in Python.
        assert [_aware(clock.time_of(number)) for number in numbers] == true

    @pytest.mark.parametrize(
        ("when", "message"),
        [
            (datetime(2026, 1, 1, 0, 10, tzinfo=UTC), "must be a whole number of steps"),
            (datetime(2025, 12, 31, 23, 30, tzinfo=UTC), "must not be before the origin"),
            (datetime(2026, 1, 1), "must have a time zone if and only if origin has one"),  # noqa: DTZ001
            (3, "when is of type int, but must be datetime"),
            ("2026-01-01", "when is of type str"),
        ],
    )
    def test_times_that_are_no_steps_are_refused(self, when: Any, message: str) -> None:
        stream = ops.Stream(LOUD, step=self.HALF, origin=datetime(2026, 1, 1, tzinfo=UTC))
        with pytest.raises(ops.OptStreamError, match=message):
            stream.push(when, 1.0)

    def test_numbers_are_wanted_without_a_clock(self) -> None:
        for when in (1.0, True, datetime(2026, 1, 1, tzinfo=UTC)):
            with pytest.raises(ops.ParameterTypeError, match="must be an int without step and origin"):
                ops.Stream(LOUD).push(when, 1.0)  # type: ignore[arg-type]

    def test_a_stream_keeps_its_clock(self, ledger_url: str) -> None:
        """On another clock the same hours could be released again, as another period."""
        origin = datetime(2026, 1, 2, tzinfo=UTC)
        with ops.Ledger(ledger_url, create=True) as ledger:
            ops.Stream(LOUD, ledger=ledger, name="a", step=self.HALF, origin=origin)
            same = origin.astimezone(ZoneInfo("Europe/Paris"))
            ops.Stream(LOUD, ledger=ledger, name="a", step=self.HALF, origin=same)
            for other in (origin - timedelta(hours=2), origin + self.HALF):
                with pytest.raises(ops.ParameterError, match="stream 'a' counts steps of 1800 s from"):
                    ops.Stream(LOUD, ledger=ledger, name="a", step=self.HALF, origin=other)
            with pytest.raises(ops.ParameterError, match="stream 'a' counts steps, but was begun with"):
                ops.Stream(LOUD, ledger=ledger, name="a")


class TestHierarchies:
    def mechanism(self) -> ops.OptStream:
        return ops.OptStream(
            ops.Guarantee(epsilon=10**6, w=W),
            sample=ops.EqualSampling(k=W),
            bounds=(0, 100),
            features=[ops.Feature.total(W)],
            hierarchy=TREE,
        )

    def test_a_mapping_per_step_gives_all_nodes(self, make: Callable[..., ops.Stream]) -> None:
        for step in range(W):
            release = make(self.mechanism()).push(step, {"s": 2.0 * step, "n": 10.0})
        assert np.allclose(release.values["all"], [10, 12, 14, 16], atol=0.1)
        assert (release.values["all"] == release.values["n"] + release.values["s"]).all()
        assert release.period == 0

    def test_what_is_not_a_leaf_is_refused(self, make: Callable[..., ops.Stream]) -> None:
        stream = make(self.mechanism())
        for value, message in (
            ({"n": 1.0}, "has no leaf 's'"),
            ({"n": 1.0, "s": 1.0, "x": 1.0}, "has a name that is no leaf, but must have leaves"),
            ({"n": 1.0, "s": np.nan}, "'s' at 0 is nan"),
            (3.0, "must map leaves to numbers"),
        ):
            with pytest.raises((ops.DataError, ops.ParameterTypeError), match=message):
                stream.push(0, value)

    def test_missing_leaves_and_steps_can_be_filled(self, make: Callable[..., ops.Stream]) -> None:
        # A number for missing steps says nothing of leaves that are absent from a step that came.
        with pytest.raises(ops.DataError, match=r"has no leaf 's', but must have all 2: .* say by absent=NUMBER"):
            make(self.mechanism(), missing=7.0).push(0, {"n": 1.0})
        for absent in ("hold", True, float("nan")):
            with pytest.raises((ops.DataError, ops.ParameterError, ops.ParameterTypeError), match="absent is"):
                make(self.mechanism(), absent=absent)
        stream = make(self.mechanism(), missing=7.0, absent=7.0)
        stream.push_many([0, 3], [{"n": 1.0}, {"s": 2.0}])
        release = stream.push(4, {})
        assert np.allclose(release.values["n"], [1, 7, 7, 7], atol=0.1)
        assert np.allclose(release.values["s"], [7, 7, 7, 2], atol=0.1)

    def test_values_are_held_leaf_by_leaf(self, make: Callable[..., ops.Stream]) -> None:
        stream = make(self.mechanism(), missing="hold")
        stream.push_many([0, 2], [{"n": 1.0, "s": 2.0}, {"n": 3.0, "s": 4.0}])
        release = stream.push(5, {"n": 50.0, "s": 60.0})
        assert np.allclose(release.values["s"], [2, 2, 4, 4], atol=0.1)
        assert np.allclose(stream.flush().values["n"], [3, 50, 50, 50], atol=0.1)


class TestLedger:
    def test_several_streams_push_to_one_name(self, ledger_url: str) -> None:
        """Threads with streams of their own deliver everything at least once; every period is released once."""
        released: dict[int, set[tuple[float, ...]]] = {}
        errors: list[BaseException] = []
        periods = 6

        def work(seed: int) -> None:
            generator = random.Random(seed)
            try:
                with ops.Ledger(ledger_url, create=True) as ledger:
                    stream = ops.Stream(
                        QUIET, ledger=ledger, name="a", late="stored", duplicate="keep", disorder="accept"
                    )
                    for period in range(periods):
                        order = generator.sample(range(period * W, period * W + W), W)
                        for release in stream.push_many(order, [float(step) for step in order]):
                            released.setdefault(release.period, set()).add(tuple(release.values))
            except BaseException as error:  # noqa: BLE001
                errors.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert sorted(released) == list(range(periods))
        assert all(len(values) == 1 for values in released.values())
        with ops.Ledger(ledger_url, create=True) as ledger:
            assert ledger.verify().problems == ()
            assert ledger.kept("a").values == {}

    def test_a_refusal_by_the_ledger_takes_nothing(self, tmp_path: Path) -> None:
        with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
            stream = ops.Stream(QUIET, ledger=ledger, name="a")
            stream.push_many(range(3), [1.0, 2.0, 3.0])
            ledger.set_policy("a", ops.Guarantee(epsilon=Fraction(1, 2), w=W))
            with pytest.raises(ops.BudgetError):
                stream.push(3, 4.0)
            assert sorted(ledger.kept("a").values) == [0, 1, 2]
            ledger.set_policy("a", ops.Guarantee(epsilon=1, w=W))
            assert stream.push(3, 4.0).period == 0
            assert not ledger.kept("a").values

    def test_a_period_that_was_released_as_a_whole_does_not_block_a_stream(self, tmp_path: Path) -> None:
        with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
            ops.Stream(QUIET, ledger=ledger, name="a").push_many([0, 1], [1.0, 2.0])
            ledger.release(QUIET, np.array([1.0, 2.0, 3.0, 4.0]), stream="a")
            stream = ops.Stream(QUIET, ledger=ledger, name="a")
            assert stream.push_many(range(4, 8), [1.0] * 4)[0].period == 1

    def test_the_observations_go_with_the_release(self, tmp_path: Path) -> None:
        """Raw values are overwritten in the file when their period is released."""
        raw = [12.3456789, 23.4567891, 34.5678912, 45.6789123]

        def content() -> bytes:
            return b"".join(path.read_bytes() for path in tmp_path.iterdir())

        with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
            stream = ops.Stream(QUIET, ledger=ledger, name="a")
            stream.push_many(range(3), raw[:3])
            assert np.float64(raw[1]).tobytes() in content()
            stream.push(3, raw[3])
        # Closing the last connection writes the log back and removes it.
        for value in raw:
            assert np.float64(value).tobytes() not in content()

    def test_a_mechanism_for_another_window_shows_at_once(self, tmp_path: Path) -> None:
        with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
            ledger.set_policy("a", ops.Guarantee(epsilon=1, w=8))
            with pytest.raises(ops.ParameterError, match="mechanism has w = 4"):
                ops.Stream(QUIET, ledger=ledger, name="a")

    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        st.lists(st.tuples(st.integers(0, 3 * W), st.floats(0, 99)), max_size=30),
        st.sampled_from(["refuse", "drop"]),
        st.sampled_from(["refuse", "keep", "replace"]),
        st.sampled_from(["refuse", "accept"]),
        st.sampled_from(["refuse", "hold", "skip", 5.0]),
    )
    def test_with_and_without_a_ledger_the_same_is_taken(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        pushes: Any,
        late: Any,
        duplicate: Any,
        disorder: Any,
        missing: Any,
    ) -> None:
        rules: Mapping[str, Any] = {"late": late, "duplicate": duplicate, "disorder": disorder, "missing": missing}
        with ops.Ledger(tmp_path_factory.mktemp("ledger") / "ledger.db", create=True) as ledger:
            alone, kept = ops.Stream(LOUD, **rules), ops.Stream(LOUD, ledger=ledger, name="a", **rules)
            for step, value in pushes:
                outcomes = []
                for stream in (alone, kept):
                    try:
                        release = stream.push(step, value)
                    except ops.StreamError as error:
                        outcomes.append(str(error))
                    else:
                        outcomes.append("nothing" if release is None else f"period {release.period}")
                assert outcomes[0] == outcomes[1]
            assert alone.state["observations"] == kept.state["observations"]
            charged = [(entry.period, ledger.stored("a", entry.period)) for entry in ledger.history("a")]
            assert all(release is not None for _, release in charged)
            assert ledger.verify().problems == ()


def test_the_factor_of_a_held_period_is_the_largest_that_fits() -> None:
    """At w = 4, with step 1 missing, the window that ends at step 0 pays for it: 3/4 + 2 f/4 <= 1, so f is 1/2."""
    stream = ops.Stream(QUIET, missing="hold")
    stream.push_many([0, 2, 3], [1.0, 1.0, 1.0])
    release = stream.push(4, 1.0)
    assert release.statement.epsilon == Fraction(1, 2)
    own = held(QUIET.with_epsilon(Fraction(1, 2)).costs, {1: 0})
    around = [moved(cost, by) for by in (-W, W) for cost in QUIET.costs]
    assert worst_window([*own, *around], W) == 1


@pytest.mark.parametrize("many", [False, True])
def test_holding_does_not_depend_on_how_observations_are_pushed(*, many: bool) -> None:
    # Period 0 begins with a hole before anything was released, and is passed over; period 2 holds what was released.
    steps = [1, 2, 3, *range(4, 8), *range(9, 13)]
    stream = ops.Stream(QUIET, missing="hold")
    if many:
        released = stream.push_many(steps, [50.0] * len(steps))
    else:
        released = [release for step in steps if (release := stream.push(step, 50.0)) is not None]
    assert [release.period for release in released] == [1, 2]


def test_an_interrupt_in_the_draw_is_no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> Any:
        raise KeyboardInterrupt

    stream = ops.Stream(QUIET)
    stream.push_many(range(3), [1.0] * 3)
    with monkeypatch.context() as patched:
        patched.setattr(stream_module, "draw_period", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stream.push(3, 1.0)
    assert (stream.state["known"]["last"], bool(stream.state["known"]["costs"])) == (0, True)
    with pytest.raises(ops.StreamError, match="late"):
        stream.push(3, 1.0)


def test_a_stream_is_not_copied() -> None:
    stream = ops.Stream(QUIET)
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(ops.StreamError, match="cannot be copied"):
            copied(stream)


def test_a_state_with_times_goes_on_with_the_same_times_only() -> None:
    origin, hour = datetime(2020, 1, 1, tzinfo=UTC), timedelta(hours=1)
    stream = ops.Stream(QUIET, step=hour, origin=origin)
    stream.push_many([origin + n * hour for n in range(4)], [1.0] * 4)
    others: list[dict[str, Any]] = [
        {},
        {"step": hour, "origin": origin - hour},
        {"step": hour + timedelta(microseconds=1), "origin": origin},
    ]
    for state in (stream.state, stream.state["known"]):
        assert ops.Stream(QUIET, step=hour, origin=origin, state=state).state["released"] == 0
        for other in others:
            with pytest.raises(ops.ParameterError, match="must"):
                ops.Stream(QUIET, state=state, **other)
