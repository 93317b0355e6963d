"""Releasing whole periods of a series, one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from optstream.data.frames import read_periods
from optstream.mechanism.loop import draw_periods, price_next
from optstream.mechanism.statements import stated
from optstream.mechanism.tree_release import by_step
from optstream.progress import progress

if TYPE_CHECKING:
    from optstream.mechanism.optstream import OptStream
    from optstream.mechanism.release import Release
    from optstream.mechanism.state import State

__all__ = ["release_periods"]


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
