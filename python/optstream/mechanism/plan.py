"""Plans: the public parameters of a mechanism as plain data, from a TOML file or for a ledger.

    epsilon = 1.0          # or a fraction: "1/3"
    w = 48                 # steps of a window and of a period
    alpha = 10.0           # how much one entity may change one step
    bounds = [0, 20_000]
    sample = { kind = "equal", k = 12 }    # or "bucket" with k or cuts, or "l1" with k and threshold, or "auto"

    # Optional, with their defaults:
    perturb = { kind = "laplace" }         # or "cube" with block, or "gaussian"
    reconstruct = { kind = "linear" }      # or "estimate" with memory, smooth, season, revise
    retune = false         # or true: choose what is measured anew from what was released
    delta = 0              # or the probability with which the promise may fail, such as 1e-6, for Gaussian noise
    neighbours = "sliding"
    features = []          # cuts of a period, such as [[14, 24, 36], []]; [] is the total
    calibration = "sound"
    integers = false       # or true: released values are whole numbers

and ``split``, ``weights``, ``grid``, ``level_split`` and ``hierarchy`` (nested tables, leaves in arrays), as
:class:`OptStream` takes them.
"""

from __future__ import annotations

import json
import os
import tomllib
from decimal import Decimal
from difflib import get_close_matches
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optstream.errors import ParameterError, ParameterTypeError
from optstream.estimate import Estimate
from optstream.mechanism.optstream import OptStream
from optstream.pipeline.features import Feature
from optstream.pipeline.hierarchy import Hierarchy
from optstream.pipeline.perturbation import CubeNoise, GaussianNoise, LaplaceNoise
from optstream.pipeline.reconstruction import Linear
from optstream.pipeline.sampling import BucketSampling, EqualSampling, L1Sampling
from optstream.privacy.guarantee import Guarantee

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["build", "canonical", "describe", "digest", "rational", "read_plan", "step", "to_toml", "write_plan"]

REQUIRED = ("epsilon", "w", "alpha", "bounds", "sample")
OPTIONAL = (
    "delta",
    "neighbours",
    "perturb",
    "reconstruct",
    "retune",
    "features",
    "split",
    "calibration",
    "weights",
    "grid",
    "hierarchy",
    "level_split",
    "integers",
)
KINDS: dict[str, dict[str, tuple[type[Any], tuple[str, ...], tuple[str, ...]]]] = {
    "sample": {
        "equal": (EqualSampling, ("k",), ()),
        "l1": (L1Sampling, ("k", "threshold"), ("constant_time",)),
        "bucket": (BucketSampling, (), ("k", "cuts")),
    },
    "perturb": {
        "laplace": (LaplaceNoise, (), ()),
        "cube": (CubeNoise, (), ("block",)),
        "gaussian": (GaussianNoise, (), ()),
    },
    "reconstruct": {"linear": (Linear, (), ()), "estimate": (Estimate, (), ("memory", "smooth", "season", "revise"))},
}
"""For each replaceable step its kinds: what is made, from which needed and which optional parameters."""


