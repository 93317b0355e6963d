"""The parameters of a mechanism: whether each is what it must be, and those that follow from others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optstream import _core
from optstream.errors import ParameterError, ParameterTypeError
from optstream.estimate import Estimate
from optstream.pipeline.features import Feature
from optstream.pipeline.hierarchy import Hierarchy
from optstream.pipeline.panel import Panel
from optstream.pipeline.perturbation import CubeNoise, GaussianNoise, LaplaceNoise
from optstream.pipeline.reconstruction import Linear
from optstream.pipeline.sampling import BucketSampling, EqualSampling, L1Sampling
from optstream.privacy import budget
from optstream.privacy.guarantee import Guarantee

if TYPE_CHECKING:
    from collections.abc import Sequence
    from decimal import Decimal
    from fractions import Fraction

__all__ = ["check_choice", "check_type", "checked", "scattered"]


def checked(given: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a mechanism by their names, with defaults in place; shares of the stages as given.

    Raises:
        ParameterTypeError: One is of another type.
        ParameterError: One is out of its bound, or does not go with another.
    """
    guarantee, sample, features = given["guarantee"], given["sample"], given["features"]
    check_type("guarantee", guarantee, Guarantee)
    check_type("sample", sample, EqualSampling, L1Sampling, BucketSampling)
    for feature in features:
        check_type("features", feature, Feature)
        if feature.w != guarantee.w:
            raise ParameterError(f"features hold a partition of {feature.w} steps, but must have w = {guarantee.w}")
    calibration, weights = given["calibration"], given["weights"]
    check_choice("calibration", calibration, "sound", "paper")
    if weights is None:
        weights = "variance" if calibration == "sound" else "paper"
    check_choice("weights", weights, "variance", "paper")
    perturb, reconstruct = given["perturb"], given["reconstruct"]
    fields = given | {
        "features": tuple(features),
        "perturb": LaplaceNoise() if perturb is None else perturb,
        "reconstruct": Linear() if reconstruct is None else reconstruct,
        "weights": weights,
        "level_split": _level_shares(given["hierarchy"], given["level_split"]),
    }
    if given["grid"] is None:
        fields["grid"] = _core.default_grid(guarantee.alpha / scattered(guarantee, given["hierarchy"]))
    check_type("perturb", fields["perturb"], LaplaceNoise, CubeNoise, GaussianNoise)
    if isinstance(perturb, GaussianNoise) and not guarantee.delta:
        raise ParameterError("delta is 0, but must be positive for GaussianNoise: Guarantee(..., delta=1e-6)")
    if calibration == "paper" and (
        (perturb is not None and perturb != LaplaceNoise())
        or isinstance(sample, BucketSampling)
        or isinstance(reconstruct, Estimate)
    ):
        raise ParameterError("calibration is 'paper', but must be 'sound' for what the paper does not have")
    check_type("reconstruct", fields["reconstruct"], Linear, Estimate)
    check_type("retune", given["retune"], bool)
    check_type("integers", given["integers"], bool)
    moves = guarantee.entities == "moving" and isinstance(given["hierarchy"], Panel)
    if moves and isinstance(sample, L1Sampling) and sample.reads(guarantee.w):
        # There is no root that could choose once for all, and whoever moves would pay for the choice of every stream.
        raise ParameterError("sample is L1Sampling, but must not choose steps in a panel whose entities move")
    remembers = isinstance(reconstruct, Estimate) and reconstruct.memory
    if given["retune"] and (not remembers or isinstance(sample, L1Sampling)):
        raise ParameterError("retune is True, but must be False with L1Sampling or without an Estimate with memory")
    return fields


def scattered(guarantee: Guarantee, hierarchy: Hierarchy | None) -> int:
    """Return over how many leaves one entity may scatter a change; a finer grid keeps what rounding adds small."""
    return 1 if hierarchy is None or guarantee.entities == "settled" else len(hierarchy.leaf_positions)


def check_type(name: str, value: object, *kinds: type) -> None:
    """Raise unless a parameter is of one of some types.

    >>> check_type("retune", 1, bool)
    Traceback (most recent call last):
    optstream.errors.ParameterTypeError: retune is of type int, but must be bool
    """
    if not isinstance(value, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise ParameterTypeError(f"{name} is of type {type(value).__name__}, but must be {wanted}")


def check_choice(name: str, value: str, *choices: str) -> None:
    """Raise unless a parameter is one of some words.

    >>> check_choice("emit", "day", "period", "step")
    Traceback (most recent call last):
    optstream.errors.ParameterError: emit is 'day', but must be 'period' or 'step'
    """
    if not isinstance(value, str) or value not in choices:
        raise ParameterError(f"{name} is {value!r}, but must be {' or '.join(map(repr, choices))}")


def _level_shares(
    hierarchy: Hierarchy | None, split: Sequence[float | Fraction | Decimal] | None
) -> tuple[Fraction, ...]:
    levels = 0
    if hierarchy is not None:
        check_type("hierarchy", hierarchy, Hierarchy)
        levels = hierarchy.levels
    split = (1,) * levels if split is None else split
    if len(split) != levels:
        raise ParameterError(f"level_split has {len(split)} shares, but must have {levels}, one per level")
    return budget.shares("level_split", split)
