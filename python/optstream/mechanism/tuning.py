"""Choosing a mechanism before anything is spent: from public or released history, or from a guess of scale.

What a linear Gaussian filter will know does not depend on the data, only on what is measured, with what noise, and on
how strong the parts of the stream are. So the error of every candidate follows from what was learnt of the stream
(:meth:`Filter.expected_error`), without simulating any.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from tqdm.auto import tqdm

from optstream.errors import ParameterError, ParameterTypeError
from optstream.estimate import Estimate
from optstream.estimate.estimator import MOST, variances_of
from optstream.estimate.filter import Measured
from optstream.mechanism.optstream import OptStream
from optstream.mechanism.release import Release
from optstream.mechanism.state import State
from optstream.mechanism.tree_release import TreeRelease
from optstream.pictures import empty_figure
from optstream.pipeline.perturbation import CubeNoise, GaussianNoise, LaplaceNoise
from optstream.pipeline.reconstruction import Linear
from optstream.pipeline.sampling import BucketSampling, EqualSampling
from optstream.privacy.budget import shown
from optstream.privacy.guarantee import Guarantee

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from fractions import Fraction

    from numpy.typing import NDArray

    from optstream.estimate.filter import Filter
    from optstream.estimate.memory import Memory
    from optstream.mechanism.calibration import Calibration
    from optstream.pipeline.features import Feature
    from optstream.pipeline.hierarchy import Hierarchy
    from optstream.pipeline.sampling import Sampling

    Array = NDArray[np.float64]

__all__ = ["Candidate", "Tuning", "following", "tune"]

PURE = (LaplaceNoise(), CubeNoise())
"""Noise of a pure guarantee."""
LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Lengths of buckets that are tried, and these times powers of 32."""
SPLITS = ((1, 1), (4, 1), (16, 1))
"""Shares of the samples and of the features that are tried, where there are features."""
SPREAD = 0.1
"""The standard deviation that is guessed of the values within a period, as a share of the width of the bounds."""
NODES = 12
"""Most nodes of a hierarchy whose errors are looked at."""
CHANGES, INTERVAL = (7, 21, 56), 56
"""Numbers of periods after which a mechanism tunes itself again, and how often later."""
EXPLORE, OFFSET = 28, 13
"""A period out of so many is measured step by step, since means cannot show what they hide; and the first of them."""
LOOKS = 2
"""Number of periods that are measured step by step after an alarm."""
SETTLED = (LOOKS, 7, 14, 28)
"""Numbers of periods after an alarm at which a mechanism tunes itself again."""
HEARD = 1.0
"""Size of an alarm, in standard deviations of the noise of a step, from which it is looked into."""
TIE = 1.05
"""Factor of error up to which means of buckets are preferred to steps."""
GAIN = 0.02
"""Share of its error by which another choice must be better."""
LONG = 288
"""Longest period of which history is learnt step by step."""
LONGEST = 400
"""Most periods of history that are looked at, the last ones."""
SHOWN = 12
"""Rows of the table that are shown."""


@dataclass(frozen=True)
class Candidate:
    """A mechanism that was considered."""

    sample: Sampling
    perturb: LaplaceNoise | CubeNoise | GaussianNoise
    reconstruct: Linear | Estimate
    split: tuple[int | Fraction, ...]
    expected_error: float
    """The mean absolute error of a released value that is expected, once memory has learnt what it can."""

    @property
    def described(self) -> tuple[str, str, str]:
        """What is measured, with what noise, and how values follow, in a few words."""
        measured = "means" if isinstance(self.sample, BucketSampling) else "steps"
        follows = "a line"
        if isinstance(self.reconstruct, Estimate):
            follows = "estimate with memory" if self.reconstruct.memory else "estimate without memory"
        elif isinstance(self.sample, BucketSampling):
            follows = "as measured"
        return f"{self.sample.k} {measured}", type(self.perturb).__name__.removesuffix("Noise").lower(), follows


