"""Fuzzing: whatever comes in, a finite result or a typed error comes out of every public name and of the binding.

Each is called with nearly valid arguments, of which up to two are replaced by junk. An error must be an
:class:`OptStreamError`, or a ``TypeError`` where the type of an argument is wrong. Panics, warnings, NaN and all other
exceptions are findings. The examples are the same in every run; ``OPTSTREAM_FUZZ=9`` asks for nine times as many new
ones.
"""

from __future__ import annotations

import inspect
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from entry_points import CORE, EVENTS, INTERNAL, LEDGERS, PLAN, PUBLIC, Case, plan
from hypothesis import HealthCheck, Phase, example, given, settings

import optstream as ops
from optstream import _core, audit, noise
from optstream.cli.app import run
from optstream.cli.exits import MEANINGS

MORE = int(os.environ.get("OPTSTREAM_FUZZ", "0"))
SETTINGS = settings(
    deadline=None,
    derandomize=not MORE,
    database=None,
    # Examples are small to begin with, and making them smaller takes longer than finding them.
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
CONVERSION = (OverflowError, ValueError, np.exceptions.ComplexWarning)
"""What the conversion from Python raises besides: for ints that do not fit, what is no sequence, complex numbers."""


# What may come out.


def check_finite(result: Any) -> None:
    """Fail if any number of a result is NaN or infinite."""
    match result:
        case float() | np.ndarray():
            assert np.isfinite(result).all(), result
        case list() | tuple():
            for part in result:
                check_finite(part)
        case ops.Release() | ops.TreeRelease():
            values = result.values
            columns = values.values() if isinstance(values, Mapping) else [values]
            check_finite([np.asarray(column, dtype=np.float64) for column in columns])
            check_finite(result.features)


def fuzz(case: Case, examples: int, *allowed: type[BaseException]) -> None:
    """Call with many examples."""
    right: tuple[type[BaseException], ...] = (ops.OptStreamError, TypeError, *case.allowed, *allowed)
    free = sorted(set(case.arguments) - set(case.kept.split()))

    @settings(SETTINGS, max_examples=int(examples * case.share) * max(MORE, 1) if case.arguments else 1)
    @given(st.data())
    def call(data: st.DataObject) -> None:
        arguments = {key: data.draw(strategy, key) for key, strategy in case.arguments.items()}
        for key in data.draw(st.lists(st.sampled_from(free), max_size=2, unique=True)) if free else []:
            arguments[key] = data.draw(case.junk, f"junk for {key}")
        try:
            result = case.call(**arguments)
        except right:
            return
        check_finite(result)

    call()


# The tests.


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Work in a folder of its own, since names of files are junk too, without a key from the environment."""
    made = tmp_path_factory.mktemp("fuzz")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        patch.delenv("OPTSTREAM_KEY", raising=False)
        patch.delenv("OPTSTREAM_KEY_FILE", raising=False)
        ops.create_key("good.key")
        Path("bad.key").write_bytes(b"\xff\0" * 20)
        Path("bad.key").chmod(0o600)
        Path("good.toml").write_text(PLAN, encoding="utf-8")
        member = 'alpha = 1\nbounds = [0, 9]\nsample = { kind = "equal", k = 2 }\nshare = 1\n'
        Path("pool.toml").write_text(f"epsilon = 1\nw = 4\n[stream.a]\n{member}[stream.b]\n{member}", encoding="utf-8")
        Path("bad.toml").write_bytes(b"\xff = [")
        EVENTS.write_csv("events.csv")
        yield made
        for ledger in LEDGERS.values():
            ledger.close()
        LEDGERS.clear()


def names_of(module: Any, names: list[str], prefix: str = "") -> Iterator[str]:
    """Yield names of a module, and of the methods of its classes."""
    for name in names:
        value = getattr(module, name)
        if inspect.ismodule(value):
            yield from names_of(value, list(value.__all__), f"{name}.")
            continue
        yield prefix + name
        if isinstance(value, type) and not issubclass(value, Exception):
            methods = [key for key, what in inspect.getmembers(value, callable) if not key.startswith("_")]
            yield from (f"{prefix}{name}.{method}" for method in methods)


def test_every_public_name_has_a_case() -> None:
    internal = {name for line in INTERNAL for name in line.split()}
    public = {*names_of(ops, ops.__all__), *names_of(audit, audit.__all__, "audit.")}
    assert public - internal == set(PUBLIC)
    assert internal <= public


def test_everything_in_the_binding_has_a_case() -> None:
    assert set(names_of(_core, [name for name in vars(_core) if not name.startswith("_")])) == set(CORE)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_gives_a_finite_result_or_a_typed_error(name: str) -> None:
    fuzz(PUBLIC[name], 40)


@pytest.mark.parametrize("name", CORE)
def test_the_binding_gives_a_finite_result_or_a_typed_error(name: str) -> None:
    fuzz(CORE[name], 60, *CONVERSION)


@pytest.mark.slow
@pytest.mark.parametrize("name", CORE)
def test_the_binding_in_ten_thousand_examples(name: str) -> None:
    fuzz(CORE[name], 10_000 // len(CORE) + 1, *CONVERSION)


# What fuzzing has found in the binding.


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: plan().measure(np.empty((0, 4), dtype=np.int64)), id="no period"),
        pytest.param(lambda: plan().measure(np.zeros((4, 1), dtype=np.int64)), id="periods of another length"),
        pytest.param(
            lambda: plan(sampling=[(0, 4, 1)]).measure(np.full((1, 4), 2**63 - 1)), id="values beyond the bounds"
        ),
        pytest.param(
            lambda: _core.Product([None, 0], [1.0] * 2, [1.0], [([2**64 - 1], 1.0)], np.eye(1)), id="the largest label"
        ),
    ],
)
def test_no_panic(call: Callable[[], object]) -> None:
    with pytest.raises(ops.OptStreamError):
        call()


def test_values_that_do_not_lie_on_their_boundaries_are_read_right() -> None:
    records = np.zeros(6, dtype=[("pad", "i1"), ("value", "f8")])
    records["value"] = np.arange(6) * 100
    noisy = noise.laplace(records["value"], sensitivity=1, epsilon=1000, bounds=(0, 1000))
    np.testing.assert_allclose(noisy, records["value"], atol=1.0)


def test_a_window_that_memory_cannot_hold_is_refused() -> None:
    program = (
        "import numpy as np; from fractions import Fraction; from optstream import OptStreamError, _core\n"
        "try: _core.Plan(w=2**50, alpha=1.0, bounds=(0.0, 1.0), grid=1.0, sampling=[(0, 1, 1)], cost=Fraction(1),"
        " blocks=None, features=[], tree=None).release(np.zeros((1, 1)))\n"
        "except OptStreamError: pass"
    )
    # In a process of its own, which the allocator ends.
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0


# The command line.

WORDS = """
    release plan aggregate audit ledger show export verify key create --output --value --statement --interval --json
    --time --step --origin --ledger --stream --key-file --first-period --entity --alpha --clip --start --stop --group
    --plan --epsilon --w --lower --upper --k --sample --threshold --feature --neighbours --calibration --split
    --hierarchy in.csv in.json in.toml events.csv good.toml good.key l.db none.csv - out.csv out.parquet . 0 1 2 -1 0.5
    1/3 nan inf 1e400 1e-400 1,2 30m 2020-01-01 total equal l1 sliding who at x"""
GOOD = ["--epsilon", "1", "--w", "2", "--alpha", "1", "--lower", "0", "--upper", "9", "--k", "2"]
COMMANDS = st.sampled_from(
    [
        ["release", "in.csv", *GOOD],
        ["release", "in.csv", "--plan", "in.toml"],
        ["plan", *GOOD, "--hierarchy", "in.json"],
        ["plan", "in.toml"],
        ["aggregate", "in.csv", "--entity", "who", "--time", "at"],
        ["ledger", "show", "in.csv"],
        [],
    ]
)
CONTENTS = [
    b"x\n1\n2\n3\n4\n",
    b"at,x\n2020-01-01,1\n2020-01-02,2\n",
    b"who,at\na,1\nb,2\n",
    b'{"all": ["a", "b"]}',
    b"[" * 5000,
    PLAN.encode(),
    b"",
]


@settings(SETTINGS, max_examples=150 * max(MORE, 1))
@example(["plan", *GOOD, "--hierarchy", "in.json"], [], b"[" * 5000, b"", 0)
@given(
    COMMANDS,
    st.lists(st.sampled_from(WORDS.split()), max_size=5),
    st.sampled_from(CONTENTS),
    st.binary(max_size=3),
    st.integers(0, 99),
)
def test_a_command_ends_with_a_documented_code(
    command: list[str], more: list[str], content: bytes, other: bytes, place: int
) -> None:
    for name in ("in.csv", "in.json", "in.toml"):
        Path(name).write_bytes(content[:place] + other + content[place + len(other) :])
    said = io.StringIO()
    with redirect_stdout(io.TextIOWrapper(io.BytesIO())), redirect_stderr(said):
        code = run([*command, *more])
    assert code in MEANINGS, said.getvalue()
    assert "Traceback" not in said.getvalue()
    assert code != 1, said.getvalue()
