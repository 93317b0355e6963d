"""What a mechanism is as plain data: its public parameters, their canonical form, their text and their digest."""

from __future__ import annotations

import json
from decimal import Decimal
from difflib import get_close_matches
from fractions import Fraction
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from optstream.errors import ParameterError, ParameterTypeError
from optstream.estimate import Estimate
from optstream.pipeline.panel import Panel
from optstream.pipeline.perturbation import CubeNoise, GaussianNoise, LaplaceNoise
from optstream.pipeline.reconstruction import Linear
from optstream.pipeline.sampling import BucketSampling, EqualSampling, L1Sampling

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optstream.mechanism.mechanism import Mechanism
    from optstream.mechanism.optstream import OptStream
    from optstream.pipeline.features import Feature
    from optstream.pipeline.hierarchy import Hierarchy

__all__ = [
    "as_float",
    "as_list",
    "canonical",
    "check_keys",
    "describe",
    "digest",
    "kind_of",
    "name_of",
    "rational",
    "step",
    "to_toml",
]

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
    "reconstruct": {
        "linear": (Linear, (), ()),
        "estimate": (Estimate, (), ("memory", "smooth", "season", "revise", "together")),
    },
}
"""For each replaceable step its kinds: what is made, from which needed and which optional parameters."""


MECHANISMS = {
    "binary_tree": ("optstream.baselines.binary_tree", "BinaryTree"),
    "budget_absorption": ("optstream.baselines.budget_absorption", "BudgetAbsorption"),
    "budget_distribution": ("optstream.baselines.budget_distribution", "BudgetDistribution"),
    "fast": ("optstream.baselines.fast", "Fast"),
    "fourier": ("optstream.baselines.fourier", "Fourier"),
    "laplace": ("optstream.baselines.laplace", "Laplace"),
    "pegasus": ("optstream.baselines.pegasus", "PeGaSus"),
    "rescue_dp": ("optstream.baselines.rescue_dp", "RescueDP"),
    "sample": ("optstream.baselines.sample", "Sample"),
}
"""Mechanisms other than OptStream that plans name, and where they are: each is loaded when a plan asks for it."""


def name_of(kind: type) -> str:
    """Return what a plan calls a mechanism other than OptStream.

    Raises:
        ParameterError: No plan can name it.
    """
    found = {place: name for name, place in MECHANISMS.items()}.get((kind.__module__, kind.__name__))
    if found is None:
        raise ParameterError(
            f"mechanism is {kind.__name__}, which no plan can name, but must be OptStream or one of "
            f"{', '.join(MECHANISMS)}"
        )
    return found


def describe(mechanism: OptStream) -> dict[str, Any]:
    """Return every public parameter of a mechanism as plain data, from which a plan makes it again.

    >>> import optstream as ops
    >>> describe(ops.OptStream(ops.Guarantee(epsilon=0.5, w=4), sample=EqualSampling(k=2), bounds=(0, 9)))["epsilon"]
    '1/2'
    """
    guarantee, hierarchy = mechanism.guarantee, mechanism.hierarchy
    return {
        "epsilon": str(guarantee.epsilon),
        "w": guarantee.w,
        "alpha": guarantee.alpha,
        "neighbours": guarantee.neighbours,
        **({"delta": str(guarantee.delta)} if guarantee.delta else {}),
        "entities": guarantee.entities,
        "entity": guarantee.entity,
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
        **({} if hierarchy is None else _together(hierarchy)),
        **({} if hierarchy is None else {"level_split": [str(share) for share in mechanism.level_split]}),
        **({"integers": True} if mechanism.integers else {}),
    }


def to_toml(mechanism: Mechanism) -> str:
    """Return a mechanism as the text of a plan file, which can be read again.

    >>> import optstream as ops
    >>> mechanism = ops.OptStream(ops.Guarantee(epsilon=0.5, w=4), sample=EqualSampling(k=2), bounds=(0, 9))
    >>> to_toml(mechanism).splitlines()[:2]
    ['epsilon = "1/2"', 'w = 4']
    """
    return "".join(
        f"{key} = {_toml(value)}\n" for key, value in json.loads(mechanism.description).items() if value is not None
    )


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


def check_keys(name: str, given: Mapping[str, Any], required: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    """Raise unless a table has all required keys, and no other but the optional ones."""
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
    kind = kind_of(given)
    if not isinstance(kind, str) or kind not in KINDS[name]:
        raise ParameterError(f"{name} has the kind {kind!r}, but must have one of {', '.join(map(repr, KINDS[name]))}")
    made, needed, optional = KINDS[name][kind]
    check_keys(name, given, ("kind", *needed), optional)
    arguments = {key: value for key, value in given.items() if key != "kind"}
    if "threshold" in arguments:
        arguments["threshold"] = as_float("threshold", arguments["threshold"])
    if "cuts" in arguments:
        arguments["cuts"] = as_list("cuts", arguments["cuts"])
    return made(**arguments)


def kind_of(given: Any) -> Any:
    """Return the kind of a replaceable step, or None."""
    return given.get("kind") if hasattr(given, "get") else None


def _described(name: str, step: Any) -> dict[str, Any]:
    kind = next(kind for kind, (made, _, _) in KINDS[name].items() if isinstance(step, made))
    _, needed, optional = KINDS[name][kind]
    content = {"kind": kind, **{key: getattr(step, key) for key in (*needed, *optional)}}
    for default in ("constant_time", "together"):
        if content.get(default) is True:
            content.pop(default)
    if content.get("cuts") is None:
        content.pop("cuts", None)
    else:
        content.pop("k")
        content["cuts"] = list(content["cuts"])
    return content


def _cuts(feature: Feature) -> Any:
    starts = [step for step in range(1, feature.w) if feature.labels[step] != feature.labels[step - 1]]
    return starts if len(starts) == feature.size - 1 else {"labels": list(feature.labels)}


def _together(hierarchy: Hierarchy) -> dict[str, Any]:
    """Return the streams that are released together: a tree, or the names of a panel."""
    return {"panel": list(hierarchy.nodes)} if isinstance(hierarchy, Panel) else {"hierarchy": _nested(hierarchy)}


def _nested(hierarchy: Hierarchy) -> dict[str, Any]:
    """Return the tree as nested mappings whose order gives the same order of nodes again."""
    tables: list[dict[str, Any]] = [{} for _ in hierarchy.nodes]
    for position, (name, parent) in enumerate(zip(hierarchy.nodes, hierarchy.parents, strict=True)):
        if parent is not None:
            tables[parent][name] = tables[position]
    return {hierarchy.nodes[0]: tables[0]}


def as_list(name: str, value: Any) -> list[Any]:
    """Return an array of a plan."""
    if not isinstance(value, (list, tuple)):
        raise ParameterTypeError(f"{name} is of type {type(value).__name__}, but must be an array")
    return list(value)


def as_float(name: str, value: Any) -> float:
    """Return a number of a plan."""
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