@dataclass(frozen=True, repr=False)
class Tuning:
    """What :func:`tune` found: the best mechanism, what error to expect of it, and the table it was chosen from."""

    mechanism: OptStream
    chosen: Candidate
    """Its row of the table."""
    table: tuple[Candidate, ...]
    """All candidates, best first."""
    plain: Candidate
    """The plain Laplace mechanism, which measures every step with noise of its own, for comparison."""
    state: dict[str, Any] | None
    """What history says of the stream, if there is any, and what its last period cost if that was a release. Give it to
    the first release: the choice counts on it, and the windows over the border are priced by it."""

    @property
    def expected_error(self) -> float:
        """The mean absolute error of a released value that is expected of the mechanism."""
        return self.chosen.expected_error

    def shown(self, count: int = SHOWN) -> list[Candidate]:
        """Return the best rows of the table, with the chosen one and the plain Laplace mechanism."""
        rows = list(self.table[:count])
        return rows + [row for row in (self.chosen, self.plain) if row not in rows]

    def __repr__(self) -> str:
        return f"Tuning(expected_error={self.expected_error:.4g}, candidates={len(self.table)})"

    def __str__(self) -> str:
        rows = self.shown()
        lines = [
            "{:>10} {:<8} {:<24} {:>10.4g}".format(*row.described, row.expected_error)
            + ("  <- chosen" if row is self.chosen else "  (plain Laplace)" if row is self.plain else "")
            for row in rows
        ]
        hidden = len(self.table) - len(rows)
        head = f"{'measured':>10} {'noise':<8} {'values':<24} {'error':>10}"
        return "\n".join([head, *lines, f"and {hidden} others that are worse"])

    def to_json(self) -> str:
        """Return the table as JSON, best first."""
        names = ("measured", "noise", "values")
        content = [
            dict(zip(names, row.described, strict=True)) | {"k": row.sample.k, "expected_error": row.expected_error}
            for row in self.table
        ]
        return json.dumps(content, indent=2)

    def _repr_html_(self) -> str:
        from optstream.report import tuning_html  # noqa: PLC0415  (reports know tunings)

        return tuning_html(self)

    def plot(self, path: str | Path) -> None:
        """Write a picture of the expected error against the number of measured values; needs matplotlib.

        Raises:
            OptStreamError: Matplotlib is not installed.
        """
        Path(path).write_bytes(self.picture(Path(path).suffix.lstrip(".") or "png"))

    def picture(self, kind: str = "png") -> bytes:
        """Return the picture that :meth:`plot` writes, in any format that matplotlib knows."""
        figure = empty_figure(kind, figsize=(9, 5), layout="constrained")
        axes = figure.subplots()
        # One line for each way to make values: what is measured, and with what noise, is the best for each k.
        lines: dict[str, dict[int, float]] = {}
        for row in self.table:
            *_, values = row.described
            best = lines.setdefault(values, {})
            best[row.sample.k] = min(best.get(row.sample.k, np.inf), row.expected_error)
        for values, best in lines.items():
            axes.plot(*zip(*sorted(best.items()), strict=True), marker="o", markersize=4, linewidth=1.2, label=values)
        guarantee = self.mechanism.guarantee
        axes.axhline(self.plain.expected_error, color="grey", linestyle=":", label="plain Laplace noise")
        measured, noise, _ = self.chosen.described
        axes.plot(
            self.chosen.sample.k,
            self.expected_error,
            marker="*",
            markersize=16,
            linestyle="none",
            color="black",
            label=f"chosen: {measured}, {noise} noise",
        )
        axes.set(
            xscale="log",
            yscale="log",
            xlabel="measured values per period (k)",
            ylabel="expected mean absolute error",
            title=f"epsilon = {shown(guarantee.epsilon)}, w = {guarantee.w}, alpha = {guarantee.alpha:g}",
        )
        ks = sorted({row.sample.k for row in self.table})
        # Numbers that would run into each other are left out.
        ticks = [k for index, k in enumerate(ks) if index == 0 or k >= 1.3 * ks[index - 1] or k == ks[-1]]
        axes.set_xticks(ticks, [str(k) for k in ticks])
        low, high = axes.get_ylim()
        errors = [
            round_ * 10.0**power
            for power in range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))))
            for round_ in (1, 2, 5)
            if low <= round_ * 10.0**power <= high
        ]
        axes.set_yticks(errors, [f"{error:,.6g}" for error in errors])
        axes.minorticks_off()
        axes.grid(alpha=0.25)
        axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
        target = BytesIO()
        figure.savefig(target, format=kind, dpi=120)
        return target.getvalue()


