"""Tuning: choosing a mechanism before anything is spent, from public or released history, or from a guess of scale."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from optstream.errors import ParameterError, ParameterTypeError
from optstream.estimate import Estimate
from optstream.estimate.filter import Measured
from optstream.mechanism.candidates import Candidate, compare
from optstream.mechanism.optstream import OptStream
from optstream.mechanism.parameters import check_choice
from optstream.mechanism.release import Release
from optstream.mechanism.state import State
from optstream.mechanism.tree_release import TreeRelease
from optstream.pictures import empty_figure
from optstream.pipeline.sampling import BucketSampling
from optstream.privacy.budget import shown
from optstream.privacy.guarantee import Guarantee
from optstream.progress import progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from optstream.estimate.memory import Memory
    from optstream.pipeline.features import Feature
    from optstream.pipeline.hierarchy import Hierarchy

    Array = NDArray[np.float64]

__all__ = ["Candidate", "Tuning", "tune"]

LONG = 288
"""Longest period of which history is learnt step by step."""
LONGEST = 400
"""Most periods of history that are looked at, the last ones."""
SHOWN = 12
"""Rows of the table that are shown."""


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
    check_choice("emit", emit, "period", "step")
    # One mechanism checks all parameters that candidates share.
    plain = OptStream(
        guarantee,
        sample=BucketSampling(1),
        bounds=bounds,
        features=features,
        grid=grid,
        hierarchy=hierarchy,
        reconstruct=Estimate(season=season),
    )
    learnt = _learnt(plain, history)
    found = compare(plain, _memory_of(learnt), scale, buckets=buckets, by_step=emit == "step")
    state = None if history is None else learnt.to_data(guarantee)
    return Tuning(found.mechanism, found.chosen, found.table, found.plain, state)


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
        for seen in progress(release.measured()[-LONGEST:], desc="learning", unit="period"):
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
    work = progress(leaves, desc="learning", unit="period")
    for period, values in enumerate(work, state.next - len(leaves)):
        rows = values if plain.hierarchy is None else plain.hierarchy.sums(values)
        means = [[row[cell[0] : cell[-1] + 1].mean() for cell in cells] for row in rows]
        _memory_of(state).update([Measured(period, cells, np.array(row), none) for row in means])
