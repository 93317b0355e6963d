"""Plans describe mechanisms completely, and what is wrong with one is said in words."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import optstream as ops
from optstream import baselines
from optstream.mechanism.description import describe, digest
from optstream.mechanism.members import pool_of
from optstream.mechanism.plan import build
from optstream.privacy.accounting import epsilon_of

if TYPE_CHECKING:
    from pathlib import Path

W = 12
GOOD = {"epsilon": 1, "w": W, "alpha": 1.0, "bounds": [0, 100], "sample": {"kind": "equal", "k": 4}}

features = st.lists(
    st.sampled_from(
        [
            ops.Feature.total(W),
            ops.Feature.cuts(W, 4, 8),
            ops.Feature.cuts(W, 6),
            ops.Feature([range(0, W, 2), range(1, W, 2)]),
        ]
    ),
    max_size=2,
    unique=True,
)


@st.composite
def mechanisms(draw: st.DrawFn) -> ops.OptStream:
    samples: list[ops.EqualSampling | ops.L1Sampling] = [
        ops.EqualSampling(k=2),
        ops.EqualSampling(k=W),
        ops.L1Sampling(k=5, threshold=12.5),
        ops.L1Sampling(k=5, threshold=12.5, constant_time=False),
    ]
    tree = draw(st.sampled_from([None, ops.Hierarchy.nested({"z": {"b": ["d", "c"], "a": None}})]))
    return ops.OptStream(
        ops.Guarantee(
            epsilon=draw(st.fractions(Fraction(1, 100), 10)),
            w=W,
            alpha=draw(st.sampled_from([1.0, 0.1, 250.0])),
            neighbours=draw(st.sampled_from(["sliding", "aligned"])),
        ),
        sample=draw(st.sampled_from(samples)),
        features=draw(features),
        bounds=(-5, draw(st.floats(1, 1e6))),
        calibration=draw(st.sampled_from(["sound", "paper"])),
        hierarchy=tree,
        level_split=None if tree is None else (1, 2, Fraction(1, 3)),
    )


@settings(max_examples=60, deadline=None)
@given(mechanisms())
def test_a_description_makes_the_same_mechanism(made: ops.OptStream) -> None:
    again = build(describe(made))
    assert again == made
    assert again.digest == made.digest == digest(made.description)
    assert again.statement == made.statement
    if made.hierarchy is not None and again.hierarchy is not None:
        assert again.hierarchy.nodes == made.hierarchy.nodes


@settings(max_examples=60, deadline=None)
@given(mechanisms(), mechanisms())
def test_different_mechanisms_have_different_digests(one: ops.OptStream, other: ops.OptStream) -> None:
    assert (one.digest == other.digest) == (one == other)


def test_a_file_keeps_what_was_written(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(
        'epsilon = 0.1\nw = 48\nalpha = 10.0\nbounds = [0, 20_000]\nneighbours = "aligned"\n'
        'sample = { kind = "l1", k = 10, threshold = 1000.0 }\nfeatures = [[14, 24, 36], []]\nsplit = [1, 1, "1/3"]\n'
        '[hierarchy]\nnation = { north = ["a", "b"], south = [] }\n'
    )
    made = ops.read_plan(file)
    assert isinstance(made, ops.OptStream)
    assert made.guarantee == ops.Guarantee(epsilon=Fraction(1, 10), w=48, alpha=10.0, neighbours="aligned")
    assert made.sample == ops.L1Sampling(k=10, threshold=1000.0)
    assert made.features == (ops.Feature.cuts(48, 14, 24, 36), ops.Feature.total(48))
    assert made.split == (Fraction(3, 7), Fraction(3, 7), Fraction(1, 7))
    assert made.hierarchy == ops.Hierarchy.nested({"nation": {"north": ["a", "b"], "south": None}})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilom": 1}, "unknown key 'epsilom'; did you mean 'epsilon'"),
        ({"bounds": [0]}, "bounds have 1 entries, but must be a pair"),
        ({"bounds": 7}, "bounds is of type int, but must be an array"),
        ({"bounds": [100, 0]}, "100"),
        ({"epsilon": "one"}, "epsilon is 'one', but must be a number such as 0.1"),
        ({"epsilon": 0}, "epsilon is 0, but must be positive"),
        ({"epsilon": "1/0"}, "epsilon is '1/0'"),
        ({"w": "48"}, "w is of type str"),
        ({"alpha": True}, "alpha is of type bool"),
        ({"sample": {"kind": "equl", "k": 4}}, "sample has the kind 'equl', but must have one of 'equal', 'l1'"),
        ({"sample": {"kind": [], "k": 4}}, r"sample has the kind \[\]"),
        ({"sample": 3}, "sample has the kind None"),
        ({"sample": {"kind": "equal"}}, "sample has no 'k'"),
        ({"sample": {"kind": "equal", "k": 13}}, "k is 13, but must be from 2 to w = 12"),
        ({"sample": {"kind": "l1", "k": 4, "threshold": "x"}}, "threshold is of type str"),
        ({"features": [[4, 2]]}, "cuts are"),
        ({"features": 3}, "features is of type int, but must be an array"),
        ({"features": [{"label": []}]}, "features has an unknown key 'label'; did you mean 'labels'"),
        ({"neighbours": []}, r"neighbours is \[\], but must be 'sliding' or 'aligned'"),
        ({"calibration": "fast"}, "calibration is 'fast'"),
        ({"hierarchy": 3}, "tree is of type int"),
        ({"hierarchy": {"nation": 3}}, "tree maps 'nation' to int"),
        ({"hierarchy": {"nation": "ab"}}, "tree maps 'nation' to str"),
        ({"hierarchy": {"nation": [["a"]]}}, "node of type list"),
        ({"level_split": [1]}, "level_split has 1 shares"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, Any], message: str) -> None:
    with pytest.raises((ops.ParameterError, ops.ParameterTypeError), match=message):
        build(GOOD | change)


@pytest.mark.parametrize("key", list(GOOD))
def test_what_is_missing_is_said(key: str) -> None:
    with pytest.raises(ops.ParameterError, match=f"plan has no '{key}'"):
        build({name: value for name, value in GOOD.items() if name != key})


def test_a_file_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    for content in (b"epsilon: 1", b"\xff\xfe", b"epsilon = 1\nepsilon = 2\n"):
        (tmp_path / "plan.toml").write_bytes(content)
        with pytest.raises(ops.ParameterError, match="is not TOML"):
            ops.read_plan(tmp_path / "plan.toml")
    with pytest.raises(ops.ParameterError, match="cannot be read"):
        ops.read_plan(tmp_path / "nothing.toml")


POOL: dict[str, Any] = {
    "epsilon": 1,
    "w": 4,
    "entity": "rider",
    "entities": "moving",
    "bounds": [0, 9],
    "stream": {
        "trips": {"share": 2, "alpha": 1, "sample": {"kind": "equal", "k": 4}},
        "fares": {"share": 1, "alpha": 2.5, "sample": {"kind": "bucket", "k": 1}},
    },
}


def changed(member: str, **changes: Any) -> dict[str, Any]:
    tables = POOL["stream"] | {member: {k: v for k, v in (POOL["stream"][member] | changes).items() if v is not None}}
    return POOL | {"stream": tables}


def test_members_of_a_pool_share_its_epsilon() -> None:
    plan = pool_of(POOL)
    shares = {name: made.guarantee.epsilon for name, made in plan.members.items()}
    assert shares == {"trips": Fraction(2, 3), "fares": Fraction(1, 3)}
    assert {made.guarantee.entity for made in plan.members.values()} == {"rider"}
    assert plan.epsilon == 1
    # Windows over all members cost no more, and here exactly, what the costs of all add up to.
    both = [cost for made in plan.members.values() for cost in made.costs]
    assert epsilon_of(both, plan.guarantee) == 1
    assert "any 4 steps" not in str(plan)
    assert "Any window of 4 steps of all of them together costs at most epsilon = 1" in str(plan)
    assert "entity" not in str(plan)
    assert json.loads(plan.to_json())["members"]["fares"]["epsilon_true"] == "1/3"


def test_relative_errors_are_equal_or_as_weighted() -> None:
    tables = {"trips": {"share": None, "typical": 100}, "fares": {"share": None, "typical": 1000, "weight": 2}}
    content = POOL
    for name, changes in tables.items():
        content = content | {"stream": content["stream"] | {name: changed(name, **changes)["stream"][name]}}
    plan = pool_of(content)
    relative = [plan.members["trips"].noise_scale / 100, plan.members["fares"].noise_scale / 1000]
    assert relative[1] == pytest.approx(2 * relative[0], rel=1e-3)
    assert Fraction(999, 1000) < plan.epsilon <= 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (POOL | {"stream": {}}, "stream holds no table"),
        (POOL | {"stream": 3}, "stream holds no table"),
        (POOL | {"stream": {"a": 3}}, "stream.a is of type int"),
        (changed("trips", w=8), "stream.trips has an unknown key 'w'"),
        (changed("trips", epsilon=1), "stream.trips has an unknown key 'epsilon'"),
        (changed("fares", share=None), "stream.fares has no 'share', but must have it, or all members 'typical'"),
        (changed("fares", share=-1), "share"),
        (changed("fares", typical=3), "stream.trips has no 'typical'"),
        (changed("trips", typical=3), "stream.trips has a share and 'typical'"),
        (changed("trips", sample=None), "plan has no 'sample'"),
    ],
)
def test_what_is_wrong_in_a_pool_is_said(content: dict[str, Any], message: str) -> None:
    with pytest.raises((ops.ParameterError, ops.ParameterTypeError), match=message):
        pool_of(content)


def test_a_plan_names_another_mechanism(tmp_path: Path) -> None:
    guarantee = ops.Guarantee(epsilon=Fraction(1, 3), w=12)
    made = [
        baselines.PeGaSus(guarantee, grouping=0.3, bounds=(0, 100)),
        baselines.BudgetDistribution(guarantee, bounds=(0, 100)),
        baselines.BudgetAbsorption(guarantee, bounds=(0, 100)),
        baselines.RescueDP(guarantee, most=(0.5, 0.1), bounds=(0, 100)),
        baselines.Fast(guarantee, gains=baselines.Gains(0.8, 0.2, 0.0, 3), bounds=(0, 100)),
        baselines.Sample(guarantee, k=3, bounds=(0, 100)),
        baselines.BinaryTree(guarantee, horizon=99, bounds=(0, 100)),
        baselines.Fourier(guarantee, k=2, bounds=(0, 100)),
    ]
    for mechanism in made:
        ops.write_plan(mechanism, tmp_path / "plan.toml")
        assert ops.read_plan(tmp_path / "plan.toml") == mechanism
        assert ops.read_plan(tmp_path / "plan.toml").digest == mechanism.digest
    text = 'epsilon = 1\nw = 4\nalpha = 1\nbounds = [0, 9]\nmechanism = "laplace"\n'
    (tmp_path / "plan.toml").write_text(text)
    assert (
        ops.read_plan(tmp_path / "plan.toml").description
        == baselines.Laplace(ops.Guarantee(epsilon=1, w=4), bounds=(0, 9)).description
    )
    for wrong, match in (("laplace", "unknown key 'k'"), ("magic", "mechanism is 'magic'"), ("fourier", "lacks")):
        (tmp_path / "plan.toml").write_text(text.replace("laplace", wrong) + "k = 2\n" * (wrong != "fourier"))
        with pytest.raises(ops.ParameterError, match=match):
            ops.read_plan(tmp_path / "plan.toml")
