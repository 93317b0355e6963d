"""Plans: the public parameters of a mechanism as plain data, from a TOML file or for a ledger.

    epsilon = 1.0          # or a fraction: "1/3"
    w = 48                 # steps of a window and of a period
    alpha = 10.0           # how much one entity may change one step
    bounds = [0, 20_000]
    sample = { kind = "equal", k = 12 }    # or "bucket" with k or cuts, or "l1" with k and threshold, or "auto"

    # Optional, with their defaults:
    perturb = { kind = "laplace" }         # or "cube" with block, or "gaussian"
    reconstruct = { kind = "linear" }      # or "estimate" with memory, smooth, season, revise, together
    retune = false         # or true: choose what is measured anew from what was released
    delta = 0              # or the probability with which the promise may fail, such as 1e-6, for Gaussian noise
    neighbours = "sliding"
    entities = "settled"   # or "moving": in any leaves of the hierarchy, in several at once
    entity = "entity"      # what is protected, in a word of yours, such as "rider"
    features = []          # cuts of a period, such as [[14, 24, 36], []]; [] is the total
    calibration = "sound"
    integers = false       # or true: released values are whole numbers

and ``split``, ``weights``, ``grid``, ``level_split`` and ``hierarchy`` (nested tables, leaves in arrays) or
``panel`` (names), as :class:`OptStream` takes them.

A plan may name another mechanism of the library, with its own parameters in place of those after the bounds:

    mechanism = "pegasus"  # or "laplace", "sample", "budget_distribution", "rescue_dp", "fast", ...
"""

from __future__ import annotations

import importlib
import os
import tomllib
from dataclasses import fields
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optstream.errors import ParameterError, ParameterTypeError
from optstream.mechanism.description import (
    MECHANISMS,
    as_float,
    as_list,
    check_keys,
    kind_of,
    rational,
    step,
    to_toml,
)
from optstream.mechanism.mechanism import Mechanism, check_mechanism
from optstream.mechanism.optstream import OptStream
from optstream.pipeline.features import Feature
from optstream.pipeline.hierarchy import Hierarchy
from optstream.pipeline.panel import Panel
from optstream.privacy.guarantee import Guarantee

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["build", "build_optstream", "read_plan", "write_plan"]

REQUIRED = ("epsilon", "w", "alpha", "bounds", "sample")
OPTIONAL = (
    "delta",
    "neighbours",
    "entities",
    "entity",
    "perturb",
    "reconstruct",
    "retune",
    "features",
    "split",
    "calibration",
    "weights",
    "grid",
    "hierarchy",
    "panel",
    "level_split",
    "integers",
)


def read_plan(path: str | Path) -> Mechanism:
    """Return the mechanism that a TOML file describes.

    Raises:
        ParameterError: The file is not TOML, or a key is missing, unknown or out of its bound.
    """
    content = read_content(path)
    if "stream" in content:
        raise ParameterError(
            f"plan {path} describes the members of a pool, but must describe one stream: read_pool_plan"
        )
    return build(content)


