"""The auditor catches what is known to be broken, accuses nothing that ships, and proves nothing that is not true."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import typer
from broken import VARIANTS, Broken, float_laplace
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from shipped import PERIODS, PRIMITIVES, Shipped, laplace, laplace_density
from typer.main import get_command

import optstream as ops
from optstream.audit import Attack, Audit, Pair, audit, pairs_of, window_pairs
from optstream.audit.bounds import choose, higher, loss, lower
from optstream.audit.pairs import check_neighbours
from optstream.cli.audit import audit as command
from optstream.cli.exits import report

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

ONE_STEP = [Pair("one step", np.array([50.0]), np.array([51.0]))]
GOOD: dict[str, Any] = {"trials": 1000, "claimed": 1, "neighbours": ONE_STEP}


def small(**options: Any) -> ops.OptStream:
    guarantee = ops.Guarantee(epsilon=1, w=4, neighbours=options.pop("neighbours", "sliding"))
    return ops.OptStream(guarantee, **{"sample": ops.EqualSampling(k=4), "bounds": (0, 100), **options})


# Verdicts.


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_every_broken_variant_is_caught(variant: Broken) -> None:
    found = audit(
        variant.mechanism,
        trials=variant.trials,
        claimed=variant.claimed,
        delta=variant.delta,
        neighbours=variant.neighbours,
    )
    assert found.verdict == "broken", str(found)
    assert found.proven > 1.04 * variant.claimed, f"caught, but hardly:\n{found}"


@pytest.mark.slow
@pytest.mark.parametrize("shipped", [*PRIMITIVES, *PERIODS], ids=lambda shipped: shipped.name)
def test_nothing_that_ships_is_accused(shipped: Shipped) -> None:
    found = audit(
        shipped.mechanism,
        trials=1200 if shipped.slow else 20_000,
        confidence=1 - 1e-6,
        claimed=shipped.claimed,
        neighbours=shipped.neighbours,
        likelihood=shipped.likelihood,
    )
    assert found.verdict == "consistent", str(found)


@pytest.mark.slow
def test_the_proof_comes_close_to_the_claim() -> None:
    found = audit(laplace, trials=1_000_000, claimed=1, neighbours=ONE_STEP, likelihood=laplace_density)
    assert 0.97 < found.proven <= 1, str(found)
    assert 0.9 < audit(small(), trials=400_000, neighbours=pairs_of(small())[:1]).proven <= 1


def test_the_claim_of_a_mechanism_is_its_statement() -> None:
    printed = small(sample=ops.EqualSampling(k=2), features=[ops.Feature.total(4)], calibration="paper")
    pairs = pairs_of(printed)[:1]
    honest = audit(printed, trials=20_000, neighbours=pairs)
    assert (honest.claimed, honest.verdict) == (float(printed.statement.epsilon), "consistent")
    assert audit(printed, trials=20_000, neighbours=pairs, claimed=1).verdict == "broken"


def test_what_an_estimate_is_made_from_is_attacked() -> None:
    # Estimates remember, so runs of one call would not be independent; near the claim only if measured values are seen.
    estimated = audit(small(reconstruct=ops.Estimate()), trials=60_000, neighbours=pairs_of(small())[:1])
    assert 0.6 < estimated.proven <= 1, str(estimated)


def test_pairs_can_be_worked_on_in_several_processes() -> None:
    found = audit(small(), trials=4000, processes=2)
    assert [attack.neighbours for attack in found.attacks] == [pair.name for pair in pairs_of(small())]
    assert found.verdict == "consistent"


def test_the_same_output_whatever_the_input_proves_nothing() -> None:
    found = audit(lambda x: np.zeros((len(x), 1)), trials=2000, claimed=0.1, neighbours=ONE_STEP)
    assert found.proven == 0
    assert found.verdict == "consistent"


def test_an_output_without_noise_is_caught() -> None:
    found = audit(lambda x: x, trials=2000, claimed=3, neighbours=ONE_STEP)
    assert found.verdict == "broken"
    assert found.attacks[0].estimate == math.inf


# What is proven is true.


def test_a_false_accusation_is_as_rare_as_stated() -> None:
    """At confidence 1/2 half of all audits may accuse a mechanism without slack: 130 of 200 is beyond four sigma."""
    generator = np.random.default_rng()

    def mechanism(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(generator.laplace(x, 1.0))

    options: dict[str, Any] = {"claimed": 1, "neighbours": ONE_STEP, "likelihood": laplace_density}
    audits = [audit(mechanism, trials=1000, confidence=0.5, **options) for _ in range(200)]
    accused = sum(found.verdict == "broken" for found in audits)
    # With a claim that is too small the same harness must accuse, or the first count would show nothing.
    assert audit(mechanism, trials=20_000, confidence=0.5, **(options | {"claimed": 0.8})).verdict == "broken"
    assert accused < 130


@given(st.integers(1, 5000), st.data(), st.sampled_from([1e-9, 1e-3, 0.3]))
def test_bounds_are_those_of_clopper_and_pearson(n: int, data: st.DataObject, error: float) -> None:
    count = data.draw(st.integers(0, n))
    exact = stats.binomtest(count, n).proportion_ci(1 - 2 * error, method="exact")
    assert float(lower(count, n, error)) == pytest.approx(exact.low, rel=1e-6, abs=1e-12)
    assert float(higher(count, n, error)) == pytest.approx(exact.high, rel=1e-6, abs=1e-12)


def test_the_event_that_is_chosen_proves_most() -> None:
    generator = np.random.default_rng(1)
    first, second = generator.laplace(1, 1, 20_000), generator.laplace(0, 1, 20_000)
    proven, event = choose(first, second, 1e-3)
    assert proven == pytest.approx(float(loss(*event.counts(first, second), 20_000, 1e-3)))
    assert proven >= float(loss(np.sum(first >= 1), np.sum(second >= 1), 20_000, 1e-3)) - 0.01


def test_a_known_density_proves_no_less_than_what_is_learnt() -> None:
    pair = [Pair("window of 6", np.full(6, 50.0), np.full(6, 51.0))]
    options: dict[str, Any] = {"trials": 500_000, "claimed": 1, "neighbours": pair}
    known, learned = audit(laplace, likelihood=laplace_density, **options), audit(laplace, **options)
    assert known.proven > learned.proven - 0.2


# Neighbours.


@settings(max_examples=40, deadline=None)
@given(
    w=st.integers(1, 12),
    alpha=st.sampled_from([0.1, 1.0, 3.7]),
    aligned=st.booleans(),
    low=st.sampled_from([-7.3, 0.0, 0.1]),
    tree=st.booleans(),
    adaptive=st.booleans(),
)
def test_every_pair_is_one_that_the_guarantee_speaks_of(
    *, w: int, alpha: float, aligned: bool, low: float, tree: bool, adaptive: bool
) -> None:
    k = min(max(w // 2, 2), w)
    mechanism = ops.OptStream(
        ops.Guarantee(epsilon=1, w=w, alpha=alpha, neighbours="aligned" if aligned else "sliding"),
        sample=ops.L1Sampling(k=k, threshold=20.0) if adaptive else ops.EqualSampling(k=k),
        bounds=(low, low + 100),
        hierarchy=ops.Hierarchy({"city": None, "north": "city", "south": "city"}) if tree else None,
    )
    pairs = pairs_of(mechanism)
    assert len(pairs) >= 5
    for pair in pairs:
        check_neighbours(pair, mechanism)
        # All that the bounds leave changes by alpha, up to rounding.
        assert np.abs(pair.x - pair.other).max() == pytest.approx(alpha)
    assert any("straddling" in pair.name for pair in pairs) == (not aligned and w > 1)


def test_a_straddling_sample_meets_as_many_samples_as_the_accountant_fears() -> None:
    mechanism = ops.OptStream(
        ops.Guarantee(epsilon=100, w=12),
        sample=ops.L1Sampling(k=4, threshold=10_000.0),
        bounds=(0, 1_000_000),
    )
    pair = next(pair for pair in pairs_of(mechanism) if pair.name == "straddling samples")
    chosen = mechanism.release(pair.x)._knots + np.array([[0], [12]])
    assert np.count_nonzero((pair.x != pair.other)[chosen.ravel()]) == 2 * 4 - 2


def flat(value: float, steps: int = 4) -> NDArray[np.float64]:
    return np.full(steps, value)


@pytest.mark.parametrize(
    ("x", "other", "message"),
    [
        (flat(50), flat(51.5), "differs by 1.5"),
        (flat(50), flat(50), "twice the same"),
        (flat(50, 5), flat(51, 5), "whole periods"),
        (flat(50, 8), flat(51, 8), "no protected window"),
        (flat(50).reshape(4, 1), flat(51).reshape(4, 1), "whole periods"),
    ],
)
def test_a_pair_of_strangers_is_refused(x: NDArray[np.float64], other: NDArray[np.float64], message: str) -> None:
    with pytest.raises(ops.ParameterError, match=message):
        audit(small(), trials=1000, neighbours=[Pair("strangers", x, other)])


def test_an_aligned_guarantee_does_not_speak_of_straddling_windows() -> None:
    x = flat(50, 8)
    pair = Pair("straddling", x, x + np.array([0, 0, 1, 1, 1, 1, 0, 0]))
    check_neighbours(pair, small())
    with pytest.raises(ops.ParameterError, match="no protected window"):
        check_neighbours(pair, small(neighbours="aligned"))


def test_one_entity_is_in_one_leaf() -> None:
    tree = small(hierarchy=ops.Hierarchy({"city": None, "north": "city", "south": "city"}))
    with pytest.raises(ops.ParameterError, match="several leaves"):
        check_neighbours(Pair("two leaves", np.full((4, 2), 50.0), np.full((4, 2), 51.0)), tree)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trials": 10}, "trials is 10"),
        ({"confidence": 1.0}, "confidence is 1.0"),
        ({"claimed": None}, "claimed must be given"),
        ({"neighbours": None}, "neighbours must be given"),
    ],
)
def test_parameters_that_make_no_audit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ops.ParameterError, match=message):
        audit(float_laplace, **GOOD | options)


def test_types_are_checked() -> None:
    with pytest.raises(ops.ParameterTypeError, match="trials is of type float"):
        audit(small(), trials=1e5)  # type: ignore[arg-type]
    with pytest.raises(ops.ParameterTypeError, match="a mechanism or callable"):
        audit("laplace")  # type: ignore[arg-type]
    with pytest.raises(ops.ParameterError, match="returned 1 rows"):
        audit(lambda x: x[:1], trials=1000, claimed=1, neighbours=ONE_STEP)
    with pytest.raises(ops.ParameterError, match="NaN or infinite"):
        audit(lambda x: x * np.nan, **GOOD)
    with pytest.raises(ops.ParameterError, match="likelihood is given"):
        audit(small(), trials=1000, likelihood=laplace_density)
    with pytest.raises(ops.ParameterError, match="not finite"):
        Pair("nothing", np.array([np.nan]), np.array([1.0]))
    with pytest.raises(ops.ParameterError, match="shapes"):
        Pair("two shapes", np.zeros(1), np.zeros(2))


def test_bounds_choose_where_the_pairs_lie() -> None:
    names = [pair.name for pair in window_pairs(1, 1.0, bounds=(-5, 5), grid=1.0)]
    assert names[-2:] == ["grid ties", "grid ties around zero"]
    ties = window_pairs(1, 1.0, bounds=(-5, 5), grid=1.0)[-1]
    assert (ties.x[0], ties.other[0]) == (-0.5, 0.5)


# Reports.

FOUND = Audit(
    "example",
    1.0,
    (Attack("one step", "sum at least 3", 2.5, math.inf, 1000), Attack("two steps", "sum at most 1", 0.0, 0.1, 1000)),
    0.999,
)


def test_a_report_says_what_was_found() -> None:
    assert (FOUND.verdict, FOUND.proven, FOUND.runs) == ("broken", 2.5, 4000)
    content = json.loads(FOUND.to_json())
    assert content["attacks"][0]["estimate"] is None
    assert content["verdict"] == "broken"
    assert "one step" in str(FOUND)
    assert "| two steps | 1 | 0.0000 | 0.1000 | 1,000 | sum at most 1 |" in FOUND.to_markdown()


def test_a_picture_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    FOUND.plot(tmp_path / "audit.png")
    assert (tmp_path / "audit.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ops.ParameterError, match="cannot be written as 'txt'"):
        FOUND.plot(tmp_path / "audit.txt")


# The command.

PLAN = """
epsilon = 1
w = 4
alpha = 1
bounds = [0, 100]
sample = { kind = "equal", k = 2 }
features = [[]]
"""


def run(*arguments: object) -> int:
    """Run the command as the application does."""
    app = typer.Typer()
    app.command()(command)
    try:
        return get_command(app).main([str(argument) for argument in arguments], standalone_mode=False) or 0
    except Exception as error:  # noqa: BLE001  (as the application does)
        return report(error, as_json="--json" in arguments)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    return path


def test_the_command_says_what_it_found(plan: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("--plan", plan, "--trials", 2000, "-o", tmp_path / "report.md") == 0
    said = capsys.readouterr()
    assert said.out.startswith("plan.toml: consistent\n")
    assert "straddling window" in said.out
    assert said.err.startswith("consistent: epsilon is at least ")
    assert (tmp_path / "report.md").read_text().startswith("**plan.toml**: consistent.")


def test_the_command_ends_with_7_if_a_promise_is_broken(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan.write_text(PLAN + 'calibration = "paper"\n')
    assert run("--plan", plan, "--trials", 20_000, "--claimed", 1, "--json") == 7
    content = json.loads(capsys.readouterr().out)
    assert content["verdict"] == "broken"
    assert content["proven"] > 1


def test_the_command_writes_a_picture(plan: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert run("--plan", plan, "--trials", 1000, "--plot", tmp_path / "audit.svg") == 0
    assert b"<svg" in (tmp_path / "audit.svg").read_bytes()


def test_the_command_refuses_what_makes_no_sense(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--mechanism", "pegasus", "--plan", plan) == 2
    assert run("--plan", plan, "--trials", 5) == 2
    assert run("--plan", plan, "--confidence", 2) == 3
    assert "confidence is 2.0" in capsys.readouterr().err
    assert run("--plan", plan, "-o", plan) == 2


def test_the_command_finds_a_bad_picture_before_the_work(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert run("--plan", plan, "--trials", 10**12, "--plot", plan.with_name("audit.txt")) == 3
    assert "cannot be written as 'txt'" in capsys.readouterr().err
