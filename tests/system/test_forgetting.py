"""What makes a ledger forget by ordinary operation is noticed, or does not make it forget."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest

import optstream as ops
from optstream import baselines

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

W = 4
X = np.array([10.0, 20.0, 30.0, 40.0])
MECHANISM = ops.OptStream(ops.Guarantee(epsilon=1, w=W), sample=ops.EqualSampling(k=W), bounds=(0, 100))


def released(ledger: ops.Ledger, period: int) -> list[float]:
    values: list[float] = ledger.release(MECHANISM, X, stream="a", period=period).values.tolist()
    return values


def in_child(work: Callable[[], object]) -> int:
    """Do something in a forked process; return its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class TestForks:
    def test_what_a_worker_releases_outlives_the_parent(self, tmp_path: Path) -> None:
        """The parent opens, forks and closes, as a server that loads its application first; the worker goes on."""
        path = tmp_path / "ledger.db"
        parent = ops.Ledger(path, create=True)
        released(parent, 0)
        ready, go = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                first = released(parent, 1)
                os.write(ready[1], b"x")
                os.read(go[0], 1)
                second = released(parent, 2)
                (tmp_path / "given").write_text(repr([first, second]))
                code = 0
            finally:
                os._exit(code)
        os.read(ready[0], 1)
        parent.close()
        with ops.Ledger(path) as other:
            released(other, 5)
        os.write(go[1], b"x")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with ops.Ledger(path) as ledger:
            assert repr([released(ledger, 1), released(ledger, 2)]) == (tmp_path / "given").read_text()
            assert ledger.verify().problems == ()

    def test_forks_while_threads_write_lock_nobody_out(self, ledger_url: str) -> None:
        stop = threading.Event()
        with ops.Ledger(ledger_url, create=True, timeout=5) as ledger:

            def work(name: str) -> None:
                period = 0
                while not stop.is_set():
                    ledger.release(MECHANISM, X, stream=name, period=period)
                    period += 1

            threads = [threading.Thread(target=work, args=(f"thread {number}",)) for number in range(2)]
            for thread in threads:
                thread.start()
            try:
                for number in range(8):
                    time.sleep(0.01)
                    assert in_child(lambda number=number: released(ledger, number)) == 0  # type: ignore[misc]
            finally:
                stop.set()
                for thread in threads:
                    thread.join()
            assert [entry.period for entry in ledger.history("a")] == list(range(8))
            assert ledger.verify().problems == ()

    def test_a_stream_without_a_ledger_stays_in_its_process(self) -> None:
        """Two copies would release its open period twice."""
        baseline = baselines.Fast(guarantee=MECHANISM.guarantee, bounds=(0, 100))
        streams = [ops.Stream(MECHANISM), ops.Stream(MECHANISM, emit="step"), ops.Stream(baseline)]
        for stream in streams:
            stream.push_many(range(3), X[:3])

        def go_on() -> None:
            for stream in streams:
                with pytest.raises(ops.StreamError, match="stays in the process that made it"):
                    stream.push(3, 4.0)
            for stream in streams[:2]:
                with pytest.raises(ops.StreamError, match="stays in the process that made it"):
                    _ = stream.state

        assert in_child(go_on) == 0
        assert streams[0].push(3, 4.0).period == 0
        assert streams[1].push(3, 4.0).step == 3

    @pytest.mark.parametrize("emit", ["period", "step"])
    def test_a_stream_with_a_ledger_is_shared_by_forks(self, tmp_path: Path, emit: Literal["period", "step"]) -> None:
        """Also if a thread was inside it when the process was forked."""
        with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
            stream = ops.Stream(MECHANISM, ledger=ledger, name="a", emit=emit)
            stream.push(0, 1.0)
            inside, leave = threading.Event(), threading.Event()

            def stay() -> None:
                with stream._lock:
                    inside.set()
                    leave.wait(60)

            thread = threading.Thread(target=stay)
            thread.start()
            inside.wait(60)
            try:
                assert in_child(lambda: stream.push(1, 2.0)) == 0
                assert in_child(lambda: stream.push(2, 3.0)) == 0
            finally:
                leave.set()
                thread.join()
            assert stream.push(3, 4.0) is not None
            assert [entry.period for entry in ledger.history("a")] == [0]
            assert ledger.verify().problems == ()


