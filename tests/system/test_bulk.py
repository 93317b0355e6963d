"""Many periods of many streams at once."""

from __future__ import annotations

import multiprocessing
import os
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest

import optstream as ops

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

W = 4
X = np.arange(12.0)
MECHANISM = ops.OptStream(ops.Guarantee(epsilon=1, w=W), sample=ops.EqualSampling(k=W), bounds=(0, 100))
LARGER = MECHANISM.with_epsilon(Fraction(3, 2))
KEY = ops.CuratorKey(bytes(range(32)))


def test_bulk_gives_what_single_releases_give(ledger_url: str) -> None:
    names = [f"s{index}" for index in range(30)]
    with ops.Ledger(ledger_url, key=KEY, create=True) as ledger:
        ledger.release(MECHANISM, X[W : 2 * W], stream="s0", period=1)
        many = ledger.release_many(MECHANISM, dict.fromkeys(names, X), period={"s3": 5}, create=True)
        again = ledger.release_many(MECHANISM, dict.fromkeys(names, X), period={"s3": 5})
        assert [many[name].values.tolist() for name in names] == [again[name].values.tolist() for name in names]
        one = ledger.release(MECHANISM, X, stream="s3", period=5)
        assert one.values.tolist() == many["s3"].values.tolist()
        assert str(one.statement) == str(many["s3"].statement)
        found = ledger.verify()
        assert (found.problems, found.releases) == ((), 3 * len(names))


def test_a_conflict_in_one_stream_leaves_all_as_they_are(ledger_url: str) -> None:
    with ops.Ledger(ledger_url, create=True) as ledger:
        ledger.release(MECHANISM, X, stream="b")
        heads = ledger.head("b")
        other: Mapping[str, np.ndarray] = {"a": X, "b": X + 1, "c": X}
        with pytest.raises(ops.ConflictError):
            ledger.release_many(MECHANISM, other, create=True)
        with pytest.raises(ops.BudgetError):
            ledger.release_many(LARGER, {"b": X[:W]}, period=3)
        assert ledger.streams == ("b",)
        assert ledger.head("b") == heads


def test_statements_are_about_all_windows_of_the_ledger(ledger_url: str) -> None:
    """What was released before counts in what bulk releases state."""
    half = MECHANISM.with_epsilon(Fraction(1, 2))
    with ops.Ledger(ledger_url, create=True) as ledger:
        ledger.release(MECHANISM, X[:W], stream="a", period=0)
        made = ledger.release_many(half, {"a": X[:W]}, period=1)["a"]
        assert made.statement.epsilon == ledger.window_price("a", 1, 1) == Fraction(7, 8)


def test_an_estimate_remembers_what_bulk_has_released(ledger_url: str) -> None:
    estimating = MECHANISM.changed(reconstruct=ops.Estimate(season=1))
    with ops.Ledger(ledger_url, key=KEY, create=True) as ledger:
        ledger.release(estimating, X, stream="one")
        bulk = ledger.release_many(estimating, {"one": X, "two": X}, create=True)
        more = ledger.release_many(estimating, {"one": X[:W], "two": X[:W]}, period=3)
    with ops.Ledger(ledger_url, key=KEY) as ledger:
        assert ledger.release(estimating, X, stream="two").values.tolist() == bulk["two"].values.tolist()
        assert ledger.release(estimating, X[:W], stream="two", period=3).values.tolist() == more["two"].values.tolist()
        assert ledger.verify().problems == ()


class TestFinal:
    def test_nothing_replaces_a_final_charge(self, ledger_url: str) -> None:
        with ops.Ledger(ledger_url, key=KEY, create=True) as ledger:
            digests = ledger.digests(MECHANISM, X, stream="a")
            units = MECHANISM.read(X).units
            assert digests[1] == ops.data_digest(KEY, "a", 1, units[1])
            assert ledger.charge_many(MECHANISM, {"a": digests}, final=True, create=True) == 3
            # An identical run charges nothing.
            assert ledger.charge_many(MECHANISM, {"a": digests}, final=True) == 0
            for other in (ledger.digests(MECHANISM, X + 1, stream="a"), {0: bytes(32)}):
                with pytest.raises(ops.ConflictError, match="charged for good"):
                    ledger.charge_many(MECHANISM, {"a": other}, final=True)
            with pytest.raises(ops.ConflictError, match="charged for good"):
                ledger.release(MECHANISM, X[:W] + 1, stream="a", period=0)
            assert ledger.release(MECHANISM, X[:W], stream="a", period=0).values.shape == (W,)
            assert ledger.verify().problems == ()

    def test_a_final_charge_needs_a_key(self, tmp_path: Path) -> None:
        with ops.Ledger(tmp_path / "l.db", create=True) as ledger, pytest.raises(ops.ParameterError, match="key"):
            ledger.charge_many(MECHANISM, {"a": {0: bytes(32)}}, final=True, create=True)


def race(url: str, seed: int) -> None:
    order = np.random.default_rng([seed, os.getpid()])
    with ops.Ledger(url) as ledger:
        for _ in range(15):
            period = int(order.integers(12))
            mechanism = [MECHANISM, MECHANISM.with_epsilon(Fraction(3, 4))][int(order.integers(2))]
            names = order.permutation(["a", "b", "c"])[: int(order.integers(1, 4))]
            try:
                ledger.release_many(mechanism, dict.fromkeys(names, X[:W]), period=period, create=True)
            except (ops.BudgetError, ops.ConflictError):
                continue


def test_races_in_bulk_stay_within_the_policy(ledger_url: str) -> None:
    ops.Ledger(ledger_url, create=True).close()
    context = multiprocessing.get_context("spawn")
    members = [context.Process(target=race, args=(ledger_url, seed)) for seed in range(3)]
    for member in members:
        member.start()
    for member in members:
        member.join()
        assert member.exitcode == 0
    with ops.Ledger(ledger_url) as ledger:
        found = ledger.verify()
        assert found.problems == ()
        assert found.releases > 10
