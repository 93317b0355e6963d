"""Keyed noise without a ledger: a release is a function of key, stream, period, plan, scales and data.

The noise is derived as a ledger derives it, so that the same key, stream, period, plan and data give the same bits with
a ledger, without one, one by one or many at once, here or on another machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream.errors import ParameterError, ParameterTypeError
from optstream.keys import CuratorKey, data_digest, find_key
from optstream.ledger.plans import PricedPlan
from optstream.mechanism.loop import draw_period, price_next
from optstream.mechanism.optstream import OptStream
from optstream.mechanism.release import Parts
from optstream.mechanism.state import State
from optstream.names import checked_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction
    from pathlib import Path

    from numpy.typing import NDArray

    from optstream.mechanism.engine import Periods
    from optstream.mechanism.loop import Draw, Priced

    Units = NDArray[np.int64]

__all__ = ["curator_of", "digest_rows", "draw_rows", "finished", "keyed_draw", "periods_of", "plan_id", "release_many"]

REPEATED = (
    "Holds for each stream by itself: for these periods, together with all that was released before through the state "
    "that was handed over. The same key, stream, period, plan and data give the same bits, so that a repetition tells "
    "nothing new; the same period from other data is another release, which this statement does not count."
)
"""What the statement of a keyed release without a ledger is about."""


@lru_cache(maxsize=512)
def plan_id(mechanism: OptStream, held: tuple[tuple[int, int], ...] = ()) -> bytes:
    """Return what a ledger knows the plan of a mechanism by."""
    return PricedPlan.holding(mechanism, dict(held)).id


def curator_of(key: CuratorKey | str | Path | None) -> CuratorKey:
    """Return the curator's key that is given or named by the environment.

    Raises:
        ParameterError: There is none.
    """
    found = find_key(key)
    if found is None:
        raise ParameterError("key is not given, but must be: without one every repetition is another look at the data")
    return found


def keyed_draw(key: CuratorKey, stream: str, held: Mapping[int, int] | None = None) -> Draw:
    """Return what draws a priced period of a stream, in which some steps repeat others, with noise from a key."""
    repeated = tuple(sorted(held.items())) if held else ()

    def draw(priced: Priced[OptStream], units: Units, period: int) -> Parts:
        digest = data_digest(key, stream, period, units)
        context = [stream.encode(), period.to_bytes(8, "little"), plan_id(priced.mechanism, repeated), digest]
        return priced.mechanism.draw(units, (key, context))

    return draw


def digest_rows(key: CuratorKey, streams: Sequence[bytes], periods: Sequence[int], units: Units) -> NDArray[np.uint8]:
    """Return the keyed digest of every period, as rows of 32 bytes: see :func:`optstream.data_digest`.

    Args:
        key: The curator's key.
        streams: The name of the stream of every period.
        periods: The number of every period.
        units: Integers of the grid, as an array of periods, leaves and steps.
    """
    return key.digest_many(streams, periods, np.ascontiguousarray(units).reshape(len(units), -1))


def draw_rows(
    mechanism: OptStream,
    key: CuratorKey,
    streams: Sequence[bytes],
    periods: Sequence[int],
    units: Units,
    *,
    digests: NDArray[np.uint8],
    threads: int | None = None,
) -> list[Parts]:
    """Return what is drawn of many periods of any streams, by one call into Rust for every level of the hierarchy.

    For a single stream it is one object with a row for every period; for a hierarchy one object for every period. An
    estimate is still to be made.

    Args:
        mechanism: How all of them are released.
        key: The curator's key.
        streams: The name of the stream of every period.
        periods: The number of every period.
        units: Integers of the grid, as an array of periods, leaves and steps.
        digests: The digest of every period, see :func:`digest_rows`.
        threads: How many threads may draw at most; by default as many as the machine has.
    """
    count, w = len(units), mechanism.guarantee.w
    made, rest = plan_id(mechanism), [mechanism.engine.fingerprint]
    if mechanism.hierarchy is None:
        (plan,) = mechanism.engine.plans
        rows = np.ascontiguousarray(units).reshape(count, w)
        drawn = plan.measure_many(rows, key, streams, periods, digests, made, rest, threads)
        return [Parts(*mechanism.engine.projected(*drawn))]
    if mechanism.engine.tree.follow is not None and count > 1:
        # The levels of each period are measured where its root says.
        return [
            drawn
            for at in range(count)
            for drawn in draw_rows(
                mechanism,
                key,
                streams[at : at + 1],
                periods[at : at + 1],
                units[at : at + 1],
                digests=digests[at : at + 1],
                threads=threads,
            )
        ]
    hierarchy = mechanism.hierarchy
    nodes = np.stack([hierarchy.sums(leaves) for leaves in units])
    levels: list[list[NDArray[Any]]] = []
    for depth, level in enumerate(hierarchy.level_positions):
        plan = mechanism.engine.tree.plan(depth, levels[0][2][0, 0] if levels else ())
        rows = np.ascontiguousarray(nodes[:, level]).reshape(-1, w)
        own = [*rest, depth.to_bytes(8, "little")]
        steps, cells, knots = plan.measure_many(rows, key, streams, periods, digests, made, own, threads)
        wide = np.broadcast_to(knots, (len(rows), knots.shape[1])).astype(np.int64)
        levels.append([part.reshape(count, len(level), -1) for part in (steps, cells, wide)])
    steps, cells, knots = (np.concatenate(part, axis=1) for part in zip(*levels, strict=True))
    if mechanism.estimator is not None:
        return [Parts(*period) for period in zip(steps, cells, knots, strict=True)]
    none = np.empty((0, 0)), np.empty((0, 0), dtype=np.int64)
    return [Parts(mechanism.engine.settled(*period), *none) for period in zip(steps, cells, strict=True)]


def release_many(
    mechanism: OptStream,
    data: Mapping[str, Any],
    *,
    key: CuratorKey | str | Path | None = None,
    period: int | Mapping[str, int] | None = None,
    state: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Release consecutive periods of many streams with noise from a curator's key, and without a ledger.

    The noise is a function of key, stream, period, plan, scales and data: wherever and however often the same release
    is made, it is the same bit for bit, and the same that a :class:`Ledger` with this key gives. All periods of all
    streams are drawn by one call into Rust. Nothing counts what is released: two releases of one period from different
    data are two looks. Where that may happen, release through a ledger.

    Args:
        mechanism: How to release.
        data: For every stream the data of whole periods, as :meth:`OptStream.release` takes it.
        key: The curator's key or the path of its file; by default what the environment names.
        period: The number of the first period, of all streams or of each; by default the next one after the state, or
            0. It is part of what the noise is derived from.
        state: For streams that go on what an earlier :attr:`Release.state` gave.

    Returns:
        For every stream its :class:`Release`, or :class:`TreeRelease`.

    Raises:
        BudgetError: The period before those of a stream leaves no budget for the next one.
        DataError: The data of a stream is empty, not a whole number of periods, or not finite.
        ParameterError: There is no key, or a period was released already.

    Example:
        >>> import numpy as np
        >>> import optstream as ops
        >>> mechanism = ops.OptStream(ops.Guarantee(epsilon=1, w=4), sample=ops.EqualSampling(k=4), bounds=(0, 100))
        >>> key = ops.CuratorKey(bytes(range(32)))
        >>> days = {"north": np.full(8, 50.0), "south": np.full(8, 20.0)}
        >>> first, again = (release_many(mechanism, days, key=key, period=3) for _ in range(2))
        >>> first["north"]
        Release(periods=2, w=4, epsilon=1)
        >>> bool((first["north"].values == again["north"].values).all())
        True
    """
    if not isinstance(mechanism, OptStream):
        raise ParameterTypeError(f"mechanism is of type {type(mechanism).__name__}, but must be OptStream")
    for what, mapping in (("data", data), ("state", {} if state is None else state)):
        if not isinstance(mapping, Mapping):
            raise ParameterTypeError(f"{what} is of type {type(mapping).__name__}, but must be a mapping from streams")
    curator, states = curator_of(key), {} if state is None else state
    names = {given: checked_name(given) for given in data}
    if len(set(names.values())) < len(names):
        raise ParameterError("data has two names that are one and the same stream, but must have one for each")
    jobs = {}
    for given, x in data.items():
        known = State.read(states.get(given), mechanism)
        known.skip_to(period.get(given) if isinstance(period, Mapping) else period)
        jobs[given] = _Job(names[given], mechanism.read(x), known, price_next(mechanism, known, known.next))
    # All that keep their plan are drawn at once; one that has less budget in its first period, or tunes itself, is not.
    plain = {given: job for given, job in jobs.items() if not mechanism.retune and job.first.mechanism == mechanism}
    drawn = _at_once(mechanism, curator, plain)
    return {
        given: drawn[given] if given in drawn else _one_by_one(mechanism, curator, job) for given, job in jobs.items()
    }


