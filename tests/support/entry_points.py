"""Every public name and everything in the binding, with nearly valid arguments, for fuzzing."""

from __future__ import annotations

import asyncio
import io
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis.extra.numpy as st_numpy
import hypothesis.strategies as st
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from fuzz_values import JUNK, SCALARS, SMALL

import optstream as ops
from optstream import _core, audit, noise

if TYPE_CHECKING:
    from collections.abc import Callable

Strategy = st.SearchStrategy[Any]
Arguments = dict[str, Strategy]


@dataclass(frozen=True)
class Case:
    """Something to call with nearly valid arguments."""

    call: Callable[..., Any]
    arguments: Arguments = field(default_factory=dict)
    kept: str = ""
    """Names of arguments that are never junk, with blanks between."""
    junk: Strategy = JUNK
    allowed: tuple[type[Exception], ...] = ()
    """What else may be raised."""
    share: float = 1.0
    """The share of the usual number of examples; less for what takes long."""


W = 4
POSITIVE = st.floats(1e-3, 1e3)
BUDGETS = POSITIVE | st.integers(1, 9) | st.fractions(Fraction(1, 99), 9, max_denominator=99) | st.just(Decimal("0.7"))
BOUNDS = st.tuples(st.floats(-1e3, 0), st.floats(1, 1e3))
GRIDS = st.none() | st.integers(-6, 3).map(lambda exponent: 2.0**exponent)
COUNTS = st.integers(0, 9)
VALUES = st_numpy.arrays(np.float64, st.integers(1, 20), elements=st.floats(-1e6, 1e6))
BLOCKS = VALUES | st_numpy.arrays(np.float64, (3, 5), elements=st.floats(-1e6, 1e6))
NAMES = st.sampled_from(["s", "t", "name"])
HOUR, NEW_YEAR = timedelta(hours=1), datetime(2020, 1, 1, tzinfo=UTC)
GUARANTEE = ops.Guarantee(epsilon=1, w=W)
TREE = ops.Hierarchy({"all": None, "a": "all", "b": "all"})
FRAME = pl.DataFrame({"root": ["all", "all"], "leaf": ["a", "b"]})
SECRET = _core.CuratorKey(bytes(range(32)))
EVENTS = pl.DataFrame({"who": ["a", "b", "a"], "at": [0, 1, 2], "size": [1.0, 2.0, 0.5], "where": ["x", "y", "x"]})
PLAN = """epsilon = 0.5
w = 4
alpha = 1
bounds = [0, 100]
features = [[1, 2], []]
sample = { kind = "l1", k = 3, threshold = 5.0 }
hierarchy = { all = ["a", "b"] }
"""


def mechanism(w: int = W, sample: Any = None, **more: Any) -> ops.OptStream:
    return ops.OptStream(ops.Guarantee(epsilon=1, w=w), sample=sample or ops.EqualSampling(2), bounds=(0, 100), **more)


SIMPLE, WITH_TREE = mechanism(), mechanism(hierarchy=TREE)
MECHANISMS = st.sampled_from(
    [
        SIMPLE,
        WITH_TREE,
        mechanism(8, ops.L1Sampling(4, 5.0)),
        mechanism(8, ops.BucketSampling(cuts=(1, 4)), perturb=ops.CubeNoise()),
        mechanism(reconstruct=ops.Estimate(season=1)),
        mechanism(features=[ops.Feature.total(W)]),
        mechanism(features=[ops.Feature.cuts(W, 1), ops.Feature.cuts(W, 2)]),
    ]
)
PERIODS: Strategy = st_numpy.arrays(
    np.float64, st.sampled_from([(4,), (8,), (16,), (2, 4), (4, 2)]), elements=st.floats(-1e3, 1e3)
)
PERIODS |= st.sampled_from([[1.0] * 8, (1, 2, 3, 4), pd.Series([1.0] * 8), pl.Series([1] * 8), pa.array([1.0] * 8)])
PERIODS |= st.sampled_from([{"a": [1.0] * 4, "b": [2] * 4}, pd.DataFrame({"a": [1.0] * 4, "b": [2.0] * 4})])
OBSERVATIONS = st.floats(0, 9) | st.integers(0, 9) | st.just({"a": 1.0, "b": 2})
TIMES = st.integers(0, 9) | st.just(NEW_YEAR + 3 * HOUR) | st.datetimes(timezones=st.just(UTC))
STREAMS = st.builds(
    ops.Stream,
    st.sampled_from([SIMPLE, WITH_TREE]),
    missing=st.sampled_from(["refuse", "hold", "skip", 0.0]),
    disorder=st.sampled_from(["refuse", "accept"]),
) | st.builds(ops.Stream, st.just(SIMPLE), step=st.just(HOUR), origin=st.just(NEW_YEAR))
STATES = st.none() | st.fixed_dictionaries(
    {
        "released": st.none() | st.integers(0, 3) | SCALARS,
        "published": st.none() | st.just([1.0]) | st.lists(st.floats(), max_size=2),
        "observations": st.dictionaries(st.integers(-1, 9).map(str), st.just([1.0]) | SCALARS, max_size=3),
    }
)
PAIRS = st.builds(
    lambda low, high: audit.Pair("steps", np.full(W, low), np.full(W, high)), st.floats(0, 9), st.floats(0, 9)
)
LEDGERS: dict[str, ops.Ledger] = {}


