"""Releasing a series, period by period or step by step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream.data.frames import read_periods
from optstream.mechanism.loop import draw_periods, price_next
from optstream.mechanism.release import Release
from optstream.mechanism.statements import stated
from optstream.mechanism.step_release import HeldRelease, HeldTreeRelease
from optstream.mechanism.tree_release import assemble_tree, by_step
from optstream.progress import progress

if TYPE_CHECKING:
    from optstream.mechanism.loop import Priced
    from optstream.mechanism.optstream import OptStream
    from optstream.mechanism.release import Parts
    from optstream.mechanism.state import State
    from optstream.mechanism.step_release import Stepped

__all__ = ["release_periods", "release_steps"]


def release_periods(mechanism: OptStream, x: Any, known: State) -> Any:
    """Return whole periods as they are released after what a state knows, which then knows them."""
    single = mechanism.hierarchy is None
    estimator, assembler = mechanism.estimator, mechanism.assembler
    if single and estimator is None and price_next(mechanism, known, known.next).mechanism == mechanism:
        return _at_once(mechanism, x, known)
    periods = mechanism.read(x)
    work = progress(periods.units, desc="releasing", unit="period")
    drawn, interpreted = [], []
    for result in draw_periods(mechanism, work, known):
        drawn.append(result)
        if known.memory is not None:
            interpreted.append(known.memory.understood)
    revised = None
    if estimator is not None and estimator.estimate.revise and known.memory is not None:
        rows = assembler.whole(estimator.revised(known.memory, interpreted))
        revised = periods.restore(rows[:, 0] if single else by_step(rows))
    made = mechanism.assemble(
        [result.parts for result in drawn], periods.restore, [one.priced.mechanism for one in drawn]
    )
    statement = stated(mechanism, [result.priced for result in drawn], known, len(drawn))
    return replace(made, revised=revised, statement=statement, state=known.to_data(mechanism.guarantee))


def _at_once(mechanism: OptStream, x: Any, known: State) -> Release:
    """Return all periods of a single stream without an estimate, by one call into Rust."""
    engine = mechanism.engine
    rows, restore = read_periods(x, mechanism.guarantee.w)
    priced = price_next(mechanism, known, known.next)
    made = mechanism.assembler.of_arrays(engine.projected(*engine.calibration.plan.release(rows)), restore)
    periods = len(made._rows)  # noqa: SLF001
    statement = stated(mechanism, [priced], known, periods)
    known.advance(known.next + periods - 1, mechanism.costs)
    return replace(made, statement=statement, state=known.to_data(mechanism.guarantee))


def release_steps(mechanism: OptStream, x: Any, known: State) -> Any:
    """Return whole periods released step by step."""
    walks = mechanism.walks
    periods = mechanism.read(x)
    steps: list[Stepped] = []
    drawn: list[tuple[Priced[OptStream], Parts]] = []
    held = None
    for units in periods.units:
        walk = walks.begin(known, known.next, held)
        steps += [walk.push(column) for column in units.T]
        drawn.append((walk.priced, walk.finish(known)))
        held = walk.held
    w, count = mechanism.guarantee.w, len(drawn)
    nodes = np.stack([step.values for step in steps]).reshape(count, w, -1).transpose(0, 2, 1)
    better = mechanism.assembler.whole(np.stack([parts.values for _, parts in drawn]))
    single = mechanism.hierarchy is None
    statement = stated(mechanism, [priced for priced, _ in drawn], known, count)
    extra = {
        "statement": statement,
        "revised": periods.restore(better[:, 0] if single else by_step(better)),
        "state": known.to_data(mechanism.guarantee),
    }
    deviations = None
    if mechanism.estimator is not None:
        found = [step.deviations for step in steps if step.deviations is not None]
        deviations = np.stack(found).reshape(count, w, -1).transpose(0, 2, 1)
    if mechanism.hierarchy is not None:
        made = assemble_tree(
            nodes,
            periods.restore,
            hierarchy=mechanism.hierarchy,
            features=mechanism.features,
            statement=statement,
            noise=[priced.mechanism.assembler.level_noise for priced, _ in drawn],
            deviations=deviations,
            integers=mechanism.integers,
        )
        if deviations is not None:
            return replace(made, **extra)
        fields = {name: getattr(made, name) for name in made.__dataclass_fields__} | extra
        return HeldTreeRelease(**fields, _mechanism=mechanism, _stepped=tuple(steps))
    rows = np.ascontiguousarray(nodes[:, 0])
    fields = {
        "values": periods.restore(rows.astype(np.int64) if mechanism.integers else rows),
        "features": tuple(rows @ np.eye(feature.size)[list(feature.labels)] for feature in mechanism.features),
        "_rows": rows,
        "_knots": np.empty((0, 0), dtype=np.int64),
        "_scales": np.array([priced.mechanism.noise_scale for priced, _ in drawn]),
        "_grid": mechanism.grid + 0.5 * mechanism.integers,
        **extra,
    }
    if deviations is not None:
        return Release(**fields, _deviations=np.ascontiguousarray(deviations[:, 0]))
    return HeldRelease(**fields, _mechanism=mechanism, _stepped=tuple(steps))
