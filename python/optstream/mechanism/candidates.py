"""Candidates: what a mechanism may measure, with what noise, and which of them promises the smallest error.

What a linear Gaussian filter will know does not depend on the data, only on what is measured, with what noise, and on
how strong the parts of the stream are. So the error of every candidate follows from what was learnt of the stream
(:meth:`Filter.expected_error`), without simulating any.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream.errors import ParameterError
from optstream.estimate import Estimate
from optstream.estimate.estimator import MOST, variances_of
from optstream.mechanism import description
from optstream.pipeline.perturbation import CubeNoise, GaussianNoise, LaplaceNoise
from optstream.pipeline.reconstruction import Linear
from optstream.pipeline.sampling import BucketSampling, EqualSampling
from optstream.progress import progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from fractions import Fraction

    from optstream.estimate.filter import Filter
    from optstream.estimate.memory import Memory
    from optstream.mechanism.calibration import Calibration
    from optstream.mechanism.optstream import OptStream
    from optstream.pipeline.sampling import Sampling

__all__ = ["Candidate", "Compared", "compare", "following"]

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
KNOWN = 7
"""Number of periods after everything was learnt anew before fewer means are measured."""
HEARD = 1.0
"""Size of an alarm, in standard deviations of the noise of a step, from which it is looked into."""
TIE = 1.05
"""Factor of error up to which means of buckets are preferred to steps."""
GAIN = 0.02
"""Share of its error by which another choice must be better."""


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


@dataclass(frozen=True)
class Compared:
    """All candidates, the best first, and which of them is chosen."""

    mechanism: OptStream
    chosen: Candidate
    table: tuple[Candidate, ...]
    plain: Candidate
    """The plain Laplace mechanism, for comparison."""


def compare(
    plain: OptStream, learnt: Memory, scale: float | None, *, buckets: bool = False, by_step: bool = False
) -> Compared:
    """Return the candidates for a stream of which something was learnt. Nothing is spent.

    Args:
        plain: A mechanism with all that candidates share, with an estimate with memory.
        learnt: What is known of the stream.
        scale: A guess of the standard deviation of the values within a period, if nothing was learnt.
        buckets: Whether to consider only means of buckets with memory.
        by_step: Whether values are judged when they leave with their steps, not at the end of their period.

    Raises:
        ParameterError: The scale is out of its bound.
    """
    guarantee, (low, high) = plain.guarantee, plain.bounds
    if scale is None:
        scale = max(SPREAD * (high - low), guarantee.alpha)
    if not 0 < scale < np.inf:
        raise ParameterError(f"scale is {scale}, but must be positive and finite")
    judge = _Judge(plain, learnt.filters, scale, by_step=by_step)
    splits = SPLITS if plain.features else ((1,),)
    noises = PURE + ((GaussianNoise(),) if guarantee.delta else ())
    choices = list(_choices(guarantee.w, plain.reconstruct, splits, noises, buckets=buckets, lines=not plain.features))
    table = sorted(
        judge.candidates(progress(choices, desc="comparing")),
        key=lambda row: row.expected_error,
    )
    # Means miss no detail, whatever the model says: they are taken unless steps promise clearly less.
    means = next(row for row in table if isinstance(row.sample, BucketSampling))
    tie = 1.0 if by_step else TIE
    best = means if means.expected_error < tie * table[0].expected_error else table[0]
    return Compared(judge.made(best), best, tuple(table), judge.plain())


def following(mechanism: OptStream, memory: Memory) -> OptStream:
    """Return the choice of a mechanism that tunes itself for the period after what is remembered.

    It depends only on what was released. The release loop gives it the budget that the windows over a change leave.
    """
    steady = mechanism.variant()
    if not memory.choice:
        return steady
    now = mechanism.variant(**{name: description.step(name, content) for name, content in memory.choice.items()})
    judge = _Judge(steady, memory.filters)
    fine = _finest(mechanism, now.perturb)
    alarm = judge.alarm(fine)
    explores = judge.hides(fine)
    if alarm < LOOKS or (explores and memory.measured % EXPLORE == OFFSET):
        return fine
    explored = explores and memory.measured % EXPLORE == OFFSET + 1
    due = memory.measured in CHANGES or memory.measured % INTERVAL == 0
    if not (due or explored or alarm in SETTLED or judge.renewed in SETTLED):
        return now
    # What is traded between pure and Gaussian noise in the light of releases has no proof.
    noises = (now.perturb,) if isinstance(now.perturb, GaussianNoise) else PURE
    choices = _choices(steady.guarantee.w, steady.reconstruct, (steady.split,), noises, buckets=True)
    best = judge.best(choices)
    present = judge.candidate(now.sample, now.perturb, now.reconstruct, now.split)
    if best.expected_error > (1 - GAIN) * present.expected_error:
        return now
    if judge.renewed < KNOWN and best.sample.k < now.sample.k:
        # A few quiet periods do not show what fewer means would miss.
        return now
    return mechanism.variant(sample=best.sample, perturb=best.perturb)


def _finest(mechanism: OptStream, perturb: LaplaceNoise | CubeNoise | GaussianNoise) -> OptStream:
    """Return the variant that measures every step, or means of as few as an estimate can take."""
    w = mechanism.guarantee.w
    sample = BucketSampling(w // -(-w // MOST))
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

    @property
    def renewed(self) -> float:
        """How many periods ago a stream was last learnt anew."""
        return min((learnt.renewed for learnt, *_ in self._streams if learnt.renewed is not None), default=np.inf)

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

    def best(self, choices: Iterable[tuple[Any, ...]]) -> Candidate:
        """Return the row with the smallest expected error.

        Of choices that measure the same, those with more noise than another on every value are not judged.
        """
        rows = []
        for sample, perturb, reconstruct, split in choices:
            with suppress(ParameterError):
                row = Candidate(sample, perturb, reconstruct, tuple(split), np.nan)
                rows.append((row, self.made(row)))
        quiet = [
            (row, made)
            for row, made in rows
            if not any(_is_louder(made, other) for same, other in rows if same.sample == row.sample)
        ]
        return min((self._judged(row, made) for row, made in quiet), key=lambda row: row.expected_error)

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


def _is_louder(one: OptStream, other: OptStream) -> bool:
    """Return whether a mechanism has more noise than another on something that it measures, and less on nothing."""
    pairs = [(variances_of(mine), variances_of(its)) for mine, its in zip(one.levels, other.levels, strict=True)]
    return all((mine >= its).all() for mine, its in pairs) and any((mine > its).any() for mine, its in pairs)
