"""Whole periods out of rows of Spark, digested and drawn: what driver and executors do alike."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from optstream import _core
from optstream.errors import ConflictError, DataError
from optstream.mechanism.loop import price_next
from optstream.mechanism.release import Parts
from optstream.mechanism.state import State
from optstream.names import checked_name
from optstream.stream.keyed import digest_rows, draw_rows, finished, periods_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from optstream.keys import CuratorKey
    from optstream.mechanism.optstream import OptStream

__all__ = ["Blocks", "Choice", "Digests", "digests_of", "draw_blocks", "read_blocks"]

NONE = Parts(np.empty((0, 0)), np.empty((0, 0)), np.empty((0, 0), dtype=np.int64))
Digests = dict[str, tuple["NDArray[np.int64]", "NDArray[np.uint8]"]]
"""For every stream its periods, in order, and the digest of each, as rows of 32 bytes."""


@dataclass(frozen=True, repr=False)
class Blocks:
    """Periods of streams, in the order of streams and periods. They hold raw data."""

    streams: list[str]
    """The stream of every period."""
    periods: NDArray[np.int64]
    units: NDArray[np.int64]
    """Integers of the grid: an array of periods, leaves and steps."""
    times: pa.Array
    """The time of every step of every period, one after the other."""


@dataclass(frozen=True)
class Choice:
    """Which plan measures which period: of a stream its first period, and those after it."""

    plans: list[OptStream]
    of: dict[str, tuple[int, int]]
    """Streams that are not named have the first plan always."""
    states: dict[str, str]
    """What is known of streams before their first period, as JSON."""

    @classmethod
    def made(cls, mechanism: OptStream, digests: Digests, states: dict[str, str]) -> Choice:
        """Return the plans that released values suggest, with as much budget as every window leaves."""
        if not states and not mechanism.retune:
            return cls([mechanism], {}, {})
        plans: list[OptStream] = []

        def number(plan: OptStream) -> int:
            if plan not in plans:
                plans.append(plan)
            return plans.index(plan)

        of: dict[str, tuple[int, int]] = {}
        fresh: dict[int, tuple[int, int]] = {}
        for stream, (periods, _) in digests.items():
            begin, known = int(periods[0]), states.get(stream)
            if known is None and begin in fresh:
                of[stream] = fresh[begin]
                continue
            state = State.read(None if known is None else json.loads(known), mechanism)
            state.skip_to(begin)
            first = price_next(mechanism, state, begin).mechanism
            rest = mechanism if state.memory is None else mechanism.following(state.memory)
            of[stream] = number(first), number(rest)
            if known is None:
                fresh[begin] = of[stream]
        return cls(plans, of, {stream: states[stream] for stream in digests if stream in states})

    def plan(self, stream: str, *, first: bool) -> int:
        """Return the number of the plan of a period."""
        one, rest = self.of.get(stream, (0, 0))
        return one if first else rest


def read_blocks(table: pa.Table, mechanism: OptStream, name: str, period: int) -> Blocks:
    """Return the periods in rows of ``stream``, ``step``, ``sum`` and perhaps ``time``.

    Args:
        table: The rows, in any order.
        mechanism: What releases them.
        name: The name of the stream, if the mechanism has a hierarchy; the column then holds leaves.
        period: The number of the period that begins with step 0.

    Raises:
        DataError: A step of a period is missing or there twice, a sum is not finite, or a name is no leaf.
    """
    w, hierarchy = mechanism.guarantee.w, mechanism.hierarchy
    if any(table.column(name).null_count for name in ("stream", "step", "sum")):
        raise DataError("stream, step or sum is null in some rows, but must be known in all")
    coded = table.column("stream").combine_chunks().dictionary_encode()
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.combine_chunks()
    names = _names(coded.dictionary)
    codes = coded.indices.to_numpy().astype(np.int64)
    step = table.column("step").to_numpy().astype(np.int64) + period * w
    if step.size and step.min() < 0:
        raise DataError("step is negative in some rows, but must be at least 0")
    leaf, leaves = np.zeros(step.size, dtype=np.int64), 1
    if hierarchy is not None:
        if not set(names) <= set(hierarchy.leaves):
            raise DataError("stream holds a name that is no leaf, but must hold leaves of the hierarchy only")
        numbers = {leaf: number for number, leaf in enumerate(hierarchy.leaves)}
        places = np.array([numbers[one] for one in names], dtype=np.int64)
        leaf, leaves, codes, names = places[codes], len(hierarchy.leaves), np.zeros_like(codes), [name]
    # The order of names is that of the text, wherever rows come from.
    rank = np.empty(len(names), dtype=np.int64)
    rank[np.argsort(np.array(names, dtype=object))] = np.arange(len(names))
    first, last = (int(step.min() // w), int(step.max() // w)) if step.size else (0, -1)
    span = last - first + 1
    block = rank[codes] * span + (step // w - first)
    counts = np.bincount(block, minlength=len(names) * span)
    there = np.flatnonzero(counts)
    place = np.cumsum(counts > 0) - 1
    position = (place[block] * leaves + leaf) * w + step % w
    if (counts[there] != leaves * w).any() or (np.bincount(position, minlength=there.size * leaves * w) != 1).any():
        raise DataError(
            f"steps of a period are missing or there twice, but each period must have its {w} steps once"
            + ("" if hierarchy is None else f" in each of {leaves} leaves")
        )
    order = np.empty(step.size, dtype=np.int64)
    order[position] = np.arange(step.size)
    values = table.column("sum").to_numpy()[order].astype(np.float64).reshape(-1, w)
    units = np.empty((0, w), dtype=np.int64)
    if values.size:
        units = _core.quantise(values, mechanism.bounds, mechanism.grid)
    ordered = sorted(names)
    shaped = order.reshape(-1, leaves, w)[:, 0].ravel()
    times = table.column("time").combine_chunks() if "time" in table.column_names else pa.array(step)
    if isinstance(times, pa.ChunkedArray):
        times = times.combine_chunks()
    return Blocks(
        [ordered[number // span] for number in there.tolist()],
        there % max(span, 1) + first,
        units.reshape(-1, leaves, w),
        times.take(pa.array(shaped)),
    )


def _names(given: pa.Array) -> list[str]:
    names: list[str] = given.to_pylist()
    if any(checked_name(name) != name for name in names):
        # A ledger would know the stream by another name than the noise.
        raise DataError("stream holds a name that Unicode writes in another way (NFC), but must hold canonical ones")
    return names


def digests_of(blocks: Blocks, key: CuratorKey) -> Digests:
    """Return the digest of every period."""
    rows = digest_rows(key, [name.encode() for name in blocks.streams], blocks.periods.tolist(), blocks.units)
    return {
        stream: (blocks.periods[begin:end], rows[begin:end]) for stream, (begin, end) in _runs(blocks.streams).items()
    }


def draw_blocks(blocks: Blocks, key: CuratorKey, charged: Digests, choice: Choice) -> tuple[pa.Table, dict[str, str]]:
    """Return what is released, a row for every stream (or node) and period, and what is known of streams after it.

    Raises:
        ConflictError: The data is not what was charged: it changed since it was digested. Nothing was drawn.
    """
    digests = digests_of(blocks, key)
    for stream, (periods, rows) in digests.items():
        known = charged.get(stream)
        if known is None or not np.array_equal(known[0], periods) or not np.array_equal(known[1], rows):
            raise ConflictError(
                f"the data of stream {stream!r} is not what was charged: it was computed again and came out otherwise"
            )
    runs, mechanism = _runs(blocks.streams), choice.plans[0]
    begins = {begin for begin, _ in runs.values()}
    plans = [choice.plan(stream, first=at in begins) for at, stream in enumerate(blocks.streams)]
    parts = _drawn(blocks, key, np.concatenate([digests[stream][1] for stream in runs]), choice, np.array(plans))
    states = {}
    if mechanism.estimator is not None:
        for stream, (begin, end) in runs.items():
            before = choice.states.get(stream)
            state = State.read(None if before is None else json.loads(before), mechanism)
            for at in range(begin, end):
                plan, number = choice.plans[plans[at]], int(blocks.periods[at])
                state.advance(number, plan.costs)
                parts[at : at + 1] = finished(plan, parts[at : at + 1], number, state)
            states[stream] = json.dumps(state.to_data(mechanism.guarantee))
    whole = mechanism.assembler.whole(np.stack([part.values for part in parts]))
    return _rows(mechanism, blocks, whole, np.stack([part.deviations for part in parts]) if states else None), states


def _drawn(
    blocks: Blocks, key: CuratorKey, digests: NDArray[np.uint8], choice: Choice, plans: NDArray[np.int64]
) -> list[Parts]:
    """Return what is drawn of every period, by one call into Rust for every plan."""
    parts: list[Parts] = [NONE] * len(blocks.streams)
    for number, plan in enumerate(choice.plans):
        chosen = np.flatnonzero(plans == number)
        if not chosen.size:
            continue
        streams, periods = [blocks.streams[at].encode() for at in chosen], blocks.periods[chosen].tolist()
        drawn = draw_rows(plan, key, streams, periods, blocks.units[chosen], digests=digests[chosen])
        for index, at in enumerate(chosen):
            (parts[at],) = periods_of(plan, drawn, index, index + 1)
    return parts


def _runs(streams: list[str]) -> dict[str, tuple[int, int]]:
    """Return where the periods of every stream begin and end."""
    runs: dict[str, tuple[int, int]] = {}
    for at, stream in enumerate(streams):
        runs[stream] = runs.get(stream, (at, at))[0], at + 1
    return runs


def _rows(
    mechanism: OptStream, blocks: Blocks, values: NDArray[Any], deviations: NDArray[np.float64] | None
) -> pa.Table:
    w, nodes, count = mechanism.guarantee.w, values.shape[1], len(blocks.streams)
    names = blocks.streams if mechanism.hierarchy is None else [*mechanism.hierarchy.nodes] * count
    numbers = np.repeat(blocks.periods, nodes)
    steps = (numbers[:, None] * w + np.arange(w)).ravel()
    times = (
        blocks.times
        if nodes == 1
        else blocks.times.take(
            pa.array((np.arange(count * w).reshape(count, 1, w) + np.zeros((1, nodes, 1), dtype=np.int64)).ravel())
        )
    )

    def listed(flat: Any) -> pa.Array:
        return pa.ListArray.from_arrays(pa.array(np.arange(0, flat_size + 1, w), pa.int32()), flat)

    flat_size = numbers.size * w
    columns = {
        "stream": pa.array(names, pa.string()),
        "period": pa.array(numbers),
        "steps": listed(pa.array(steps)),
        "times": listed(times),
        "values": listed(pa.array(values.ravel())),
    }
    if mechanism.estimator is not None:
        flat = np.empty(0) if deviations is None else deviations.ravel()
        columns["deviations"] = listed(pa.array(flat, pa.float64()))
    return pa.table(columns)
