"""Calibration: how much noise each stage of a release gets, so that the worst window costs exactly epsilon.

The accountant prices every stage at unit cost and then the whole; no stage has a formula of its own. What is stated is
the price of the noise that is really drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream import _core
from optstream.errors import ParameterError
from optstream.mechanism.release import shares_of_right_knot
from optstream.pipeline.perturbation import GaussianNoise
from optstream.pipeline.projection import tree_of
from optstream.pipeline.sampling import BucketSampling, EqualSampling, L1Sampling
from optstream.pipeline.sparse_vector import shares
from optstream.privacy import budget
from optstream.privacy.accounting import SquareCosts, epsilon_of, rho_spent, scaled
from optstream.privacy.gaussian import ratio_of, rho_from, rho_of, root
from optstream.privacy.statement import Stage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from decimal import Decimal

    from numpy.typing import NDArray

    from optstream.pipeline.features import Feature
    from optstream.pipeline.perturbation import Noise
    from optstream.pipeline.sampling import Sampling
    from optstream.privacy.accounting import Cost
    from optstream.privacy.guarantee import Guarantee

__all__ = ["Calibration"]


@dataclass(frozen=True)
class Budget:
    """What each stage spends: the sampler per touched period, samples and features per changed step.

    With Gaussian noise samples and features are in units of rho, per step that moves a measured value.
    """

    selection: Fraction
    sample: Fraction
    feature: Fraction


@dataclass(frozen=True)
class Calibration:
    """The noise of one stream, or of the streams of one level of a hierarchy."""

    guarantee: Guarantee
    sample: Sampling
    perturb: Noise
    features: tuple[Feature, ...]
    split: tuple[Fraction, ...]
    """Shares of the stages that read data; empty until they are known."""
    printed: bool
    """Whether the scales are those that the paper prints."""
    weights: str
    grid: float
    bounds: tuple[float, float]
    part: Fraction = Fraction(1)
    """The share of the budget of Gaussian noise that is spent here; other shares are part of the guarantee."""
    nodes: int = 1
    """Between how many nodes of the level one entity may move."""
    leaves: int = 1
    """Over how many leaves one entity may scatter a change."""
    chooses: bool = True
    """Whether a sampler that reads data chooses steps here, and not on a level above."""

    @property
    def gaussian(self) -> bool:
        """Whether measured values have Gaussian noise."""
        return isinstance(self.perturb, GaussianNoise)

    def shares_of(self, split: Sequence[float | Fraction | Decimal] | None) -> tuple[Fraction, ...]:
        """Return the shares of the stages that read data, which are equal if none are given."""
        active = list(self.stages(Budget(Fraction(1), Fraction(1), Fraction(1))))
        if split is None:
            split = (1,) * len(active)
        if len(split) != len(active):
            raise ParameterError(
                f"split has {len(split)} shares, but must have {len(active)}, for the stages that read data: "
                f"{', '.join(active)}"
            )
        return budget.shares("split", split)

    @cached_property
    def plan(self) -> _core.Plan:
        """The plan of a single stream, projected if its features form a chain."""
        return self.build_plan(tree_of(self.guarantee.w, self.features) if self.features else None)

    def stages(self, spent: Budget) -> dict[str, list[Cost]]:
        """Return the costs of one period, stage by stage, for the stages that read data."""
        w = self.guarantee.w
        costs = {
            "sample": [scaled(cost, spent.selection) for cost in self.sample.selection_costs(w) if self.chooses],
            "perturb": [scaled(cost, spent.sample) for cost in self._sample_costs()],
            "features": [
                scaled(cost, spent.feature) for feature in self.features for cost in self._feature_costs(feature)
            ],
        }
        return {name: stage for name, stage in costs.items() if stage}

    def _sample_costs(self) -> list[Cost]:
        return self.perturb.sample_costs(self.sample, self.guarantee, self.nodes)

    def _feature_costs(self, feature: Feature) -> list[Cost]:
        """Return what the sums of a feature cost if a change of any step costs 1."""
        if not self.gaussian:
            return EqualSampling(feature.w).sample_costs(feature.w)
        return [
            SquareCosts(0, tuple(int(label == cell) for label in feature.labels), Fraction(1))
            for cell in range(feature.size)
        ]

    @cached_property
    def budget(self) -> Budget:
        """Calibrate: the accountant prices each stage at unit cost, then the whole, which is scaled to epsilon."""
        guarantee = self.guarantee
        one = Budget(Fraction(1), Fraction(1), Fraction(1))
        if self.gaussian:
            return self._gaussian_budget(self.stages(one))
        epsilon = {name: guarantee.epsilon * share for name, share in zip(self.stages(one), self.split, strict=True)}
        if self.printed:
            return Budget(
                selection=epsilon.get("sample", Fraction(0)),
                sample=epsilon["perturb"] / self.sample.k,
                feature=epsilon.get("features", Fraction(0)) / max(len(self.features), 1),
            )
        unit = {name: epsilon[name] / epsilon_of(stage, guarantee) for name, stage in self.stages(one).items()}
        spent = Budget(unit.get("sample", Fraction(0)), unit["perturb"], unit.get("features", Fraction(0)))
        total = epsilon_of([cost for stage in self.stages(spent).values() for cost in stage], guarantee)
        factor = guarantee.epsilon / total
        return Budget(spent.selection * factor, spent.sample * factor, spent.feature * factor)

    def _gaussian_budget(self, stages: dict[str, list[Cost]]) -> Budget:
        """Calibrate Gaussian noise: all stages share rho, that which chooses steps by what its cost is worth."""
        guarantee = self.guarantee
        rho = rho_from(guarantee.epsilon, guarantee.delta)
        unit = {
            name: rho * part / rho_spent(stages[name], guarantee) for name, part in zip(stages, self.split, strict=True)
        }
        # What a pure cost is worth grows with its square.
        selection = root(unit.get("sample", Fraction(0)))
        spent = Budget(selection, unit["perturb"], unit.get("features", Fraction(0)))
        total = rho_spent([cost for stage in self.stages(spent).values() for cost in stage], guarantee)
        factor = rho / total * self.part
        return Budget(selection * root(factor), spent.sample * factor, spent.feature * factor)

    @cached_property
    def costs(self) -> tuple[Fraction, Fraction]:
        """What noise is made for: what a change by alpha costs, or the ratio of alpha to the standard deviation."""
        spent = self.budget
        if not self.gaussian:
            return spent.sample, spent.feature
        moved = self.sensitivity
        ratio = [ratio_of(moved, rho) if rho else Fraction(0) for rho in (spent.sample, spent.feature)]
        return ratio[0], ratio[1]

    @cached_property
    def sensitivity(self) -> int:
        """How far one entity moves a step, in grid units: in all nodes of the level together, if it moves.

        Each leaf is rounded by itself, and the smallest change may move it by a unit.
        """
        return _core.sensitivity(self.guarantee.alpha, self.grid) + self.leaves - 1

    @property
    def _moved(self) -> float:
        """How far rounding lets a change by alpha move, in units of alpha."""
        return self.sensitivity / _core.sensitivity(self.guarantee.alpha, self.grid)

    @property
    def feature_variance(self) -> float:
        """The variance of the noise on the sums of features, in units of alpha squared."""
        return (1 if self.gaussian else 2) * (self._moved / float(self.costs[1])) ** 2

    @cached_property
    def blocks(self) -> tuple[int, ...] | None:
        """The lengths of blocks of measured values that share their noise, if they do."""
        return self.perturb.blocks(self.sample, self.guarantee, self.nodes)

    @cached_property
    def runs(self) -> tuple[tuple[int, int, int], ...] | None:
        """The runs of steps that are measured, and what their sums are multiplied by; None if the data chooses."""
        w, sample = self.guarantee.w, self.sample
        if isinstance(sample, L1Sampling):
            if sample.reads(w):
                return None
            sample = EqualSampling(sample.k)
        runs = sample.runs(w)
        # With a common multiple of the lengths, means of different lengths move by the same number of units.
        multiple = math.lcm(*(stop - start for start, stop in runs)) if self.blocks else 1
        return tuple((start, stop, max(multiple // (stop - start), 1)) for start, stop in runs)

    def cells(self, knots: NDArray[np.int64]) -> tuple[tuple[int, ...], ...]:
        """Return the steps whose means are measured, of samples and of features, where the given ones were chosen."""
        return (self._fixed_cells or tuple((int(step),) for step in knots)) + self._feature_cells

    @cached_property
    def _fixed_cells(self) -> tuple[tuple[int, ...], ...] | None:
        return None if self.runs is None else tuple(tuple(range(start, stop)) for start, stop, _ in self.runs)

    @cached_property
    def _feature_cells(self) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(step for step, label in enumerate(feature.labels) if label == cell)
            for feature in self.features
            for cell in range(feature.size)
        )

    def sampler_inputs(self) -> Any:
        """Return what Rust samples with: runs of steps, or the threshold and budgets of the sparse vector technique."""
        sample, spent = self.sample, self.budget.selection
        if self.runs is not None or not isinstance(sample, L1Sampling):
            return self.runs
        if not self.chooses:
            # Any steps will do: those that are chosen elsewhere take their place, period by period.
            return tuple((step, step + 1, 1) for step in EqualSampling(sample.k).steps(self.guarantee.w))
        if self.printed:
            return sample.k, sample.threshold, True, (spent, spent), sample.constant_time
        threshold, queries = (share * spent for share in shares(sample.positives()))
        return sample.k, sample.threshold, False, (threshold, queries), sample.constant_time

    def answer_weights(self) -> NDArray[np.float64]:
        """Return the weight of every step and then of every cell in post-processing."""
        w, sample = self.guarantee.w, self.sample
        if self.weights == "paper":
            return np.concatenate([np.full(w, 1 / w), *(np.full(f.size, 1 / f.size) for f in self.features)])
        # A step between two measured ones is their weighted mean; the w reconstructed steps together carry the
        # information of k samples. An adaptive choice is not known in advance and counts as measured throughout.
        variance = np.full(w, float(self.variances.mean()))
        if isinstance(sample, BucketSampling):
            lengths = np.array([stop - start for start, stop in sample.runs(w)])
            variance = np.repeat(self.variances * lengths, lengths) * sample.k / w
        elif isinstance(sample, EqualSampling):
            share = shares_of_right_knot(np.array(sample.steps(w)), w)
            variance *= share**2 + (1 - share) ** 2
        cell = 1 / self.feature_variance if self.features else 0.0
        weights = np.concatenate([sample.k / w / variance, *(np.full(f.size, cell) for f in self.features)])
        return np.asarray(weights / weights.max())

    @cached_property
    def variances(self) -> NDArray[np.float64]:
        """The variance of the noise on each measured value, steps or means, in units of alpha squared."""
        scale = self._moved / float(self.costs[0])
        if self.blocks is None:
            lengths = [stop - start for start, stop, _ in self.runs] if self.runs else [1] * self.sample.k
            return (1 if self.gaussian else 2) * (scale / np.array(lengths)) ** 2
        sizes = np.repeat(self.blocks, self.blocks)
        return np.asarray((sizes + 1) * (sizes + 2) / 3 * scale**2)

    def true_costs(self) -> dict[str, list[Cost]]:
        """Return the costs of the noise that is drawn, whose scales may have been rounded up."""
        plan = self.plan
        if self.gaussian:
            sigmas = [Fraction(*scale) for scale in (plan.sample_scale, *plan.feature_scales[:1])]
            rho = [rho_of(plan.sensitivity, sigma) for sigma in sigmas]
            return self.stages(Budget(self.budget.selection, rho[0], rho[1] if self.features else Fraction(0)))
        sample = plan.sensitivity * plan.reach / Fraction(*plan.sample_scale)
        feature = plan.sensitivity / Fraction(*plan.feature_scales[0]) if self.features else Fraction(0)
        return self.stages(Budget(self.budget.selection, sample, feature))

    def described(self, name: str = "{}") -> list[Stage]:
        """Return what each stage does and what its worst window costs."""
        guarantee, plan = self.guarantee, self.plan
        costs = self.true_costs()
        spread = "standard deviation" if self.gaussian else "scale"
        does = {
            "sample": f"chooses {self.sample.k} steps by the sparse vector technique",
            "perturb": f"measures {self._measured} with {self._noise_shown} {self.scale:.6g}",
            "features": f"measures the sums of {len(self.features)} features"
            + (f" with {spread} {float(Fraction(*plan.feature_scales[0])) * self.grid:.6g}" if self.features else ""),
        }
        return [Stage(name.format(key), does[key], epsilon_of(stage, guarantee)) for key, stage in costs.items()]

    @property
    def _measured(self) -> str:
        k, w = self.sample.k, self.guarantee.w
        return f"the means of {k} buckets" if isinstance(self.sample, BucketSampling) else f"{k} of {w} steps"

    @property
    def _noise_shown(self) -> str:
        sums = " (on sums)" if isinstance(self.sample, BucketSampling) else ""
        if self.gaussian:
            return f"Gaussian{sums} noise of standard deviation"
        if self.blocks is None:
            return f"Laplace{sums} noise of scale"
        return f"cube (in {len(self.blocks)} blocks of up to {max(self.blocks)}) noise of scale"

    @cached_property
    def scale(self) -> float:
        """The scale of the noise on measured steps, means in blocks or sums, in the units of the data.

        For Gaussian noise it is the standard deviation.
        """
        return float(Fraction(*self.plan.sample_scale)) * self.grid / self.plan.reach

    def build_plan(
        self, parents: list[int | None] | None, streams: int = 1, steps: Sequence[int] | None = None
    ) -> _core.Plan:
        """Return the plan for sums of so many streams, projected if the parents of steps and cells are given.

        It measures the given steps, if a level above chose them.
        """
        w, (sample, feature_cost) = self.guarantee.w, self.costs
        return _core.Plan(
            w=w,
            alpha=self.guarantee.alpha,
            bounds=self.bounds,
            grid=self.grid,
            sampling=self.sampler_inputs() if steps is None else [(step, step + 1, 1) for step in steps],
            cost=sample,
            blocks=self.blocks,
            features=[(list(feature.labels), feature_cost) for feature in self.features],
            tree=None if parents is None else (parents, self.answer_weights().tolist()),
            streams=streams,
            leaves=self.leaves,
            gaussian=self.gaussian,
        )