class TestFiles:
    def test_a_process_may_copy_its_own_ledger(self, tmp_path: Path) -> None:
        """This loses the locks of the file; who closes next must not take the log away."""
        path = tmp_path / "ledger.db"
        with ops.Ledger(path, create=True) as ledger:
            released(ledger, 0)
            shutil.copy(path, tmp_path / "copy.db")

            def visit() -> None:
                with ops.Ledger(path) as other:
                    released(other, 1)

            assert in_child(visit) == 0
            given = released(ledger, 2)
        with ops.Ledger(path) as ledger:
            assert released(ledger, 2) == given
            assert [entry.period for entry in ledger.history("a")] == [0, 1, 2]

    @pytest.mark.parametrize("how", ["delete", "replace", "delete the log", "link", "repoint"])
    def test_nothing_leaves_from_a_file_that_is_not_at_the_path(self, tmp_path: Path, how: str) -> None:
        path = tmp_path / "ledger.db"
        with ops.Ledger(path, create=True) as ledger:
            released(ledger, 0)
            shutil.copy(path, tmp_path / "older.db")
            (tmp_path / "older.db").chmod(0o600)
        way = tmp_path / "way.db"
        way.symlink_to(path)
        with ops.Ledger(way) as ledger:
            released(ledger, 1)
            if how == "delete":
                path.unlink()
            elif how == "replace":
                (tmp_path / "older.db").rename(path)
            elif how == "delete the log":
                (tmp_path / "ledger.db-wal").unlink()
            elif how == "link":
                (tmp_path / "other.db").hardlink_to(path)
            else:
                way.unlink()
                way.symlink_to(tmp_path / "older.db")
            # Neither what is new nor what is stored.
            for period in (2, 1, 3):
                with pytest.raises(ops.LedgerError, match=r"deleted, moved or replaced|has 2 names"):
                    released(ledger, period)

    def test_closing_never_removes_the_log(self, tmp_path: Path) -> None:
        with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
            released(ledger, 0)
        assert (tmp_path / "ledger.db-wal").exists()

    def test_a_missing_or_empty_ledger_is_refused(self, tmp_path: Path, postgres_url: str) -> None:
        with pytest.raises(ops.LedgerError, match="does not exist, but must: `optstream ledger init`"):
            ops.Ledger(tmp_path / "ledger.db")
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "empty.db").touch(mode=0o600)
        for url in (tmp_path / "empty.db", postgres_url):
            with pytest.raises(ops.LedgerError, match="is empty, but must exist already"):
                ops.Ledger(url)

    def test_a_log_without_its_file_is_not_played_into_another(self, tmp_path: Path) -> None:
        path = tmp_path / "ledger.db"
        with ops.Ledger(path, create=True) as ledger:
            released(ledger, 0)
            ledger.backup(tmp_path / "backup.db")
            shutil.copy(tmp_path / "ledger.db-wal", tmp_path / "new.db-wal")
        for make in (
            lambda: ops.Ledger(tmp_path / "new.db", create=True),
            lambda: ops.restore_ledger(tmp_path / "backup.db", tmp_path / "new.db", accept_loss=0),
        ):
            with pytest.raises(ops.LedgerError, match=r"does not exist, but its log new\.db-wal does"):
                make()
        assert not (tmp_path / "new.db").exists()

    def test_a_ledger_that_others_can_read_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "ledger.db"
        ops.Ledger(path, create=True).close()
        path.chmod(0o640)
        with pytest.raises(ops.LedgerError, match="mode 0640, but must be closed to others: chmod 600"):
            ops.Ledger(path)

    def test_a_ledger_has_an_identity(self, tmp_path: Path) -> None:
        with ops.Ledger(tmp_path / "one.db", create=True) as one, ops.Ledger(tmp_path / "two.db", create=True) as two:
            assert one.identity != two.identity
        ops.Ledger(tmp_path / "one.db", expect=one.identity).close()
        with pytest.raises(ops.LedgerError, match="it is another ledger"):
            ops.Ledger(tmp_path / "two.db", expect=one.identity)