def on_ledger(method: str, arguments: Arguments, kept: str = "", key: Any = None) -> Case:
    """Return a case of a method of a ledger; each has a ledger of its own, so that none spoils another's."""

    def call(**given: Any) -> Any:
        if method not in LEDGERS:
            LEDGERS[method] = ops.Ledger(f"{method}.db", key=key, create=True)
            LEDGERS[method].release(SIMPLE, np.ones(W), stream="s")
        return getattr(LEDGERS[method], method)(**given)

    return Case(call, arguments, kept)


def of(name: str, arguments: Arguments, kept: str = "") -> Case:
    """Return a case of a method whose object is drawn too, as the argument ``on``."""
    return Case(lambda on, **given: getattr(on, name)(**given), arguments, f"on {kept}")


def awaited(name: str, arguments: Arguments) -> Case:
    """Return a case of a method of an asynchronous stream around one that is drawn."""

    async def call(on: ops.Stream, given: dict[str, Any]) -> Any:
        around = ops.AsyncStream(on)
        try:
            return await getattr(around, name)(**given)
        finally:
            await around.close()

    return Case(lambda on, **given: asyncio.run(call(on, given)), arguments, "on")


def followed(on: ops.Stream, observations: Any) -> Any:
    """Return all that an asynchronous stream gives for observations."""

    async def arriving() -> Any:
        for observation in observations:
            yield observation

    async def call() -> Any:
        around = ops.AsyncStream(on)
        try:
            return [released async for released in around.releases(arriving())]
        finally:
            await around.close()

    return asyncio.run(call())


def stepped(x: Any) -> Any:
    """Return the releases of the steps of a stream that emits each."""
    stream = ops.Stream(SIMPLE, emit="step")
    return [stream.push(step, value) for step, value in enumerate(x)]


def described(**given: Any) -> Any:
    """Return all that a mechanism says of itself."""
    made = ops.OptStream(**given)
    return str(made.statement), made.statement.to_json(), repr(made), made.description, len(made.costs)


def used(**given: Any) -> Any:
    """Begin a stream and give it observations, which are taken or refused."""
    stream = ops.Stream(**given)
    released = []
    for step in range(2 * W):
        try:
            released.append(stream.push(step, 1.0))
        except ops.OptStreamError:
            continue
    return [repr(stream), *released]


def closed(**given: Any) -> None:
    ops.Ledger(**given).close()


def reported(proven: float, estimate: float) -> Any:
    found = audit.Audit("name", 1.0, (audit.Attack("pair", "sum", proven, estimate, 1),), 0.9)
    return [str(found), found.to_json(), found.to_markdown(), found.verdict]


def tuned(guarantee: Any, history: Any = None, **given: Any) -> Any:
    """Return what a choice of mechanisms finds, after all that it can say of it."""
    made = ops.tune(guarantee, history, **given)
    return made, str(made), made.to_json(), made.expected_error


@cache
def found() -> ops.Tuning:
    return ops.tune(GUARANTEE, bounds=(0, 9))


NOISE: Arguments = {"sensitivity": POSITIVE, "epsilon": BUDGETS, "bounds": BOUNDS, "grid": GRIDS}
TUNED: Arguments = {
    "guarantee": st.just(GUARANTEE),
    "bounds": BOUNDS,
    "scale": st.none() | POSITIVE,
    "season": st.integers(1, 7),
    "features": st.just(()),
    "grid": GRIDS,
    "hierarchy": st.sampled_from([None, TREE]),
}
PAGES: Arguments = {
    "path": st.sampled_from(["a.html", "none/b.html", "."]),
    "title": st.none() | st.text(max_size=9),
    "entity": st.text(max_size=9),
    "unit": st.text(max_size=9),
    "step": st.sampled_from([None, HOUR]),
    "origin": st.sampled_from([None, NEW_YEAR]),
}
SCORES: Arguments = {"scores": VALUES, "threshold": POSITIVE, "max_positive": st.integers(1, 5)}
SAMPLES: Strategy = st.builds(ops.EqualSampling, st.integers(1, 5)) | st.builds(ops.BucketSampling, st.integers(1, 5))
SAMPLES |= st.builds(ops.L1Sampling, st.integers(1, 5), POSITIVE)
ERRORS = [
    kind
    for kind in [getattr(ops, name) for name in ops.__all__]
    if isinstance(kind, type) and issubclass(kind, Exception)
]
NODES = st.sampled_from("abc") | st.integers() | st.none()

