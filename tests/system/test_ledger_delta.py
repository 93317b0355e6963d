"""A ledger with a delta: Gaussian costs add up in rho, window by window, whatever is charged in whatever order."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest

import optstream as ops
from optstream.privacy.gaussian import WORTH, epsilon_from, rho_from

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

W, DELTA = 8, Fraction(1, 10**6)
GUARANTEE = ops.Guarantee(epsilon=1, w=W, delta=DELTA)
X = np.full(W, 50.0)


def gaussian(k: int = W, epsilon: Fraction = Fraction(1)) -> ops.OptStream:
    guarantee = GUARANTEE.with_epsilon(epsilon)
    return ops.OptStream(guarantee, sample=ops.EqualSampling(k), bounds=(0, 100), perturb=ops.GaussianNoise())


PURE = ops.OptStream(GUARANTEE, sample=ops.EqualSampling(W), bounds=(0, 100))
MIXED = ops.OptStream(
    GUARANTEE, sample=ops.L1Sampling(k=4, threshold=10.0), bounds=(0, 100), perturb=ops.GaussianNoise()
)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[ops.Ledger]:
    with ops.Ledger(tmp_path / "ledger.db", create=True) as made:
        yield made


def run(arguments: list[str]) -> str:
    done = subprocess.run([sys.executable, "-m", "optstream", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rho_of_window(charged: Mapping[int, ops.OptStream], first: int) -> Fraction:
    """What a window of equal or pure samples costs in rho, by definition; nothing is taken from the accountant."""
    total = Fraction(0)
    for period, mechanism in charged.items():
        (level,) = mechanism.levels
        plan = level.plan
        scale = Fraction(*plan.sample_scale)
        measured = [step + period * W for step in mechanism.sample.steps(W)]  # type: ignore[union-attr]
        inside = sum(first <= step < first + W for step in measured)
        if isinstance(mechanism.perturb, ops.GaussianNoise):
            total += inside * Fraction(plan.sensitivity) ** 2 / (2 * (scale**2 - 8))
        else:
            total += WORTH * (inside * Fraction(plan.sensitivity) / scale) ** 2
    return total


def test_no_order_of_charges_lets_a_window_cost_more_than_the_policy(ledger: ops.Ledger) -> None:
    rng, limit, refused = np.random.default_rng(7), rho_from(Fraction(1), DELTA), 0
    menu = [gaussian(), gaussian(2), gaussian(epsilon=Fraction(1, 2)), gaussian(3, Fraction(1, 3)), PURE]
    for trial in range(3):
        charged: dict[int, ops.OptStream] = {}
        ledger.set_policy(f"stream {trial}", GUARANTEE)
        for period in rng.permutation(6):
            mechanism = menu[rng.integers(len(menu))]
            try:
                ledger.release(mechanism, X, stream=f"stream {trial}", period=int(period))
            except ops.BudgetError:
                refused += 1
                # It was right to refuse: some window would have been over.
                charged_too = {**charged, int(period): mechanism}
            else:
                charged[int(period)] = mechanism
                charged_too = {}
            windows = range(-W, 7 * W)
            assert all(rho_of_window(charged, first) <= limit or _pure(charged, first) for first in windows)
            if charged_too:
                assert any(
                    rho_of_window(charged_too, first) > limit and not _pure(charged_too, first) for first in windows
                )
    assert refused
    assert ledger.verify().problems == ()


def _pure(charged: Mapping[int, ops.OptStream], first: int) -> bool:
    return not any(
        first <= step + period * W < first + W
        for period, made in charged.items()
        if isinstance(made.perturb, ops.GaussianNoise)
        for step in made.sample.steps(W)  # type: ignore[union-attr]
    )


def test_a_policy_keeps_its_delta(tmp_path: Path) -> None:
    with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
        release = ledger.release(gaussian(), X, stream="visits")
        assert release.statement.epsilon == ledger.history("visits")[0].epsilon <= 1
        assert "1e-06" in str(release.statement)
    with ops.Ledger(tmp_path / "ledger.db") as ledger:
        assert ledger.policy("visits") == GUARANTEE
        left = ledger.remaining("visits")
        assert left.epsilon == 1 - release.statement.epsilon
        # A window of half of the steps costs half of rho, which is more than half of epsilon.
        (half,) = {window.epsilon for window in left.windows if window.first <= W // 2 <= window.last}
        assert half == 1 - epsilon_from(rho_of_window({0: gaussian()}, W // 2), DELTA) < Fraction(1, 2)
        for other in (ops.Guarantee(epsilon=1, w=W), ops.Guarantee(epsilon=1, w=W, delta=1e-9)):
            mechanism = ops.OptStream(other, sample=ops.EqualSampling(W), bounds=(0, 100))
            with pytest.raises(ops.ParameterError, match="mechanism has delta"):
                ledger.release(mechanism, X, stream="visits", period=1)
        with pytest.raises(ops.ParameterError, match="policy has delta = 0"):
            ledger.set_policy("visits", ops.Guarantee(epsilon=9, w=W))
        with pytest.raises(ops.BudgetError, match="would make a window cost"):
            ledger.release(PURE, X, stream="visits", period=1)
        ledger.release(PURE, X, stream="visits", period=2)
        with pytest.raises(ops.BudgetError, match="would make a window cost"):
            ledger.release(MIXED, X, stream="visits", period=1)
        ledger.set_policy("visits", ops.Guarantee(epsilon=1, w=W, delta=1e-9))
        with pytest.raises(ops.ParameterError, match="mechanism has delta"):
            ledger.release(gaussian(), X, stream="visits", period=5)
        assert any("over its policy" in problem for problem in ledger.verify().problems)


def test_members_of_a_pool_add_up_in_rho(ledger: ops.Ledger) -> None:
    policy = GUARANTEE.with_epsilon(Fraction(3, 2))
    ledger.create_pool("people", policy)
    ledger.create_pool("pure", ops.Guarantee(epsilon=9, w=W))
    with pytest.raises(ops.ParameterError, match="but the pool 'pure' has none"):
        ledger.create_stream("visits", GUARANTEE, pool="pure")
    for name in ("visits", "fares", "trips"):
        ledger.create_stream(name, GUARANTEE, pool="people")
    rho = {name: rho_of_window({0: gaussian()}, 0) for name in ("visits", "fares")}
    for name in rho:
        release = ledger.release(gaussian(), X, stream=name)
    assert "with delta = 1e-06" in release.statement.scope
    # Two epsilons of 1 are far less than 2 together.
    price = epsilon_from(sum(rho.values()), DELTA)
    assert ledger.pool_remaining("people").epsilon == policy.epsilon - price > 0
    with pytest.raises(ops.BudgetError, match="over all members"):
        ledger.release(gaussian(), X, stream="trips")
    assert ledger.verify().problems == ()


def test_what_is_lost_is_charged_in_full(ledger: ops.Ledger) -> None:
    ledger.release(gaussian(), X, stream="visits")
    ledger.forget_since(2)
    with pytest.raises(ops.ConflictError, match="may have left"):
        ledger.release(gaussian(epsilon=Fraction(1, 100)), X, stream="visits", period=3)
    assert ledger.remaining("visits").epsilon == 0
    ledger.release(gaussian(), X, stream="visits", period=4)
    assert ledger.verify().problems == ()


def test_a_stream_releases_by_step_and_tunes_itself(tmp_path: Path) -> None:
    steps = gaussian()
    with ops.Ledger(tmp_path / "steps.db", create=True) as ledger:
        stream = ops.Stream(steps, ledger=ledger, name="visits", emit="step")
        for step in range(2 * W):
            stream.push(step, 50.0)
        assert ledger.remaining("visits").epsilon >= 0
        assert ledger.verify().problems == ()
    mechanism = ops.OptStream.auto(ops.Guarantee(epsilon=1, w=24, delta=1e-6), bounds=(0, 1000))
    with ops.Ledger(tmp_path / "auto.db", create=True) as ledger:
        rng = np.random.default_rng(5)
        for period in range(9):
            release = ledger.release(mechanism, rng.uniform(400, 600, 24), stream="loads", period=period)
            assert release.statement.epsilon <= 1
        assert ledger.verify().problems == ()


def test_the_command_line_carries_a_delta(tmp_path: Path) -> None:
    data, book = (str(tmp_path / name) for name in ("data.csv", "ledger.db"))
    (tmp_path / "data.csv").write_text("\n".join(["visits", *itertools.repeat("50", 48)]) + "\n")
    options = ["--epsilon", "1", "--w", "48", "--alpha", "1", "--delta", "1e-6"]
    run(["ledger", "init", book])
    run(["ledger", "stream", "create", book, "visits", "--epsilon", "1", "--w", "48", "--delta", "1e-6"])
    bounds = ["--lower", "0", "--upper", "1000", "--k", "48", "--noise", "gaussian"]
    run(["release", data, *options, *bounds, "--ledger", book, "--stream", "visits", "--first-period", "0"])
    (account,) = json.loads(run(["ledger", "show", book, "--json"]))["streams"]
    assert account["policy"]["delta"] == "1/1000000"
    assert account["charged"] == 1
