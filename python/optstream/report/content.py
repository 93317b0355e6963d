"""What a report is about, gathered from what was released; raw data is nowhere near."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream.errors import ParameterError, ParameterTypeError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from numpy.typing import NDArray

    from optstream.ledger import Ledger
    from optstream.ledger.records import Entry, Window
    from optstream.mechanism.release import Release
    from optstream.mechanism.tree_release import TreeRelease
    from optstream.pipeline.hierarchy import Hierarchy
    from optstream.privacy.guarantee import Guarantee
    from optstream.privacy.statement import Statement

    Array = NDArray[np.float64]

__all__ = [
    "LEVEL",
    "MOST_POINTS",
    "Budget",
    "Line",
    "Names",
    "Subject",
    "ledger_subjects",
    "release_subject",
    "step_labels",
]

LEVEL = 0.95
"""The chance with which a band holds what it is about."""
MOST_POINTS = 200_000
"""Steps times nodes that a page holds; a browser stays quick with so many."""


@dataclass(frozen=True)
class Names:
    """What things are called in a report, so that its readers know them again.

    Args:
        title: The heading of the page.
        entity: Whom the promise is about, with an article: "one rider", "one household". By default what the guarantee
            calls it.
        unit: What the figures count, such as "trips"; may be empty.
        step: How long a step is, if that is known.
        origin: The time of step 0, if that is known.
    """

    title: str | None = None
    entity: str | None = None
    unit: str = ""
    step: timedelta | None = None
    origin: datetime | None = None

    def __post_init__(self) -> None:
        for name in ("title", "entity", "unit"):
            value = getattr(self, name)
            if not isinstance(value, str) and not (name != "unit" and value is None):
                raise ParameterTypeError(f"{name} is of type {type(value).__name__}, but must be str")
        if self.entity is not None and not self.entity.strip():
            raise ParameterError("entity is empty, but must say whom the promise is about, such as 'one rider'")
        if self.step is not None and not (isinstance(self.step, timedelta) and self.step > timedelta(0)):
            raise ParameterError(f"step is {self.step!r}, but must be a positive timedelta")
        if self.origin is not None and (not isinstance(self.origin, datetime) or self.step is None):
            raise ParameterError("origin must be a datetime, and needs step")

    def whom(self, guarantee: Guarantee) -> str:
        """Return whom a promise is about, with an article.

        >>> from optstream import Guarantee
        >>> riders = Guarantee(epsilon=1, w=48, entity="rider")
        >>> Names().whom(riders), Names(entity="a guest").whom(riders), Names().whom(Guarantee(epsilon=1, w=48))
        ('one rider', 'a guest', 'one person')
        """
        if self.entity is not None:
            return self.entity
        return "one person" if guarantee.entity == "entity" else f"one {guarantee.entity}"


@dataclass(frozen=True, repr=False)
class Line:
    """One private series with its band; what was not released is NaN."""

    name: str
    depth: int
    values: Array
    low: Array
    high: Array
    half: Array
    """How far the end of an interval that holds every second value lies from it."""


@dataclass(frozen=True)
class Budget:
    """What a ledger says a stream has spent."""

    policy: Guarantee
    windows: tuple[Window, ...]
    entries: tuple[Entry, ...]

    @property
    def used(self) -> Fraction:
        """What the dearest window has cost."""
        return max((self.policy.epsilon - window.epsilon for window in self.windows), default=self.policy.epsilon * 0)


@dataclass(frozen=True, repr=False)
class Subject:
    """One stream or hierarchy of which a report tells."""

    name: str
    lines: tuple[Line, ...]
    left_out: int
    """How many nodes are not shown."""
    labels: tuple[str, ...]
    """What every step is called."""
    w: int
    guarantee: Guarantee
    """What is promised."""
    epsilon: Fraction
    """What the dearest window costs."""
    statement: Statement | None
    assumptions: tuple[str, ...]
    hierarchy: Hierarchy | None
    estimated: bool
    budget: Budget | None = None

    @property
    def several(self) -> bool:
        """Whether people may be in several places, which alpha bounds together."""
        return self.hierarchy is not None and self.guarantee.entities == "moving"


def release_subject(release: Release | TreeRelease, names: Names) -> Subject:
    """Return what a release is about."""
    statement = release.statement
    steps = release.leaf_periods().shape[0] * statement.guarantee.w
    numbers = np.arange(steps)
    start = release.start
    if isinstance(start, datetime) and names.step is not None and names.origin is None:
        names = replace(names, origin=start)
    elif isinstance(start, int):
        numbers = numbers + start
    lines, left_out = _lines(release, names.title or "released series")
    return Subject(
        name=names.title or "Private figures",
        lines=lines,
        left_out=left_out,
        labels=_index_labels(release.values, steps) or step_labels(numbers, names),
        w=statement.guarantee.w,
        guarantee=statement.guarantee,
        epsilon=statement.epsilon,
        statement=statement,
        assumptions=statement.assumptions,
        hierarchy=getattr(release, "hierarchy", None),
        estimated=release.is_measured is False,
    )


def ledger_subjects(ledger: Ledger, names: Names, streams: Sequence[str] | None = None) -> list[Subject]:
    """Return what the streams of a ledger are about, all of them unless some are named."""
    if streams is not None and not isinstance(streams, (list, tuple)):
        raise ParameterTypeError(f"streams is of type {type(streams).__name__}, but must be a list of names")
    return [_stream_subject(ledger, stream, names) for stream in (ledger.streams if streams is None else streams)]


def _stream_subject(ledger: Ledger, stream: str, names: Names) -> Subject:
    policy, releases = ledger.policy(stream), ledger.releases(stream)
    budget = Budget(policy, ledger.remaining(stream).windows, ledger.history(stream))
    periods = [release.period for release in releases]
    statements = [release.statement for release in releases]
    lines: tuple[Line, ...] = ()
    numbers, left_out = np.empty(0, dtype=np.int64), 0
    if releases:
        # Nodes of the last release; earlier ones of another tree would have other names.
        alike = [one for one in releases if _node_names(one) == _node_names(releases[-1])]
        periods = [release.period for release in alike]
        parts = [_lines(release, stream)[0] for release in alike]
        left_out = _lines(alike[-1], stream)[1]
        room = max(1, MOST_POINTS // max(len(parts) * policy.w, 1))
        left_out += max(len(parts[-1]) - room, 0)
        joined = [_joined(line, policy.w, periods) for line in list(zip(*parts, strict=True))[:room]]
        lines, numbers = tuple(line for line, _ in joined), joined[0][1]
    return Subject(
        name=stream,
        lines=lines,
        left_out=left_out,
        labels=step_labels(numbers, names),
        w=policy.w,
        guarantee=policy,
        epsilon=budget.used,
        statement=statements[-1] if statements else None,
        assumptions=tuple(dict.fromkeys(text for one in statements for text in one.assumptions)),
        hierarchy=getattr(releases[-1], "hierarchy", None) if releases else None,
        estimated=bool(releases) and releases[-1].is_measured is False,
        budget=budget,
    )


def _node_names(release: Any) -> tuple[str, ...]:
    tree = getattr(release, "hierarchy", None)
    return () if tree is None else tree.nodes


def _lines(release: Release | TreeRelease, name: str) -> tuple[tuple[Line, ...], int]:
    """Return the series of a release, as many as a page takes, and how many are left out."""
    leaves = release.leaf_periods()
    (low, high), (inner, outer) = release.interval(LEVEL), release.interval(0.5)
    tree = getattr(release, "hierarchy", None)
    if tree is None:
        half = (outer - inner).ravel() / 2
        return (Line(name, 0, leaves[:, 0].ravel(), low.ravel(), high.ravel(), half),), 0
    values = np.concatenate([tree.sums(period).T for period in leaves])
    room = max(1, MOST_POINTS // len(values))
    lines = tuple(
        Line(node, int(depth), *(part[:, column] for part in (values, low, high, (outer - inner) / 2)))
        for column, (node, depth) in enumerate(zip(tree.nodes[:room], tree.depths, strict=False))
    )
    return lines, len(tree.nodes) - len(lines)


def _joined(parts: Sequence[Line], w: int, periods: Sequence[int]) -> tuple[Line, NDArray[np.int64]]:
    """Return one line through periods, with a gap where some are missing, and the numbers of its steps."""
    # Missing periods keep their place in the picture, unless they would be most of it.
    longest = 3 * len(periods)
    columns: dict[str, list[Any]] = {name: [] for name in ("values", "low", "high", "half")}
    numbers: list[NDArray[np.int64]] = []
    for index, (line, period) in enumerate(zip(parts, periods, strict=True)):
        missing = min(period - periods[index - 1] - 1, longest) if index else 0
        if missing:
            for column in columns.values():
                column.append(np.full(missing * w, np.nan))
            numbers.append(np.arange((period - missing) * w, period * w))
        for name, column in columns.items():
            column.append(getattr(line, name))
        numbers.append(np.arange(period * w, (period + 1) * w))
    joined: dict[str, Any] = {name: np.concatenate(column) for name, column in columns.items()}
    return replace(parts[0], **joined), np.concatenate(numbers)


def step_labels(numbers: NDArray[np.int64], names: Names) -> tuple[str, ...]:
    """Return what steps are called: their times where these are known."""
    if names.origin is None or names.step is None:
        return tuple(f"step {number}" for number in numbers.tolist())
    return tuple(_time(names.origin + names.step * number) for number in numbers.tolist())


def _time(moment: datetime) -> str:
    text = moment.isoformat(sep=" ", timespec="auto" if moment.microsecond else "minutes")
    return text if moment.second == 0 or moment.microsecond else moment.isoformat(sep=" ", timespec="seconds")


def _index_labels(values: Any, steps: int) -> tuple[str, ...] | None:
    """Return the index of a series or frame of pandas, unless it only counts rows."""
    index = getattr(values, "index", None)
    if index is None or callable(index) or len(index) != steps or type(index).__name__ == "RangeIndex":
        return None
    return tuple(_time(entry) if isinstance(entry, datetime) else str(entry) for entry in index)