PUBLIC: dict[str, Case] = {
    **{kind.__name__: Case(lambda message, kind=kind: str(kind(message)), {"message": JUNK}) for kind in ERRORS},
    "__version__": Case(lambda: ops.__version__),
    "noise.laplace": Case(noise.laplace, {"values": VALUES, **NOISE}),
    "noise.cube": Case(noise.cube, {"values": BLOCKS, **NOISE}),
    "noise.gaussian": Case(noise.gaussian, {"values": VALUES, **NOISE, "delta": st.floats(1e-12, 0.1)}),
    "noise.default_grid": Case(noise.default_grid, {"sensitivity": POSITIVE}),
    "above_threshold": Case(ops.above_threshold, SCORES | NOISE),
    "Guarantee": Case(
        lambda **given: repr(ops.Guarantee(**given)),
        {
            "epsilon": BUDGETS | st.just(Decimal("sNaN")),
            "w": st.integers(0, 50),
            "alpha": POSITIVE,
            "neighbours": st.just("aligned"),
            "delta": st.sampled_from([0, 1e-6, Fraction(1, 10**9), 0.5]),
        },
    ),
    "Guarantee.with_epsilon": Case(GUARANTEE.with_epsilon, {"epsilon": BUDGETS}),
    "EqualSampling": Case(ops.EqualSampling, {"k": COUNTS}),
    "L1Sampling": Case(ops.L1Sampling, {"k": COUNTS, "threshold": POSITIVE}),
    "BucketSampling": Case(
        ops.BucketSampling, {"k": st.none() | COUNTS, "cuts": st.none() | st.lists(COUNTS, max_size=3)}
    ),
    "LaplaceNoise": Case(ops.LaplaceNoise),
    "CubeNoise": Case(ops.CubeNoise, {"block": st.just("auto") | COUNTS}),
    "GaussianNoise": Case(ops.GaussianNoise),
    "Linear": Case(ops.Linear),
    "Estimate": Case(
        ops.Estimate,
        {
            "memory": st.booleans(),
            "smooth": st.booleans(),
            "season": st.integers(0, 9),
            "revise": st.booleans(),
            "together": st.booleans(),
        },
    ),
    "Feature": Case(
        lambda cells: repr(ops.Feature(cells)),
        {"cells": st.lists(st.lists(st.integers(0, 4), max_size=3), max_size=3)},
        junk=SMALL,
    ),
    "Feature.cuts": Case(
        lambda w, cuts: ops.Feature.cuts(w, *cuts), {"w": COUNTS, "cuts": st.lists(COUNTS, max_size=3)}, junk=SMALL
    ),
    "Feature.total": Case(ops.Feature.total, {"w": COUNTS}, junk=SMALL),
    "Hierarchy": Case(
        lambda parents: repr(ops.Hierarchy(parents)), {"parents": st.dictionaries(NODES, NODES, max_size=4)}
    ),
    "Panel.nested": Case(ops.Panel.nested, {"tree": st.fixed_dictionaries({"all": JUNK})}),
    "Panel.from_frame": Case(
        ops.Panel.from_frame,
        {"frame": st.sampled_from([FRAME, FRAME.to_pandas()]), "levels": st.just(["root", "leaf"])},
    ),
    "Panel": Case(lambda streams: repr(ops.Panel(streams)), {"streams": st.lists(NODES, max_size=4)}),
    "Hierarchy.nested": Case(ops.Hierarchy.nested, {"tree": st.fixed_dictionaries({"all": JUNK})}),
    "Hierarchy.from_frame": Case(
        ops.Hierarchy.from_frame,
        {"frame": st.sampled_from([FRAME, FRAME.to_pandas()]), "levels": st.just(["root", "leaf"])},
    ),
    "OptStream": Case(
        described,
        {
            "guarantee": st.builds(
                ops.Guarantee,
                epsilon=st.fractions(Fraction(1, 99), 9, max_denominator=99) | st.floats(1e-3, 100),
                w=st.integers(1, 12),
                alpha=POSITIVE,
                delta=st.sampled_from([0, Fraction(1, 10**6)]),
            ),
            "sample": SAMPLES,
            "bounds": BOUNDS,
            "features": st.sampled_from([(), [ops.Feature.total(W)], [ops.Feature.cuts(W, 2), ops.Feature.total(W)]]),
            "split": st.none() | st.lists(BUDGETS, min_size=1, max_size=3),
            "perturb": st.sampled_from([None, ops.LaplaceNoise(), ops.CubeNoise(1), ops.GaussianNoise()]),
            "reconstruct": st.sampled_from([None, ops.Linear(), ops.Estimate()]),
            "calibration": st.sampled_from(["sound", "paper"]),
            "weights": st.sampled_from([None, "variance", "paper"]),
            "grid": GRIDS,
            "hierarchy": st.sampled_from([None, TREE]),
            "level_split": st.sampled_from([None, (1, 2)]),
            "integers": st.booleans(),
        },
    ),
    "OptStream.release": of("release", {"on": MECHANISMS, "x": PERIODS}),
    "OptStream.auto": Case(ops.OptStream.auto, TUNED, share=0.3),
    "tune": Case(tuned, TUNED | {"history": st.none() | PERIODS, "buckets": st.booleans()}, "buckets", share=0.3),
    "Tuning": Case(lambda count: found().shown(count), {"count": COUNTS}),
    "Candidate": Case(lambda: found().chosen.described),
    "OptStream.with_epsilon": Case(SIMPLE.with_epsilon, {"epsilon": BUDGETS}),
    "Release": Case(lambda x: repr(SIMPLE.release(x)), {"x": PERIODS}),
    "Release.interval": Case(lambda level: SIMPLE.release(np.ones(W)).interval(level), {"level": st.floats(0, 1)}),
    "Release.report": Case(lambda **given: SIMPLE.release(np.ones(W)).report(**given), PAGES),
    "TreeRelease.interval": Case(
        lambda level: WITH_TREE.release(np.ones((W, 2))).interval(level), {"level": st.floats(0, 1)}
    ),
    "TreeRelease.report": Case(lambda **given: WITH_TREE.release(np.ones((W, 2))).report(**given), PAGES),
    "TreeRelease": Case(lambda x: repr(WITH_TREE.release(x)), {"x": PERIODS}),
    "Statement": Case(lambda on: str(on.statement), {"on": MECHANISMS}, "on"),
    "Statement.to_json": Case(lambda on: on.statement.to_json(), {"on": MECHANISMS}, "on"),
    "Stage": Case(lambda on: repr(on.statement.stages), {"on": MECHANISMS}, "on"),
    "CuratorKey": Case(ops.CuratorKey, {"secret": st.binary(min_size=31, max_size=32)}),
    "create_key": Case(ops.create_key, {"path": st.integers().map("key{}".format)}),
    "read_key": Case(ops.read_key, {"path": st.sampled_from(["good.key", "bad.key", "none.key", "."])}),
    "read_plan": Case(ops.read_plan, {"path": st.sampled_from(["good.toml", "bad.toml", "none.toml", "."])}),
    "read_pool_plan": Case(ops.read_pool_plan, {"path": st.sampled_from(["pool.toml", "good.toml", "none.toml", "."])}),
    "PoolPlan": Case(lambda path: str(ops.read_pool_plan(path)), {"path": st.sampled_from(["pool.toml", "bad.toml"])}),
    "PoolPlan.to_json": Case(
        lambda path: ops.read_pool_plan(path).to_json(), {"path": st.sampled_from(["pool.toml", "none.toml"])}
    ),
    "write_plan": Case(
        ops.write_plan, {"mechanism": MECHANISMS, "path": st.sampled_from(["made.toml", "none/made.toml", "."])}
    ),
    "Ledger": Case(
        closed,
        {
            "url": st.sampled_from(["a.db", Path("b.db"), "bad.key", ".", "none/c.db"]),
            "key": st.sampled_from([None, SECRET, "good.key", "bad.key"]),
            "create": st.booleans(),
            "timeout": st.floats(0, 9),
        },
    ),
    "Ledger.close": Case(lambda: ops.Ledger("closed.db", create=True).close()),
    "Ledger.release": on_ledger(
        "release",
        {
            "mechanism": st.sampled_from([SIMPLE, WITH_TREE]),
            "x": PERIODS,
            "stream": NAMES,
            "period": st.integers(0, 50),
            "held": st.none() | st.dictionaries(st.integers(0, 4), st.integers(0, 4), max_size=2),
        },
    ),
    "Ledger.policy": on_ledger("policy", {"stream": NAMES}),
    "Ledger.set_policy": on_ledger("set_policy", {"stream": NAMES, "policy": st.just(GUARANTEE)}),
    "Ledger.remaining": on_ledger("remaining", {"stream": NAMES}),
    "Ledger.head": on_ledger("head", {"stream": NAMES}),
    "Ledger.pool_price": on_ledger("pool_price", {"pool": NAMES, "first": COUNTS, "last": COUNTS}),
    "Ledger.window_price": on_ledger("window_price", {"stream": NAMES, "first": COUNTS, "last": COUNTS}),
    "Ledger.void": on_ledger("void", {"stream": NAMES, "period": COUNTS, "why": st.text(max_size=9)}),
    "Ledger.history": on_ledger("history", {"stream": NAMES}),
    "Ledger.releases": on_ledger("releases", {"stream": NAMES, "first": COUNTS, "last": COUNTS}),
    "Ledger.revised": on_ledger("revised", {"mechanism": MECHANISMS, "stream": NAMES}),
    "Ledger.stored": on_ledger("stored", {"stream": NAMES, "period": COUNTS}),
    "Ledger.export": on_ledger("export", {"target": st.builds(io.StringIO)}, "target"),
    "Ledger.report": on_ledger("report", PAGES | {"streams": st.none() | st.lists(NAMES, max_size=2)}),
    "Ledger.verify": on_ledger("verify", {}),
    "Ledger.check": on_ledger("check", {}),
    "Ledger.backup": on_ledger("backup", {"target": st.integers().map("backup{}.db".format) | st.just("none/b.db")}),
    "Ledger.digests": on_ledger(
        "digests", {"mechanism": MECHANISMS, "x": PERIODS, "stream": NAMES, "period": st.integers(0, 9)}, key=SECRET
    ),
    "Ledger.charge_many": on_ledger(
        "charge_many",
        {
            "mechanism": MECHANISMS,
            "digests": st.dictionaries(NAMES, st.dictionaries(COUNTS, st.binary(max_size=40), max_size=2), max_size=2),
            "final": st.booleans(),
            "create": st.none() | st.booleans(),
        },
        key=SECRET,
    ),
    "Ledger.release_many": on_ledger(
        "release_many",
        {
            "mechanism": MECHANISMS,
            "data": st.dictionaries(NAMES, PERIODS, max_size=2),
            "period": COUNTS | st.dictionaries(NAMES, COUNTS, max_size=2),
            "create": st.none() | st.booleans(),
        },
        key=SECRET,
    ),
    "Ledger.create_pool": on_ledger(
        "create_pool",
        {"name": NAMES, "guarantee": st.just(GUARANTEE), "clock": st.none() | st.text(max_size=9)},
    ),
    "Ledger.create_stream": on_ledger(
        "create_stream",
        {
            "name": NAMES,
            "guarantee": st.just(GUARANTEE),
            "pool": st.none() | NAMES,
            "clock": st.none() | st.text(max_size=9),
        },
    ),
    "Ledger.pool": on_ledger("pool", {"name": NAMES}),
    "Ledger.pool_remaining": on_ledger("pool_remaining", {"pool": NAMES}),
    "Ledger.set_pool_policy": on_ledger("set_pool_policy", {"pool": NAMES, "policy": st.just(GUARANTEE)}),
    "Ledger.rotate_key": on_ledger("rotate_key", {}, key=SECRET),
    "Ledger.forget_since": on_ledger("forget_since", {"last": COUNTS}),
    "restore_ledger": Case(
        ops.restore_ledger,
        {
            "backup": st.sampled_from(["bad.key", "none.db", ".", "digests.db"]),
            "target": st.integers().map("restored{}.db".format),
            "key": st.sampled_from([None, SECRET, "good.key", "bad.key"]),
            "witness": st.sampled_from([None, "none.db", "bad.key"]),
            "accept_loss": st.none() | COUNTS,
        },
    ),
    "rotate_key": Case(ops.rotate_key, {"path": st.sampled_from(["bad.key", "none.key", "."])}),
    "data_digest": Case(
        ops.data_digest,
        {
            "key": st.just(SECRET),
            "stream": NAMES,
            "period": COUNTS,
            "units": st_numpy.arrays(np.int64, st.sampled_from([(1, 4), (4,)]), elements=st.integers(-(2**40), 2**40)),
        },
    ),
    "release_many": Case(
        ops.release_many,
        {
            "mechanism": MECHANISMS,
            "data": st.dictionaries(NAMES, PERIODS, max_size=2),
            "key": st.sampled_from([SECRET, "good.key", "bad.key"]),
            "period": st.none() | COUNTS | st.dictionaries(NAMES, COUNTS, max_size=2),
            "state": st.none() | st.dictionaries(NAMES, STATES, max_size=1),
        },
    ),
    "Stream": Case(
        used,
        {
            "mechanism": st.sampled_from([SIMPLE, WITH_TREE]),
            "name": NAMES,
            "ledger": st.none(),
            "step": st.sampled_from([None, HOUR]),
            "origin": st.sampled_from([None, NEW_YEAR]),
            "late": st.sampled_from(["refuse", "drop", "stored"]),
            "duplicate": st.sampled_from(["refuse", "keep", "replace"]),
            "disorder": st.sampled_from(["refuse", "accept"]),
            "missing": st.sampled_from(["refuse", "hold", "skip", 0.0, 1]),
            "state": STATES,
            "key": st.sampled_from([None, SECRET, "good.key", "bad.key"]),
        },
    ),
    "Stream.push": of("push", {"on": STREAMS, "when": TIMES, "value": OBSERVATIONS}),
    "Stream.push_many": of(
        "push_many",
        {
            "on": STREAMS,
            "when": st.lists(TIMES, max_size=9) | st.just(range(8)),
            "values": st.lists(OBSERVATIONS, max_size=9) | st.just([1.0] * 8),
        },
    ),
    "Stream.discard": of("discard", {"on": STREAMS}),
    "AsyncStream": Case(lambda stream: repr(ops.AsyncStream(stream)), {"stream": STREAMS}),
    "AsyncStream.push": awaited("push", {"on": STREAMS, "when": TIMES, "value": OBSERVATIONS}),
    "AsyncStream.push_many": awaited(
        "push_many", {"on": STREAMS, "when": st.lists(TIMES, max_size=9), "values": st.lists(OBSERVATIONS, max_size=9)}
    ),
    "AsyncStream.flush": awaited("flush", {"on": STREAMS}),
    "AsyncStream.discard": awaited("discard", {"on": STREAMS}),
    "AsyncStream.releases": Case(
        followed,
        {"on": STREAMS, "observations": st.lists(st.tuples(TIMES, OBSERVATIONS | JUNK), max_size=9)},
        "on observations",
    ),
    "StepRelease": Case(stepped, {"x": st.lists(OBSERVATIONS, max_size=6)}, junk=st.lists(JUNK, max_size=3)),
    "StepRelease.interval": Case(lambda level: stepped([1.0])[0].interval(level=level), {"level": st.floats(0, 1)}),
    "Stream.flush": of("flush", {"on": STREAMS}),
    "Stream.released_steps": of("released_steps", {"on": STREAMS, "period": COUNTS}),
    "aggregate": Case(
        ops.aggregate,
        {
            "events": st.sampled_from([EVENTS, EVENTS.to_pandas(), EVENTS.head(0), "events.csv", Path("none.parquet")]),
            "entity": st.just("who"),
            "time": st.just("at"),
            "step": st.sampled_from([None, "1h", HOUR]),
            "value": st.sampled_from([None, "size"]),
            "alpha": st.floats(1, 9),
            "clip": st.sampled_from([None, (0.0, 1.0), (-0.5, 0.5)]),
            "start": st.sampled_from([None, 0, NEW_YEAR]),
            "stop": st.sampled_from([None, 9, NEW_YEAR + HOUR]),
            "grid": GRIDS,
            "group": st.sampled_from([None, "where"]),
            "groups": st.sampled_from([None, ["x", "y"]]),
        },
        allowed=(OSError,),
    ),
    "audit.Attack": Case(reported, {"proven": POSITIVE, "estimate": POSITIVE}, "proven estimate"),
    "audit.Audit": Case(reported, {"proven": POSITIVE, "estimate": st.floats(0)}, "proven estimate"),
    "audit.Pair": Case(audit.Pair, {"name": NAMES, "x": VALUES, "other": VALUES}),
    "audit.audit": Case(
        audit.audit,
        {
            "mechanism": st.sampled_from([SIMPLE, lambda x: x, lambda x: x * np.nan, lambda x: x[:1]]),
            "trials": st.just(1000),
            "confidence": st.floats(0, 1),
            "neighbours": st.none() | st.lists(PAIRS, max_size=1),
            "claimed": st.none() | POSITIVE,
            "likelihood": st.none(),
        },
        junk=SMALL,
    ),
    "audit.pairs_of": Case(audit.pairs_of, {"mechanism": MECHANISMS}),
    "audit.window_pairs": Case(
        audit.window_pairs,
        {"w": st.integers(1, 9), "alpha": POSITIVE, "bounds": BOUNDS, "grid": GRIDS, "straddling": st.booleans()},
        "straddling",
        SMALL,
    ),
}
INTERNAL = {
    "BucketSampling.runs BucketSampling.selection_costs BucketSampling.sample_costs CubeNoise.blocks",
    "CubeNoise.sample_costs EqualSampling.steps EqualSampling.runs EqualSampling.selection_costs",
    "EqualSampling.sample_costs L1Sampling.reads L1Sampling.selection_costs L1Sampling.sample_costs",
    "L1Sampling.positives LaplaceNoise.blocks LaplaceNoise.sample_costs GaussianNoise.blocks",
    "GaussianNoise.sample_costs Feature.refines Hierarchy.sums Panel.sums OptStream.read",
    "OptStream.draw OptStream.assemble OptStream.assemble_period Ledger.release_parts Ledger.enrol Ledger.kept",
    "OptStream.truth OptStream.costs_when",
    "OptStream.changed OptStream.finish OptStream.following OptStream.remembered OptStream.variant",
    "Tuning.picture Tuning.plot Tuning.shown Tuning.to_json Release.measured",
    "Ledger.keep Ledger.keeper CuratorKey.digest CuratorKey.digest_many audit.Audit.to_json audit.Audit.to_markdown",
    "audit.Audit.plot",
    "audit.Audit.picture Release.plot TreeRelease.plot Ledger.plot",
    "Release.leaf_periods TreeRelease.leaf_periods",
    "Ledger.witnessed AsyncStream.close",
}
"""Methods that the library calls with what it has checked, or that other cases call."""


