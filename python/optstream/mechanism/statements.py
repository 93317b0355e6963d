"""What a mechanism states: what its windows cost, before there is data and of what was drawn."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING

from optstream.pipeline.panel import Panel
from optstream.privacy.statement import Stage, Statement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optstream.mechanism.loop import Priced
    from optstream.mechanism.optstream import OptStream
    from optstream.mechanism.state import State
    from optstream.pipeline.hierarchy import Hierarchy
    from optstream.privacy.guarantee import Guarantee

__all__ = ["stated", "steady"]

STEADY = (
    "Holds for one stream of periods, each released once, by this mechanism and by what follows it through the same "
    "state or ledger."
)
"""What the statement of a mechanism is about, before there is data."""


def steady(mechanism: OptStream) -> Statement:
    """Return what one window costs, stage by stage. No data is needed."""
    guarantee = mechanism.guarantee
    if mechanism.hierarchy is None:
        stages, assumptions, series = mechanism.engine.calibration.described(), [], ""
    else:
        series = "streams" if isinstance(mechanism.hierarchy, Panel) else "leaves"
        assumptions = _where(guarantee, mechanism.hierarchy)
        named = ((level, f"{{}} level {depth}") for depth, level in enumerate(mechanism.levels))
        stages = [stage for level, name in named for stage in level.described(name)]
    if mechanism.retune:
        stages = [replace(stage, does=f"at first {stage.does}; later as releases suggest") for stage in stages]
    return Statement(
        guarantee=guarantee,
        epsilon=mechanism.steady_epsilon,
        scope=STEADY,
        stages=tuple(stages),
        calibration=mechanism.calibration,
        weights=mechanism.weights,
        grid=mechanism.grid,
        bounds=(float(mechanism.bounds[0]), float(mechanism.bounds[1])),
        assumptions=(
            f"one {guarantee.entity} changes the value of any one step by at most {guarantee.alpha:g}"
            + (f", over all {series} together" if series and guarantee.entities == "moving" else ""),
            "no period is released twice, and nothing else is released from the same data",
            "w, k, features, split, bounds, grid and threshold were chosen without looking at the private data"
            + (", but for what was released of it" if mechanism.retune else ""),
            *assumptions,
        ),
        version=version("optstream"),
        series=series,
    )


def _where(guarantee: Guarantee, streams: Hierarchy) -> list[str]:
    """Return what a statement assumes of the leaves in which an entity is."""
    leaf, leaves = "leaf of the hierarchy", "leaves of the hierarchy"
    if isinstance(streams, Panel):
        leaf, leaves = "stream of the panel", "streams of the panel"
    if guarantee.entities == "settled":
        return [f"every {guarantee.entity} belongs to one {leaf}, and to the same one during a window"]
    return [f"one {guarantee.entity} may be in any {leaves}, in several at once"]


def stated(mechanism: OptStream, priced: Sequence[Priced[OptStream]], known: State, periods: int) -> Statement:
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
    return replace(mechanism.statement, epsilon=epsilon, scope=scope, stages=_stages_of(mechanism, priced))


def _stages_of(mechanism: OptStream, priced: Sequence[Priced[OptStream]]) -> tuple[Stage, ...]:
    """Return the stages of what was drawn, which has a smaller budget where a window over a change needs it."""
    if mechanism.retune:
        return mechanism.statement.stages
    counts = Counter(one.mechanism for one in priced)
    return tuple(
        stage if len(counts) == 1 else replace(stage, does=f"{stage.does}, in {count} of {len(priced)} periods")
        for one, count in counts.items()
        for stage in one.statement.stages
    )
