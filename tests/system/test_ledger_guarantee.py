"""Sequences of correct calls on a ledger whose windows must not cost more than its statements say."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import optstream as ops
from optstream.ledger.plans import PricedPlan, Vector
from optstream.privacy import accounting
from optstream.privacy.gaussian import rho_from

if TYPE_CHECKING:
    from pathlib import Path

W = 4
X = np.array([10.0, 20.0, 30.0, 40.0])


def mechanism(epsilon: Fraction | int = 1, k: int = W, **changes: Any) -> ops.OptStream:
    return ops.OptStream(ops.Guarantee(epsilon=epsilon, w=W), sample=ops.EqualSampling(k=k), bounds=(0, 100), **changes)


def charged_only(ledger: ops.Ledger, made: ops.OptStream, period: int) -> None:
    """Charge a period as a process does that dies before it draws."""
    plan = PricedPlan.of(made)
    ledger._protocol.enrol("a", plan, create=True)
    ledger._charges.charge("a", plan, ledger._protocol.digests("a", period, made.read(X).units))


def test_a_stream_has_one_relation_of_neighbours(ledger_url: str) -> None:
    aligned = mechanism().changed(guarantee=ops.Guarantee(epsilon=1, w=W, neighbours="aligned"))
    with ops.Ledger(ledger_url, create=True) as ledger:
        ledger.release(aligned, X, stream="a", period=0)
        with pytest.raises(ops.ParameterError, match="neighbours = 'sliding', but the policy of 'a' has 'aligned'"):
            ledger.release(mechanism(), X, stream="a", period=1)
        with pytest.raises(ops.ParameterError, match="for which periods of 'a' are charged"):
            ledger.set_policy("a", ops.Guarantee(epsilon=1, w=W))
        ledger.set_policy("b", ops.Guarantee(epsilon=1, w=W))
        ledger.set_policy("b", ops.Guarantee(epsilon=1, w=W, neighbours="aligned"))


def test_a_smaller_policy_holds_for_what_is_charged(ledger_url: str) -> None:
    with ops.Ledger(ledger_url, create=True) as ledger:
        charged_only(ledger, mechanism(), 0)
        ledger.set_policy("a", ops.Guarantee(epsilon=Fraction(1, 2), w=W))
        with pytest.raises(ops.BudgetError):
            ledger.release(mechanism(), X, stream="a", period=0)
        # A charge that replaces it is checked too, and one that fits is granted.
        with pytest.raises(ops.BudgetError):
            ledger.release(mechanism(), X + 1, stream="a", period=0)
        ledger.release(mechanism(Fraction(1, 2)), X, stream="a", period=0)


def test_a_policy_that_becomes_smaller_between_draw_and_store_holds(ledger_url: str) -> None:
    class Meanwhile(ops.OptStream):
        def draw(self, units: Any, retry: Any = None) -> Any:
            with ops.Ledger(ledger_url) as other:
                other.set_policy("a", ops.Guarantee(epsilon=Fraction(1, 2), w=W))
            return super().draw(units, retry)

    made = Meanwhile(ops.Guarantee(epsilon=1, w=W), sample=ops.EqualSampling(k=W), bounds=(0, 100))
    with ops.Ledger(ledger_url, create=True) as ledger:
        with pytest.raises(ops.BudgetError):
            ledger.release(made, X, stream="a")
        (entry,) = ledger.history("a")
        assert (entry.released, entry.void) == (None, None)


def test_builds_that_price_one_plan_in_two_ways_charge_the_larger(ledger_url: str, monkeypatch: Any) -> None:
    with ops.Ledger(ledger_url, create=True) as ledger:
        ledger.set_policy("a", ops.Guarantee(epsilon=Fraction(5, 4), w=W))
        stored = ledger.release(mechanism(), X, stream="a", period=0).values.tolist()
    dearer = PricedPlan.of

    def priced(made: ops.OptStream, held: Any = None) -> PricedPlan:
        plan = dearer(made, held)
        return replace(plan, costs=tuple(accounting.scaled(cost, Fraction(3, 2)) for cost in plan.costs))

    monkeypatch.setattr(PricedPlan, "of", staticmethod(priced))
    with ops.Ledger(ledger_url) as ledger:
        # What is stored stays; the next period would make a window cost 3/2, by this build's prices.
        assert ledger.release(mechanism(), X, stream="a", period=0).values.tolist() == stored
        with pytest.raises(ops.BudgetError, match="cost 3/2, but its policy allows 5/4"):
            ledger.release(mechanism(), X, stream="a", period=1)
        ledger.set_policy("a", ops.Guarantee(epsilon=2, w=W))
        ledger.release(mechanism(), X, stream="a", period=1)
        assert ledger.window_price("a", 0, 1) == Fraction(3, 2)
    monkeypatch.undo()
    with ops.Ledger(ledger_url) as ledger:
        # The older build goes on with the larger prices too.
        ledger.release(mechanism(), X, stream="a", period=2)
        assert ledger.window_price("a", 2, 2) == Fraction(3, 2)


@pytest.mark.parametrize("error", [ops.SolverError("no"), ValueError("no"), MemoryError(), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["draw", "finish", "store"])
def test_whatever_fails_after_a_draw_makes_the_period_void(
    tmp_path: Path, monkeypatch: Any, error: BaseException, where: str
) -> None:
    made = mechanism() if where != "finish" else mechanism(reconstruct=ops.Estimate(season=1))

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
        with monkeypatch.context() as patch:
            if where == "store":
                patch.setattr(type(ledger._protocol), "_store", fail)
            else:
                patch.setattr(ops.OptStream, where, fail)
            with pytest.raises(type(error)):
                ledger.release(made, X, stream="a")
        with pytest.raises(ops.ConflictError, match="is void"):
            ledger.release(made, X, stream="a")
        (entry,) = ledger.history("a")
        assert entry.void is not None
        assert ledger.verify().problems == ()
        # A void period passes: the stream goes on.
        assert ledger.kept("a").released == 0
        ledger.release(made, X, stream="a", period=1)


def test_with_a_key_a_failed_draw_is_repeated_from_the_same_data_alone(tmp_path: Path, monkeypatch: Any) -> None:
    def fail(*_: Any) -> Any:
        raise ops.SolverError("no")

    with ops.Ledger(tmp_path / "ledger.db", create=True, key=ops.CuratorKey(bytes(range(32)))) as ledger:
        with monkeypatch.context() as patch:
            patch.setattr(ops.OptStream, "draw", fail)
            with pytest.raises(ops.SolverError):
                ledger.release(mechanism(), X, stream="a")
        with pytest.raises(ops.ConflictError, match="was charged for good from other data"):
            ledger.release(mechanism(), X + 1, stream="a")
        ledger.release(mechanism(), X, stream="a")


def test_stored_and_new_periods_come_together(ledger_url: str) -> None:
    with ops.Ledger(ledger_url, create=True) as ledger:
        first = ledger.release(mechanism(), np.tile(X, 3), stream="a").values
        whole = ledger.release(mechanism(), np.tile(X, 6), stream="a").values
        assert whole[: 3 * W].tolist() == first.tolist()


def test_an_altered_entry_is_refused_by_a_release(tmp_path: Path) -> None:
    changes = (
        "SET plan = x'00' WHERE number = 2",
        "SET period = 9 WHERE number = 2",
        "SET hash = zeroblob(32) WHERE number = 3",
        "SET seal = zeroblob(32) WHERE number = 2",
        "SET content = replace(content, '\"1\"', '\"9\"') WHERE number = 1",
    )
    key = ops.CuratorKey(bytes(range(32)))
    for number, change in enumerate(changes):
        path = tmp_path / f"{number}.db"
        with ops.Ledger(path, create=True, key=key) as ledger:
            ledger.release(mechanism(), X, stream="a", period=0)
        with sqlite3.connect(path) as file:
            file.execute(f"UPDATE optstream_entries {change}")
        file.close()
        with ops.Ledger(path, key=key) as ledger, pytest.raises(ops.LedgerError, match=r"altered|seal|missing"):
            ledger.release(mechanism(), X, stream="a", period=1)


def test_names_that_look_alike_are_one(ledger_url: str) -> None:
    with ops.Ledger(ledger_url, create=True) as ledger:
        one = ledger.release(mechanism(), X, stream="caf\u00e9").values.tolist()
        assert ledger.release(mechanism(), X, stream="cafe\u0301").values.tolist() == one
        assert ledger.streams == ("caf\u00e9",)


def test_window_prices_are_those_of_brute_force(tmp_path: Path) -> None:
    with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
        ledger.set_policy("a", ops.Guarantee(epsilon=3, w=W))
        plans = {0: mechanism(1, 2), 1: mechanism(), 3: mechanism(2, 3), 4: mechanism(1, 2)}
        for period, made in plans.items():
            ledger.release(made, X, stream="a", period=period)
        costs = [accounting.moved(cost, p * W) for p, made in plans.items() for cost in made.costs]
        start, windows = accounting.window_costs(costs, W)
        for first in range(6):
            for last in range(first, 6):
                met = [c for s, c in enumerate(windows, start) if first * W - W < s < (last + 1) * W]
                assert ledger.window_price("a", first, last) == max(met, default=Fraction(0)), (first, last)


def test_what_is_left_is_told_in_runs_of_equal_windows(tmp_path: Path) -> None:
    with ops.Ledger(tmp_path / "ledger.db", create=True, key=ops.CuratorKey(bytes(range(32)))) as ledger:
        ledger.release(mechanism(), np.tile(X, 3000), stream="a")
        left = ledger.remaining("a")
        assert left.epsilon == 0
        assert len(left.windows) < 10


def test_a_held_step_says_nothing_of_its_own(tmp_path: Path) -> None:
    """What it costs lies on the step that it repeats."""
    key = ops.CuratorKey(bytes(range(32)))
    values = []
    for name, x in (("one.db", X), ("two.db", [10.0, 20.0, 30.0, 90.0])):
        with ops.Ledger(tmp_path / name, create=True, key=key) as ledger:
            values.append(ledger.release(mechanism(), x, stream="a", held={3: 0}).values.tolist())
    assert values[0] == values[1]


def test_the_relation_of_a_pool_is_that_of_its_charges(ledger_url: str) -> None:
    guarantee = ops.Guarantee(epsilon=1, w=W)
    aligned = ops.Guarantee(epsilon=1, w=W, neighbours="aligned")
    with ops.Ledger(ledger_url, create=True) as ledger:
        ledger.create_pool("p", aligned)
        ledger.set_pool_policy("p", guarantee)
        ledger.create_stream("a", guarantee, pool="p")
        with pytest.raises(ops.ParameterError, match="are charged or pooled"):
            ledger.set_pool_policy("p", aligned)
        with pytest.raises(ops.ParameterError, match="are charged or pooled"):
            ledger.set_policy("a", aligned)
        ledger.release(mechanism(), X, stream="a")
        with pytest.raises(ops.ParameterError, match="are charged or pooled"):
            ledger.set_pool_policy("p", aligned)


@pytest.mark.parametrize("first", [0, 1])
def test_a_statement_of_several_periods_is_about_those_beside_them_too(tmp_path: Path, first: int) -> None:
    """One that was released before, and one that is charged after them."""
    guarantee = ops.Guarantee(epsilon=2, w=W)
    small = ops.OptStream(guarantee.with_epsilon(Fraction(1, 4)), sample=ops.EqualSampling(k=2), bounds=(0, 100))
    with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
        ledger.create_stream("a", guarantee)
        beside = first - 1 if first else 2
        ledger.release(mechanism(1, 2), X, stream="a", period=beside)
        made = ledger.release(small, np.tile(X, 2), stream="a", period=first)
        charged = {beside: mechanism(1, 2), first: small, first + 1: small}
        costs = [accounting.moved(cost, W * period) for period, one in charged.items() for cost in one.costs]
        begin, prices = accounting.window_costs(costs, W)
        met = [price for at, price in enumerate(prices, begin) if first * W - W < at < (first + 2) * W]
        assert made.statement.epsilon == max(met) > small.steady_epsilon


def test_a_period_may_be_void_without_a_charge(ledger_url: str) -> None:
    with ops.Ledger(ledger_url, create=True) as ledger:
        ledger.release(mechanism(), X, stream="a", period=0)
        ledger.void("a", 1, "for a test")
        ledger.void("a", 1, "again")
        with pytest.raises(ops.ConflictError, match="is void and will not be released: for a test"):
            ledger.release(mechanism(), X, stream="a", period=1)
        with pytest.raises(ops.ConflictError, match="is released"):
            ledger.void("a", 0, "for a test")
        ledger.release(mechanism(), X, stream="a", period=2)
        assert [entry.period for entry in ledger.history("a")] == [0, 2]
        found = ledger.verify()
        assert (found.charges, found.releases, found.problems) == (2, 2, ())


def test_a_statement_is_not_about_periods_farther_away(tmp_path: Path) -> None:
    with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
        for period in (0, 4):
            ledger.release(mechanism(), X, stream="a", period=period)
        small = mechanism(Fraction(1, 4))
        assert ledger.release(small, X, stream="a", period=2).statement.epsilon == Fraction(1, 4)


def test_the_larger_of_two_prices_is_taken_window_by_window(tmp_path: Path) -> None:
    with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
        plans = ledger._plans
        pure, delta = Fraction(0), Fraction(1, 10**6)
        plans._own[b"one", 2, pure] = Vector(((2, (1, 1, 1)),), pure)
        plans._own[b"two", 2, pure] = Vector(((3, (2, 0, 1)),), pure)
        assert plans.vector((b"one", b"two"), 2, pure).rows == ((6, (4, 3, 3)),)
        assert plans.vector((), 2, pure).rows == ((1, (0, 0, 0)),)
        assert plans.vector((b"lost", b"3/2"), 2, pure).rows == ((2, (3, 3, 3)),)
        # With a delta there is a second unit, in which the whole policy is lost too.
        rho = rho_from(Fraction(3, 2), delta)
        lost = plans.vector((b"lost", b"3/2"), 2, delta)
        assert lost.rows == ((2, (3, 3, 3)), (rho.denominator, (rho.numerator,) * 3))
        assert plans.vector((), 2, delta).at(0) == 0