# The binding.

MATRICES = st_numpy.arrays(
    np.float64,
    st.sampled_from([(1, 4), (2, 4), (3, 4), (3, 2), (3, 3), (1, 3), (2, 2), (0, 4), (4, 1), (1, 0)]),
    elements=st.floats(-1e6, 1e6) | st.floats(),
)
UNITS = st_numpy.arrays(np.int64, st.sampled_from([(1, 4), (2, 4), (1, 8)]), elements=st.integers(-(2**40), 2**40))
INDICES = st.none() | st.integers(0, 4) | st.integers(0, 2**20)
PARENTS = st.sampled_from([[1, None], [2, 2, None], [None, 0, 0], [None]]) | st.lists(INDICES, max_size=5)
WEIGHTS = st.sampled_from([[1.0] * n for n in range(6)]) | st.lists(st.floats(), max_size=5)
RETRIES = st.none() | st.tuples(st.just(SECRET), st.lists(st.binary(max_size=4), max_size=2))
FIXED, ADAPTIVE = [(0, 1, 1), (3, 4, 1)], (3, 5.0, False, (Fraction(1, 5), Fraction(4, 5)), True)
SAMPLINGS: Strategy = st.sampled_from([FIXED, [(0, 2, 1), (2, 4, 1)], [], ADAPTIVE])
SAMPLINGS |= st.lists(st.tuples(INDICES, INDICES, INDICES), max_size=4)
SAMPLINGS |= st.tuples(INDICES, st.floats(), st.booleans(), st.tuples(BUDGETS, BUDGETS), st.booleans())


