"""Steps in a ledger: charged before they are drawn, stored before they leave, never drawn twice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from step_killing import MECHANISM, W, observed

import optstream as ops
from optstream.ledger.steps import StepProtocol

KILLS = 60
TREE = ops.Hierarchy.nested({"all": ["north", "south"]})
KEY = ops.CuratorKey(bytes(range(32)))


def stream_of(ledger: ops.Ledger, mechanism: ops.OptStream = MECHANISM, **rules: Any) -> ops.Stream:
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
def test_nothing_is_lost_or_drawn_twice_when_processes_are_killed(ledger_url: str, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    subprocess.run(
        [sys.executable, Path(__file__).parents[1] / "support" / "step_killing.py", ledger_url, str(KILLS), journal],
        check=True,
        timeout=300,
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
        stream = ops.Stream(MECHANISM, ledger=ledger, name="pushed", emit="step")
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
