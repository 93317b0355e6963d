"""Streams about the same people share a budget."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest

import optstream as ops
from optstream.ledger.log import Share
from optstream.ledger.plans import PricedPlan
from optstream.privacy import accounting

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

W = 4
X = np.array([10.0, 20.0, 30.0, 40.0])


def mechanism(epsilon: Fraction, w: int = W) -> ops.OptStream:
    return ops.OptStream(ops.Guarantee(epsilon=epsilon, w=w), sample=ops.EqualSampling(k=w), bounds=(0, 100))


THIRD, HALF, WHOLE = mechanism(Fraction(1, 3)), mechanism(Fraction(1, 2)), mechanism(Fraction(1))


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[ops.Ledger]:
    ops.Ledger(ledger_url, create=True).close()
    with ops.Ledger(ledger_url) as opened:
        opened.create_pool("riders", ops.Guarantee(epsilon=1, w=W))
        yield opened


def member(ledger: ops.Ledger, name: str, w: int = W) -> None:
    ledger.create_stream(name, ops.Guarantee(epsilon=1, w=w), pool="riders")


def true_price(ledger: ops.Ledger, streams: dict[str, int], w: int = W) -> Fraction:
    """Return what the worst window over all streams costs, by the accountant alone."""
    costs = [
        accounting.moved(cost, entry.period * length)
        for name, length in streams.items()
        for entry in ledger.history(name)
        for cost in ledger._plans.costs(bytes.fromhex(entry.plan))
    ]
    return accounting.worst_window(costs, w)


def windows(charged: dict[tuple[str, int], ops.OptStream], w: int, neighbours: str) -> dict[int, Fraction]:
    """Return what every window of a pool costs that meets a charge, by the accountant alone."""
    totals: dict[int, Fraction] = {}
    for (_, period), made in charged.items():
        costs = [accounting.moved(cost, period * made.guarantee.w) for cost in made.costs]
        first, prices = accounting.window_costs(costs, w)
        for begin, price in enumerate(prices, first):
            if neighbours == "sliding" or begin % w == 0:
                totals[begin] = totals.get(begin, Fraction(0)) + price
    return totals


@pytest.mark.parametrize(
    ("neighbours", "lengths"), [("sliding", (3, 4, 6)), ("sliding", (1, 4, 11)), ("aligned", (4, 4, 4))]
)
@pytest.mark.parametrize("again", [False, True])
def test_exactly_what_fits_a_pool_is_granted(
    tmp_path: Path, neighbours: Literal["sliding", "aligned"], lengths: tuple[int, ...], *, again: bool
) -> None:
    """In any order, near and far, with plans that cost unevenly, by one process or by one after the other."""
    order = random.Random(repr((neighbours, lengths)))
    epsilons = [Fraction(1, 2), Fraction(1, 3), Fraction(1, 5), Fraction(1)]
    members = {f"member {index}": w for index, w in enumerate(lengths)}
    ledger = ops.Ledger(tmp_path / "ledger.db", create=True)
    ledger.create_pool("p", ops.Guarantee(epsilon=1, w=W, neighbours=neighbours))
    for name, w in members.items():
        ledger.create_stream(name, ops.Guarantee(epsilon=100, w=w, neighbours=neighbours), pool="p")
    charged: dict[tuple[str, int], ops.OptStream] = {}
    granted = 0
    for _ in range(50 if again else 150):
        name = order.choice(list(members))
        w = members[name]
        period = order.choice([order.randrange(40 // w), order.randrange(40 // w), 1000 + order.randrange(5)])
        made = ops.OptStream(
            ops.Guarantee(epsilon=order.choice(epsilons), w=w, neighbours=neighbours),
            sample=ops.EqualSampling(k=order.choice([min(2, w), w])),
            perturb=ops.LaplaceNoise() if order.random() < 1 / 2 else ops.CubeNoise(),
            bounds=(0, 100),
        )
        after = {**charged, (name, period): made}
        met = windows({(name, period): made}, W, neighbours)
        fits = max(price for begin, price in windows(after, W, neighbours).items() if begin in met) <= 1
        if again:
            ledger.close()
            ledger = ops.Ledger(tmp_path / "ledger.db")
        try:
            ledger.charge_many(made, {name: {period: bytes(32)}})
        except ops.BudgetError:
            assert not fits, (name, period)
        else:
            assert fits, (name, period)
            charged = after
            granted += 1
    assert granted > 15
    left = {
        begin: one.epsilon
        for one in ledger.pool_remaining("p").windows
        for begin in range(one.first, one.last + 1)
        if neighbours == "sliding" or begin % W == 0
    }
    assert left == {begin: 1 - price for begin, price in windows(charged, W, neighbours).items()}
    assert ledger.verify().problems == ()
    ledger.close()


@pytest.mark.parametrize("neighbours", ["sliding", "aligned"])
def test_what_a_pool_may_have_lost_is_spent_and_nothing_else(
    tmp_path: Path, neighbours: Literal["sliding", "aligned"]
) -> None:
    guarantee = ops.Guarantee(epsilon=1, w=W, neighbours=neighbours)
    made = WHOLE.changed(guarantee=guarantee)
    with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
        ledger.create_pool("p", guarantee)
        ledger.create_stream("a", guarantee, pool="p")
        ledger.charge_many(made, {"a": {1: bytes(32)}})
        ledger.forget_since(2)
        # A member of its own from now on, whose own windows are not in the way.
        first = 3 if neighbours == "aligned" else 4
        view = ledger._log.look("\x1dp", 0, 100)
        share = Share("a", first, first * W)
        ledger._pools.check(view, {share: PricedPlan.of(made).id})
        with pytest.raises(ops.BudgetError, match="up to step 11 before"):
            ledger._pools.check(view, {Share("a", first - 1, (first - 1) * W): PricedPlan.of(made).id})
        rest = {one.first: one.epsilon for one in ledger.pool_remaining("p").windows}
        assert set(rest.values()) == {0}


def test_members_spend_one_budget(ledger: ops.Ledger) -> None:
    for name in ("trips", "fares", "zones"):
        member(ledger, name)
    assert ledger.pool("riders").members == ("fares", "trips", "zones")
    ledger.release(HALF, X, stream="trips", period=3)
    made = ledger.release(HALF, X, stream="fares", period=3)
    assert "'fares', 'trips' and 'zones' together, costs at most epsilon = 1 in any window of 4 steps" in str(
        made.statement.scope
    )
    with pytest.raises(ops.BudgetError, match="all members of the pool 'riders'"):
        ledger.release(THIRD, X, stream="zones", period=3)
    ledger.release(WHOLE, X, stream="zones", period=4)
    assert ledger.pool_remaining("riders").epsilon == 0
    left = ledger.remaining("trips")
    assert (left.epsilon, left.pool is not None and left.pool.epsilon) == (Fraction(1, 2), 0)
    assert {entry.pool for entry in ledger.history("trips")} == {"riders"}
    assert true_price(ledger, dict.fromkeys(("trips", "fares", "zones"), W)) == 1
    found = ledger.verify()
    assert (found.problems, found.pools, found.streams) == ((), 1, 3)
    assert ledger.streams == ("fares", "trips", "zones")


def test_a_name_that_does_not_exist_is_no_new_budget(ledger: ops.Ledger) -> None:
    for work in (
        lambda: ledger.release(HALF, X, stream="tirps"),
        lambda: ledger.release_many(HALF, {"tirps": X}),
        lambda: ledger.enrol("tirps", HALF),
        lambda: ops.Stream(HALF, ledger=ledger, name="tirps"),
        lambda: ledger.set_policy("tirps", HALF.guarantee),
        lambda: ledger.create_stream("tirps", HALF.guarantee, pool="walkers"),
    ):
        with pytest.raises(ops.UnknownStreamError, match="is not in the ledger, but must be"):
            work()
    assert ledger.streams == ()
    ledger.release(HALF, X, stream="trips", create=True)
    ledger.create_stream("fares", HALF.guarantee)
    with pytest.raises(ops.ParameterError, match="exists"):
        ledger.create_stream("fares", HALF.guarantee)


def test_who_enrols_late_brings_what_it_was_charged(ledger: ops.Ledger) -> None:
    member(ledger, "trips")
    ledger.release(HALF, X, stream="trips", period=0)
    ledger.create_stream("fares", ops.Guarantee(epsilon=1, w=W))
    ledger.release(HALF, X, stream="fares", period=0)
    ledger.create_stream("zones", ops.Guarantee(epsilon=1, w=W))
    ledger.release(WHOLE, X, stream="zones", period=0)
    with pytest.raises(ops.BudgetError):
        member(ledger, "zones")
    member(ledger, "fares")
    member(ledger, "fares")
    assert ledger.pool("riders").members == ("fares", "trips")
    member(ledger, "stops")
    with pytest.raises(ops.BudgetError):
        ledger.release(THIRD, X, stream="stops", period=0)
    ledger.release(THIRD, X, stream="stops", period=1)
    assert true_price(ledger, {"trips": W, "fares": W, "stops": W}) == 1
    assert ledger.verify().problems == ()


def test_members_of_other_lengths_and_a_replaced_charge(ledger: ops.Ledger) -> None:
    member(ledger, "short", 3)
    member(ledger, "long", 8)
    short, long = mechanism(Fraction(1, 2), 3), mechanism(Fraction(1, 2), 8)
    ledger.charge_many(mechanism(Fraction(1), 3), {"short": {1: bytes(32)}})
    with pytest.raises(ops.BudgetError):
        ledger.release(long, np.tile(X, 2), stream="long", period=0)
    # Nothing has left for it: another plan takes its place, in the pool too.
    ledger.release(short, X[:3], stream="short", period=1)
    ledger.release(long, np.tile(X, 2), stream="long", period=0)
    for period in (0, 2, 3, 4, 5):
        try:
            ledger.release(short, X[:3], stream="short", period=period)
        except ops.BudgetError:
            worst = ledger.pool_remaining("riders").epsilon
            assert worst < Fraction(1, 2)
    assert true_price(ledger, {"short": 3, "long": 8}) == 1 - ledger.pool_remaining("riders").epsilon <= 1
    assert ledger.verify().problems == ()


def test_what_does_not_go_with_a_pool_is_refused(ledger: ops.Ledger) -> None:
    ledger.create_stream("hours", ops.Guarantee(epsilon=1, w=W), pool="riders", clock="1h from noon")
    assert ledger.pool("riders").clock == "1h from noon"
    with pytest.raises(ops.ParameterError, match="counts 1h from dawn, but members of 'riders' count 1h from noon"):
        ledger.create_stream("days", ops.Guarantee(epsilon=1, w=W), pool="riders", clock="1h from dawn")
    with pytest.raises(ops.ParameterError, match="neighbours"):
        ledger.create_stream("other", ops.Guarantee(epsilon=1, w=W, neighbours="aligned"), pool="riders")
    with pytest.raises(ops.ParameterError, match="exists"):
        ledger.create_pool("riders", ops.Guarantee(epsilon=1, w=W))
    ledger.create_pool("walkers", ops.Guarantee(epsilon=1, w=W))
    with pytest.raises(ops.ParameterError, match="member of 'riders' already"):
        ledger.create_stream("hours", ops.Guarantee(epsilon=1, w=W), pool="walkers")


def test_a_missing_share_is_found(ledger: ops.Ledger) -> None:
    member(ledger, "trips")
    ledger.release(HALF, X, stream="trips", period=0)
    with ledger._database.transaction() as change:
        change.write("DELETE FROM optstream_entries WHERE kind = ?", ("share",))
    assert ledger.verify().problems == ("the pool 'riders' does not hold what its members were charged",)


def test_bulk_and_keys_and_restored_ledgers_know_pools(ledger: ops.Ledger) -> None:
    names = ["a", "b", "c", "d"]
    for name in names:
        member(ledger, name)
    with pytest.raises(ops.BudgetError):
        ledger.release_many(THIRD, dict.fromkeys(names, np.tile(X, 5)))
    assert all(not ledger.history(name) for name in names)
    ledger.release_many(THIRD, dict.fromkeys(names[:3], np.tile(X, 5)))
    assert true_price(ledger, dict.fromkeys(names, W)) == 1
    ledger.forget_since(6)
    for period in (6, 7):
        with pytest.raises((ops.BudgetError, ops.ConflictError)):
            ledger.release(THIRD, X, stream="d", period=period)
    ledger.release(THIRD, X, stream="d", period=8)
    assert ledger.verify().problems == ()


def test_a_pool_is_divided_so_that_relative_errors_are_equal(ledger: ops.Ledger) -> None:
    made = ledger.pool("riders").split({"trips": HALF, "fares": WHOLE}, {"trips": 100, "fares": 300})
    errors = {name: one.noise_scale / level for (name, one), level in zip(made.items(), (100, 300), strict=True)}
    assert errors["trips"] == pytest.approx(errors["fares"], rel=1e-4)
    assert 0.99999 < sum(one.guarantee.epsilon for one in made.values()) <= 1
    weighted = ledger.pool("riders").split({"a": HALF, "b": HALF}, {"a": 1, "b": 1}, {"b": 2})
    assert weighted["b"].noise_scale == pytest.approx(2 * weighted["a"].noise_scale, rel=1e-4)


def race(url: str, seed: int) -> None:
    order = np.random.default_rng([seed, os.getpid()])
    plans = [THIRD, HALF, mechanism(Fraction(1, 5))]
    with ops.Ledger(url, timeout=300) as ledger:
        for _ in range(25):
            name, period = f"s{order.integers(5)}", int(order.integers(8))
            try:
                ledger.release(plans[int(order.integers(3))], X + int(order.integers(2)), stream=name, period=period)
            except (ops.BudgetError, ops.ConflictError):
                continue


def test_races_of_eight_processes_on_a_pool_of_five(ledger: ops.Ledger, ledger_url: str) -> None:
    for index in range(5):
        member(ledger, f"s{index}")
    context = multiprocessing.get_context("spawn")
    members = [context.Process(target=race, args=(ledger_url, seed)) for seed in range(8)]
    for one in members:
        one.start()
    for one in members:
        one.join()
        assert one.exitcode == 0
    assert true_price(ledger, {f"s{index}": W for index in range(5)}) <= 1
    found = ledger.verify()
    assert found.problems == ()
    assert found.releases > 5


def test_a_smaller_policy_of_a_pool_holds_for_what_is_charged(ledger: ops.Ledger, ledger_url: str) -> None:
    member(ledger, "trips")
    member(ledger, "fares")
    key = ops.CuratorKey(bytes(range(32)))
    for period in (0, 2):
        digests = {period: ops.data_digest(key, "trips", period, HALF.read(X).units[0])}
        ledger.charge_many(HALF, {"trips": digests})
    with ops.Ledger(ledger_url) as other:
        other.set_pool_policy("riders", ops.Guarantee(epsilon=Fraction(1, 4), w=W))
        for work in (
            lambda: ledger.release(HALF, X, stream="trips", period=0),
            lambda: ledger.release_many(HALF, {"trips": X}, period=2),
            lambda: other.release(HALF, X, stream="trips", period=0),
        ):
            with pytest.raises(ops.BudgetError, match="all members of the pool 'riders' cost 1/2"):
                work()
        other.set_pool_policy("riders", ops.Guarantee(epsilon=1, w=W))
        ledger.release(HALF, X, stream="trips", period=0)


def test_a_pool_says_which_charges_its_shares_are(ledger: ops.Ledger) -> None:
    for name in ("trips", "fares"):
        member(ledger, name)
    ledger.release_many(THIRD, {"trips": np.tile(X, 3), "fares": np.tile(X, 2)})
    ledger.release(THIRD, np.tile(X, 2), stream="trips", period=5)
    asked = "SELECT stream, period, charge, content, number FROM optstream_entries WHERE kind = ? ORDER BY number"
    with ledger._database.transaction(write=False) as reading:
        shares, charges = (reading.rows(asked, (kind,)) for kind in ("share", "charge"))
    said = {(*json.loads(bytes(content)), start, charge) for _, start, charge, content, _ in shares}
    assert said == {(stream, period, period * W, number) for stream, period, _, _, number in charges}