def tune(
    guarantee: Guarantee,
    history: Any = None,
    *,
    bounds: tuple[float, float],
    scale: float | None = None,
    season: int = 7,
    features: Sequence[Feature] = (),
    grid: float | None = None,
    hierarchy: Hierarchy | None = None,
    buckets: bool = False,
    emit: Literal["period", "step"] = "period",
) -> Tuning:
    """Return the mechanism with the smallest expected error, and the table that it was chosen from. Spends nothing.

    Args:
        guarantee: What is promised.
        history: What the stream looks like, from a public source or from releases: whole periods of public values as
            :meth:`OptStream.release` takes them, those right before the first release; or a release, or what its
            ``memory`` gave. **Never raw private data:** what is chosen from that would tell about it.
        bounds: Public lower and upper bound of the values.
        scale: A guess of the standard deviation of the values within a period, if there is no history; a tenth of the
            width of the bounds if nothing is known.
        season: The number of periods after which weekdays repeat; 1 for none.
        features: Partitions whose sums are measured too.
        grid: Public step of the grid.
        hierarchy: A tree of groups whose leaves are the streams.
        buckets: Whether to consider only means of buckets with memory, which may change from period to period.
        emit: ``"step"`` looks for the smallest error of the value that leaves when its step has come, with
            ``release(..., emit="step")``. Steps then beat means, which come late.

    Raises:
        ParameterError: A parameter is out of its bound.
        DataError: The history is empty, not a whole number of periods, or not finite.

    Example:
        >>> found = tune(Guarantee(epsilon=0.01, w=48), bounds=(0, 20_000))
        >>> found.mechanism.sample.k < 48, found.expected_error < 0.2 * found.plain.expected_error
        (True, True)
    """
    if not isinstance(guarantee, Guarantee):
        raise ParameterTypeError(f"guarantee is of type {type(guarantee).__name__}, but must be Guarantee")
    estimate = Estimate(season=season)
    # One mechanism checks all parameters that candidates share.
    plain = OptStream(
        guarantee,
        sample=BucketSampling(1),
        bounds=bounds,
        features=features,
        grid=grid,
        hierarchy=hierarchy,
        reconstruct=estimate,
    )
    if scale is None:
        scale = max(SPREAD * (bounds[1] - bounds[0]), guarantee.alpha)
    if not 0 < scale < np.inf:
        raise ParameterError(f"scale is {scale}, but must be positive and finite")
    learnt = _learnt(plain, history)
    if emit not in {"period", "step"}:
        raise ParameterError(f"emit is {emit!r}, but must be 'period' or 'step'")
    judge = _Judge(plain, _memory_of(learnt).filters, scale, by_step=emit == "step")
    splits = SPLITS if features else ((1,),)
    noises = PURE + ((GaussianNoise(),) if guarantee.delta else ())
    choices = list(_choices(guarantee.w, estimate, splits, noises, buckets=buckets, lines=not features))
    table = sorted(
        judge.candidates(tqdm(choices, desc="comparing", disable=None, leave=False)),
        key=lambda row: row.expected_error,
    )
    # Means miss no detail, whatever the model says: they are taken unless steps promise clearly less.
    means = next(row for row in table if isinstance(row.sample, BucketSampling))
    tie = 1.0 if emit == "step" else TIE
    best = means if means.expected_error < tie * table[0].expected_error else table[0]
    state = None if history is None else learnt.to_data(guarantee)
    return Tuning(judge.made(best), best, tuple(table), judge.plain(), state)


def following(mechanism: OptStream, memory: Memory) -> OptStream:
    """Return the choice of a mechanism that tunes itself for the period after what is remembered.

    It depends only on what was released. The release loop gives it the budget that the windows over a change leave.
    """
    from optstream.mechanism import plan  # noqa: PLC0415  (which tells kinds of steps apart)

    steady = mechanism.variant()
    if not memory.choice:
        return steady
    now = mechanism.variant(**{name: plan.step(name, content) for name, content in memory.choice.items()})
    judge = _Judge(steady, memory.filters)
    fine = _finest(mechanism, now.perturb)
    alarm = judge.alarm(fine)
    explores = judge.hides(fine)
    if alarm < LOOKS or (explores and memory.measured % EXPLORE == OFFSET):
        return fine
    explored = explores and memory.measured % EXPLORE == OFFSET + 1
    if not (explored or memory.measured in CHANGES or memory.measured % INTERVAL == 0 or alarm in SETTLED):
        return now
    # What is traded between pure and Gaussian noise in the light of releases has no proof.
    noises = (now.perturb,) if isinstance(now.perturb, GaussianNoise) else PURE
    choices = _choices(steady.guarantee.w, steady.reconstruct, (steady.split,), noises, buckets=True)
    best = min(judge.candidates(choices), key=lambda row: row.expected_error)
    present = judge.candidate(now.sample, now.perturb, now.reconstruct, now.split)
    if best.expected_error > (1 - GAIN) * present.expected_error:
        return now
    return mechanism.variant(sample=best.sample, perturb=best.perturb)