def read_content(path: str | Path) -> dict[str, Any]:
    """Return what a TOML file holds."""
    try:
        # Decimals keep what was written, so that 0.1 is one tenth.
        return tomllib.loads(Path(path).read_text(encoding="utf-8"), parse_float=Decimal)
    except OSError as error:
        raise ParameterError(f"plan {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        # No path, no text, no TOML, an int of too many digits, or tables within tables without end.
        raise ParameterError(f"plan {path} is not TOML, but must be: {error}") from None


def write_plan(mechanism: Mechanism, path: str | Path) -> None:
    """Write a mechanism to a TOML file from which :func:`read_plan` makes the same one again.

    Raises:
        ParameterError: The file cannot be written.
    """
    check_mechanism(mechanism)
    if not isinstance(path, (str, os.PathLike)):
        raise ParameterTypeError(f"path is of type {type(path).__name__}, but must be a path")
    try:
        Path(path).write_text(to_toml(mechanism), encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ParameterError(f"plan {str(path)!r} cannot be written: {why}") from None


def build(plan: Mapping[str, Any]) -> Mechanism:
    """Return the mechanism that plain data describes.

    >>> build({"epsilon": "1/3", "w": 48, "alpha": 1, "bounds": [0, 100], "sample": {"kind": "equal", "k": 8}}).sample
    EqualSampling(k=8)
    """
    if hasattr(plan, "get") and plan.get("mechanism") is not None:
        return _other(plan)
    return build_optstream(plan)


def build_optstream(plan: Mapping[str, Any]) -> OptStream:
    """Return the :class:`OptStream` that plain data describes."""
    check_keys("plan", plan, REQUIRED, OPTIONAL)
    guarantee, bounds = _guarantee(plan), _bounds(plan)
    w = guarantee.w
    sums, streams = plan.get("hierarchy"), plan.get("panel")
    if sums is not None and streams is not None:
        raise ParameterError("plan has both 'hierarchy' and 'panel', but must have one of them")
    together = None if sums is None else Hierarchy.nested(sums)
    if streams is not None:
        together = Panel(as_list("panel", streams))
    shared: dict[str, Any] = {
        "bounds": bounds,
        "features": [_feature(w, feature) for feature in as_list("features", plan.get("features", []))],
        "grid": None if plan.get("grid") is None else as_float("grid", plan["grid"]),
        "hierarchy": together,
        "integers": plan.get("integers", False),
    }
    if kind_of(plan["sample"]) == "auto":
        return _auto(plan, guarantee, shared)
    split, level_split = plan.get("split"), plan.get("level_split")
    return OptStream(
        guarantee,
        **shared,
        sample=step("sample", plan["sample"]),
        perturb=step("perturb", plan.get("perturb", {"kind": "laplace"})),
        reconstruct=step("reconstruct", plan.get("reconstruct", {"kind": "linear"})),
        retune=plan.get("retune", False),
        split=None if split is None else [rational("split", share) for share in as_list("split", split)],
        calibration=plan.get("calibration", "sound"),
        weights=plan.get("weights"),
        level_split=None
        if level_split is None
        else [rational("level_split", share) for share in as_list("level_split", level_split)],
    )


def _guarantee(plan: Mapping[str, Any]) -> Guarantee:
    return Guarantee(
        epsilon=rational("epsilon", plan["epsilon"]),
        w=plan["w"],
        alpha=as_float("alpha", plan["alpha"]),
        neighbours=plan.get("neighbours", "sliding"),
        delta=rational("delta", plan.get("delta", 0)),
        entities=plan.get("entities", "settled"),
        entity=plan.get("entity", "entity"),
    )


def _bounds(plan: Mapping[str, Any]) -> tuple[float, float]:
    bounds = as_list("bounds", plan["bounds"])
    if len(bounds) != 2:  # noqa: PLR2004
        raise ParameterError(f"bounds have {len(bounds)} entries, but must be a pair [lower, upper]")
    return as_float("bounds[0]", bounds[0]), as_float("bounds[1]", bounds[1])


def _other(plan: Mapping[str, Any]) -> Mechanism:
    """Return a mechanism other than OptStream that a plan names."""
    name = plan["mechanism"]
    if not isinstance(name, str) or name not in MECHANISMS:
        raise ParameterError(f"mechanism is {name!r}, but must be one of {', '.join(map(repr, MECHANISMS))}")
    module, kind = MECHANISMS[name]
    made = getattr(importlib.import_module(module), kind)
    own = {"calibration", "grid"}
    if not issubclass(made, OptStream):
        own |= {field.name for field in fields(made)} - {"guarantee", "bounds"}
    check_keys(
        "plan",
        plan,
        ("mechanism", *(key for key in REQUIRED if key != "sample")),
        ("neighbours", "entities", "entity", *sorted(own)),
    )
    given = {key: _parameter(key, plan[key]) for key in sorted(own) if plan.get(key) is not None}
    try:
        mechanism: Mechanism = made(_guarantee(plan), bounds=_bounds(plan), **given)
    except TypeError:
        raise ParameterError(f"plan lacks a parameter that {name!r} must have") from None
    return mechanism


def _parameter(name: str, value: Any) -> Any:
    """Return a parameter of another mechanism; tuples are arrays in a plan."""
    if isinstance(value, (list, tuple)):
        return tuple(float(entry) if isinstance(entry, Decimal) else entry for entry in value)
    if name == "grouping":
        return rational(name, value)
    return float(value) if isinstance(value, Decimal) else value


def _auto(plan: Mapping[str, Any], guarantee: Guarantee, shared: dict[str, Any]) -> OptStream:
    """Return the mechanism that chooses by itself what is measured."""
    for name in ("perturb", "reconstruct", "retune", "split", "calibration", "weights", "level_split"):
        if plan.get(name) is not None:
            raise ParameterError(f"plan has {name!r}, but must not have it where sample is 'auto'")
    check_keys("sample", plan["sample"], ("kind",), ("scale", "season"))
    options = {name: value for name, value in plan["sample"].items() if name != "kind"}
    if "scale" in options:
        options["scale"] = as_float("scale", options["scale"])
    return OptStream.auto(guarantee, **shared, **options)


def _feature(w: int, given: Any) -> Feature:
    """Return a feature from its cuts, or from a table with the label of each step."""
    if hasattr(given, "items"):
        check_keys("features", given, ("labels",))
        labels = as_list("labels", given["labels"])
        cells: dict[Any, list[int]] = {}
        for step, label in enumerate(labels):
            cells.setdefault(label, []).append(step)
        return Feature(cells.values())
    return Feature.cuts(w, *as_list("features", given))
