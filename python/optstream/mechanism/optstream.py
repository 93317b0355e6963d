"""OptStream: sample, perturb, reconstruct, post-process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from optstream.errors import ParameterError
from optstream.estimate import Estimate
from optstream.mechanism import candidates, description
from optstream.mechanism.assembly import Assembler
from optstream.mechanism.engine import Engine
from optstream.mechanism.mechanism import Mechanism
from optstream.mechanism.parameters import check_choice, checked
from optstream.mechanism.series import release_periods, release_steps
from optstream.mechanism.state import State
from optstream.mechanism.statements import steady
from optstream.mechanism.walk import MeasuredWalks
from optstream.pipeline.sampling import BucketSampling
from optstream.privacy import accounting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime
    from decimal import Decimal
    from fractions import Fraction

    import numpy as np
    from numpy.typing import NDArray

    from optstream import _core
    from optstream.estimate.estimator import Estimator
    from optstream.estimate.memory import Memory
    from optstream.mechanism.calibration import Calibration
    from optstream.mechanism.engine import Periods
    from optstream.mechanism.release import Parts
    from optstream.pipeline.features import Feature
    from optstream.pipeline.hierarchy import Hierarchy
    from optstream.pipeline.perturbation import CubeNoise, GaussianNoise, LaplaceNoise
    from optstream.pipeline.reconstruction import Linear
    from optstream.pipeline.sampling import Sampling
    from optstream.privacy.accounting import Cost
    from optstream.privacy.guarantee import Guarantee
    from optstream.privacy.statement import Statement

__all__ = ["OptStream"]


@dataclass(frozen=True, init=False)
class OptStream(Mechanism):
    """The four-step release of one stream: sample, perturb, reconstruct, post-process.

    Args:
        guarantee: What is promised.
        sample: What is measured of a period: :class:`EqualSampling` or :class:`L1Sampling` measure steps,
            :class:`BucketSampling` means of runs of steps.
        features: Partitions whose sums are measured too and made consistent with the steps, all of them non-negative.
            None by default: sound sums cost more than they give, so use them where consistent totals are wanted.
            Without features and hierarchy nothing is projected, and noise may make a value negative.
        split: Shares of the budget for the stages that read data, in the order sample, perturb, features; equal by
            default. Equal sampling reads nothing and has no share. With Gaussian noise they are shares of rho, in which
            what choosing steps costs counts with its square.
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
        hierarchy: A tree of groups whose leaves are the streams, all nodes of which are released and add up; or a
            :class:`Panel` of streams that are released together.
        level_split: Shares of the budget for the levels of the hierarchy, from the root down; equal by default.
        integers: Whether released values are rounded to whole numbers, in a hierarchy those of the leaves. It is free.

    Example:
        >>> import numpy as np
        >>> from optstream import Feature, Guarantee, L1Sampling
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
        given = {name: value for name, value in locals().items() if name not in {"self", "split"}}
        for name, value in checked(given).items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "split", self.engine.calibrated(guarantee, ()).shares_of(split))
        # Building the plan now finds what is wrong before there is any data.
        _ = self.engine.calibration.plan if hierarchy is None else self.engine.tree
        if self.estimator is not None:
            self.estimator.check()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is built from the parameters, such as the plan in Rust."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)

    @cached_property
    def engine(self) -> Engine:
        """What draws periods."""
        return Engine(self)

    @cached_property
    def assembler(self) -> Assembler:
        """What puts releases together."""
        return Assembler(self)

    @cached_property
    def statement(self) -> Statement:
        """What one window costs, stage by stage. No data is needed."""
        return steady(self)

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
        emit: Literal["period", "step"] = "period",
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
            emit: ``"step"`` chooses by the error of the value that leaves when its step has come, once and for all.

        Example:
            >>> from optstream import Guarantee
            >>> mechanism = OptStream.auto(Guarantee(epsilon=1, w=48), bounds=(0, 20_000))
            >>> mechanism.sample.k, mechanism.retune
            (48, True)
        """
        plain = cls(
            guarantee,
            sample=BucketSampling(1),
            bounds=bounds,
            features=features,
            grid=grid,
            hierarchy=hierarchy,
            reconstruct=Estimate(season=season),
        )
        check_choice("emit", emit, "period", "step")
        by_step = emit == "step"
        found = candidates.compare(plain, plain.remembered(), scale, buckets=not by_step, by_step=by_step)
        return found.mechanism.changed(retune=not by_step, integers=integers)

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
        check_choice("emit", emit, "period", "step")
        known = State.read(state, self)
        known.skip_to(period)
        return release_steps(self, x, known) if emit == "step" else release_periods(self, x, known)

    def with_epsilon(self, epsilon: Fraction) -> OptStream:
        """Return the same mechanism with another budget.

        >>> from fractions import Fraction
        >>> from optstream import EqualSampling, Guarantee
        >>> mechanism = OptStream(Guarantee(epsilon=1, w=4), sample=EqualSampling(k=2), bounds=(0, 9))
        >>> mechanism.with_epsilon(Fraction(1, 2)).statement.epsilon
        Fraction(1, 2)
        """
        return self.changed(guarantee=self.guarantee.with_epsilon(epsilon))

    def changed(self, **changes: Any) -> OptStream:
        """Return the same mechanism with other parameters."""
        return OptStream(**{name: getattr(self, name) for name in self.__dataclass_fields__} | changes)

    @cached_property
    def description(self) -> str:
        """Every public parameter, as canonical JSON."""
        return description.canonical(description.describe(self))

    @cached_property
    def digest(self) -> bytes:
        """What stands for the mechanism in a ledger."""
        return description.digest(self.description)

    # What the loop, streams and ledgers ask of a mechanism.

    emits = ("period", "step")
    streams = 1

    @property
    def spacing(self) -> float:
        """The step of the grid."""
        return self.grid

    @cached_property
    def walks(self) -> MeasuredWalks:
        """How the steps of a period are released one by one.

        Raises:
            ParameterError: The mechanism chooses steps from the data.
        """
        return MeasuredWalks(self)

    def costs_when(self, said: Mapping[str, Any]) -> tuple[Cost, ...]:
        """Return what a period costs, in which steps may be ``held``: each maps to the earlier one that it repeats."""
        sources = {int(step): source for step, source in said.get("held", {}).items()}
        return tuple(accounting.held(self.costs, sources)) if sources else self.costs

    @property
    def levels(self) -> tuple[Calibration, ...]:
        """The noise of each level of the hierarchy, or of the one stream."""
        return self.engine.levels

    @property
    def estimator(self) -> Estimator | None:
        """What turns measured periods into estimates, if they are."""
        return self.engine.estimator

    @property
    def noise_scale(self) -> float:
        """The scale of the noise on measured values of a single stream, in the units of the data."""
        return self.engine.calibration.scale

    @property
    def costs(self) -> tuple[Cost, ...]:
        """What one period costs, on the steps 0 to w - 1: what the accountant adds up and a ledger charges."""
        return self.engine.costs

    @property
    def steady_epsilon(self) -> Fraction:
        """What the worst window of an endless stream of such periods costs."""
        return self.engine.steady_epsilon

    def read(self, x: Any) -> Periods:
        """Return the data of whole periods as integers of the grid. Nothing is drawn.

        Raises:
            DataError: The data is empty, not a whole number of periods, or not finite.
        """
        return self.engine.read(x)

    def draw(self, units: NDArray[np.int64], retry: tuple[_core.CuratorKey, Sequence[bytes]] | None = None) -> Parts:
        """Draw the release of one period; see :meth:`Engine.draw`."""
        return self.engine.draw(units, retry)

    def assemble(
        self,
        parts: Sequence[Parts],
        restore: Callable[[NDArray[np.float64]], Any],
        made: Sequence[OptStream] | None = None,
    ) -> Any:
        """Return the release of drawn periods in the form of the data that was read; see :meth:`Assembler.periods`."""
        return self.assembler.periods(parts, restore, made)

    def assemble_period(
        self, parts: Parts, period: int, start: int | datetime | None = None, statement: Statement | None = None
    ) -> Any:
        """Return the release of one period of a stream: an array, or for a hierarchy an array for every node."""
        return self.assembler.period(parts, period, start, statement)

    # What a mechanism makes of what was released before.

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
        return candidates.following(self, memory) if self.retune else self

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
        described = description.describe(self)
        return {name: described[name] for name in ("sample", "perturb")}