def _finest(mechanism: OptStream, perturb: LaplaceNoise | CubeNoise | GaussianNoise) -> OptStream:
    """Return the variant that measures every step."""
    sample = BucketSampling(mechanism.guarantee.w)
    try:
        return mechanism.variant(sample=sample, perturb=perturb)
    except ParameterError:
        # Its blocks would be too long for so little noise.
        return mechanism.variant(sample=sample, perturb=LaplaceNoise())


def _choices(
    w: int,
    estimate: Estimate | Linear,
    splits: Sequence[Sequence[int | Fraction]],
    noises: Sequence[LaplaceNoise | CubeNoise | GaussianNoise],
    *,
    buckets: bool,
    lines: bool = True,
) -> Iterator[tuple[Any, ...]]:
    """Yield what may be measured, with what noise, how values follow, and how the budget is split."""
    lengths = {length * 32**power for length in LENGTHS for power in range(w.bit_length() // 5 + 1)}
    counts = sorted({max((2 * w + length) // (2 * length), 1) for length in lengths})
    samples: list[EqualSampling | BucketSampling] = [BucketSampling(k) for k in counts]
    follows: list[Estimate | Linear] = [estimate]
    if not buckets:
        # With k = w both measure every step.
        samples += [EqualSampling(k) for k in counts if min(2, w) <= k < w]
        follows += [Estimate(memory=False), *([Linear()] if lines else [])]
    for sample, *rest in product(samples, noises, follows, splits):
        if sample.k <= MOST or rest[1] == Linear():
            yield sample, *rest


class _Judge:
    """Expects the errors of candidates, from what was learnt of a stream or of some nodes of a hierarchy."""

    def __init__(
        self, plain: OptStream, learnt: Sequence[Filter], scale: float | None = None, *, by_step: bool = False
    ) -> None:
        """Take a mechanism with all that candidates share, and a filter for every stream.

        Values are judged at the end of their period, or by step when they leave with their steps.
        """
        self._plain, self._by_step = plain, by_step
        hierarchy = plain.hierarchy
        if hierarchy is None:
            self._streams = [(learnt[0], 0, scale)]
            return
        below = hierarchy.sums(np.ones(hierarchy.leaf_positions.size))
        chosen = np.unique(np.linspace(0, len(learnt) - 1, NODES).round().astype(int))
        self._streams = [
            (learnt[node], int(hierarchy.depths[node]), None if scale is None else scale * below[node])
            for node in chosen
        ]

    def hides(self, fine: OptStream) -> bool:
        """Return whether means may hide more than the noise of measuring every step.

        Values that stay within bounds deviate from their mean by at most twice its distance from the nearer bound, on
        average. Where that is less than the noise of a step, looking at every step cannot help.
        """
        return any(
            2 * learnt.room > float(np.sqrt(variances_of(fine.levels[depth]).max()))
            for learnt, depth, _ in self._streams
        )

    def alarm(self, fine: OptStream) -> float:
        """Return how many periods ago a stream deviated by more than the noise of measuring every step."""
        found = np.inf
        for learnt, depth, _ in self._streams:
            if learnt.alarm is not None:
                since, size = learnt.alarm
                loud = size > HEARD * float(np.sqrt(variances_of(fine.levels[depth]).max()))
                found = min(found, since) if loud else found
        return found

    def candidate(
        self,
        sample: Sampling,
        perturb: LaplaceNoise | CubeNoise | GaussianNoise,
        reconstruct: Linear | Estimate,
        split: Sequence[int | Fraction],
    ) -> Candidate:
        """Return a row of the table."""
        row = Candidate(sample, perturb, reconstruct, tuple(split), np.nan)
        return self._judged(row, self.made(row))

    def candidates(self, choices: Iterable[tuple[Any, ...]]) -> Iterator[Candidate]:
        """Yield the rows of choices; blocks that are too long for so little noise make none."""
        for choice in choices:
            with suppress(ParameterError):
                yield self.candidate(*choice)

    def plain(self) -> Candidate:
        """Return the plain Laplace mechanism, without features."""
        steps = EqualSampling(self._plain.guarantee.w)
        made = self._plain.changed(sample=steps, perturb=LaplaceNoise(), reconstruct=Linear(), features=(), split=None)
        return self._judged(Candidate(made.sample, made.perturb, made.reconstruct, made.split, np.nan), made)

    def made(self, row: Candidate) -> OptStream:
        """Return the mechanism of a row."""
        return self._plain.changed(sample=row.sample, perturb=row.perturb, reconstruct=row.reconstruct, split=row.split)

    def _judged(self, row: Candidate, made: OptStream) -> Candidate:
        errors = [self._error(row, made.levels[depth], learnt, scale) for learnt, depth, scale in self._streams]
        return replace(row, expected_error=float(np.mean(errors)))

    def _error(self, row: Candidate, level: Calibration, learnt: Filter, scale: float | None) -> float:
        cells, variances = level.cells(np.empty(0, dtype=np.int64)), variances_of(level)
        if isinstance(row.reconstruct, Estimate):
            expected = learnt.expected_step_error if self._by_step else learnt.expected_error
            return expected(cells, variances, scale, memory=row.reconstruct.memory)
        w = level.guarantee.w
        average = np.array([np.isin(np.arange(w), cell) / len(cell) for cell in cells])
        rebuild = (average > 0).T.astype(np.float64)
        if isinstance(row.sample, EqualSampling):
            knots = row.sample.steps(w)
            rebuild = np.stack([np.interp(np.arange(w), knots, unit) for unit in np.eye(len(knots))], axis=1)
        if self._by_step:
            # What is held is the last measured value; at the start of a period that of the period before, which is
            # taken to be like this one's.
            ends = np.array([cell[-1] for cell in cells])
            rebuild = np.eye(len(cells))[np.searchsorted(ends, np.arange(w), side="right") - 1]
        detail = learnt.deviation(np.eye(w) - rebuild @ average, scale)
        noise = rebuild**2 @ variances
        # The mean of the absolute value is that of Laplace noise where nothing else counts.
        share = 0.5 if isinstance(row.perturb, LaplaceNoise) else 2 / np.pi
        return float(np.sqrt(2 / np.pi * detail + share * noise).mean())


def _memory_of(state: State) -> Memory:
    if state.memory is None:
        raise ParameterError("state has no memory, but must have one to learn from")
    return state.memory


def _learnt(plain: OptStream, history: Any) -> State:
    """Return what history says of every stream, and what its last period cost if it was released."""
    if isinstance(history, (Release, TreeRelease)):
        state = State(memory=plain.remembered())
        if history.state is not None:
            state = _carried(plain, history.state)
            if history.state["memory"] is not None and state.memory is not None and state.memory.measured:
                return state
        _learn_release(plain, history, state)
        return state
    if isinstance(history, Mapping) and "version" in history:
        return _carried(plain, history)
    state = State(memory=plain.remembered())
    if history is not None:
        _learn_periods(plain, np.asarray(plain.read(history).units * plain.grid, dtype=np.float64), state)
    return state


def _carried(plain: OptStream, data: Mapping[str, Any]) -> State:
    """Return a state; what an estimate of another kind has learnt is left out, what was spent is not."""
    try:
        return State.read(data, plain)
    except ParameterError:
        return State.read(data, plain, forget=True)


def _learn_release(plain: OptStream, release: Release | TreeRelease, state: State) -> None:
    """Learn from a release without an estimate of the same kind: from what was measured, or from the values."""
    if isinstance(release, Release) and not release.features and release.is_measured:
        for seen in tqdm(release.measured()[-LONGEST:], desc="learning", unit="period", disable=None, leave=False):
            _memory_of(state).update([seen._replace(period=seen.period + state.next)])
        return
    _learn_periods(plain, release.leaf_periods(), state)


def _learn_periods(plain: OptStream, leaves: Array, state: State) -> None:
    """Learn from values of periods, leaves and steps."""
    leaves, w = leaves[-LONGEST:], plain.guarantee.w
    # Of long periods means are enough to tell how strong the parts of a stream are.
    cells = tuple(tuple(range(start, stop)) for start, stop in BucketSampling(w if w <= LONG else LONG // 2).runs(w))
    none = np.zeros(len(cells))
    # These are the periods right before the next one of the stream.
    work = tqdm(leaves, desc="learning", unit="period", disable=None, leave=False)
    for period, values in enumerate(work, state.next - len(leaves)):
        rows = values if plain.hierarchy is None else plain.hierarchy.sums(values)
        means = [[row[cell[0] : cell[-1] + 1].mean() for cell in cells] for row in rows]
        _memory_of(state).update([Measured(period, cells, np.array(row), none) for row in means])
