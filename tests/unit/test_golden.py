"""Bits and formats are those of the golden files, and the filter is that of the oracle: on every machine."""

from __future__ import annotations

import json
import re
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import golden
import numpy as np
import numpy_filter as oracle
import pytest

from optstream.estimate.filter import Filter, Measured, revised

CRATE = Path(__file__).parents[2] / "rust/estimate"
HOW = "if the change is meant, run `python tests/support/golden.py` and say in CHANGELOG.md what changes for whom"


@pytest.mark.parametrize("name", golden.CONTENT)
def test_results_and_formats_are_those_of_the_golden_files(name: str) -> None:
    wanted = json.loads((golden.FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    found = golden.CONTENT[name]()
    assert list(found) == list(wanted), HOW
    for kind, content in found.items():
        others = [field for field, value in content.items() if value != wanted[kind].get(field)]
        assert not others, f"{kind}: other {', '.join(others)}; {HOW}"


def test_the_arithmetic_of_estimates_is_that_of_no_machine() -> None:
    """Functions that a system or a processor computes in its own way are not called; `libm` is the only dependency."""
    manifest = tomllib.loads((CRATE / "Cargo.toml").read_text(encoding="utf-8"))
    assert list(manifest["dependencies"]) == ["libm"]
    own_way = r"exp|exp2|exp_m1|ln|ln_1p|log|log2|log10|pow[fi]|cbrt|hypot|sin|cos|tan|sin_cos|a?tanh?|atan2|mul_add"
    for path in sorted(CRATE.rglob("*.rs")):
        text = re.sub(r"//.*", "", path.read_text(encoding="utf-8"))
        called = re.findall(rf"(?:\.|f64::)(?:{own_way})(?:::<\w+>)?\(", text)
        assert not called, f"{path.name} calls {called}, but must call libm"
        assert not re.search(r"\bfma\b|core_intrinsics|fast_fp", text), path.name


def cells_of(kind: str, w: int, k: int) -> tuple[tuple[int, ...], ...]:
    if kind == "overlapping":
        return ((0, 1, 2, 3), (2, 3, 7), (w - 1,), tuple(range(w)))[:k]
    edges = [bucket * w // k for bucket in range(k + 1)]
    return tuple(tuple(range(low, high)) for low, high in pairwise(edges))


@pytest.mark.parametrize(
    ("w", "k", "kind", "more"),
    [
        (24, 6, "runs", {}),
        (24, 24, "runs", {"season": 2}),
        (12, 4, "overlapping", {"season": 3}),
        (60, 60, "runs", {"season": 2}),
        (12, 4, "runs", {"memory": False, "smooth": False}),
        (24, 8, "runs", {"season": 1, "level": (100.0, 20.0)}),
    ],
)
def test_the_filter_is_that_of_the_oracle(w: int, k: int, kind: str, more: dict[str, Any]) -> None:
    """All results agree to 1e-9, through fits, a break, an odd period, a gap and a change of the shape."""
    rng = np.random.default_rng(w * k)
    cells, variances = cells_of(kind, w, k), rng.uniform(10, 60, k)
    shape = np.array([20 * np.sin(np.mean(cell) / w * 6) for cell in cells])
    values = 100 + shape + rng.normal(0, 8, (34, k))
    values[18:] += 300
    values[24:] += 50 * np.cos(np.arange(k)) * (k < w)
    values[30] += rng.normal(0, 400, k)
    core, slow, seen = Filter(w, **more), oracle.Filter(w, **more), []
    for period, row in enumerate(values):
        number = period + (period > 15)
        found = core.update(Measured(number, cells, row, variances))
        wanted = slow.update(oracle.Measured(number, cells, row, variances))
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9 * 100)
        assert core.understood is not None
        seen.append(core.understood)
    # With few means it takes everything anew.
    assert core.renewed is not None or k > 6 or not more.get("memory", True)
    history = oracle.revised(slow, [oracle.Measured(*row) for row in seen])
    for one, other in zip(revised(core, seen), history, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-6)
    assert core.expected_error(cells, variances) == pytest.approx(slow.expected_error(cells, variances), rel=1e-9)
