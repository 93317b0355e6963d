"""The exact loss of every window over everything that left, from the scales really drawn.

Nothing here asks the accountant. Data tells which step it is: the value of step t is t + 1, so what a plan reads shows
which steps it measures, repetitions among them. A change of one entity moves each step of a window by up to A units, in
whatever direction. All measurements are sums of steps with positive weights, so the worst change moves all steps the
same way, and the loss is

* for a sum with Laplace noise of scale b: the weights of the changed steps times A / b;
* for a block with cube noise of scale b: the largest such change of any of its values, times A / b.

With Gaussian noise in a window all is added up in rho, each measurement by itself, and made an epsilon in the end: of a
sum with Gaussian noise the square of what it moves by over twice the variance that continuous noise of the same worth
has, of any other measurement the square of its loss times pi / 4. These formulas are tested in test_gaussian.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream import _core as real
from optstream.mechanism import calibration, loop, walk
from optstream.privacy.gaussian import HIDDEN, WORTH, epsilon_from

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest


@dataclass(frozen=True)
class Draw:
    """One period of one stream that a plan drew noise for."""

    plan: RecordedPlan
    steps: tuple[int, ...]
    """The step of the stream that each step of the period showed, as far as they have come."""
    drawn: frozenset[int] | None = None
    """The measurements that were drawn, if they are drawn one by one; else all."""

    @property
    def _whole(self) -> bool:
        """Whether features are drawn: those of the tests are totals, which are drawn with the last step."""
        return self.drawn is None or len(self.steps) >= self.plan.w

    def _pure(self, window: range) -> list[Fraction]:
        """Return what the worst change within a window reveals by each pure measurement that has noise of its own."""
        moved = [step in window for step in self.steps]
        scale = Fraction(*self.plan.sample_scale)
        changes = [
            multiple * sum(moved[start:stop]) if self.drawn is None or index in self.drawn else 0
            for index, (start, stop, multiple) in enumerate(self.plan.runs)
        ]
        ends = list(accumulate(self.plan.blocks or [1] * len(changes), initial=0))
        samples = [max(changes[first:last]) / scale for first, last in pairwise(ends)]
        features = [sum(moved) / Fraction(*one) for one in self.plan.feature_scales if self._whole]
        return [self.plan.sensitivity * loss for loss in samples + features]

    def loss(self, window: range) -> Fraction:
        """Return what the worst change within a window reveals of pure noise."""
        return sum(self._pure(window), Fraction(0))

    def rho(self, window: range) -> Fraction:
        """Return what the worst change within a window reveals, in rho."""
        if not self.plan.gaussian:
            return sum((WORTH * loss**2 for loss in self._pure(window)), Fraction(0))
        moved = [step in window for step in self.steps]
        sums = [
            (multiple * sum(moved[start:stop]), Fraction(*self.plan.sample_scale))
            for index, (start, stop, multiple) in enumerate(self.plan.runs)
            if self.drawn is None or index in self.drawn
        ]
        if self._whole:
            sums += [(sum(moved), Fraction(*scale)) for scale in self.plan.feature_scales]
        return sum(
            (Fraction(self.plan.sensitivity * change) ** 2 / (2 * (sigma**2 - HIDDEN)) for change, sigma in sums),
            Fraction(0),
        )


@dataclass
class Recorder:
    """Everything that was drawn, in order."""

    draws: list[Draw] = field(default_factory=list)
    by_steps: bool = False
    """Whether what is drawn step by step is noted step by step; else all that a period will draw, with its first."""

    def note(self, plan: RecordedPlan, rows: Any) -> None:
        for row in np.asarray(rows):
            # A row of zeros is a leaf in which the entity is not.
            if row.any():
                self.draws.append(Draw(plan, tuple(int(value) - 1 for value in row)))

    def note_step(self, plan: RecordedPlan, rows: Any) -> None:
        """Note what ends with a step, together with what the same plan has drawn of the steps before it."""
        for row in np.asarray(rows):
            if not row.any():
                continue
            steps = tuple(int(value) - 1 for value in row)
            ended = {index for index, (_, stop, _) in enumerate(plan.runs) if stop == len(steps)}
            for index, draw in enumerate(self.draws):
                if draw.drawn is not None and draw.steps == steps[:-1] and draw.plan.draws_like(plan):
                    self.draws[index] = Draw(draw.plan, steps, draw.drawn | ended)
                    break
            else:
                self.draws.append(Draw(plan, steps, frozenset(ended)))


class RecordedPlan:
    """A plan that notes what it draws for."""

    recorder: Recorder
    fails: bool = False
    """Whether the next draw fails, after its noise was drawn."""

    def __init__(self, **parameters: Any) -> None:
        self._plan = real.Plan(**parameters)
        self._grid, self.w = parameters["grid"], parameters["w"]
        self.runs: Sequence[tuple[int, int, int]] = parameters["sampling"]
        self.blocks: Sequence[int] | None = parameters["blocks"]
        self.gaussian: bool = parameters["gaussian"]

    @property
    def real(self) -> real.Plan:
        """The plan that draws."""
        return self._plan

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plan, name)

    def draws_like(self, other: RecordedPlan) -> bool:
        """Whether another plan measures the same with the same noise, as after a restart."""
        return all(
            getattr(self, name) == getattr(other, name)
            for name in ("runs", "blocks", "sample_scale", "feature_scales", "sensitivity")
        )

    def measure(self, units: Any, retry: Any = None) -> Any:
        self.recorder.note(self, np.asarray(units) * self._grid)
        self._maybe_fail()
        return self._plan.measure(units, retry)

    def measure_step(self, units: Any, pending: Any, retry: Any) -> Any:
        """Draw what ends with a step; with the first of them all that the period will draw counts."""
        rows = np.asarray(units) * self._grid
        if self.recorder.by_steps:
            self.recorder.note_step(self, rows)
        elif units.shape[1] == 1:
            self.recorder.note(self, np.concatenate([rows + step for step in range(self.w)], axis=1))
        self._maybe_fail()
        return real.measure_step(self._plan, units, pending, retry)

    @classmethod
    def _maybe_fail(cls) -> None:
        if RecordedPlan.fails:
            RecordedPlan.fails = False
            raise MemoryError

    def release(self, values: Any) -> Any:
        self.recorder.note(self, values)
        return self._plan.release(values)


class _Core:
    """The binding, but for plans."""

    Plan = RecordedPlan

    @staticmethod
    def measure_step(plan: RecordedPlan, units: Any, pending: Any, retry: Any = None) -> Any:
        return plan.measure_step(units, pending, retry)

    @staticmethod
    def finish_steps(plan: RecordedPlan, samples: Any, cells: Any) -> Any:
        return real.finish_steps(plan.real, samples, cells)

    def __getattr__(self, name: str) -> Any:
        return getattr(real, name)


def record(monkeypatch: pytest.MonkeyPatch, *, by_steps: bool = False) -> Recorder:
    """Return what notes everything that plans draw from now on; only plans that are built later are seen."""
    # A mechanism of an earlier test that is still at hand would draw unseen.
    loop.window_price.cache_clear()
    loop._with_room.cache_clear()
    recorder = Recorder(by_steps=by_steps)
    RecordedPlan.recorder = recorder
    monkeypatch.setattr(calibration, "_core", _Core())
    monkeypatch.setattr(walk, "_core", _Core())
    return recorder


def worst_loss(
    draws: Sequence[Draw],
    w: int,
    meeting: Sequence[Draw] | None = None,
    *,
    aligned: bool = False,
    delta: Fraction = Fraction(0),
) -> Fraction:
    """Return the exact loss of the worst window over some draws, of those windows that meet others of them."""
    wanted = {step for draw in (draws if meeting is None else meeting) for step in draw.steps}
    windows = {range(first, first + w) for step in wanted for first in range(step - w + 1, step + 1)}
    windows = {window for window in windows if not aligned or window.start % w == 0}
    return max((_loss(draws, window, delta) for window in windows), default=Fraction(0))


def _loss(draws: Sequence[Draw], window: range, delta: Fraction) -> Fraction:
    """Return the epsilon of a window."""
    if any(draw.plan.gaussian and draw.rho(window) for draw in draws):
        return epsilon_from(sum((draw.rho(window) for draw in draws), Fraction(0)), delta)
    return sum((draw.loss(window) for draw in draws if not draw.plan.gaussian), Fraction(0))