def plan(**more: Any) -> _core.Plan:
    options: dict[str, Any] = {"w": W, "alpha": 1.0, "bounds": (0.0, 100.0), "grid": 2.0**-10, "sampling": FIXED}
    options |= {"cost": Fraction(1, 2), "blocks": None, "features": [], "tree": None}
    return _core.Plan(**options | more)


def scales(**given: Any) -> Any:
    made = _core.Plan(**given)
    return made.sensitivity, made.reach, made.sample_scale, made.feature_scales, made.selection_scales


PLANS = st.sampled_from(
    [
        plan(),
        plan(sampling=ADAPTIVE),
        plan(sampling=[(0, 1, 3), (1, 4, 1)], blocks=[1, 1]),
        plan(features=[([0] * W, Fraction(1, 2))], tree=([W] * W + [None], [1.0] * (W + 1))),
    ]
)
FOREST = _core.Forest([2, 2, None], [1.0] * 3)
PRODUCT = _core.Product([None, 0, 0], [1.0] * 3, [1.0] * 2, [([0, 0], 1.0)], np.eye(2))
CELLS = st.sampled_from([[[0, 1], [2, 3]], [[0], [1], [2], [3]], [[1, 3]], []]) | st.lists(
    st.lists(st.integers(0, 4), max_size=3), max_size=3
)
NUMBERS = st_numpy.arrays(np.float64, st.integers(0, 4), elements=st.floats(-1e6, 1e6) | st.floats())


