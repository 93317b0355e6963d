"""The mechanisms that are compared, with the parameters of the paper."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream.baselines import (
    BinaryTree,
    BudgetAbsorption,
    BudgetDistribution,
    EachNode,
    Fast,
    Fourier,
    Laplace,
    PeGaSus,
    RescueDP,
    Sample,
)
from optstream.mechanism.optstream import OptStream
from optstream.mechanism.tuning import tune
from optstream.pipeline.features import Feature
from optstream.pipeline.perturbation import CubeNoise
from optstream.pipeline.sampling import EqualSampling, L1Sampling
from optstream.reproduce.data import LOADS

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from optstream.pipeline.hierarchy import Hierarchy
    from optstream.privacy.guarantee import Guarantee
    from optstream.privacy.statement import Statement
    from optstream.reproduce.data import Stream

    Calibration = Literal["sound", "paper"]
    Mechanisms = dict[str, Any]

__all__ = ["BOUNDS", "CALIBRATIONS", "Adapted", "W", "components", "learners", "of_paper", "quick_ones", "step_by_step"]

CALIBRATIONS: tuple[Calibration, ...] = ("sound", "paper")
W = 48
"""A day of half hours."""
BOUNDS = (0.0, 20_000.0)
"""Public bounds of the load of a region, in MW."""
THRESHOLD = 1000.0
"""The paper's threshold of L1-sampling: about a tenth of the mean load of a region."""
SAMPLES = 10
FEWER_SAMPLES = 5
ZEROS = "Zeros, no data"
"""What costs nothing and tells nothing: whatever is not closer than this tells nothing either."""
MANY_MEGAWATTS = 50


@dataclass(frozen=True)
class Adapted:
    """A mechanism whose release is given or changed by something else that is public."""

    guarantee: Guarantee
    statement: Statement
    release: Callable[[Any], Any]


@dataclass(frozen=True)
class _Values:
    values: Any


def features(w: int) -> list[Feature]:
    """Return the paper's features: night, morning, afternoon and evening, and the whole day."""
    return [Feature.cuts(w, 7 * w // 24, w // 2, 3 * w // 4), Feature.total(w)]


def samples(alpha: float) -> int:
    """Return the paper's number of samples and of Fourier coefficients."""
    return SAMPLES if alpha <= MANY_MEGAWATTS else FEWER_SAMPLES


def of_paper(
    guarantee: Guarantee,
    calibration: Calibration,
    *,
    bounds: tuple[float, float] = BOUNDS,
    threshold: float = THRESHOLD,
    hierarchy: Hierarchy | None = None,
) -> Mechanisms:
    """Return what the paper compares, each with its parameters."""
    k = samples(guarantee.alpha)
    shared: Mechanisms = {"bounds": bounds, "calibration": calibration}
    if hierarchy is None:
        plain = {"Laplace": Laplace(guarantee, **shared), "DFT": Fourier(guarantee, k=k, **shared)}
    else:
        tree: Mechanisms = {"hierarchy": hierarchy, "bounds": bounds}
        options = {"calibration": calibration}
        plain = {
            "Laplace": EachNode(guarantee, mechanism=Laplace, options=options, **tree),
            "DFT": EachNode(guarantee, mechanism=Fourier, options=options | {"k": k}, **tree),
        }
        shared["hierarchy"] = hierarchy
    shared["features"] = features(guarantee.w)
    return {
        **plain,
        "OptStream ES": OptStream(guarantee, sample=EqualSampling(k), **shared),
        "OptStream LS": OptStream(guarantee, sample=L1Sampling(k, threshold), **shared),
    }


def components(guarantee: Guarantee, calibration: Calibration) -> Mechanisms:
    """Return OptStream with some of its components: perturb (P), sample (S) and optimise (O).

    The budget is divided equally among those that are active. Beside the paper's four are two with equal spacing.
    """
    shared: Mechanisms = {"bounds": BOUNDS, "calibration": calibration}
    optimised = shared | {"features": features(guarantee.w)}
    every, chosen = EqualSampling(guarantee.w), L1Sampling(SAMPLES, THRESHOLD)
    spaced = EqualSampling(SAMPLES)
    return {
        "P": OptStream(guarantee, sample=every, **shared),
        "P O": OptStream(guarantee, sample=every, **optimised),
        "P S": OptStream(guarantee, sample=chosen, **shared),
        "P S O": OptStream(guarantee, sample=chosen, **optimised),
        "P S, equal": OptStream(guarantee, sample=spaced, **shared),
        "P S O, equal": OptStream(guarantee, sample=spaced, **optimised),
    }


def quick_ones(stream: Stream, guarantee: Guarantee) -> Mechanisms:
    """Return the mechanisms that release a year in milliseconds."""
    bounds = (0.0, stream.upper)
    threshold = THRESHOLD if stream.name.startswith(LOADS) else stream.upper / 20
    laplace = Laplace(guarantee, bounds=bounds)
    made = {
        "Laplace": laplace,
        "Laplace, clamped": Adapted(
            guarantee, laplace.statement, lambda x: _Values(laplace.release(x).values.clip(*bounds))
        ),
        ZEROS: Adapted(
            guarantee, replace(laplace.statement, epsilon=Fraction(0), stages=()), lambda x: _Values(np.zeros_like(x))
        ),
        "Laplace with cube noise": OptStream(
            guarantee, sample=EqualSampling(stream.w), perturb=CubeNoise(), bounds=bounds
        ),
        "Sample": Sample(guarantee, bounds=bounds),
        "ES without features": OptStream(guarantee, sample=EqualSampling(SAMPLES), bounds=bounds),
        "ES without features, cube noise": OptStream(
            guarantee, sample=EqualSampling(SAMPLES), perturb=CubeNoise(), bounds=bounds
        ),
    }
    for calibration, suffix in (("sound", ""), ("paper", ", as printed")):
        found = of_paper(guarantee, calibration, bounds=bounds, threshold=threshold)  # type: ignore[arg-type]
        made |= {f"{name}{suffix}": mechanism for name, mechanism in found.items() if name != "Laplace"}
    return made


def step_by_step(stream: Stream, guarantee: Guarantee) -> Mechanisms:
    """Return the mechanisms that take one step after another."""
    bounds = (0.0, stream.upper)
    kinds: dict[str, Callable[..., Any]] = {
        "PeGaSus": PeGaSus,
        "BD": BudgetDistribution,
        "BA": BudgetAbsorption,
        "RescueDP": RescueDP,
        "FAST": Fast,
    }
    made = {name: kind(guarantee, bounds=bounds) for name, kind in kinds.items()}
    return made | {"Binary tree, prefix sums": BinaryTree(guarantee, horizon=stream.x.size, bounds=bounds)}


def learners(stream: Stream, guarantee: Guarantee) -> Mechanisms:
    """Return the mechanisms that learn from what they have released, or from a public year before."""
    bounds = (0.0, stream.upper)
    made: Mechanisms = {"OptStream.auto": OptStream.auto(guarantee, bounds=bounds)}
    if stream.history is not None:
        found = tune(guarantee, stream.history, bounds=bounds)
        mechanism, state = found.mechanism, found.state
        made["OptStream, tuned on 2015"] = Adapted(
            guarantee, mechanism.statement, lambda x: mechanism.release(x, state=state)
        )
    return made