@dataclass(frozen=True, repr=False)
class _Job:
    """Consecutive periods of a stream."""

    stream: str
    read: Periods
    known: State
    first: Priced[OptStream]


def _one_by_one(mechanism: OptStream, key: CuratorKey, job: _Job) -> Any:
    draw, drawn = keyed_draw(key, job.stream), []
    for rows in job.read.units:
        number = job.known.next
        drawn.append(draw_period(price_next(mechanism, job.known, number), rows, number, job.known, draw))
    made = mechanism.assemble([one.parts for one in drawn], job.read.restore, [one.priced.mechanism for one in drawn])
    return _stated(made, mechanism, job.known, max(one.priced.epsilon for one in drawn))


def _at_once(mechanism: OptStream, key: CuratorKey, jobs: Mapping[str, _Job]) -> dict[str, Any]:
    if not jobs:
        return {}
    streams: list[bytes] = []
    periods: list[int] = []
    for job in jobs.values():
        count = len(job.read.units)
        streams += [job.stream.encode()] * count
        periods += range(job.known.next, job.known.next + count)
    units = np.concatenate([job.read.units for job in jobs.values()])
    drawn = draw_rows(mechanism, key, streams, periods, units, digests=digest_rows(key, streams, periods, units))
    released, begin = {}, 0
    for given, job in jobs.items():
        count = len(job.read.units)
        parts = periods_of(mechanism, drawn, begin, begin + count)
        parts = finished(mechanism, parts, job.known.next, job.known)
        job.known.advance(job.known.next + count - 1, mechanism.costs)
        made = mechanism.assemble(parts, job.read.restore)
        released[given] = _stated(made, mechanism, job.known, job.first.epsilon)
        begin += count
    return released