def measured(periods: int = 3) -> _core.Filter:
    """Return a filter of the binding that has seen some periods."""
    made = _core.Filter(w=W, season=1, memory=True, smooth=True, level=None)
    for period in range(periods):
        _core.update_filters([made], period, [[[0, 1], [2, 3]]], [np.array([1.0, 3.0])], [np.ones(2)])
    return made


FILTERS = st.integers(0, 3).map(measured)
STEPWISE = st.sampled_from([plan(), plan(sampling=[(0, 1, 3), (1, 4, 1)], blocks=[1, 1])])

CORE: dict[str, Case] = {
    "Filter": Case(
        _core.Filter,
        {
            "w": COUNTS,
            "season": COUNTS,
            "memory": st.booleans(),
            "smooth": st.booleans(),
            "level": st.none() | st.tuples(st.floats(), st.floats()),
        },
    ),
    "Filter.from_bytes": Case(
        _core.Filter.from_bytes, {"data": FILTERS.map(lambda made: made.to_bytes()) | st.binary(max_size=64)}
    ),
    "Filter.to_bytes": of("to_bytes", {"on": FILTERS}),
    "Filter.expected_error": of(
        "expected_error",
        {
            "on": FILTERS,
            "cells": CELLS,
            "variances": NUMBERS,
            "scale": st.none() | POSITIVE | st.floats(),
            "memory": st.booleans(),
        },
    ),
    "Filter.expected_step_error": of(
        "expected_step_error",
        {
            "on": FILTERS,
            "cells": CELLS,
            "variances": NUMBERS,
            "scale": st.none() | POSITIVE | st.floats(),
            "memory": st.booleans(),
        },
    ),
    "Track": Case(_core.Track, {"known": FILTERS, "period": COUNTS, "cells": CELLS, "variances": NUMBERS}),
    "Track.push": Case(
        lambda values: _core.Track(measured(), 3, [[0, 1], [2, 3]], np.ones(2)).push(values),
        {"values": st.lists(st.floats(), max_size=3)},
    ),
    "measure_step": Case(
        _core.measure_step,
        {"plan": STEPWISE, "units": UNITS, "pending": st.lists(INDICES, max_size=3), "retry": RETRIES},
    ),
    "finish_steps": Case(_core.finish_steps, {"plan": STEPWISE, "samples": MATRICES, "cells": MATRICES}),
    "sensitivity": Case(_core.sensitivity, {"alpha": st.floats(), "grid": st.floats()}),
    "Filter.deviation": of("deviation", {"on": FILTERS, "transform": MATRICES, "scale": st.none() | st.floats()}),
    "Filter.revised": of(
        "revised",
        {
            "on": FILTERS,
            "history": st.lists(
                st.tuples(COUNTS, CELLS, NUMBERS, NUMBERS, st.tuples(st.floats(), st.floats(), st.floats())), max_size=3
            ),
        },
    ),
    "combined": Case(_core.combined, {"left": MATRICES, "right": MATRICES}),
    "principal": Case(_core.principal, {"moments": MATRICES}),
    "update_filters": Case(
        _core.update_filters,
        {
            "filters": st.lists(FILTERS, max_size=2),
            "period": COUNTS,
            "cells": st.lists(CELLS, max_size=2),
            "values": st.lists(NUMBERS, max_size=2),
            "variances": st.lists(NUMBERS, max_size=2),
        },
    ),
    "choice_hashes": Case(
        _core.choice_hashes,
        {
            "text": st.text(max_size=9),
            "lengths": st_numpy.arrays(np.uint64, st.integers(0, 4), elements=st.integers(0, 2**64 - 1)),
        },
    ),
    "gaussian": Case(
        _core.gaussian,
        {
            "values": VALUES,
            "sensitivity": POSITIVE,
            "ratio": st.fractions(Fraction(1, 99), 9, max_denominator=99),
            "bounds": BOUNDS,
            "grid": GRIDS,
            "retry": RETRIES,
        },
    ),
    "CuratorKey": Case(_core.CuratorKey, {"secret": st.binary(min_size=30, max_size=33)}),
    "CuratorKey.digest": Case(SECRET.digest, {"context": st.lists(st.binary(), max_size=2), "units": UNITS}),
    "Plan": Case(
        scales,
        {
            "w": COUNTS,
            "alpha": POSITIVE,
            "bounds": BOUNDS,
            "grid": st.just(2.0**-10),
            "sampling": SAMPLINGS,
            "cost": BUDGETS,
            "blocks": st.none() | st.lists(INDICES, max_size=3),
            "features": st.lists(st.tuples(st.lists(INDICES, max_size=9), BUDGETS), max_size=2),
            "tree": st.none() | st.tuples(PARENTS, WEIGHTS),
            "streams": st.integers(1, 9),
        },
    ),
    "CuratorKey.digest_many": Case(
        SECRET.digest_many,
        {
            "streams": st.lists(st.binary(max_size=4), max_size=2),
            "periods": st.lists(st.integers(0, 2**64), max_size=2),
            "units": UNITS,
        },
    ),
    "Plan.measure_many": of(
        "measure_many",
        {
            "on": PLANS,
            "units": UNITS,
            "key": st.just(SECRET),
            "streams": st.lists(st.binary(max_size=4), max_size=2),
            "periods": st.lists(st.integers(0, 2**64), max_size=2),
            "digests": st_numpy.arrays(np.uint8, st.sampled_from([(1, 32), (2, 32), (1, 4)])),
            "plan": st.binary(max_size=4),
            "rest": st.lists(st.binary(max_size=4), max_size=1),
            "most": st.none() | st.integers(0, 3),
        },
        "units",
    ),
    "Plan.measure": of("measure", {"on": PLANS, "units": UNITS, "retry": RETRIES}, "units"),
    "Plan.release": of("release", {"on": PLANS, "values": MATRICES.filter(lambda rows: rows.shape[1] == W)}, "values"),
    "Forest": Case(_core.Forest, {"parents": PARENTS, "weights": WEIGHTS}),
    "Forest.project": Case(
        FOREST.project,
        {
            "targets": MATRICES,
            "lower": st.none() | st.floats(),
            "upper": st.none() | st.floats(),
        },
    ),
    "Product": Case(
        _core.Product,
        {
            "parents": PARENTS,
            "node_weights": WEIGHTS,
            "step_weights": WEIGHTS,
            "features": st.lists(st.tuples(st.lists(INDICES, max_size=3), st.floats()), max_size=2),
            "time_inverse": MATRICES,
        },
    ),
    "Product.project": Case(
        PRODUCT.project, {"steps": MATRICES, "cells": MATRICES, "lower": st.floats(), "upper": st.floats()}
    ),
    "quantise": Case(_core.quantise, {"values": MATRICES, "bounds": BOUNDS, "grid": GRIDS}),
    "laplace": Case(_core.laplace, {"values": VALUES, **NOISE, "retry": RETRIES}),
    "cube": Case(_core.cube, {"values": BLOCKS, **NOISE, "retry": RETRIES}),
    "above_threshold": Case(
        lambda sensitivity, epsilon, **given: _core.above_threshold(
            sensitivity=sensitivity, threshold_epsilon=epsilon, query_epsilon=epsilon, **given
        ),
        SCORES | NOISE,
    ),
    "default_grid": Case(_core.default_grid, {"sensitivity": st.floats()}),
}
