"""OptStream: sample, perturb, reconstruct, post-process."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from hashlib import sha256
from importlib.metadata import version
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from tqdm.auto import tqdm

from optstream import _core
from optstream.data.frames import read_leaves, read_periods
from optstream.errors import ParameterError, ParameterTypeError
from optstream.estimate import Estimate
from optstream.estimate.estimator import Estimator
from optstream.mechanism.calibration import Calibration
from optstream.mechanism.loop import Priced, draw_periods, price_next
from optstream.mechanism.release import Parts, Release
from optstream.mechanism.state import State
from optstream.mechanism.tree_release import TreeMeasurement, assemble_tree, by_step, rounded_nodes, whole_sums
from optstream.pipeline.features import Feature
from optstream.pipeline.hierarchy import Hierarchy
from optstream.pipeline.perturbation import CubeNoise, GaussianNoise, LaplaceNoise
from optstream.pipeline.projection import ConvexProjection, tree_of
from optstream.pipeline.reconstruction import Linear
from optstream.pipeline.sampling import BucketSampling, EqualSampling, L1Sampling
from optstream.pipeline.tree_projection import TreeProjection
from optstream.privacy import budget
from optstream.privacy.accounting import epsilon_of
from optstream.privacy.guarantee import Guarantee
from optstream.privacy.statement import Stage, Statement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime
    from decimal import Decimal

    from numpy.typing import NDArray

    from optstream.estimate.memory import Memory
    from optstream.pipeline.sampling import Sampling
    from optstream.privacy.accounting import Cost

    _Arrays = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]

__all__ = ["OptStream"]

SAMPLERS = 1
"""The version of the samplers: it changes whenever the same key, scales and data would give other noise."""
STEADY = (
    "Holds for one stream of periods, each released once, by this mechanism and by what follows it through the same "
    "state or ledger."
)
"""What the statement of a mechanism is about, before there is data."""


@dataclass(frozen=True, repr=False)
class Periods:
    """Raw data on its way into a release, as integers of the grid."""

    units: NDArray[np.int64]
    """An array of periods, streams and steps."""
    restore: Callable[[NDArray[np.float64]], Any]
    """Gives released numbers the form of the data."""


@dataclass(frozen=True, init=False)
class OptStream:
    """The four-step release of one stream: sample, perturb, reconstruct, post-process.

    Args:
        guarantee: What is promised.
        sample: What is measured of a period: :class:`EqualSampling` or :class:`L1Sampling` measure steps,
            :class:`BucketSampling` means of runs of steps.
        features: Partitions whose sums are measured too and made consistent with the steps, all of them non-negative.
            None by default: sound sums cost more than they give, so use them where consistent totals are wanted.
            Without features and hierarchy nothing is projected, and noise may make a value negative.
        split: Shares of the budget for the stages that read data, in the order sample, perturb, features; equal by
            default. Equal sampling reads nothing and has no share.
        bounds: Public lower and upper bound of the values, which are clamped to them.
        perturb: The noise on measured values: :class:`LaplaceNoise`, or :class:`CubeNoise` on blocks of them, which is
            less for the same guarantee, or :class:`GaussianNoise` for a guarantee with a delta.
        reconstruct: How the steps follow from what was measured: on a :class:`Linear` line, or as the best
            :class:`Estimate` from this period and all before it.
        retune: Whether what is measured is chosen anew from what was released, now and then; see :meth:`auto`.
        calibration: ``"sound"`` makes the worst window cost exactly epsilon. ``"paper"`` uses the scales that the paper
            prints, and the statement then carries the true, larger epsilon.
        weights: How post-processing trusts its answers: by ``"variance"`` of their noise, or by ``"paper"``, one over
            the number of cells. By default variance in sound calibration, paper otherwise.
        grid: Public step of the grid, a power of two. By default the largest that is at most ``alpha / 1024``.
        hierarchy: A tree of groups whose leaves are the streams. All nodes are released, and add up.
        level_split: Shares of the budget for the levels of the hierarchy, from the root down; equal by default.
        integers: Whether released values are rounded to whole numbers, in a hierarchy those of the leaves. It is free.

    Example:
        >>> mechanism = OptStream(
        ...     Guarantee(epsilon=1.0, w=48, alpha=10.0),
        ...     sample=L1Sampling(k=10, threshold=1000.0),
        ...     features=[Feature.cuts(48, 14, 24, 36), Feature.total(48)],
        ...     split=(1, 1, 1),
        ...     bounds=(0, 20_000),
        ... )
        >>> mechanism.release(np.full(96, 5000.0)).values.shape
        (96,)
    """

    guarantee: Guarantee
    sample: Sampling
    features: tuple[Feature, ...]
    split: tuple[Fraction, ...]
    bounds: tuple[float, float]
    perturb: LaplaceNoise | CubeNoise | GaussianNoise
    reconstruct: Linear | Estimate
    retune: bool
    calibration: Literal["sound", "paper"]
    weights: Literal["variance", "paper"]
    grid: float
    hierarchy: Hierarchy | None
    level_split: tuple[Fraction, ...]
    integers: bool

    def __init__(
        self,
        guarantee: Guarantee,
        *,
        sample: Sampling,
        bounds: tuple[float, float],
        features: Sequence[Feature] = (),
        split: Sequence[float | Fraction | Decimal] | None = None,
        perturb: LaplaceNoise | CubeNoise | GaussianNoise | None = None,
        reconstruct: Linear | Estimate | None = None,
        retune: bool = False,
        calibration: Literal["sound", "paper"] = "sound",
        weights: Literal["variance", "paper"] | None = None,
        grid: float | None = None,
        hierarchy: Hierarchy | None = None,
        level_split: Sequence[float | Fraction | Decimal] | None = None,
        integers: bool = False,
    ) -> None:
        _check_type("guarantee", guarantee, Guarantee)
        _check_type("sample", sample, EqualSampling, L1Sampling, BucketSampling)
        for feature in features:
            _check_type("features", feature, Feature)
            if feature.w != guarantee.w:
                raise ParameterError(f"features hold a partition of {feature.w} steps, but must have w = {guarantee.w}")
        _check_choice("calibration", calibration, "sound", "paper")
        if weights is None:
            weights = "variance" if calibration == "sound" else "paper"
        _check_choice("weights", weights, "variance", "paper")
        fields = {
            "guarantee": guarantee,
            "sample": sample,
            "features": tuple(features),
            "bounds": bounds,
            "perturb": LaplaceNoise() if perturb is None else perturb,
            "reconstruct": Linear() if reconstruct is None else reconstruct,
            "retune": retune,
            "calibration": calibration,
            "weights": weights,
            "grid": _core.default_grid(guarantee.alpha) if grid is None else grid,
            "hierarchy": hierarchy,
            "level_split": _level_shares(hierarchy, level_split),
            "integers": integers,
        }
        _check_type("perturb", fields["perturb"], LaplaceNoise, CubeNoise, GaussianNoise)
        if isinstance(perturb, GaussianNoise) and not guarantee.delta:
            raise ParameterError("delta is 0, but must be positive for GaussianNoise: Guarantee(..., delta=1e-6)")
        if calibration == "paper" and (
            (perturb is not None and perturb != LaplaceNoise())
            or isinstance(sample, BucketSampling)
            or isinstance(reconstruct, Estimate)
        ):
            raise ParameterError("calibration is 'paper', but must be 'sound' for what the paper does not have")
        _check_type("reconstruct", fields["reconstruct"], Linear, Estimate)
        _check_type("retune", retune, bool)
        _check_type("integers", integers, bool)
        if retune and (
            not (isinstance(reconstruct, Estimate) and reconstruct.memory) or isinstance(sample, L1Sampling)
        ):
            raise ParameterError("retune is True, but must be False with L1Sampling or without an Estimate with memory")
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "split", self._calibrated(guarantee, ()).shares_of(split))
        # Building the plan now finds what is wrong before there is any data.
        _ = self._calibration.plan if hierarchy is None else self._tree
        if self.estimator is not None:
            self.estimator.check()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is built from the parameters, such as the plan in Rust."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)

    def _calibrated(
        self, guarantee: Guarantee, split: tuple[Fraction, ...], part: Fraction = Fraction(1)
    ) -> Calibration:
        return Calibration(
            guarantee=guarantee,
            sample=self.sample,
            perturb=self.perturb,
            features=self.features,
            split=split,
            printed=self.calibration == "paper",
            weights=self.weights,
            grid=self.grid,
            bounds=self.bounds,
            part=part,
        )

    @cached_property
    def _calibration(self) -> Calibration:
        """The noise of a single stream."""
        return self._calibrated(self.guarantee, self.split)

    @cached_property
    def levels(self) -> tuple[Calibration, ...]:
        """The noise of each level of the hierarchy, with its share of epsilon; of the one stream without one."""
        if self.hierarchy is None:
            return (self._calibration,)
        epsilon = self.guarantee.epsilon
        if isinstance(self.perturb, GaussianNoise):
            return tuple(self._calibrated(self.guarantee, self.split, share) for share in self.level_split)
        parts = (self.guarantee.with_epsilon(epsilon * share) for share in self.level_split)
        return tuple(self._calibrated(part, self.split) for part in parts)

    @property
    def plans(self) -> Sequence[_core.Plan]:
        """What measures each level of the hierarchy, or the one stream."""
        return (self._plan,) if self.hierarchy is None else self._tree.plans

    def settled(self, steps: NDArray[np.float64], cells: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the values of all nodes of a hierarchy from what was measured of one period."""
        tree = self._tree
        return whole_sums(tree.hierarchy, tree.projection.project(steps, cells), self.grid, self.bounds)

    @cached_property
    def _tree(self) -> TreeMeasurement:
        hierarchy = self.hierarchy
        if hierarchy is None:
            raise ParameterError("hierarchy is None, but must be given to release a tree")
        below = hierarchy.sums(np.ones(hierarchy.leaf_positions.size, dtype=np.int64))
        plans = [
            level.build_plan(None, streams=int(below[hierarchy.level_positions[depth]].max()))
            for depth, level in enumerate(self.levels)
        ]
        # Noise is inversely proportional to the share of a level, so an answer's weight is the share squared times what
        # it would be in a single stream; the variance of Gaussian noise is, so that there it is the share.
        power = 1 if isinstance(self.perturb, GaussianNoise) else 2
        shares = np.array([float(share) for share in self.level_split])
        weights = self._calibration.answer_weights()
        first = np.cumsum([self.guarantee.w, *(feature.size for feature in self.features)])[:-1]
        projection = TreeProjection(
            hierarchy,
            self.features,
            shares[hierarchy.depths] ** power,
            weights[: self.guarantee.w],
            [float(weights[index]) for index in first],
            bounds=self.bounds,
        )
        return TreeMeasurement(hierarchy, plans, projection, self.bounds)

    @cached_property
    def estimator(self) -> Estimator | None:
        """What turns measured periods into estimates, if they are."""
        if not isinstance(self.reconstruct, Estimate):
            return None
        return Estimator(self.reconstruct, self.levels, self.hierarchy)

    @cached_property
    def _plan(self) -> _core.Plan:
        """The plan of a single stream. An estimate wants what was measured, not what was made consistent."""
        return self._calibration.plan if self.estimator is None else self._calibration.build_plan(None)

    @cached_property
    def _projection(self) -> ConvexProjection | None:
        """Clarabel's problem, where the features form no chain."""
        if self.estimator or not self.features or tree_of(self.guarantee.w, self.features) is not None:
            return None
        return ConvexProjection(self.guarantee.w, self.features, self._calibration.answer_weights(), self.bounds)

    @cached_property
    def statement(self) -> Statement:
        """What one window costs, stage by stage. No data is needed."""
        guarantee = self.guarantee
        if self.hierarchy is None:
            stages, assumptions = self._calibration.described(), []
        else:
            assumptions = ["every entity belongs to one leaf of the hierarchy, and to the same one during a window"]
            named = ((level, f"{{}} level {depth}") for depth, level in enumerate(self.levels))
            stages = [stage for level, name in named for stage in level.described(name)]
        if self.retune:
            stages = [replace(stage, does=f"at first {stage.does}; later as releases suggest") for stage in stages]
        return Statement(
            guarantee=guarantee,
            epsilon=self.steady_epsilon,
            scope=STEADY,
            stages=tuple(stages),
            calibration=self.calibration,
            weights=self.weights,
            grid=self.grid,
            bounds=(float(self.bounds[0]), float(self.bounds[1])),
            assumptions=(
                f"one entity changes the value of any one step by at most {guarantee.alpha:g}",
                "no period is released twice, and nothing else is released from the same data",
                "w, k, features, split, bounds, grid and threshold were chosen without looking at the private data"
                + (", but for what was released of it" if self.retune else ""),
                *assumptions,
            ),
            version=version("optstream"),
        )

    @classmethod
    def auto(
        cls,
        guarantee: Guarantee,
        *,
        bounds: tuple[float, float],
        scale: float | None = None,
        season: int = 7,
        features: Sequence[Feature] = (),
        grid: float | None = None,
        hierarchy: Hierarchy | None = None,
        integers: bool = False,
    ) -> OptStream:
        """Return a mechanism that needs no choice: it starts from what :func:`tune` finds and tunes itself.

        After 1, 3 and 8 weeks of daily periods, and then every 8 weeks, it looks at what it has learnt from its own
        releases and measures with more or fewer buckets if that promises a smaller error. Released values are public,
        so looking at them costs nothing. The first period after a change gets as much less epsilon as keeps every
        window that meets both plans within the guarantee.

        Args:
            guarantee: What is promised.
            bounds: Public lower and upper bound of the values.
            scale: A guess of the standard deviation of the values within a period; a tenth of the width of the bounds
                if nothing is known.
            season: The number of periods after which weekdays repeat; 1 for none.
            features: Partitions whose sums are measured too.
            grid: Public step of the grid.
            hierarchy: A tree of groups whose leaves are the streams.
            integers: Whether released values are rounded to whole numbers.

        Example:
            >>> mechanism = OptStream.auto(Guarantee(epsilon=1, w=48), bounds=(0, 20_000))
            >>> mechanism.sample.k, mechanism.retune
            (48, True)
        """
        from optstream.mechanism.tuning import tune  # noqa: PLC0415  (which makes mechanisms)

        found = tune(
            guarantee,
            bounds=bounds,
            scale=scale,
            season=season,
            features=features,
            grid=grid,
            hierarchy=hierarchy,
            buckets=True,
        )
        return found.mechanism.changed(retune=True, integers=integers)

    def release(
        self,
        x: Any,
        *,
        state: Mapping[str, Any] | None = None,
        period: int | None = None,
        emit: Literal["period", "step"] = "period",
    ) -> Any:
        """Release whole periods.

        Args:
            x: One period or many: a 1-D array of ``n * w`` values, a 2-D array with ``w`` columns, or a series of
                pandas, polars or pyarrow. With a hierarchy, a frame, a mapping or an array with one column per leaf.
                The result has the same form and index.
            state: What an earlier :attr:`Release.state` gave, of the periods right before these: what they cost and
                what an :class:`Estimate` has learnt. The first period then gets as much budget as the windows over the
                border leave. Without it the statement is about this call alone.
            period: The number of the first period, if it is not the next one after the state.
            emit: ``"step"`` releases every value as if it left when its step has come: from data up to that step only.
                ``revised`` then has what each period's measurements say together.

        Returns:
            A :class:`Release`, or a :class:`TreeRelease` of all nodes if there is a hierarchy.

        Raises:
            DataError: The data is empty, not a whole number of periods, or not finite.
            BudgetError: The period before these leaves no budget for the next one.
            SolverError: Post-processing failed. Nothing is released, but the noise has been drawn: count the budget as
                spent unless nobody can have seen the failure.
        """
        _check_choice("emit", emit, "period", "step")
        known = State.read(state, self)
        known.skip_to(period)
        if emit == "step":
            from optstream.mechanism.per_step import release_steps  # noqa: PLC0415  (which knows mechanisms)

            return release_steps(self, x, known)
        if self.hierarchy is None and self.estimator is None and price_next(self, known, known.next).mechanism == self:
            return self._released_at_once(x, known)
        periods = self.read(x)
        work = tqdm(periods.units, desc="releasing", unit="period", disable=None, leave=False)
        drawn, interpreted = [], []
        for result in draw_periods(self, work, known):
            drawn.append(result)
            if known.memory is not None:
                interpreted.append(known.memory.understood)
        revised = None
        if self.estimator is not None and self.estimator.estimate.revise and known.memory is not None:
            rows = self.estimator.revised(known.memory, interpreted)
            revised = periods.restore(self.whole(rows)[:, 0] if self.hierarchy is None else by_step(self.whole(rows)))
        made = self.assemble(
            [result.parts for result in drawn], periods.restore, [one.priced.mechanism for one in drawn]
        )
        statement = self.stated([result.priced for result in drawn], known, len(drawn))
        return replace(made, revised=revised, statement=statement, state=known.to_data(self.guarantee))

    def _released_at_once(self, x: Any, known: State) -> Release:
        """Return all periods of a single stream without an estimate, by one call into Rust."""
        rows, restore = read_periods(x, self.guarantee.w)
        priced = price_next(self, known, known.next)
        made = self._assembled(self.projected(*self._calibration.plan.release(rows)), restore)
        periods = len(made._rows)  # noqa: SLF001
        statement = self.stated([priced], known, periods)
        known.advance(known.next + periods - 1, self.costs)
        return replace(made, statement=statement, state=known.to_data(self.guarantee))

    def stated(self, priced: Sequence[Priced], known: State, periods: int) -> Statement:
        """Return what a call states: the price of all windows that it knows of."""
        count = "this period" if periods == 1 else f"these {periods} periods"
        scope = (
            f"Holds for every window that meets {count}, with all that was released before through the state that was "
            "handed over."
        )
        if not known.handed_over:
            scope = (
                f"Holds for one call and one stretch of data, {count}: windows that also meet periods released by "
                "another call are not priced. Hand release.state to the next call, or release through a ledger."
            )
        epsilon = max(one.epsilon for one in priced)
        return replace(self.statement, epsilon=epsilon, scope=scope, stages=self._stages_of(priced))

    def _stages_of(self, priced: Sequence[Priced]) -> tuple[Stage, ...]:
        """Return the stages of what was drawn, which has a smaller budget where a window over a change needs it."""
        if self.retune:
            return self.statement.stages
        counts = Counter(one.mechanism for one in priced)
        return tuple(
            stage if len(counts) == 1 else replace(stage, does=f"{stage.does}, in {count} of {len(priced)} periods")
            for mechanism, count in counts.items()
            for stage in mechanism.statement.stages
        )

    def remembered(self, state: Mapping[str, Any] | None = None) -> Memory:
        """Return what an estimate knows before anything is released, or what it knew in a state that it gave.

        Raises:
            ParameterError: There is no estimate, or the state is of another kind.
        """
        if self.estimator is None:
            raise ParameterError("reconstruct is not an Estimate, but must be one to remember anything")
        fresh = self.estimator.fresh()
        return fresh if state is None else fresh.restored(state)

    def following(self, memory: Memory) -> OptStream:
        """Return the mechanism that fits what is remembered: this one, unless it tunes itself. It is not priced."""
        if not self.retune:
            return self
        from optstream.mechanism.tuning import following  # noqa: PLC0415

        return following(self, memory)

    def variant(self, **choice: Any) -> OptStream:
        """Return the mechanism of one period of a mechanism that tunes itself, built once for every choice."""
        key = tuple(sorted(choice.items()))
        if key not in self._variants:
            self._variants[key] = self.changed(retune=False, **choice)
        return self._variants[key]

    @cached_property
    def _variants(self) -> dict[Any, OptStream]:
        return {}

    def finish(self, parts: Parts, period: int, memory: Memory) -> Parts:
        """Return the estimate of a drawn period, and remember it; without an estimate the period as it is."""
        if self.estimator is None:
            return parts
        memory.choice = self.choice
        return self.estimator.finish(parts, period, memory)

    @cached_property
    def choice(self) -> dict[str, Any]:
        """What a mechanism that tunes itself may change."""
        from optstream.mechanism import plan  # noqa: PLC0415

        return {name: plan.describe(self)[name] for name in ("sample", "perturb")}

    @cached_property
    def costs(self) -> tuple[Cost, ...]:
        """What one period costs, on the steps 0 to w - 1: what the accountant adds up and a ledger charges."""
        # An entity of a leaf is measured once on every level from the root down to it. The lowest leaf pays for all.
        return tuple(cost for level in self.levels for stage in level.true_costs().values() for cost in stage)

    @cached_property
    def steady_epsilon(self) -> Fraction:
        """What the worst window of an endless stream of such periods costs."""
        return epsilon_of(self.costs, self.guarantee)

    @cached_property
    def description(self) -> str:
        """Every public parameter, as canonical JSON."""
        from optstream.mechanism import plan  # noqa: PLC0415  (which makes mechanisms)

        return plan.canonical(plan.describe(self))

    @cached_property
    def digest(self) -> bytes:
        """What stands for the mechanism in a ledger."""
        from optstream.mechanism import plan  # noqa: PLC0415

        return plan.digest(self.description)

    def with_epsilon(self, epsilon: Fraction) -> OptStream:
        """Return the same mechanism with another budget.

        >>> from fractions import Fraction
        >>> mechanism = OptStream(Guarantee(epsilon=1, w=4), sample=EqualSampling(k=2), bounds=(0, 9))
        >>> mechanism.with_epsilon(Fraction(1, 2)).statement.epsilon
        Fraction(1, 2)
        """
        return self.changed(guarantee=self.guarantee.with_epsilon(epsilon))

    def changed(self, **changes: Any) -> OptStream:
        """Return the same mechanism with other parameters."""
        return OptStream(**{name: getattr(self, name) for name in self.__dataclass_fields__} | changes)

    def read(self, x: Any) -> Periods:
        """Return the data of whole periods as integers of the grid. Nothing is drawn.

        Raises:
            DataError: The data is empty, not a whole number of periods, or not finite.
        """
        w = self.guarantee.w
        if self.hierarchy is None:
            rows, restore = read_periods(x, w)
            return Periods(_core.quantise(rows, self.bounds, self.grid).reshape(-1, 1, w), restore)
        data, restore = read_leaves(x, self.hierarchy, w)
        units = _core.quantise(data, self.bounds, self.grid).reshape(-1, w, data.shape[1])
        return Periods(np.ascontiguousarray(units.transpose(0, 2, 1)), restore)

    def draw(self, units: NDArray[np.int64], retry: tuple[_core.CuratorKey, Sequence[bytes]] | None = None) -> Parts:
        """Draw the release of one period, given as a row of integers of the grid for every stream.

        With a curator's key and a context the noise is a function of them and of the data, so that a retry repeats it
        bit for bit. The context must tell apart whatever may be released: see :class:`Ledger`.
        """
        if retry is not None:
            # Two builds that calibrate one description differently must not draw the same bits at two scales.
            retry = retry[0], [*retry[1], self.fingerprint]
        if self.hierarchy is None:
            return Parts(*self.projected(*self._plan.measure(units, retry)))
        if self.estimator is not None:
            return Parts(*self._tree.measure(units, retry))
        return Parts(self._tree.draw(units, self.grid, retry), np.empty((0, 0)), np.empty((0, 0), dtype=np.int64))

    @cached_property
    def fingerprint(self) -> bytes:
        """What keyed noise depends on besides the context: samplers, sensitivities, scales, blocks, runs and grid."""
        content = [
            (
                level.sampler_inputs(),
                level.plan.sensitivity,
                level.plan.reach,
                level.plan.selection_scales,
                level.plan.sample_scale,
                level.plan.feature_scales,
                level.blocks,
                level.gaussian,
                level.grid,
                # Equal bounds are one pair, whether they were given as ints or floats.
                tuple(map(float, level.bounds)),
            )
            for level in self.levels
        ]
        return sha256(repr((SAMPLERS, content)).encode()).digest()

    def assemble(
        self,
        parts: Sequence[Parts],
        restore: Callable[[NDArray[np.float64]], Any],
        made: Sequence[OptStream] | None = None,
    ) -> Any:
        """Return the release of drawn periods in the form of the data that was read.

        Args:
            parts: The periods.
            restore: Gives released numbers the form of the data.
            made: The mechanism of each period, where budgets differ; they measure alike unless there is an estimate.
        """
        if self.hierarchy is not None:
            return assemble_tree(
                np.stack([part.values for part in parts]),
                restore,
                hierarchy=self.hierarchy,
                features=self.features,
                statement=self.statement,
                noise=[one.level_noise for one in made or [self] * len(parts)],
                deviations=None if self.estimator is None else np.stack([part.deviations for part in parts]),
                integers=self.integers,
            )
        if self.estimator is not None:
            return self._release(
                np.concatenate([part.values for part in parts]),
                np.concatenate([part.cells for part in parts]),
                restore,
                None,
                _knots=np.empty((0, 0), dtype=np.int64),
                _deviations=np.concatenate([part.deviations for part in parts]),
            )
        if len(parts) == 1:
            arrays = parts[0].values, parts[0].cells, parts[0].knots
        else:
            arrays = (
                np.concatenate([part.values for part in parts]),
                np.concatenate([part.cells for part in parts]),
                np.concatenate([part.knots for part in parts]),
            )
        scales = None if made is None else np.array([mechanism.noise_scale for mechanism in made])
        return self._assembled(arrays, restore, scales)

    def assemble_period(
        self, parts: Parts, period: int, start: int | datetime | None = None, statement: Statement | None = None
    ) -> Any:
        """Return the release of one period of a stream: an array, or for a hierarchy an array for every node."""

        def restore(values: NDArray[np.float64]) -> Any:
            return self.named(values if self.hierarchy is None else values.T)

        begin = period * self.guarantee.w if start is None else start
        made = self.assemble([parts], restore)
        return replace(made, period=period, start=begin, statement=statement or made.statement)

    def whole(self, rows: NDArray[np.float64]) -> NDArray[Any]:
        """Return periods, streams and steps as whole numbers, if values are."""
        if not self.integers:
            return rows
        made = np.rint(rows) if self.hierarchy is None else rounded_nodes(self.hierarchy, rows)
        return made.astype(np.int64)

    def named(self, rows: NDArray[np.float64]) -> Any:
        """Return one period of a stream, given as one row for every stream: an array, or one for every node."""
        return rows.ravel() if self.hierarchy is None else dict(zip(self.hierarchy.nodes, rows, strict=True))

    def projected(self, steps: NDArray[np.float64], cells: NDArray[np.float64], knots: NDArray[np.uint64]) -> _Arrays:
        """Apply the projection that is not part of the plan, in place."""
        if self._projection is not None:
            for step_row, cell_row in zip(steps, cells, strict=True):
                step_row[:], cell_row[:] = self._projection.project(step_row, cell_row)
        return steps, cells, knots.astype(np.int64)

    @property
    def noise_scale(self) -> float:
        """The scale of the noise on measured values of a single stream, in the units of the data."""
        return self._calibration.scale

    def _assembled(
        self, arrays: _Arrays, restore: Callable[[NDArray[np.float64]], Any], scales: NDArray[np.float64] | None = None
    ) -> Release:
        steps, cells, knots = arrays
        return self._release(
            steps,
            cells,
            restore,
            scales,
            _knots=knots,
            _blocks=self._calibration.blocks,
            _gaussian=self._calibration.gaussian,
            _buckets=self.sample.runs(self.guarantee.w) if isinstance(self.sample, BucketSampling) else None,
        )

    @cached_property
    def level_noise(self) -> tuple[Release, ...]:
        """The noise of each level, as releases of zeros: what :meth:`TreeRelease.interval` takes widths from."""
        w, none = self.guarantee.w, np.zeros((1, self.guarantee.w))
        buckets = self.sample.runs(w) if isinstance(self.sample, BucketSampling) else None
        # Steps that were chosen from the data are not kept; the noise of a measured step covers those in between too.
        knots = self.sample.steps(w) if isinstance(self.sample, EqualSampling) else range(w)
        return tuple(
            Release(
                values=none,
                features=(),
                statement=self.statement,
                _rows=none,
                _knots=np.array([knots], dtype=np.int64),
                _scales=np.array([level.scale]),
                _grid=self.grid,
                _blocks=level.blocks if isinstance(self.sample, (EqualSampling, BucketSampling)) else None,
                _buckets=buckets,
            )
            for level in self.levels
        )

    def _release(
        self,
        steps: NDArray[np.float64],
        cells: NDArray[np.float64],
        restore: Callable[[NDArray[np.float64]], Any],
        scales: NDArray[np.float64] | None,
        **how: Any,
    ) -> Release:
        ends = accumulate((feature.size for feature in self.features), initial=0)
        if self.integers:
            steps = np.rint(steps) + 0.0
            sums = [steps @ np.eye(feature.size)[list(feature.labels)] for feature in self.features]
            cells = np.concatenate([*sums, np.empty((len(steps), 0))], axis=1)
        return Release(
            values=restore(steps.astype(np.int64) if self.integers else steps),
            features=tuple(cells[:, low:high] for low, high in pairwise(ends)),
            statement=self.statement,
            _rows=steps,
            _scales=np.full(len(steps), self._calibration.scale) if scales is None else scales,
            # What rounding does is part of what an interval covers.
            _grid=self.grid + 0.5 * self.integers,
            **how,
        )


def _level_shares(
    hierarchy: Hierarchy | None, split: Sequence[float | Fraction | Decimal] | None
) -> tuple[Fraction, ...]:
    levels = 0
    if hierarchy is not None:
        _check_type("hierarchy", hierarchy, Hierarchy)
        levels = hierarchy.levels
    split = (1,) * levels if split is None else split
    if len(split) != levels:
        raise ParameterError(f"level_split has {len(split)} shares, but must have {levels}, one per level")
    return budget.shares("level_split", split)


def _check_type(name: str, value: object, *kinds: type) -> None:
    if not isinstance(value, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise ParameterTypeError(f"{name} is of type {type(value).__name__}, but must be {wanted}")


def _check_choice(name: str, value: str, *choices: str) -> None:
    if not isinstance(value, str) or value not in choices:
        raise ParameterError(f"{name} is {value!r}, but must be {' or '.join(map(repr, choices))}")
