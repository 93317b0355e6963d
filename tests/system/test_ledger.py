"""The ledger: nothing released twice, nothing overspent, nothing lost, on files and on PostgreSQL."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings

import optstream as ops
from optstream.privacy.accounting import Cost, moved, window_costs, worst_window

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

W = 4
GUARANTEE = ops.Guarantee(epsilon=1, w=W)
X = np.array([10.0, 20.0, 30.0, 40.0])
SECRET = bytes(range(32))


def mechanism(epsilon: Fraction | int = 1, k: int = W, **changes: Any) -> ops.OptStream:
    return ops.OptStream(ops.Guarantee(epsilon=epsilon, w=W), sample=ops.EqualSampling(k=k), bounds=(0, 100), **changes)


class TestReleases:
    def test_a_period_is_released_once(self, ledger_url: str) -> None:
        with ops.Ledger(ledger_url, create=True) as ledger:
            first = ledger.release(mechanism(), X, stream="a", period=3)
            again = ledger.release(mechanism(), X, stream="a", period=3)
        with ops.Ledger(ledger_url, create=True) as ledger:
            later = ledger.release(mechanism(), X, stream="a", period=3)
            assert len(ledger.history("a")) == 1
            assert ledger.verify().problems == ()
        assert first.values.tolist() == again.values.tolist() == later.values.tolist()
        assert first.interval(0.9)[0].tolist() == later.interval(0.9)[0].tolist()
        assert later.statement == first.statement

    def test_many_periods_are_those_of_single_calls(self, ledger_url: str) -> None:
        days = np.tile(X, 600) + np.repeat(np.arange(600.0) % 7, W)
        with ops.Ledger(ledger_url, create=True) as ledger:
            single = ledger.release(mechanism(), days[4 * W : 5 * W], stream="a", period=4)
            whole = ledger.release(mechanism(), days, stream="a")
            assert whole.values[4 * W : 5 * W].tolist() == single.values.tolist()
            assert ledger.release(mechanism(), days, stream="a").values.tolist() == whole.values.tolist()
            assert ledger.verify() == ops.ledger.Verification(streams=1, charges=600, releases=600, problems=())

    @pytest.mark.parametrize("features", [[], [ops.Feature.cuts(W, 2), ops.Feature.total(W)]])
    def test_features_and_adaptive_samples_come_back(self, tmp_path: Path, features: list[ops.Feature]) -> None:
        made = ops.OptStream(GUARANTEE, sample=ops.L1Sampling(k=3, threshold=5.0), bounds=(0, 100), features=features)
        with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
            first, again = (ledger.release(made, X, stream="a") for _ in range(2))
        assert first.values.tolist() == again.values.tolist()
        assert [cells.tolist() for cells in first.features] == [cells.tolist() for cells in again.features]
        assert first.interval(0.5)[1].tolist() == again.interval(0.5)[1].tolist()

    def test_a_hierarchy_comes_back(self, ledger_url: str) -> None:
        tree = ops.Hierarchy.nested({"all": ["n", "s"]})
        made = mechanism(hierarchy=tree, features=[ops.Feature.total(W)])
        leaves = {"n": np.tile(X, 2), "s": np.tile(2 * X, 2)}
        with ops.Ledger(ledger_url, key=ops.CuratorKey(SECRET), create=True) as ledger:
            first, again = (ledger.release(made, leaves, stream="a") for _ in range(2))
        assert {name: column.tolist() for name, column in first.values.items()} == {
            name: column.tolist() for name, column in again.values.items()
        }
        assert (first.values["all"] == first.values["n"] + first.values["s"]).all()
        assert first.features[0].tolist() == again.features[0].tolist()

    def test_bad_data_costs_nothing(self, ledger_url: str) -> None:
        with ops.Ledger(ledger_url, create=True) as ledger:
            for x in (np.array([1.0, np.nan, 3.0, 4.0]), X[:3], np.array([])):
                with pytest.raises(ops.DataError):
                    ledger.release(mechanism(), x, stream="a")
            for period in (-1, 2**40, 1.5, True):
                with pytest.raises((ops.ParameterError, ops.ParameterTypeError)):
                    ledger.release(mechanism(), X, stream="a", period=period)  # type: ignore[arg-type]
            for stream in ("", "x" * 201, "a\nb", 7):
                with pytest.raises((ops.ParameterError, ops.ParameterTypeError)):
                    ledger.release(mechanism(), X, stream=stream)  # type: ignore[arg-type]
            assert ledger.streams == ()

    def test_other_data_or_another_plan_is_refused(self, ledger_url: str) -> None:
        with ops.Ledger(ledger_url, create=True) as ledger:
            stored = ledger.release(mechanism(), X, stream="a", period=1).values
            with pytest.raises(ops.ConflictError, match="period 1 of 'a' was released from other data"):
                ledger.release(mechanism(), X + 1, stream="a", period=1)
            with pytest.raises(ops.ConflictError, match="released with another plan"):
                ledger.release(mechanism(k=2), X, stream="a", period=1)
            # A call for several periods, one of which conflicts, charges none of them.
            with pytest.raises(ops.ConflictError):
                ledger.release(mechanism(), np.tile(X + 1, 3), stream="a", period=0)
            assert [entry.period for entry in ledger.history("a")] == [1]
            assert ledger.stored("a", 1).values.tolist() == stored.tolist()
            assert ledger.stored("a", 0) is None

    def test_values_within_one_grid_step_are_the_same_data(self, tmp_path: Path) -> None:
        with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
            first = ledger.release(mechanism(), X, stream="a")
            assert ledger.release(mechanism(), X + 1e-9, stream="a").values.tolist() == first.values.tolist()


class TestBudget:
    def test_the_default_policy_is_the_guarantee(self, ledger_url: str) -> None:
        with ops.Ledger(ledger_url, create=True) as ledger:
            ledger.release(mechanism(), X, stream="a")
            assert ledger.policy("a") == GUARANTEE
            with pytest.raises(ops.BudgetError, match="would make a window cost 2, but its policy allows 1"):
                ledger.release(mechanism(2), X, stream="a", period=5)
            assert [entry.period for entry in ledger.history("a")] == [0]

    def test_printed_scales_need_a_policy_that_allows_them(self, tmp_path: Path) -> None:
        printed = mechanism(features=[ops.Feature.total(W)], calibration="paper")
        with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
            with pytest.raises(ops.BudgetError):
                ledger.release(printed, X, stream="a")
            ledger.set_policy("a", ops.Guarantee(epsilon=printed.statement.epsilon, w=W))
            ledger.release(printed, X, stream="a")

    def test_policies_change(self, ledger_url: str) -> None:
        with ops.Ledger(ledger_url, create=True) as ledger, ops.Ledger(ledger_url) as other:
            other.release(mechanism(), X, stream="a", period=0, create=True)
            ledger.set_policy("a", ops.Guarantee(epsilon=2, w=W))
            # Another process that has seen the old policy learns of the new one.
            other.release(mechanism(2), X, stream="a", period=2)
            ledger.set_policy("a", ops.Guarantee(epsilon=Fraction(1, 2), w=W))
            with pytest.raises(ops.BudgetError):
                other.release(mechanism(), X, stream="a", period=4)
            assert ledger.remaining("a").epsilon == Fraction(-3, 2)
            other.release(mechanism(Fraction(1, 2)), X, stream="a", period=5)
            for wrong in (ops.Guarantee(epsilon=1, w=8), ops.Guarantee(epsilon=1, w=W, alpha=2)):
                with pytest.raises(ops.ParameterError, match="with which 'a' was made"):
                    ledger.set_policy("a", wrong)
            with pytest.raises(ops.ParameterTypeError):
                ledger.set_policy("a", 1)  # type: ignore[arg-type]

    def test_a_mechanism_for_another_window_is_refused(self, ledger_url: str) -> None:
        with ops.Ledger(ledger_url, create=True) as ledger:
            ledger.set_policy("a", ops.Guarantee(epsilon=1, w=8))
            with pytest.raises(ops.ParameterError, match="mechanism has w = 4 and alpha = 1, but the policy of 'a'"):
                ledger.release(mechanism(), X, stream="a")

    def test_unknown_streams_are_named(self, ledger_url: str) -> None:
        with ops.Ledger(ledger_url, create=True) as ledger:
            for call in (ledger.policy, ledger.remaining, ledger.history):
                with pytest.raises(ops.UnknownStreamError, match="stream 'b' is not in the ledger"):
                    call("b")

    plans = st.sampled_from(
        [
            mechanism(Fraction(1, 2)),
            mechanism(1, 2),
            mechanism(1),
            mechanism(Fraction(3, 2), 3),
            ops.OptStream(GUARANTEE, sample=ops.L1Sampling(k=3, threshold=5.0), bounds=(0, 100)),
        ]
    )

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        requests=st.lists(st.tuples(st.integers(0, 8), plans), max_size=14),
        epsilon=st.sampled_from([Fraction(1), Fraction(5, 4), Fraction(2)]),
        neighbours=st.sampled_from(["sliding", "aligned"]),
    )
    def test_exactly_what_fits_is_granted(
        self, tmp_path_factory: pytest.TempPathFactory, requests: Any, epsilon: Fraction, neighbours: Any
    ) -> None:
        """Any order of any plans: granted if and only if every window stays within the policy, by brute force."""
        charged: dict[int, tuple[Cost, ...]] = {}
        policy = ops.Guarantee(epsilon=epsilon, w=W, neighbours=neighbours)

        def worst(costs: dict[int, tuple[Cost, ...]]) -> Fraction:
            if neighbours == "aligned":
                return max((worst_window(cost, W) for cost in costs.values()), default=Fraction(0))
            return worst_window([moved(cost, p * W) for p, period in costs.items() for cost in period], W)

        with ops.Ledger(tmp_path_factory.mktemp("ledger") / "ledger.db", create=True) as ledger:
            ledger.set_policy("a", policy)
            for period, asked in requests:
                if period in charged:
                    continue
                made = asked.changed(guarantee=replace(asked.guarantee, neighbours=neighbours))
                fits = worst({**charged, period: made.costs}) <= epsilon
                try:
                    ledger.release(made, X, stream="a", period=period)
                except ops.BudgetError:
                    assert not fits
                else:
                    assert fits
                    charged[period] = made.costs
            remaining = ledger.remaining("a")
            assert remaining.epsilon == epsilon - worst(charged)
            if neighbours == "sliding":
                first, windows = window_costs([moved(c, p * W) for p, cs in charged.items() for c in cs], W)
                told = {
                    step: window.epsilon
                    for window in remaining.windows
                    for step in range(window.first, window.last + 1)
                }
                brute = {step: epsilon - cost for step, cost in enumerate(windows, first)}
                assert all(told.get(step, epsilon) == left for step, left in brute.items())
            assert ledger.verify().problems == ()


class TestNoise:
    def test_with_a_key_the_same_release_comes_out_anywhere(self, tmp_path: Path, postgres_url: str) -> None:
        released = []
        for url in (tmp_path / "one.db", tmp_path / "two.db", postgres_url):
            with ops.Ledger(url, key=ops.CuratorKey(SECRET), create=True) as ledger:
                released.append(ledger.release(mechanism(), np.tile(X, 3), stream="a", period=7).values)
        assert released[0].tolist() == released[1].tolist() == released[2].tolist()
        # The same values on other days carry other noise.
        assert len({tuple(row) for row in released[0].reshape(3, W).tolist()}) == 3

    def test_anything_else_that_differs_changes_all_noise(self, tmp_path: Path) -> None:
        def noise(name: str, x: Any = X, secret: bytes = SECRET, made: Any = None, **where: Any) -> tuple[float, ...]:
            with ops.Ledger(tmp_path / name, key=ops.CuratorKey(secret), create=True) as ledger:
                place = {"stream": "a", "period": 0, **where}
                return tuple(ledger.release(made or mechanism(), x, **place).values - x)

        cases = [
            noise("0"),
            noise("1", X + np.array([0, 0, 0, 1 / 1024])),
            noise("2", secret=SECRET[::-1]),
            noise("3", stream="b"),
            noise("4", period=1),
            noise("5", made=ops.OptStream(GUARANTEE, sample=ops.EqualSampling(k=W), bounds=(0, 101))),
        ]
        for position in range(W):
            assert len({case[position] for case in cases}) == len(cases)

    def test_without_a_key_noise_is_fresh(self, tmp_path: Path) -> None:
        released = []
        for name in ("one.db", "two.db"):
            with ops.Ledger(tmp_path / name, create=True) as ledger:
                released.append(ledger.release(mechanism(), X, stream="a").values.tolist())
        assert released[0] != released[1]

    def test_a_stream_keeps_its_key(self, ledger_url: str) -> None:
        with ops.Ledger(ledger_url, key=ops.CuratorKey(SECRET), create=True) as ledger:
            ledger.release(mechanism(), X, stream="a")
        with ops.Ledger(ledger_url, create=True) as ledger:
            ledger.release(mechanism(), X, stream="b")
            with pytest.raises(ops.ParameterError, match="'a' was begun with a key, but now comes without a key"):
                ledger.release(mechanism(), X, stream="a", period=1)
        with ops.Ledger(ledger_url, key=ops.CuratorKey(SECRET[::-1]), create=True) as ledger:
            with pytest.raises(ops.ParameterError, match="'a' was begun with a key, but now comes with another key"):
                ledger.release(mechanism(), X, stream="a", period=1)
            with pytest.raises(ops.ParameterError, match="'b' was begun without a key, but now comes with a key"):
                ledger.release(mechanism(), X, stream="b", period=1)

    def test_neither_key_nor_data_is_in_the_ledger(self, tmp_path: Path) -> None:
        x = np.array([12.3456, 23.4567, 34.5678, 45.6789])
        with ops.Ledger(tmp_path / "ledger.db", key=ops.CuratorKey(SECRET), create=True) as ledger:
            ledger.release(mechanism(), x, stream="a")
            exported = io.StringIO()
            ledger.export(exported)
            content = b"".join(path.read_bytes() for path in tmp_path.iterdir()) + exported.getvalue().encode()
        assert b"optstream_entries" in content
        for secret in (SECRET, SECRET.hex().encode(), *(value.tobytes() for value in x), b"12.3456"):
            assert secret not in content


class _Failing(ops.OptStream):
    """A mechanism whose post-processing fails."""

    def draw(self, units: Any, retry: Any = None) -> Any:  # noqa: ARG002
        raise ops.SolverError("no solution")


class TestFailures:
    def failing(self) -> ops.OptStream:
        return _Failing(GUARANTEE, sample=ops.EqualSampling(k=W), bounds=(0, 100))

    def test_a_failed_draw_is_not_drawn_again(self, ledger_url: str) -> None:
        with ops.Ledger(ledger_url, create=True) as ledger:
            with pytest.raises(ops.SolverError):
                ledger.release(self.failing(), X, stream="a")
            with pytest.raises(ops.ConflictError, match="period 0 of 'a' is void and will not be released: not solved"):
                ledger.release(mechanism(), X, stream="a")
            (entry,) = ledger.history("a")
            assert entry.released is None
            assert entry.void == "not solved: no solution"
            # The budget is spent: the next period finds it so.
            assert ledger.remaining("a").epsilon == 0
            assert ledger.verify().problems == ()

    def test_with_a_key_the_same_draw_may_be_tried_again(self, ledger_url: str) -> None:
        with ops.Ledger(ledger_url, key=ops.CuratorKey(SECRET), create=True) as ledger:
            with pytest.raises(ops.SolverError):
                ledger.release(self.failing(), X, stream="a")
            ledger.release(mechanism(), X, stream="a")
            assert len(ledger.history("a")) == 1

    def test_after_a_crash_the_charge_is_there_and_is_not_written_twice(self, ledger_url: str) -> None:
        _die_in_draw(ledger_url)
        with ops.Ledger(ledger_url, create=True) as ledger:
            (charged,) = ledger.history("a")
            assert charged.released is None
            assert ledger.remaining("a").epsilon == 0
            ledger.release(mechanism(), X, stream="a")
            (released,) = ledger.history("a")
            assert released.charged == charged.charged
            assert released.released is not None

    def test_after_a_crash_corrected_data_may_be_released(self, ledger_url: str) -> None:
        """Nothing has left for the first data, so the charge is for what does leave."""
        _die_in_draw(ledger_url)
        with ops.Ledger(ledger_url, create=True) as ledger:
            values = ledger.release(mechanism(Fraction(1, 2)), X + 5, stream="a").values
            assert ledger.remaining("a").epsilon == Fraction(1, 2)
            assert len(ledger.history("a")) == 1
            assert ledger.release(mechanism(Fraction(1, 2)), X + 5, stream="a").values.tolist() == values.tolist()
            with pytest.raises(ops.ConflictError):
                ledger.release(mechanism(), X, stream="a")
            assert ledger.verify().problems == ()

    def test_a_full_disk_loses_nothing(self, small_disk: Callable[[str], Path]) -> None:
        folder = small_disk("size=2m")
        with ops.Ledger(folder / "ledger.db", create=True) as ledger:
            released: dict[int, list[float]] = {}
            filler = folder / "filler"
            with pytest.raises(ops.LedgerError, match="full"):  # noqa: PT012
                for period in range(10_000):
                    released[period] = ledger.release(mechanism(), X, stream="a", period=period).values.tolist()
                    if period == 5:
                        filler.write_bytes(bytes(shutil.disk_usage(folder).free - 100_000))
            assert len(released) > 5
            filler.unlink()
            for period, values in released.items():
                assert ledger.release(mechanism(), X, stream="a", period=period).values.tolist() == values
            ledger.release(mechanism(), X, stream="a", period=len(released))
            assert ledger.verify().problems == ()

    def test_a_ledger_that_cannot_be_written_says_so(self, small_disk: Callable[[str], Path]) -> None:
        folder = small_disk("size=4m")
        with ops.Ledger(folder / "ledger.db", create=True) as ledger:
            values = ledger.release(mechanism(), X, stream="a").values.tolist()
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        with (
            pytest.raises(ops.LedgerError, match=r"ledger\.db"),
            ops.Ledger(folder / "ledger.db", create=True) as ledger,
        ):
            ledger.release(mechanism(), X, stream="a", period=1)
        subprocess.run(["mount", "-o", "remount,rw", folder], check=True)
        with ops.Ledger(folder / "ledger.db", create=True) as ledger:
            assert ledger.release(mechanism(), X, stream="a").values.tolist() == values
            assert len(ledger.history("a")) == 1

    def test_a_place_where_no_file_can_be_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ops.LedgerError, match="cannot be made: No such file"):
            ops.Ledger(tmp_path / "nowhere" / "ledger.db", create=True)
        with pytest.raises(ops.LedgerError, match="does not exist"):
            ops.Ledger(tmp_path / "ledger.db", create=False)
        with pytest.raises(ops.LedgerError, match="connection"):
            ops.Ledger("postgresql://someone:password@127.0.0.1:1/nothing", timeout=2)

    def test_no_message_shows_a_password(self) -> None:
        with pytest.raises(ops.LedgerError) as caught:
            ops.Ledger("postgresql://someone:hunter2@127.0.0.1:1/nothing", timeout=2)
        assert "hunter2" not in f"{caught.value!r} {caught.value.__cause__!r}"

    def test_a_closed_ledger_says_so(self, ledger_url: str) -> None:
        ledger = ops.Ledger(ledger_url, create=True)
        ledger.close()
        with pytest.raises(ops.LedgerError, match="is closed"):
            ledger.release(mechanism(), X, stream="a")

    def test_a_lost_connection_is_replaced(self, postgres_url: str) -> None:
        with ops.Ledger(postgres_url, create=True) as ledger:
            first = ledger.release(mechanism(), X, stream="a").values.tolist()
            with psycopg.connect(postgres_url, autocommit=True) as server:
                server.execute(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                    " WHERE pid <> pg_backend_pid() AND datname = current_database()"
                )
            ledger.release(mechanism(), X, stream="a", period=1)
            assert ledger.release(mechanism(), X, stream="a").values.tolist() == first


def _die_in_draw(url: str) -> None:
    """Charge period 0 of stream a in a process that ends before it has drawn."""
    program = (
        "import os, sys, optstream as ops\n"
        "made = ops.OptStream(ops.Guarantee(epsilon=1, w=4), sample=ops.EqualSampling(k=4), bounds=(0, 100))\n"
        "ops.OptStream.draw = lambda *_: os._exit(9)\n"
        "ops.Ledger(sys.argv[1], create=True).release(made, [10.0, 20.0, 30.0, 40.0], stream='a')\n"
    )
    assert subprocess.run([sys.executable, "-c", program, url], check=False).returncode == 9


class TestFiles:
    def filled(self, path: Path, periods: int = 40) -> list[list[float]]:
        with ops.Ledger(path, create=True) as ledger:
            return [
                ledger.release(mechanism(), X + period, stream="a", period=period).values.tolist()
                for period in range(periods)
            ]

    def test_what_is_not_a_ledger_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "other"
        path.write_bytes(b"period,value\n1,2\n" * 1000)
        path.chmod(0o600)
        before = path.read_bytes()
        with pytest.raises(ops.LedgerError, match="not a database"):
            ops.Ledger(path, create=True)
        assert path.read_bytes() == before
        with sqlite3.connect(tmp_path / "app.db") as other:
            other.execute("CREATE TABLE customers (name TEXT)")
        other.close()
        (tmp_path / "app.db").chmod(0o600)
        with pytest.raises(ops.LedgerError, match="other tables, but must be a ledger"):
            ops.Ledger(tmp_path / "app.db", create=True)
        with pytest.raises(ops.LedgerError):
            ops.Ledger(tmp_path, create=True)

    def test_damage_is_never_taken_for_room(self, tmp_path: Path) -> None:
        """Whatever bytes of the file change, a released period is returned as it was or refused, never drawn again."""
        released = self.filled(tmp_path / "ledger.db")
        whole = (tmp_path / "ledger.db").read_bytes()
        generator, refused = random.Random(5), 0
        for trial in range(150):
            damaged = bytearray(whole)
            for _ in range(generator.choice([1, 1, 16, 512])):
                damaged[generator.randrange(len(whole))] ^= generator.randrange(1, 256)
            path = tmp_path / f"damaged{trial}.db"
            path.write_bytes(damaged if generator.random() < 0.9 else damaged[: generator.randrange(len(whole))])
            path.chmod(0o600)
            period = generator.randrange(len(released))
            try:
                with ops.Ledger(path, create=False) as ledger:
                    values = ledger.release(mechanism(), X + period, stream="a", period=period).values.tolist()
            except (ops.LedgerError, ops.ParameterError, ops.DataError):
                refused += 1
            else:
                assert values == released[period]
        assert refused > 20

    def test_altered_rows_are_found(self, tmp_path: Path) -> None:
        statements = {
            "entry 6 of 'a' was altered": "UPDATE optstream_entries SET period = 3000 WHERE number = 6",
            "entry 9 of 'a' was altered": (
                "UPDATE optstream_entries SET content = zeroblob(length(content)) WHERE number = 9"
            ),
            "was altered": "UPDATE optstream_plans SET costs = '[]'",
            "plan": "UPDATE optstream_plans SET description = replace(description, '100', '101')",
            "entry 1 of 'a' was altered": (
                "UPDATE optstream_entries SET content = replace(content, '1', '2') WHERE number = 1"
            ),
            "entry 4 of 'a' is missing": "DELETE FROM optstream_entries WHERE number IN (4, 5)",
        }
        for number, (problem, statement) in enumerate(statements.items()):
            path = tmp_path / f"{number}.db"
            self.filled(path, 5)
            with sqlite3.connect(path) as file:
                file.execute("PRAGMA foreign_keys = OFF")
                file.execute(statement)
            file.close()
            with ops.Ledger(path, create=True) as ledger:
                found = ledger.verify().problems
                assert any(problem in text for text in found), (problem, found)

    def test_a_later_version_is_refused(self, tmp_path: Path) -> None:
        self.filled(tmp_path / "ledger.db", 1)
        with sqlite3.connect(tmp_path / "ledger.db") as file:
            file.execute("UPDATE optstream_ledger SET version = 99")
        file.close()
        with pytest.raises(ops.LedgerError, match="has version 99, but must have 1"):
            ops.Ledger(tmp_path / "ledger.db", create=True)

    def test_a_new_ledger_is_its_owners_alone(self, tmp_path: Path) -> None:
        self.filled(tmp_path / "ledger.db", 1)
        with ops.Ledger(tmp_path / "ledger.db", create=True):
            assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}

    def test_export_is_complete(self, ledger_url: str) -> None:
        with ops.Ledger(ledger_url, create=True) as ledger:
            released = ledger.release(mechanism(), np.tile(X, 3), stream="a").values
            target = io.StringIO()
            assert ledger.export(target) == 5
        lines = [json.loads(line) for line in target.getvalue().splitlines()]
        assert lines[0]["statement"]["epsilon_true"] == "1"
        relation = {"delta": "0", "neighbours": "sliding", "entities": "settled", "entity": "entity"}
        assert lines[1] == {"stream": "a", "epsilon": "1", "w": W, "alpha": 1.0, **relation}
        assert np.concatenate([line["values"][0] for line in lines[2:]]).tolist() == released.tolist()
        assert all(line["plan"] == lines[0]["plan"] and line["epsilon"] == "1" for line in lines[2:])


class TestConcurrency:
    def test_threads_share_a_ledger(self, ledger_url: str) -> None:
        released: dict[int, set[tuple[float, ...]]] = {period: set() for period in range(20)}
        errors: list[BaseException] = []
        with ops.Ledger(ledger_url, create=True) as ledger:

            def work(seed: int) -> None:
                order = random.Random(seed).sample(range(20), 20)
                try:
                    for period in order:
                        values = ledger.release(mechanism(), X + period, stream="a", period=period).values
                        released[period].add(tuple(values.tolist()))
                except BaseException as error:  # noqa: BLE001
                    errors.append(error)

            threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not errors
            assert all(len(values) == 1 for values in released.values())
            assert ledger.verify() == ops.ledger.Verification(streams=1, charges=20, releases=20, problems=())

    def test_a_fork_has_connections_of_its_own(self, ledger_url: str) -> None:
        with ops.Ledger(ledger_url, create=True) as ledger:
            ledger.release(mechanism(), X, stream="a")
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    ledger.release(mechanism(), X, stream="a", period=1)
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            ledger.release(mechanism(), X, stream="a", period=2)
            assert [entry.period for entry in ledger.history("a")] == [0, 1, 2]

    def test_eight_processes_race_for_one_period(self, ledger_url: str) -> None:
        with _processes().Pool(8) as pool:
            for period in range(5):
                released = pool.starmap(_race, [(ledger_url, period)] * 8)
                assert len(set(released)) == 1
        with ops.Ledger(ledger_url, create=True) as ledger:
            assert ledger.verify() == ops.ledger.Verification(streams=1, charges=5, releases=5, problems=())

    def test_processes_that_race_for_the_budget_never_overspend(self, ledger_url: str) -> None:
        """Adjacent periods with plans of which not all fit together: read-then-write would grant too many."""
        with _processes().Pool(8) as pool:
            granted = [
                sum(part) for part in zip(*pool.starmap(_spend, [(ledger_url, s) for s in range(8)]), strict=True)
            ]
        assert granted[0] > 10
        assert granted[1] > 10
        with ops.Ledger(ledger_url, create=True) as ledger:
            assert ledger.verify().problems == ()
            assert ledger.remaining("a").epsilon >= 0
            assert len(ledger.history("a")) == granted[0]


def _processes() -> Any:
    """Return a way to start processes that have not inherited anything and need not import everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["optstream"])
    return context


PATIENCE = 300.0
"""Seconds that processes wait for each other on a busy machine."""


def _race(url: str, period: int) -> tuple[float, ...]:
    with ops.Ledger(url, create=True, timeout=PATIENCE) as ledger:
        return tuple(ledger.release(mechanism(), X, stream="a", period=period).values.tolist())


def _spend(url: str, seed: int) -> tuple[int, int]:
    """Try to release random periods with plans that cost up to the whole policy; count granted and refused."""
    generator, granted, refused = random.Random(seed), set[int](), 0
    plans = [mechanism(Fraction(3, 4)), mechanism(1, 2), mechanism(1, 3), mechanism(1)]
    with ops.Ledger(url, create=True, timeout=PATIENCE) as ledger:
        ledger.set_policy("a", GUARANTEE)
        for _ in range(40):
            period = generator.randrange(60)
            try:
                ledger.release(plans[generator.randrange(4)], X + seed, stream="a", period=period)
                granted.add(period)
            except ops.ConflictError:
                pass
            except ops.BudgetError:
                refused += 1
    return len(granted), refused
