"""Steps in a ledger: charged before they are drawn, stored before they leave, never drawn twice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from step_killing import ADAPTIVE, MECHANISM, MECHANISMS, W, observed

import optstream as ops
from optstream import baselines
from optstream.ledger.steps import StepProtocol
from optstream.privacy.accounting import StepCosts, worst_window

if TYPE_CHECKING:
    from optstream.mechanism.mechanism import Mechanism

KILLS = 40
TREE = ops.Hierarchy.nested({"all": ["north", "south"]})
KEY = ops.CuratorKey(bytes(range(32)))


GUARANTEE = ops.Guarantee(epsilon=1, w=W)
BASELINES: dict[str, Mechanism] = {
    "laplace": baselines.Laplace(GUARANTEE, bounds=(0, 1000)),
    "sample": baselines.Sample(GUARANTEE, k=2, bounds=(0, 1000)),
    "distribution": ADAPTIVE,
    "absorption": baselines.BudgetAbsorption(GUARANTEE, bounds=(0, 1000)),
    "pegasus": baselines.PeGaSus(GUARANTEE, bounds=(0, 1000)),
    "rescue": baselines.RescueDP(GUARANTEE, bounds=(0, 1000)),
    "fast": baselines.Fast(GUARANTEE, bounds=(0, 1000)),
    "tree": baselines.BinaryTree(GUARANTEE, horizon=100 * W, bounds=(0, 1000)),
}


def stream_of(ledger: ops.Ledger, mechanism: Mechanism = MECHANISM, **rules: Any) -> ops.Stream:
    return ops.Stream(mechanism, ledger=ledger, name="s", emit="step", **rules)


@pytest.mark.parametrize("key", [None, KEY])
def test_every_step_is_stored_and_a_restart_goes_on(ledger_url: str, key: Any) -> None:
    values = []
    for step in range(2 * W + 3):
        # Every step in a new process, as far as the ledger can tell.
        with ops.Ledger(ledger_url, create=True, key=key) as ledger:
            release = stream_of(ledger).push(step, observed(step))
            values.append(release.value)
            assert (release.revised is None) == (step % W != W - 1)
    with ops.Ledger(ledger_url, key=key) as ledger:
        stream = stream_of(ledger)
        # A retry returns what is stored, of open and of closed periods; another observation is refused.
        assert [stream.push(step, observed(step)).value for step in range(2 * W + 3)] == values
        for step, word in ((0, "late"), (2 * W, "twice")):
            with pytest.raises(ops.StreamError, match=word):
                stream.push(step, 1.0)
        assert stream_of(ledger, late="stored").push(0, 1.0).value == values[0]
        assert [entry.period for entry in ledger.history("s")] == [0, 1, 2]
        assert ledger.window_price("s", 0, 2) <= 1
        assert ledger.stored("s", 0).values.shape == (W,)
        assert ledger.verify().problems == ()
        # The period cannot be released as a whole beside its steps.
        with pytest.raises(ops.ConflictError):
            ledger.release(MECHANISM, np.full(W, 500.0), stream="s", period=2)


def test_the_same_steps_come_out_with_and_without_a_restart(tmp_path: Path) -> None:
    found = []
    for often in (False, True):
        url = tmp_path / f"{often}.db"
        ledger = ops.Ledger(url, create=True, key=KEY)
        stream = stream_of(ledger)
        values = []
        for step in range(3 * W):
            if often:
                ledger.close()
                ledger = ops.Ledger(url, key=KEY)
                stream = stream_of(ledger)
            values.append(stream.push(step, observed(step)).value)
        ledger.close()
        found.append(values)
    assert found[0] == found[1]


def test_what_cube_noise_keeps_pending_is_kept_and_goes(tmp_path: Path) -> None:
    for key in (None, KEY):
        with ops.Ledger(tmp_path / f"{key is None}.db", create=True, key=key) as ledger:
            stream = stream_of(ledger)
            radii = []
            for step in range(W):
                stream.push(step, observed(step))
                kept = ledger.steps.pending("s")
                radii.append(None if kept is None else kept[1][0])
            if key is None:
                # One radius for each block of three, which goes with the block.
                assert radii[0] == radii[1] is not None
                assert radii[3] == radii[4] is not None
                assert radii[2] is radii[5] is None
            else:
                assert radii == [None] * W


def test_a_crash_before_storing_draws_again_and_charges_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ops.LedgerError("the disk is full")

    for key in (None, KEY):
        with ops.Ledger(tmp_path / f"{key is None}.db", create=True, key=key) as ledger:
            stream = stream_of(ledger)
            for step in range(W + 2):
                if step % 2:
                    with monkeypatch.context() as patch:
                        patch.setattr(StepProtocol, "store", fail)
                        with pytest.raises(ops.LedgerError, match="disk"):
                            stream.push(step, observed(step))
                stream.push(step, observed(step))
            assert [entry.period for entry in ledger.history("s")] == [0, 1]
            assert len(ledger.steps.stored("s", 0)) == W


def test_processes_that_push_the_same_step_get_the_same_value(ledger_url: str) -> None:
    with ops.Ledger(ledger_url, create=True) as ledger:
        stream_of(ledger)
    ledgers = [ops.Ledger(ledger_url) for _ in range(4)]
    streams = [stream_of(ledger) for ledger in ledgers]
    with ThreadPoolExecutor(4) as pool:
        for step in range(2 * W):
            values = list(pool.map(lambda stream, step=step: stream.push(step, observed(step)).value, streams))
            assert len(set(values)) == 1
    for ledger in ledgers:
        assert ledger.verify().problems == ()
        ledger.close()


def test_a_tree_of_whole_numbers_adds_up(tmp_path: Path) -> None:
    made = ops.OptStream(
        ops.Guarantee(epsilon=1, w=4), sample=ops.EqualSampling(k=2), bounds=(0, 99), hierarchy=TREE, integers=True
    )
    with ops.Ledger(tmp_path / "l.db", create=True) as ledger:
        stream = stream_of(ledger, made, missing="hold")
        for release in stream.push_many([1, 3, 9], [{"north": 5.0, "south": 9.0}] * 3):
            assert release.value["all"] == release.value["north"] + release.value["south"]
        assert [entry.period for entry in ledger.history("s")] == [0, 2]


def test_the_policy_is_checked_before_anything_is_drawn(tmp_path: Path) -> None:
    with ops.Ledger(tmp_path / "l.db", create=True) as ledger:
        stream = stream_of(ledger)
        stream.push(0, 1.0)
        ledger.set_policy("s", ops.Guarantee(epsilon=0.5, w=W))
        with pytest.raises(ops.BudgetError):
            stream.push(1, 1.0)
        assert len(ledger.steps.stored("s", 0)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", MECHANISMS)
def test_nothing_is_lost_or_drawn_twice_when_processes_are_killed(ledger_url: str, tmp_path: Path, name: str) -> None:
    journal = tmp_path / "journal"
    subprocess.run(
        [
            sys.executable,
            Path(__file__).parents[1] / "support" / "step_killing.py",
            ledger_url,
            str(KILLS),
            journal,
            name,
        ],
        check=True,
        timeout=1200,
    )
    given: dict[int, set[str]] = defaultdict(set)
    for line in journal.read_text().splitlines():
        number, shown = line.split()
        given[int(number)].add(shown)
    # On a busy machine a process is killed before it has done much.
    assert len(given) > KILLS // 4, "too little was released for the test to say anything"
    assert {step: values for step, values in given.items() if len(values) > 1} == {}
    with ops.Ledger(ledger_url) as ledger:
        assert ledger.verify().problems == ()
        stream = ops.Stream(MECHANISMS[name], ledger=ledger, name="pushed", emit="step")
        for step, (value,) in given.items():
            assert json.loads(value) == stream.push(step, observed(step)).value


def test_a_period_is_finished_with_the_plan_that_it_was_begun_with(ledger_url: str) -> None:
    lines = ops.OptStream(ops.Guarantee(epsilon=1, w=4), sample=ops.EqualSampling(2), bounds=(0, 100))
    estimate = lines.changed(reconstruct=ops.Estimate(season=1))
    with ops.Ledger(ledger_url, create=True) as ledger:
        for one, other, name in [(lines, estimate, "a"), (estimate, lines, "b")]:
            ops.Stream(one, ledger=ledger, name=name, emit="step", missing="hold").push(0, 1.0)
            released = ops.Stream(other, ledger=ledger, name=name, emit="step", missing="hold").push_many([4], [1.0])
            assert [release.step for release in released] == [1, 2, 3, 4]
            assert ledger.history(name)[0].plan != ledger.history(name)[1].plan
        assert ledger.verify().problems == ()


def test_what_another_process_stores_while_a_stream_is_taken_up_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
        first = stream_of(ledger)
        first.push(0, 1.0)
        kept, others = ops.Ledger.kept, [1, 2, 3]

        def meanwhile(*arguments: Any) -> Any:
            found = kept(*arguments)
            if others:
                with monkeypatch.context() as inside:
                    inside.setattr(ops.Ledger, "kept", kept)
                    first.push(others.pop(0), 1.0)
            return found

        monkeypatch.setattr(ops.Ledger, "kept", meanwhile)
        second = stream_of(ledger)
        assert not others
        assert second.push(4, 1.0).step == 4
        assert ledger.verify().problems == ()


@pytest.mark.parametrize("key", [None, KEY], ids=["fresh", "keyed"])
@pytest.mark.parametrize("name", BASELINES)
def test_whatever_goes_step_by_step_goes_through_the_ledger(tmp_path: Path, name: str, key: Any) -> None:
    mechanism, url, values = BASELINES[name], tmp_path / "l.db", []
    for step in range(3 * W + 2):
        # Every step in a new process, as far as the ledger can tell.
        with ops.Ledger(url, create=True, key=key) as ledger:
            values.append(stream_of(ledger, mechanism).push(step, observed(step)).value)
    with ops.Ledger(url, key=key) as ledger:
        stream = stream_of(ledger, mechanism)
        assert [stream.push(step, observed(step)).value for step in range(3 * W + 2)] == values
        assert [entry.period for entry in ledger.history("s")] == [0, 1, 2, 3]
        assert ledger.window_price("s", 0, 3) <= 1
        assert np.array_equal(np.ravel(ledger.stored("s", 1).values), values[W : 2 * W]) or name == "laplace"
        assert ledger.verify().problems == ()
        # Another mechanism must not go on right behind: it does not know what the windows have spent.
        with pytest.raises((ops.BudgetError, ops.ConflictError)):
            ledger.release(MECHANISM, np.full(W, 500.0), stream="s", period=3)


class Recorded:
    """What every step of a stream has cost, by the mechanism itself."""

    def __init__(self, mechanism: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.costs: list[Any] = []
        take = type(mechanism).taken

        def taken(own: Any, steps: Any, units: int) -> float:
            value = take(own, steps, units)
            self.costs.append(steps.cost)
            return float(value)

        monkeypatch.setattr(type(mechanism), "taken", taken)


@pytest.mark.parametrize("name", [name for name in BASELINES if name != "laplace"])
def test_a_ledger_charges_what_the_steps_have_cost(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism = BASELINES[name]
    recorded = Recorded(mechanism, monkeypatch)
    with ops.Ledger(tmp_path / "l.db", create=True) as ledger:
        stream = stream_of(ledger, mechanism)
        for step in range(4 * W):
            stream.push(step, 1000.0 * (step % 7 < 3))
            # At every moment no window costs more than it may, and the open one at least what it has cost.
            assert worst_window([StepCosts(0, tuple(recorded.costs))], W) <= ledger.window_price("s", 0, step // W) <= 1
        assert ledger.window_price("s", 0, 3) == worst_window([StepCosts(0, tuple(recorded.costs))], W)
        for period, entry in enumerate(ledger.history("s")):
            own = tuple(recorded.costs[period * W : period * W + W])
            assert entry.epsilon == worst_window([StepCosts(0, own)], W)


def test_a_pool_holds_what_the_steps_have_cost(tmp_path: Path) -> None:
    with ops.Ledger(tmp_path / "l.db", create=True) as ledger:
        ledger.create_pool("people", ops.Guarantee(epsilon=2, w=W))
        for name in ("a", "b"):
            ledger.create_stream(name, GUARANTEE, pool="people")
            stream = ops.Stream(ADAPTIVE, ledger=ledger, name=name)
            stream.push_many(range(2 * W + 1), [500.0] * (2 * W + 1))
        assert ledger.verify().problems == ()
        left = {window.first: window.epsilon for window in ledger.pool_remaining("people").windows}
        assert min(left.values()) >= 0
        own = sum(ledger.window_price(name, 0, 0) for name in ("a", "b"))
        assert ledger.pool("people").policy.epsilon - ledger.remaining("a").pool.epsilon <= 2  # type: ignore[union-attr]
        assert own <= 2


@pytest.mark.parametrize("name", ["distribution", "pegasus", "rescue"])
def test_processes_that_push_the_same_step_of_a_baseline_get_the_same_value(ledger_url: str, name: str) -> None:
    mechanism = BASELINES[name]
    with ops.Ledger(ledger_url, create=True) as ledger:
        stream_of(ledger, mechanism)
    ledgers = [ops.Ledger(ledger_url) for _ in range(3)]
    streams = [stream_of(ledger, mechanism) for ledger in ledgers]
    with ThreadPoolExecutor(3) as pool:
        for step in range(2 * W):
            values = list(pool.map(lambda stream, step=step: stream.push(step, observed(step)).value, streams))
            assert len(set(values)) == 1
    for ledger in ledgers:
        assert ledger.verify().problems == ()
        ledger.close()


@pytest.mark.parametrize("key", [None, KEY], ids=["fresh", "keyed"])
def test_a_failed_draw_of_a_baseline_is_never_drawn_again(
    tmp_path: Path, key: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ops.Ledger(tmp_path / "l.db", create=True, key=key) as ledger:
        stream = stream_of(ledger, ADAPTIVE)
        stream.push_many(range(W + 2), [500.0] * (W + 2))
        with monkeypatch.context() as patch:
            patch.setattr(type(ADAPTIVE), "taken", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                stream.push(W + 2, 500.0)
        with pytest.raises((ops.StreamError, ops.ConflictError)):
            stream.push(W + 2, 500.0)
        # The void period stays charged with all that it might have cost, so the next one has no budget.
        with pytest.raises(ops.BudgetError):
            stream_of(ledger, ADAPTIVE).push(2 * W, 500.0)
        assert stream_of(ledger, ADAPTIVE, missing=0.0).push(3 * W, 500.0).step == 3 * W
        assert ledger.verify().problems == ()


def test_a_crash_before_storing_a_step_of_a_baseline_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ops.LedgerError("the disk is full")

    recorded = Recorded(ADAPTIVE, monkeypatch)
    with ops.Ledger(tmp_path / "l.db", create=True) as ledger:
        stream, kept = stream_of(ledger, ADAPTIVE), []
        for step in range(2 * W):
            if step % 2:
                with monkeypatch.context() as patch:
                    patch.setattr(StepProtocol, "store", fail)
                    with pytest.raises(ops.LedgerError, match="disk"):
                        stream.push(step, observed(step))
            stream.push(step, observed(step))
            # The draw that was lost has not left, and is charged once.
            kept.append(recorded.costs[-1])
        assert ledger.window_price("s", 0, 1) == worst_window([StepCosts(0, tuple(kept))], W)
        assert ledger.verify().problems == ()


def test_altered_knowledge_of_a_baseline_is_refused(tmp_path: Path) -> None:
    with ops.Ledger(tmp_path / "l.db", create=True) as ledger:
        stream_of(ledger, ADAPTIVE).push(0, 500.0)
        with ledger._database.transaction() as change:
            change.write("UPDATE optstream_pending SET radii = ?", (b"{}",))
        with pytest.raises(ops.LedgerError, match="what is pending of 's' was altered"):
            stream_of(ledger, ADAPTIVE)