def periods_of(mechanism: OptStream, drawn: Sequence[Parts], begin: int, end: int) -> list[Parts]:
    """Return some of the periods that :func:`draw_rows` has drawn: one object for all where they are assembled so."""
    if mechanism.hierarchy is not None:
        return list(drawn[begin:end])
    (rows,) = drawn
    knots = rows.knots if len(rows.knots) == 1 else rows.knots[begin:end]
    whole = Parts(rows.values[begin:end], rows.cells[begin:end], knots)
    if mechanism.estimator is None:
        return [whole]
    each = range(end - begin)
    return [
        Parts(whole.values[i : i + 1], whole.cells[i : i + 1], knots if len(knots) == 1 else knots[i : i + 1])
        for i in each
    ]


def finished(mechanism: OptStream, parts: Sequence[Parts], period: int, known: State) -> list[Parts]:
    """Return consecutive periods as they are estimated, and remember them; without an estimate as they are."""
    if known.memory is None:
        return list(parts)
    return [mechanism.finish(one, number, known.memory) for number, one in enumerate(parts, period)]


def _stated(made: Any, mechanism: OptStream, known: State, epsilon: Fraction) -> Any:
    statement = replace(mechanism.statement, epsilon=epsilon, scope=REPEATED)
    return replace(made, statement=statement, state=known.to_data(mechanism.guarantee))
