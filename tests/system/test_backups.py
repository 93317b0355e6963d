"""Backups, restoring them with what may have left since, and keys that change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import optstream as ops

if TYPE_CHECKING:
    from pathlib import Path

W = 4
X = np.array([10.0, 20.0, 30.0, 40.0])
MECHANISM = ops.OptStream(ops.Guarantee(epsilon=1, w=W), sample=ops.EqualSampling(k=W), bounds=(0, 100))


def released(ledger: ops.Ledger, period: int, x: np.ndarray = X) -> list[float]:
    values: list[float] = ledger.release(MECHANISM, x, stream="a", period=period).values.tolist()
    return values


class TestBackups:
    def test_a_backup_is_not_opened_and_holds_what_was_released(self, tmp_path: Path) -> None:
        witness = tmp_path / "witness.db"
        with ops.Ledger(tmp_path / "l.db", create=True, witness=witness) as ledger:
            first = released(ledger, 0)
            ledger.backup(tmp_path / "b.db")
            with pytest.raises(ops.LedgerError, match="exists"):
                ledger.backup(tmp_path / "b.db")
        assert (tmp_path / "b.db").stat().st_mode & 0o777 == 0o600
        with pytest.raises(ops.LedgerError, match="is a backup of"):
            ops.Ledger(tmp_path / "b.db")
        with pytest.raises(ops.LedgerError, match="exists"):
            ops.restore_ledger(tmp_path / "b.db", tmp_path / "l.db", witness=witness)
        with pytest.raises(ops.ParameterError, match="witness and accept_loss"):
            ops.restore_ledger(tmp_path / "b.db", tmp_path / "new.db")
        ops.restore_ledger(tmp_path / "b.db", tmp_path / "new.db", witness=witness)
        assert sorted(path.name for path in tmp_path.glob("new*")) == ["new.db"]
        with ops.Ledger(tmp_path / "new.db", witness=witness, expect=ledger.identity) as restored:
            assert released(restored, 0) == first

    def test_what_has_left_since_is_noticed_or_charged_in_full(self, tmp_path: Path) -> None:
        witness = tmp_path / "witness.db"
        with ops.Ledger(tmp_path / "l.db", create=True, witness=witness) as ledger:
            first = released(ledger, 0)
            ledger.backup(tmp_path / "b.db")
            released(ledger, 1)
            released(ledger, 2)
        with pytest.raises(ops.LedgerError, match="is behind its witness"):
            ops.restore_ledger(tmp_path / "b.db", tmp_path / "new.db", witness=witness)
        assert not list(tmp_path.glob("new*"))
        ops.restore_ledger(tmp_path / "b.db", tmp_path / "new.db", accept_loss=2)
        with ops.Ledger(tmp_path / "new.db") as restored:
            assert restored.identity != ledger.identity
            assert released(restored, 0) == first
            for period in (1, 2):
                with pytest.raises(ops.ConflictError, match="may have left"):
                    released(restored, period)
            with pytest.raises(ops.ConflictError, match="is void"):
                released(restored, 3)
            released(restored, 4)
            left = {
                step: one.epsilon for one in restored.remaining("a").windows for step in range(one.first, one.last + 1)
            }
            assert all(left[step] == 0 for step in range(1, 3 * W))
            assert len(left) == sum(one.last + 1 - one.first for one in restored.remaining("a").windows)
            assert left[1 - W] > 0
            assert restored.verify().problems == ()
            assert restored.window_price("a", 0, 2) == 1
            # A stream goes on after what is lost.
            stream = ops.Stream(MECHANISM, ledger=restored, name="a")
            assert stream.push_many(range(5 * W, 6 * W), X)[0].period == 5

    def test_what_was_charged_in_the_backup_may_have_left(self, tmp_path: Path) -> None:
        with ops.Ledger(tmp_path / "l.db", create=True) as ledger:
            ledger.charge_many(MECHANISM, {"a": ledger.digests(MECHANISM, X, stream="a")}, create=True)
            ledger.backup(tmp_path / "b.db")
        ops.restore_ledger(tmp_path / "b.db", tmp_path / "new.db", accept_loss=0)
        with ops.Ledger(tmp_path / "new.db") as restored, pytest.raises(ops.ConflictError, match="may have left"):
            released(restored, 0)

    def test_what_was_made_since_the_backup_gets_no_fresh_budget(self, tmp_path: Path) -> None:
        guarantee = MECHANISM.guarantee
        with ops.Ledger(tmp_path / "l.db", create=True) as ledger:
            released(ledger, 0)
            ledger.backup(tmp_path / "b.db")
            for name in ("one", "two", "three"):
                ledger.release(MECHANISM, X, stream=name)
        ops.restore_ledger(tmp_path / "b.db", tmp_path / "new.db", accept_loss=0)
        with ops.Ledger(tmp_path / "new.db", create=True) as restored:
            restored.create_pool("p", guarantee)
            restored.create_stream("three", guarantee, pool="p")
            attempts = (
                lambda period: restored.release(MECHANISM, X, stream="one", period=period),
                lambda period: restored.release_many(MECHANISM, {"two": X}, period=period),
                lambda period: restored.release(MECHANISM, X, stream="three", period=period),
            )
            for attempt in attempts:
                with pytest.raises(ops.ConflictError, match="may have left"):
                    attempt(0)
                with pytest.raises(ops.ConflictError, match="is void"):
                    attempt(1)
                attempt(2)
            with pytest.raises(ops.ParameterError, match="which does not count them"):
                restored.create_stream("long", ops.Guarantee(epsilon=1, w=2 * W), pool="p")
            assert restored.verify().problems == ()

    def test_an_older_copy_of_a_server_is_noticed_and_its_loss_accepted(
        self, postgres_url: str, tmp_path: Path
    ) -> None:
        with ops.Ledger(postgres_url, create=True) as ledger:
            with pytest.raises(ops.LedgerError, match="pg_dump"):
                ledger.backup(tmp_path / "b.db")
            released(ledger, 0)
            ledger.forget_since(1)
            with pytest.raises(ops.ConflictError, match="may have left"):
                released(ledger, 1)
            released(ledger, 3)
            assert ledger.verify().problems == ()


class TestKeys:
    def test_a_period_that_leaves_by_steps_is_finished_with_the_key_that_it_was_begun_with(
        self, tmp_path: Path
    ) -> None:
        """Another key would give the rest of a block another radius, and a retry another value."""
        file = tmp_path / "curator.key"
        ops.create_key(file)
        former = ops.read_key(file)
        cube = MECHANISM.changed(perturb=ops.CubeNoise())
        left: dict[str, list[float]] = {}
        for name in ("as it was.db", "rotated.db"):
            with ops.Ledger(tmp_path / name, key=former, create=True) as ledger:
                stream = ops.Stream(cube, ledger=ledger, name="a", emit="step")
                left[name] = [one.value for one in stream.push_many(range(2), X[:2])]
        ops.rotate_key(file)
        with ops.Ledger(tmp_path / "rotated.db", key=file) as ledger:
            ledger.rotate_key()
        for name, key in (("as it was.db", former), ("rotated.db", file)):
            with ops.Ledger(tmp_path / name, key=key) as ledger:
                stream = ops.Stream(cube, ledger=ledger, name="a", emit="step", duplicate="keep")
                assert stream.push(1, X[1]).value == left[name][1]
                left[name] += [one.value for one in stream.push_many(range(2, 4), X[2:])]
                assert ledger.verify().problems == ()
        assert left["as it was.db"] == left["rotated.db"]
        with ops.Ledger(tmp_path / "rotated.db", key=file) as ledger:
            ops.Stream(cube, ledger=ledger, name="a", emit="step").push(4, 1.0)
        ops.rotate_key(file)
        with ops.Ledger(tmp_path / "rotated.db", key=file) as ledger:
            ledger.rotate_key()
        newest = ops.read_key(file)
        with (
            ops.Ledger(tmp_path / "rotated.db", key=newest) as ledger,
            pytest.raises(ops.ParameterError, match="former key"),
        ):
            ops.Stream(cube, ledger=ledger, name="a", emit="step").push(5, 1.0)

    def test_former_periods_are_repeated_and_new_ones_have_the_new_key(self, ledger_url: str, tmp_path: Path) -> None:
        file = tmp_path / "curator.key"
        ops.create_key(file)
        before = ops.read_key(file)
        with ops.Ledger(ledger_url, key=file, create=True) as ledger:
            first = released(ledger, 0)
            ledger.charge_many(MECHANISM, {"a": ledger.digests(MECHANISM, X, stream="a", period=1)})
        ops.rotate_key(file)
        assert file.stat().st_mode & 0o777 == 0o600
        with ops.Ledger(ledger_url, key=file) as ledger:
            with pytest.raises(ops.ParameterError, match="another key"):
                released(ledger, 2)
            assert (ledger.rotate_key(), ledger.rotate_key()) == (1, 0)
            assert released(ledger, 0) == first
            with pytest.raises(ops.ConflictError):
                released(ledger, 0, X + 1)
            # A charge of before is taken up with the key of before.
            second, third = released(ledger, 1), released(ledger, 2)
            assert ledger.verify().problems == ()
            assert ledger.verify().unchecked == ()
        with ops.Ledger(ledger_url, key=ops.read_key(file)) as ledger:
            # The newest key alone goes on, and reads what is stored; to repeat a former period takes its key.
            assert ledger.stored("a", 0).values.tolist() == first
            assert (released(ledger, 2), len(released(ledger, 3))) == (third, W)
            with pytest.raises(ops.ParameterError, match="former key"):
                released(ledger, 0)
            assert ledger.verify().problems == ()
            assert ledger.verify().unchecked == ("a",)
        with ops.Ledger(ledger_url, key=before) as ledger, pytest.raises(ops.ParameterError, match="another key"):
            released(ledger, 4)
        fresh = [(tmp_path / name, key) for name, key in (("one.db", before), ("two.db", ops.read_key(file)))]
        for path, key in fresh:
            with ops.Ledger(path, key=key, create=True) as other:
                expected = [first, second] if key is before else [third]
                assert [released(other, period) for period in ((0, 1) if key is before else (2,))] == expected


def test_a_backup_from_before_the_key_was_rotated_is_restored(tmp_path: Path) -> None:
    file = tmp_path / "curator.key"
    ops.create_key(file)
    with ops.Ledger(tmp_path / "l.db", key=file, create=True) as ledger:
        first = released(ledger, 0)
        ledger.backup(tmp_path / "b.db")
    ops.rotate_key(file)
    ops.restore_ledger(tmp_path / "b.db", tmp_path / "new.db", key=file, accept_loss=1)
    with ops.Ledger(tmp_path / "new.db", key=file) as restored:
        assert released(restored, 0) == first
        assert len(released(restored, 3)) == W
        assert (restored.verify().problems, restored.verify().unchecked) == ((), ())


def test_a_smaller_policy_is_no_damage(tmp_path: Path) -> None:
    with ops.Ledger(tmp_path / "l.db", create=True) as ledger:
        ledger.create_pool("p", MECHANISM.guarantee)
        ledger.create_stream("a", MECHANISM.guarantee, pool="p")
        released(ledger, 0)
        ledger.set_policy("a", ops.Guarantee(epsilon=0.5, w=W))
        ledger.set_pool_policy("p", ops.Guarantee(epsilon=0.5, w=W))
        found = ledger.verify()
        assert (len(found.problems), found.damage) == (2, ())
        ledger.backup(tmp_path / "b.db")
    ops.restore_ledger(tmp_path / "b.db", tmp_path / "new.db", accept_loss=0)
    with ops.Ledger(tmp_path / "new.db") as restored, pytest.raises(ops.BudgetError):
        restored.release(MECHANISM, X, stream="a", period=2)