class TestWitness:
    def test_an_older_copy_is_refused(self, tmp_path: Path) -> None:
        path, witness = tmp_path / "ledger.db", tmp_path / "witness.db"
        with ops.Ledger(path, create=True, witness=witness) as ledger:
            released(ledger, 0)
        shutil.copy(path, tmp_path / "older.db")
        with ops.Ledger(path, witness=witness) as ledger:
            given = released(ledger, 1)
            head = ledger.head("a")
        with ops.Ledger(path, witness=witness) as ledger:
            assert released(ledger, 1) == given
            assert ledger.head("a") == head
        shutil.copy(tmp_path / "older.db", path)
        (tmp_path / "ledger.db-wal").unlink()
        with pytest.raises(ops.LedgerError, match=r"behind its witness .*entry 5 of 'a'"):
            ops.Ledger(path, witness=witness)
        # Without a witness nothing notices but who has noted the head.
        with ops.Ledger(path) as ledger:
            assert ledger.head("a").number < head.number

    def test_a_copy_that_went_another_way_is_refused(self, tmp_path: Path) -> None:
        path, witness = tmp_path / "ledger.db", tmp_path / "witness.db"
        with ops.Ledger(path, create=True, witness=witness) as ledger:
            released(ledger, 0)
        shutil.copy(path, tmp_path / "other.db")
        (tmp_path / "other.db").chmod(0o600)
        with ops.Ledger(path, witness=witness) as ledger, ops.Ledger(tmp_path / "other.db", witness=witness) as other:
            released(ledger, 1)
            with pytest.raises(ops.LedgerError, match="behind its witness"):
                released(other, 2)

    def test_what_another_process_has_stored_is_witnessed_before_it_leaves_here(
        self, ledger_url: str, tmp_path: Path
    ) -> None:
        """Who has stored it may have died on the way to the witness."""
        witness, key = tmp_path / "witness.db", ops.CuratorKey(bytes(range(32)))
        with ops.Ledger(ledger_url, create=True, key=key, witness=witness) as ledger:

            def known(stream: str) -> int:
                assert ledger._witness is not None
                with ledger._witness._database.transaction(write=False) as reading:
                    rows = reading.rows("SELECT number FROM optstream_witness WHERE stream = ?", (stream,))
                return int(rows[0][0]) if rows else 0

            released(ledger, 0)
            with ops.Ledger(ledger_url, key=key) as dead:
                released(dead, 1)
            assert known("a") < ledger.head("a").number
            released(ledger, 1)
            assert known("a") == ledger.head("a").number
            with ops.Ledger(ledger_url, key=key) as dead:
                released(dead, 2)
                dead.charge_many(MECHANISM, {"b": dead.digests(MECHANISM, X, stream="b")}, final=True, create=True)
                ops.Stream(MECHANISM, ledger=dead, name="c", emit="step", create=True).push(0, 1.0)
            ledger.releases("a")
            assert known("a") == ledger.head("a").number
            # The values of a final charge leave in another way.
            ledger.charge_many(MECHANISM, {"b": ledger.digests(MECHANISM, X, stream="b")}, final=True)
            assert known("b") == ledger.head("b").number
            ops.Stream(MECHANISM, ledger=ledger, name="c", emit="step").push(0, 1.0)
            assert known("c") == ledger.head("c").number

    def test_a_thread_that_is_slow_takes_nothing_back(self, tmp_path: Path) -> None:
        with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
            released(ledger, 0)
            early = ledger._log.durable["a"]
            released(ledger, 1)
            late = ledger._log.durable["a"]
            ledger._log.note_durable("a", early)
            assert ledger._log.durable["a"] == late

    def test_a_witness_must_know_the_ledger(self, tmp_path: Path, postgres_url: str) -> None:
        path = tmp_path / "ledger.db"
        with ops.Ledger(path, create=True) as ledger:
            released(ledger, 0)
        with pytest.raises(ops.LedgerError, match="does not exist"):
            ops.Ledger(path, witness=tmp_path / "witness.db")
        with ops.Ledger(path, create=True, witness=postgres_url) as ledger:
            released(ledger, 1)
        with ops.Ledger(tmp_path / "new.db", create=True), pytest.raises(ops.LedgerError, match="does not know"):
            ops.Ledger(tmp_path / "new.db", witness=postgres_url)

    def test_entries_that_go_while_a_ledger_is_open_are_missed(self, tmp_path: Path) -> None:
        with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
            released(ledger, 0)
            released(ledger, 1)
            with sqlite3.connect(tmp_path / "ledger.db") as file:
                file.execute("DELETE FROM optstream_entries WHERE number > 3")
            file.close()
            with pytest.raises(ops.LedgerError, match="has lost entries of 'a'"):
                released(ledger, 2)
