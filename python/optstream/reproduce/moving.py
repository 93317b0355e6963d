"""What it costs that people move: invented trips by zone, released for entities that are settled and that move."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream.evaluate import compare
from optstream.mechanism.optstream import OptStream
from optstream.pipeline.hierarchy import Hierarchy
from optstream.pipeline.perturbation import CubeNoise
from optstream.pipeline.sampling import EqualSampling, L1Sampling
from optstream.privacy.guarantee import Guarantee
from optstream.reproduce.drawing import levels
from optstream.reproduce.mechanisms import SAMPLES, THRESHOLD, W
from optstream.reproduce.study import EPSILONS, Drawn
from optstream.reproduce.tables import Row

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from optstream.privacy.guarantee import Entities
    from optstream.reproduce.study import Study

__all__ = ["moving"]

BOROUGHS, ZONES = 4, 6
"""Boroughs of the city, and zones of a borough."""
TRIPS = 15_000
"""Trips of a mean half hour, as many as taxis of New York have passengers."""
DAYS, QUICK_DAYS = 14, 2
SEED = 20_150_101


def moving(study: Study, name: str) -> Drawn:
    """Release trips of a city by borough and zone, level by level, as if riders were settled and as they move.

    At most one trip of a rider begins in a half hour, so alpha is 1 either way: it is the zones that differ.
    """
    names = {f"borough {b + 1}": [f"zone {b + 1}.{z + 1}" for z in range(ZONES)] for b in range(BOROUGHS)}
    tree = Hierarchy.nested({"city": names})
    data = {"trips": trips(QUICK_DAYS if study.quick else DAYS)}
    rows = []
    for epsilon in EPSILONS:
        found = compare(_mechanisms(epsilon, tree), data, trials=study.trials, processes=study.processes)
        rows += [Row.of(name, 1.0, one, f"level {depth}") for one in found for depth in range(tree.levels)]
    words = (
        "Mean absolute errors of invented trips by level, for settled and for moving riders, by mechanism and epsilon."
    )
    return Drawn(rows, {name: (levels(rows, ("city", "borough", "zone")), words)})


def trips(days: int) -> NDArray[np.int64]:
    """Return invented counts of trips: a row for a half hour, a column for a zone. They are the same at every call."""
    dice = np.random.default_rng(SEED)
    zones = BOROUGHS * ZONES
    # Few zones have most of the trips; mornings are busy where evenings are not, and Sundays are quiet.
    share = 1 / np.arange(1, zones + 1)
    share = dice.permutation(share / share.sum())
    peak = dice.uniform(8.0, 22.0, size=zones)
    hour, day = np.arange(W) * 24 / W, np.arange(days)
    daily = 0.15 + np.exp(3 * np.cos(2 * np.pi * (hour[:, None] - peak) / 24) - 3)
    weekly = np.where(day % 7 == 6, 0.7, 1.05)  # noqa: PLR2004  (the last day of seven)
    mean = weekly[:, None, None] * daily / daily.mean(axis=0) * share * TRIPS
    counts: NDArray[np.int64] = dice.poisson(mean).reshape(days * W, zones)
    return counts


def _mechanisms(epsilon: float, tree: Hierarchy) -> dict[str, Any]:
    """Return mechanisms for riders who are settled and for riders who move."""
    every, chosen = EqualSampling(W), L1Sampling(SAMPLES, THRESHOLD)
    kinds: dict[str, dict[str, Any]] = {
        "Laplace": {"sample": every},
        "cube": {"sample": every, "perturb": CubeNoise()},
        "L1-sampling": {"sample": chosen},
    }
    relations: tuple[Entities, ...] = ("settled", "moving")
    return {
        f"{kind}, {entities}": OptStream(
            Guarantee(epsilon=epsilon, w=W, entities=entities, entity="rider"),
            bounds=(0, 2 * TRIPS),
            hierarchy=tree,
            **options,
        )
        for (kind, options), entities in product(kinds.items(), relations)
    }