def read_plan(path: str | Path) -> OptStream:
    """Return the mechanism that a TOML file describes.

    Raises:
        ParameterError: The file is not TOML, or a key is missing, unknown or out of its bound.
    """
    try:
        # Decimals keep what was written, so that 0.1 is one tenth.
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"), parse_float=Decimal)
    except OSError as error:
        raise ParameterError(f"plan {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        # No path, no text, no TOML, an int of too many digits, or tables within tables without end.
        raise ParameterError(f"plan {path} is not TOML, but must be: {error}") from None
    return build(content)


def write_plan(mechanism: OptStream, path: str | Path) -> None:
    """Write a mechanism to a TOML file from which :func:`read_plan` makes the same one again.

    Raises:
        ParameterError: The file cannot be written.
    """
    if not isinstance(mechanism, OptStream):
        raise ParameterTypeError(f"mechanism is of type {type(mechanism).__name__}, but must be OptStream")
    if not isinstance(path, (str, os.PathLike)):
        raise ParameterTypeError(f"path is of type {type(path).__name__}, but must be a path")
    try:
        Path(path).write_text(to_toml(mechanism), encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ParameterError(f"plan {str(path)!r} cannot be written: {why}") from None


def build(plan: Mapping[str, Any]) -> OptStream:
    """Return the mechanism that plain data describes.

    >>> build({"epsilon": "1/3", "w": 48, "alpha": 1, "bounds": [0, 100], "sample": {"kind": "equal", "k": 8}}).sample
    EqualSampling(k=8)
    """
    _check_keys("plan", plan, REQUIRED, OPTIONAL)
    w = plan["w"]
    guarantee = Guarantee(
        epsilon=rational("epsilon", plan["epsilon"]),
        w=w,
        alpha=_float("alpha", plan["alpha"]),
        neighbours=plan.get("neighbours", "sliding"),
        delta=rational("delta", plan.get("delta", 0)),
    )
    bounds = _list("bounds", plan["bounds"])
    if len(bounds) != 2:  # noqa: PLR2004
        raise ParameterError(f"bounds have {len(bounds)} entries, but must be a pair [lower, upper]")
    sums = plan.get("hierarchy")
    shared: dict[str, Any] = {
        "bounds": (_float("bounds[0]", bounds[0]), _float("bounds[1]", bounds[1])),
        "features": [_feature(w, feature) for feature in _list("features", plan.get("features", []))],
        "grid": None if plan.get("grid") is None else _float("grid", plan["grid"]),
        "hierarchy": None if sums is None else Hierarchy.nested(sums),
        "integers": plan.get("integers", False),
    }
    if _kind(plan["sample"]) == "auto":
        return _auto(plan, guarantee, shared)
    split, level_split = plan.get("split"), plan.get("level_split")
    return OptStream(
        guarantee,
        **shared,
        sample=step("sample", plan["sample"]),
        perturb=step("perturb", plan.get("perturb", {"kind": "laplace"})),
        reconstruct=step("reconstruct", plan.get("reconstruct", {"kind": "linear"})),
        retune=plan.get("retune", False),
        split=None if split is None else [rational("split", share) for share in _list("split", split)],
        calibration=plan.get("calibration", "sound"),
        weights=plan.get("weights"),
        level_split=None
        if level_split is None
        else [rational("level_split", share) for share in _list("level_split", level_split)],
    )


def _auto(plan: Mapping[str, Any], guarantee: Guarantee, shared: dict[str, Any]) -> OptStream:
    """Return the mechanism that chooses by itself what is measured."""
    for name in ("perturb", "reconstruct", "retune", "split", "calibration", "weights", "level_split"):
        if plan.get(name) is not None:
            raise ParameterError(f"plan has {name!r}, but must not have it where sample is 'auto'")
    _check_keys("sample", plan["sample"], ("kind",), ("scale", "season"))
    options = {name: value for name, value in plan["sample"].items() if name != "kind"}
    if "scale" in options:
        options["scale"] = _float("scale", options["scale"])
    return OptStream.auto(guarantee, **shared, **options)


def describe(mechanism: OptStream) -> dict[str, Any]:
    """Return every public parameter of a mechanism as plain data, from which :func:`build` makes it again.

    >>> mechanism = OptStream(Guarantee(epsilon=0.5, w=4), sample=EqualSampling(k=2), bounds=(0, 9))
    >>> describe(mechanism)["epsilon"], build(describe(mechanism)) == mechanism
    ('1/2', True)
    """
    guarantee, hierarchy = mechanism.guarantee, mechanism.hierarchy
    return {
        "epsilon": str(guarantee.epsilon),
        "w": guarantee.w,
        "alpha": guarantee.alpha,
        "neighbours": guarantee.neighbours,
        **({"delta": str(guarantee.delta)} if guarantee.delta else {}),
        "bounds": [float(bound) for bound in mechanism.bounds],
        "grid": mechanism.grid,
        "sample": _described("sample", mechanism.sample),
        "perturb": _described("perturb", mechanism.perturb),
        # What ledgers have written down without it keeps its digest.
        **({} if mechanism.estimator is None else {"reconstruct": _described("reconstruct", mechanism.reconstruct)}),
        **({"retune": True} if mechanism.retune else {}),
        "features": [_cuts(feature) for feature in mechanism.features],
        "split": [str(share) for share in mechanism.split],
        "calibration": mechanism.calibration,
        "weights": mechanism.weights,
        **({} if hierarchy is None else {"hierarchy": _nested(hierarchy)}),
        **({} if hierarchy is None else {"level_split": [str(share) for share in mechanism.level_split]}),
        **({"integers": True} if mechanism.integers else {}),
    }


def to_toml(mechanism: OptStream) -> str:
    """Return a mechanism as the text of a plan file, which :func:`read_plan` reads.

    >>> mechanism = OptStream(Guarantee(epsilon=0.5, w=4), sample=EqualSampling(k=2), bounds=(0, 9))
    >>> to_toml(mechanism).splitlines()[:2]
    ['epsilon = "1/2"', 'w = 4']
    """
    return "".join(f"{key} = {_toml(value)}\n" for key, value in describe(mechanism).items())


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        entries = ", ".join(f"{_toml_key(key)} = {_toml(entry)}" for key, entry in value.items())
        return f"{{ {entries} }}" if entries else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    # Numbers, truth values and strings are written alike.
    return json.dumps(value, allow_nan=False)


def _toml_key(key: str) -> str:
    return key if key.isascii() and key.replace("_", "").replace("-", "").isalnum() else json.dumps(key)


def canonical(content: Mapping[str, Any]) -> str:
    """Return plain data as JSON without spaces, in the order of its keys.

    >>> canonical({"w": 48, "alpha": 1.0})
    '{"w":48,"alpha":1.0}'
    """
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


def digest(description: str) -> bytes:
    """Return what stands for a canonical description in a ledger and in the derivation of noise.

    >>> len(digest(canonical({})))
    32
    """
    return sha256(b"optstream plan 1\0" + description.encode()).digest()


def _check_keys(name: str, given: Mapping[str, Any], required: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    if not hasattr(given, "items"):
        raise ParameterTypeError(f"{name} is of type {type(given).__name__}, but must be a table")
    # A slip in a key would else be reported as the key that it should be.
    for key in given:
        if key not in required and key not in optional:
            near = get_close_matches(key, required + optional, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f", but must be of {', '.join(required + optional)}"
            raise ParameterError(f"{name} has an unknown key {key!r}{hint}")
    for key in required:
        if key not in given:
            raise ParameterError(f"{name} has no {key!r}, but must have {', '.join(map(repr, required))}")


def step(name: str, given: Any) -> Any:
    """Return a replaceable step from its kind and parameters."""
    kind = _kind(given)
    if not isinstance(kind, str) or kind not in KINDS[name]:
        raise ParameterError(f"{name} has the kind {kind!r}, but must have one of {', '.join(map(repr, KINDS[name]))}")
    made, needed, optional = KINDS[name][kind]
    _check_keys(name, given, ("kind", *needed), optional)
    arguments = {key: value for key, value in given.items() if key != "kind"}
    if "threshold" in arguments:
        arguments["threshold"] = _float("threshold", arguments["threshold"])
    if "cuts" in arguments:
        arguments["cuts"] = _list("cuts", arguments["cuts"])
    return made(**arguments)


def _kind(given: Any) -> Any:
    return given.get("kind") if hasattr(given, "get") else None


def _described(name: str, step: Any) -> dict[str, Any]:
    kind = next(kind for kind, (made, _, _) in KINDS[name].items() if isinstance(step, made))
    _, needed, optional = KINDS[name][kind]
    content = {"kind": kind, **{key: getattr(step, key) for key in (*needed, *optional)}}
    if content.get("constant_time") is True:
        content.pop("constant_time")
    if content.get("cuts") is None:
        content.pop("cuts", None)
    else:
        content.pop("k")
        content["cuts"] = list(content["cuts"])
    return content


def _feature(w: int, given: Any) -> Feature:
    """Return a feature from its cuts, or from a table with the label of each step."""
    if hasattr(given, "items"):
        _check_keys("features", given, ("labels",))
        labels = _list("labels", given["labels"])
        cells: dict[Any, list[int]] = {}
        for step, label in enumerate(labels):
            cells.setdefault(label, []).append(step)
        return Feature(cells.values())
    return Feature.cuts(w, *_list("features", given))


def _cuts(feature: Feature) -> Any:
    starts = [step for step in range(1, feature.w) if feature.labels[step] != feature.labels[step - 1]]
    return starts if len(starts) == feature.size - 1 else {"labels": list(feature.labels)}


def _nested(hierarchy: Hierarchy) -> dict[str, Any]:
    """Return the tree as nested mappings whose order gives the same order of nodes again."""
    tables: list[dict[str, Any]] = [{} for _ in hierarchy.nodes]
    for position, (name, parent) in enumerate(zip(hierarchy.nodes, hierarchy.parents, strict=True)):
        if parent is not None:
            tables[parent][name] = tables[position]
    return {hierarchy.nodes[0]: tables[0]}


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise ParameterTypeError(f"{name} is of type {type(value).__name__}, but must be an array")
    return list(value)


def _float(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise ParameterTypeError(f"{name} is of type {type(value).__name__}, but must be a real number")
    try:
        return float(value)
    except (OverflowError, ValueError):
        raise ParameterError(f"{name} is too large or NaN, but must be a finite number") from None


def rational(name: str, value: Any) -> Any:
    """Return a number as it is, and a string such as ``"1/3"`` as the fraction that it shows."""
    if not isinstance(value, str):
        return value
    try:
        return Fraction(value)
    except (ValueError, ZeroDivisionError):
        raise ParameterError(
            f"{name} is {value!r}, but must be a number such as 0.1 or a fraction such as '1/3'"
        ) from None
